//! The command line, as types: the roles and the operator's tools here, users' commands in [`user`].

mod command_groups;
mod kubernetes_manifests;
mod other_words;
pub(crate) mod user;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_enrollment::Invitation;
use muster_local_subnet::programs::Demonstration;
use muster_operator::score::{AuditCurve, AuditReplay, AuditScore, MinerEvidence, Score, Simulate};
use muster_operator::{
    AdoptArguments, AuditOrderArguments, CheckArguments, ExplainAuditArguments, SelfTestArguments,
    ShowAuditArguments, SlashArguments,
};
use muster_process::telemetry::LogFormat;
use muster_protocol::{ExecutorClass, ExecutorToken, JobReference, MinerKey, Rao};
use url::Url;

pub(crate) use kubernetes_manifests::KubernetesManifests;
pub(crate) use other_words::explain_in_own_words;

pub(crate) use user::{
    Account, Chat, Completions, Doctor, Files, Forward, Job, Keys, Login, Proof, ProofCheck, ProofReport,
    ProofVerify, Subnet, Webhook,
};

/// A compute subnet: validators muster miners, prove what they have, and put it to work.
#[derive(Debug, Parser)]
#[command(name = "muster", version, max_term_width = 100, help_template = command_groups::help_template())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the whole subnet on this machine: chain, facilitator, validator, miner and executors.
    Up(Up),
    /// Serves users: accounts, jobs, files, an OpenAI-compatible endpoint.
    Facilitator(Role),
    /// Routes jobs, signs receipts, sets weights.
    Validator(Validator),
    /// Keeps executors and takes jobs from validators.
    Miner(Miner),
    /// Runs jobs in sealed containers: one for the miner that starts it or, persistent, one after another.
    Executor(Executor),
    /// Run jobs, follow them, fetch what they left.
    #[command(subcommand)]
    Job(Box<Job>),
    /// Show what the subnet offers now: classes of executors, how long a job of yours would wait, models.
    Subnet(Subnet),
    /// Watch your jobs in this terminal, or a validator or a miner that you operate.
    Top(Box<Top>),
    /// Explain the choice of miners for a job.
    #[command(subcommand)]
    Route(Route),
    /// Talk to a model; each answer is shown with the check of its proof.
    Chat(Chat),
    /// Serve a model on a port of this machine, for programs without a key; each proof is kept.
    Forward(Forward),
    /// Check proofs of models' answers.
    #[command(subcommand)]
    Proof(Proof),
    /// Streaming sessions of a validator's gateway.
    #[command(subcommand)]
    Session(Session),
    /// Show the grades of executors, and the reason of every zero.
    #[command(subcommand)]
    Grade(Grade),
    /// Explain miners' weights, and keep what they rest on.
    #[command(subcommand)]
    Score(Score),
    /// Spot checks of streamed answers, and a validator's sums done again: verdicts and weights, offline.
    #[command(subcommand)]
    Audit(Audit),
    /// Simulate the pay of honest miners and of attackers, with the real scoring code.
    Simulate(Simulate),
    /// Files in the facilitator's store: inputs and outputs of jobs.
    #[command(subcommand)]
    Files(Box<Files>),
    /// Remember the facilitator to use, and the identity.
    Login(Login),
    /// API keys, for programs and people without a hotkey.
    #[command(subcommand)]
    Keys(Keys),
    /// The URL that is told of the ends of jobs, and the secret that signs the messages.
    #[command(subcommand)]
    Webhook(Webhook),
    /// Show your account at the facilitator, or delete it with all its data.
    #[command(subcommand)]
    Account(Account),
    /// Check this machine: engine, disk, ports, clock, chain, GPU; say what to do about each.
    Doctor(Doctor),
    /// Print a completion script for a shell.
    Completions(Completions),
    /// Write the man pages of all commands into a folder.
    #[command(hide = true)]
    ManPages {
        /// The folder, which is there.
        folder: PathBuf,
    },
    /// Copy a role's state into a folder while the role runs.
    Backup(Backup),
    /// Bring a backup to the places that a role's configuration names. The role must not run.
    Restore(Restore),
    /// Bittensor wallet files.
    #[command(subcommand)]
    Wallet(Wallet),
    /// Explain an error code such as E0001, or the reason of a job's end.
    Explain {
        /// The code, or the reason as it stands in brackets: no_miner_for_job.
        code: String,
    },
}

/// `muster up`.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where wallets, stores, logs and configurations live.
    #[arg(long, default_value = ".muster", env = "MUSTER_DIR")]
    pub(crate) dir: PathBuf,
    /// Run a demonstration (`subnet` or `audits`), show its steps, and stop: exit code 0 only if all of it happened.
    #[arg(
        long, value_name = "WHAT", value_enum, num_args = 0..=1, default_missing_value = "subnet",
        hide_possible_values = true
    )]
    pub(crate) demo: Option<Demonstration>,
    /// With --demo: one JSON object on stdout instead of text.
    #[arg(long, requires = "demo")]
    pub(crate) json: bool,
    /// Miners, each with its own keys.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) miners: u32,
    /// Validators, each with its own keys. The first one serves models; the facilitator gives jobs to all of them.
    #[arg(long, default_value_t = 1, value_name = "V", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) validators: u32,
    /// Executors of each miner, which run at once.
    #[arg(long, default_value_t = 2, value_name = "M")]
    pub(crate) executors: u32,
    /// Let persistent executors connect here too (see `muster executor --enroll`).
    #[arg(long, alias = "standing", value_name = "ADDRESS")]
    pub(crate) persistent: Option<SocketAddr>,
    /// Serve these models too: a TOML file of `[[services]]`, as in the validator's configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) services: Option<PathBuf>,
    /// Let every role export the stages of jobs to the OpenTelemetry collector here, by OTLP over HTTP:
    /// `http://127.0.0.1:4318`.
    #[arg(long, value_name = "URL")]
    pub(crate) traces: Option<Url>,
    /// Milliseconds between blocks of the local chain. A demonstration has 200 at most.
    #[arg(long, default_value_t = 500)]
    pub(crate) block_ms: u64,
    /// Blocks in an epoch of the local chain.
    #[arg(long, default_value_t = 20)]
    pub(crate) tempo: u16,
    /// Blocks between two batches of grading, on average; 0 for none.
    #[arg(long, default_value_t = 60, value_name = "BLOCKS")]
    pub(crate) grade_every: u64,
}

/// The configuration of every role.
#[derive(Debug, Args)]
pub(crate) struct RoleFile {
    /// The configuration, TOML. Without it, every default.
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    /// Print a commented configuration with every default, and stop.
    #[arg(long, conflicts_with = "config")]
    pub(crate) print_config: bool,
}

/// The outputs of every role, besides its figures.
#[derive(Debug, Args)]
pub(crate) struct RoleReport {
    /// Export the stages of jobs as spans to the OpenTelemetry collector here, by OTLP over HTTP:
    /// `http://127.0.0.1:4318`.
    #[arg(long, value_name = "URL")]
    pub(crate) traces: Option<Url>,
    /// The form of log lines: `text` for people, or `json`, one object a line.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogForm::Text, hide_possible_values = true)]
    pub(crate) log_format: LogForm,
}

/// `muster facilitator|validator`, and what `muster miner` shares with them.
#[derive(Debug, Args)]
pub(crate) struct Role {
    #[command(flatten)]
    pub(crate) file: RoleFile,
    /// Serve this process's figures to Prometheus here.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) report: RoleReport,
    /// Stop when standard input ends: the tie to a supervisor that may be killed.
    #[arg(long, hide = true)]
    pub(crate) lifeline: bool,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    /// Lines for people.
    Text,
    /// One JSON object a line, with the field `role`.
    Json,
}

impl From<LogForm> for LogFormat {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Text => Self::Text,
            LogForm::Json => Self::Json,
        }
    }
}

/// `muster miner`: runs, or changes its registry of persistent executors and stops.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Miner {
    #[command(subcommand)]
    pub(crate) command: Option<MinerCommand>,
    #[command(flatten)]
    pub(crate) role: Role,
    /// Print a token by which one executor can enroll as a persistent one, and stop.
    #[arg(long, alias = "enrol")]
    pub(crate) enroll: bool,
    /// With --enroll: the class of that executor; the configured one if it is not given.
    #[arg(long, requires = "enroll")]
    pub(crate) class: Option<ExecutorClass>,
    /// With --enroll: the most jobs that it may run at once.
    #[arg(long, requires = "enroll", default_value_t = 1)]
    pub(crate) capacity: u32,
    /// With --enroll: the executors that the token admits, each once.
    #[arg(long, requires = "enroll", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(muster_enrollment::MAX_USES)))]
    pub(crate) uses: u32,
    /// With --enroll: seconds until the token expires.
    #[arg(long, requires = "enroll", default_value_t = 3600)]
    pub(crate) lives: u64,
    /// List the persistent executors, and stop.
    #[arg(long, conflicts_with = "enroll")]
    pub(crate) executors: bool,
    /// Remove the persistent executor whose certificate's fingerprint begins like this, and stop.
    #[arg(long, value_name = "FINGERPRINT", conflicts_with_all = ["enroll", "executors"])]
    pub(crate) revoke: Option<String>,
}

/// `muster validator`: runs, or asks a running validator.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Validator {
    #[command(subcommand)]
    pub(crate) command: Option<ValidatorCommand>,
    #[command(flatten)]
    pub(crate) role: Role,
}

/// The commands about a running validator.
#[derive(Debug, Subcommand)]
pub(crate) enum ValidatorCommand {
    /// Show what each miner has deposited as collateral, and whether it is enough.
    Collateral(OfValidator),
    /// Take a part of a miner's collateral, by a file of evidence. The same order twice takes it once.
    Slash(Box<ValidatorOrder<SlashArguments>>),
    /// Let a verdict about streamed answers count in the scores: the validator replays its bundle of evidence.
    Adopt(Box<ValidatorOrder<AdoptArguments>>),
    /// Open a session on the trusted miner, look at it, and close it.
    CheckTrustedMiner(Box<ValidatorOrder<CheckArguments>>),
}

/// An order of a validator's operator: `muster validator slash` and the like.
#[derive(Debug, Args)]
pub(crate) struct ValidatorOrder<T: Args> {
    #[command(flatten)]
    pub(crate) order: T,
    /// The file with the validator's `operator_token`; the local subnet's by default.
    #[arg(long, value_name = "FILE", env = "MUSTER_OPERATOR_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) of: OfValidator,
}

/// The commands about a persistent executor.
#[derive(Debug, Subcommand)]
pub(crate) enum ExecutorCommand {
    /// Let the running executor take no more jobs, and wait until its last one has ended.
    Drain(Drain),
    /// Write down what one container prints. An executor starts this itself, and it outlives the executor.
    #[command(hide = true)]
    Collect,
}

/// `muster miner drain` and `muster executor drain`.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The configuration of the running process, TOML. Without it, every default.
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    /// Let it take jobs again instead.
    #[arg(long)]
    pub(crate) undo: bool,
}

/// `muster miner drain`.
#[derive(Debug, Args)]
pub(crate) struct MinerDrain {
    /// Empty this host alone: a persistent executor by its name, or a node of Slurm or Kubernetes. Jobs with
    /// checkpoints leave it, and the others end there.
    pub(crate) host: Option<String>,
    /// Only say how many jobs the miner has: exit code 0 for none, 1 for some.
    #[arg(long, conflicts_with_all = ["host", "undo"])]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) drain: Drain,
}

/// `muster miner manifests`.
#[derive(Debug, Args)]
pub(crate) struct Manifests {
    #[command(subcommand)]
    pub(crate) engine: ManifestEngine,
}

/// The engines that need manifests.
#[derive(Debug, Subcommand)]
pub(crate) enum ManifestEngine {
    /// Print YAML for `kubectl apply -f -`: a namespace, an account with the least rights, and persistent executors.
    Kubernetes(KubernetesManifests),
}

/// The configuration of a miner.
#[derive(Debug, Args)]
pub(crate) struct MinerFile {
    /// The miner's configuration, TOML. Without it, every default.
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
}

/// `muster miner enroll`.
#[derive(Debug, Args)]
pub(crate) struct MinerEnroll {
    #[command(flatten)]
    pub(crate) file: MinerFile,
    /// The class of the executors; the configured one if it is not given.
    #[arg(long)]
    pub(crate) class: Option<ExecutorClass>,
    /// The most jobs that one of them may run at once.
    #[arg(long, default_value_t = 1)]
    pub(crate) capacity: u32,
    /// The executors that the token admits, each once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(muster_enrollment::MAX_USES)))]
    pub(crate) uses: u32,
    /// Seconds until the token expires.
    #[arg(long, default_value_t = 3600)]
    pub(crate) lives: u64,
}

/// `muster miner revoke`.
#[derive(Debug, Args)]
pub(crate) struct MinerRevoke {
    /// The beginning of the fingerprint of the executor's certificate, as `muster miner executors` lists it.
    pub(crate) fingerprint: String,
    #[command(flatten)]
    pub(crate) file: MinerFile,
}

/// The commands about a miner.
#[derive(Debug, Subcommand)]
pub(crate) enum MinerCommand {
    /// Print a token by which a machine becomes a persistent executor of this miner: `muster executor --enroll TOKEN`.
    #[command(visible_alias = "enrol")]
    Enroll(MinerEnroll),
    /// List the persistent executors.
    Executors(MinerFile),
    /// Remove a persistent executor: its certificate is not taken any more.
    Revoke(MinerRevoke),
    /// Let the running miner take no more jobs, and wait until its last one has ended; or start none on one host.
    Drain(MinerDrain),
    /// Print what to apply to an engine before this miner may start executors there.
    Manifests(Manifests),
    /// Replace the certificate of the miner's port; a running miner serves and announces the new one within seconds.
    RotateCertificate(MinerFile),
    /// Show a miner's machines: what validators proved, and what the miner only claims.
    Show(Box<MinerShow>),
    #[command(flatten)]
    Evidence(MinerEvidence),
}

/// `muster top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The thing to watch.
    #[arg(value_enum, default_value_t = Watched::Jobs)]
    pub(crate) watched: Watched,
    /// The address of the validator's `bind` or `operator.bind`, or of the miner's `operator.bind`; the local subnet's
    /// by default.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) at: Option<SocketAddr>,
    /// The file with the operator's token, which `operator.bind` asks for.
    #[arg(long, value_name = "FILE", env = "MUSTER_OPERATOR_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Seconds between two readings.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) every: u64,
    #[command(flatten)]
    pub(crate) access: user::FacilitatorOptions,
}

/// The subject of `muster top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watched {
    /// Your own jobs.
    Jobs,
    /// A validator that you operate.
    Validator,
    /// A miner that you operate.
    Miner,
}

/// `muster miner show`.
#[derive(Debug, Args)]
pub(crate) struct MinerShow {
    /// The miner's hotkey.
    pub(crate) miner: MinerKey,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: user::FacilitatorOptions,
}

/// `muster executor`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Executor {
    #[command(subcommand)]
    pub(crate) command: Option<ExecutorCommand>,
    #[command(flatten)]
    pub(crate) file: RoleFile,
    /// Enroll at a miner as a persistent executor with the token that `muster miner --enroll` printed, and stop.
    #[arg(long, alias = "enrol", value_name = "TOKEN")]
    pub(crate) enroll: Option<Invitation>,
    /// With --enroll: this executor's name, for people.
    #[arg(long, requires = "enroll", default_value = "executor")]
    pub(crate) name: String,
    /// Stay connected to the miner it is enrolled at and take one job after another.
    #[arg(long, alias = "standing", conflicts_with = "enroll")]
    pub(crate) persistent: bool,
    /// With --persistent: end once this program was replaced and no sealed session runs, so that the new one starts.
    #[arg(long, requires = "persistent")]
    pub(crate) end_when_replaced: bool,
    /// Start a Docker engine of its own (dockerd) and end it with the executor: for a container that has none
    #[arg(long, conflicts_with_all = ["enroll", "print_config"])]
    pub(crate) with_engine: bool,
    /// Serve this machine's and this process's figures to Prometheus here.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) report: RoleReport,
    /// The miner to dial, `ws://host:port`.
    #[arg(long, env = "MINER_ADDRESS", required_unless_present_any = ["print_config", "enroll", "persistent"])]
    pub(crate) miner_address: Option<String>,
    /// The lease to serve.
    #[arg(
        long,
        env = "EXECUTOR_TOKEN",
        hide_env_values = true,
        required_unless_present_any = ["print_config", "enroll", "persistent"]
    )]
    pub(crate) token: Option<ExecutorToken>,
}

/// `muster route`.
#[derive(Debug, Subcommand)]
pub(crate) enum Route {
    /// Show the candidates for each attempt of a job with their costs, and the reason for which each other miner was
    /// left out.
    Explain(Box<RouteExplain>),
}

/// `muster session`.
#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// Show the state of each model, and the newest sessions.
    #[command(visible_alias = "list")]
    Ls(ListNewest),
}

/// `muster grade`.
#[derive(Debug, Subcommand)]
pub(crate) enum Grade {
    /// Run the validator's checks on this machine, without a chain, and say which classes it would pass.
    #[command(name = "self")]
    Own(GradeSelf),
    /// Have a validator challenge every executor now.
    Run(ValidatorOrder<GradeRun>),
    /// List the newest batches of a validator.
    #[command(visible_alias = "list")]
    Ls(ListNewest),
    /// Show the results of a miner's executors, with every reason.
    Explain(GradeExplain),
    /// Judge a batch again from its evidence, offline; ends with 1 if the evidence contradicts the validator.
    Replay(GradeReplay),
}

/// The validator to ask.
#[derive(Debug, Args)]
pub(crate) struct OfValidator {
    /// The address at which the validator serves its state; the local subnet's by default.
    #[arg(long, value_name = "ADDRESS", env = "MUSTER_VALIDATOR_STATE")]
    pub(crate) state: Option<SocketAddr>,
    /// The state folder of `muster up` to take the default from.
    #[arg(long, default_value = ".muster", env = "MUSTER_DIR")]
    pub(crate) dir: PathBuf,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `muster grade self`.
#[derive(Debug, Args)]
pub(crate) struct GradeSelf {
    /// Run all challenges of this class, however long they take; otherwise of every class that a probe does not rule
    /// out.
    #[arg(long)]
    pub(crate) class: Option<ExecutorClass>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Add this machine's rates to a file of thresholds (a validator's `grading.floors`), which is created if missing.
    #[arg(long, value_name = "FILE", requires = "class")]
    pub(crate) write_floors: Option<PathBuf>,
    /// The machine's name in that file; its host name by default.
    #[arg(long, value_name = "NAME", requires = "write_floors")]
    pub(crate) machine: Option<String>,
    /// The number of runs for the file.
    #[arg(long, value_name = "RUNS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100), requires = "write_floors")]
    pub(crate) runs: u32,
}

/// `muster audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Audit the answers that have gathered, now: the validator starts references and judges each coldkey.
    Run(Box<ValidatorOrder<AuditOrderArguments>>),
    /// List the audits of a validator, the newest first.
    Ls(ListNewest),
    /// List the jobs that a validator ran again on its own miner, the newest first.
    Checks(ListNewest),
    /// Show the audits from which a bundle came, or one audit.
    Show(ValidatorQuestion<ShowAuditArguments>),
    /// List the tests of the spot checks with cheats that the validator plants itself, or order one.
    SelfTest(Box<ValidatorOrder<SelfTestArguments>>),
    /// Fetch a bundle from a validator and name everything from which its verdict follows.
    Explain(ValidatorQuestion<ExplainAuditArguments>),
    /// Check a bundle of evidence about streamed answers and compute its verdict again, offline.
    Replay(AuditReplay),
    /// Simulate cheats and honest miners by measured answers: audited answers to conviction, false accusations.
    Curve(AuditCurve),
    /// Compute the weights of a cycle again from its snapshot, bit for bit.
    Score(AuditScore),
}

/// A question to a running validator.
#[derive(Debug, Args)]
pub(crate) struct ValidatorQuestion<T: Args> {
    #[command(flatten)]
    pub(crate) question: T,
    #[command(flatten)]
    pub(crate) of: OfValidator,
}

/// `muster grade run`.
#[derive(Debug, Args)]
pub(crate) struct GradeRun {
    /// Probe without announcement: challenge every executor a few seconds after its lease, ready or not.
    #[arg(long)]
    pub(crate) unannounced: bool,
}

/// `muster grade ls`, `muster audit ls` and `muster session ls`.
#[derive(Debug, Args)]
pub(crate) struct ListNewest {
    /// The number of rows to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) of: OfValidator,
}

/// `muster grade explain`.
#[derive(Debug, Args)]
pub(crate) struct GradeExplain {
    /// The miner's hotkey.
    pub(crate) miner: MinerKey,
    /// The number of executors to show, those of the newest batch first.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
    /// Keep the evidence of the newest batch about this miner's executors in this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) of: OfValidator,
}

/// `muster grade replay`.
#[derive(Debug, Args)]
pub(crate) struct GradeReplay {
    /// The file that `muster grade explain --save` wrote.
    pub(crate) file: PathBuf,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `muster route explain`.
#[derive(Debug, Args)]
pub(crate) struct RouteExplain {
    /// The job: its id or the beginning of its id, by which the validator knows it; its name or @last, which the
    /// facilitator knows.
    pub(crate) job: JobReference,
    /// The state address of the validator that routed it; the local subnet's by default.
    #[arg(long, value_name = "ADDRESS", env = "MUSTER_VALIDATOR_STATE")]
    pub(crate) state: Option<SocketAddr>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: user::FacilitatorOptions,
}

/// The role whose state is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackupRole {
    /// Its store, with accounts and jobs, and the files of users that lie in a folder.
    Facilitator,
    /// Its store, with jobs, receipts and scores.
    Validator,
    /// Its store, with leases and receipts, and what it knows of its executors.
    Miner,
    /// The membership of a persistent executor.
    Executor,
}

/// `muster backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The role to back up. It may run meanwhile.
    pub(crate) role: BackupRole,
    /// The new folder of the backup. It will hold secrets of the role.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: PathBuf,
    /// The role's configuration, TOML. Without it, every default.
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    /// Leave the store out: a store in PostgreSQL is copied with pg_dump, before this command.
    #[arg(long)]
    pub(crate) without_store: bool,
}

/// `muster restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The role to restore. It must not run.
    pub(crate) role: BackupRole,
    /// The folder that `muster backup` made.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) from: PathBuf,
    /// The role's configuration, TOML, which names where its state goes. Nothing is overwritten.
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
}

/// `muster wallet`.
#[derive(Debug, Subcommand)]
pub(crate) enum Wallet {
    /// Make a wallet with an unencrypted hotkey. Never overwrites.
    New(WalletArgs),
    /// Show the addresses of a wallet; never its secrets.
    Show(WalletArgs),
    /// Send TAO of the local chain of `muster up` to a coldkey, from the chain's well-known account.
    Fund(WalletFund),
}

/// `muster wallet fund`.
#[derive(Debug, Args)]
pub(crate) struct WalletFund {
    /// The wallet whose coldkey gets it, or an ss58 address.
    #[arg(value_name = "WALLET|ADDRESS")]
    pub(crate) whom: String,
    /// The amount in TAO.
    #[arg(long, value_name = "TAO", default_value = "100", value_parser = muster_operator::parse_tao)]
    pub(crate) amount: Rao,
    /// The folder of wallets; ~/.bittensor/wallets by default.
    #[arg(long, env = "MUSTER_WALLETS")]
    pub(crate) wallets: Option<PathBuf>,
    /// The development chain, ws://…; that of the local subnet by default. It has to run on this machine.
    #[arg(long, value_name = "URL")]
    pub(crate) chain: Option<String>,
    /// The state folder of `muster up` to take the default from.
    #[arg(long, default_value = ".muster", env = "MUSTER_DIR")]
    pub(crate) dir: PathBuf,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `muster wallet new|show`.
#[derive(Debug, Args)]
pub(crate) struct WalletArgs {
    /// The wallet's name.
    pub(crate) name: String,
    /// The hotkey's name.
    #[arg(long, default_value = "default")]
    pub(crate) hotkey: String,
    /// The folder of wallets; ~/.bittensor/wallets by default.
    #[arg(long, env = "MUSTER_WALLETS")]
    pub(crate) wallets: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

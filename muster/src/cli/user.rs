//! The command line of users, as types; `muster job run` is in [`job_run`].

mod job_run;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;
use muster_client::FacilitatorUrl;
use muster_job_spec::options::{CheckpointChoice, ReportOptions, Since, read_choice, read_since};
use muster_protocol::account_api::KeyRight;
use muster_protocol::job::MetricName;
use muster_protocol::{ExecutorClass, JobName, JobReference, ValidatorKey};

pub(crate) use self::job_run::{JobRun, JsonForm, Via};
use self::job_run::{RUN_EXAMPLES, RUN_NOTE, keep_short_help_short};
use crate::completion::ValueKind;

/// `muster job`.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "JOB is a job's id, the beginning of its id, its name (`muster job run --name`), or @last for the \
newest one."
)]
pub(crate) enum Job {
    /// Run a Docker image somewhere in the subnet. Waits, shows its output, and ends with its exit code.
    #[command(after_help = RUN_NOTE, after_long_help = RUN_EXAMPLES, mut_args(keep_short_help_short))]
    Run(Box<JobRun>),
    /// List jobs, newest first.
    #[command(visible_alias = "list")]
    Ls(JobLs),
    /// Show a job: its place while it waits, its steps, its receipts, its failure and the party at fault.
    Show(JobTraced),
    /// Print a job's output, of one that runs what has come so far; with --follow, go on to its end.
    Logs(JobLogs),
    /// Wait for a job's end, and end with its exit code.
    Wait(JobWait),
    /// Draw the metrics that a job's program reported, while it runs and after.
    Curve(JobCurve),
    /// List the checkpoints of a job that are kept, or fetch one.
    Checkpoints(JobCheckpoints),
    /// Show what the validator found by running a job again on its own miner.
    Check(JobShow),
    /// Report a job as cheated: the validator runs it again, and `muster job check` shows what that finds.
    Report(JobReport),
    /// Stop a job.
    Cancel(JobShow),
    /// Fetch a job's outputs from the file store, and its artifacts.
    Get(JobGet),
}

/// The facilitator and the identity. Defaults: the subnet that `muster up` runs in this folder, then `muster login`.
#[derive(Debug, Clone, Args)]
pub(crate) struct FacilitatorOptions {
    /// The state folder of `muster up` to take the defaults from.
    #[arg(
        long,
        default_value = ".muster",
        env = "MUSTER_DIR",
        help_heading = "Facilitator and identity"
    )]
    pub(crate) dir: PathBuf,
    /// URL of the facilitator.
    #[arg(long, env = "MUSTER_FACILITATOR", help_heading = "Facilitator and identity")]
    pub(crate) facilitator: Option<FacilitatorUrl>,
    /// ss58 address of the validator that is to route jobs.
    #[arg(long, env = "MUSTER_VALIDATOR", help_heading = "Facilitator and identity")]
    pub(crate) validator: Option<ValidatorKey>,
    /// An API key; others can see it here, so better keep it in the environment.
    #[arg(
        long,
        env = "MUSTER_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        help_heading = "Facilitator and identity"
    )]
    pub(crate) api_key: Option<String>,
    #[command(flatten)]
    pub(crate) wallet: WalletName,
}

/// The wallet that signs.
#[derive(Debug, Clone, Args)]
pub(crate) struct WalletName {
    /// The folder of wallets; ~/.bittensor/wallets where no local subnet names another.
    #[arg(long, env = "MUSTER_WALLETS", help_heading = "Facilitator and identity")]
    pub(crate) wallets: Option<PathBuf>,
    /// Sign with this wallet (locally `user`).
    #[arg(long, env = "MUSTER_WALLET", help_heading = "Facilitator and identity")]
    pub(crate) wallet: Option<String>,
    /// The hotkey's name.
    #[arg(
        long,
        default_value = "default",
        env = "MUSTER_HOTKEY",
        help_heading = "Facilitator and identity"
    )]
    pub(crate) hotkey: String,
}

/// The states by which jobs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListedState {
    /// No miner has it yet.
    #[value(alias = "queued")]
    Waiting,
    /// A miner has it, and its executor starts.
    Preparing,
    /// The program runs.
    Running,
    /// The outputs are delivered.
    Delivering,
    /// Has ended well.
    #[value(alias = "completed")]
    Done,
    /// Failed, whosever fault it was.
    Failed,
    /// Was stopped by its user.
    Cancelled,
    /// Has not ended.
    Open,
    /// Has ended, well or badly.
    Ended,
}

/// `muster job ls`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  muster job ls --status waiting
  muster job ls --status open --limit 50 --page 2")]
pub(crate) struct JobLs {
    /// The number of rows to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// The page to show, each with --limit rows, at most 256.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) page: u64,
    /// Only jobs of this name.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<JobName>,
    /// Only jobs in this state. Repeatable.
    #[arg(long = "status", short = 's', value_enum, value_name = "STATE")]
    pub(crate) states: Vec<ListedState>,
    /// Print them as JSON, a few fields of each; `full` with all of them.
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true,
        default_missing_value = "short", hide_possible_values = true)]
    pub(crate) json: Option<JsonForm>,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job show`.
#[derive(Debug, Args)]
pub(crate) struct JobTraced {
    /// The job: its id, the beginning of its id, its name, or @last for the newest one.
    #[arg(value_name = "JOB")]
    pub(crate) id: JobReference,
    /// Show its way across the roles instead: each stage with its begin and its time.
    #[arg(long)]
    pub(crate) trace: bool,
    /// Print it as JSON; `full` with inline inputs and signed URLs.
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true,
        default_missing_value = "short", hide_possible_values = true)]
    pub(crate) json: Option<JsonForm>,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job cancel` and `muster job check`.
#[derive(Debug, Args)]
pub(crate) struct JobShow {
    /// The job: its id, the beginning of its id, its name, or @last for the newest one.
    #[arg(value_name = "JOB")]
    pub(crate) id: JobReference,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job logs`.
#[derive(Debug, Args)]
pub(crate) struct JobLogs {
    /// The job: its id, the beginning of its id, its name, or @last for the newest one.
    #[arg(value_name = "JOB")]
    pub(crate) id: JobReference,
    /// Go on until the job has ended; then end with its exit code. Ctrl-C leaves the job alone.
    #[arg(long, short = 'f')]
    pub(crate) follow: bool,
    /// Only the last lines of each stream; with --follow, and what comes after them.
    #[arg(long, short = 'n', value_name = "LINES", conflicts_with = "json")]
    pub(crate) tail: Option<usize>,
    /// Only what the facilitator received since then: 10m, 1h30m, or 2026-01-02T03:04:05Z.
    #[arg(long, value_name = "TIME", value_parser = read_since, conflicts_with_all = ["tail", "json"])]
    pub(crate) since: Option<Since>,
    /// Print one JSON object per line: {"event": "status"|"log"|"progress"|"metrics", …}.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job wait`.
#[derive(Debug, Args)]
#[command(after_help = "The exit codes are those of `muster job run`. Ctrl-C leaves the job alone.")]
pub(crate) struct JobWait {
    /// The job: its id, the beginning of its id, its name, or @last for the newest one.
    #[arg(value_name = "JOB")]
    pub(crate) id: JobReference,
    /// Print it as JSON when it has ended; `full` with inline inputs and signed URLs.
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true,
        default_missing_value = "short", hide_possible_values = true)]
    pub(crate) json: Option<JsonForm>,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job report`.
#[derive(Debug, Args)]
pub(crate) struct JobReport {
    #[command(flatten)]
    pub(crate) report: ReportOptions,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job curve`.
#[derive(Debug, Args)]
#[command(
    after_help = "A program reports metrics by lines of the file $MUSTER_PROGRESS: {\"step\": 20, \"metrics\": {\"loss\": 0.1}}.
`muster job run --metric NAME=REGEX` finds them in what any program prints. A curve has the newest values about every ten
seconds, and those of the program's end."
)]
pub(crate) struct JobCurve {
    /// The job: its id, the beginning of its id, its name, or @last for the newest one.
    #[arg(value_name = "JOB")]
    pub(crate) id: JobReference,
    /// Only this metric. Repeatable.
    #[arg(long = "metric", value_name = "NAME")]
    pub(crate) metrics: Vec<MetricName>,
    /// Write the curves as a picture instead of drawing them here.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print the values as JSON.
    #[arg(long, conflicts_with = "svg")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job checkpoints`.
#[derive(Debug, Args)]
pub(crate) struct JobCheckpoints {
    /// The job: its id, the beginning of its id, its name, or @last for the newest one.
    #[arg(value_name = "JOB")]
    pub(crate) id: JobReference,
    /// Fetch the checkpoint of this number, or the newest one: `newest`.
    #[arg(long, value_name = "N", value_parser = read_choice)]
    pub(crate) get: Option<CheckpointChoice>,
    /// The folder that the checkpoint is written into.
    #[arg(long, value_name = "FOLDER", default_value = ".", requires = "get")]
    pub(crate) save: PathBuf,
    /// Print them as JSON.
    #[arg(long, conflicts_with = "get")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster job get`.
#[derive(Debug, Args)]
pub(crate) struct JobGet {
    /// The job: its id, the beginning of its id, its name, or @last for the newest one.
    #[arg(value_name = "JOB")]
    pub(crate) id: JobReference,
    /// Only this output, by its name in the job: a path under /output. Repeatable.
    ///
    /// Without it all outputs and artifacts are fetched.
    #[arg(long = "output", short = 'o', value_name = "NAME")]
    pub(crate) outputs: Vec<String>,
    /// Where to write outputs and artifacts.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub(crate) save: PathBuf,
    /// Replace files there that have other contents.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what was written as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster subnet`.
#[derive(Debug, Args)]
#[command(
    after_help = "Executors that are free may be at work for another validator. A job waits its turn where none is free."
)]
pub(crate) struct Subnet {
    /// Only this class of executor.
    #[arg(long)]
    pub(crate) class: Option<ExecutorClass>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster files`.
#[derive(Debug, Subcommand)]
pub(crate) enum Files {
    /// Upload a file. Content that the store has is not sent again; an interrupted upload continues.
    Put(FilesPut),
    /// List files, newest first.
    #[command(visible_alias = "list")]
    Ls(FilesLs),
    /// Show a file, with fresh URLs.
    Show(FileId),
    /// Download a file and check it.
    Get(FilesGet),
    /// Delete a file.
    Rm(FileId),
}

/// `muster files put`.
#[derive(Debug, Args)]
pub(crate) struct FilesPut {
    /// The file to upload.
    pub(crate) file: PathBuf,
    /// The name in the store; its own name by default.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster files ls`.
#[derive(Debug, Args)]
pub(crate) struct FilesLs {
    /// The number of rows to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Print them as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster files show` and `muster files rm`.
#[derive(Debug, Args)]
pub(crate) struct FileId {
    /// The file's id.
    #[arg(value_name = "FILE-ID")]
    pub(crate) id: String,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster files get`.
#[derive(Debug, Args)]
pub(crate) struct FilesGet {
    /// The file's id.
    #[arg(value_name = "FILE-ID")]
    pub(crate) id: String,
    /// Where to write it; its own name in the current folder by default.
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// Replace a file there that has other contents.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what was written as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster chat`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  muster chat
  muster chat tiny -m 'What is a hotkey?' --save answer.json && muster proof verify answer.json

It ends with 1 if an answer was not proven.")]
pub(crate) struct Chat {
    /// The model; the first one that is served by default. `muster subnet` lists them.
    pub(crate) model: Option<String>,
    /// Ask this and end, instead of reading lines.
    #[arg(long, short = 'm', value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// A system message before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Tokens of an answer, at most.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub(crate) max_tokens: u32,
    /// Write the last answer with its proof here, in base64, for `muster proof verify`.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Let --save replace a file that is here already.
    #[arg(long, requires = "save")]
    pub(crate) force: bool,
    /// Print one JSON object per answer.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster forward`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  muster forward tiny 8888
  OPENAI_BASE_URL=http://127.0.0.1:8888/v1 OPENAI_API_KEY=none python ask.py   # in another terminal, model \"tiny\"

It listens on this machine alone, prints its address first, and ends with Ctrl-C.")]
pub(crate) struct Forward {
    /// The model to forward to; `muster subnet` lists them.
    pub(crate) model: String,
    /// The port on 127.0.0.1; 0 takes a free one.
    #[arg(default_value_t = 8888)]
    pub(crate) port: u16,
    /// The folder for the proofs of the answers, for `muster proof verify`.
    #[arg(long, value_name = "FOLDER", default_value = "muster-proofs")]
    pub(crate) save: PathBuf,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster proof`.
#[derive(Debug, Subcommand)]
pub(crate) enum Proof {
    /// Check a proof without asking anybody: who signed what about which words. Ends with 1 if it proves nothing.
    Verify(ProofVerify),
    /// Report an answer as not the model's: the validator audits its miner, and `muster proof check` shows the result.
    Report(ProofReport),
    /// Show what the report of an answer led to.
    Check(ProofCheck),
}

/// `muster proof report`.
#[derive(Debug, Args)]
pub(crate) struct ProofReport {
    /// The file that `muster chat --save` wrote, or the answer of /v1/proofs/ID.
    pub(crate) file: PathBuf,
    /// The fault of the answer, in words.
    #[arg(long, value_name = "TEXT")]
    pub(crate) details: Option<String>,
    /// Keep the words of the exchange from the validator. It then cannot have this answer scored.
    #[arg(long)]
    pub(crate) without_words: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster proof check`.
#[derive(Debug, Args)]
pub(crate) struct ProofCheck {
    /// The file of the answer that was reported.
    pub(crate) file: PathBuf,
    /// Print the finding as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster proof verify`.
#[derive(Debug, Args)]
pub(crate) struct ProofVerify {
    /// The file that `muster chat --save` wrote, or the answer of /v1/proofs/ID.
    pub(crate) file: PathBuf,
    /// Print the verdict as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `muster login`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  muster login --facilitator https://facilitator.example.org --validator 5F… --api-key-stdin < key.txt
  muster login --facilitator https://facilitator.example.org --validator 5F… --wallet default
  muster login --web                        # prints a link that signs a browser in
  muster login --forget")]
pub(crate) struct Login {
    /// Read an API key from standard input.
    #[arg(long)]
    pub(crate) api_key_stdin: bool,
    /// Print a link that signs a browser in at the facilitator's web page. It works once, within a minute.
    #[arg(long, conflicts_with = "api_key_stdin")]
    pub(crate) web: bool,
    /// Forget what was remembered.
    #[arg(long, conflicts_with_all = ["api_key_stdin", "web"])]
    pub(crate) forget: bool,
    /// Print what is remembered, or the link, as JSON; never the key.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make an API key. It is shown this once. This takes a hotkey's login, or a key with the right `keys`.
    New(KeyNew),
    /// List the keys that hold.
    #[command(visible_alias = "list")]
    Ls(KeyLs),
    /// Revoke a key, and all keys that it has made.
    Rm(KeyRm),
}

/// `muster keys new`.
#[derive(Debug, Args)]
pub(crate) struct KeyNew {
    /// The key's name, for example the program that will use it.
    pub(crate) name: String,
    /// For an administrator: the account of somebody without a hotkey that the key is to open.
    #[arg(long)]
    pub(crate) account: Option<String>,
    /// The rights of the key, with commas: jobs, chat, files, read, keys; all but keys if left out.
    #[arg(long, value_name = "RIGHTS", value_delimiter = ',')]
    pub(crate) rights: Vec<KeyRight>,
    /// The days until the key ends, 3650 at most; 365 if left out.
    #[arg(long, value_name = "DAYS")]
    pub(crate) days: Option<u32>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster keys ls`.
#[derive(Debug, Args)]
pub(crate) struct KeyLs {
    /// Print them as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster keys rm`.
#[derive(Debug, Args)]
pub(crate) struct KeyRm {
    /// The key's id.
    pub(crate) id: String,
    /// Print the answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster webhook`.
#[derive(Debug, Subcommand)]
pub(crate) enum Webhook {
    /// Set the URL that is told of the end of each job. The secret that signs the messages is shown this once.
    Set(WebhookSet),
    /// Show the URL.
    Show(WebhookShow),
    /// Remove the URL and the secret.
    Rm(WebhookRm),
}

/// `muster webhook set`.
#[derive(Debug, Args)]
#[command(
    after_help = "Messages are signed as Standard Webhooks: HMAC-SHA256 over ID.TIMESTAMP.BODY in the headers
webhook-id, webhook-timestamp and webhook-signature. Refuse a message with an old timestamp."
)]
pub(crate) struct WebhookSet {
    /// The URL; none if only jobs with --webhook are to tell their end.
    pub(crate) url: Option<String>,
    /// Replace the secret by a new one.
    #[arg(long)]
    pub(crate) new_secret: bool,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster webhook show`.
#[derive(Debug, Args)]
pub(crate) struct WebhookShow {
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster webhook rm`.
#[derive(Debug, Args)]
pub(crate) struct WebhookRm {
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster account`.
#[derive(Debug, Subcommand)]
pub(crate) enum Account {
    /// Show what your account holds at the facilitator.
    Show(AccountShow),
    /// Delete your account with its keys, files, jobs, output and usage. It cannot be undone.
    Delete(AccountDelete),
}

/// `muster account show`.
#[derive(Debug, Args)]
pub(crate) struct AccountShow {
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster account delete`.
#[derive(Debug, Args)]
pub(crate) struct AccountDelete {
    /// The account's name, as `muster account show` prints it, instead of the question on the terminal.
    #[arg(long, value_name = "ACCOUNT")]
    pub(crate) confirm: Option<String>,
    /// Print the answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// The purpose whose needs this machine is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Who {
    /// All of them together, as `muster up` needs it.
    Up,
    /// Somebody who submits jobs.
    User,
    /// A miner with executors on this machine.
    Miner,
    /// A validator's machine.
    Validator,
    /// A facilitator's machine.
    Facilitator,
}

/// `muster doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The purpose of this machine.
    #[arg(long = "for", value_enum, default_value = "up", value_name = "WHO")]
    pub(crate) who: Who,
    /// The folder whose disk is looked at.
    #[arg(long, default_value = "/var/tmp")]
    pub(crate) disk: PathBuf,
    /// A chain to ask, ws://…; that of the local subnet by default.
    #[arg(long, env = "MUSTER_CHAIN", value_name = "URL")]
    pub(crate) chain: Option<String>,
    /// With --for miner: the miner's configuration, which is held against the chain, its port and its engines.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print facts and verdicts as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
}

/// `muster completions`.
#[derive(Debug, Args)]
#[command(after_help = "For bash, in ~/.bashrc: source <(muster completions bash)

The script asks this program at each Tab, also for jobs, files, classes and models of your account. The facilitator's
answers lie in ~/.cache/muster for that. With --static it knows the commands and their options only.")]
pub(crate) struct Completions {
    /// The shell to complete for.
    #[arg(value_enum, required_unless_present = "renew")]
    pub(crate) shell: Option<Shell>,
    /// Print a script that never runs this program.
    #[arg(long = "static")]
    pub(crate) fixed: bool,
    /// Ask the facilitator for the values of a kind, and keep them.
    #[arg(long, value_enum, hide = true, conflicts_with = "shell")]
    pub(crate) renew: Option<ValueKind>,
}

//! The rules about arrows: which folder may use which, the arrows inside a folder, and what a crate must never hold.

use Group::{Binary, Foundation, Grading, Jobs, Market, Program, Role, Streaming, TestBed, Users};

/// The part of the repository in which a crate lies, read from its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// `crates/foundation`: what every role needs and what knows no job.
    Foundation,
    /// `crates/jobs`: from a job's order to its receipt.
    Jobs,
    /// `crates/streaming`: sessions whose answers are signed.
    Streaming,
    /// `crates/grading`: proofs of hardware, and scores.
    Grading,
    /// `crates/users`: accounts, files, the users' client, and text for people.
    Users,
    /// `crates/market`: arrays, offers and contracts, the ledger.
    Market,
    /// `validator`, `miner`, `executor`, `facilitator`.
    Role,
    /// `tests/testbed`: what the tests of every crate share. It uses nothing of ours, so that no change builds it
    /// again.
    TestBed,
    /// `muster`, `tests`, `bench`: they put the roles together, and nobody imports them.
    Binary,
    /// `images/*`, `xtask`, fuzz targets: programs that nobody imports and that use only what [`PROGRAMS`] lists.
    Program,
}

impl Group {
    /// The group of a crate by its folder, relative to the root of the repository.
    pub(super) fn of(folder: &str) -> Option<Self> {
        let mut parts = folder.split('/');
        let group = match (parts.next()?, parts.next()) {
            ("crates", Some("foundation")) => Foundation,
            ("crates", Some("jobs")) => Jobs,
            ("crates", Some("streaming")) => Streaming,
            ("crates", Some("grading")) => Grading,
            ("crates", Some("users")) => Users,
            ("crates", Some("market")) => Market,
            ("validator" | "miner" | "executor" | "facilitator", None) => Role,
            ("tests", Some("testbed")) => TestBed,
            ("muster" | "tests" | "bench", None) => Binary,
            ("images", Some(_)) | ("xtask" | "fuzz", None) => Program,
            _ => return None,
        };
        Some(group)
    }

    /// The groups that a crate of this group may use without a listed arrow.
    pub(super) fn may_use(self) -> &'static [Self] {
        match self {
            Foundation | Program | TestBed => &[],
            Jobs | Streaming | Users => &[Foundation],
            Grading => &[Foundation, Jobs, Streaming],
            Market => &[Foundation, Jobs, Grading],
            Role => &[Foundation, Jobs, Streaming, Grading, Users, Market],
            Binary => &[Foundation, Jobs, Streaming, Grading, Users, Market, Role, TestBed],
        }
    }

    /// Whether the crates of this group are libraries, whose errors have types.
    pub(super) fn is_library(self) -> bool {
        match self {
            Foundation | Jobs | Streaming | Grading | Users | Market => true,
            Role | Binary | Program | TestBed => false,
        }
    }

    /// The name under which an error message speaks of the group.
    pub(super) fn name(self) -> &'static str {
        match self {
            Foundation => "foundation",
            Jobs => "jobs",
            Streaming => "streaming",
            Grading => "grading",
            Users => "users",
            Market => "market",
            Role => "the roles",
            Binary => "the binaries",
            Program => "the programs",
            TestBed => "the test bed",
        }
    }
}

/// One allowed arrow that the rule of the groups does not give.
pub(super) struct Arrow {
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// Why the arrow is there.
    pub(super) because: &'static str,
}

/// Arrows inside a folder, and single arrows between folders. An entry that no Cargo.toml uses is a fault.
#[rustfmt::skip]
pub(super) const ARROWS: &[Arrow] = &[
    arrow("muster-account-api", "muster-protocol", "accounts belong to keys of the vocabulary"),
    arrow("muster-identity", "muster-protocol", "keys sign the vocabulary's bytes"),
    arrow("muster-protocol", "muster-canonical-json", "some of the vocabulary's texts are signed as JSON"),
    arrow("muster-protocol", "muster-trace-context", "messages carry the context of a trace"),
    arrow("muster-protocol", "muster-peer-features", "greetings and offers carry the features of a peer"),
    arrow("muster-protocol", "muster-error-code", "the vocabulary names the codes of failures"),
    arrow("muster-protocol", "muster-job-files", "orders of jobs name the sources of inputs and the destinations of outputs"),
    arrow("muster-span-export", "muster-trace-context", "spans have the ids of a trace"),
    arrow("muster-span-export", "muster-protocol", "spans are made of the stages of jobs"),
    arrow("muster-span-export", "muster-process", "the clock, the task and TLS of the export come from the process"),
    arrow("muster-process", "muster-protocol", "configuration and clocks speak of the vocabulary's times and names"),
    arrow("muster-store", "muster-protocol", "an error of a store has one of the vocabulary's codes"),
    arrow("muster-store", "muster-process", "the writer of shared commits is a task of the process"),
    arrow("muster-http", "muster-process", "clocks and tasks of servers come from the process"),
    arrow("muster-http", "muster-protocol", "the pace of callers is measured in the vocabulary's times"),
    arrow("muster-websocket", "muster-protocol", "frames carry the vocabulary's messages"),
    arrow("muster-websocket", "muster-identity", "a session begins with a signed greeting"),
    arrow("muster-websocket", "muster-process", "clocks, tasks and TLS come from the process"),
    arrow("muster-chain", "muster-protocol", "the chain's facts are words of the vocabulary"),
    arrow("muster-chain", "muster-identity", "extrinsics are signed by a hotkey"),
    arrow("muster-chain", "muster-process", "clocks and backoff come from the process"),
    arrow("muster-containers", "muster-job-data", "registries are asked under the address rules of a job's data"),
    arrow("muster-collateral", "muster-routing", "a reading of deposits is what routing judges"),
    arrow("muster-collateral-view", "muster-collateral", "the view reads a source and has it slash"),
    arrow("muster-collateral-view", "muster-routing", "the view applies routing's verdict"),
    arrow("muster-collateral-view", "muster-validator-store", "the book and the slashes lie in the validator's store"),
    arrow("muster-checkpoint-transfer", "muster-checkpoints", "it takes and lays out what the rules call whole"),
    arrow("muster-checkpoint-transfer", "muster-job-metrics", "a program's reports name its checkpoints, and say how far it was"),
    arrow("muster-executor-pools", "muster-kubernetes-engine", "a pool may be of pods"),
    arrow("muster-executor-pools", "muster-provisioning", "a pool starts its executors through a manager"),
    arrow("muster-executor-pools", "muster-slurm-engine", "a pool may be of batch jobs"),
    arrow("muster-miner-config", "muster-executor-pools", "the configuration has the pools of executors"),
    arrow("muster-kubernetes-engine", "muster-provisioning", "the engine does what a pool of executors asks of one"),
    arrow("muster-slurm-engine", "muster-provisioning", "the engine does what a pool of executors asks of one"),
    arrow("muster-executor-config", "muster-attempt-state", "the configuration sets how long a job goes on without its miner"),
    arrow("muster-executor-config", "muster-containers", "the configuration has the limits and the images of containers"),
    arrow("muster-executor-config", "muster-job-data", "the configuration has the settings of downloads and uploads"),
    arrow("muster-executor-config", "muster-machine", "limits are bounded by the size of the machine and its GPUs"),
    arrow("muster-checkpoint-record", "muster-checkpoints", "the rules decide about the record of a job"),
    arrow("muster-checkpoint-record", "muster-validator-store", "the record lies in the validator's store"),
    arrow("muster-checkpoint-record", "muster-job-messages", "a lost attempt is paid as other measured work"),
    arrow("muster-checkpoint-store", "muster-checkpoints", "blocks stay that the manifest of a kept checkpoint names"),
    arrow("muster-checkpoint-store", "muster-file-store", "blocks are objects beside users' files, and URLs are signed alike"),
    arrow("muster-api-rejection", "muster-facilitator-core", "a refused signature or body has an answer"),
    arrow("muster-api-rejection", "muster-facilitator-store", "an account without quota has an answer"),
    arrow("muster-api-rejection", "muster-file-store", "a refused file has an answer"),
    arrow("muster-program-usage", "muster-containers", "the container of a program is sampled"),
    arrow("muster-program-usage", "muster-machine", "the GPUs of a program are sampled"),
    arrow("muster-program-usage", "muster-job-data", "a completion report lists the output files"),
    arrow("muster-machine", "muster-containers", "a claim on GPUs is shared with the containers that get them"),
    arrow("muster-validator-store", "muster-job-messages", "an issued receipt is stored as it was signed"),
    arrow("muster-validator-store", "muster-job-queue", "a waiting job is stored with its place"),
    arrow("muster-validator-store", "muster-subnet-view", "burns are stored with the run of blocks that was read"),
    arrow("muster-validator-store", "muster-routing", "an attempt is stored with its route and its mark"),
    arrow("muster-validator-store", "muster-receipts", "receipts of other validators are stored as they were checked"),
    arrow("muster-validator-store", "muster-facilitator-link", "the outbox holds the link's status updates"),
    arrow("muster-validator-store", "muster-scoring", "a cycle is stored with its scores"),
    arrow("muster-facilitator-core", "muster-job-metrics", "a rule that cannot find metrics is refused before the job is taken"),
    arrow("muster-job-options", "muster-job-metrics", "a rule that cannot find metrics is refused on the command line"),
    arrow("muster-job-spec", "muster-job-metrics", "a rule that cannot find metrics is a fault of the file"),
    arrow("muster-job-spec", "muster-job-options", "times are written as on the command line"),
    arrow("muster-facilitator-store", "muster-facilitator-core", "accounts, histories and pages are stored as the rules shape them"),
    arrow("muster-facilitator-store", "muster-webhooks", "a job's end is stored together with the message about it"),
    arrow("muster-webhooks", "muster-job-data", "messages go to addresses by the rules of a job's data"),
    arrow("muster-local-subnet", "muster-terminal", "a process that died is told as every failure of a command is"),
    arrow("muster-miner-doctor", "muster-machine-verdict", "it gathers the facts that are judged there"),
    arrow("muster-miner-doctor", "muster-miner-config", "a miner's configuration is what it looks into"),
    arrow("muster-miner-doctor", "muster-executor-pools", "the engines of pools are asked as the miner asks them"),
    arrow("muster-miner-doctor", "muster-enrollment", "the miner's certificate lies in the file of a key pair"),
    arrow("muster-operator-tools", "muster-terminal", "the operator's commands print as the users' do"),
    arrow("muster-operator-tools", "muster-collateral", "an order to slash is the source's"),
    arrow("muster-operator-tools", "muster-routing", "the verdict about a deposit is routing's"),
    arrow("muster-web-pages", "muster-page-frame", "users' pages have the document and the styles that operators' have"),
    arrow("muster-operator-pages", "muster-page-frame", "operators' pages have the document and the styles that users' have"),
    arrow("muster-operator-pages", "muster-routing", "a job's route is explained by routing's own reasons"),
    arrow("muster-operator-pages", "muster-curves", "a chart's points are laid out as those of a job's curves"),
    arrow("muster-operator-pages", "muster-status-views", "a page is made of a role's status"),
    arrow("muster-monitor", "muster-status-views", "a screen is made of a role's status"),
    arrow("muster-monitor", "muster-client", "a user's jobs are read as the client reads them"),
    arrow("muster-monitor", "muster-curves", "a curve in a terminal has the axes of its picture"),
    arrow("muster-terminal", "muster-curves", "a program's report is said in one way"),
    arrow("muster-web-pages", "muster-curves", "a page draws the curves of a job"),
    arrow("muster-monitor", "muster-terminal", "a job's state is said in the words of the other commands"),
    arrow("muster-terminal", "muster-client", "a job is shown by the news that the client follows"),
    arrow("muster-session-pool", "muster-response-proof", "the pool is told which proofs a session has given"),
    arrow("muster-session-pool", "muster-openai", "requests are refused in OpenAI's words and priced by their tokens"),
    arrow("muster-response-proof", "muster-openai", "the scheme `text` hashes the text of OpenAI's requests and responses"),
    arrow("muster-answer-proof", "muster-response-proof", "the check reads the signed statements"),
    arrow("muster-proof-module", "muster-answer-proof", "the module is that check, for browsers"),
    arrow("muster-answer-proof", "muster-openai", "only the bodies of event streams carry the proof in a line"),
    arrow("muster-sealing-proxy", "muster-response-proof", "the proxy signs response proofs"),
    arrow("muster-sealing-proxy", "muster-openai", "errors of the proxy have the form that OpenAI's clients read"),
    arrow("muster-sealed-client", "muster-response-proof", "the client checks response proofs"),
    arrow("muster-sealed-client", "muster-openai", "only the bodies of event streams carry the proof in a line"),
    arrow("muster-sealed-client", "muster-session-pool", "a session is opened if its attestation fits the whitelist's entry"),
    arrow("muster-gateway-client", "muster-openai", "tokens are counted and errors answered in OpenAI's words"),
    arrow("muster-gateway-client", "muster-response-proof", "a token for a gateway is one of the signed statements"),
    arrow("muster-gateway", "muster-gateway-client", "keys, bodies and errors are read and answered alike at both ends"),
    arrow("muster-gateway", "muster-answer-proof", "a kept record is checked as pages and servers check an answer"),
    arrow("muster-gateway", "muster-response-proof", "the gateway checks and keeps response proofs"),
    arrow("muster-gateway", "muster-openai", "the gateway counts tokens and refuses in OpenAI's words"),
    arrow("muster-token-count", "muster-openai", "counts have the form in which OpenAI's usage is read"),
    arrow("muster-gateway", "muster-token-count", "the gateway counts tokens by the tokenizer that the whitelist names"),
    arrow("muster-gateway", "muster-session-pool", "the gateway carries out what the pool decides"),
    arrow("muster-gateway", "muster-sealed-client", "the gateway sends its clients' requests to sealed sessions"),
    arrow("muster-grading", "muster-hardware-proof", "a batch is made of hardware proofs"),
    arrow("muster-grading", "muster-scoring", "an executor is counted in the credit that scores pay"),
    arrow("muster-capacity-statements", "muster-scoring", "rows follow from observations by the scoring rules"),
    arrow("muster-stated-grades", "muster-capacity-statements", "a grade is a row of a checked statement"),
    arrow("muster-stated-grades", "muster-scoring", "rows and probes are those of the scoring rules"),
    arrow("muster-stated-grades", "muster-status-views", "grades are told in the form of a miner's status"),
    arrow("muster-score-tools", "muster-audit", "bundles of evidence are replayed"),
    arrow("muster-score-tools", "muster-audit-witness", "a miner's operator is shown what its witness keeps"),
    arrow("muster-audit-witness", "muster-audit", "a miner draws and replays by the rules of the validator"),
    arrow("muster-score-tools", "muster-scoring", "snapshots are explained and scored again"),
    arrow("muster-score-tools", "muster-simulation", "the simulation is a command"),
    arrow("muster-simulation", "muster-scoring", "strategies are paid by the real scoring code"),
    arrow("muster-simulation", "muster-grading", "probes are drawn and judged by the real code of batches"),
    arrow("muster-simulation", "muster-hardware-proof", "a session is judged by the thresholds of its class"),
    arrow("muster-miner-reports", "muster-grading", "a report has the judgements of a miner's executors"),
    arrow("muster-miner-reports", "muster-grading-runner", "the newest judgements lie in the store of batches"),
    arrow("muster-grading-runner", "muster-scoring", "an observation is stored with the states of its excuses"),
    arrow("muster-validator-config", "muster-grading-runner", "a section of the file is the runner's"),
    arrow("muster-validator-config", "muster-scoring", "the weights of classes are bounded by the scores' formula"),
    arrow("muster-validator-config", "muster-audit-runner", "a section of the file is the runner's"),
    arrow("muster-validator-config", "muster-cross-checks", "a section of the file is that of cross-checks"),
    arrow("muster-cross-checks", "muster-audit", "jobs are drawn and judged by the draw and the test of audits"),
    arrow("muster-cross-checks", "muster-audit-runner", "a report about a session orders an audit, and the chain is read as audits read it"),
    arrow("muster-cross-checks", "muster-scoring", "an alarm is a factor of the miners' quality"),
    arrow("muster-audit-runner", "muster-answer-words", "the runner compares what an answer states with what was signed"),
    arrow("muster-audit-runner", "muster-own-prompts", "own prompts are asked in the forms in which users ask"),
    arrow("muster-own-prompts", "muster-audit", "a list of prompts is the list that the evidence commits to"),
    arrow("muster-answer-words", "muster-audit", "ids have the digests and bounds of the evidence"),
    arrow("muster-audit-runner", "muster-audit", "the runner does what a judgement needs"),
    arrow("muster-audit-runner", "muster-scoring", "a conviction takes the pay that is still being vested"),
    arrow("muster-audit-runner", "muster-verdict-exchange", "an adopted bundle is about a subject that the exchange checks, and the status page shows both"),
    arrow("muster-verdict-exchange", "muster-audit", "others' bundles are replayed and compared"),
    arrow("muster-grading-runner", "muster-grading", "the runner carries out what a batch decides"),
    arrow("muster-grading-runner", "muster-hardware-proof", "the runner holds the verifier's conversations"),
];

/// Dev-arrows that only tests need. An entry that no Cargo.toml uses is a fault.
#[rustfmt::skip]
pub(super) const TEST_ARROWS: &[Arrow] = &[
    arrow("muster-sealing-proxy", "muster-sealed-client", "the proxy is tested from its client's end"),
    arrow("muster-gateway", "muster-sealing-proxy", "the gateway is tested against sealing proxies"),
    arrow("muster-facilitator-store", "muster-checkpoint-store", "the soak stores blocks of checkpoints in the tables"),
    arrow("muster-facilitator-store", "muster-file-store", "the soak stores users' files in the tables"),
    arrow("muster-proof-module", "muster-openai", "the golden proofs are made of OpenAI's streams"),
    arrow("muster-proof-module", "muster-response-proof", "the golden proofs are signed as sessions sign them"),
];

/// The crates of ours that programs of their own may use.
#[rustfmt::skip]
pub(super) const PROGRAMS: &[(&str, &[&str])] = &[
    ("xtask", &["muster-feature-set"]),
    ("muster-image-grader", &["muster-hardware-proof"]),
    ("muster-image-grader-cuda", &["muster-hardware-proof", "muster-image-grader"]),
    (
        "muster-fuzz",
        &[
            "muster-protocol", "muster-process", "muster-http", "muster-containers", "muster-enrollment",
            "muster-job-data", "muster-receipts", "muster-openai", "muster-response-proof", "muster-session-pool",
            "muster-hardware-proof", "muster-grading", "muster-scoring", "muster-capacity-statements",
            "muster-facilitator-core", "muster-file-store", "muster-identity", "muster-job-metrics",
            "muster-checkpoints", "muster-answer-proof", "muster-audit", "muster-own-prompts", "muster-job-spec",
        ],
    ),
];

/// Dependencies that a crate must not have although the arrows would allow them.
pub(super) struct Never {
    pub(super) name: &'static str,
    /// Names of crates; `x*` is a prefix.
    patterns: &'static [&'static str],
    pub(super) because: &'static str,
}

impl Never {
    /// Whether the crate must not have this dependency.
    pub(super) fn forbids(&self, dependency: &str) -> bool {
        self.patterns.iter().any(|pattern| matches(pattern, dependency))
    }
}

const NETWORK: &[&str] = &[
    "tokio*", "hyper*", "reqwest", "axum*", "rustls*", "bollard*", "subxt*", "sqlx*",
];

#[rustfmt::skip]
const NEVER: &[Never] = &[
    never("muster-protocol",    NETWORK, "the vocabulary holds no runtime, no IO and no clock"),
    never("muster-identity",    NETWORK, "keys and signatures never touch the network"),
    never("muster-process",     &["bollard*", "subxt*", "sqlx*", "sp-*"], "the process crate holds no domain rules, so it knows no engine, no store and no chain"),
    never("muster-store",       &["bollard*", "subxt*"], "a store knows neither what it stores nor for which role"),
    never("muster-http",        &["bollard*", "subxt*", "sqlx*", "axum*"], "HTTP knows no routes, no store and no chain"),
    never("muster-websocket",   &["bollard*", "subxt*", "sqlx*"], "sessions carry messages and do not know what they mean"),
    never("muster-chain",       &["bollard*", "sqlx*"], "the chain client stores nothing and runs nothing"),
    never("muster-routing",     NETWORK, "routing decides without a clock, a store or a socket"),
    never("muster-miner-link",  &["bollard*", "subxt*", "sqlx*"], "a link carries messages; it keeps and decides nothing about jobs"),
    never("muster-enrollment",  &["bollard*", "subxt*", "sqlx*", "tokio-tungstenite"], "enrollment of an executor needs no job, no engine and no store"),
    never("muster-provisioning", &["bollard*", "subxt*", "sqlx*", "hyper*"], "provisioning knows neither what executors run nor for which validator"),
    never("muster-containers",  &["subxt*", "sqlx*", "reqwest"], "containers and images know no job and fetch nothing themselves"),
    never("muster-job-data",    &["bollard*", "subxt*", "sqlx*"], "a job's data comes and goes without an engine"),
    never("muster-collateral-view", &["bollard*", "subxt*", "sqlx*"], "the view stores through the validator's store"),
    never("muster-collateral",  &["bollard*", "subxt*", "sqlx*"], "a source reads deposits and keeps no store of its own"),
    never("muster-receipts",    &["bollard*", "subxt*", "sqlx*"], "pages are fetched and checked without a store and without a chain"),
    never("muster-job-messages", NETWORK, "a job's messages are read and built without a clock, a store or a socket"),
    never("muster-facilitator-link", &["bollard*", "subxt*", "sqlx*"], "the link stores nothing itself and decides nothing about jobs"),
    never("muster-response-proof", NETWORK, "the statements of a sealed stream are values, and checking one is a function"),
    never("muster-openai",      NETWORK, "requests and responses are read as bytes, without a socket"),
    never("muster-session-pool", NETWORK, "the pool decides which session serves a request without a clock, a store or a socket"),
    never("muster-sealing-proxy", &["bollard*", "subxt*", "sqlx*"], "the data path holds no routing policy and no store"),
    never("muster-sealed-client", &["bollard*", "subxt*", "sqlx*"], "a session's client knows neither a store nor an engine"),
    never("muster-gateway",     &["bollard*", "subxt*"], "a gateway knows sessions and clients, and neither a chain nor an engine"),
    never("muster-gateway-client", &["bollard*", "subxt*", "sqlx*", "hyper-util"], "a facilitator reaches gateways without serving one and without a store"),
    never("muster-hardware-proof", &["bollard*", "cust*", "cudarc", "tch", "subxt*", "sqlx*"], "challenges are verified without Docker and without CUDA"),
    never("muster-grading",     NETWORK, "a batch is planned and judged without a clock, a store or a socket"),
    never("muster-cross-checks", &["bollard*", "subxt*"], "a check knows jobs and their results, and no engine of containers"),
    never("muster-audit-runner", &["bollard*"], "an audit knows sessions and jobs, and no engine of containers"),
    never("muster-grading-runner", &["bollard*", "subxt*"], "a batch knows sessions and jobs, and neither a chain nor an engine"),
    never("muster-scoring",     NETWORK, "scores are decided without a clock, a store or a chain"),
    never("muster-facilitator-core", NETWORK, "admission of users is decided without a socket and without a store"),
    never("muster-facilitator-store", &["bollard*", "subxt*", "axum*", "hyper*", "reqwest"], "a store knows no routes, no engine and no chain"),
    never("muster-file-store",  &["bollard*", "subxt*"], "files know no job, no engine and no chain"),
    never("muster-webhooks",    &["bollard*", "subxt*"], "messages about jobs know no engine and no chain"),
    never("muster-client",      &["bollard*", "subxt*", "sqlx*"], "a user's program needs no store, no engine and no chain"),
    never("muster-operator-tools", &["bollard*", "subxt*", "sqlx*"], "the operator's commands call a running validator"),
    never("muster-terminal",    &["bollard*", "subxt*", "sqlx*", "clap*"], "text for people knows no command line, no store, no engine and no chain"),
    never("muster-executor",    &["muster-chain", "subxt*"], "the executor stands next to untrusted code and must not reach the chain"),
    never("muster-miner",       &["subxt*"], "the chain is reached through muster-chain"),
    never("muster-validator",   &["bollard*", "subxt*"], "containers are the executor's, the chain is reached through muster-chain"),
    never("muster-facilitator", &["bollard*", "subxt*"], "the facilitator runs nothing and writes nothing on chain"),
    never("muster-hold",        NETWORK, "it stands inside other people's containers and does one thing"),
];

const fn arrow(from: &'static str, to: &'static str, because: &'static str) -> Arrow {
    Arrow { from, to, because }
}

const fn never(name: &'static str, patterns: &'static [&'static str], because: &'static str) -> Never {
    Never {
        name,
        patterns,
        because,
    }
}

/// The dependencies that this crate must never have.
pub(super) fn never_of(name: &str) -> impl Iterator<Item = &'static Never> + '_ {
    NEVER.iter().filter(move |never| never.name == name)
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

//! The rules about arrows: which folder may use which, the arrows inside a folder, and what a crate must never hold.

use Group::{
    Binary, BinaryPart, Foundation, Grading, Jobs, Market, Part, Program, Role, Streaming, TestBed, Users,
};

/// A role that a process runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Validator,
    Miner,
    Executor,
    Facilitator,
}

impl Owner {
    /// The role of a folder's first part.
    fn of(folder: &str) -> Option<Self> {
        let owner = match folder {
            "validator" => Self::Validator,
            "miner" => Self::Miner,
            "executor" => Self::Executor,
            "facilitator" => Self::Facilitator,
            _ => return None,
        };
        Some(owner)
    }

    /// The name of the role's own crate.
    pub(super) fn crate_name(self) -> &'static str {
        match self {
            Self::Validator => "muster-validator",
            Self::Miner => "muster-miner",
            Self::Executor => "muster-executor",
            Self::Facilitator => "muster-facilitator",
        }
    }

    /// The names of its role, and of its parts, in an error message.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Validator => ["the validator", "the validator's parts"],
            Self::Miner => ["the miner", "the miner's parts"],
            Self::Executor => ["the executor", "the executor's parts"],
            Self::Facilitator => ["the facilitator", "the facilitator's parts"],
        }
    }
}

/// The part of the repository in which a crate lies, read from its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// `crates/foundation`: what every role needs and what knows no job.
    Foundation,
    /// `crates/jobs`: what roles share of the way from a job's order to its receipt.
    Jobs,
    /// `crates/streaming`: sessions whose answers are signed.
    Streaming,
    /// `crates/grading`: proofs of hardware, and scores.
    Grading,
    /// `crates/users`: the users' client, and what the pages and the terminals of several roles share.
    Users,
    /// `crates/market`: arrays, offers and contracts, the ledger.
    Market,
    /// A crate below the folder of the one role that uses it.
    Part(Owner),
    /// `validator`, `miner`, `executor`, `facilitator`.
    Role(Owner),
    /// `tests/testbed`: what the tests of every crate share. It uses nothing of ours, so that no change builds it
    /// again.
    TestBed,
    /// A crate below `muster`: commands of users and operators, and the subnet on one machine.
    BinaryPart,
    /// `muster`, `tests`, `bench`: they put the roles together, and nobody imports them.
    Binary,
    /// `images/*`, `xtask`, fuzz targets: programs that nobody imports and that use only what [`PROGRAMS`] lists.
    Program,
}

impl Group {
    /// The group of a crate by its folder, relative to the root of the repository.
    pub(super) fn of(folder: &str) -> Option<Self> {
        let mut parts = folder.split('/');
        let (first, second) = (parts.next()?, parts.next());
        if let Some(owner) = Owner::of(first) {
            return Some(second.map_or(Role(owner), |_| Part(owner)));
        }
        let group = match (first, second) {
            ("crates", Some("foundation")) => Foundation,
            ("crates", Some("jobs")) => Jobs,
            ("crates", Some("streaming")) => Streaming,
            ("crates", Some("grading")) => Grading,
            ("crates", Some("users")) => Users,
            ("crates", Some("market")) => Market,
            ("tests", Some("testbed")) => TestBed,
            ("muster", Some(_)) => BinaryPart,
            ("muster" | "tests" | "bench", None) => Binary,
            ("images", Some(_)) | ("xtask" | "fuzz", None) => Program,
            _ => return None,
        };
        Some(group)
    }

    /// The role that a crate of this group is, or is a part of.
    pub(super) fn owner(self) -> Option<Owner> {
        match self {
            Role(owner) | Part(owner) => Some(owner),
            Foundation | Jobs | Streaming | Grading | Users | Market | TestBed | BinaryPart | Binary
            | Program => None,
        }
    }

    /// Whether several roles share the crates of this group.
    pub(super) fn is_shared(self) -> bool {
        match self {
            Foundation | Jobs | Streaming | Grading | Users | Market => true,
            Part(_) | Role(_) | TestBed | BinaryPart | Binary | Program => false,
        }
    }

    /// Whether a crate of this group may use one of the group `below` without a listed arrow.
    pub(super) fn may_use(self, below: Self) -> bool {
        match self {
            Foundation | Program | TestBed => false,
            Jobs | Streaming | Users => below == Foundation,
            Grading => matches!(below, Foundation | Jobs | Streaming),
            Market => matches!(below, Foundation | Jobs | Grading),
            // Cargo refuses circles among the parts of one role.
            Part(owner) | Role(owner) => below.is_shared() || below == Part(owner),
            BinaryPart => below.is_shared() || matches!(below, Part(_) | Role(_) | BinaryPart),
            Binary => below.is_shared() || matches!(below, Part(_) | BinaryPart | Role(_) | TestBed),
        }
    }

    /// Whether the crates of this group are libraries, whose errors have types.
    pub(super) fn is_library(self) -> bool {
        self.is_shared() || matches!(self, Part(_) | BinaryPart)
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
            Role(owner) => owner.names()[0],
            Part(owner) => owner.names()[1],
            BinaryPart => "the binary's parts",
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
    arrow("muster-identity", "muster-protocol", "keys sign the vocabulary's bytes"),
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
    arrow("muster-checkpoint-transfer", "muster-checkpoints", "it takes and lays out what the rules call whole"),
    arrow("muster-checkpoint-transfer", "muster-job-metrics", "a program's reports name its checkpoints, and say how far it was"),
    arrow("muster-operator-pages", "muster-page-layout", "operators' pages have the document and the styles that users' have"),
    arrow("muster-operator-pages", "muster-routing", "a job's route is explained by routing's own reasons"),
    arrow("muster-operator-pages", "muster-curves", "a chart's points are laid out as those of a job's curves"),
    arrow("muster-operator-pages", "muster-status-views", "a page is made of a role's status"),
    arrow("muster-session-pool", "muster-response-proof", "the pool is told which proofs a session has given"),
    arrow("muster-session-pool", "muster-openai", "requests are refused in OpenAI's words and priced by their tokens"),
    arrow("muster-response-proof", "muster-openai", "the scheme `text` hashes the text of OpenAI's requests and responses"),
    arrow("muster-proof-module", "muster-response-proof", "the module is the check of answers, for browsers"),
    arrow("muster-sealing-proxy", "muster-response-proof", "the proxy signs response proofs"),
    arrow("muster-sealing-proxy", "muster-openai", "errors of the proxy have the form that OpenAI's clients read"),
    arrow("muster-sealed-client", "muster-response-proof", "the client checks response proofs"),
    arrow("muster-sealed-client", "muster-openai", "only the bodies of event streams carry the proof in a line"),
    arrow("muster-sealed-client", "muster-session-pool", "a session is opened if its attestation fits the whitelist's entry"),
    arrow("muster-gateway-client", "muster-openai", "tokens are counted and errors answered in OpenAI's words"),
    arrow("muster-gateway-client", "muster-response-proof", "a token for a gateway is one of the signed statements"),
    arrow("muster-gateway", "muster-gateway-client", "keys, bodies and errors are read and answered alike at both ends"),
    arrow("muster-gateway", "muster-response-proof", "the gateway checks and keeps response proofs"),
    arrow("muster-gateway", "muster-openai", "the gateway counts tokens and refuses in OpenAI's words"),
    arrow("muster-gateway", "muster-session-pool", "the gateway carries out what the pool decides"),
    arrow("muster-gateway", "muster-sealed-client", "the gateway sends its clients' requests to sealed sessions"),
    arrow("muster-grading", "muster-hardware-proof", "a batch is made of hardware proofs"),
    arrow("muster-grading", "muster-scoring", "an executor is counted in the credit that scores pay"),
    arrow("muster-simulation", "muster-scoring", "strategies are paid by the real scoring code"),
    arrow("muster-simulation", "muster-grading", "probes are drawn and judged by the real code of batches"),
    arrow("muster-simulation", "muster-hardware-proof", "a session is judged by the thresholds of its class"),
];

/// Crates below `crates/` that one role reaches, or no role, each with its reason. Every other such crate lies under
/// the roof of its role. An entry that several roles reach is a fault.
#[rustfmt::skip]
pub(super) const ALONE: &[(&str, &str)] = &[
    ("muster-sealing-proxy", "both ends of a seal are tested against each other"),
    ("muster-simulation", "the rules of scores are tested by it beside them"),
    ("muster-client", "users' programs use it"),
    ("muster-proof-module", "pages load it as a module of WebAssembly"),
];

/// Dev-arrows that only tests need. An entry that no Cargo.toml uses is a fault.
#[rustfmt::skip]
pub(super) const TEST_ARROWS: &[Arrow] = &[
    arrow("muster-validator", "muster-audit-check", "a validator's evidence is checked as the accused miner checks it"),
    arrow("muster-sealing-proxy", "muster-sealed-client", "the proxy is tested from its client's end"),
    arrow("muster-gateway", "muster-sealing-proxy", "the gateway is tested against sealing proxies"),
    arrow("muster-proof-module", "muster-openai", "the golden proofs are made of OpenAI's streams"),
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
            "muster-hardware-proof", "muster-grading", "muster-scoring",
            "muster-facilitator-core", "muster-file-store", "muster-identity", "muster-job-metrics",
            "muster-checkpoints", "muster-audit", "muster-job-spec",
        ],
    ),
];

/// Dependencies that a crate, and the parts of a role with it, must not have although the arrows would allow them.
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
    never("muster-collateral",  &["bollard*", "subxt*", "sqlx*"], "a source reads deposits and keeps its book through the validator's store"),
    never("muster-receipts",    &["bollard*", "subxt*", "sqlx*"], "pages are fetched and checked without a store and without a chain"),
    never("muster-job-messages", NETWORK, "a job's messages are read and built without a clock, a store or a socket"),
    never("muster-facilitator-link", &["bollard*", "subxt*", "sqlx*"], "the link reads the outbox through the store and decides nothing about jobs"),
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
    never("muster-operator", &["bollard*", "subxt*", "sqlx*"], "the operator's commands call a running validator"),
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

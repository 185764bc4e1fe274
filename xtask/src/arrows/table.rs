//! The layer table: every crate of this repository and what it may use.

use Room::{Apart, Layer};

/// Where a crate stands.
pub(super) enum Room {
    /// May use every lower layer and nothing of its own; the lowest is 1.
    Layer(u8),
    /// A program of its own that may use these of ours, and that nobody imports who does not name it.
    Apart(&'static [&'static str]),
}
/// A crate and what it may use.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) room: Room,
    /// Dependencies it must not have although its layer would allow them; `x*` is a prefix.
    never: &'static [&'static str],
    pub(super) because: &'static str,
}

impl Row {
    /// Whether the crate must not have this dependency whatever its layer.
    pub(super) fn forbids(&self, dependency: &str) -> bool {
        self.never.iter().any(|pattern| matches(pattern, dependency))
    }
}

const IMAGES: &[&str] = &[
    "muster-protocol",
    "muster-identity",
    "muster-process",
    "muster-sealing-proxy",
    "muster-hardware-proof",
];
const NETWORK: &[&str] = &[
    "tokio*", "hyper*", "reqwest", "axum*", "rustls*", "bollard*", "subxt*", "sqlx*",
];

#[rustfmt::skip]
const TABLE: &[Row] = &[
    row("muster-protocol",    Layer(1), NETWORK, "the vocabulary holds no runtime, no IO and no clock"),
    row("muster-identity",    Layer(2), NETWORK, "keys and signatures never touch the network"),
    row("muster-response-proof",        Layer(2), NETWORK, "what a sealed stream's parties sign is a value, and checking it a function"),
    row("muster-process",         Layer(2), &["bollard*", "subxt*", "sp-*"], "the kit holds no domain rules, so it knows no engine and no chain"),
    row("muster-routing",     Layer(2), NETWORK, "who gets a job is decided without a clock, a store or a socket"),
    row("muster-scoring",     Layer(2), NETWORK, "who earned what is decided without a clock, a store or a chain"),
    row("muster-doctor",      Layer(2), NETWORK, "verdicts are pure; facts are gathered by whoever asks"),
    row("muster-chain",       Layer(3), &["bollard*", "sqlx*"], "the chain client stores nothing and runs nothing"),
    row("muster-websocket",         Layer(3), &["bollard*", "subxt*", "sqlx*"], "sessions carry messages and do not know what they mean"),
    row("muster-containers",      Layer(3), &["subxt*", "sqlx*", "reqwest"], "containers and images know no job and fetch nothing themselves"),
    row("muster-job-data",    Layer(3), &["bollard*", "subxt*", "sqlx*"], "a job's data comes and goes without an engine"),
    row("muster-enrollment",        Layer(3), &["bollard*", "subxt*", "sqlx*", "tokio-tungstenite"], "how an executor and its miner come to know each other needs no job, no engine and no store"),
    row("muster-provisioning",    Layer(3), &["bollard*", "subxt*", "sqlx*", "hyper*"], "bringing executors up knows neither what they run nor who asks"),
    row("muster-facilitator-core",      Layer(3), NETWORK, "who is let in at the users' door is decided without a socket and without a store"),
    row("muster-session-pool",    Layer(3), NETWORK, "who is served by which session is decided without a clock, a store or a socket"),
    row("muster-receipts",    Layer(3), &["bollard*", "subxt*", "sqlx*"], "pages are fetched and checked without a store and without a chain"),
    row("muster-file-store",       Layer(3), &["bollard*", "subxt*"], "files know no job, no engine and no chain"),
    row("muster-client",      Layer(3), &["bollard*", "subxt*", "sqlx*"], "a user's program needs no store, no engine and no chain"),
    row("muster-sealing-proxy",       Layer(3), &["bollard*", "subxt*", "sqlx*"], "the data path holds no routing policy and no store"),
    row("muster-hardware-proof",      Layer(3), &["bollard*", "cust*", "cudarc", "tch", "subxt*", "sqlx*"], "challenges are verified without Docker and without CUDA"),
    row("muster-gateway",     Layer(4), &["bollard*", "subxt*"], "a gateway knows sessions and clients, and neither a chain nor an engine"),
    row("muster-grading",     Layer(4), NETWORK, "who is challenged, and what an answer is worth, is decided without a clock, a store or a socket"),
    row("muster-grading-runner",    Layer(5), &["bollard*", "subxt*"], "a batch knows sessions and jobs, and neither a chain nor an engine"),
    row("muster-executor",    Layer(6), &["muster-chain", "subxt*"], "the executor stands next to untrusted code and must not reach the chain"),
    row("muster-miner",       Layer(6), &["subxt*"], "the chain is reached through muster-chain"),
    row("muster-validator",   Layer(6), &["bollard*", "subxt*"], "containers are the executor's, the chain is reached through muster-chain"),
    row("muster-facilitator", Layer(6), &["bollard*", "subxt*"], "the users' door runs nothing and writes nothing on chain"),
    row("muster",             Layer(7), &[], ""),
    row("muster-tests",       Layer(7), &[], ""),
    row("muster-bench",       Layer(7), &[], ""),
    row("muster-image-hello",   Apart(IMAGES), &[], ""),
    row("muster-image-probe",   Apart(&[]), &[], ""),
    row("muster-hold",          Apart(&[]), NETWORK, "it stands inside other people's containers and does one thing"),
    row("muster-image-grader",  Apart(IMAGES), &[], ""),
    row("muster-image-grader-cuda", Apart(&["muster-hardware-proof", "muster-image-grader"]), &[], ""),
    row("muster-image-llm",     Apart(IMAGES), &[], ""),
    row("muster-protocol-fuzz", Apart(&["muster-protocol"]), &[], ""),
    row("xtask",                Apart(&[]), &[], ""),
];

const fn row(name: &'static str, room: Room, never: &'static [&'static str], because: &'static str) -> Row {
    Row {
        name,
        room,
        never,
        because,
    }
}

/// The row of one of our crates.
pub(super) fn find(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

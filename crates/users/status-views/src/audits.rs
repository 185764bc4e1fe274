//! The verdicts about streamed answers that a validator has adopted, and the report about one of them.

use muster_protocol::Timestamp;
use serde::Deserialize;

/// `GET /v0/audits`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AuditsStatus {
    /// The newest verdicts, the newest first.
    pub audits: Vec<AuditRow>,
}

/// An adopted verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AuditRow {
    /// The digest of the bundle of evidence.
    pub digest: String,
    /// The coldkey that was judged.
    pub coldkey: String,
    /// The hotkeys whose answers were judged.
    pub miners: Vec<String>,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The verdict, as `convicted`.
    pub verdict: String,
    /// The factor of the miners' quality in scores, in thousandths.
    pub quality_per_mille: u16,
    /// The time of the adoption.
    pub adopted_at: Option<Timestamp>,
}

/// `GET /v0/audits/{digest}/report`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AuditReportStatus {
    /// The replay of the bundle.
    pub replayed: ReplayedAudit,
    /// The evidence at which a test alarms.
    pub alarm: u64,
    /// The evidence at which fresh answers confirm an alarm.
    pub confirmation: u64,
    /// The evidence of each test after each answer.
    #[serde(rename = "wealth")]
    pub evidence: Vec<EvidenceRow>,
    /// The audited answers to the alarm, by the bundle's calibration.
    pub curve: Vec<AlarmRow>,
    /// The miners that reach each threshold, by the bundle's calibration.
    pub roc: Vec<RocRow>,
}

/// The result of a bundle's replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReplayedAudit {
    /// The coldkey that is judged.
    pub coldkey: String,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The verdict, as `convicted`.
    pub verdict: String,
    /// Whether users are served worse than the validator's own prompts.
    pub discriminates: bool,
    /// The factor of quality in scores, in thousandths.
    pub quality_per_mille: u16,
    /// How far verdicts by the calibration may go: `0`, `1` or `2`.
    pub level: String,
    /// The engines that were tested.
    pub alternatives: Vec<String>,
    /// The engines that were not, each because honest answers of a machine resemble it.
    pub exceeded: Vec<ExceededRow>,
    /// The numbers of answers.
    pub counts: AnswerCounts,
    /// The results of the tests.
    pub tests: TestRows,
    /// The test of missing answers; `None` for a bundle of an earlier format.
    pub missing: Option<MissingRow>,
}

/// The test of missing answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MissingRow {
    /// The answers that were tested, missing ones included.
    pub answers: u64,
    /// The missing ones of them.
    pub missing: MissingCounts,
    /// The answers until the alarm.
    pub alarm: Option<u64>,
}

/// The numbers of missing answers by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MissingCounts {
    /// Own prompts whose answers state no ids of tokens.
    pub no_token_ids: u64,
    /// Answers that the engine broke off.
    pub broken_off: u64,
    /// Answers whose connection ended early.
    pub cut: u64,
    /// Answers without a valid proof.
    pub unproven: u64,
}

/// An engine that honest answers of a machine resemble.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExceededRow {
    /// The machine's name in the calibration.
    pub machine: String,
    /// The engine's name in the calibration.
    pub alternative: String,
}

/// The numbers of answers in a bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AnswerCounts {
    /// Proven answers in the log.
    pub logged: u64,
    /// Answers that were drawn, or came from the committed list.
    pub audited: u64,
    /// Tested answers that a reference scored.
    pub scored: u64,
    /// Tested answers that nobody scored.
    pub unscored: u64,
}

/// The tests of a bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TestRows {
    /// The test of all answers.
    pub all: TestRow,
    /// The test of answers to the validator's own prompts and to consenting clients.
    pub public: TestRow,
    /// The test of users' answers.
    pub private: TestRow,
    /// The test of the answers whose seeds nobody knows; without such a test, one without answers.
    pub unseeded: TestRow,
}

/// The result of one test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TestRow {
    /// The answers that were tested.
    pub answers: u64,
    /// The answers until the alarm.
    pub alarm: Option<u64>,
    /// Whether the second reference raises an alarm, too.
    pub rescored: bool,
    /// Whether later answers confirm it.
    pub fresh: bool,
}

/// The evidence of a test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EvidenceRow {
    /// `all`, `public`, `private`, `unseeded` or `missing`.
    pub test: String,
    /// The points in the order of the log.
    pub points: Vec<EvidencePointRow>,
}

/// The evidence after an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EvidencePointRow {
    /// The number of the answer, from 1.
    pub answer: u64,
    /// The binary logarithm of the evidence, in thousandths.
    pub log2: i64,
}

/// The simulated answers to the alarm against one cheat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AlarmRow {
    /// The cheat's engine.
    pub alternative: String,
    /// The share of answers that it gives, in thousandths.
    pub share: u16,
    /// The simulated miners.
    pub trials: u32,
    /// Those that were accused at all.
    pub accused: u32,
    /// The median of answers; `None` if fewer than half were accused.
    pub median: Option<u32>,
    /// The answers within which 95 of 100 were accused.
    pub most: Option<u32>,
}

/// The simulated miners that reach each threshold, for one cheat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RocRow {
    /// The cheat's engine.
    pub alternative: String,
    /// The share of answers that it gives, in thousandths.
    pub share: u16,
    /// The audited answers of each miner.
    pub answers: u32,
    /// The simulated miners of each kind.
    pub trials: u32,
    /// The points by rising threshold; the last is the alarm.
    pub points: Vec<RocPointRow>,
}

/// The miners that reached one threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RocPointRow {
    /// The evidence at the threshold.
    #[serde(rename = "wealth")]
    pub evidence: u64,
    /// Honest miners that reached it.
    pub honest: u32,
    /// Cheats that reached it.
    pub cheats: u32,
}

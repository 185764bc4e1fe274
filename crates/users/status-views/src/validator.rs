//! The status of a validator, as far as it is shown.

use std::collections::BTreeMap;

use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::{JobStatus, Manifest, Timestamp};
use serde::Deserialize;
use serde_json::Value;

/// `GET /v0/state`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ValidatorStatus {
    /// The validator's hotkey.
    pub validator: String,
    /// The time of the answer by the validator's clock.
    pub time: Option<Timestamp>,
    /// The newest finalised block; `None` before the chain has answered.
    pub block: Option<u64>,
    /// The connection to the chain.
    pub chain: LinkStatus,
    /// The connection to the facilitator.
    pub facilitator: LinkStatus,
    /// Status updates that the facilitator has not acknowledged.
    pub updates_waiting: u64,
    /// The newest jobs, the newest first.
    pub jobs: Vec<JobStatusRow>,
    /// The newest scored cycles, the newest first.
    pub cycles: Vec<CycleRow>,
    /// Receipts of all validators in the store.
    pub gathered: u64,
    /// Pieces of live output that were dropped since the start.
    pub live_dropped: u64,
}

/// The state of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LinkStatus {
    /// `connecting`, `connected` or `lost`.
    pub state: String,
    /// The reason of a lost connection; empty otherwise.
    pub reason: String,
}

/// A job as the status page lists it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JobStatusRow {
    /// The job's id.
    pub job: String,
    /// The last status.
    pub status: JobStatus,
    /// How it ended; `None` while it is open.
    pub outcome: Option<OutcomeRow>,
    /// The party at fault.
    pub fault: Option<String>,
    /// The time of its arrival.
    pub created_at: Option<Timestamp>,
    /// The time of its end.
    pub closed_at: Option<Timestamp>,
    /// Its attempts, the oldest first.
    pub attempts: Vec<AttemptRow>,
}

/// The end of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OutcomeRow {
    /// The status, the reason and the message in one line.
    pub summary: String,
}

/// An attempt of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AttemptRow {
    /// The attempt's id.
    pub attempt: String,
    /// The miner's hotkey.
    pub miner: String,
    /// The miner's uid.
    pub uid: u16,
    /// The state of the attempt.
    pub state: String,
    /// The time at which it began.
    pub started_at: Option<Timestamp>,
}

/// A scored cycle.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CycleRow {
    /// The cycle's number: its first block.
    pub number: u64,
    /// The first block whose work is scored.
    pub first_block: u64,
    /// The last one.
    pub last_block: u64,
    /// The state of its weights.
    pub state: String,
    /// The chain's error at the last try to send the weights.
    pub error: Option<String>,
    /// The weights: uid and weight.
    pub weights: Vec<(u16, u16)>,
    /// The miners' scores.
    pub scores: Vec<ScoreRow>,
    /// The first receipts that do not count, each with the reason.
    pub dropped: Vec<Value>,
    /// Receipts beyond those.
    pub more_dropped: u64,
    /// Neurons without a weight, each with the reason.
    pub zeros: Vec<Value>,
    /// The digest of the snapshot by which it was scored.
    pub snapshot: Option<String>,
    /// The block at which the state changed last.
    pub at_block: u64,
}

/// The score of a miner in a cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ScoreRow {
    /// The miner's uid.
    pub uid: u16,
    /// The miner's hotkey.
    pub miner: String,
    /// Executor-microseconds of its receipts that count.
    pub micros: u64,
    /// The credit of its proven executors, in thousandths of an executor.
    pub credit: u64,
    /// The points of the cycle.
    pub points: u64,
    /// The points that are paid with it; none in scores of an early release.
    pub vested: Option<u64>,
}

/// `GET /v0/queue`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct QueueStatus {
    /// The line of each class.
    pub lines: Vec<QueueLine>,
    /// The jobs that wait, in the order in which they start.
    pub jobs: Vec<WaitingJobRow>,
}

/// The line of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct QueueLine {
    /// The class of executor.
    pub class: String,
    /// Jobs that wait.
    pub waiting: u64,
    /// Miners that offer the class.
    pub miners: u32,
    /// Executors of these miners.
    pub executors: u32,
    /// Attempts of this validator on them.
    pub at_work: u32,
    /// The reason for which jobs wait.
    pub why: Option<String>,
    /// Mean seconds of recent programs.
    pub mean_s: Option<u64>,
}

/// A job that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WaitingJobRow {
    /// The job's id.
    pub job: String,
    /// The account that submitted it.
    pub account: String,
    /// The class of executor.
    pub class: String,
    /// Jobs before it.
    pub ahead: u64,
    /// The time since when it waits.
    pub since: Option<Timestamp>,
    /// The time at which it has waited too long.
    pub deadline: Option<Timestamp>,
}

/// `GET /v0/miners`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct MinersStatus {
    /// The miners of which anything is known, by uid.
    pub miners: Vec<MinerNotice>,
}

/// `GET /v0/subnet`: every neuron of the subnet with what the validator makes of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SubnetStatus {
    /// The block of the metagraph; `None` before the chain has answered.
    pub block: Option<u64>,
    /// The subnet's number.
    pub netuid: u16,
    /// The neurons by uid.
    pub neurons: Vec<NeuronRow>,
}

/// A neuron of the subnet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NeuronRow {
    /// Its uid in the subnet.
    pub uid: u16,
    /// Its hotkey as an address.
    pub hotkey: String,
    /// The manifest that it has committed on the chain.
    pub stated: Option<Manifest>,
    /// Its address on the chain, if it has one that may be dialled.
    pub axon: Option<String>,
    /// Whether it may set weights.
    pub permit: bool,
    /// Its stake in rao.
    pub stake: u64,
    /// Successes in a thousand of the attempts that counted; `None` without one.
    pub reliability_permille: Option<u32>,
    /// The weight that this validator last decided on.
    pub weight: Option<u16>,
    /// The weight that the chain shows for this validator.
    pub chain_weight: Option<u16>,
}

/// `GET /v0/batches`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BatchesStatus {
    /// The newest batches, the newest first.
    pub batches: Vec<BatchRow>,
}

/// A grading batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BatchRow {
    /// The id of the batch.
    pub batch: String,
    /// The block with which it began.
    pub block: u64,
    /// `open`, `done` or `void`.
    pub state: String,
    /// The time at which it began.
    pub began_at: Option<Timestamp>,
    /// The time at which it ended.
    pub ended_at: Option<Timestamp>,
    /// Executors by judgement.
    pub grades: BTreeMap<String, u64>,
}

/// `GET /v0/grades/{miner}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GradesStatus {
    /// The newest grades, the newest first.
    pub grades: Vec<GradeRow>,
}

/// The grade of one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GradeRow {
    /// The id of the batch.
    pub batch: String,
    /// The block with which the batch began.
    pub block: u64,
    /// The class; none for a miner that did not announce its executors.
    pub class: Option<String>,
    /// The number of the executor.
    pub index: u64,
    /// The judgement as text.
    pub said: String,
}

/// `GET /v0/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionsStatus {
    /// The models of the gateway.
    pub models: Vec<ModelRow>,
    /// The newest sessions.
    pub sessions: Vec<SessionRow>,
}

/// A model of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ModelRow {
    /// The model's id.
    pub model: String,
    /// Sessions that are being started.
    pub starting: u64,
    /// Sessions that take requests.
    pub live: u64,
    /// Sessions that take no more requests.
    pub draining: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Requests that are being served.
    pub serving: u64,
    /// Why the last start of a session failed.
    pub trouble: String,
}

/// A session of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionRow {
    /// The session's id.
    pub session: String,
    /// The job that runs it.
    pub job: String,
    /// The miner's hotkey.
    pub miner: String,
    /// The model that it serves.
    pub model: String,
    /// The time at which it was ready.
    pub opened_at: Option<Timestamp>,
    /// The time at which it was closed.
    pub closed_at: Option<Timestamp>,
    /// Why it was closed.
    pub closed_because: Option<String>,
    /// A defect of its close statement.
    pub fault: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_release_is_read_as_far_as_it_goes() {
        let text = r#"{"validator":"5Grw","news":[1],"block":null,"chain":{"state":"lost","reason":"away"},
            "jobs":[{"job":"a","status":"later_status","attempts":[{"uid":3}]}],
            "cycles":[{"number":7,"state":"set","weights":[[1,65535]],"scores":[{"uid":1,"points":5}],"dropped":[["x","late"]]}]}"#;
        let status: ValidatorStatus = serde_json::from_str(text).unwrap();
        assert_eq!(status.chain.reason, "away");
        assert_eq!(status.jobs[0].status, JobStatus::Unknown);
        assert_eq!(status.cycles[0].weights, [(1, 65_535)]);
        assert_eq!(
            (status.cycles[0].scores[0].points, status.cycles[0].dropped.len()),
            (5, 1)
        );
        assert_eq!(
            serde_json::from_str::<ValidatorStatus>("{}").unwrap(),
            ValidatorStatus::default()
        );
    }
}

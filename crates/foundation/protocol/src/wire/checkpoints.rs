//! Messages about the checkpoints of jobs. They are sent only to peers that showed the feature `checkpoints`.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::features::{Feature, FeatureSet};
use crate::ids::{AttemptId, JobId};
use crate::job::{KeptCheckpoint, MetricName, MetricValue, SaveSignal};

/// The longest URL of a job's blocks, in bytes.
pub const MAX_BLOCKS_URL_BYTES: usize = 2_048;

/// `MusterCheckpoint`, executor to miner to validator: a whole checkpoint is in the file store. The executor repeats it
/// until [`CheckpointKept`] answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointNotice {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// Counts the checkpoints of the attempt from 1; a repetition has the same number.
    pub number: u32,
    /// The SHA-256 of the manifest, which lies in the file store as a block.
    pub manifest: Digest,
    /// The name of the file or the folder in the folder of checkpoints, at most 255 bytes.
    pub name: String,
    /// The bytes of all files together.
    pub bytes: u64,
    /// The epoch that the program had reported when it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The step that the program had reported when it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The value of the metric that the order named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricValue>,
}

/// `MusterCheckpointKept`, validator to miner to executor: the checkpoint is durable at the validator, and the next
/// attempt may begin from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointKept {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The number in [`CheckpointNotice`].
    pub number: u32,
    /// The number of the checkpoint in its job.
    pub ordinal: u32,
}

/// `MusterDrain`, validator to miner and miner to executor: the attempt must leave its executor. The executor asks the
/// program to save and to end; a program that has saved ends with exit code 85, and another attempt goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainJob {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// Seconds until the executor is lost.
    pub lead_s: u64,
}

/// The key `muster` of `V0JobRequest`, validator to miner and miner to executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestExtension {
    /// The checkpoints of the job; absent for a job without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointOrder>,
    /// The place of the streams that the job's program prints. Sent only to peers that showed the feature `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputOrder>,
}

/// The order to keep the streams that a program prints, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputOrder {
    /// The signed URL below which the blocks of the streams are written.
    pub blocks: String,
}

/// The place of the streams that a job's programs print, as its facilitator grants it to the validator, in the key
/// `muster` of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputGrant {
    /// The signed URL below which blocks of the job are written. The validator narrows it to each attempt.
    pub blocks: String,
}

/// The part of a job that an executor needs to know about the checkpoints of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOrder {
    /// The folder in the container.
    pub folder: String,
    /// `MUSTER_CHECKPOINT_EVERY`, in epochs.
    pub every: u32,
    /// The signal that asks the program to save.
    pub signal: SaveSignal,
    /// The metric whose value goes with each checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricName>,
    /// `MUSTER_ATTEMPT`: the number of the attempt; the first is 1.
    pub attempt: u32,
    /// How often the batch is halved, from which `MUSTER_BATCH_SCALE` follows.
    #[serde(default)]
    pub halvings: u32,
    /// The seconds without progress after which the program is stopped; never, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_s: Option<u32>,
    /// The signed URL below which the blocks of the job are read and written.
    pub blocks: String,
    /// The checkpoint to begin from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeOrder>,
}

/// The checkpoint that an attempt begins from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeOrder {
    /// The SHA-256 of its manifest.
    pub manifest: Digest,
    /// The signed URL below which its blocks are read.
    pub blocks: String,
}

/// The checkpoints of a job as its facilitator grants them to the validator, in the key `muster` of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointGrant {
    /// The signed URL below which the blocks of the job are read and written.
    pub blocks: String,
    /// The checkpoint of another job that this one begins from, as the terms name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeOrder>,
    /// Whether the validator may narrow both URLs to one attempt. A facilitator before the feature `attempt-urls`
    /// leaves it out: then executors get the URLs as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attempt_urls: bool,
}

/// `MusterJobCheckpoints`, validator to facilitator: all checkpoints of a job that are kept now. Not answered. The
/// newest list holds; the file store drops the blocks that no list names after a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobCheckpoints {
    /// The id of the job.
    pub uuid: JobId,
    /// The checkpoints, oldest first.
    pub kept: Vec<KeptCheckpoint>,
    /// The attempts from 1 to this one have ended: their URLs permit nothing any more. 0 if none has; sent only to a
    /// facilitator with the feature `attempt-urls`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ended_attempts: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl RequestExtension {
    /// Takes out the orders that an executor with these features does not know.
    pub fn fit_to(&mut self, executor: FeatureSet) {
        if !executor.has(Feature::Checkpoints) {
            self.checkpoints = None;
        }
        if !executor.has(Feature::Output) {
            self.output = None;
        }
    }
}

impl CheckpointGrant {
    /// Takes out the fields that a validator with these features refuses.
    pub fn fit_to(&mut self, validator: FeatureSet) {
        self.attempt_urls &= validator.has(Feature::AttemptUrls);
    }
}

impl JobCheckpoints {
    /// Takes out the fields that a facilitator with these features refuses.
    pub fn fit_to(&mut self, facilitator: FeatureSet) {
        if !facilitator.has(Feature::AttemptUrls) {
            self.ended_attempts = 0;
        }
    }
}

/// The question which blocks the file store lacks, in the body of `POST …/missing`, and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockList {
    /// The SHA-256 of each block, at most [`MAX_BLOCK_LIST`].
    pub blocks: Vec<Digest>,
}

/// The most blocks of one question.
pub const MAX_BLOCK_LIST: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_gets_the_orders_that_it_knows_byte_for_byte() {
        let text = r#"{"output":{"blocks":"http://f/blocks/J?Attempt=1"}}"#;
        let mut order: RequestExtension = serde_json::from_str(text).unwrap();
        order.fit_to(FeatureSet::ours());
        assert_eq!(serde_json::to_string(&order).unwrap(), text);
        order.fit_to([Feature::Checkpoints].into_iter().collect());
        assert_eq!(order, RequestExtension::default());
        let grant = r#"{"blocks":"http://f/blocks/J"}"#;
        let read: OutputGrant = serde_json::from_str(grant).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), grant);
    }

    #[test]
    fn a_peer_of_the_release_before_gets_no_field_that_it_refuses() {
        let before: FeatureSet = [Feature::Checkpoints].into_iter().collect();
        let grant = r#"{"blocks":"http://f/blocks/J"}"#;
        let mut today: CheckpointGrant = serde_json::from_str(grant).unwrap();
        assert!(!today.attempt_urls, "absent");
        today.attempt_urls = true;
        let text = serde_json::to_string(&today).unwrap();
        assert_eq!(text, r#"{"blocks":"http://f/blocks/J","attempt_urls":true}"#);
        today.fit_to(FeatureSet::ours());
        assert!(today.attempt_urls);
        today.fit_to(before);
        assert_eq!(serde_json::to_string(&today).unwrap(), grant);

        let list = r#"{"uuid":"11111111-2222-4333-8444-555555555555","kept":[]}"#;
        let mut today: JobCheckpoints = serde_json::from_str(list).unwrap();
        today.ended_attempts = 2;
        today.fit_to(FeatureSet::ours());
        assert_eq!(today.ended_attempts, 2);
        today.fit_to(before);
        assert_eq!(serde_json::to_string(&today).unwrap(), list);
    }
}

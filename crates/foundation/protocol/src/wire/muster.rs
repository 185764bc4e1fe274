//! Muster's additions to ComputeHorde's wire. They are sent only to peers that showed the header `Muster-Protocol`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::checkpoints::{CheckpointGrant, MAX_BLOCKS_URL_BYTES, OutputGrant};
use super::executor::{LayerCount, LogBytes, LogStream, ProgressOf};
use super::facilitator::UserJobRequest;
use super::miner::JobImage;
use super::route::RouteStep;
use crate::class::ExecutorClass;
use crate::digest::ImageId;
use crate::features::{Feature, FeatureSet};
use crate::ids::{AttemptId, JobId};
use crate::job::{
    ArchiveSource, CompletionReport, JobTerms, MetricRule, OverLimit, PartialResult, ProgramReport,
    ProgramStart, RegistryCredentials, SealedCredentials,
};
use crate::macros::{constant_text, serde_as_text};
use crate::receipt::Receipt;
use crate::signature::Signature;
use crate::time::Timestamp;
use crate::trace::{JobTrace, TraceParent, context_for_validator};
use crate::upload::{FileUpload, OutputUpload, needs_folders, needs_patterns};

/// `MusterReceiptCountersigned`, miner to validator: a receipt the miner has signed and stored.
///
/// ComputeHorde's validators learn of the miner's half only by reading its receipt pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptCountersigned {
    /// The receipt with both signatures.
    pub receipt: Receipt,
}

/// `MusterCancelJob`, validator to miner and miner to executor: stop the attempt and free its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelJob {
    /// The id of the attempt.
    pub job_uuid: AttemptId,
    /// The reason as text.
    pub reason: String,
}

constant_text!(
    /// The `message_type` of [`CancelRequest`].
    CancelRequestTag = "MusterCancelJob"
);

/// `MusterCancelJob`, facilitator to validator: the user has cancelled the job.
///
/// The job's last status is its only answer. The facilitator sends the request again after a reconnection until that
/// status has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Always `MusterCancelJob`.
    pub message_type: CancelRequestTag,
    /// The id of the job, whichever attempt is under way.
    pub uuid: JobId,
    /// The reason as text.
    pub reason: String,
}

impl CancelRequest {
    /// A request to stop `uuid`.
    pub fn new(uuid: JobId, reason: impl Into<String>) -> Self {
        Self {
            message_type: CancelRequestTag,
            uuid,
            reason: reason.into(),
        }
    }
}

/// `MusterJobLog`, validator to facilitator: a piece of a job's output, passed on from its miner. Not answered.
///
/// Any hop may drop a piece: the next one's `offset` shows how many bytes are missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveLog {
    /// The id of the job; the facilitator does not know attempts.
    pub uuid: JobId,
    /// The output that the program wrote to.
    pub stream: LogStream,
    /// Bytes of the stream before this piece.
    pub offset: u64,
    /// The bytes of the piece.
    pub data: LogBytes,
}

/// `MusterJobProgress`, validator to facilitator: the progress of a stage that takes long. Not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveProgress {
    /// The id of the job.
    pub uuid: JobId,
    /// The stage that is under way.
    pub of: ProgressOf,
    /// The amount done: bytes, or seconds for [`ProgressOf::Execution`].
    pub done: u64,
    /// The whole amount in the same unit, if it is known.
    #[serde(default)]
    pub total: Option<u64>,
    /// The layers of an image, with [`ProgressOf::ImagePull`]. Only facilitators with the feature `fetching` get them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerCount>,
}

/// `MusterJobMetrics`, validator to facilitator: the newest state of a running program, as it reported itself. Not
/// answered. Sent only to facilitators that showed the feature `metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveMetrics {
    /// The id of the job.
    pub uuid: JobId,
    /// The time of the report by the executor's clock.
    pub at: Timestamp,
    /// The program's own words about its state.
    pub report: ProgramReport,
}

/// `MusterJobQueued`, validator to facilitator: the place of a job that waits for an executor. Not answered. Sent only
/// to facilitators that showed the feature `queue`.
///
/// Any message may be dropped, and the place changes while other jobs start; the newest message holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveQueuePlace {
    /// The id of the job.
    pub uuid: JobId,
    /// The class of executor that the job waits for.
    pub class: ExecutorClass,
    /// Jobs of the class that start before this one.
    pub ahead: u64,
    /// Jobs that wait for the class, this one included.
    pub waiting: u64,
    /// Seconds until the job is likely to start; null if that is unknown.
    pub estimate_s: Option<u64>,
    /// The reason why the jobs of the class wait, as text; empty if it is unknown.
    pub why: String,
}

/// The most entries of [`OfferedClass::next`] that a sender lists and a receiver reads.
pub const MAX_NEXT_PLACES: usize = 16;

/// `MusterCapacity`, validator to facilitator: what its miners offer, class by class, and the limits of a job. Not
/// answered. Sent only to facilitators that showed the feature `capacity`: after the greeting, when something has
/// changed, but not more often than every three seconds, and once a minute if nothing has.
///
/// Any message may be dropped; the newest one holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityNotice {
    /// The classes that are offered or waited for, each once.
    pub classes: Vec<OfferedClass>,
    /// The limits of a job.
    pub limits: JobLimits,
}

/// The offer of one class of executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedClass {
    /// The class of executor that a job would ask for.
    pub class: ExecutorClass,
    /// The hardware of the most of these executors, as their miners report it; null if none has reported it.
    pub hardware: Option<String>,
    /// Miners that offer the class and may be asked.
    pub miners: u32,
    /// Their executors of the class.
    pub executors: u32,
    /// Those of the executors that would be asked now. They may be at work for another validator.
    pub free: u32,
    /// Attempts of this validator on these executors.
    pub running: u32,
    /// Those of the executors that take images from archives or with a login, as far as is known.
    pub private_images: u32,
    /// Jobs that wait for the class.
    pub waiting: u64,
    /// The place that a new job of an account would get. The first entry is for an account without a waiting job, the
    /// next one for an account with one, and so on; [`MAX_NEXT_PLACES`] at most. An account with more waiting jobs than
    /// there are entries is behind all jobs that wait.
    pub next: Vec<NextPlace>,
    /// The reason why the jobs of the class wait, as text; empty if none waits or the reason is unknown.
    pub why: String,
}

/// The place that a new job would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextPlace {
    /// Jobs that would start before it, at most.
    pub ahead: u64,
    /// Seconds until it is likely to start; null if that is unknown.
    pub estimate_s: Option<u64>,
}

/// The limits of a job at one validator, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobLimits {
    /// All stages of a job together.
    pub job_s: u64,
    /// The longest `image_time_limit`.
    pub image_s: u64,
    /// The time for the image of a job without `image_time_limit`.
    pub image_default_s: u64,
    /// The longest `queue_time_limit`.
    pub queue_s: u64,
    /// The time in the queue of a job without `queue_time_limit`.
    pub queue_default_s: u64,
}

impl OfferedClass {
    /// The place of the next job of an account that has `own_waiting` jobs waiting for the class.
    pub fn place_after(&self, own_waiting: usize) -> NextPlace {
        self.next.get(own_waiting).copied().unwrap_or(NextPlace {
            ahead: self.waiting,
            estimate_s: None,
        })
    }
}

/// `MusterGateway`, validator to facilitator: the address of the validator's gateway for streaming sessions and the
/// models that it serves. Not answered. The validator sends it after every greeting; a model that is no longer listed
/// is no longer served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayNotice {
    /// The gateway's `http://` or `https://` URL, host and port; null if there is no gateway.
    pub url: Option<String>,
    /// The models that the gateway serves.
    pub models: Vec<ServedModel>,
}

/// A model that a gateway serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedModel {
    /// The name by which clients ask for the model.
    pub id: String,
    /// Price of a million input tokens, in rao.
    pub input_price: u64,
    /// Price of a million output tokens, in rao.
    pub output_price: u64,
}

/// The most images that one [`WhitelistNotice`] names; a receiver reads only that many of a longer one.
pub const MAX_LISTED_IMAGES: usize = 256;

/// `MusterWhitelist`, validator to miner and miner to persistent executor: the images that may serve behind the seal,
/// so that they are at hand before a session needs them. Not answered. It is sent after every greeting; an image that
/// is no longer listed may no longer serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhitelistNotice {
    /// The images, in the order of the validator's configuration.
    pub images: Vec<ListedImage>,
}

/// An image that may serve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListedImage {
    /// The digest of the image's configuration: no other image may serve under its name.
    pub image: ImageId,
    /// The reference by which a container engine without the image pulls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The class of executor that the image runs on.
    pub class: ExecutorClass,
    /// The name of the model that the image serves, for people.
    pub model: String,
    /// Set by a miner towards its executors: images with the same number come from the same validator, and share the
    /// room that an executor gives each validator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u32>,
}

impl WhitelistNotice {
    /// Whether an image may serve.
    pub fn lists(&self, image: ImageId) -> bool {
        self.images.iter().any(|listed| listed.image == image)
    }
}

/// The key `muster` inside the metadata of a status update; ComputeHorde's models let unknown keys pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusExtension {
    /// The attempt that brought the job to this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// Receipts of that attempt with both signatures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipts: Vec<Receipt>,
    /// The image that the attempt ran, as its executor reports it. Only facilitators with the feature `results` get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<JobImage>,
    /// The results that a failed attempt left. Only facilitators with the feature `results` get them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Box<PartialResult>>,
    /// The stages of the job's way. Only facilitators with the feature `trace` get them.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::trace::read_trace"
    )]
    pub trace: Option<Box<JobTrace>>,
    /// The completion report of the attempt. Only facilitators with the feature `completion` get it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::job::read_completion"
    )]
    pub completion: Option<Box<CompletionReport>>,
    /// The decisions about where the job went, the oldest first. Only facilitators with the feature `trace` get them.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "super::route::read_route"
    )]
    pub route: Vec<RouteStep>,
}

/// The longest account in [`JobExtension::account`], in bytes.
pub const MAX_ACCOUNT_BYTES: usize = 128;

/// The key `muster` of a job: in `POST /api/v1/job-docker/`, in `V2JobRequest`, and, without its secrets, in a job's
/// view. It is sent only to peers that showed the feature `terms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JobExtension {
    /// The account that the job counts towards in a validator's queue, 1 to 128 printable ASCII characters without
    /// spaces. The facilitator sets it for the jobs that it signs itself; it is not signed, and no user may send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The terms of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<JobTerms>,
    /// The signature of the job's signatory over [`JobTerms::digest`], `0x` and hex. A user leaves it out where the
    /// facilitator signs the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub signature: Option<Signature>,
    /// The user's login at the image's registry, sealed by the user for the job's validator. It is not signed: it opens
    /// for this validator and this image only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub registry: Option<SealedCredentials>,
    /// The context of the job's trace: the user's in a facilitator's store, the facilitator's own towards a validator
    /// that showed the feature `trace`. It is not signed, and no user may send it here.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::trace_context::read_leniently"
    )]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub traceparent: Option<TraceParent>,
    /// The grant on the file store for the checkpoints of the job. The facilitator sets it towards a validator that
    /// showed the feature `checkpoints`; it is not signed, and no user may send it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub checkpoints: Option<CheckpointGrant>,
    /// The grant on the file store for the streams that the job's programs print. The facilitator sets it towards a
    /// validator that showed the feature `output`; it is not signed, and no user may send it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub output: Option<OutputGrant>,
}

impl JobExtension {
    /// Takes out the grants that a validator with these features refuses.
    pub fn fit_to(&mut self, validator: FeatureSet) {
        if let Some(grant) = &mut self.checkpoints {
            grant.fit_to(validator);
        }
        if !validator.has(Feature::Output) {
            self.output = None;
        }
    }

    /// The features that every peer needs to keep what is asked for here. A peer without `terms` may still run a job of
    /// which only the account is known.
    pub fn needed_features(&self) -> FeatureSet {
        let archive = self.terms.as_ref().and_then(|terms| terms.image_archive.as_ref());
        let private = archive.is_some() || self.registry.is_some();
        let terms = self.terms.is_some() || self.registry.is_some();
        let metrics = self.terms.as_ref().is_some_and(|terms| !terms.metrics.is_empty());
        let deterministic = self.terms.as_ref().is_some_and(|terms| terms.deterministic);
        let checkpoints = self
            .terms
            .as_ref()
            .is_some_and(|terms| terms.checkpoints.is_some());
        let start = self.terms.as_ref().is_some_and(|terms| terms.start.is_some());
        let needed = [
            (terms, Feature::Terms),
            (private, Feature::PrivateImages),
            (metrics, Feature::Metrics),
            (deterministic, Feature::CrossChecks),
            (checkpoints, Feature::Checkpoints),
            (start, Feature::ProgramStart),
        ];
        let needed = needed.into_iter().filter(|(needed, _)| *needed);
        needed.map(|(_, feature)| feature).collect()
    }

    /// The part that the job's user and other people may see: the terms.
    pub fn to_view(&self) -> Option<Box<Self>> {
        self.terms.as_ref().map(|terms| {
            Box::new(Self {
                terms: Some(terms.clone()),
                ..Self::default()
            })
        })
    }

    /// The fields that exceed their limits, for a job with this image reference; empty where all can be kept.
    pub fn find_over_limits(&self, docker_image: &str) -> Vec<OverLimit> {
        let terms = self.terms.iter();
        let mut found: Vec<_> = terms
            .flat_map(|terms| terms.find_over_limits(docker_image))
            .collect();
        let fits = |account: &String| {
            (1..=MAX_ACCOUNT_BYTES).contains(&account.len())
                && account.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let urls = self.checkpoints.iter().flat_map(|grant| {
            let resume = grant.resume.as_ref().map(|resume| &resume.blocks);
            std::iter::once(&grant.blocks).chain(resume)
        });
        let output = self.output.iter().map(|grant| &grant.blocks);
        let mut urls = urls.chain(output);
        if urls.any(|url| url.len() > MAX_BLOCKS_URL_BYTES) {
            let reason = format!("The address of blocks may have {MAX_BLOCKS_URL_BYTES} bytes at most.");
            found.push(OverLimit {
                field: "checkpoints",
                reason,
            });
        }
        if !self.account.iter().all(fits) {
            let reason =
                format!("It must be 1 to {MAX_ACCOUNT_BYTES} printable ASCII characters without spaces.");
            found.push(OverLimit {
                field: "account",
                reason,
            });
        }
        found
    }
}

/// The key `muster` of an offer, validator to miner and miner to executor: how long the image may take, and how the
/// executor gets an image that no registry serves to everyone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferExtension {
    /// Limit for fetching the image, in seconds; the miner's policy may allow less. Sent only to miners that showed the
    /// feature `fetching`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_time_limit: Option<u64>,
    /// The account that the job counts towards, with the limit: fetches of one account are bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The archive that holds the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_archive: Option<ArchiveSource>,
    /// Validator to miner: the user's login at the image's registry, sealed for the miner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<SealedCredentials>,
    /// Miner to executor: the same login, opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<RegistryCredentials>,
    /// Whether the job leaves checkpoints, so that another attempt goes on from the last one. Sent only to peers that
    /// showed the feature `checkpoints`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumable: bool,
    /// The rules that find metrics in the program's standard output. Sent only to peers that showed the feature
    /// `metrics`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricRule>,
    /// How the program is started; absent for a job whose image decides. Sent only to peers that showed the feature
    /// `program-start`: the others get no such job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ProgramStart>,
    /// The context of the attempt's trace. Sent only to peers that showed the feature `trace`; the end of the attempt
    /// then reports the stages.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::trace_context::read_leniently"
    )]
    pub traceparent: Option<TraceParent>,
}

/// The features that every peer needs to keep what a job with this key `muster` and these uploads asks for.
pub(crate) fn features_of<'a>(
    extension: Option<&JobExtension>,
    uploads: impl Iterator<Item = &'a FileUpload>,
) -> FeatureSet {
    let of_extension = extension.map(JobExtension::needed_features).unwrap_or_default();
    let of_uploads = uploads.flat_map(|upload| {
        let folders = upload.kind().map(|_| Feature::Folders);
        folders
            .into_iter()
            .chain(upload.is_pattern().then_some(Feature::OutputPatterns))
    });
    of_extension.iter().chain(of_uploads).collect()
}

impl UserJobRequest {
    /// The features that every peer needs to keep what the job asks for.
    pub fn needed_features(&self) -> FeatureSet {
        let uploads = self.output_upload.as_ref().map(OutputUpload::files);
        features_of(self.muster.as_deref(), uploads.iter().flatten())
    }

    /// Whether a miner without the feature `folders` could not deliver one of the outputs.
    pub fn needs_folders(&self) -> bool {
        let uploads = self.output_upload.as_ref().map(OutputUpload::files);
        uploads.is_some_and(|uploads| needs_folders(&uploads))
    }

    /// Whether a miner without the feature `output-patterns` could not deliver one of the outputs.
    pub fn needs_patterns(&self) -> bool {
        let uploads = self.output_upload.as_ref().map(OutputUpload::files);
        uploads.is_some_and(|uploads| needs_patterns(&uploads))
    }

    /// Whether an executor gets the job's image in a way that needs the feature `private-images`.
    pub fn has_private_image(&self) -> bool {
        self.sealed_credentials().is_some() || self.terms().image_archive.is_some()
    }

    /// The user's login at the image's registry, sealed for the validator.
    pub fn sealed_credentials(&self) -> Option<&SealedCredentials> {
        self.muster.as_ref()?.registry.as_ref()
    }

    /// The terms of the job; the defaults for a job without terms.
    pub fn terms(&self) -> JobTerms {
        let extension = self.muster.as_ref();
        extension
            .and_then(|extension| extension.terms.clone())
            .unwrap_or_default()
    }

    /// The context of the job's trace, as the facilitator sent it; `None` for a job whose stages nobody wants.
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.muster.as_ref()?.traceparent
    }

    /// Gives the job a context that follows from its id, if it has none.
    pub fn begin_trace(&mut self) {
        let extension = self.muster.get_or_insert_default();
        extension
            .traceparent
            .get_or_insert(context_for_validator(None, self.uuid));
    }

    /// The account whose jobs wait in one row: the one that the facilitator named, or else the signatory's address.
    /// The facilitator names a user's account by that address too, so a user has one row whichever way the jobs come.
    pub fn account(&self) -> String {
        let extension = self.muster.as_ref();
        let named = extension.and_then(|extension| extension.account.clone());
        named.unwrap_or_else(|| self.signature.signatory.to_string())
    }

    /// The account that a facilitator signed the job for; `None` for a job that its user signed.
    pub fn signed_for(&self) -> Option<&str> {
        let named = self.muster.as_ref()?.account.as_deref()?;
        (named != self.signature.signatory.to_string()).then_some(named)
    }
}

constant_text!(
    /// The `message_type` of [`Challenge`].
    ChallengeTag = "MusterChallenge"
);

/// `MusterChallenge`, facilitator to validator: the answer to a greeting, which anyone may have captured.
///
/// The facilitator admits only a validator that signs the nonce ([`super::signing::facilitator_challenge`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    /// Always `MusterChallenge`.
    pub message_type: ChallengeTag,
    /// A nonce drawn for this connection only.
    pub nonce: ChallengeNonce,
}

impl Challenge {
    /// A challenge with this nonce.
    pub fn new(nonce: ChallengeNonce) -> Self {
        Self {
            message_type: ChallengeTag,
            nonce,
        }
    }
}

/// `MusterChallengeResponse`, validator to facilitator: proves that the greeting was not replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeResponse {
    /// The validator's signature over [`super::signing::facilitator_challenge`].
    pub signature: Signature,
}

/// 32 random bytes; text form 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeNonce([u8; 32]);

/// The text is not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a nonce is 64 hex digits")]
pub struct ChallengeNonceError;

impl ChallengeNonce {
    /// Wraps bytes that the caller has drawn.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ChallengeNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for ChallengeNonce {
    type Err = ChallengeNonceError;

    fn from_str(text: &str) -> Result<Self, ChallengeNonceError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ChallengeNonceError)?;
        Ok(Self(bytes))
    }
}

serde_as_text!(ChallengeNonce);

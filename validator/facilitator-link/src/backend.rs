//! The validator behind the link: it takes the facilitator's messages, keeps the outbox, and notes the state of the
//! connection.

use futures_util::future::BoxFuture;
use muster_protocol::wire::WireError;
use muster_protocol::wire::facilitator::{CheatReport, StatusMetadata, ToFacilitator, UserJobRequest};
use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::wire::muster::{CancelRequest, CapacityNotice, GatewayNotice};
use muster_protocol::{JobId, JobStatus};
use muster_store::StoreError;
use tokio::sync::watch;

/// A status update that the facilitator has not acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// Its number in the order of all updates, given by the store.
    pub sequence: i64,
    /// The job that the update is about.
    pub job: JobId,
    /// The job's status.
    pub status: JobStatus,
    /// Details of the status; with a terminal status, the job's result.
    pub metadata: Option<StatusMetadata>,
}

/// The facilitator's answers to status updates: the update's sequence number, and the refusal, if it was refused.
pub type Acknowledgement = (i64, Option<String>);

/// The validator behind the link.
///
/// Every method that returns a [`StoreError`] writes durably before it returns. The link ends with such an error, after
/// [`LinkBackend::fail`].
pub trait LinkBackend: Send + Sync + 'static {
    /// Takes, repeats or refuses a job. `frame` is the facilitator's message as it came. `acknowledged` ends once every
    /// answer that came before the job is stored; only a repeated job needs to wait for it.
    fn take_job(
        &self,
        request: UserJobRequest,
        frame: String,
        acknowledged: BoxFuture<'static, ()>,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Refuses a frame that cannot be read, if it names a job.
    fn refuse_malformed<'a>(
        &'a self,
        frame: &'a str,
        error: &'a WireError,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Calls a job off.
    fn cancel_job<'a>(&'a self, request: &'a CancelRequest) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Keeps a user's report of cheating.
    fn keep_cheat_report<'a>(&'a self, report: &'a CheatReport) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The oldest updates after the number `after` that are not acknowledged, in their order, at most `limit`. Empty
    /// only if there are none.
    fn next_updates(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StatusUpdate>, StoreError>>;

    /// Stores what the facilitator answered.
    fn acknowledge<'a>(&'a self, answers: &'a [Acknowledgement]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Changes whenever a status update is written. The sender lives as long as the backend.
    fn outbox_writes(&self) -> watch::Receiver<u64>;

    /// The validator's gateway, as a Muster facilitator is told of it; `None` if there is no gateway.
    fn gateway_notice(&self) -> Option<GatewayNotice>;

    /// The subnet's offers now, as a facilitator with the feature `capacity` is told of them; `None` while nothing is
    /// known. Called every few seconds, so it must be quick.
    fn capacity_notice(&self) -> Option<CapacityNotice>;

    /// The facts and claims about each miner now, as a facilitator with the feature `machines` is told of them. Called
    /// every few seconds.
    fn miner_notices(&self) -> BoxFuture<'_, Vec<MinerNotice>>;

    /// The messages about jobs that ran again and about refunds behind this number, in their order, for a facilitator
    /// with the feature `cross-checks`. Called every few seconds.
    fn next_news(&self, after: i64) -> BoxFuture<'_, Result<Vec<(i64, ToFacilitator)>, StoreError>>;

    /// Notes that the facilitator is being dialled.
    fn note_connecting(&self);

    /// Notes that the facilitator has accepted this validator.
    fn note_connected(&self);

    /// Notes that the connection was lost, or that the facilitator refused this validator.
    fn note_lost(&self, reason: String);

    /// Stops the validator, because its store has failed.
    fn fail(&self, error: StoreError);
}

//! The facilitator's orders, as the link hands them to the validator.

use futures_util::future::BoxFuture;
use muster_protocol::wire::WireError;
use muster_protocol::wire::facilitator::{CheatReport, UserJobRequest};
use muster_protocol::wire::muster::CancelRequest;

/// An order of the facilitator's.
pub enum FacilitatorOrder {
    /// A job, new or repeated.
    Job {
        /// The job as its user signed it; its signature is not checked yet.
        request: Box<UserJobRequest>,
        /// The facilitator's message as it came.
        frame: String,
        /// Ends once every answer that came before the job is stored.
        acknowledged: BoxFuture<'static, ()>,
    },
    /// A job is called off.
    Cancel {
        /// The job, and its user's reason.
        request: CancelRequest,
        /// Ends once every answer that came before the cancellation is stored.
        acknowledged: BoxFuture<'static, ()>,
    },
    /// A user's report of cheating.
    CheatReport(Box<CheatReport>),
    /// A frame that cannot be read.
    Malformed {
        /// The facilitator's message as it came.
        frame: String,
        /// Why it cannot be read.
        error: WireError,
    },
}

//! What a gateway needs of the validator that it stands in: streaming jobs, and their news.

use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::{JobId, MinerKey, ValidatorKey};
use muster_session_pool::Service;
use tokio::sync::mpsc;

/// A streaming job that a gateway wants.
#[derive(Debug)]
pub struct Order {
    /// Its id.
    pub job: JobId,
    /// What is to run.
    pub service: Service,
    /// The only certificate that its endpoint is to let in, PEM.
    pub certificate: String,
    /// How long it is to serve.
    pub lives: Duration,
    /// How long its image and its engine may take to come up.
    pub starts_within: Duration,
    /// The only miner that may run it; whichever is chosen, if it does not matter.
    pub on: Option<MinerKey>,
    /// Who hears how it fares.
    pub news: mpsc::Sender<News>,
}

/// What becomes of a streaming job.
#[derive(Debug)]
pub enum News {
    /// A miner says where it answers.
    Ready {
        /// Who runs it.
        miner: MinerKey,
        /// As it said it.
        ready: Box<StreamingJobReady>,
    },
    /// Its session is closed: the last word of it in text form, as its miner passed it on.
    Closed(String),
    /// It is over; why, in words.
    Ended(String),
}

/// The validator.
pub trait Host: Send + Sync + 'static {
    /// Its key.
    fn me(&self) -> ValidatorKey;

    /// Hands a job to whichever miner is chosen. Its news begin to come once this has returned.
    fn begin(&self, order: Order) -> BoxFuture<'_, Result<(), String>>;

    /// Ends a job, if it has not ended. One that has said its `last word` may end by itself first, within moments: it is then
    /// a job that was done, and not one that was called off.
    fn end(&self, job: JobId, why: &'static str, last_word: bool) -> BoxFuture<'_, ()>;
}

//! A validator's connection to its facilitator. The link greets, receives jobs and other orders, sends status updates,
//! and reconnects whenever the connection is lost.
//!
//! Status updates are sent in order, and the facilitator answers them in order, so an answer needs no id. A Muster
//! facilitator is sent up to 64 updates before it has answered the first; any other facilitator is sent one at
//! a time. An update without an answer is sent again over the next connection.
//!
//! The reader never waits for the writer, which often blocks on the store: each order of the facilitator goes to the
//! validator at once, as a [`FacilitatorOrder`]. Updates come from the store's outbox.
//!
//! A facilitator with the feature `capacity` receives what the subnet offers, when that changes; one with the feature
//! `machines` receives the facts and claims about the miners' machines.
//!
//! [`FacilitatorLink::run`] is the entry point, [`live_output`] carries what running jobs print.

mod capacity;
pub mod live_output;
mod miners;
mod orders;
mod reader;
mod update_frame;
mod update_window;
mod writer;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_cross_checks::CrossChecks;
use muster_identity::Keypair;
use muster_process::backoff::Backoff;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ErrorCode;
use muster_protocol::wire::facilitator::Response;
use muster_protocol::wire::machines::MinerNotice;
use muster_protocol::wire::muster::{CapacityNotice, GatewayNotice};
use muster_store::StoreError;
use muster_subnet_view::LinkState;
use muster_validator_store::Store;
use muster_websocket::reconnect::{AfterConnection, Reconnecting};
use muster_websocket::{
    CloseCode, ConnectError, Limits, Socket, SocketError, SocketReader, SocketWriter, connect,
};
use tokio::sync::{mpsc, watch};

use live_output::LiveOutput;
pub use orders::FacilitatorOrder;
use reader::LinkReader;
pub use update_window::UpdateWindow;
use writer::LinkWriter;

/// The largest frame, both ways.
const MAX_FRAME: usize = Limits::facilitator().max_frame;

/// A connection to a facilitator that is kept up.
pub struct FacilitatorLink {
    /// The facilitator's websocket.
    pub url: String,
    /// The time between two heartbeats.
    pub heartbeat: Duration,
    /// The time within which the facilitator must answer a greeting or a status update.
    pub answer_within: Duration,
    /// The validator's key, which the facilitator is shown.
    pub keypair: Keypair,
    /// The clock of heartbeats, deadlines and reconnection.
    pub clock: SharedClock,
    /// The validator's tasks, whose token ends the link.
    pub tasks: Tasks,
    /// The live output of running jobs.
    pub live_output: Arc<LiveOutput>,
    /// The store, whose outbox holds the status updates.
    pub store: Arc<Store>,
    /// Cross-checks, whose news a facilitator with the feature `cross-checks` receives every few seconds.
    pub checks: CrossChecks,
    /// The validator's gateway, of which a Muster facilitator receives a notice; `None` without a gateway.
    pub gateway: Option<GatewayNotice>,
    /// The subnet's offers now; `None` while nothing is known. Called every few seconds, so it must be quick.
    pub capacity: Box<dyn Fn() -> Option<CapacityNotice> + Send + Sync>,
    /// The facts and claims about each miner now. Called every few seconds.
    pub miners: Box<dyn Fn() -> BoxFuture<'static, Vec<MinerNotice>> + Send + Sync>,
    /// The facilitator's orders, for the validator, in the order in which they came.
    pub orders: mpsc::Sender<FacilitatorOrder>,
    /// The state of the connection.
    pub state: watch::Sender<LinkState>,
    /// Called when the store fails, which ends the link. The validator cannot go on then.
    pub on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error("the validator stops")]
    Stopped,
    #[error("the facilitator closed the connection")]
    Closed,
    #[error("the facilitator did not answer within {0:?}")]
    Silent(Duration),
    #[error(
        "the facilitator does not accept this validator: {0}; check that its hotkey is listed or holds a permit"
    )]
    Refused(String),
    #[error("the connection to the facilitator failed")]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FacilitatorLink {
    /// Keeps the connection up until the validator stops.
    pub async fn run(self) {
        let limits = Limits::facilitator();
        let reconnecting = Reconnecting {
            name: "facilitator",
            backoff: Backoff::PEERS,
            clock: Arc::clone(&self.clock),
            stop: self.tasks.token(),
        };
        let dial = || {
            self.state.send_replace(LinkState::Connecting);
            connect(&self.url, &limits)
        };
        let serve = |socket| self.serve(socket);
        // No error of dialling is final: the facilitator may come back at any time.
        let is_fatal = |error: &ConnectError| {
            self.note_lost(&Causes(error));
            false
        };
        if let Err(error) = reconnecting.run(dial, serve, is_fatal).await {
            self.note_lost(&error);
        }
    }

    async fn serve(&self, socket: Socket) -> AfterConnection {
        let (mut reader, writer) = socket.split();
        let useful = AtomicBool::new(false);
        let end = match self.serve_connection(&mut reader, &writer, &useful).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        // A failure of the store may be the reason for which the connection is closed.
        if let LinkEnd::Store(error) = end {
            (self.on_store_failure)(error);
            writer.close(CloseCode::Normal, self.tasks.stop_reason()).await;
            return AfterConnection::Stop;
        }
        writer.close(CloseCode::Normal, self.tasks.stop_reason()).await;
        match end {
            LinkEnd::Stopped | LinkEnd::Store(_) => AfterConnection::Stop,
            LinkEnd::Closed | LinkEnd::Silent(_) | LinkEnd::Refused(_) | LinkEnd::Socket(_) => {
                self.note_lost(&Causes(&end));
                if useful.into_inner() {
                    AfterConnection::AgainSoon
                } else {
                    AfterConnection::Again
                }
            }
        }
    }

    /// Serves one connection, from the greeting to its end. Sets `useful` once the facilitator has acknowledged
    /// anything.
    async fn serve_connection(
        &self,
        reader: &mut SocketReader,
        writer: &SocketWriter,
        useful: &AtomicBool,
    ) -> Result<Infallible, LinkEnd> {
        let (to_writer, answers) = mpsc::channel::<Response>(UpdateWindow::MUSTER);
        let stored = watch::Sender::new(0);
        let mut reader = LinkReader {
            link: self,
            socket: reader,
            answers: to_writer,
            answer_count: 0,
            useful,
            stored: stored.subscribe(),
        };
        let mut writer_half = LinkWriter {
            link: self,
            socket: writer,
            window: UpdateWindow::new(if writer.is_muster() {
                UpdateWindow::MUSTER
            } else {
                UpdateWindow::OTHERS
            }),
            answers,
            unstored: Vec::new(),
            answer_count: 0,
            stored,
        };
        let stop = self.tasks.token();
        let greeted = tokio::select! {
            () = stop.cancelled() => Err(LinkEnd::Stopped),
            () = self.clock.sleep(self.answer_within) => Err(LinkEnd::Silent(self.answer_within)),
            greeted = reader.greet(writer) => greeted,
        };
        greeted?;
        let end = tokio::select! {
            () = stop.cancelled() => Err(LinkEnd::Stopped),
            end = reader.run() => end,
            end = writer_half.run() => end,
        };
        // Updates answered before the end need not be sent again.
        match end {
            Err(LinkEnd::Store(_)) => end,
            Ok(_)
            | Err(
                LinkEnd::Stopped
                | LinkEnd::Closed
                | LinkEnd::Silent(_)
                | LinkEnd::Refused(_)
                | LinkEnd::Socket(_),
            ) => {
                writer_half.store_last_answers().await?;
                end
            }
        }
    }

    fn note_lost(&self, reason: &dyn std::fmt::Display) {
        let code = ErrorCode::FacilitatorUnreachable;
        tracing::warn!(%code, %reason, "no connection to the facilitator; jobs run on and their status updates are kept");
        let reason = reason.to_string();
        self.state.send_replace(LinkState::Lost { reason });
    }
}

/// The errors of a response as one line of at most 1,000 characters.
fn describe_errors(response: &Response) -> String {
    let errors = response
        .errors
        .iter()
        .map(|error| format!("{}: {}", error.r#type, error.msg));
    let line = errors.collect::<Vec<_>>().join("; ");
    if line.is_empty() {
        "no reason was given".to_owned()
    } else {
        line.chars().take(1_000).collect()
    }
}

//! A validator's connection to its facilitator. The link greets, receives jobs and other orders, sends status updates,
//! and reconnects whenever the connection is lost.
//!
//! Status updates are sent in order, and the facilitator answers them in order, so an answer needs no id. A Muster
//! facilitator is sent up to 64 updates before it has answered the first; any other facilitator is sent one at
//! a time. An update without an answer is sent again over the next connection.
//!
//! The reader never waits for the writer, which often blocks on the store: an incoming job is taken at once. Jobs are
//! taken in parallel, each in a task of its own, so that jobs that come together share a commit. A cancellation may be
//! about any of them, so it waits until all of them are taken.
//!
//! A facilitator with the feature `capacity` is told what the subnet offers, when that changes; one with the feature
//! `machines` is told of the miners' machines.
//!
//! [`FacilitatorLink::run`] is the entry point, [`LinkBackend`] is the validator behind it, [`live_output`] carries
//! what running jobs print.

mod backend;
mod capacity;
pub mod live_output;
mod miners;
mod reader;
mod update_frame;
mod update_window;
mod writer;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use muster_identity::Keypair;
use muster_process::backoff::Backoff;
use muster_process::error::Causes;
use muster_process::{SharedClock, Tasks};
use muster_protocol::ErrorCode;
use muster_protocol::wire::facilitator::Response;
use muster_store::StoreError;
use muster_websocket::reconnect::{AfterConnection, Reconnecting};
use muster_websocket::{
    CloseCode, ConnectError, Limits, Socket, SocketError, SocketReader, SocketWriter, connect,
};
use tokio::sync::{Semaphore, mpsc, watch};

pub use backend::{Acknowledgement, LinkBackend, StatusUpdate};
use live_output::LiveOutput;
use reader::LinkReader;
pub use update_window::UpdateWindow;
use writer::LinkWriter;

/// The largest frame, both ways.
const MAX_FRAME: usize = Limits::facilitator().max_frame;

/// Jobs that are being taken at a time, at most; further ones wait in the socket.
const JOBS_AT_ONCE: u32 = 256;

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
    /// Runs the tasks that take jobs; its token ends the link.
    pub tasks: Tasks,
    /// The live output of running jobs.
    pub live_output: Arc<LiveOutput>,
    /// The validator behind the link.
    pub backend: Arc<dyn LinkBackend>,
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
            self.backend.note_connecting();
            connect(&self.url, &limits)
        };
        let slots = Arc::new(Semaphore::new(
            usize::try_from(JOBS_AT_ONCE).unwrap_or(Semaphore::MAX_PERMITS),
        ));
        let serve = |socket| self.serve(Arc::clone(&slots), socket);
        // No error of dialling is final: the facilitator may come back at any time.
        let is_fatal = |error: &ConnectError| {
            self.note_lost(&Causes(error));
            false
        };
        if let Err(error) = reconnecting.run(dial, serve, is_fatal).await {
            self.note_lost(&error);
        }
    }

    async fn serve(&self, slots: Arc<Semaphore>, socket: Socket) -> AfterConnection {
        let (mut reader, writer) = socket.split();
        let useful = AtomicBool::new(false);
        let end = match self.serve_connection(slots, &mut reader, &writer, &useful).await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        writer.close(CloseCode::Normal, "").await;
        match end {
            LinkEnd::Stopped => AfterConnection::Stop,
            LinkEnd::Store(error) => {
                self.backend.fail(error);
                AfterConnection::Stop
            }
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
        slots: Arc<Semaphore>,
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
            slots,
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
        self.backend.note_lost(reason.to_string());
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

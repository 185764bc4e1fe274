//! One session with one executor: its token admits it to one lease, its frames become reports on that lease.

use std::sync::Arc;

use muster_identity::sign_streaming_ready;
use muster_kit::error::Causes;
use muster_protocol::wire::miner::{FromMiner, GenericError, HordeFailed, StreamingJobReady, ToMiner};
use muster_protocol::wire::{WireError, decode, encode};
use muster_protocol::{AttemptId, ExecutorToken, HordeFailureReason, ParticipantType};
use muster_rpc::session::{Receiver, Sender};
use muster_rpc::{Greeting, Peer, SessionError, Socket, SocketError};
use tokio::sync::oneshot;

use crate::book::{DialId, Event};
use crate::context::Context;
use crate::dispatcher::{Attachment, Input};
use crate::lease::Report;
use crate::outbox::{Outgoing, Outgoings, outbox};

const NORMAL: u16 = 1000;
/// Enough of a stranger's text to recognise it.
const MAX_ECHO: usize = 100;

/// An executor that was admitted to a lease.
#[derive(Debug)]
struct ExecutorPeer;

/// A frame on its way out.
struct Frame(Arc<str>);

impl Peer for ExecutorPeer {
    type In = FromMiner;
    type Out = Frame;
    type Malformed = WireError;

    fn decode(frame: &str) -> Result<FromMiner, WireError> {
        decode(frame)
    }

    fn encode(message: &Frame) -> String {
        message.0.to_string()
    }
}

/// Serves whoever connected with `shown` as its token, to the end of the connection.
///
/// ComputeHorde's miner leaves the socket of a refused executor open; ours closes it, since nothing can come of it.
pub async fn serve(socket: Socket, shown: String, context: Arc<Context>) {
    let executor_ip = socket.peer().ip().to_string();
    let greeting = Greeting::new(socket);
    let Ok(token) = shown.parse::<ExecutorToken>() else {
        let shown: String = shown.chars().take(MAX_ECHO).collect();
        greeting
            .refuse(
                Some(error_frame(format!("No job waiting for token {shown}"))),
                NORMAL,
            )
            .await;
        return;
    };
    let (dial, attempt) = (DialId(context.number()), token.attempt());
    let (outbox, outgoings) = outbox();
    let (verdict, admitted) = oneshot::channel();
    let dialled = Input {
        event: Event::Dialled {
            dial,
            token,
            executor_ip: Some(executor_ip.clone()),
        },
        attachment: Attachment::Executor {
            outbox,
            muster: greeting.is_muster(),
            verdict,
        },
    };
    context.inbox.send(dialled).await;
    match admitted.await {
        Ok(Ok(())) => {}
        Ok(Err(details)) => {
            tracing::warn!(%attempt, "an executor was refused");
            greeting.refuse(Some(error_frame(details)), NORMAL).await;
            return;
        }
        // The miner has stopped.
        Err(_) => return,
    }
    let (receiver, sender) = greeting.accept(ExecutorPeer).split();
    let reader = Reader {
        dial,
        attempt,
        executor_ip,
        sender: sender.clone(),
        context: &context,
    };
    tokio::select! {
        () = reader.run(receiver) => {}
        () = write(&sender, outgoings) => {}
    }
    context.inbox.send(Event::ExecutorGone { dial, attempt }).await;
}

async fn write(sender: &Sender<ExecutorPeer>, mut outgoings: Outgoings) {
    while let Some(outgoing) = outgoings.recv().await {
        match outgoing {
            Outgoing::Frame(frame) => {
                if let Err(error) = sender.send(&Frame(frame)).await {
                    tracing::debug!(error = %Causes(&error), "an executor cannot be told");
                    return;
                }
            }
            // Stories and receipts are for validators.
            Outgoing::Story(_) | Outgoing::Receipt(..) => {}
        }
    }
    sender.close(NORMAL, "").await;
}

/// The incoming half.
struct Reader<'a> {
    dial: DialId,
    attempt: AttemptId,
    executor_ip: String,
    sender: Sender<ExecutorPeer>,
    context: &'a Context,
}

impl Reader<'_> {
    async fn run(&self, mut receiver: Receiver<ExecutorPeer>) {
        loop {
            let taken = match receiver.recv().await {
                Ok(None) => return,
                Ok(Some(message)) => self.take(message).await,
                Err(error) if error.is_fatal() => {
                    tracing::warn!(attempt = %self.attempt, error = %Causes(&error), "an executor's socket failed");
                    return;
                }
                Err(SessionError::Malformed(error)) => {
                    self.say(format!("Malformed message: {}", error.reason)).await
                }
                Err(SessionError::Socket(error)) => self.say(format!("Malformed message: {error}")).await,
            };
            if taken.is_err() {
                return;
            }
        }
    }

    async fn take(&self, message: FromMiner) -> Result<(), SocketError> {
        if let Some(got) = message.attempt().filter(|got| *got != self.attempt) {
            return self
                .say(format!(
                    "attempt {got} is not the one of this lease, {}",
                    self.attempt
                ))
                .await;
        }
        match self.report(message) {
            Ok(report) => {
                let event = Event::Said {
                    dial: self.dial,
                    attempt: self.attempt,
                    report: Box::new(report),
                };
                self.context.inbox.send(event).await;
                Ok(())
            }
            Err(kind) => self.say(format!("{kind} is not an executor's to send")).await,
        }
    }

    /// What an executor may say; else the name of what it may not.
    fn report(&self, message: FromMiner) -> Result<Report, &'static str> {
        Ok(match message {
            FromMiner::V0ExecutorReadyRequest(_) => Report::Ready,
            FromMiner::V0VolumesReadyRequest(_) => Report::VolumesReady,
            FromMiner::V0StreamingJobReadyRequest(ready) => {
                Report::StreamingReady(Box::new(self.attest(ready)))
            }
            FromMiner::V0ExecutionDoneRequest(_) => Report::ExecutionDone,
            FromMiner::V0MachineSpecsRequest(specs) => Report::Specs(Box::new(specs)),
            FromMiner::V0JobFinishedRequest(result) => Report::Finished(Box::new(result)),
            FromMiner::V0JobFailedRequest(failure) => Report::Failed(Box::new(failure)),
            FromMiner::V0HordeFailedRequest(failure) => Report::HordeFailed(Box::new(failure)),
            FromMiner::GenericError(GenericError { details }) => Report::Error(
                details.unwrap_or_else(|| "the executor reported an error without words".to_owned()),
            ),
            FromMiner::V0ExecutorFailedRequest(_) => self.failed(
                HordeFailureReason::ExecutorSpinupFailed,
                "the executor could not start",
            ),
            FromMiner::V0StreamingJobNotReadyRequest(_) => self.failed(
                HordeFailureReason::StreamingFailed,
                "the streaming job did not start",
            ),
            FromMiner::V0ExecutorManifestRequest(_) => return Err("V0ExecutorManifestRequest"),
            FromMiner::V0MainHotkeyMessage(_) => return Err("V0MainHotkeyMessage"),
            FromMiner::V0AcceptJobRequest(_) => return Err("V0AcceptJobRequest"),
            FromMiner::V0DeclineJobRequest(_) => return Err("V0DeclineJobRequest"),
            FromMiner::UnauthorizedError(_) => return Err("UnauthorizedError"),
            FromMiner::MusterReceiptCountersigned(_) => return Err("MusterReceiptCountersigned"),
        })
    }

    /// The address a streaming job answers at is the miner's word: it fills it in and signs it.
    fn attest(&self, ready: StreamingJobReady) -> StreamingJobReady {
        let ip = ready.ip.unwrap_or_else(|| self.executor_ip.clone());
        let signature = sign_streaming_ready(
            &self.context.key,
            self.attempt,
            &ip,
            ready.port,
            &ready.public_key,
        );
        StreamingJobReady {
            ip: Some(ip),
            miner_signature: Some(signature),
            ..ready
        }
    }

    fn failed(&self, reason: HordeFailureReason, message: &str) -> Report {
        let message = message.to_owned();
        let reported_by = ParticipantType::Executor;
        Report::HordeFailed(Box::new(HordeFailed {
            job_uuid: self.attempt,
            reported_by,
            message,
            reason,
            context: None,
        }))
    }

    async fn say(&self, details: String) -> Result<(), SocketError> {
        self.sender.send(&Frame(error_frame(details).into())).await
    }
}

/// A generic error as a frame for an executor.
fn error_frame(details: String) -> String {
    encode(&ToMiner::GenericError(GenericError {
        details: Some(details),
    }))
}

//! One session with one executor: its token admits it to one lease, its frames become reports on that lease.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::sign_streaming_ready;
use muster_process::error::Causes;
use muster_protocol::wire::executor::{ExecutorMetrics, MAX_GPUS, OneTimeSecret, Reattach, SealSession};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor, decode_from_executor};
use muster_protocol::wire::miner::{GenericError, HordeFailed, StreamingJobReady};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::wire::{WireError, encode};
use muster_protocol::{AttemptId, ExecutorToken, HordeFailureReason, MinerKey, ParticipantType};
use muster_response_proof::{Attestation, Sealable as _, seal};
use muster_websocket::session::{Receiver, Sender};
use muster_websocket::{CloseCode, Greeting, Peer, SessionError, Socket, SocketError};
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

use crate::lease::{ExecutorReport, ReturningExecutor, SealingRequest};
use crate::lease_table::{DialId, Event};
use crate::miner_state::MinerState;
use crate::session_queues::{Attachment, DispatcherInput, Outgoing, OutgoingQueue, outbox};

/// The number of characters of an unknown peer's text that are echoed.
const MAX_ECHO: usize = 100;

/// An executor that was admitted to a lease.
#[derive(Debug)]
pub(crate) struct ExecutorPeer;

/// A frame on its way out.
pub(crate) struct Frame(pub(crate) Arc<str>);

impl Peer for ExecutorPeer {
    type In = ExecutorToMiner;
    type Out = Frame;
    type Malformed = WireError;

    fn decode(frame: &str) -> Result<ExecutorToMiner, WireError> {
        decode_from_executor(frame)
    }

    fn encode(message: &Frame) -> String {
        message.0.to_string()
    }
}

/// Serves the executor that connected with `shown` as its token, to the end of the connection.
///
/// ComputeHorde's miner leaves the socket of a refused executor open; ours closes it, because it has no further use.
pub async fn serve(socket: Socket, shown: String, context: Arc<MinerState>) {
    let executor_ip = socket.peer().ip().to_string();
    let greeting = Greeting::new(socket);
    let Ok(token) = shown.parse::<ExecutorToken>() else {
        let shown: String = shown.chars().take(MAX_ECHO).collect();
        greeting
            .refuse(
                Some(error_frame(format!("No job waiting for token {shown}"))),
                CloseCode::Normal,
            )
            .await;
        return;
    };
    let (dial, attempt) = (DialId(context.number()), token.attempt());
    let (outbox, outgoings) = outbox();
    let (verdict, admitted) = oneshot::channel();
    let dialled = DispatcherInput {
        event: Event::Dialled {
            dial,
            token,
            executor_ip: Some(executor_ip.clone()),
            apart: context.pools.is_local(attempt) && greeting.is_muster(),
            features: greeting.features(),
            secret: draw_secret(),
        },
        attachment: Attachment::Executor {
            outbox,
            muster: greeting.is_muster(),
            features: greeting.features(),
            verdict,
        },
    };
    context.inbox.send(dialled).await;
    match admitted.await {
        Ok(Ok(())) => {}
        Ok(Err(details)) => {
            tracing::warn!(%attempt, "an executor was refused");
            greeting
                .refuse(Some(error_frame(details)), CloseCode::Normal)
                .await;
            return;
        }
        // The miner has stopped.
        Err(_) => return,
    }
    converse(greeting, dial, attempt, executor_ip, outgoings, &context).await;
}

/// Serves an executor that comes back to its lease, to the end of the connection. Its first message shows the secret.
pub async fn serve_returning(socket: Socket, context: Arc<MinerState>) {
    let executor_ip = socket.peer().ip().to_string();
    let mut greeting = Greeting::new(socket);
    let first = timeout(context.limits.handshake, greeting.receive()).await;
    let Ok(Ok(Some(first))) = first else { return };
    let back = match decode_from_executor(&first) {
        Ok(ExecutorToMiner::MusterReattach(back)) => back,
        Ok(_) => {
            let details = "an executor that comes back begins with MusterReattach".to_owned();
            return greeting
                .refuse(Some(error_frame(details)), CloseCode::Policy)
                .await;
        }
        Err(error) => {
            return greeting
                .refuse(Some(error_frame(error.to_string())), CloseCode::Policy)
                .await;
        }
    };
    let (dial, attempt) = (DialId(context.number()), back.job_uuid);
    let (outbox, outgoings) = outbox();
    let (verdict, admitted) = oneshot::channel();
    let returned = DispatcherInput {
        event: reattached(dial, back),
        attachment: Attachment::Executor {
            outbox,
            muster: greeting.is_muster(),
            features: greeting.features(),
            verdict,
        },
    };
    context.inbox.send(returned).await;
    match admitted.await {
        Ok(Ok(())) => tracing::info!(%attempt, "an executor came back to its lease"),
        Ok(Err(details)) => {
            tracing::warn!(%attempt, details, "an executor may not come back");
            return greeting
                .refuse(Some(cancel_frame(attempt, details)), CloseCode::Normal)
                .await;
        }
        // The miner has stopped.
        Err(_) => return,
    }
    converse(greeting, dial, attempt, executor_ip, outgoings, &context).await;
}

/// Passes messages between an admitted executor and the dispatcher until the connection ends.
async fn converse(
    greeting: Greeting,
    dial: DialId,
    attempt: AttemptId,
    executor_ip: String,
    outgoings: OutgoingQueue,
    context: &MinerState,
) {
    let (receiver, sender) = greeting.accept(ExecutorPeer).split();
    let reader = Reader {
        dial,
        attempt,
        executor_ip,
        sender: sender.clone(),
        context,
    };
    tokio::select! {
        () = reader.run(receiver) => {}
        () = write(&sender, outgoings) => {}
    }
    context.inbox.send(Event::ExecutorGone { dial, attempt }).await;
}

/// The event of an executor that comes back, with the secret that it gets.
pub(crate) fn reattached(dial: DialId, back: Reattach) -> Event {
    Event::Reattached {
        dial,
        attempt: back.job_uuid,
        back: ReturningExecutor {
            shown: back.secret,
            next: draw_secret(),
            job_age: back.job_ms.map(Duration::from_millis),
        },
    }
}

/// A new secret for an executor.
pub(crate) fn draw_secret() -> OneTimeSecret {
    // Each half has 122 random bits.
    let halves = [Uuid::new_v4().into_bytes(), Uuid::new_v4().into_bytes()];
    let mut bytes = [0; 32];
    for (byte, drawn) in bytes.iter_mut().zip(halves.concat()) {
        *byte = drawn;
    }
    OneTimeSecret::from_bytes(bytes)
}

async fn write(sender: &Sender<ExecutorPeer>, mut outgoings: OutgoingQueue) {
    while let Some(outgoing) = outgoings.recv().await {
        match outgoing {
            Outgoing::Frame(frame) => {
                if let Err(error) = sender.send(&Frame(frame)).await {
                    tracing::debug!(error = %Causes(&error), "an executor cannot be told");
                    return;
                }
            }
            // Histories and receipts are for validators.
            Outgoing::History(_) | Outgoing::Receipt(..) => {}
        }
    }
    sender.close(CloseCode::Normal, "").await;
}

/// The incoming half.
struct Reader<'a> {
    dial: DialId,
    attempt: AttemptId,
    executor_ip: String,
    sender: Sender<ExecutorPeer>,
    context: &'a MinerState,
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
                    self.send_error(format!("Malformed message: {}", error.reason))
                        .await
                }
                Err(SessionError::Socket(error)) => {
                    self.send_error(format!("Malformed message: {error}")).await
                }
            };
            if taken.is_err() {
                return;
            }
        }
    }

    async fn take(&self, message: ExecutorToMiner) -> Result<(), SocketError> {
        if let Some(got) = message.attempt().filter(|got| *got != self.attempt) {
            return self
                .send_error(format!(
                    "attempt {got} is not the one of this lease, {}",
                    self.attempt
                ))
                .await;
        }
        if let ExecutorToMiner::MusterExecutorMetrics(metrics) = &message {
            note_metrics(&self.executor_ip, metrics);
            return Ok(());
        }
        if let ExecutorToMiner::MusterSessionProofs(told) = &message {
            self.context.note_proofs(told).await;
            return Ok(());
        }
        match read_report(message, self.attempt, &self.executor_ip, self.context) {
            Ok(report) => {
                let event = Event::Said {
                    dial: self.dial,
                    attempt: self.attempt,
                    report: Box::new(report),
                };
                self.context.inbox.send(event).await;
                Ok(())
            }
            Err(kind) => {
                self.send_error(format!("{kind} is not an executor's to send"))
                    .await
            }
        }
    }

    async fn send_error(&self, details: String) -> Result<(), SocketError> {
        self.sender.send(&Frame(error_frame(details).into())).await
    }
}

/// An executor's report on its attempt, or the name of a message that an executor must not send.
pub(crate) fn read_report(
    message: ExecutorToMiner,
    attempt: AttemptId,
    executor_ip: &str,
    context: &MinerState,
) -> Result<ExecutorReport, &'static str> {
    Ok(match message {
        ExecutorToMiner::MusterExecutorUp(up) => ExecutorReport::Up(up),
        ExecutorToMiner::V0ExecutorReadyRequest(_) => ExecutorReport::Ready,
        ExecutorToMiner::V0VolumesReadyRequest(_) => ExecutorReport::VolumesReady,
        ExecutorToMiner::V0StreamingJobReadyRequest(ready) => {
            ExecutorReport::StreamingReady(Box::new(attest(ready, attempt, executor_ip, context)))
        }
        ExecutorToMiner::MusterSealSession(ask) => sign_statement(&ask, context)
            .ok_or("a MusterSealSession that holds no attestation by this miner")?,
        ExecutorToMiner::MusterSessionClosed(closed) => ExecutorReport::Closed(closed),
        ExecutorToMiner::V0ExecutionDoneRequest(_) => ExecutorReport::ExecutionDone,
        ExecutorToMiner::V0MachineSpecsRequest(specs) => ExecutorReport::Specs(Box::new(specs)),
        ExecutorToMiner::V0JobFinishedRequest(result) => ExecutorReport::Finished(Box::new(result)),
        ExecutorToMiner::V0JobFailedRequest(failure) => ExecutorReport::Failed(Box::new(failure)),
        ExecutorToMiner::V0HordeFailedRequest(failure) => ExecutorReport::HordeFailed(Box::new(failure)),
        ExecutorToMiner::GenericError(GenericError { details, .. }) => ExecutorReport::Error(
            details.unwrap_or_else(|| "the executor reported an error without words".to_owned()),
        ),
        ExecutorToMiner::V0ExecutorFailedRequest(_) => failure_report(
            attempt,
            HordeFailureReason::ExecutorSpinupFailed,
            "the executor could not start",
        ),
        ExecutorToMiner::V0StreamingJobNotReadyRequest(_) => failure_report(
            attempt,
            HordeFailureReason::StreamingFailed,
            "the streaming job did not start",
        ),
        ExecutorToMiner::MusterJobLog(piece) => live(MinerToValidator::MusterJobLog(piece)),
        ExecutorToMiner::MusterJobProgress(progress) => live(MinerToValidator::MusterJobProgress(progress)),
        ExecutorToMiner::MusterJobMetrics(metrics) => live(MinerToValidator::MusterJobMetrics(metrics)),
        ExecutorToMiner::MusterCheckpoint(notice) => live(MinerToValidator::MusterCheckpoint(notice)),
        ExecutorToMiner::MusterExecutorMetrics(_) => return Err("MusterExecutorMetrics about an attempt"),
        ExecutorToMiner::MusterSessionProofs(_) => {
            return Err("MusterSessionProofs of a session without a lease");
        }
        ExecutorToMiner::MusterExecutorHello(_) => return Err("a second MusterExecutorHello"),
        ExecutorToMiner::MusterEnrolExecutor(_) => return Err("MusterEnrolExecutor in a lease"),
        ExecutorToMiner::MusterReattach(_) => {
            return Err("MusterReattach on a connection that serves the lease");
        }
        ExecutorToMiner::MusterLeaseOver(_) => {
            return Err("MusterLeaseOver of an executor that was started for its lease");
        }
    })
}

/// A message that validators get as the executor sent it, if they are connected now.
fn live(message: MinerToValidator) -> ExecutorReport {
    ExecutorReport::Live(Box::new(message))
}

/// The miner fills in and signs the address of a streaming job.
fn attest(
    ready: StreamingJobReady,
    attempt: AttemptId,
    executor_ip: &str,
    context: &MinerState,
) -> StreamingJobReady {
    let ip = ready.ip.unwrap_or_else(|| executor_ip.to_owned());
    let signature = sign_streaming_ready(&context.key, attempt, &ip, ready.port, &ready.public_key);
    StreamingJobReady {
        ip: Some(ip),
        miner_signature: Some(signature),
        ..ready
    }
}

/// An executor's statement about its session, signed: the lease decides whether the signature leaves this miner.
fn sign_statement(ask: &SealSession, context: &MinerState) -> Option<ExecutorReport> {
    let bytes = STANDARD.decode(&ask.statement).ok()?;
    let stated = Attestation::read(&bytes).ok()?;
    if stated.miner != MinerKey(context.key.hotkey()) {
        return None;
    }
    let signed = seal(&stated, &context.key).to_text();
    Some(ExecutorReport::Seal(Box::new(SealingRequest { stated, signed })))
}

fn failure_report(attempt: AttemptId, reason: HordeFailureReason, message: &str) -> ExecutorReport {
    ExecutorReport::HordeFailed(Box::new(HordeFailed {
        job_uuid: attempt,
        reported_by: ParticipantType::Executor,
        message: message.to_owned(),
        reason,
        context: None,
    }))
}

/// The figures of an executor's machine, for Prometheus.
#[expect(
    clippy::cast_precision_loss,
    reason = "a gauge is a float, and nobody counts single bytes on one"
)]
pub(crate) fn note_metrics(executor: &str, seen: &ExecutorMetrics) {
    let set = |name: &'static str, value: u64| {
        metrics::gauge!(name, "executor" => executor.to_owned()).set(value as f64);
    };
    set("muster_miner_executor_cpu_permille", seen.cpu_permille.into());
    set("muster_miner_executor_memory_total_bytes", seen.memory_total);
    set("muster_miner_executor_memory_used_bytes", seen.memory_used);
    set("muster_miner_executor_disk_total_bytes", seen.disk_total);
    set("muster_miner_executor_disk_used_bytes", seen.disk_used);
    set(
        "muster_miner_executor_network_received_bytes",
        seen.network_received,
    );
    set("muster_miner_executor_network_sent_bytes", seen.network_sent);
    // A GPU is labelled by its place: its UUID is the executor's word, and may be another one each time.
    for (place, gpu) in seen.gpus.iter().take(MAX_GPUS).enumerate() {
        let set = |name: &'static str, value: u64| {
            let labels = [("executor", executor.to_owned()), ("gpu", place.to_string())];
            metrics::gauge!(name, &labels).set(value as f64);
        };
        set(
            "muster_miner_executor_gpu_utilisation_percent",
            gpu.utilisation_percent.into(),
        );
        set("muster_miner_executor_gpu_memory_used_bytes", gpu.memory_used);
        set("muster_miner_executor_gpu_power_milliwatts", gpu.power_mw.into());
        set(
            "muster_miner_executor_gpu_temperature_celsius",
            gpu.temperature_c.into(),
        );
    }
}

/// The frame that notifies an executor that its attempt is over.
pub(crate) fn cancel_frame(attempt: AttemptId, reason: String) -> String {
    encode(&MinerToExecutor::MusterCancelJob(CancelJob {
        job_uuid: attempt,
        reason,
    }))
}

/// A generic error as a frame for an executor.
pub(crate) fn error_frame(details: String) -> String {
    encode(&MinerToExecutor::GenericError(GenericError {
        details: Some(details),
        job_uuid: None,
    }))
}

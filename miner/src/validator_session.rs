//! One session with one validator: its frames become events, and the dispatcher's queued messages are sent.

use std::sync::Arc;
use std::time::Duration;

use muster_audit_check::AuditCheckConversation;
use muster_identity::{FrameSignature, Keypair, countersign, open_credentials, verify_frame, verify_offered};
use muster_process::error::Causes;
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::wire::audits::AuditMessage;
use muster_protocol::wire::executor_socket::MinerToExecutor;
use muster_protocol::wire::machines::MachinesNotice;
use muster_protocol::wire::miner::{InitialJobRequest, JobRequest, MainHotkey};
use muster_protocol::wire::muster::ReceiptCountersigned;
use muster_protocol::wire::signing::{SignedFrame, decode_from_validator};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{WireError, encode};
use muster_protocol::{
    AttemptId, ExecutorToken, Feature, FeatureSet, MinerKey, Receipt, ReceiptPayload, Timestamp, ValidatorKey,
};
use muster_websocket::session::{Receiver, Sender};
use muster_websocket::{CloseCode, Greeting, Peer, SessionError, Socket, SocketError};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::admission::OfferFlaw;
use crate::chain::ValidatorAdmission;
use crate::greeting::{NoSession, error_frame, greet, malformed};
use crate::lease_table::{ConnectionId, Event, JobOffer};
use crate::miner_state::MinerState;
use crate::session_queues::{Attachment, DispatcherInput, Outgoing, OutgoingQueue, outbox};

/// Bytes of frames that are handed to the network together, if this many have gathered.
const TOGETHER: usize = 128 * 1024;

/// The time after the greeting until the first message about the machines.
const TELL_MACHINES_AFTER: Duration = Duration::from_secs(2);
/// The pause between two messages about the machines.
const TELL_MACHINES_EVERY: Duration = Duration::from_secs(30);

/// A validator that has proved its key.
#[derive(Debug)]
struct ValidatorPeer;

/// A frame on its way out, shared between connections.
struct Frame(Arc<str>);

impl Peer for ValidatorPeer {
    type In = SignedFrame;
    type Out = Frame;
    type Malformed = WireError;

    fn decode(frame: &str) -> Result<SignedFrame, WireError> {
        decode_from_validator(frame)
    }

    fn encode(message: &Frame) -> String {
        message.0.to_string()
    }
}

/// Serves the connection to the address of `claimed` to its end.
pub async fn serve(socket: Socket, claimed: String, context: Arc<MinerState>) {
    let mut greeting = Greeting::new(socket);
    let seat = match greet(&mut greeting, &claimed, &context).await {
        Ok(seat) => seat,
        Err(NoSession::Left) => return,
        Err(NoSession::Refused(refusal)) => {
            tracing::info!(%refusal, "a validator was refused");
            greeting
                .refuse(Some(error_frame(refusal.to_string())), CloseCode::Normal)
                .await;
            return;
        }
    };
    let validator = seat.validator();
    let session = greeting.accept(ValidatorPeer);
    let (muster, features) = (session.is_muster(), session.features());
    let (receiver, sender) = session.split();
    let (outbox, outgoings) = outbox();
    let connection = ConnectionId(context.number());
    let joined = DispatcherInput {
        event: Event::Joined {
            connection,
            validator,
            muster,
            features,
        },
        attachment: Attachment::Validator(outbox),
    };
    if !context.inbox.send(joined).await {
        return;
    }
    tracing::debug!(%validator, ?connection, muster, "a validator connected");
    let reader = Reader {
        connection,
        validator,
        sender: sender.clone(),
        audits: context
            .audit_check
            .as_ref()
            .map(|audit_check| Mutex::new(audit_check.converse(validator))),
        context: &context,
    };
    tokio::select! {
        () = reader.run(receiver) => {}
        () = write(&sender, outgoings, &context) => {}
        () = send_machines(&sender, features, &context) => {}
    }
    context.inbox.send(Event::Left(connection)).await;
}

/// Sends a validator that knows the feature the load of the executors' machines, until the socket fails. A notice that
/// does not go out is of no use later.
async fn send_machines(sender: &Sender<ValidatorPeer>, features: FeatureSet, context: &MinerState) {
    if !features.has(Feature::Machines) {
        return std::future::pending().await;
    }
    let mut told = MachinesNotice::default();
    // The greeting's own messages go first.
    context.clock.sleep(TELL_MACHINES_AFTER).await;
    loop {
        let notice = context.machines.notice(context.clock.now());
        if notice != told {
            let frame = encode(&MinerToValidator::MusterMachines(Box::new(notice.clone())));
            if let Err(error) = sender.send(&Frame(frame.into())).await {
                tracing::debug!(error = %Causes(&error), "a validator cannot be told of the machines");
                return;
            }
            told = notice;
        }
        context.clock.sleep(TELL_MACHINES_EVERY).await;
    }
}

/// Sends queued messages; messages that gathered go out together. It ends when the dispatcher has dropped the session
/// and all messages are sent, or when the socket fails.
async fn write(sender: &Sender<ValidatorPeer>, mut outgoings: OutgoingQueue, context: &MinerState) {
    while let Some(first) = outgoings.recv().await {
        let mut together = Vec::new();
        let (mut next, mut bytes) = (Some(first), 0);
        while let Some(outgoing) = next {
            for frame in frames(outgoing, context).await {
                bytes += frame.len();
                together.push(Frame(frame));
            }
            next = if bytes < TOGETHER {
                outgoings.try_recv().ok()
            } else {
                None
            };
        }
        if let Err(error) = sender.send_all(&together).await {
            tracing::debug!(error = %Causes(&error), "a validator cannot be told");
            return;
        }
    }
    sender.close(CloseCode::Normal, "").await;
}

async fn frames(outgoing: Outgoing, context: &MinerState) -> Vec<Arc<str>> {
    let loaded = match outgoing {
        Outgoing::Frame(frame) => return vec![frame],
        Outgoing::History(attempt) => context
            .store
            .history(attempt)
            .await
            .map(|history| history.into_iter().map(Arc::from).collect()),
        Outgoing::Receipt(attempt, kind) => context.store.receipt(attempt, kind).await.map(|receipt| {
            let message = |receipt| Box::new(ReceiptCountersigned { receipt });
            let frame =
                |receipt| encode(&MinerToValidator::MusterReceiptCountersigned(message(receipt))).into();
            receipt.map(frame).into_iter().collect()
        }),
    };
    // The history stays owed: the next connection gets it.
    loaded.unwrap_or_else(|error| {
        tracing::error!(error = %Causes(&error), "a history or receipt that is owed to a validator could not be read");
        vec![]
    })
}

/// The incoming half.
struct Reader<'a> {
    connection: ConnectionId,
    validator: ValidatorKey,
    sender: Sender<ValidatorPeer>,
    /// Receives the validator's notices about spot checks; `None` if this miner compares nothing.
    audits: Option<Mutex<AuditCheckConversation>>,
    context: &'a MinerState,
}

impl Reader<'_> {
    async fn run(&self, mut receiver: Receiver<ValidatorPeer>) {
        loop {
            let message = match receiver.recv().await {
                Ok(None) => return,
                Ok(Some(message)) => Ok(message),
                Err(error) => Err(error),
            };
            if self.take(message).await.is_err() {
                return;
            }
        }
    }

    async fn take(&self, message: Result<SignedFrame, SessionError<WireError>>) -> Result<(), SocketError> {
        match message {
            Ok(frame) => self.understand(frame).await,
            Err(SessionError::Malformed(error)) => self.send_text(malformed(&error.reason)).await,
            Err(SessionError::Socket(error)) if error.is_fatal() => Err(error),
            Err(SessionError::Socket(error)) => self.send_text(malformed(&error.to_string())).await,
        }
    }

    async fn understand(&self, frame: SignedFrame) -> Result<(), SocketError> {
        let signed = self.signed(&frame);
        match frame.message {
            // It has greeted; a greeting again proves nothing new.
            ValidatorToMiner::ValidatorAuthForMiner(_) => Ok(()),
            ValidatorToMiner::V0MainHotkeyMessage(_) => {
                let answer = MainHotkey {
                    main_hotkey: Some(self.context.main_hotkey),
                };
                self.send_text(encode(&MinerToValidator::V0MainHotkeyMessage(answer)))
                    .await
            }
            ValidatorToMiner::V0InitialJobRequest(request) => {
                self.offer(request, signed).await;
                Ok(())
            }
            ValidatorToMiner::V0JobRequest(request) => self.payload(request, signed).await,
            ValidatorToMiner::V0JobAcceptedReceiptRequest(request) => {
                let payload = ReceiptPayload::Accepted(request.payload);
                self.receipt(OfferedReceipt {
                    payload,
                    validator_signature: request.signature,
                })
                .await
            }
            ValidatorToMiner::V0JobFinishedReceiptRequest(request) => {
                let payload = ReceiptPayload::Finished(request.payload);
                self.receipt(OfferedReceipt {
                    payload,
                    validator_signature: request.signature,
                })
                .await
            }
            ValidatorToMiner::GenericError(error) => {
                let details = error.details.unwrap_or_default();
                tracing::warn!(validator = %self.validator, details, "a validator reports an error");
                Ok(())
            }
            ValidatorToMiner::MusterAudit(message) => self.answer_audit(*message).await,
            ValidatorToMiner::MusterWhitelist(notice) => {
                self.post(Event::Listed {
                    connection: self.connection,
                    notice,
                })
                .await;
                Ok(())
            }
            ValidatorToMiner::MusterCheckpointKept(kept) => {
                self.forward(kept.job_uuid, MinerToExecutor::MusterCheckpointKept(kept))
                    .await;
                Ok(())
            }
            ValidatorToMiner::MusterDrain(drain) => {
                self.forward(drain.job_uuid, MinerToExecutor::MusterDrain(drain))
                    .await;
                Ok(())
            }
            ValidatorToMiner::MusterCancelJob(cancel) => {
                self.post(Event::Cancelled {
                    connection: self.connection,
                    cancel,
                })
                .await;
                Ok(())
            }
        }
    }

    /// Passes a message about an attempt on to its executor.
    async fn forward(&self, attempt: AttemptId, message: MinerToExecutor) {
        self.post(Event::Forwarded {
            connection: self.connection,
            attempt,
            message: Box::new(message),
        })
        .await;
    }

    /// Receives a notice about spot checks. One that cannot be stored is complained about, and comes again.
    async fn answer_audit(&self, message: AuditMessage) -> Result<(), SocketError> {
        let Some(audits) = &self.audits else {
            return self
                .send_text(error_frame(
                    "this miner keeps no notices about spot checks".to_owned(),
                ))
                .await;
        };
        match audits.lock().await.take_message(message).await {
            Ok(replies) => {
                for reply in replies {
                    self.send_text(encode(&MinerToValidator::MusterAuditReply(reply)))
                        .await?;
                }
                Ok(())
            }
            Err(error) => {
                tracing::error!(validator = %self.validator, error = %Causes(&error), "a notice about spot checks is not kept");
                self.send_text(error_frame("the notice cannot be stored now".to_owned()))
                    .await
            }
        }
    }

    /// Checks that a job request is signed as this miner demands it.
    fn signed(&self, frame: &SignedFrame) -> Result<(), String> {
        match verify_frame(frame, self.validator) {
            Ok(FrameSignature::Absent) if self.context.require_signature => {
                Err("the message carries no validator_signature, which this miner requires".to_owned())
            }
            Ok(FrameSignature::Absent | FrameSignature::Valid) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn offer(&self, mut request: Box<InitialJobRequest>, signed: Result<(), String>) {
        let context = self.context;
        if let Some(extension) = &mut request.muster {
            let image = request.docker_image.as_deref().unwrap_or_default();
            extension.credentials = extension.registry.take().and_then(|sealed| {
                open_credentials(&context.key, image, &sealed)
                    .inspect_err(|error| tracing::warn!(attempt = %request.job_uuid, %error, "a registry login is of no use"))
                    .ok()
            });
        }
        let receipt = signed.map_err(OfferFlaw::Signature).and_then(|()| {
            complete_started_receipt(&context.key, &request, self.validator, context.clock.now())
        });
        let served = context.served.admission(self.validator) == ValidatorAdmission::Served;
        let token = ExecutorToken::new(request.job_uuid, Uuid::new_v4());
        let offer = Box::new(JobOffer {
            request,
            receipt,
            served,
            stakes: context.served.stakes_of(self.validator, context.clock.now()),
            unaffordable: None,
        });
        self.post(Event::Offered {
            connection: self.connection,
            offer,
            token,
        })
        .await;
    }

    async fn payload(&self, request: Box<JobRequest>, signed: Result<(), String>) -> Result<(), SocketError> {
        match signed {
            Ok(()) => {
                self.post(Event::Payload {
                    connection: self.connection,
                    request,
                })
                .await;
                Ok(())
            }
            Err(why) => {
                self.send_text(error_frame(format!(
                    "JobRequest {} refused: {why}",
                    request.job_uuid
                )))
                .await
            }
        }
    }

    async fn receipt(&self, offered: OfferedReceipt) -> Result<(), SocketError> {
        let (attempt, kind) = (offered.payload.attempt(), offered.payload.kind());
        match countersign_offered(
            &self.context.key,
            offered,
            self.validator,
            self.context.clock.now(),
        ) {
            Ok(receipt) => {
                let receipt = Box::new(receipt);
                self.post(Event::ReceiptOffered {
                    connection: self.connection,
                    receipt,
                })
                .await;
                Ok(())
            }
            Err(why) => {
                tracing::warn!(validator = %self.validator, %attempt, %kind, why, "a receipt was refused");
                self.send_text(error_frame(format!("{kind} of {attempt} refused: {why}")))
                    .await
            }
        }
    }

    /// Answers a message that the dispatcher need not know of.
    async fn send_text(&self, frame: String) -> Result<(), SocketError> {
        self.sender.send(&Frame(frame.into())).await
    }

    async fn post(&self, event: Event) {
        // Once the miner has stopped the session ends by its outbox.
        self.context.inbox.send(event).await;
    }
}

// === the miner's half of receipts: a validator's half is checked, then signed too ===

/// Signs as the miner what a validator has signed.
///
/// # Errors
/// As text for the validator: it names others than the two of us, lies outside the limits or in the future, or is not
/// signed by the validator.
fn countersign_offered(
    key: &Keypair,
    payload: OfferedReceipt,
    validator: ValidatorKey,
    now: Timestamp,
) -> Result<Receipt, String> {
    if payload.payload.validator() != validator {
        return Err(format!(
            "the receipt names validator {}, not {validator}",
            payload.payload.validator()
        ));
    }
    if payload.payload.miner() != MinerKey(key.hotkey()) {
        return Err(format!(
            "the receipt names miner {}, not {}",
            payload.payload.miner(),
            key.hotkey()
        ));
    }
    let verified = verify_offered(payload, now).map_err(|error| error.to_string())?;
    let receipt = countersign(key, verified).map_err(|error| error.to_string())?;
    Ok(receipt.into_inner())
}

/// The started receipt of an offer, completed.
///
/// ComputeHorde's miner at its head runs a job whose started receipt is forged and stores nothing; since 0.0.27 it
/// declines with `invalid_receipt`, and so do we: work without a receipt can neither be paid nor excuse anything.
///
/// # Errors
/// The defect of the receipt.
pub(crate) fn complete_started_receipt(
    key: &Keypair,
    offer: &InitialJobRequest,
    validator: ValidatorKey,
    now: Timestamp,
) -> Result<Receipt, OfferFlaw> {
    let payload = &offer.job_started_receipt_payload;
    if payload.job_uuid != offer.job_uuid {
        return Err(OfferFlaw::Receipt(
            "the started receipt is about another job".to_owned(),
        ));
    }
    if payload.executor_class != offer.executor_class {
        return Err(OfferFlaw::Receipt(
            "the started receipt is for another executor class".to_owned(),
        ));
    }
    let offered = OfferedReceipt {
        payload: ReceiptPayload::Started(payload.clone()),
        validator_signature: offer.job_started_receipt_signature,
    };
    countersign_offered(key, offered, validator, now).map_err(OfferFlaw::Receipt)
}

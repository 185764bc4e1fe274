//! The task behind a session: dials, greets, reads, writes, and closes the session once no attempt needs it.

use std::sync::Arc;

use muster_identity::sign_validator_auth;
use muster_process::Tasks;
use muster_process::error::Causes;
use muster_protocol::wire::decode;
use muster_protocol::wire::encode;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_websocket::{CloseCode, Limits, SocketReader, SocketWriter, connect};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::endpoint::MinerEndpoint;
use crate::session_state::{
    Delivery, MAX_QUEUED_BYTES, MinerSession, SharedFrames, SocketHalves, is_optional,
};
use crate::{MinerLink, ReplyPath, UnmatchedMessage};

/// Limits of a socket between validator and miner.
pub(crate) const LIMITS: Limits = Limits::miner();

/// Frames that wait to be sent; further attempts wait for room in the queue.
const OUTGOING_FRAMES: usize = 1_024;
/// Queued frames are handed to the network together, up to this many bytes.
const WRITE_BATCH: usize = 128 * 1024;
/// Bytes of memory that a message costs besides its text.
const MESSAGE_OVERHEAD: usize = 1_024;
/// Unmatched messages of one session that are being handled.
const MAX_UNMATCHED: usize = 64;

/// Connects to the miner and sends the greeting.
pub(crate) async fn dial(link: &MinerLink, endpoint: MinerEndpoint) -> Result<SocketHalves, String> {
    let setup = link.setup();
    let url = endpoint.url(&setup.keypair);
    let dialling = async {
        // The semaphore is never closed; if it were, the miner would be dialled without a permit.
        let _permit = link.0.dials.acquire().await;
        connect(&url, &LIMITS).await
    };
    let socket = dialling.await.map_err(|error| Causes(&error).to_string())?;
    let (reader, writer) = socket.split();
    let auth = sign_validator_auth(&setup.keypair, endpoint.miner, setup.clock.now());
    let greeting = encode(&ValidatorToMiner::ValidatorAuthForMiner(auth));
    match writer.send(greeting).await {
        Ok(()) => Ok((reader, writer)),
        Err(error) => Err(Causes(&error).to_string()),
    }
}

/// Makes a session and serves it to its end.
pub(crate) async fn run(link: MinerLink, session: Arc<MinerSession>) {
    let (stop, clock) = (link.setup().tasks.token(), &link.setup().clock);
    let making = async {
        if let Some(pause) = session.pause() {
            clock.sleep(pause).await;
        }
        dial(&link, session.endpoint()).await
    };
    let Some(made) = stop.run_until_cancelled(making).await else {
        return;
    };
    match made {
        Ok(halves) if halves.1.is_muster() => serve(&link, &session, halves).await,
        Ok(halves) => session.split_up(halves),
        Err(reason) => session.fail_dial(&reason),
    }
    link.remove_if_idle(&session);
}

async fn serve(link: &MinerLink, session: &MinerSession, (mut reader, writer): SocketHalves) {
    let setup = link.setup();
    let (stop, closing) = (setup.tasks.token(), CancellationToken::new());
    let (frames, queue) = mpsc::channel(OUTGOING_FRAMES);
    if let Some(first) = &setup.first_frame {
        // If it does not go out, the first read fails.
        let _ = writer.send(first.clone()).await;
    }
    let shared = SharedFrames {
        frames: frames.clone(),
        features: writer.features(),
    };
    if !session.open(shared, closing.clone(), setup.linger) {
        writer.close(CloseCode::Normal, "").await;
        return;
    }
    let lost = CancellationToken::new();
    let writing = setup.tasks.spawn(
        "frames for a miner",
        write_frames(writer, queue, lost.clone(), setup.tasks.clone()),
    );
    tokio::select! {
        biased;
        () = stop.cancelled() => return session.stop(),
        () = close_when_unneeded(link, session, &closing) => {}
        reason = read_messages(link, session, &mut reader, frames) => {
            lost.cancel();
            return session.lose(&reason);
        }
    }
    // Queued frames still go out and arrive: a connection that is dropped with unread frames may take ours with it.
    let goodbye = async {
        if writing.join().await.is_ok() {
            reader.drain().await;
        }
    };
    stop.run_until_cancelled(goodbye).await;
}

/// Waits until no attempt has needed the session for the time to linger. The session is closed when this returns.
async fn close_when_unneeded(link: &MinerLink, session: &MinerSession, closing: &CancellationToken) {
    let setup = link.setup();
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            () = session.wait_until_empty() => {}
        }
        setup.clock.sleep(setup.linger).await;
        if session.close_if_empty() {
            return;
        }
    }
}

/// Sends the queued frames, to the end of the queue or until nobody reads the miner's messages any more. Then the
/// connection is closed, even if an attempt has not noticed the loss and could still queue frames.
async fn write_frames(
    writer: SocketWriter,
    mut queue: mpsc::Receiver<String>,
    lost: CancellationToken,
    tasks: Tasks,
) {
    while let Some(Some(first)) = lost.run_until_cancelled(queue.recv()).await {
        let mut bytes = first.len();
        let mut frames = vec![first];
        while bytes < WRITE_BATCH
            && let Ok(frame) = queue.try_recv()
        {
            bytes += frame.len();
            frames.push(frame);
        }
        if let Err(error) = writer.send_all(frames).await {
            tracing::debug!(%error, "frames did not reach a miner");
            return;
        }
    }
    writer.close(CloseCode::Normal, tasks.stop_reason()).await;
}

/// Reads the miner's messages until the connection is lost; returns the reason.
async fn read_messages(
    link: &MinerLink,
    session: &MinerSession,
    reader: &mut SocketReader,
    frames: mpsc::Sender<String>,
) -> String {
    let miner = session.endpoint().miner;
    let (room, unmatched) = (session.room(), Arc::new(Semaphore::new(MAX_UNMATCHED)));
    // Neither semaphore is ever closed.
    const CLOSED: &str = "the session is closed";
    loop {
        let frame = match reader.recv().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return "the miner closed the connection".to_owned(),
            Err(error) if error.is_fatal() => return Causes(&error).to_string(),
            Err(error) => {
                tracing::warn!(%miner, %error, "a frame of the miner was dropped");
                continue;
            }
        };
        let cost = u32::try_from(frame.len().saturating_add(MESSAGE_OVERHEAD))
            .map_or(MAX_QUEUED_BYTES, |cost| cost.min(MAX_QUEUED_BYTES));
        let Ok(bytes) = Arc::clone(&room).acquire_many_owned(cost).await else {
            return CLOSED.to_owned();
        };
        let message: MinerToValidator = match decode(&frame) {
            Ok(message) => message,
            Err(defect) => {
                tracing::warn!(%miner, %defect, "the miner broke the protocol");
                continue;
            }
        };
        match session.deliver(message, bytes) {
            Delivery::Done => {}
            Delivery::Unmatched(message, bytes) => {
                let place = Arc::clone(&unmatched);
                let place = if is_optional(&message) {
                    match place.try_acquire_owned() {
                        Ok(place) => place,
                        Err(_) => continue,
                    }
                } else {
                    match place.acquire_owned().await {
                        Ok(place) => place,
                        Err(_) => return CLOSED.to_owned(),
                    }
                };
                let unmatched = UnmatchedMessage {
                    miner,
                    message: *message,
                    reply: ReplyPath {
                        frames: frames.clone(),
                        _permits: [bytes, place],
                    },
                };
                // The receiver lives as long as the validator.
                let _ = link.0.unmatched.send(unmatched);
            }
            Delivery::TooMany(attempt) => {
                return format!("the miner sent too many messages about attempt {attempt}");
            }
        }
    }
}

//! The task behind a session: dials, greets, listens, speaks, and closes it once nobody needs it.

use std::sync::Arc;

use crate::{Limits, SocketReader, SocketWriter, connect};
use muster_identity::sign_validator_auth;
use muster_process::error::Causes;
use muster_protocol::wire::decode;
use muster_protocol::wire::encode;
use muster_protocol::wire::miner::{FromMiner, ToMiner};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::session::{Delivery, HELD, Halves, Session, may_be_missed};
use super::{Lines, Place, Reply, Stray};

/// Between validator and miner.
pub(crate) const LIMITS: Limits = Limits::miner();

/// Frames that wait to be sent; further attempts wait to be let into the queue.
const OUTGOING: usize = 1_024;
/// Frames that are handed to the network together: those that have gathered, up to so many bytes.
const TOGETHER: usize = 128 * 1024;
/// What a message costs in memory beside its bytes.
const OVERHEAD: usize = 1_024;
/// Strays of one session that are being looked at.
const STRAYS: usize = 64;
/// The close code of every ordinary end.
const NORMAL: u16 = 1000;

/// Dials and greets.
pub(crate) async fn dialled(lines: &Lines, place: Place) -> Result<Halves, String> {
    let setup = lines.setup();
    let url = format!(
        "ws://{}/v0.1/validator_interface/{}",
        place.address,
        setup.keypair.hotkey()
    );
    let dialling = async {
        // It is never closed; without a permit one would be dialled all the same.
        let _place = lines.0.dials.acquire().await;
        connect(&url, &LIMITS).await
    };
    let socket = dialling.await.map_err(|error| Causes(&error).to_string())?;
    let (reader, writer) = socket.split();
    let auth = sign_validator_auth(&setup.keypair, place.miner, setup.clock.now());
    let greeting = encode(&ToMiner::ValidatorAuthForMiner(auth));
    match writer.send(greeting).await {
        Ok(()) => Ok((reader, writer)),
        Err(error) => Err(Causes(&error).to_string()),
    }
}

/// Makes a session and serves it to its end.
pub(crate) async fn run(lines: Lines, session: Arc<Session>) {
    let (stop, clock) = (lines.setup().tasks.token(), &lines.setup().clock);
    let making = async {
        if let Some(pause) = session.pause() {
            clock.sleep(pause).await;
        }
        dialled(&lines, session.place()).await
    };
    let Some(made) = stop.run_until_cancelled(making).await else {
        return;
    };
    match made {
        Ok(halves) if halves.1.is_muster() => talk(&lines, &session, halves).await,
        Ok(halves) => session.apart(halves),
        Err(reason) => session.failed(&reason),
    }
    lines.tidy(&session);
}

async fn talk(lines: &Lines, session: &Session, (mut reader, writer): Halves) {
    let setup = lines.setup();
    let (stop, closing) = (setup.tasks.token(), CancellationToken::new());
    let (frames, queue) = mpsc::channel(OUTGOING);
    if let Some(first) = &setup.first {
        // If it does not go out, the first read finds that.
        let _ = writer.send(first.clone()).await;
    }
    if !session.up(frames.clone(), closing.clone(), setup.linger) {
        writer.close(NORMAL, "").await;
        return;
    }
    let speaking = setup.tasks.spawn("frames for a miner", speak(writer, queue));
    tokio::select! {
        biased;
        () = stop.cancelled() => return session.stopped(),
        () = unneeded(lines, session, &closing) => {}
        reason = listen(lines, session, &mut reader, frames) => return session.lost(&reason),
    }
    // What is queued still goes out, and arrives: a connection that is dropped with frames unread may take ours with it.
    let goodbye = async {
        if speaking.join().await.is_ok() {
            reader.drain().await;
        }
    };
    stop.run_until_cancelled(goodbye).await;
}

/// Waits until no attempt has needed the session for a while; from then on it is closed.
async fn unneeded(lines: &Lines, session: &Session, closing: &CancellationToken) {
    let setup = lines.setup();
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            () = session.emptied() => {}
        }
        setup.clock.sleep(setup.linger).await;
        if session.close_if_empty() {
            return;
        }
    }
}

/// Sends what is queued, to the end of the queue.
async fn speak(writer: SocketWriter, mut queue: mpsc::Receiver<String>) {
    while let Some(first) = queue.recv().await {
        let mut bytes = first.len();
        let mut frames = vec![first];
        while bytes < TOGETHER
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
    writer.close(NORMAL, "").await;
}

/// Takes what the miner says; why the connection is lost.
async fn listen(
    lines: &Lines,
    session: &Session,
    reader: &mut SocketReader,
    frames: mpsc::Sender<String>,
) -> String {
    let miner = session.place().miner;
    let (room, strays) = (session.room(), Arc::new(Semaphore::new(STRAYS)));
    // Neither is ever closed.
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
        let cost = u32::try_from(frame.len().saturating_add(OVERHEAD)).map_or(HELD, |cost| cost.min(HELD));
        let Ok(held) = Arc::clone(&room).acquire_many_owned(cost).await else {
            return CLOSED.to_owned();
        };
        let message: FromMiner = match decode(&frame) {
            Ok(message) => message,
            Err(defect) => {
                tracing::warn!(%miner, %defect, "the miner broke the protocol");
                continue;
            }
        };
        match session.deliver(message, held) {
            Delivery::Done => {}
            Delivery::Stray(message, held) => {
                let place = Arc::clone(&strays);
                let place = if may_be_missed(&message) {
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
                let stray = Stray {
                    miner,
                    message: *message,
                    reply: Reply {
                        frames: frames.clone(),
                        _held: [held, place],
                    },
                };
                // Who looks at them goes only when the validator does.
                let _ = lines.0.strays.send(stray);
            }
            Delivery::TooMuch(attempt) => {
                return format!("the miner says more about attempt {attempt} than there is to say");
            }
        }
    }
}

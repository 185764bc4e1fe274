//! The link to the facilitator: greet, take jobs, say how they fare, and come back whenever it is lost.
//!
//! Status updates are sent in order and answered in order, so an answer needs no name. A Muster facilitator gets some before it
//! has answered the first; any other gets the next only once it has answered the one before. What was not answered is sent again
//! over the next connection.
//!
//! Who listens does not wait for who speaks, which often waits for the store: a job that comes is taken at once. Jobs are taken
//! side by side, each in a task of its own, so that those which come together share a commit. Whatever may be about one of them
//! waits until they are taken.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use muster_identity::{answer_challenge, facilitator_auth};
use muster_process::backoff::Backoff;
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::ErrorCode;
use muster_protocol::wire::facilitator::{
    FromFacilitator, Heartbeat, JobRequest, Response, ResponseStatus, ToFacilitator,
};
use muster_protocol::wire::muster::{Challenge, ChallengeResponse};
use muster_protocol::wire::{decode, encode};
use muster_websocket::reconnect::{After, Reconnecting};
use muster_websocket::{ConnectError, Limits, Socket, SocketError, SocketReader, SocketWriter, connect};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::intake;
use crate::report;
use crate::shared::{LinkState, Shared};

/// The largest frame, both ways.
const MAX_FRAME: usize = Limits::facilitator().max_frame;

/// Status updates on their way to a Muster facilitator, at most.
const WINDOW: usize = 64;

/// Jobs that are being taken, at most; further ones wait in the socket.
const TAKING: u32 = 256;

/// How long an answer may wait for others to be written down with: it is in no hurry, unlike the jobs whose commits it would be
/// in the way of. One that is lost is asked for again.
const GATHER: Duration = Duration::from_millis(20);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
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

/// Keeps the link up until the validator stops.
pub(crate) async fn run(shared: Arc<Shared>) -> Result<(), StoreError> {
    let limits = Limits::facilitator();
    let url = shared.config.facilitator.url.clone();
    let link = Reconnecting {
        name: "facilitator",
        backoff: Backoff::PEERS,
        clock: Arc::clone(&shared.clock),
        stop: shared.tasks.token(),
    };
    let dial = || {
        shared.link.send_replace(LinkState::Connecting);
        connect(&url, &limits)
    };
    let taking = Arc::new(Semaphore::new(
        usize::try_from(TAKING).unwrap_or(Semaphore::MAX_PERMITS),
    ));
    let serve = |socket| serve(Arc::clone(&shared), Arc::clone(&taking), socket);
    let never = |error: &ConnectError| {
        lost(&shared, &Causes(error));
        false
    };
    if let Err(error) = link.run(dial, serve, never).await {
        lost(&shared, &error);
    }
    Ok(())
}

async fn serve(shared: Arc<Shared>, taking: Arc<Semaphore>, socket: Socket) -> After {
    let (mut reader, writer) = socket.split();
    let end = match session(&shared, taking, &mut reader, &writer).await {
        Ok(never) => match never {},
        Err(end) => end,
    };
    writer.close(1000, "").await;
    match end {
        End::Stopped => After::Stop,
        End::Store(error) => {
            shared.fail(error);
            After::Stop
        }
        End::Closed | End::Silent(_) | End::Refused(_) | End::Socket(_) => {
            lost(&shared, &Causes(&end));
            After::Again
        }
    }
}

/// One connection, from the greeting to its end.
async fn session(
    shared: &Arc<Shared>,
    taking: Arc<Semaphore>,
    reader: &mut SocketReader,
    writer: &SocketWriter,
) -> Result<Infallible, End> {
    let (answers, heard) = mpsc::channel(WINDOW);
    let written = watch::Sender::new(0);
    let mut listener = Listener {
        shared,
        reader,
        answers,
        answered: 0,
        written: written.subscribe(),
        taking,
    };
    let mut speaker = Speaker {
        shared,
        writer,
        on_their_way: VecDeque::new(),
        last: None,
        heard,
        answers: Vec::new(),
        answered: 0,
        written,
    };
    let stop = shared.tasks.token();
    let patience = Duration::from_secs(shared.config.facilitator.answer_s);
    let greeted = tokio::select! {
        () = stop.cancelled() => Err(End::Stopped),
        () = shared.clock.sleep(patience) => Err(End::Silent(patience)),
        greeted = listener.greet(writer) => greeted,
    };
    greeted?;
    let end = tokio::select! {
        () = stop.cancelled() => Err(End::Stopped),
        end = listener.run() => end,
        end = speaker.run() => end,
    };
    // What was answered before the end need not be said again.
    match end {
        Err(End::Store(_)) => end,
        Ok(_) | Err(End::Stopped | End::Closed | End::Silent(_) | End::Refused(_) | End::Socket(_)) => {
            speaker.finish().await?;
            end
        }
    }
}

fn lost(shared: &Shared, reason: &dyn std::fmt::Display) {
    let code = ErrorCode::FacilitatorUnreachable;
    tracing::warn!(%code, %reason, "no link to the facilitator; jobs run on and their statuses are kept");
    shared.link.send_replace(LinkState::Lost {
        reason: reason.to_string(),
    });
}

/// Takes what the facilitator says.
struct Listener<'a> {
    shared: &'a Arc<Shared>,
    reader: &'a mut SocketReader,
    /// To who speaks.
    answers: mpsc::Sender<Response>,
    /// How many answers came, and how many of them are written down.
    answered: u64,
    written: watch::Receiver<u64>,
    /// Room for jobs that are being taken, also of a connection before this one.
    taking: Arc<Semaphore>,
}

/// Says how jobs fare, and writes down what was answered.
struct Speaker<'a> {
    shared: &'a Arc<Shared>,
    writer: &'a SocketWriter,
    /// The updates that the next answers are about, in their order.
    on_their_way: VecDeque<i64>,
    /// The last update that was sent, or could not be.
    last: Option<i64>,
    /// From who listens.
    heard: mpsc::Receiver<Response>,
    /// Answers that are to be written down.
    answers: Vec<(i64, Option<String>)>,
    /// How many answers were heard, and how many of them are written down.
    answered: u64,
    written: watch::Sender<u64>,
}

impl Listener<'_> {
    /// Greets, and listens until the facilitator has accepted this validator.
    async fn greet(&mut self, writer: &SocketWriter) -> Result<(), End> {
        let greeting = facilitator_auth(&self.shared.keypair);
        writer
            .send(encode(&ToFacilitator::V0AuthenticationRequest(greeting)))
            .await?;
        loop {
            let frame = self.reader.recv().await?.ok_or(End::Closed)?;
            match decode(&frame) {
                Ok(FromFacilitator::Response(response)) => {
                    return match response.status {
                        ResponseStatus::Success => {
                            self.shared.link.send_replace(LinkState::Connected);
                            Ok(())
                        }
                        ResponseStatus::Error => Err(End::Refused(in_words(&response))),
                    };
                }
                Ok(FromFacilitator::Challenge(challenge)) => self.prove(writer, &challenge).await?,
                // A hasty facilitator: the job is durable, and its status follows once we are accepted.
                Ok(FromFacilitator::Job(_) | FromFacilitator::Cheated(_) | FromFacilitator::Cancel(_))
                | Err(_) => self.on_frame(frame).await?,
            }
        }
    }

    /// Shows that the greeting is no copy. Only a Muster facilitator asks, and nobody else is sent anything of ours.
    async fn prove(&self, writer: &SocketWriter, challenge: &Challenge) -> Result<(), End> {
        if !writer.is_muster() {
            tracing::warn!(
                "a facilitator that is not Muster sent a challenge of Muster's; it is not answered"
            );
            return Ok(());
        }
        let signature = answer_challenge(&self.shared.keypair, &challenge.nonce);
        let answer = ToFacilitator::MusterChallengeResponse(ChallengeResponse { signature });
        Ok(writer.send(encode(&answer)).await?)
    }

    async fn run(&mut self) -> Result<Infallible, End> {
        loop {
            match self.reader.recv().await {
                Ok(Some(frame)) => self.on_frame(frame).await?,
                Ok(None) => return Err(End::Closed),
                Err(error) if error.is_fatal() => return Err(error.into()),
                Err(error) => tracing::warn!(%error, "a frame of the facilitator was dropped"),
            }
        }
    }

    async fn on_frame(&mut self, frame: String) -> Result<(), End> {
        match decode(&frame) {
            Ok(FromFacilitator::Job(request)) => self.take(*request, frame).await,
            Ok(FromFacilitator::Cheated(report)) => intake::cheated(self.shared, &report).await?,
            Ok(FromFacilitator::Cancel(request)) => {
                written_down(self.written.clone(), self.answered).await;
                self.all_are_taken().await;
                intake::cancel(self.shared, &request).await?;
            }
            Ok(FromFacilitator::Response(response)) => {
                self.answered = self.answered.saturating_add(1);
                // Whoever speaks ends with this one.
                let _ = self.answers.send(response).await;
            }
            Ok(FromFacilitator::Challenge(_)) => {
                tracing::warn!("the facilitator challenges a connection that it has accepted");
            }
            Err(error) => intake::malformed(self.shared, &frame, &error).await?,
        }
        Ok(())
    }

    /// Takes a job beside others.
    async fn take(&self, request: JobRequest, frame: String) {
        // It is never closed; without a permit one would be taken all the same.
        let place = Arc::clone(&self.taking).acquire_owned().await;
        let shared = Arc::clone(self.shared);
        let (answered, written) = (self.answered, self.written.clone());
        self.shared.spawn("intake", async move {
            let _place = place;
            intake::job(&shared, request, &frame, written_down(written, answered)).await
        });
    }

    /// Waits until every job that came before is taken.
    async fn all_are_taken(&self) {
        drop(self.taking.acquire_many(TAKING).await);
    }
}

/// Waits until so many answers are written down. If the connection ends first, what was not written down is said again anyway.
async fn written_down(mut written: watch::Receiver<u64>, answered: u64) {
    drop(written.wait_for(|count| *count >= answered).await);
}

impl Speaker<'_> {
    async fn run(&mut self) -> Result<Infallible, End> {
        let config = &self.shared.config.facilitator;
        let (patience, beat) = (
            Duration::from_secs(config.answer_s),
            Duration::from_secs(config.heartbeat_s),
        );
        let shared = self.shared;
        if let Some(gateway) = shared.gateway.get().filter(|_| self.writer.is_muster()) {
            let notice = ToFacilitator::MusterGateway(Box::new(gateway.notice()));
            self.writer.send(encode(&notice)).await?;
        }
        let mut live = shared.live.receiver.lock().await;
        // What waited while nobody was connected is old.
        while live.try_recv().is_ok() {
            shared.live.drop_one();
        }
        let clock = Arc::clone(&shared.clock);
        let mut writes = shared.store.outbox_writes();
        let (mut next_beat, mut answer_by, mut write_by) = (clock.now(), None, None);
        let window = if self.writer.is_muster() { WINDOW } else { 1 };
        // Whether there may be updates that are not on their way.
        let mut more = true;
        loop {
            if more && self.on_their_way.len() <= window / 2 {
                writes.borrow_and_update();
                let waited = !self.on_their_way.is_empty();
                more = self.send_updates(window).await?;
                if !waited {
                    answer_by = Some(clock.now().plus(patience));
                }
            }
            write_by = match (self.is_written_down(), write_by) {
                (true, _) => None,
                (false, Some(by)) => Some(by),
                (false, None) => Some(clock.now().plus(GATHER)),
            };
            let waits = answer_by.filter(|_| !self.on_their_way.is_empty());
            let too_late = OptionFuture::from(waits.map(|by| clock.sleep_until(by)));
            let gathered = OptionFuture::from(write_by.map(|by| clock.sleep_until(by)));
            tokio::select! {
                // The other end is held by who listens.
                Some(response) = self.heard.recv() => {
                    if self.on_answer(&response)? {
                        answer_by = Some(clock.now().plus(patience));
                    }
                    if self.answers.len() >= WINDOW {
                        self.keep_answers().await?;
                    }
                }
                Some(()) = gathered => self.keep_answers().await?,
                // The sender lives in the store, so the channel cannot close.
                _ = writes.changed(), if !more => more = true,
                Some(()) = too_late => return Err(End::Silent(patience)),
                // The sender lives beside the receiver.
                Some(message) = live.recv() => self.pass_on(&message).await?,
                () = clock.sleep_until(next_beat) => {
                    self.writer.send(encode(&ToFacilitator::V0Heartbeat(Heartbeat {}))).await?;
                    next_beat = clock.now().plus(beat);
                }
            }
        }
    }

    /// Passes on what a job prints. Only a Muster facilitator knows what it is; nothing answers it.
    async fn pass_on(&self, message: &ToFacilitator) -> Result<(), End> {
        if self.writer.is_muster() {
            self.writer.send(encode(message)).await?;
        }
        Ok(())
    }

    /// Sends the oldest updates that were not sent on this connection, as far as the window goes; whether there may be more of
    /// them.
    async fn send_updates(&mut self, window: usize) -> Result<bool, End> {
        let room = window.saturating_sub(self.on_their_way.len());
        let updates = self.shared.store.next_updates(self.last, room).await?;
        for update in &updates {
            self.last = Some(update.sequence);
            match self.writer.send(report::frame(update, MAX_FRAME)).await {
                Ok(()) => self.on_their_way.push_back(update.sequence),
                Err(error) if !error.is_fatal() => {
                    // It would not fit the next time either.
                    tracing::error!(job = %update.job, %error, "a status update cannot be sent and is dropped");
                    self.answers.push((update.sequence, Some(error.to_string())));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(!updates.is_empty())
    }

    /// Whether it is about an update.
    fn on_answer(&mut self, response: &Response) -> Result<bool, End> {
        self.answered = self.answered.saturating_add(1);
        let Some(sequence) = self.on_their_way.pop_front() else {
            tracing::debug!(
                answer = in_words(response),
                "the facilitator answers what was not asked"
            );
            return Ok(false);
        };
        let answer = match judge(response) {
            Answer::Taken => None,
            Answer::Unheard => return Err(End::Refused(in_words(response))),
            Answer::Refused => {
                let answer = in_words(response);
                tracing::warn!(
                    sequence,
                    answer,
                    "the facilitator refused a status update; it is kept and not sent again"
                );
                Some(answer)
            }
        };
        self.answers.push((sequence, answer));
        Ok(true)
    }

    fn is_written_down(&self) -> bool {
        self.answers.is_empty() && self.answered == *self.written.borrow()
    }

    async fn keep_answers(&mut self) -> Result<(), End> {
        if !self.answers.is_empty() {
            let now = self.shared.clock.now();
            self.shared.store.acknowledge(&self.answers, now).await?;
            self.answers.clear();
        }
        self.written.send_replace(self.answered);
        Ok(())
    }

    /// Writes down what was answered to the last.
    async fn finish(&mut self) -> Result<(), End> {
        while let Ok(response) = self.heard.try_recv() {
            if self.on_answer(&response).is_err() {
                break;
            }
        }
        self.keep_answers().await
    }
}

/// What an answer to a status update means.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// It has the status, now or from before.
    Taken,
    /// It did not look at the status: it does not know who we are.
    Unheard,
    /// It looked and will not have it; sending it again would change nothing.
    Refused,
}

fn judge(response: &Response) -> Answer {
    let says = |kind: &str| response.errors.iter().any(|error| error.r#type.starts_with(kind));
    match response.status {
        ResponseStatus::Success => Answer::Taken,
        ResponseStatus::Error if says("auth.") => Answer::Unheard,
        ResponseStatus::Error if says("job.integrity_error") => Answer::Taken,
        ResponseStatus::Error => Answer::Refused,
    }
}

fn in_words(response: &Response) -> String {
    let each = response
        .errors
        .iter()
        .map(|error| format!("{}: {}", error.r#type, error.msg));
    let words = each.collect::<Vec<_>>().join("; ");
    if words.is_empty() {
        "no reason was given".to_owned()
    } else {
        words.chars().take(1_000).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_refused_or_was_never_about_the_status() {
        let error = |kind| Response::error(kind, "no", "");
        assert_eq!(judge(&Response::success()), Answer::Taken);
        assert_eq!(judge(&error("job.integrity_error")), Answer::Taken);
        assert_eq!(judge(&error("job.not_found")), Answer::Refused);
        assert_eq!(judge(&error("union_tag_invalid")), Answer::Refused);
        assert_eq!(judge(&error("auth.not_authenticated")), Answer::Unheard);
        assert_eq!(in_words(&error("job.not_found")), "job.not_found: no");
    }
}

//! The link to the facilitator: greet, take jobs, say how they fare, and come back whenever it is lost.
//!
//! Status updates are sent one at a time, the next only once the facilitator has answered the one before, so that they
//! arrive in order and an answer needs no name. What was not answered is sent again over the next connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use muster_identity::{answer_challenge, facilitator_auth};
use muster_kit::backoff::Backoff;
use muster_kit::error::Causes;
use muster_kit::store::StoreError;
use muster_protocol::ErrorCode;
use muster_protocol::wire::facilitator::{
    FromFacilitator, Heartbeat, Response, ResponseStatus, ToFacilitator,
};
use muster_protocol::wire::muster::{Challenge, ChallengeResponse};
use muster_protocol::wire::{decode, encode};
use muster_rpc::reconnect::{After, Reconnecting};
use muster_rpc::{ConnectError, Limits, Socket, SocketError, SocketReader, SocketWriter, connect};

use crate::intake;
use crate::report;
use crate::shared::{LinkState, Shared};

/// The largest frame, both ways.
const MAX_FRAME: usize = Limits::facilitator().max_frame;

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
    let serve = |socket| serve(Arc::clone(&shared), socket);
    let never = |error: &ConnectError| {
        lost(&shared, &Causes(error));
        false
    };
    if let Err(error) = link.run(dial, serve, never).await {
        lost(&shared, &error);
    }
    Ok(())
}

async fn serve(shared: Arc<Shared>, socket: Socket) -> After {
    let (reader, writer) = socket.split();
    let mut session = Session {
        shared: &shared,
        reader,
        writer: writer.clone(),
        waiting_for: None,
    };
    let end = match session.run().await {
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

fn lost(shared: &Shared, reason: &dyn std::fmt::Display) {
    let code = ErrorCode::FacilitatorUnreachable;
    tracing::warn!(%code, %reason, "no link to the facilitator; jobs run on and their statuses are kept");
    shared.link.send_replace(LinkState::Lost {
        reason: reason.to_string(),
    });
}

struct Session<'a> {
    shared: &'a Arc<Shared>,
    reader: SocketReader,
    writer: SocketWriter,
    /// The update that the next answer is about.
    waiting_for: Option<i64>,
}

impl Session<'_> {
    async fn run(&mut self) -> Result<std::convert::Infallible, End> {
        let config = &self.shared.config.facilitator;
        let (answer, beat) = (
            Duration::from_secs(config.answer_s),
            Duration::from_secs(config.heartbeat_s),
        );
        let stop = self.shared.tasks.token();
        self.greet(answer).await?;
        let shared = self.shared;
        let mut live = shared.live.receiver.lock().await;
        // What waited while nobody was connected is old.
        while live.try_recv().is_ok() {
            shared.live.drop_one();
        }
        let clock = Arc::clone(&self.shared.clock);
        let mut writes = self.shared.store.outbox_writes();
        let (mut next_beat, mut answer_by) = (clock.now(), None);
        loop {
            if self.waiting_for.is_none() {
                writes.borrow_and_update();
                answer_by = self.send_next().await?.then(|| clock.now().plus(answer));
            }
            let too_late = OptionFuture::from(answer_by.map(|by| clock.sleep_until(by)));
            tokio::select! {
                () = stop.cancelled() => return Err(End::Stopped),
                frame = self.reader.recv() => self.on_frame(frame).await?,
                // The sender lives in the store, so the channel cannot close.
                _ = writes.changed(), if self.waiting_for.is_none() => {}
                Some(()) = too_late => return Err(End::Silent(answer)),
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

    async fn greet(&mut self, patience: Duration) -> Result<(), End> {
        let greeting = facilitator_auth(&self.shared.keypair);
        self.writer
            .send(encode(&ToFacilitator::V0AuthenticationRequest(greeting)))
            .await?;
        let stop = self.shared.tasks.token();
        let too_late = self.shared.clock.sleep(patience);
        tokio::pin!(too_late);
        loop {
            let frame = tokio::select! {
                () = stop.cancelled() => return Err(End::Stopped),
                () = &mut too_late => return Err(End::Silent(patience)),
                frame = self.reader.recv() => frame?.ok_or(End::Closed)?,
            };
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
                Ok(FromFacilitator::Challenge(challenge)) => self.prove(&challenge).await?,
                // A hasty facilitator: the job is durable, and its status follows once we are accepted.
                Ok(FromFacilitator::Job(_) | FromFacilitator::Cheated(_) | FromFacilitator::Cancel(_))
                | Err(_) => {
                    self.on_frame(Ok(Some(frame))).await?;
                }
            }
        }
    }

    /// Shows that the greeting is no copy. Only a Muster facilitator asks, and nobody else is sent anything of ours.
    async fn prove(&self, challenge: &Challenge) -> Result<(), End> {
        if !self.writer.is_muster() {
            tracing::warn!(
                "a facilitator that is not Muster sent a challenge of Muster's; it is not answered"
            );
            return Ok(());
        }
        let signature = answer_challenge(&self.shared.keypair, &challenge.nonce);
        let answer = ToFacilitator::MusterChallengeResponse(ChallengeResponse { signature });
        Ok(self.writer.send(encode(&answer)).await?)
    }

    /// Sends the oldest update that is not acknowledged; `false` if there is none.
    async fn send_next(&mut self) -> Result<bool, End> {
        let Some(update) = self.shared.store.next_update().await? else {
            return Ok(false);
        };
        match self.writer.send(report::frame(&update, MAX_FRAME)).await {
            Ok(()) => {
                self.waiting_for = Some(update.sequence);
                Ok(true)
            }
            Err(error) if !error.is_fatal() => {
                // It would not fit the next time either.
                let now = self.shared.clock.now();
                tracing::error!(job = %update.job, %error, "a status update cannot be sent and is dropped");
                self.shared
                    .store
                    .acknowledge(update.sequence, Some(&error.to_string()), now)
                    .await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn on_frame(&mut self, frame: Result<Option<String>, SocketError>) -> Result<(), End> {
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(End::Closed),
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "a frame of the facilitator was dropped");
                return Ok(());
            }
        };
        match decode(&frame) {
            Ok(FromFacilitator::Job(request)) => intake::job(self.shared, &request, &frame).await?,
            Ok(FromFacilitator::Cheated(report)) => intake::cheated(self.shared, &report).await?,
            Ok(FromFacilitator::Cancel(request)) => intake::cancel(self.shared, &request).await?,
            Ok(FromFacilitator::Response(response)) => self.on_answer(&response).await?,
            Ok(FromFacilitator::Challenge(_)) => {
                tracing::warn!("the facilitator challenges a connection that it has accepted");
            }
            Err(error) => intake::malformed(self.shared, &frame, &error).await?,
        }
        Ok(())
    }

    async fn on_answer(&mut self, response: &Response) -> Result<(), End> {
        let Some(sequence) = self.waiting_for.take() else {
            tracing::debug!(
                answer = in_words(response),
                "the facilitator answers what was not asked"
            );
            return Ok(());
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
        self.shared
            .store
            .acknowledge(sequence, answer.as_deref(), self.shared.clock.now())
            .await?;
        Ok(())
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

//! The reading half of a connection: greets, takes jobs and other orders, and hands the facilitator's answers to the
//! writer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_identity::{answer_challenge, sign_facilitator_auth};
use muster_protocol::wire::facilitator::{
    FromFacilitator, Response, ResponseStatus, ToFacilitator, UserJobRequest,
};
use muster_protocol::wire::muster::{Challenge, ChallengeResponse};
use muster_protocol::wire::{decode, encode};
use muster_websocket::{SocketReader, SocketWriter};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::{FacilitatorLink, JOBS_AT_ONCE, LinkEnd, describe_errors};

pub(crate) struct LinkReader<'a> {
    pub(crate) link: &'a FacilitatorLink,
    pub(crate) socket: &'a mut SocketReader,
    /// To the writer.
    pub(crate) answers: mpsc::Sender<Response>,
    /// Answers received on this connection.
    pub(crate) answer_count: u64,
    /// Set with the first answer.
    pub(crate) useful: &'a AtomicBool,
    /// Answers that the writer has stored.
    pub(crate) stored: watch::Receiver<u64>,
    /// One permit for each job that may be taken at a time, shared with earlier connections.
    pub(crate) slots: Arc<Semaphore>,
}

impl LinkReader<'_> {
    /// Greets the facilitator, and reads until it has accepted this validator.
    pub(crate) async fn greet(&mut self, writer: &SocketWriter) -> Result<(), LinkEnd> {
        let greeting = sign_facilitator_auth(&self.link.keypair);
        writer
            .send(encode(&ToFacilitator::V0AuthenticationRequest(greeting)))
            .await?;
        loop {
            let frame = self.socket.recv().await?.ok_or(LinkEnd::Closed)?;
            match decode(&frame) {
                Ok(FromFacilitator::Response(response)) => {
                    return match response.status {
                        ResponseStatus::Success => {
                            self.link.backend.note_connected();
                            Ok(())
                        }
                        ResponseStatus::Error => Err(LinkEnd::Refused(describe_errors(&response))),
                    };
                }
                Ok(FromFacilitator::Challenge(challenge)) => self.answer(writer, &challenge).await?,
                // A facilitator that does not wait: the job is stored, and its status follows after the acceptance.
                Ok(FromFacilitator::Job(_) | FromFacilitator::Cheated(_) | FromFacilitator::Cancel(_))
                | Err(_) => self.on_frame(frame).await?,
            }
        }
    }

    /// Answers a challenge, which proves that the greeting is no copy. Only a Muster facilitator is sent messages of
    /// Muster's.
    async fn answer(&self, writer: &SocketWriter, challenge: &Challenge) -> Result<(), LinkEnd> {
        if !writer.is_muster() {
            tracing::warn!(
                "a facilitator that is not Muster sent a challenge of Muster's; it is not answered"
            );
            return Ok(());
        }
        let signature = answer_challenge(&self.link.keypair, &challenge.nonce);
        let answer = ToFacilitator::MusterChallengeResponse(ChallengeResponse { signature });
        Ok(writer.send(encode(&answer)).await?)
    }

    pub(crate) async fn run(&mut self) -> Result<Infallible, LinkEnd> {
        loop {
            match self.socket.recv().await {
                Ok(Some(frame)) => self.on_frame(frame).await?,
                Ok(None) => return Err(LinkEnd::Closed),
                Err(error) if error.is_fatal() => return Err(error.into()),
                Err(error) => tracing::warn!(%error, "a frame of the facilitator was dropped"),
            }
        }
    }

    async fn on_frame(&mut self, frame: String) -> Result<(), LinkEnd> {
        let backend = &self.link.backend;
        match decode(&frame) {
            Ok(FromFacilitator::Job(request)) => self.take_job(*request, frame).await,
            Ok(FromFacilitator::Cheated(report)) => backend.keep_cheat_report(&report).await?,
            Ok(FromFacilitator::Cancel(request)) => {
                wait_until_stored(self.stored.clone(), self.answer_count).await;
                self.wait_for_taken_jobs().await;
                backend.cancel_job(&request).await?;
            }
            Ok(FromFacilitator::Response(response)) => {
                self.answer_count = self.answer_count.saturating_add(1);
                self.useful.store(true, Ordering::Relaxed);
                // The writer ends together with this reader, so the channel is open.
                let _ = self.answers.send(response).await;
            }
            Ok(FromFacilitator::Challenge(_)) => {
                tracing::warn!("the facilitator challenges a connection that it has accepted");
            }
            Err(error) => backend.refuse_malformed(&frame, &error).await?,
        }
        Ok(())
    }

    /// Takes a job in a task of its own.
    async fn take_job(&self, request: UserJobRequest, frame: String) {
        // The semaphore is never closed; without a permit the job would be taken all the same.
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        let backend = Arc::clone(&self.link.backend);
        let acknowledged = Box::pin(wait_until_stored(self.stored.clone(), self.answer_count));
        drop(self.link.tasks.spawn("intake", async move {
            let _slot = slot;
            if let Err(error) = backend.take_job(request, frame, acknowledged).await {
                backend.fail(error);
            }
        }));
    }

    /// Waits until every job that came before is taken.
    async fn wait_for_taken_jobs(&self) {
        drop(self.slots.acquire_many(JOBS_AT_ONCE).await);
    }
}

/// Waits until so many answers are stored. If the connection ends first, the updates without a stored answer are sent
/// again.
async fn wait_until_stored(mut stored: watch::Receiver<u64>, answer_count: u64) {
    drop(stored.wait_for(|count| *count >= answer_count).await);
}

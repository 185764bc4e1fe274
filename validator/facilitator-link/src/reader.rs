//! The reading half of a connection: greets, and hands the facilitator's orders to the validator and its answers to
//! the writer.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use muster_identity::{answer_challenge, sign_facilitator_auth};
use muster_protocol::wire::facilitator::{FromFacilitator, Response, ResponseStatus, ToFacilitator};
use muster_protocol::wire::muster::{Challenge, ChallengeResponse};
use muster_protocol::wire::{decode, encode};
use muster_subnet_view::LinkState;
use muster_websocket::{SocketReader, SocketWriter};
use tokio::sync::{mpsc, watch};

use crate::orders::FacilitatorOrder;
use crate::{FacilitatorLink, LinkEnd, describe_errors};

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
                            self.link.state.send_replace(LinkState::Connected);
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
        let order = match decode(&frame) {
            Ok(FromFacilitator::Job(request)) => FacilitatorOrder::Job {
                request,
                frame,
                acknowledged: self.all_answers_stored(),
            },
            Ok(FromFacilitator::Cheated(report)) => FacilitatorOrder::CheatReport(report),
            Ok(FromFacilitator::Cancel(request)) => FacilitatorOrder::Cancel {
                request,
                acknowledged: self.all_answers_stored(),
            },
            Ok(FromFacilitator::Response(response)) => {
                self.answer_count = self.answer_count.saturating_add(1);
                self.useful.store(true, Ordering::Relaxed);
                // The writer ends together with this reader, so the channel is open.
                let _ = self.answers.send(response).await;
                return Ok(());
            }
            Ok(FromFacilitator::Challenge(_)) => {
                tracing::warn!("the facilitator challenges a connection that it has accepted");
                return Ok(());
            }
            Err(error) => FacilitatorOrder::Malformed { frame, error },
        };
        // The validator takes orders until it stops.
        self.link.orders.send(order).await.map_err(|_| LinkEnd::Stopped)
    }

    /// Ends once every answer is stored that has come so far. If the connection ends first, the updates without a
    /// stored answer are sent again.
    fn all_answers_stored(&self) -> BoxFuture<'static, ()> {
        let (mut stored, answer_count) = (self.stored.clone(), self.answer_count);
        Box::pin(async move { drop(stored.wait_for(|count| *count >= answer_count).await) })
    }
}

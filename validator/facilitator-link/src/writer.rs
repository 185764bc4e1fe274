//! The writing half of a connection: sends status updates, heartbeats and live output, and stores the facilitator's
//! answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use muster_protocol::Feature;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::{Heartbeat, Response, ResponseStatus, ToFacilitator};
use muster_protocol::wire::muster::LiveProgress;
use muster_validator_store::Acknowledgement;
use muster_websocket::SocketWriter;
use tokio::sync::{mpsc, watch};

use crate::capacity::CapacityReports;
use crate::miners::MinerReports;
use crate::update_frame::encode_update;
use crate::update_window::UpdateWindow;
use crate::{FacilitatorLink, LinkEnd, MAX_FRAME, describe_errors};

/// How long an answer waits for others to be stored with. Answers are less urgent than the jobs whose commits they
/// would delay: an update whose answer is lost is sent again.
const STORE_DELAY: Duration = Duration::from_millis(20);

/// The pause between two looks for news of checks and refunds.
const NEWS_EVERY: Duration = Duration::from_secs(3);

pub(crate) struct LinkWriter<'a> {
    pub(crate) link: &'a FacilitatorLink,
    pub(crate) socket: &'a SocketWriter,
    pub(crate) window: UpdateWindow,
    /// From the reader.
    pub(crate) answers: mpsc::Receiver<Response>,
    /// Answers that are to be stored.
    pub(crate) unstored: Vec<Acknowledgement>,
    /// Answers received from the reader.
    pub(crate) answer_count: u64,
    /// Answers that are stored.
    pub(crate) stored: watch::Sender<u64>,
}

impl LinkWriter<'_> {
    pub(crate) async fn run(&mut self) -> Result<Infallible, LinkEnd> {
        let link = self.link;
        let is_muster = self.socket.is_muster();
        if is_muster && let Some(notice) = &link.gateway {
            let notice = ToFacilitator::MusterGateway(Box::new(notice.clone()));
            self.socket.send(encode(&notice)).await?;
        }
        let mut live = link.live_output.receiver.lock().await;
        self.send_waiting(&mut live).await?;
        let clock = Arc::clone(&link.clock);
        let sends_capacity = is_muster && self.socket.features().has(Feature::Capacity);
        let mut capacity = CapacityReports::new(clock.now());
        let sends_miners = is_muster && self.socket.features().has(Feature::Machines);
        let mut miners = MinerReports::new(clock.now());
        let sends_checks = is_muster && self.socket.features().has(Feature::CrossChecks);
        let (mut news_from, mut next_news) = (i64::MIN, clock.now());
        let mut writes = link.store.outbox_writes();
        let (mut next_beat, mut answer_by, mut store_by) = (clock.now(), None, None);
        loop {
            if let Some((after, room)) = self.window.wanted() {
                writes.borrow_and_update();
                let waited = !self.window.is_empty();
                self.send_updates(after, room).await?;
                if !waited {
                    answer_by = Some(clock.now().plus(link.answer_within));
                }
            }
            store_by = match (self.is_all_stored(), store_by) {
                (true, _) => None,
                (false, Some(by)) => Some(by),
                (false, None) => Some(clock.now().plus(STORE_DELAY)),
            };
            let deadline = answer_by.filter(|_| !self.window.is_empty());
            let too_late = OptionFuture::from(deadline.map(|by| clock.sleep_until(by)));
            let store_now = OptionFuture::from(store_by.map(|by| clock.sleep_until(by)));
            tokio::select! {
                // The reader holds the sender for as long as this future is polled.
                Some(response) = self.answers.recv() => {
                    if self.on_answer(&response)? {
                        answer_by = Some(clock.now().plus(link.answer_within));
                    }
                    if self.unstored.len() >= UpdateWindow::MUSTER {
                        self.store_answers().await?;
                    }
                }
                Some(()) = store_now => self.store_answers().await?,
                // The store holds the sender, so the channel cannot close.
                _ = writes.changed(), if !self.window.has_more() => self.window.note_write(),
                Some(()) = too_late => return Err(LinkEnd::Silent(link.answer_within)),
                // The sender lies beside the receiver, so the channel cannot close.
                Some(message) = live.recv() => self.send_live(message).await?,
                () = clock.sleep_until(capacity.next_look()), if sends_capacity => {
                    if let Some(notice) = capacity.take((link.capacity)(), clock.now()) {
                        let notice = ToFacilitator::MusterCapacity(Box::new(notice));
                        self.socket.send(encode(&notice)).await?;
                    }
                }
                () = clock.sleep_until(miners.next_look()), if sends_miners => {
                    for notice in miners.take((link.miners)().await, clock.now()) {
                        let notice = ToFacilitator::MusterMiner(Box::new(notice));
                        self.socket.send(encode(&notice)).await?;
                    }
                }
                () = clock.sleep_until(next_news), if sends_checks => {
                    for (sequence, message) in link.checks.news_after(news_from).await? {
                        self.socket.send(encode(&message)).await?;
                        news_from = sequence;
                    }
                    next_news = clock.now().plus(NEWS_EVERY);
                }
                () = clock.sleep_until(next_beat) => {
                    self.socket.send(encode(&ToFacilitator::V0Heartbeat(Heartbeat {}))).await?;
                    next_beat = clock.now().plus(link.heartbeat);
                }
            }
        }
    }

    /// Drops the output that waited while there was no connection, because it is out of date. A list of checkpoints is
    /// not, and is sent.
    async fn send_waiting(&self, live: &mut mpsc::Receiver<ToFacilitator>) -> Result<(), LinkEnd> {
        while let Ok(message) = live.try_recv() {
            if matches!(message, ToFacilitator::MusterJobCheckpoints(_)) {
                self.send_live(message).await?;
            } else {
                self.link.live_output.count_dropped();
            }
        }
        Ok(())
    }

    /// Sends a message of live output, which is not answered. Only a Muster facilitator knows it.
    async fn send_live(&self, message: ToFacilitator) -> Result<(), LinkEnd> {
        if !self.socket.is_muster() {
            return Ok(());
        }
        let features = self.socket.features();
        let message = match message {
            ToFacilitator::MusterJobQueued(_) if !features.has(Feature::Queue) => return Ok(()),
            ToFacilitator::MusterJobMetrics(_) if !features.has(Feature::Metrics) => return Ok(()),
            ToFacilitator::MusterJobMetrics(mut metrics) => {
                metrics.report.fit_to(features);
                ToFacilitator::MusterJobMetrics(metrics)
            }
            ToFacilitator::MusterJobCheckpoints(_) if !features.has(Feature::Checkpoints) => return Ok(()),
            ToFacilitator::MusterJobCheckpoints(mut list) => {
                list.fit_to(features);
                ToFacilitator::MusterJobCheckpoints(list)
            }
            // A facilitator without the feature refuses a message with a field that it does not know.
            ToFacilitator::MusterJobProgress(progress) if !features.has(Feature::Fetching) => {
                ToFacilitator::MusterJobProgress(LiveProgress {
                    layers: None,
                    ..progress
                })
            }
            message @ (ToFacilitator::V0AuthenticationRequest(_)
            | ToFacilitator::V0Heartbeat(_)
            | ToFacilitator::V0JobStatusUpdate(_)
            | ToFacilitator::V0MachineSpecsUpdate(_)
            | ToFacilitator::MusterChallengeResponse(_)
            | ToFacilitator::MusterJobLog(_)
            | ToFacilitator::MusterJobProgress(_)
            | ToFacilitator::MusterJobQueued(_)
            | ToFacilitator::MusterCapacity(_)
            | ToFacilitator::MusterMiner(_)
            | ToFacilitator::MusterJobCheck(_)
            | ToFacilitator::MusterRefund(_)
            | ToFacilitator::MusterGateway(_)) => message,
        };
        self.socket.send(encode(&message)).await?;
        Ok(())
    }

    /// Sends the oldest updates behind the number `after`, at most `room` of them.
    async fn send_updates(&mut self, after: Option<i64>, room: usize) -> Result<(), LinkEnd> {
        let updates = self.link.store.next_updates(after, room).await?;
        self.window.read(updates.len());
        for update in &updates {
            let frame = encode_update(update, self.socket.features(), MAX_FRAME);
            match self.socket.send(frame).await {
                Ok(()) => self.window.sent(update.sequence),
                Err(error) if !error.is_fatal() => {
                    // The next connection would not take it either.
                    tracing::error!(job = %update.job, %error, "a status update cannot be sent and is dropped");
                    self.window.skipped(update.sequence);
                    self.unstored.push((update.sequence, Some(error.to_string())));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes an answer; returns whether it is about an update.
    fn on_answer(&mut self, response: &Response) -> Result<bool, LinkEnd> {
        self.answer_count = self.answer_count.saturating_add(1);
        let Some(sequence) = self.window.answered() else {
            tracing::debug!(
                answer = describe_errors(response),
                "the facilitator sent an answer although no update waits for one"
            );
            return Ok(false);
        };
        let refusal = match judge(response) {
            UpdateVerdict::Taken => None,
            UpdateVerdict::NotAuthenticated => return Err(LinkEnd::Refused(describe_errors(response))),
            UpdateVerdict::Refused => {
                let answer = describe_errors(response);
                tracing::warn!(
                    sequence,
                    answer,
                    "the facilitator refused a status update; it is kept and not sent again"
                );
                Some(answer)
            }
        };
        self.unstored.push((sequence, refusal));
        Ok(true)
    }

    fn is_all_stored(&self) -> bool {
        self.unstored.is_empty() && self.answer_count == *self.stored.borrow()
    }

    async fn store_answers(&mut self) -> Result<(), LinkEnd> {
        if !self.unstored.is_empty() {
            let now = self.link.clock.now();
            self.link.store.acknowledge(&self.unstored, now).await?;
            self.unstored.clear();
        }
        self.stored.send_replace(self.answer_count);
        Ok(())
    }

    /// Stores the answers that came before the connection ended.
    pub(crate) async fn store_last_answers(&mut self) -> Result<(), LinkEnd> {
        while let Ok(response) = self.answers.try_recv() {
            if self.on_answer(&response).is_err() {
                break;
            }
        }
        self.store_answers().await
    }
}

/// The meaning of an answer to a status update.
#[derive(Debug, PartialEq, Eq)]
enum UpdateVerdict {
    /// The facilitator has the status, now or from before.
    Taken,
    /// The facilitator did not look at the status, since it does not know this validator.
    NotAuthenticated,
    /// The facilitator refuses the status, and would refuse it again.
    Refused,
}

fn judge(response: &Response) -> UpdateVerdict {
    let has_error = |kind: &str| response.errors.iter().any(|error| error.r#type.starts_with(kind));
    match response.status {
        ResponseStatus::Success => UpdateVerdict::Taken,
        ResponseStatus::Error if has_error("auth.") => UpdateVerdict::NotAuthenticated,
        ResponseStatus::Error if has_error("job.integrity_error") => UpdateVerdict::Taken,
        ResponseStatus::Error => UpdateVerdict::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_or_refuses_the_status_or_does_not_know_the_validator() {
        let error = |kind| Response::error(kind, "no", "");
        assert_eq!(judge(&Response::success()), UpdateVerdict::Taken);
        assert_eq!(judge(&error("job.integrity_error")), UpdateVerdict::Taken);
        assert_eq!(judge(&error("job.not_found")), UpdateVerdict::Refused);
        assert_eq!(judge(&error("union_tag_invalid")), UpdateVerdict::Refused);
        assert_eq!(
            judge(&error("auth.not_authenticated")),
            UpdateVerdict::NotAuthenticated
        );
        assert_eq!(describe_errors(&error("job.not_found")), "job.not_found: no");
    }
}

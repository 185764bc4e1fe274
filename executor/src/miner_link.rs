//! The line from one lease to its miner, which outlives its connections.
//!
//! When a connection is lost the attempt goes on. The link dials again, shows the secret that the miner gave it, and
//! repeats every report of the attempt; the miner takes a repetition without effect. An attempt whose miner does not
//! take it back in time is lost. A miner that does not know how to take executors back gets no second connection.

mod returning;

use std::sync::Arc;
use std::time::Duration;

use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::wire::executor::LeaseHeld;
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::{AttemptId, ErrorCode, Feature, Timestamp};
use muster_websocket::SocketError;
use muster_websocket::session::Sender;
use tokio::sync::watch;

pub(crate) use self::returning::{ReturnPath, SharedLine};
use self::returning::{ReturnTicket, Returning};
use crate::journal::{JobOrigin, Journal, JournaledJob, JournaledState, StateToNote};
use crate::lease_connection::{LeaseConnection, Miner, Received};

/// How long before the miner gives a lease up its attempt ends, at most: both may notice the loss at different times.
const END_BEFORE: Duration = Duration::from_secs(10);

/// Sends messages that are no reports: each on the connection of the moment. Clones share the link.
#[derive(Clone)]
pub(crate) struct MinerOutlet(watch::Receiver<Option<Sender<Miner>>>);

/// The attempt has ended, and its link with it.
#[derive(Debug)]
pub(crate) struct LinkClosed;

/// The line of one lease.
pub(crate) struct MinerLink {
    attempt: AttemptId,
    line: LeaseLine,
    /// How a lost connection is replaced.
    path: ReturnPath,
    /// The miner's terms of a return; `None` if the executor cannot return.
    held: Option<LeaseHeld>,
    /// Every report, in order.
    reports: Vec<ExecutorToMiner>,
    /// How many of them were sent over the connection of the moment.
    sent: usize,
    /// When the executor got the job.
    job_since: Option<Timestamp>,
    /// How long the attempt goes on without a miner, as the operator of this executor set it.
    orphan: Duration,
    outlet: watch::Sender<Option<Sender<Miner>>>,
    muster: bool,
    /// By which another process goes on; `None` before the program is started.
    journal: Option<Journal>,
    /// The last report is the end of the attempt.
    over: bool,
    clock: SharedClock,
}

/// The connection of the moment.
enum LeaseLine {
    Open(LeaseConnection),
    /// There is none; a new one is being made.
    Away {
        returning: Returning,
        until: Timestamp,
    },
}

// === impl MinerLink ===

impl MinerLink {
    /// A link over the first connection of a lease.
    pub(crate) fn new(
        attempt: AttemptId,
        connection: LeaseConnection,
        path: ReturnPath,
        orphan: Duration,
        clock: SharedClock,
    ) -> Self {
        let (outlet, _) = watch::channel(Some(connection.sender()));
        Self {
            attempt,
            muster: connection.is_muster(),
            line: LeaseLine::Open(connection),
            path,
            held: None,
            reports: Vec::new(),
            sent: 0,
            job_since: None,
            orphan,
            outlet,
            journal: None,
            over: false,
            clock,
        }
    }

    /// The link of an attempt that another process began: there is no connection, and one is being made.
    pub(crate) fn returning(
        job: &JournaledJob,
        journal: Journal,
        state: JournaledState,
        path: ReturnPath,
        orphan: Duration,
        clock: SharedClock,
    ) -> Self {
        let ticket = ReturnTicket {
            held: state.held.clone(),
            job_since: Some(job.job_since),
            clock: Arc::clone(&clock),
        };
        let (outlet, _) = watch::channel(None);
        Self {
            attempt: job.token.attempt(),
            line: LeaseLine::Away {
                returning: path.dial(ticket),
                until: clock.now().plus(time_alone(orphan, Some(&state.held))),
            },
            path,
            held: Some(state.held),
            reports: state.reports,
            sent: 0,
            job_since: Some(job.job_since),
            orphan,
            outlet,
            // Only a Muster miner holds leases.
            muster: true,
            journal: Some(journal),
            over: state.over,
            clock,
        }
    }

    /// Where the job came from.
    pub(crate) fn origin(&self) -> JobOrigin {
        self.path.origin()
    }

    /// When the executor got the job.
    pub(crate) fn job_since(&self) -> Option<Timestamp> {
        self.job_since
    }

    /// How long the attempt goes on without a miner, or without a process.
    pub(crate) fn orphan(&self) -> Duration {
        time_alone(self.orphan, self.held.as_ref())
    }

    /// Takes the miner's terms of a return, which bound how long the attempt goes on without it.
    fn hold(&mut self, held: LeaseHeld) {
        let (own, bound) = (
            self.orphan.as_secs(),
            time_alone(self.orphan, Some(&held)).as_secs(),
        );
        if bound < own && self.held.is_none() {
            let (code, reattach_s) = (ErrorCode::OrphanBeyondLease, held.reattach_s);
            tracing::error!(%code, orphan_s = own, reattach_s, bound, "orphan_s is not below the miner's reattach_s");
        }
        self.held = Some(held);
        self.note();
    }

    /// Whether another process may go on with the attempt.
    pub(crate) fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Whether the miner keeps the lease while the connection is lost.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Keeps the journal from now on.
    pub(crate) fn keep_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
        self.note();
    }

    /// Adds the last reports to the journal, which then needs no container any more. They are sent with the next report
    /// or receipt.
    pub(crate) fn note_end(&mut self, messages: Vec<ExecutorToMiner>) {
        self.reports.extend(messages);
        self.over = true;
        self.note();
    }

    /// Writes the journal. A disk that fails costs the journal: no other process can take the job over then.
    fn note(&mut self) {
        let (Some(journal), Some(held)) = (&self.journal, &self.held) else {
            return;
        };
        let state = StateToNote {
            held,
            reports: &self.reports,
            over: self.over,
        };
        if let Err(error) = journal.note(&state) {
            tracing::warn!(%error, "the journal of the job cannot be written");
        }
    }

    /// Whether the miner showed that it is Muster.
    pub(crate) fn is_muster(&self) -> bool {
        self.muster
    }

    /// A sender of messages that are no reports.
    pub(crate) fn outlet(&self) -> MinerOutlet {
        MinerOutlet(self.outlet.subscribe())
    }

    /// Notes that the executor has the job from now on.
    pub(crate) fn note_job(&mut self) {
        self.job_since.get_or_insert_with(|| self.clock.now());
    }

    /// Adds a report, which the next receipt sends.
    pub(crate) fn queue_report(&mut self, message: ExecutorToMiner) {
        self.reports.push(message);
        self.note();
    }

    /// Adds a report, and sends it if there is a connection. A connection that fails shows at the next receipt.
    pub(crate) async fn report(&mut self, message: ExecutorToMiner) {
        self.queue_report(message);
        self.flush().await;
    }

    /// The next message, or the end of the link. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Received {
        loop {
            self.flush().await;
            match &mut self.line {
                LeaseLine::Open(connection) => match connection.recv().await {
                    Received::Message(MinerToExecutor::MusterLeaseHeld(held))
                        if held.job_uuid == self.attempt =>
                    {
                        self.hold(held);
                    }
                    Received::Lost(reason) => match self.ticket() {
                        Some(ticket) => self.go_away(ticket, &reason),
                        None => return Received::Lost(reason),
                    },
                    received @ (Received::Message(_) | Received::Malformed(_) | Received::Ignorable(_)) => {
                        return received;
                    }
                },
                LeaseLine::Away { returning, until } => {
                    let back = tokio::select! {
                        back = returning => back,
                        () = self.clock.sleep_until(*until) => {
                            let waited = time_alone(self.orphan, self.held.as_ref()).as_secs();
                            return Received::Lost(format!("it did not take the job back within {waited} s"));
                        }
                    };
                    match back {
                        Ok((connection, held)) => self.come_back(connection, held),
                        Err(reason) => {
                            return Received::Message(MinerToExecutor::MusterCancelJob(CancelJob {
                                job_uuid: self.attempt,
                                reason,
                            }));
                        }
                    }
                }
            }
        }
    }

    /// Waits until the miner has stored the last report, as long as it may be reached. Then closes the connection.
    ///
    /// # Errors
    /// The miner was lost before it had the last report; the text gives the reason.
    pub(crate) async fn finish(mut self) -> Result<(), String> {
        let stored = if self.held.is_some() {
            self.await_stored().await
        } else {
            self.flush().await;
            let all_sent = self.sent == self.reports.len();
            all_sent
                .then_some(())
                .ok_or_else(|| "its connection broke".to_owned())
        };
        match self.line {
            LeaseLine::Open(connection) => connection.close().await,
            LeaseLine::Away { .. } => {}
        }
        stored
    }

    /// Closes the link of an attempt that ends without a report.
    pub(crate) async fn close(self) {
        match self.line {
            LeaseLine::Open(connection) => connection.close().await,
            LeaseLine::Away { .. } => {}
        }
    }

    async fn await_stored(&mut self) -> Result<(), String> {
        let until = self.clock.now().plus(self.orphan());
        let clock = Arc::clone(&self.clock);
        loop {
            let received = tokio::select! {
                received = self.recv() => received,
                () = clock.sleep_until(until) => return Err("it did not confirm the last report".to_owned()),
            };
            match received {
                Received::Message(MinerToExecutor::MusterEndStored(stored))
                    if stored.job_uuid == self.attempt =>
                {
                    return Ok(());
                }
                // The lease has ended there, with this report or without it.
                Received::Message(MinerToExecutor::MusterCancelJob(cancel))
                    if cancel.job_uuid == self.attempt =>
                {
                    return Ok(());
                }
                Received::Lost(reason) => return Err(reason),
                Received::Message(_) | Received::Malformed(_) | Received::Ignorable(_) => {}
            }
        }
    }

    /// Sends the reports that the connection of the moment has not seen. Cancelled in the middle, it may send one of
    /// them again.
    async fn flush(&mut self) {
        let LeaseLine::Open(connection) = &self.line else {
            return;
        };
        while let Some(report) = self.reports.get(self.sent) {
            if let Err(error) = connection.send(report).await {
                tracing::debug!(error = %Causes(&error), "a report could not be sent");
                return;
            }
            self.sent += 1;
        }
        // Other messages follow the reports: the miner would refuse them before.
        let sender = connection.sender();
        self.outlet.send_if_modified(|outlet| {
            let opened = outlet.is_none();
            outlet.get_or_insert(sender);
            opened
        });
    }

    fn ticket(&self) -> Option<ReturnTicket> {
        Some(ReturnTicket {
            held: self.held.clone()?,
            job_since: self.job_since,
            clock: Arc::clone(&self.clock),
        })
    }

    fn go_away(&mut self, ticket: ReturnTicket, reason: &str) {
        tracing::warn!(reason, "the miner was lost; the job goes on");
        self.outlet.send_replace(None);
        self.line = LeaseLine::Away {
            returning: self.path.dial(ticket),
            until: self.clock.now().plus(self.orphan()),
        };
    }

    fn come_back(&mut self, connection: LeaseConnection, held: LeaseHeld) {
        tracing::info!(epoch = held.epoch, "the miner has taken the job back");
        self.held = Some(held);
        self.sent = 0;
        self.line = LeaseLine::Open(connection);
        self.note();
    }
}

/// How long an attempt goes on alone: as its operator set it, and so much less than the miner keeps its lease that the
/// program has ended before the miner asks another executor.
fn time_alone(own: Duration, held: Option<&LeaseHeld>) -> Duration {
    let Some(held) = held else {
        return own;
    };
    let kept = Duration::from_secs(held.reattach_s);
    own.min(kept.saturating_sub(END_BEFORE.min(kept / 5)))
}

/// Sends a message, unless the miner does not know it.
async fn send_known(sender: &Sender<Miner>, message: &ExecutorToMiner) -> Result<(), SocketError> {
    let is_metrics = matches!(message, ExecutorToMiner::MusterJobMetrics(_));
    let is_proofs = matches!(message, ExecutorToMiner::MusterSessionProofs(_));
    let is_checkpoint = matches!(message, ExecutorToMiner::MusterCheckpoint(_));
    let features = sender.features();
    if is_checkpoint && !features.has(Feature::Checkpoints) {
        return Ok(());
    }
    if (is_metrics && !features.has(Feature::Metrics)) || (is_proofs && !features.has(Feature::Audits)) {
        return Ok(());
    }
    if let ExecutorToMiner::MusterJobMetrics(metrics) = message
        && !metrics.report.fits(features)
    {
        let mut known = metrics.clone();
        known.report.fit_to(features);
        return sender.send(&ExecutorToMiner::MusterJobMetrics(known)).await;
    }
    sender.send(message).await
}

// === impl MinerOutlet ===

impl MinerOutlet {
    /// Sends one message, over the next connection if the one of the moment fails. A message may arrive twice. A
    /// message that the miner does not know is left out.
    pub(crate) async fn send(&mut self, message: &ExecutorToMiner) -> Result<(), LinkClosed> {
        loop {
            let sender = self.0.borrow_and_update().clone();
            if let Some(sender) = sender
                && send_known(&sender, message).await.is_ok()
            {
                return Ok(());
            }
            self.changed().await?;
        }
    }

    /// Sends one message over the connection of the moment; not at all if there is none that takes it.
    pub(crate) async fn try_send(&self, message: &ExecutorToMiner) {
        let sender = self.0.borrow().clone();
        if let Some(sender) = sender {
            // The message is one whose loss changes nothing.
            let _ = send_known(&sender, message).await;
        }
    }

    /// Waits until a connection is lost or made.
    pub(crate) async fn changed(&mut self) -> Result<(), LinkClosed> {
        self.0.changed().await.map_err(|_| LinkClosed)
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::executor::OneTimeSecret;

    use super::*;

    #[test]
    fn an_attempt_alone_ends_before_its_miner_gives_the_lease_up() {
        let held = |reattach_s| LeaseHeld {
            job_uuid: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            epoch: 1,
            secret: OneTimeSecret::from_bytes([7; 32]),
            reattach_s,
        };
        let alone =
            |own, kept: Option<u64>| time_alone(Duration::from_secs(own), kept.map(held).as_ref()).as_secs();
        assert_eq!(alone(120, Some(150)), 120, "the defaults");
        assert_eq!(alone(3_600, Some(150)), 140);
        assert_eq!(alone(120, Some(120)), 110);
        assert_eq!(alone(120, Some(5)), 4);
        assert_eq!(alone(120, Some(0)), 0);
        assert_eq!(alone(120, None), 120, "a miner that keeps no lease");
    }
}

//! The server for persistent executors: they enroll here once, and then each keeps one connection for all of its
//! leases.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_enrollment::{EnrolledExecutor, ExecutorRegistry, RegistryError};
use muster_process::error::Causes;
use muster_protocol::wire::executor::{EnrolExecutor, ExecutorEnrolled, ExecutorHello, Reattach};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor, decode_from_executor};
use muster_protocol::wire::muster::{ListedImage, WhitelistNotice};
use muster_protocol::wire::{WireError, encode};
use muster_protocol::{AttemptId, Digest, ExecutorClass};
use muster_websocket::session::Sender;
use muster_websocket::tls::Callers;
use muster_websocket::{CloseCode, Greeting, PeerSession, SessionError, Socket};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{AssignedLease, ExecutorPool, PoolMembership};
use crate::executor_session::{
    ExecutorPeer, Frame, cancel_frame, draw_secret, error_frame, note_metrics, read_report, reattached,
};
use crate::lease_table::{DialId, Event};
use crate::miner_state::MinerState;
use crate::session_queues::{Attachment, DispatcherInput, Outgoing, OutgoingQueue, outbox};

/// The interval between two checks that a connected executor is still registered.
const CHECK: Duration = Duration::from_secs(5);
/// How long an executor may take to clear up after a lease before its connection is cut.
const CLEAR_UP: Duration = Duration::from_secs(90);
/// The most jobs to which an executor may come back.
const MAX_RETURNING: usize = 256;

/// The server of the port on which persistent executors connect.
pub struct PersistentServer {
    /// The state that every session shares.
    pub context: Arc<MinerState>,
    /// The connected executors.
    pub pool: ExecutorPool,
    /// The enrolled executors.
    pub roll: ExecutorRegistry,
}

/// How a lease ended on an executor.
enum LeaseClosing {
    /// It is free again.
    Over(AttemptId),
    /// It does not clear up.
    Stuck(AttemptId),
}

/// A lease that this connection serves.
struct OpenLease {
    dial: DialId,
    /// The executor has cleared up.
    cleared: CancellationToken,
    /// The executor came back to it from an earlier connection.
    from_before: bool,
}

impl Callers for PersistentServer {
    async fn admits(&self, certificate: Digest) -> bool {
        let (roll, now) = (self.roll.clone(), self.context.clock.now());
        let look = move || Ok(roll.find(certificate)?.is_some() || roll.has_valid_token(now)?);
        blocking(look).await.unwrap_or_else(|error| {
            tracing::error!(error = %Causes(&error), "the registry cannot be read, so no executor is admitted");
            false
        })
    }

    async fn serve(&self, socket: Socket, certificate: Digest) {
        let ip = socket.peer().ip();
        let mut greeting = Greeting::new(socket);
        let first = timeout(self.context.limits.handshake, greeting.receive()).await;
        let Ok(Ok(Some(first))) = first else { return };
        let refusal = match decode_from_executor(&first) {
            Ok(ExecutorToMiner::MusterEnrolExecutor(request)) => {
                match self.enroll(request, certificate).await {
                    Ok(member) => {
                        tracing::info!(name = member.name, %certificate, class = %member.class, "a persistent executor is enrolled");
                        let class = member.class;
                        let enrolled = encode(&MinerToExecutor::MusterExecutorEnrolled(ExecutorEnrolled {
                            class,
                        }));
                        return greeting.refuse(Some(enrolled), CloseCode::Normal).await;
                    }
                    Err(error) => error.to_string(),
                }
            }
            Ok(ExecutorToMiner::MusterExecutorHello(hello)) => {
                match self.find_member(&hello, certificate).await {
                    Ok(member) => return self.attend(greeting, hello, member, certificate, ip).await,
                    Err(refusal) => refusal,
                }
            }
            Ok(_) => "a persistent executor begins with MusterExecutorHello".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(%certificate, refusal, "a persistent executor was refused");
        greeting
            .refuse(Some(error_frame(refusal)), CloseCode::Policy)
            .await;
    }
}

impl PersistentServer {
    async fn enroll(
        &self,
        request: EnrolExecutor,
        certificate: Digest,
    ) -> Result<EnrolledExecutor, RegistryError> {
        let (roll, now) = (self.roll.clone(), self.context.clock.now());
        blocking(move || roll.enroll(&request.secret, certificate, &request.name, now)).await
    }

    async fn find_member(
        &self,
        hello: &ExecutorHello,
        certificate: Digest,
    ) -> Result<EnrolledExecutor, String> {
        let roll = self.roll.clone();
        let found = blocking(move || roll.find(certificate)).await;
        let member = found
            .map_err(|error| error.to_string())?
            .ok_or("this miner does not know the executor's certificate; enroll it")?;
        if hello.class != member.class {
            return Err(format!(
                "the executor is enrolled for class {}, not {}",
                member.class, hello.class
            ));
        }
        if !(1..=member.capacity).contains(&hello.capacity) {
            return Err(format!(
                "the executor may run 1 to {} jobs at once, not {}",
                member.capacity, hello.capacity
            ));
        }
        Ok(member)
    }

    async fn is_registered(&self, certificate: Digest) -> bool {
        let roll = self.roll.clone();
        // A disk that fails for a moment is no reason to drop jobs.
        blocking(move || roll.find(certificate))
            .await
            .map_or(true, |found| found.is_some())
    }

    async fn attend(
        &self,
        greeting: Greeting,
        hello: ExecutorHello,
        member: EnrolledExecutor,
        certificate: Digest,
        ip: IpAddr,
    ) {
        tracing::info!(name = member.name, class = %hello.class, capacity = hello.capacity, version = hello.version, "a persistent executor connected");
        let session = greeting.accept(ExecutorPeer);
        let features = session.features();
        let (seat, orders) = self.pool.join(
            &member.name,
            hello.class,
            hello.capacity,
            hello.busy.min(hello.capacity),
            features,
        );
        let visit = ExecutorSession {
            server: self,
            name: &member.name,
            class: hello.class,
            certificate,
            ip: ip.to_string(),
            open: HashMap::new(),
            from_before: hello.busy.min(hello.capacity),
            may_return: usize::try_from(hello.busy).map_or(MAX_RETURNING, |busy| busy.min(MAX_RETURNING)),
            work: FuturesUnordered::new(),
        };
        let why = visit.run(session, seat, orders).await;
        tracing::info!(name = member.name, why, "a persistent executor disconnected");
    }
}

/// One connection of a persistent executor.
struct ExecutorSession<'a> {
    server: &'a PersistentServer,
    name: &'a str,
    class: ExecutorClass,
    certificate: Digest,
    ip: String,
    open: HashMap<AttemptId, OpenLease>,
    /// Jobs of an earlier connection that still take a place of the executor.
    from_before: u32,
    /// Jobs to which the executor may come back at a time: as many as it stated, which may be more than it may run now.
    may_return: usize,
    work: FuturesUnordered<BoxFuture<'static, LeaseClosing>>,
}

impl ExecutorSession<'_> {
    /// Serves the connection to its end and returns the reason for the end.
    async fn run(
        mut self,
        session: PeerSession<ExecutorPeer>,
        seat: PoolMembership,
        mut orders: tokio::sync::mpsc::UnboundedReceiver<AssignedLease>,
    ) -> String {
        let (mut receiver, sender) = session.split();
        let context = Arc::clone(&self.server.context);
        let mut check = context.clock.now().plus(CHECK);
        let mut shelf = self.server.pool.watch_whitelist();
        if !shelf.borrow().is_empty() {
            // The whitelists that were published before are news to it.
            shelf.mark_changed();
        }
        let (code, why) = loop {
            tokio::select! {
                Ok(()) = shelf.changed() => {
                    let images = shelf.borrow_and_update().clone();
                    send_whitelist(images, self.class, &sender).await;
                }
                () = context.hangup.cancelled() => break (CloseCode::Normal, "the miner stops".to_owned()),
                Some(assigned) = orders.recv() => {
                    seat.serve(assigned.order.token.attempt());
                    self.begin(assigned, sender.clone());
                }
                Some(closing) = self.work.next() => match closing {
                    LeaseClosing::Over(attempt) => {
                        self.open.remove(&attempt);
                        seat.leave(attempt);
                    }
                    LeaseClosing::Stuck(attempt) => break (CloseCode::Policy, format!("it does not clear up after attempt {attempt}")),
                },
                heard = receiver.recv() => match heard {
                    Ok(None) => break (CloseCode::Normal, "it closed its connection".to_owned()),
                    Ok(Some(message)) => if let Err(details) = self.take(message, &seat, &sender).await {
                        // The next read notices a peer that cannot be reached.
                        let _ = sender.send(&Frame(error_frame(details).into())).await;
                    },
                    Err(error) if error.is_fatal() => break (CloseCode::Normal, Causes(&error).to_string()),
                    Err(error) => {
                        let details = format!("Malformed message: {}", malformed(&error));
                        let _ = sender.send(&Frame(error_frame(details).into())).await;
                    }
                },
                () = context.clock.sleep_until(check) => {
                    check = context.clock.now().plus(CHECK);
                    if !self.server.is_registered(self.certificate).await {
                        break (CloseCode::Policy, "the operator removed it from the registry".to_owned());
                    }
                }
            }
        };
        for (attempt, open) in &self.open {
            let (dial, attempt) = (open.dial, *attempt);
            context.inbox.send(Event::ExecutorGone { dial, attempt }).await;
        }
        context.machines.remove(self.name);
        drop(seat);
        sender.close(code, &why).await;
        why
    }

    /// The executor comes back to a lease of an earlier connection.
    fn take_back(&mut self, back: Reattach, sender: Sender<ExecutorPeer>) {
        let attempt = back.job_uuid;
        let lease = self.open_lease(attempt, true, sender);
        self.work.push(Box::pin(lease.run_returning(back)));
    }

    fn begin(&mut self, assigned: AssignedLease, sender: Sender<ExecutorPeer>) {
        let lease = self.open_lease(assigned.order.token.attempt(), false, sender);
        self.work.push(Box::pin(lease.run(assigned)));
    }

    fn open_lease(
        &mut self,
        attempt: AttemptId,
        from_before: bool,
        sender: Sender<ExecutorPeer>,
    ) -> LeaseRunner {
        let context = Arc::clone(&self.server.context);
        let open = OpenLease {
            dial: DialId(context.number()),
            cleared: CancellationToken::new(),
            from_before,
        };
        let lease = LeaseRunner {
            dial: open.dial,
            ip: self.ip.clone(),
            cleared: open.cleared.clone(),
            sender,
            context,
        };
        self.open.insert(attempt, open);
        lease
    }

    /// Handles a message of the executor; an error is sent back to it.
    async fn take(
        &mut self,
        message: ExecutorToMiner,
        seat: &PoolMembership,
        sender: &Sender<ExecutorPeer>,
    ) -> Result<(), String> {
        if let ExecutorToMiner::MusterExecutorMetrics(metrics) = &message {
            note_metrics(self.name, metrics);
            let context = &self.server.context;
            context
                .machines
                .note(self.name, self.class, metrics, context.clock.now());
            return Ok(());
        }
        let attempt = message.attempt().ok_or("the message names no attempt")?;
        if let ExecutorToMiner::MusterReattach(back) = message {
            let back_already = self.open.values().filter(|open| open.from_before).count();
            if back_already >= self.may_return || self.open.contains_key(&attempt) {
                let details = "the executor stated no further job when it connected".to_owned();
                let cancel = Frame(cancel_frame(attempt, details).into());
                // The next read notices an executor that cannot be reached.
                let _ = sender.send(&cancel).await;
                return Ok(());
            }
            seat.serve(attempt);
            self.take_back(back, sender.clone());
            return Ok(());
        }
        let from_before = self.open.get(&attempt).is_none_or(|open| open.from_before);
        if matches!(message, ExecutorToMiner::MusterLeaseOver(_)) && from_before && self.from_before > 0 {
            self.from_before -= 1;
            seat.free_one();
        }
        let Some(open) = self.open.get(&attempt) else {
            return Err(format!("attempt {attempt} is not served on this connection"));
        };
        let dial = open.dial;
        let context = &self.server.context;
        if let ExecutorToMiner::MusterLeaseOver(_) = message {
            // After a last message this changes nothing; without one the attempt ends with it.
            context.inbox.send(Event::ExecutorGone { dial, attempt }).await;
            open.cleared.cancel();
            return Ok(());
        }
        if let ExecutorToMiner::MusterSessionProofs(told) = &message {
            context.note_proofs(told).await;
            return Ok(());
        }
        let report = read_report(message, attempt, &self.ip, context)
            .map_err(|kind| format!("{kind} is not an executor's to send"))?;
        let report = Box::new(report);
        context
            .inbox
            .send(Event::Said {
                dial,
                attempt,
                report,
            })
            .await;
        Ok(())
    }
}

/// The dispatcher's answer to an executor: admitted, refused with a reason, or none because the miner has stopped.
type Verdict = Result<Result<(), String>, oneshot::error::RecvError>;

/// One lease on a persistent executor's connection.
struct LeaseRunner {
    dial: DialId,
    ip: String,
    cleared: CancellationToken,
    sender: Sender<ExecutorPeer>,
    context: Arc<MinerState>,
}

impl LeaseRunner {
    async fn run(self, assigned: AssignedLease) -> LeaseClosing {
        let AssignedLease {
            order,
            stop,
            over,
            begun,
        } = assigned;
        let attempt = order.token.attempt();
        let event = Event::Dialled {
            dial: self.dial,
            token: order.token,
            executor_ip: Some(self.ip.clone()),
            // It runs no more jobs than its own capacity, whatever they are at.
            apart: false,
            features: self.sender.features(),
            secret: draw_secret(),
        };
        let (admitted, outgoings) = self.dial(event).await;
        match admitted {
            Ok(Ok(())) => begun.cancel(),
            Ok(Err(details)) => {
                // The lease is already over.
                let _ = over.send(details);
                return LeaseClosing::Over(attempt);
            }
            Err(_) => return LeaseClosing::Over(attempt),
        }
        self.pass_orders(attempt, outgoings).await;
        let cleared = tokio::select! {
            () = self.cleared.cancelled() => true,
            () = async { stop.cancelled().await; self.context.clock.sleep(CLEAR_UP).await } => false,
        };
        let _ = over.send("it is free again".to_owned());
        if cleared {
            LeaseClosing::Over(attempt)
        } else {
            LeaseClosing::Stuck(attempt)
        }
    }

    /// Serves a lease to which the executor comes back.
    async fn run_returning(self, back: Reattach) -> LeaseClosing {
        let attempt = back.job_uuid;
        let (admitted, outgoings) = self.dial(reattached(self.dial, back)).await;
        match admitted {
            Ok(Ok(())) => tracing::info!(%attempt, "a persistent executor came back to its lease"),
            Ok(Err(details)) => {
                tracing::warn!(%attempt, details, "a persistent executor may not come back to its lease");
                let cancel = Frame(cancel_frame(attempt, details).into());
                // The next read notices an executor that cannot be reached.
                let _ = self.sender.send(&cancel).await;
            }
            Err(_) => return LeaseClosing::Over(attempt),
        }
        self.pass_orders(attempt, outgoings).await;
        tokio::select! {
            () = self.cleared.cancelled() => LeaseClosing::Over(attempt),
            () = self.context.clock.sleep(CLEAR_UP) => LeaseClosing::Stuck(attempt),
        }
    }

    /// Asks the dispatcher to admit the executor.
    async fn dial(&self, event: Event) -> (Verdict, OutgoingQueue) {
        let (outbox, outgoings) = outbox();
        let (verdict, admitted) = oneshot::channel();
        let features = self.sender.features();
        let attachment = Attachment::Executor {
            outbox,
            muster: true,
            features,
            verdict,
        };
        self.context
            .inbox
            .send(DispatcherInput { event, attachment })
            .await;
        (admitted.await, outgoings)
    }

    /// Passes the miner's orders on until the lease has ended.
    async fn pass_orders(&self, attempt: AttemptId, mut outgoings: OutgoingQueue) {
        while let Some(outgoing) = outgoings.recv().await {
            match outgoing {
                Outgoing::Frame(frame) => {
                    if let Err(error) = self.sender.send(&Frame(frame)).await {
                        tracing::debug!(%attempt, error = %Causes(&error), "an executor cannot be told");
                    }
                }
                // Histories and receipts are for validators.
                Outgoing::History(_) | Outgoing::Receipt(..) => {}
            }
        }
    }
}

/// Sends the listed images of an executor's class.
async fn send_whitelist(mut images: Vec<ListedImage>, class: ExecutorClass, sender: &Sender<ExecutorPeer>) {
    images.retain(|listed| listed.class == class);
    let notice = encode(&MinerToExecutor::MusterWhitelist(WhitelistNotice { images }));
    // The next read notices a peer that cannot be reached.
    let _ = sender.send(&Frame(notice.into())).await;
}

fn malformed(error: &SessionError<WireError>) -> String {
    match error {
        SessionError::Malformed(error) => error.reason.clone(),
        SessionError::Socket(error) => error.to_string(),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, RegistryError> {
    spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(RegistryError::File {
            path: "roll".into(),
            source: std::io::Error::other(error),
        })
    })
}

//! Where standing executors come in: they enrol here once, and then each keeps one connection for all of its leases.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_enrollment::{Member, Roll, RollError};
use muster_process::error::Causes;
use muster_protocol::wire::executor::{EnrolExecutor, ExecutorEnrolled, ExecutorHello};
use muster_protocol::wire::miner::{FromMiner, ToMiner};
use muster_protocol::wire::muster::{ListedImage, WhitelistNotice};
use muster_protocol::wire::{WireError, decode, encode};
use muster_protocol::{AttemptId, Digest, ExecutorClass};
use muster_websocket::session::Sender;
use muster_websocket::tls::Callers;
use muster_websocket::{Greeting, Session, SessionError, Socket};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Assigned, Attendance, Pool};
use crate::book::{DialId, Event};
use crate::context::Context;
use crate::executors::{ExecutorPeer, Frame, error_frame, note_metrics, report};
use crate::queues::{Attachment, Input, Outgoing, outbox};

/// How often it is looked whether a connected executor is still on the roll.
const CHECK: Duration = Duration::from_secs(5);
/// How long an executor may take to clear up after a lease before its connection is cut.
const CLEAR_UP: Duration = Duration::from_secs(90);
const NORMAL: u16 = 1000;
/// The websocket's word for "you may not".
const POLICY: u16 = 1008;

/// The door.
pub struct Door {
    /// What every session shares.
    pub context: Arc<Context>,
    /// Who is in.
    pub pool: Pool,
    /// Who may come in.
    pub roll: Roll,
}

/// How a lease ended on an executor.
enum Closing {
    /// It is free again.
    Over(AttemptId),
    /// It does not clear up.
    Stuck(AttemptId),
}

/// A lease that this connection serves.
struct Open {
    dial: DialId,
    /// The executor has cleared up.
    cleared: CancellationToken,
}

impl Callers for Door {
    async fn admits(&self, certificate: Digest) -> bool {
        let (roll, now) = (self.roll.clone(), self.context.clock.now());
        let look = move || Ok(roll.find(certificate)?.is_some() || roll.expects_anyone(now)?);
        blocking(look).await.unwrap_or_else(|error| {
            tracing::error!(error = %Causes(&error), "nobody is admitted");
            false
        })
    }

    async fn serve(&self, socket: Socket, certificate: Digest) {
        let ip = socket.peer().ip();
        let mut greeting = Greeting::new(socket);
        let first = timeout(self.context.limits.handshake, greeting.receive()).await;
        let Ok(Ok(Some(first))) = first else { return };
        let refusal = match decode::<FromMiner>(&first) {
            Ok(FromMiner::MusterEnrolExecutor(request)) => match self.enrol(request, certificate).await {
                Ok(member) => {
                    tracing::info!(name = member.name, %certificate, class = %member.class, "a standing executor is enrolled");
                    let class = member.class;
                    let enrolled = encode(&ToMiner::MusterExecutorEnrolled(ExecutorEnrolled { class }));
                    return greeting.refuse(Some(enrolled), NORMAL).await;
                }
                Err(error) => error.to_string(),
            },
            Ok(FromMiner::MusterExecutorHello(hello)) => match self.known(&hello, certificate).await {
                Ok(member) => return self.attend(greeting, hello, member, certificate, ip).await,
                Err(refusal) => refusal,
            },
            Ok(_) => "a standing executor begins with MusterExecutorHello".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(%certificate, refusal, "a standing executor was refused");
        greeting.refuse(Some(error_frame(refusal)), POLICY).await;
    }
}

impl Door {
    async fn enrol(&self, request: EnrolExecutor, certificate: Digest) -> Result<Member, RollError> {
        let (roll, now) = (self.roll.clone(), self.context.clock.now());
        blocking(move || roll.enrol(&request.secret, certificate, &request.name, now)).await
    }

    async fn known(&self, hello: &ExecutorHello, certificate: Digest) -> Result<Member, String> {
        let roll = self.roll.clone();
        let found = blocking(move || roll.find(certificate)).await;
        let member = found
            .map_err(|error| error.to_string())?
            .ok_or("this miner does not know the executor's certificate; enrol it")?;
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

    async fn is_on_the_roll(&self, certificate: Digest) -> bool {
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
        member: Member,
        certificate: Digest,
        ip: IpAddr,
    ) {
        tracing::info!(name = member.name, class = %hello.class, capacity = hello.capacity, version = hello.version, "a standing executor is there");
        let session = greeting.accept(ExecutorPeer);
        let (seat, orders) = self.pool.join(hello.class, hello.capacity);
        let visit = Visit {
            door: self,
            name: &member.name,
            class: hello.class,
            certificate,
            ip: ip.to_string(),
            open: HashMap::new(),
            work: FuturesUnordered::new(),
        };
        let why = visit.run(session, seat, orders).await;
        tracing::info!(name = member.name, why, "a standing executor is gone");
    }
}

/// One connection of a standing executor.
struct Visit<'a> {
    door: &'a Door,
    name: &'a str,
    class: ExecutorClass,
    certificate: Digest,
    ip: String,
    open: HashMap<AttemptId, Open>,
    work: FuturesUnordered<BoxFuture<'static, Closing>>,
}

impl Visit<'_> {
    /// To the end of the connection; says why it ended.
    async fn run(
        mut self,
        session: Session<ExecutorPeer>,
        seat: Attendance,
        mut orders: tokio::sync::mpsc::UnboundedReceiver<Assigned>,
    ) -> String {
        let (mut receiver, sender) = session.split();
        let context = Arc::clone(&self.door.context);
        let mut check = context.clock.now().plus(CHECK);
        let mut shelf = self.door.pool.shelf();
        if !shelf.borrow().is_empty() {
            // What was published before it came is news to it.
            shelf.mark_changed();
        }
        let (code, why) = loop {
            tokio::select! {
                Ok(()) = shelf.changed() => {
                    let images = shelf.borrow_and_update().clone();
                    say_what_is_listed(images, self.class, &sender).await;
                }
                () = context.hangup.cancelled() => break (NORMAL, "the miner stops".to_owned()),
                Some(assigned) = orders.recv() => self.begin(assigned, sender.clone()),
                Some(closing) = self.work.next() => match closing {
                    Closing::Over(attempt) => { self.open.remove(&attempt); }
                    Closing::Stuck(attempt) => break (POLICY, format!("it does not clear up after attempt {attempt}")),
                },
                heard = receiver.recv() => match heard {
                    Ok(None) => break (NORMAL, "it closed its connection".to_owned()),
                    Ok(Some(message)) => if let Err(details) = self.take(message).await {
                        // One that cannot be told is found out by the next read.
                        let _ = sender.send(&Frame(error_frame(details).into())).await;
                    },
                    Err(error) if error.is_fatal() => break (NORMAL, Causes(&error).to_string()),
                    Err(error) => {
                        let details = format!("Malformed message: {}", malformed(&error));
                        let _ = sender.send(&Frame(error_frame(details).into())).await;
                    }
                },
                () = context.clock.sleep_until(check) => {
                    check = context.clock.now().plus(CHECK);
                    if !self.door.is_on_the_roll(self.certificate).await {
                        break (POLICY, "it was struck off the roll".to_owned());
                    }
                }
            }
        };
        for (attempt, open) in &self.open {
            let (dial, attempt) = (open.dial, *attempt);
            context.inbox.send(Event::ExecutorGone { dial, attempt }).await;
        }
        drop(seat);
        sender.close(code, &why).await;
        why
    }

    fn begin(&mut self, assigned: Assigned, sender: Sender<ExecutorPeer>) {
        let context = Arc::clone(&self.door.context);
        let open = Open {
            dial: DialId(context.number()),
            cleared: CancellationToken::new(),
        };
        let lease = Lending {
            dial: open.dial,
            ip: self.ip.clone(),
            cleared: open.cleared.clone(),
            sender,
            context,
        };
        self.open.insert(assigned.order.token.attempt(), open);
        self.work.push(Box::pin(lease.run(assigned)));
    }

    /// What the executor says; an error is for it.
    async fn take(&mut self, message: FromMiner) -> Result<(), String> {
        if let FromMiner::MusterExecutorMetrics(metrics) = &message {
            note_metrics(self.name, metrics);
            return Ok(());
        }
        let attempt = message.attempt().ok_or("the message names no attempt")?;
        let Some(open) = self.open.get(&attempt) else {
            return Err(format!("attempt {attempt} is not served on this connection"));
        };
        let dial = open.dial;
        let context = &self.door.context;
        if let FromMiner::MusterLeaseOver(_) = message {
            // After a last message this changes nothing; without one the attempt ends with it.
            context.inbox.send(Event::ExecutorGone { dial, attempt }).await;
            open.cleared.cancel();
            return Ok(());
        }
        let report = report(message, attempt, &self.ip, context)
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

/// One lease on a standing executor's connection.
struct Lending {
    dial: DialId,
    ip: String,
    cleared: CancellationToken,
    sender: Sender<ExecutorPeer>,
    context: Arc<Context>,
}

impl Lending {
    async fn run(self, assigned: Assigned) -> Closing {
        let Assigned { order, stop, over } = assigned;
        let attempt = order.token.attempt();
        let (outbox, mut outgoings) = outbox();
        let (verdict, admitted) = oneshot::channel();
        let dialled = Input {
            event: Event::Dialled {
                dial: self.dial,
                token: order.token,
                executor_ip: Some(self.ip),
            },
            attachment: Attachment::Executor {
                outbox,
                muster: true,
                verdict,
            },
        };
        self.context.inbox.send(dialled).await;
        match admitted.await {
            Ok(Ok(())) => {}
            Ok(Err(details)) => {
                // Nobody waits for it any more.
                let _ = over.send(details);
                return Closing::Over(attempt);
            }
            Err(_) => return Closing::Over(attempt),
        }
        while let Some(outgoing) = outgoings.recv().await {
            match outgoing {
                Outgoing::Frame(frame) => {
                    if let Err(error) = self.sender.send(&Frame(frame)).await {
                        tracing::debug!(%attempt, error = %Causes(&error), "an executor cannot be told");
                    }
                }
                // Stories and receipts are for validators.
                Outgoing::Story(_) | Outgoing::Receipt(..) => {}
            }
        }
        let cleared = tokio::select! {
            () = self.cleared.cancelled() => true,
            () = async { stop.cancelled().await; self.context.clock.sleep(CLEAR_UP).await } => false,
        };
        let _ = over.send("it is free again".to_owned());
        if cleared {
            Closing::Over(attempt)
        } else {
            Closing::Stuck(attempt)
        }
    }
}

/// Of what validators list, what an executor of this class runs.
async fn say_what_is_listed(
    mut images: Vec<ListedImage>,
    class: ExecutorClass,
    sender: &Sender<ExecutorPeer>,
) {
    images.retain(|listed| listed.class == class);
    let notice = encode(&ToMiner::MusterWhitelist(WhitelistNotice { images }));
    // One that cannot be told is found out by the next read.
    let _ = sender.send(&Frame(notice.into())).await;
}

fn malformed(error: &SessionError<WireError>) -> String {
    match error {
        SessionError::Malformed(error) => error.reason.clone(),
        SessionError::Socket(error) => error.to_string(),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RollError> + Send + 'static,
) -> Result<T, RollError> {
    spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(RollError::File {
            path: "roll".into(),
            source: std::io::Error::other(error),
        })
    })
}

//! A standing executor: enrolled once at its miner, it keeps one connection over TLS and serves the leases that come over it,
//! one after another or several at once. Each lease has a driver of its own, as if a process had been started for it.
//!
//! A connection that is lost takes its leases with it, containers included; the miner has given them up by then.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_containers::images::preload;
use muster_enrollment::{Invitation, Membership, StoredIdentity};
use muster_process::error::Causes;
use muster_process::{Backoff, Coded as _, SharedClock, Tasks, tls};
use muster_protocol::wire::executor::{EnrolExecutor, ExecutorHello, LeaseOver};
use muster_protocol::wire::miner::{FromMiner, InitialJobRequest, ToMiner};
use muster_protocol::wire::muster::{ListedImage, MAX_LISTED_IMAGES};
use muster_protocol::{AttemptId, Digest, ExecutorToken};
use muster_websocket::reconnect::{After, Reconnecting};
use muster_websocket::session::{Receiver, Sender};
use muster_websocket::tls::connect_known;
use muster_websocket::{ConnectError, Greeting, Limits, Session, Socket};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::config::Config;
use crate::driver::{Driver, Process};
use crate::engine_cache::Memory;
use crate::error::Error;
use crate::images;
use crate::lease_connection::Miner;
use crate::lease_connection::{Line, how_it_closed};
use crate::machine_metrics::Meter;
use crate::warm::Warm;

/// Where the miner lends.
const PATH: &str = "/v0/standing";
/// Messages of a miner that may wait for one lease: a lease has an offer, a job, perhaps an error and a cancellation.
const WAITING: usize = 16;
/// How often the machine is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// The websocket's word for "you may not".
const POLICY: u16 = 1_008;
/// How a miner that is away is dialled again.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(16),
};

/// Makes a key, shows `invitation` to its miner, and keeps what later connections need at `standing.membership`.
///
/// # Errors
/// The miner cannot be reached, is not the one invited to, or refuses; the membership cannot be kept.
pub async fn enrol(config: &Config, invitation: Invitation, name: &str) -> Result<(), Error> {
    let own = StoredIdentity::generate(name).map_err(muster_enrollment::MembershipError::from)?;
    let membership = Membership {
        address: invitation.address,
        miner: invitation.miner,
        own,
    };
    let path = &config.standing.membership;
    membership.keep(path)?;
    let outcome = knock(&membership, invitation.secret, name).await;
    if let Err(Error::Connect(_) | Error::Refused(_)) = &outcome {
        // It is of no use; and it would stand in the way of the next token.
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!(%error, path = %path.display(), "a membership that is none stays");
        }
    }
    outcome
}

async fn knock(
    membership: &Membership,
    secret: muster_protocol::wire::executor::EnrolSecret,
    name: &str,
) -> Result<(), Error> {
    let mut session = open(dial(membership)?.await?);
    let request = EnrolExecutor {
        secret,
        name: name.to_owned(),
    };
    let lost = |error: &dyn std::error::Error| Error::MinerLost(error.to_string());
    session
        .send(&FromMiner::MusterEnrolExecutor(request))
        .await
        .map_err(|error| lost(&error))?;
    match session.recv().await.map_err(|error| lost(&error))? {
        Some(ToMiner::MusterExecutorEnrolled(enrolled)) => {
            tracing::info!(class = %enrolled.class, miner = membership.address, "enrolled");
            session.close(1_000, "").await;
            Ok(())
        }
        Some(ToMiner::GenericError(error)) => Err(Error::Refused(error.details.unwrap_or_default())),
        Some(_) | None => Err(Error::MinerLost("it did not answer to the token".to_owned())),
    }
}

/// Serves leases until the token of `tasks` is cancelled.
///
/// # Errors
/// Not enrolled, or struck off the miner's roll.
pub async fn stand(config: Config, tasks: Tasks, clock: SharedClock) -> Result<(), Error> {
    let path = config.standing.membership.clone();
    let membership = spawn_blocking(move || Membership::load(&path));
    let membership = membership
        .await
        .map_err(|error| Error::MinerLost(error.to_string()))??;
    if let Err(error) = crate::reap(&config).await {
        // The first lease tries again, and says what is wrong with the engine.
        tracing::warn!(error = %Causes(&error), "what dead executors left stays");
    }
    // Both ends are checked before anything is dialled.
    drop(dial(&membership)?);
    let refused = Arc::new(Mutex::new(None));
    let (config, memory) = (Arc::new(config), Memory::default());
    let (listed, heard) = watch::channel(Vec::new());
    tasks.spawn(
        "images",
        keep_images(
            Arc::clone(&config),
            memory.clone(),
            Arc::clone(&clock),
            heard,
            tasks.token(),
        ),
    );
    let warm = Warm::open(&config, &tasks, &clock);
    if let Some(warm) = warm.clone() {
        let stop = tasks.token();
        tasks.spawn("warm containers", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = warm.sweep() => {}
            }
        });
    }
    let shared = Arc::new(Stand {
        config,
        memory,
        warm: warm.clone(),
        tasks: tasks.clone(),
        clock: Arc::clone(&clock),
        listed,
        refused: Arc::clone(&refused),
    });
    let link = Reconnecting {
        name: "miner",
        backoff: RETRY,
        clock,
        stop: tasks.token(),
    };
    let serve = |socket| Arc::clone(&shared).serve(socket);
    let dialled = link
        .run(
            || async {
                match dial(&membership) {
                    Ok(dialling) => dialling.await,
                    // Checked above.
                    Err(error) => Err(ConnectError::Unreachable {
                        url: membership.address.clone(),
                        source: std::io::Error::other(error),
                    }),
                }
            },
            serve,
            |error: &ConnectError| {
                tracing::debug!(error = %Causes(error), "the miner is away");
                false
            },
        )
        .await;
    if let Some(warm) = warm {
        warm.close().await;
    }
    dialled?;
    let refused = refused.lock().take();
    refused.map_or(Ok(()), |reason| Err(Error::StruckOff(reason)))
}

type Dialling = BoxFuture<'static, Result<Socket, ConnectError>>;

fn dial(membership: &Membership) -> Result<Dialling, Error> {
    let identity = membership
        .own
        .open("the membership")
        .map_err(muster_enrollment::MembershipError::from)?;
    let miner: Digest = membership.miner;
    let config = tls::client(&identity, miner).map_err(|error| Error::Refused(error.to_string()))?;
    let address = membership.address.clone();
    Ok(Box::pin(async move {
        connect_known(&address, PATH, Arc::new(config), &Limits::miner()).await
    }))
}

fn open(socket: Socket) -> Session<Miner> {
    // TLS has said who is there.
    Greeting::new(socket).accept(Miner)
}

/// Has the images at hand that the operator and the miner list, keeps them, and removes those that nobody uses, until told to stop.
async fn keep_images(
    config: Arc<Config>,
    memory: Memory,
    clock: SharedClock,
    mut listed: watch::Receiver<Vec<ListedImage>>,
    stop: CancellationToken,
) {
    let keeping = async {
        let mut held = Vec::new();
        match memory.engine(&config.engine, &clock).await {
            Ok(engine) => match preload(&engine, &config.images, &clock).await {
                Ok(leases) => held = leases,
                Err(error) => tracing::warn!(error = %Causes(&error), "images of the list are not at hand"),
            },
            Err(error) => tracing::warn!(error = %Causes(&error), "images of the list are not at hand"),
        }
        tracing::debug!(images = held.len(), "at hand");
        let mut whitelisted = BTreeMap::new();
        loop {
            let wanted = listed.borrow_and_update().clone();
            images::fetch_listed(&config, &memory, &clock, wanted, &mut whitelisted).await;
            images::collect(&config, &memory, &clock).await;
            tokio::select! {
                () = clock.sleep(images::COLLECT_EVERY) => {}
                // Without whoever tells of changes there is none.
                Ok(()) = listed.changed() => {}
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keeping => {}
    }
}

/// What connections share.
struct Stand {
    config: Arc<Config>,
    memory: Memory,
    warm: Option<Warm>,
    tasks: Tasks,
    clock: SharedClock,
    /// What its miner wants to be at hand.
    listed: watch::Sender<Vec<ListedImage>>,
    /// Why this executor may not come again.
    refused: Arc<Mutex<Option<String>>>,
}

/// One connection.
struct Visit {
    stand: Arc<Stand>,
    mouth: Sender<Miner>,
    leases: HashMap<AttemptId, mpsc::Sender<ToMiner>>,
    drivers: FuturesUnordered<BoxFuture<'static, AttemptId>>,
}

impl Stand {
    async fn serve(self: Arc<Self>, socket: Socket) -> After {
        let (receiver, mouth) = open(socket).split();
        let hello = ExecutorHello {
            class: self.config.standing.class,
            capacity: self.config.standing.capacity,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        if let Err(error) = mouth.send(&FromMiner::MusterExecutorHello(hello)).await {
            tracing::warn!(error = %Causes(&error), "the miner does not listen");
            return After::Again;
        }
        let visit = Visit {
            stand: Arc::clone(&self),
            mouth,
            leases: HashMap::new(),
            drivers: FuturesUnordered::new(),
        };
        visit.run(receiver).await
    }

    fn refuse(&self, reason: String) {
        *self.refused.lock() = Some(reason);
    }
}

impl Visit {
    async fn run(mut self, mut receiver: Receiver<Miner>) -> After {
        let stand = Arc::clone(&self.stand);
        let (clock, stop) = (Arc::clone(&stand.clock), stand.tasks.token());
        let disk = stand.config.work_dir.clone();
        let mut meter = spawn_blocking(move || Meter::new(existing(disk))).await.ok();
        let mut measure_at = clock.now();
        let after = loop {
            if stop.is_cancelled() && self.drivers.is_empty() {
                break After::Stop;
            }
            tokio::select! {
                biased;
                // The drivers hear it too, and end.
                () = stop.cancelled(), if !stop.is_cancelled() => {}
                Some(attempt) = self.drivers.next() => self.over(attempt).await,
                heard = receiver.recv() => match heard {
                    Ok(Some(message)) => self.take(message),
                    Ok(None) => {
                        let why = how_it_closed(&receiver);
                        tracing::warn!(why, "the miner hung up");
                        if receiver.closed().is_some_and(|closed| closed.code == POLICY) {
                            stand.refuse(why);
                            break After::Stop;
                        }
                        break After::Again;
                    }
                    Err(error) if error.is_fatal() => {
                        tracing::warn!(error = %Causes(&error), "the miner was lost");
                        break After::Again;
                    }
                    Err(error) => tracing::warn!(error = %Causes(&error), "a frame of the miner is passed over"),
                },
                () = clock.sleep_until(measure_at) => {
                    measure_at = clock.now().plus(MEASURE_EVERY);
                    meter = self.measure(meter.take()).await;
                }
            }
        };
        // Every driver loses its miner, and tidies up.
        self.leases.clear();
        while let Some(attempt) = self.drivers.next().await {
            tracing::debug!(%attempt, "ended with its connection");
        }
        self.mouth.close(1_000, "").await;
        after
    }

    fn take(&mut self, message: ToMiner) {
        let attempt = match &message {
            ToMiner::V0InitialJobRequest(offer) => return self.begin(offer.clone()),
            ToMiner::V0JobRequest(job) => Some(job.job_uuid),
            ToMiner::MusterCancelJob(cancel) => Some(cancel.job_uuid),
            ToMiner::MusterSessionSealed(sealed) => Some(sealed.job_uuid),
            ToMiner::MusterWhitelist(notice) => {
                let mut images = notice.images.clone();
                images.truncate(MAX_LISTED_IMAGES);
                // Whoever keeps the images hears only of a change.
                self.stand.listed.send_if_modified(|known| {
                    let changed = *known != images;
                    *known = images;
                    changed
                });
                None
            }
            ToMiner::GenericError(error) => {
                tracing::warn!(details = error.details, "the miner reports an error");
                None
            }
            ToMiner::ValidatorAuthForMiner(_)
            | ToMiner::V0MainHotkeyMessage(_)
            | ToMiner::V0JobAcceptedReceiptRequest(_)
            | ToMiner::V0JobFinishedReceiptRequest(_)
            | ToMiner::MusterExecutorEnrolled(_) => {
                tracing::warn!("a message that is not for an executor is passed over");
                None
            }
        };
        if let Some(lease) = attempt.and_then(|attempt| self.leases.get(&attempt)) {
            // A lease that has ended, or is flooded, needs no more.
            let _ = lease.try_send(message);
        }
    }

    fn begin(&mut self, offer: Box<InitialJobRequest>) {
        let attempt = offer.job_uuid;
        if self.leases.contains_key(&attempt) {
            return;
        }
        let (inbox, messages) = mpsc::channel(WAITING);
        // The first of many that fit.
        let _ = inbox.try_send(ToMiner::V0InitialJobRequest(offer));
        self.leases.insert(attempt, inbox);
        let stand = &self.stand;
        // The connection is the credential; the token only names the container.
        let token = ExecutorToken::new(attempt, Uuid::new_v4());
        let process = Process {
            config: Arc::clone(&stand.config),
            memory: stand.memory.clone(),
            warm: stand.warm.clone(),
            shutdown: stand.tasks.token(),
            clock: Arc::clone(&stand.clock),
            tasks: stand.tasks.clone(),
        };
        let line = Line::shared(messages, self.mouth.clone());
        let driver = Driver::new(process, token, line, stand.clock.now());
        let span = tracing::info_span!("attempt", %attempt);
        // A task of its own: what one lease does must not hold up the connection.
        let driving = stand.tasks.spawn("lease", driver.drive().instrument(span));
        self.drivers.push(Box::pin(async move {
            match driving.join().await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let code = error.code().map(|code| code.code()).unwrap_or_default();
                    tracing::warn!(code, %attempt, error = %Causes(&error), "the attempt ended early");
                }
                Err(error) => tracing::error!(%attempt, %error, "the attempt was dropped"),
            }
            attempt
        }));
    }

    async fn over(&mut self, attempt: AttemptId) {
        self.leases.remove(&attempt);
        let over = FromMiner::MusterLeaseOver(LeaseOver { job_uuid: attempt });
        if let Err(error) = self.mouth.send(&over).await {
            // The next read finds the connection gone.
            tracing::debug!(error = %Causes(&error), "the miner does not hear that a lease is over");
        }
    }

    async fn measure(&mut self, meter: Option<Meter>) -> Option<Meter> {
        let mut meter = meter?;
        let now = self.stand.clock.now();
        let measured = spawn_blocking(move || {
            let metrics = meter.measure(now);
            (meter, metrics)
        });
        let (meter, metrics) = measured.await.ok()?;
        let message = FromMiner::MusterExecutorMetrics(Box::new(metrics));
        if let Err(error) = self.mouth.send(&message).await {
            tracing::debug!(error = %Causes(&error), "the miner does not hear what this machine does");
        }
        Some(meter)
    }
}

/// The folder, or the nearest above it that is there.
fn existing(folder: std::path::PathBuf) -> std::path::PathBuf {
    let found = folder.ancestors().find(|folder| folder.exists());
    found.map_or_else(|| "/".into(), std::path::Path::to_path_buf)
}

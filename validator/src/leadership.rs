//! Which of several processes of one validator leads. They share a store in PostgreSQL; one leads, the others stand by.
//!
//! [`open_store`] looks at the lease until it may be taken, and answers meanwhile who leads. [`LeaseKeeper`]
//! renews it while the validator runs, and ends the validator once another process leads or the renewal is too late.
//! [`decision`] decides both. A store in SQLite is one process's, so there is nothing to wait for.

mod decision;
mod standby_page;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_process::error::Causes;
use muster_process::{Coded as _, SharedClock, Tasks, ready};
use muster_store::StoreError;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::Error;
use crate::chain::Chain;
use crate::config::Config;
use crate::store::{LeaseView, Standby, Store};
use crate::validator_state::ValidatorState;
use decision::{BlockClock, ClockOffset, LeaderStep, StandbyStep, leader_step, standby_step};
use standby_page::StandbyPage;

pub(crate) use standby_page::{LEADER_PATH, LeaderView};

/// Time between two looks of a standby at the lease and at the newest block.
const STANDBY_LOOK: Duration = Duration::from_secs(1);
/// Time between two looks of the leader at the store's epoch, and the longest time for the answer to one.
const LEADER_LOOK: Duration = Duration::from_millis(250);
/// Longest wait for an answer of the database or of the chain to a process that stands by.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the chain's newest block at the start, before a lease that nobody holds is taken.
const FIRST_BLOCK: Duration = Duration::from_secs(2);
/// Longest wait for the database when the lease is given back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// The parts of a validator's process that it has before it leads.
pub(crate) struct StandbyParts<'a> {
    pub(crate) config: &'a Config,
    pub(crate) chain: &'a Arc<dyn Chain>,
    pub(crate) clock: &'a SharedClock,
    pub(crate) tasks: &'a Tasks,
    pub(crate) address: SocketAddr,
}

/// The store of the process that leads, and the socket of its status address.
pub(crate) struct LedStore {
    pub(crate) store: Store,
    pub(crate) listener: TcpListener,
    /// The time before the lease was asked for, from which it counts.
    pub(crate) since: Instant,
}

/// The name by which the other processes and their operators know this one: the machine's name and the process's id.
pub(crate) fn process_name() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = match machine.trim() {
        "" => "unknown",
        name => name,
    };
    format!("{machine}:{}", std::process::id())
}

/// Opens the store of the process that leads. Waits for the lease if the store is in PostgreSQL, while the status
/// address answers that this process stands by; `None` if the process is stopped meanwhile.
///
/// # Errors
/// The store cannot be opened, is of a newer version, or its schema cannot be brought up to date; the ready file cannot
/// be written.
pub(crate) async fn open_store(
    parts: StandbyParts<'_>,
    listener: TcpListener,
) -> Result<Option<LedStore>, Error> {
    if !muster_store::is_shared(&parts.config.store)? {
        tracing::info!(
            "the store is a SQLite file, so this validator has no standby; a store in PostgreSQL may have one"
        );
        let since = Instant::now();
        let store = Store::open(&parts.config.store).await?;
        return Ok(Some(LedStore {
            store,
            listener,
            since,
        }));
    }
    let standby = Standby::open(&parts.config.store, process_name()).await?;
    let block_clock = Arc::new(Mutex::new(BlockClock::default()));
    note_block(&**parts.chain, parts.clock, &block_clock, FIRST_BLOCK).await;
    // A store that no process leads is led at once.
    let view = match look_and_lead(&standby, parts.clock, &block_clock).await {
        Ok(Looked::Leads(store, since)) => {
            standby.close().await;
            let store = *store;
            return Ok(Some(LedStore {
                store,
                listener,
                since,
            }));
        }
        Ok(Looked::Waits(view)) => view,
        Err(error @ StoreError::ClockDiffers { .. }) => {
            log_trouble(&error);
            look(&standby).await?
        }
        Err(error) => return Err(error.into()),
    };
    ready::announce(parts.address, parts.config.ready_file.as_deref())?;
    tracing::info!(process = standby.holder(), leader = view.holder(), "standing by");
    metrics::gauge!("muster_validator_leads").set(0);
    // The page serves on a copy, so that no client is refused while the leader's pages take its place.
    let kept = listener.into_std().map_err(Error::Serve)?;
    let copy = kept.try_clone().and_then(TcpListener::from_std);
    let page = StandbyPage::start(
        &parts,
        copy.map_err(Error::Serve)?,
        standby.holder().to_owned(),
        &view,
    );
    let store = stand_by(&parts, &standby, &block_clock, &page).await;
    page.stop().await;
    standby.close().await;
    let listener = TcpListener::from_std(kept).map_err(Error::Serve)?;
    Ok(store?.map(|(store, since)| LedStore {
        store,
        listener,
        since,
    }))
}

/// The outcome of a look at the lease.
enum Looked {
    /// The lease is ours; it counts from this time.
    Leads(Box<Store>, Instant),
    Waits(LeaseView),
}

/// Reads the lease, if the database answers in time.
async fn look(standby: &Standby) -> Result<LeaseView, StoreError> {
    timeout(PATIENCE, standby.look())
        .await
        .map_err(|_| StoreError::no_answer("read who leads"))?
}

/// Looks at the lease and takes it if that is allowed.
async fn look_and_lead(
    standby: &Standby,
    clock: &SharedClock,
    block_clock: &Mutex<BlockClock>,
) -> Result<Looked, StoreError> {
    let before = clock.now();
    let view = look(standby).await?;
    let database = ClockOffset::between(before, clock.now(), view.now);
    let block = block_clock.lock().offset();
    match standby_step(&view.state, database, block) {
        StandbyStep::Wait => Ok(Looked::Waits(view)),
        StandbyStep::Refuse(fault) => Err(fault.into()),
        StandbyStep::Lead => match standby.lead().await? {
            Some((store, since)) => {
                tracing::info!(process = standby.holder(), "leading");
                Ok(Looked::Leads(Box::new(store), since))
            }
            None => Ok(Looked::Waits(look(standby).await?)),
        },
    }
}

/// Stands by until this process leads or is stopped. Failures of the database are waited out: it may be failing over.
async fn stand_by(
    parts: &StandbyParts<'_>,
    standby: &Standby,
    block_clock: &Arc<Mutex<BlockClock>>,
    page: &StandbyPage,
) -> Result<Option<(Store, Instant)>, StoreError> {
    let (chain, clock, noted) = (
        Arc::clone(parts.chain),
        Arc::clone(parts.clock),
        Arc::clone(block_clock),
    );
    let standing_by = parts.tasks.token().child_token();
    let _ends = standing_by.clone().drop_guard();
    let following = standing_by.run_until_cancelled_owned(follow_block_clock(chain, clock, noted));
    drop(parts.tasks.spawn("clock of the newest block", following));
    let stop = parts.tasks.token();
    let mut trouble = None;
    while stop.run_until_cancelled(sleep(STANDBY_LOOK)).await.is_some() {
        let looked = stop.run_until_cancelled(look_and_lead(standby, parts.clock, block_clock));
        match looked.await {
            None => break,
            Some(Ok(Looked::Leads(store, since))) => return Ok(Some((*store, since))),
            Some(Ok(Looked::Waits(view))) => {
                trouble = None;
                page.show(&view);
            }
            Some(Err(error @ (StoreError::Newer { .. } | StoreError::Migrate(_)))) => return Err(error),
            Some(Err(error)) => {
                let text = Causes(&error).to_string();
                if trouble.as_ref() != Some(&text) {
                    log_trouble(&error);
                    trouble = Some(text);
                }
            }
        }
    }
    Ok(None)
}

fn log_trouble(error: &StoreError) {
    let code = error.code().map(|code| code.to_string());
    tracing::warn!(
        code,
        error = %Causes(error),
        "this process cannot lead now; it stands by and looks again each second"
    );
}

/// Notes the times of the newest blocks, to compare this machine's clock with.
async fn follow_block_clock(chain: Arc<dyn Chain>, clock: SharedClock, noted: Arc<Mutex<BlockClock>>) {
    loop {
        note_block(&*chain, &clock, &noted, PATIENCE).await;
        sleep(STANDBY_LOOK).await;
    }
}

/// Notes the time of the newest block, if the chain answers in time.
async fn note_block(chain: &dyn Chain, clock: &SharedClock, noted: &Mutex<BlockClock>, within: Duration) {
    let asked = clock.now();
    if let Ok(Ok(Some((block, time)))) = timeout(within, chain.newest_block_time()).await {
        noted.lock().note(asked, clock.now(), block, time);
    }
}

/// Renews the lease from the moment at which it was taken until the validator's tasks have ended: while it loads, works
/// and stops. On SQLite there is no lease.
pub(crate) struct LeaseKeeper(Tasks);

impl LeaseKeeper {
    /// Begins to renew the lease that counts from `since`. Ends the validator once another process leads, once a
    /// renewal fails, or once the lease has run out by this process's own reckoning.
    pub(crate) fn start(state: &Arc<ValidatorState>, since: Instant) -> Self {
        metrics::gauge!("muster_validator_leads").set(1);
        let tasks = Tasks::new();
        if muster_store::is_shared(&state.config.store).unwrap_or_default() {
            let (state, stop) = (Arc::clone(state), tasks.token());
            drop(tasks.spawn("lease on the store", async move {
                let kept = stop.run_until_cancelled(keep_lease(&state.store, since)).await;
                if let Some(Err(error)) = kept {
                    state.lead_no_longer(error);
                }
            }));
        }
        Self(tasks)
    }

    /// Renews the lease no more.
    pub(crate) fn stop(self) {
        self.0.shutdown();
    }
}

/// Gives the lease back, so that a standby leads at once, unless tasks of this process still run: then it runs out by
/// itself. Closes the store.
pub(crate) async fn give_back(store: &Store, is_quiet: bool) {
    // On SQLite the row has no lease, and this changes nothing.
    if is_quiet && let Ok(Err(error)) = timeout(GIVE_BACK, store.release_lease()).await {
        tracing::debug!(%error, "the lease on the store was not given back");
    }
    // Every write is durable already.
    let _ = timeout(GIVE_BACK, store.close()).await;
}

async fn keep_lease(store: &Store, since: Instant) -> Result<Infallible, StoreError> {
    let mut renewed = since;
    let mut ticks = interval(LEADER_LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match leader_step(renewed.elapsed()) {
            LeaderStep::End => return Err(StoreError::LeaseLost),
            LeaderStep::Renew => renewed = renew(store, renewed).await?,
            LeaderStep::Look => {
                // A look that fails or is late changes nothing: the renewal decides.
                if let Ok(Ok(false)) = timeout(LEADER_LOOK, store.leads()).await {
                    return Err(StoreError::Superseded);
                }
            }
        }
    }
}

/// Renews the lease that was renewed last at `renewed`; returns the time from which the new one counts: that before the
/// database was asked.
async fn renew(store: &Store, renewed: Instant) -> Result<Instant, StoreError> {
    let asked = Instant::now();
    let end = renewed + muster_validator_store::LEASE;
    match tokio::time::timeout_at(end, store.renew_lease()).await {
        Ok(answered) => answered.map(|()| asked),
        Err(_) => Err(StoreError::LeaseLost),
    }
}

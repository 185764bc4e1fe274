//! Which of several processes of one validator leads. They share a store in PostgreSQL; one leads, the others stand by.
//!
//! [`open_store`] looks at the lease until it may be taken, and answers meanwhile who leads. [`keep_lease`] renews it
//! while the validator runs, and ends the validator once another process leads or the renewal comes too late.
//! [`decision`] decides both. A store in SQLite is one process's, so there is nothing to wait for.

mod decision;
mod standby_page;

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
/// Time between two looks of the leader at the store's epoch: a superseded process ends within twice this time.
const LEADER_LOOK: Duration = Duration::from_millis(400);
/// Longest wait for an answer of the database or of the chain to a process that stands by.
const PATIENCE: Duration = Duration::from_secs(5);

/// The parts of a validator's process that it has before it leads.
pub(crate) struct StandbyParts<'a> {
    pub(crate) config: &'a Config,
    pub(crate) chain: &'a Arc<dyn Chain>,
    pub(crate) clock: &'a SharedClock,
    pub(crate) tasks: &'a Tasks,
    pub(crate) address: SocketAddr,
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
) -> Result<Option<(Store, TcpListener)>, Error> {
    if !muster_store::is_shared(&parts.config.store)? {
        tracing::info!(
            "the store is a SQLite file, so this validator has no standby; a store in PostgreSQL may have one"
        );
        return Ok(Some((Store::open(&parts.config.store).await?, listener)));
    }
    let standby = Standby::open(&parts.config.store, process_name()).await?;
    let block_clock = Arc::new(Mutex::new(BlockClock::default()));
    // A store that no process leads is led at once.
    let view = match look_and_lead(&standby, parts.clock, &block_clock).await {
        Ok(Looked::Leads(store)) => {
            standby.close().await;
            return Ok(Some((*store, listener)));
        }
        Ok(Looked::Waits(view)) => view,
        Err(error @ StoreError::ClockDiffers { .. }) => {
            log_trouble(&error);
            standby.look().await?
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
    Ok(store?.map(|store| (store, listener)))
}

/// The outcome of a look at the lease.
enum Looked {
    Leads(Box<Store>),
    Waits(LeaseView),
}

/// Looks at the lease and takes it if that is allowed.
async fn look_and_lead(
    standby: &Standby,
    clock: &SharedClock,
    block_clock: &Mutex<BlockClock>,
) -> Result<Looked, StoreError> {
    let before = clock.now();
    let view = standby.look().await?;
    let database = ClockOffset::between(before, clock.now(), view.now);
    let block = block_clock.lock().offset();
    match standby_step(&view.state, database, block) {
        StandbyStep::Wait => Ok(Looked::Waits(view)),
        StandbyStep::Refuse(fault) => Err(fault.into()),
        StandbyStep::Lead => match standby.lead().await? {
            Some(store) => {
                tracing::info!(process = standby.holder(), "leading");
                Ok(Looked::Leads(Box::new(store)))
            }
            None => Ok(Looked::Waits(standby.look().await?)),
        },
    }
}

/// Stands by until this process leads or is stopped. Failures of the database are waited out: it may be failing over.
async fn stand_by(
    parts: &StandbyParts<'_>,
    standby: &Standby,
    block_clock: &Arc<Mutex<BlockClock>>,
    page: &StandbyPage,
) -> Result<Option<Store>, StoreError> {
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
            Some(Ok(Looked::Leads(store))) => return Ok(Some(*store)),
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
        let asked = clock.now();
        if let Ok(Ok(Some((block, time)))) = timeout(PATIENCE, chain.newest_block_time()).await {
            noted.lock().note(asked, clock.now(), block, time);
        }
        sleep(STANDBY_LOOK).await;
    }
}

/// Renews the lease until the validator stops. Ends the validator once another process leads, or once the lease has run
/// out by this process's own reckoning. On SQLite there is no lease.
pub(crate) async fn keep_lease(state: Arc<ValidatorState>) -> Result<(), StoreError> {
    metrics::gauge!("muster_validator_leads").set(1);
    if !muster_store::is_shared(&state.config.store)? {
        return Ok(());
    }
    // The lease may have been taken any time before now, so the first renewal is due at once.
    let mut renewed = renew(&state.store, Instant::now()).await?;
    let mut ticks = interval(LEADER_LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = state.tasks.token();
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match leader_step(renewed.elapsed()) {
            LeaderStep::End => return Err(StoreError::LeaseLost),
            LeaderStep::Renew => renewed = renew(&state.store, renewed).await?,
            LeaderStep::Look => {
                // A look that fails or is late changes nothing: the renewal decides.
                if let Ok(Ok(false)) = timeout(LEADER_LOOK, state.store.leads()).await {
                    return Err(StoreError::Superseded);
                }
            }
        }
    }
    Ok(())
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

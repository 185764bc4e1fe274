//! Draws the validator's own deterministic jobs, and carries each from its miner to its verdict.
//!
//! Every step is stored before the next one. The job at a miner goes on after a restart, as a user's does; a run on the
//! validator's own miner begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_audit::DrawBlock;
use muster_protocol::{Hotkey, JobId, MinerKey, Timestamp};
use muster_store::StoreError;
use uuid::Uuid;

use crate::check_tasks::{CheckerState, pause_after, run_once};
use crate::coldkey_test::open_differences;
use crate::own_check::{MinerRun, OwnCheckFacts, OwnCheckStep, next_check_step};
use crate::own_draw::{DrawnJob, DrawnSubject, OwnDraw, UsersJobs};
use crate::own_job::{witness_job, write_own_job};
use crate::store::{OpenOwnCheck, StoredDraw};
use crate::verdict::{CheckVerdict, RunEnd};

/// The time over which users' jobs are looked at.
const USERS_LOOK_BACK: Duration = Duration::from_secs(7 * 86_400);

/// Blocks after which users' jobs are looked at again.
const LOOK_AGAIN_AFTER: u64 = 25;

/// The blocks before the head that still draw, if the validator did not see them.
const LATE_BLOCKS: u64 = 10;

/// The time after which an own job without a verdict proves nothing.
const GIVE_UP_AFTER: Duration = Duration::from_secs(2 * 86_400);

/// Draws own jobs block by block.
#[derive(Debug, Default)]
pub(crate) struct OwnJobDrawer {
    drawn_to: u64,
    looked_at: Option<u64>,
    users: UsersJobs,
    open: BTreeMap<Hotkey, String>,
}

impl OwnJobDrawer {
    /// Draws at the blocks up to `head` that have not drawn yet, and begins the jobs that were drawn.
    pub(crate) async fn draw_to(&mut self, state: &CheckerState, head: u64) -> Result<(), StoreError> {
        let settings = &state.settings;
        let is_off = settings.programs.is_empty() || settings.own_jobs_per_day == 0;
        let Some((genesis, netuid)) = state.subnet() else {
            return Ok(());
        };
        if is_off || state.deps.own_jobs.is_none() {
            return Ok(());
        }
        self.look_at_users(state, head).await?;
        let mut miners: BTreeMap<Hotkey, BTreeSet<MinerKey>> = BTreeMap::new();
        for (miner, owner) in state.owners() {
            miners.entry(owner).or_default().insert(miner);
        }
        let first = head
            .saturating_sub(LATE_BLOCKS)
            .max(self.drawn_to.saturating_add(1));
        for number in first..=head {
            let Some(hash) = state.deps.subnet.block_hash(number).await else {
                continue;
            };
            let block = DrawBlock {
                genesis,
                netuid,
                number,
                hash,
            };
            let (draw, proof) = OwnDraw::prove(&state.deps.keypair, &block);
            let stored = StoredDraw {
                block: number,
                hash: &hash,
                proof: &proof,
            };
            for (coldkey, miners) in &miners {
                let subject = DrawnSubject {
                    coldkey: *coldkey,
                    miners,
                    open: self.open.get(coldkey).map(String::as_str),
                };
                let per_day = settings.own_jobs_per_day;
                let drawn = draw.draw(state.now(), subject, &settings.programs, &self.users, per_day);
                if let Some(drawn) = drawn {
                    begin_check(state, &drawn, coldkey, &stored).await?;
                }
            }
        }
        self.drawn_to = head;
        Ok(())
    }

    async fn look_at_users(&mut self, state: &CheckerState, head: u64) -> Result<(), StoreError> {
        if self
            .looked_at
            .is_some_and(|at| head < at.saturating_add(LOOK_AGAIN_AFTER))
        {
            return Ok(());
        }
        let now = state.now();
        self.users = state.store.users_jobs(now.minus(USERS_LOOK_BACK)).await?;
        self.open = open_differences(&state.store.own_results(now).await?);
        self.looked_at = Some(head);
        Ok(())
    }
}

/// Stores a job that was drawn, and begins it. One that was drawn before a restart is not begun again.
async fn begin_check(
    state: &CheckerState,
    drawn: &DrawnJob,
    coldkey: &Hotkey,
    draw: &StoredDraw<'_>,
) -> Result<(), StoreError> {
    let now = state.now();
    let (Some(own_jobs), Some(program)) = (&state.deps.own_jobs, state.settings.programs.get(&drawn.program))
    else {
        return Ok(());
    };
    if !state.store.insert_own_check(drawn, coldkey, draw, now).await? {
        return Ok(());
    }
    let (job, miner) = (drawn.id, drawn.miner);
    let begun = match write_own_job(drawn, program, &state.deps.keypair, now) {
        Ok(request) => own_jobs.begin_disguised(request, miner).await,
        Err(error) => Err(error.to_string()),
    };
    match begun {
        Ok(()) => {
            tracing::debug!(%job, %miner, %coldkey, program = drawn.program, block = draw.block, "a deterministic job of the validator's own begins");
            Ok(())
        }
        Err(reason) => {
            let verdict = CheckVerdict::unproven(format!("it did not begin: {reason}"));
            conclude(state, job, coldkey, &verdict).await
        }
    }
}

/// Takes each own job as far as it goes now.
pub(crate) async fn step_own_checks(state: &CheckerState) -> Result<(), StoreError> {
    for mut check in state.store.open_own_checks(state.now()).await? {
        while take_step(state, &mut check).await? {}
    }
    Ok(())
}

/// Takes one step of an own job. Returns whether another one may follow at once.
async fn take_step(state: &CheckerState, check: &mut OpenOwnCheck) -> Result<bool, StoreError> {
    let now = state.now();
    if now.since(check.began_at) >= GIVE_UP_AFTER {
        let verdict = CheckVerdict::unproven("it had no verdict within two days");
        conclude(state, check.job, &check.coldkey, &verdict).await?;
        return Ok(false);
    }
    match next_check_step(&read_facts(state, check).await?) {
        OwnCheckStep::Wait => Ok(false),
        OwnCheckStep::RunOnOwnMiner => run_on_own_miner(state, check).await,
        OwnCheckStep::AskWitness => ask_witness(state, check).await,
        OwnCheckStep::Done(verdict) => {
            conclude(state, check.job, &check.coldkey, &verdict).await?;
            Ok(false)
        }
    }
}

/// The facts about an own job. The ends of its jobs at miners are noted in it.
async fn read_facts(state: &CheckerState, check: &mut OpenOwnCheck) -> Result<OwnCheckFacts, StoreError> {
    let subject = match &check.outputs {
        Some(outputs) => MinerRun::Completed(outputs.clone()),
        None => end_at(state, check.job, &check.coldkey).await?,
    };
    if let MinerRun::Completed(outputs) = &subject {
        check.outputs = Some(outputs.clone());
    }
    let witness = match (&check.witness_outputs, check.witness_job, check.asked.last()) {
        (Some(outputs), _, _) => MinerRun::Completed(outputs.clone()),
        (None, Some(job), Some(coldkey)) => end_at(state, job, coldkey).await?,
        (None, None, _) | (None, Some(_), None) => MinerRun::NotAsked,
    };
    match &witness {
        MinerRun::Completed(outputs) => {
            check.witness_outputs = Some(outputs.clone());
            check.witness_job = None;
        }
        MinerRun::Nothing(_) => check.witness_job = None,
        MinerRun::NotAsked | MinerRun::Pending => {}
    }
    Ok(OwnCheckFacts {
        subject,
        runs: check.runs.clone(),
        witness,
        witnesses: u64::try_from(check.asked.len()).unwrap_or(u64::MAX),
    })
}

/// How a job at a miner of this coldkey has ended.
async fn end_at(state: &CheckerState, job: JobId, coldkey: &Hotkey) -> Result<MinerRun, StoreError> {
    let Some((outcome, _, stored)) = state.deps.store.end_of(job).await? else {
        return Ok(MinerRun::Pending);
    };
    let miner = stored.attempts.last().map(|attempt| attempt.miner);
    let owner = miner.and_then(|miner| state.owner_of(miner));
    Ok(match RunEnd::of(&outcome) {
        RunEnd::Completed(outputs) if owner == Some(*coldkey) => MinerRun::Completed(outputs),
        RunEnd::Completed(_) => MinerRun::Nothing("another coldkey's miner ran it".to_owned()),
        RunEnd::Impossible(reason) | RunEnd::TryLater(reason) => MinerRun::Nothing(reason),
    })
}

async fn run_on_own_miner(state: &CheckerState, check: &mut OpenOwnCheck) -> Result<bool, StoreError> {
    match run_once(state, check.job).await? {
        RunEnd::Completed(run) => {
            check.runs.push(run);
            check.tries = 0;
            put(state, check, state.now()).await?;
            Ok(true)
        }
        RunEnd::Impossible(reason) => {
            conclude(state, check.job, &check.coldkey, &CheckVerdict::unproven(reason)).await?;
            Ok(false)
        }
        RunEnd::TryLater(reason) => {
            check.tries = check.tries.saturating_add(1);
            tracing::debug!(job = %check.job, reason, tries = check.tries, "a job of the validator's own waits for its own miner");
            put(state, check, state.now().plus(pause_after(check.tries))).await?;
            Ok(false)
        }
    }
}

/// Has a third coldkey run the job. Its outputs are those of the subject's job if it is honest, so it does not matter
/// that the inputs are the same.
async fn ask_witness(state: &CheckerState, check: &mut OpenOwnCheck) -> Result<bool, StoreError> {
    let (Some(own_jobs), Some((genesis, netuid))) = (&state.deps.own_jobs, state.subnet()) else {
        return Ok(false);
    };
    let Some(stored) = state.deps.store.job(check.job).await? else {
        let verdict = CheckVerdict::unproven("the validator has deleted the job");
        conclude(state, check.job, &check.coldkey, &verdict).await?;
        return Ok(false);
    };
    let block = DrawBlock {
        genesis,
        netuid,
        number: check.draw_block,
        hash: check.block_hash,
    };
    let (draw, _) = OwnDraw::prove(&state.deps.keypair, &block);
    let now = state.now();
    let users = state.store.users_jobs(now.minus(USERS_LOOK_BACK)).await?;
    let asked: BTreeSet<Hotkey> = check.asked.iter().chain([&check.coldkey]).copied().collect();
    let class = stored.request.executor_class;
    let Some((coldkey, miner)) = draw.draw_witness(check.job, class, &users, &state.owners(), &asked) else {
        let verdict = CheckVerdict::unproven("no other coldkey has run users' jobs of its class");
        conclude(state, check.job, &check.coldkey, &verdict).await?;
        return Ok(false);
    };
    let id = JobId::from_uuid(Uuid::new_v4());
    check.asked.push(coldkey);
    check.witness_job = Some(id);
    put(state, check, now).await?;
    let request = witness_job(&stored.request, id, &state.deps.keypair, now);
    if let Err(reason) = own_jobs.begin_disguised(request, miner).await {
        tracing::warn!(job = %check.job, reason, "the job of a third coldkey did not begin");
        check.witness_job = None;
        put(state, check, now).await?;
    }
    Ok(false)
}

async fn put(state: &CheckerState, check: &OpenOwnCheck, next: Timestamp) -> Result<(), StoreError> {
    state.store.put_own_check(check, next, state.now()).await
}

async fn conclude(
    state: &CheckerState,
    job: JobId,
    coldkey: &Hotkey,
    verdict: &CheckVerdict,
) -> Result<(), StoreError> {
    let found = verdict.state.as_str();
    tracing::info!(%job, %coldkey, verdict = found, reason = verdict.reason, "a deterministic job of the validator's own was checked");
    metrics::counter!("muster_own_checks_total", "verdict" => found).increment(1);
    state.store.put_own_verdict(job, verdict, state.now()).await
}

impl CheckerState {
    /// The coldkeys of all miners of the subnet, as the chain states them now.
    fn owners(&self) -> BTreeMap<MinerKey, Hotkey> {
        let Some(metagraph) = self.deps.subnet.last_metagraph() else {
            return BTreeMap::new();
        };
        let miners = metagraph.neurons.iter();
        miners
            .map(|neuron| (MinerKey(neuron.hotkey), neuron.coldkey))
            .collect()
    }
}

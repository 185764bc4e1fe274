//! A validator's record of a job's checkpoints, and its consequence for the next attempt. Pure, but for the
//! questions to the store that [`CheckpointRecord::read`] asks.

use std::collections::BTreeMap;

use muster_checkpoints::{
    AttemptFacts, AttemptFate, CheckpointFacts, ResumeDecision, attempt_url, decide_resume, find_superfluous,
};
use muster_job_messages::pay::MeasuredWork;
use muster_protocol::job::{
    CheckpointTerms, DAMAGED_CHECKPOINT, Fault, KeptCheckpoint, LEASE_OVER, OUT_OF_MEMORY, Outcome,
    RESUME_KEY, STALLED,
};
use muster_protocol::wire::checkpoints::{
    CheckpointGrant, CheckpointNotice, CheckpointOrder, JobCheckpoints, ResumeOrder,
};
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{AttemptId, JobFailureReason, JobId, Timestamp, TraceStage};
use muster_routing::earlier_attempts::EarlierAttempt;
use muster_store::StoreError;
use muster_validator_store::{AttemptBeginning, Store, StoredAttempt, StoredCheckpoint};

/// The exit code of a program that was killed by `KILL`. No program does that to itself: its machine's memory was
/// short, its engine was stopped, or its operator did it.
const KILLED: i64 = 137;

/// The longest name of a checkpoint that is kept, in bytes.
const MAX_NAME: usize = 255;

/// The checkpoints of one job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CheckpointRecord {
    job: JobId,
    terms: CheckpointTerms,
    grant: CheckpointGrant,
    /// The limit of the program in seconds, for all attempts together.
    limit_secs: u64,
    checkpoints: Vec<StoredCheckpoint>,
    beginnings: BTreeMap<AttemptId, AttemptBeginning>,
}

/// A checkpoint that a miner reported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NoticedCheckpoint {
    /// It is stored already, under this ordinal.
    Known(u32),
    /// It is new, and these are dropped for it.
    New(Box<KeptCheckpoint>, Vec<u32>),
    /// It cannot be kept.
    Refused(&'static str),
}

impl CheckpointRecord {
    /// Reads what is stored about a job; `None` for a job that leaves no checkpoints.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn read(store: &Store, request: &UserJobRequest) -> Result<Option<Self>, StoreError> {
        let Some(mut record) = Self::new(request) else {
            return Ok(None);
        };
        record.checkpoints = store.checkpoints(request.uuid).await?;
        record.beginnings = store.beginnings(request.uuid).await?.into_iter().collect();
        Ok(Some(record))
    }

    /// The record of a job of which nothing is stored yet; `None` for a job that leaves no checkpoints.
    pub(crate) fn new(request: &UserJobRequest) -> Option<Self> {
        let extension = request.muster.as_ref()?;
        Some(Self {
            job: request.uuid,
            terms: extension.terms.as_ref()?.checkpoints.clone()?,
            grant: extension.checkpoints.clone()?,
            limit_secs: request.execution_time_limit,
            checkpoints: Vec::new(),
            beginnings: BTreeMap::new(),
        })
    }

    /// The consequence of the last of these attempts, and the beginning of the next one.
    pub(crate) fn decide(&self, attempts: &[StoredAttempt]) -> ResumeDecision {
        let kept = self
            .checkpoints
            .iter()
            .filter(|checkpoint| !checkpoint.is_dropped);
        let kept: Vec<u32> = kept.map(|checkpoint| checkpoint.facts.ordinal).collect();
        decide_resume(&self.facts(attempts), &kept, &self.terms.fatal_exit_codes)
    }

    /// Where an attempt begins that follows these.
    pub(crate) fn begin(&self, attempt: AttemptId, earlier: &[StoredAttempt]) -> AttemptBeginning {
        if let Some(decided) = self.beginnings.get(&attempt) {
            return *decided;
        }
        match self.decide(earlier) {
            ResumeDecision::GoOn { from, halvings, .. } => AttemptBeginning { from, halvings },
            // It was decided before that the job goes on.
            ResumeDecision::Stop(_) => AttemptBeginning::default(),
        }
    }

    /// Notes where an attempt begins.
    pub(crate) fn note_beginning(&mut self, attempt: AttemptId, beginning: AttemptBeginning) {
        self.beginnings.insert(attempt, beginning);
    }

    /// The attempts among these that count towards the most that a job may have.
    pub(crate) fn counts(&self, attempts: &[StoredAttempt]) -> Vec<bool> {
        let of = |number: usize| {
            let Some(last) = number.checked_sub(1).and_then(|last| attempts.get(last)) else {
                return false;
            };
            if last.machine.ready_at().is_none() {
                return true;
            }
            match self.decide(attempts.get(..number).unwrap_or_default()) {
                ResumeDecision::GoOn { counts, .. } => counts,
                ResumeDecision::Stop(_) => true,
            }
        };
        (1..=attempts.len()).map(of).collect()
    }

    /// The seconds of the program's limit that are left after these attempts: what led to their checkpoints is used up.
    pub(crate) fn left_secs(&self, earlier: &[StoredAttempt]) -> u64 {
        let used = earlier.iter().filter_map(|attempt| {
            let own = self.checkpoints_of(attempt.id);
            let last = own.map(|checkpoint| checkpoint.facts.at).max()?;
            Some(last.since(began_at(attempt)?).as_secs())
        });
        let used = used.fold(0, u64::saturating_add);
        self.limit_secs.saturating_sub(used).max(1)
    }

    /// The order that the executor of an attempt gets.
    pub(crate) fn order(&self, attempt: &StoredAttempt) -> CheckpointOrder {
        let beginning = self.beginnings.get(&attempt.id).copied().unwrap_or_default();
        let own = beginning.from.and_then(|ordinal| self.find(ordinal));
        let blocks = self.narrow(&self.grant.blocks, attempt);
        let own = own.map(|checkpoint| ResumeOrder {
            manifest: checkpoint.facts.manifest,
            blocks: blocks.clone(),
        });
        let others = self.grant.resume.as_ref().map(|resume| ResumeOrder {
            manifest: resume.manifest,
            blocks: self.narrow(&resume.blocks, attempt),
        });
        CheckpointOrder {
            folder: self.terms.folder.clone(),
            every: self.terms.every,
            signal: self.terms.signal,
            metric: self.terms.best.as_ref().map(|best| best.name.clone()),
            attempt: attempt.ordinal,
            halvings: beginning.halvings,
            stall_s: self.terms.stall_s,
            blocks,
            resume: own.or(others),
        }
    }

    /// The URL as an attempt's executor gets it: good for that attempt, where the facilitator knows how.
    fn narrow(&self, url: &str, attempt: &StoredAttempt) -> String {
        let narrowed = self
            .grant
            .attempt_urls
            .then(|| attempt_url(url, attempt.ordinal))
            .flatten();
        narrowed.unwrap_or_else(|| url.to_owned())
    }

    /// Judges a checkpoint that an attempt's miner reported.
    ///
    /// The checkpoint that the attempt itself began from is never dropped for it: nobody has seen yet that a program
    /// can begin from the new one. The first checkpoint of an attempt that did begin from it shows that.
    pub(crate) fn judge(&self, notice: &CheckpointNotice, now: Timestamp) -> NoticedCheckpoint {
        let newest = self.checkpoints.last().map(|newest| &newest.facts);
        // Also if an earlier attempt left it: to report what one began from is no progress.
        if let Some(newest) = newest.filter(|newest| newest.manifest == notice.manifest) {
            return NoticedCheckpoint::Known(newest.ordinal);
        }
        if !(1..=MAX_NAME).contains(&notice.name.len()) || notice.name.contains(['/', '\0']) {
            return NoticedCheckpoint::Refused("its name is no name of a file");
        }
        let facts = KeptCheckpoint {
            ordinal: newest.map_or(1, |newest| newest.ordinal.saturating_add(1)),
            attempt: notice.job_uuid,
            manifest: notice.manifest,
            name: notice.name.clone(),
            bytes: notice.bytes,
            epoch: notice.epoch,
            step: notice.step,
            metric: notice.metric,
            at: now,
        };
        let kept = self
            .checkpoints
            .iter()
            .filter(|checkpoint| !checkpoint.is_dropped);
        let mut all: Vec<_> = kept.map(|checkpoint| facts_of(&checkpoint.facts)).collect();
        all.push(facts_of(&facts));
        let mut dropped = find_superfluous(&all, self.terms.best.as_ref());
        // The attempt's report alone must not cost the job the checkpoint that brought the attempt this far.
        let source = self.beginnings.get(&notice.job_uuid);
        let source = source.and_then(|beginning| beginning.from);
        dropped.retain(|ordinal| Some(*ordinal) != source);
        NoticedCheckpoint::New(Box::new(facts), dropped)
    }

    /// Notes a checkpoint that was stored. As in the store, a dropped one is forgotten once its attempt has a newer
    /// one.
    pub(crate) fn note_kept(&mut self, facts: KeptCheckpoint, dropped: &[u32]) {
        for checkpoint in &mut self.checkpoints {
            checkpoint.is_dropped |= dropped.contains(&checkpoint.facts.ordinal);
        }
        self.checkpoints.push(StoredCheckpoint {
            facts,
            is_dropped: false,
        });
        let newest = self.newest_by_attempt();
        self.checkpoints.retain(|checkpoint| {
            !checkpoint.is_dropped || newest.get(&checkpoint.facts.attempt) == Some(&checkpoint.facts.ordinal)
        });
    }

    fn newest_by_attempt(&self) -> BTreeMap<AttemptId, u32> {
        let mut newest = BTreeMap::new();
        for StoredCheckpoint { facts, .. } in &self.checkpoints {
            let known = newest.entry(facts.attempt).or_insert(facts.ordinal);
            *known = facts.ordinal.max(*known);
        }
        newest
    }

    /// The list for the facilitator, once the attempts from 1 to `ended_attempts` have ended.
    pub(crate) fn list(&self, ended_attempts: u32) -> JobCheckpoints {
        let kept = self
            .checkpoints
            .iter()
            .filter(|checkpoint| !checkpoint.is_dropped);
        JobCheckpoints {
            uuid: self.job,
            kept: kept.map(|checkpoint| checkpoint.facts.clone()).collect(),
            ended_attempts,
        }
    }

    /// The checkpoint of this job that an attempt began from.
    pub(crate) fn began_from(&self, attempt: AttemptId) -> Option<&KeptCheckpoint> {
        let beginning = self.beginnings.get(&attempt)?;
        Some(&self.find(beginning.from?)?.facts)
    }

    /// Whether an attempt of this job begins from a checkpoint, so that its miner must know how.
    pub(crate) fn resumes(&self, attempt: AttemptId) -> bool {
        let beginning = self.beginnings.get(&attempt);
        beginning.is_some_and(|beginning| beginning.from.is_some()) || self.grant.resume.is_some()
    }

    fn find(&self, ordinal: u32) -> Option<&StoredCheckpoint> {
        self.checkpoints
            .iter()
            .find(|checkpoint| checkpoint.facts.ordinal == ordinal)
    }

    fn checkpoints_of(&self, attempt: AttemptId) -> impl Iterator<Item = &StoredCheckpoint> {
        self.checkpoints
            .iter()
            .filter(move |checkpoint| checkpoint.facts.attempt == attempt)
    }

    /// The attempts that had an executor, in order.
    fn facts(&self, attempts: &[StoredAttempt]) -> Vec<AttemptFacts> {
        let had_one = attempts
            .iter()
            .filter(|attempt| attempt.machine.ready_at().is_some());
        let facts = had_one.filter_map(|attempt| {
            let outcome = attempt.machine.outcome()?;
            let beginning = self.beginnings.get(&attempt.id).copied().unwrap_or_default();
            let kept = self.checkpoints_of(attempt.id);
            Some(AttemptFacts {
                from: beginning.from,
                kept: kept.map(|checkpoint| checkpoint.facts.ordinal).collect(),
                halvings: beginning.halvings,
                ran_secs: ran_secs(attempt),
                fate: fate_of(outcome),
            })
        });
        facts.collect()
    }
}

const fn facts_of(checkpoint: &KeptCheckpoint) -> CheckpointFacts {
    CheckpointFacts {
        ordinal: checkpoint.ordinal,
        metric: checkpoint.metric,
    }
}

/// When the program of an attempt began: when its inputs were in place.
fn began_at(attempt: &StoredAttempt) -> Option<Timestamp> {
    let reached = attempt.machine.reached().iter();
    let began = reached.filter(|(stage, _)| *stage == TraceStage::Run);
    began.map(|(_, at)| *at).next()
}

fn ran_secs(attempt: &StoredAttempt) -> u64 {
    let end = attempt.machine.reached().last().map(|(_, at)| *at);
    let ran = began_at(attempt)
        .zip(end)
        .map(|(began, end)| end.since(began).as_secs());
    ran.unwrap_or_default()
}

/// The attempts of a job, as far as they decide who may be asked next.
pub(crate) fn earlier_attempts(attempts: &[StoredAttempt]) -> Vec<EarlierAttempt<'_>> {
    let earlier = attempts.iter().map(|attempt| EarlierAttempt {
        has_checkpoint: attempt.has_checkpoint,
        may_return: may_return(attempt),
        ..EarlierAttempt::new(attempt.miner, &attempt.machine)
    });
    earlier.collect()
}

/// Whether the miner of this attempt may have the next one as well: it brought the job on, or the program ran out
/// of memory, which is no fault of the miner's.
fn may_return(attempt: &StoredAttempt) -> bool {
    let fate = attempt.machine.outcome().map(fate_of);
    attempt.has_checkpoint || fate == Some(AttemptFate::OutOfMemory)
}

/// The pay of a lost attempt that left this checkpoint, in executor-microseconds: its time from the ready executor to
/// the checkpoint. The usual time of the same work does not bound it, since it is a part of the work.
pub(crate) fn partial_pay_us(attempt: &StoredAttempt, ready_at: Timestamp, left: &KeptCheckpoint) -> u64 {
    let reserved = attempt.machine.plan().executor_seconds();
    let took = left.at.since(ready_at);
    let work = MeasuredWork {
        reserved_us: reserved.saturating_mul(1_000_000),
        took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        usual_us: None,
        sealed: false,
        rated_us: None,
    };
    work.pay_us()
}

/// How an attempt ended, as far as it matters for the next one.
pub(crate) fn fate_of(outcome: &Outcome) -> AttemptFate {
    let hint = |context: Option<&serde_json::Value>| {
        let word = context.and_then(|context| context.get(RESUME_KEY));
        word.and_then(|word| word.as_str().map(str::to_owned))
    };
    match outcome {
        Outcome::Completed(_) => AttemptFate::Done,
        Outcome::Rejected(_) => AttemptFate::Lost,
        Outcome::Failed(details) => {
            let is_exit = details.reason == JobFailureReason::NonzeroReturnCode;
            let hint = hint(details.context.as_ref());
            let out_of_memory = hint.as_deref() == Some(OUT_OF_MEMORY);
            match details.docker_process_exit_status {
                _ if outcome.is_cancellation() => AttemptFate::UsersFault,
                _ if hint.as_deref() == Some(STALLED) => AttemptFate::Stalled,
                // At its time limit a program may save as well, and no time is left to go on in.
                Some(muster_checkpoints::resume::EXIT_SAVED) if is_exit => AttemptFate::Saved,
                Some(_) if out_of_memory => AttemptFate::OutOfMemory,
                Some(KILLED) if is_exit => AttemptFate::Lost,
                Some(code) if is_exit => AttemptFate::Exit(code),
                Some(_) | None => AttemptFate::UsersFault,
            }
        }
        Outcome::HordeFailed(details) => match hint(details.context.as_ref()).as_deref() {
            Some(DAMAGED_CHECKPOINT) => AttemptFate::DamagedData,
            // It is the program's own doing, and it goes on elsewhere.
            Some(LEASE_OVER) => AttemptFate::Lost,
            Some(_) | None if outcome.fault() == Fault::User => AttemptFate::UsersFault,
            Some(_) | None => AttemptFate::Lost,
        },
    }
}

#[cfg(test)]
mod tests;

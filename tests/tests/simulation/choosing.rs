//! How the simulated validator chooses a miner, and what a user's calling a job off changes: with the real routing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use muster_protocol::job::{Attempt, Event, Outcome};
use muster_protocol::status::{JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::RejectionDetails;
use muster_protocol::{AttemptId, JobId, Manifest, MinerKey};
use muster_routing::earlier_attempts::{AskedFor, EarlierAttempt, asked_miners, last_failure};
use muster_routing::{
    CacheKey, CollateralVerdict, JobRequirements, MinerStats, RoutableNeuron, Route, RoutingPolicy, route,
};

use crate::documents::plan;
use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::miner::{CLASS, miner_key, validator_key};
use crate::validator::{Job, Tried};
use crate::world::{Happening, MINERS, Node, World};

/// Why users call off.
pub(crate) const CALLED_OFF: &str = "no longer wanted";

impl World {
    /// Looks for another miner after an attempt that failed. If none may be asked now, the job waits.
    pub(crate) fn begin(&mut self, job: JobId) {
        let Some(stored) = self
            .validator
            .jobs
            .get(&job)
            .filter(|stored| stored.closed.is_none())
        else {
            return;
        };
        if self.is_called_off(job) {
            let outcome = without_miner(stored);
            return self.close_job(job, outcome);
        }
        if !self.chain {
            let life = self.validator.life;
            return self.after(Duration::from_secs(1), Happening::Begin(job, life));
        }
        let asked = asked_miners(&earlier_attempts(&stored.attempts), AskedFor::default());
        let last = stored.attempts.last().map(|tried| tried.id);
        if stored.called_off {
            let how = format!("a miner is looked for, for job {job}");
            self.violate(Invariant::NobodyAskedAfterCancel, how);
        }
        let Some(miner) = self.route(job, asked) else {
            if !self.wait_again(job)
                && let Some(stored) = self.validator.jobs.get(&job)
            {
                let outcome = without_miner(stored);
                self.close_job(job, outcome);
            }
            return;
        };
        let attempt = self.new_attempt(job, last, miner);
        if let Some(stored) = self.validator.jobs.get_mut(&job) {
            stored.attempts.push(attempt);
        }
        if !self.may_die_here(Node::Validator) {
            self.drive(job, false);
        }
    }

    /// An attempt after `last`.
    pub(crate) fn new_attempt(&mut self, job: JobId, last: Option<AttemptId>, miner: usize) -> Tried {
        let id = match last {
            None => AttemptId::first_of(job),
            Some(last) if self.mutated(Mutation::ValidatorReusesIds) => last,
            Some(_) => AttemptId::from_uuid(self.dice.uuid()),
        };
        let machine = Attempt::new(plan(self.traits.reattaches), self.now);
        Tried {
            id,
            miner,
            stored: machine.clone().assume_offered(self.now),
            machine,
            receipts: vec![],
            began: self.now,
        }
    }

    /// The miner that the real routing asks first.
    pub(crate) fn route(&self, job: JobId, tried: BTreeSet<MinerKey>) -> Option<usize> {
        miners_of(&self.route_all(job, tried)).first().copied()
    }

    /// The real routing of a job. It knows this validator's open attempts and the miners' manifests.
    pub(crate) fn route_all(&self, job: JobId, tried: BTreeSet<MinerKey>) -> Route {
        let requirements = JobRequirements {
            job,
            class: CLASS,
            image: CacheKey::image("image"),
            inputs: BTreeSet::new(),
            avoided_owners: BTreeSet::new(),
            private_image: false,
            tried,
            reserved_us: 0,
            lasts_s: 0,
        };
        let neuron = |(index, uid): (usize, u16)| RoutableNeuron {
            uid,
            miner: miner_key(index),
            owner: miner_key(index).0,
            axon: Some(SocketAddr::from(([127, 0, 0, 1], 8_000 + uid))),
            collateral: CollateralVerdict::NotRequired,
            allowance_us: None,
        };
        let neurons: Vec<_> = (0..MINERS).zip(0..).map(neuron).collect();
        let mut stats: BTreeMap<_, MinerStats> = BTreeMap::new();
        for index in 0..MINERS {
            let miner = stats.entry(miner_key(index)).or_default();
            miner.manifest = Some(Manifest::new([(CLASS, self.traits.believed)]));
            let full = self.validator.queue.full.get(&index);
            miner.full.extend(
                full.filter(|until| **until > self.now)
                    .map(|until| (CLASS, *until)),
            );
        }
        let attempts = self.validator.jobs.values().flat_map(|job| &job.attempts);
        for tried in attempts.filter(|tried| tried.machine.holds_executor()) {
            let miner = stats.entry(miner_key(tried.miner)).or_default();
            *miner.open.entry(CLASS).or_default() += 1;
        }
        let policy = RoutingPolicy {
            me: validator_key().0,
            max_incidents: u32::MAX,
            blacklist: BTreeSet::new(),
            most_unproven: 1,
            prices: RoutingPolicy::PRICES,
        };
        route(&requirements, &neurons, &stats, &policy)
    }

    pub(crate) fn is_called_off(&self, job: JobId) -> bool {
        let stored = self.validator.jobs.get(&job);
        stored.is_some_and(|stored| stored.called_off) && !self.mutated(Mutation::ValidatorIgnoresCancel)
    }

    /// Written down before anything follows from it. A job that is over is reported again.
    pub(crate) fn take_cancel(&mut self, job: JobId) {
        let Some(stored) = self.validator.jobs.get_mut(&job) else {
            return;
        };
        if stored.closed.is_some() {
            self.validator.outbox.repeat(job);
            return self.report_next();
        }
        let last = stored.attempts.last();
        let at_work = last
            .filter(|tried| tried.machine.outcome().is_none())
            .map(|tried| tried.id);
        let stored_waits = stored.waits.is_some();
        if std::mem::replace(&mut stored.called_off, true) || self.may_die_here(Node::Validator) {
            return;
        }
        match at_work {
            Some(attempt) if self.is_called_off(job) => {
                self.apply(attempt, Event::Cancelled(CALLED_OFF.to_owned()));
                self.look_later(attempt);
            }
            Some(_) => {}
            None if stored_waits && self.is_called_off(job) => self.end_waiting(job),
            None => {}
        }
    }
}

/// The miners that a route leaves, the best first.
pub(crate) fn miners_of(route: &Route) -> Vec<usize> {
    let index = |miner| (0..MINERS).find(|index| miner_key(*index) == miner);
    let candidates = route.candidates.iter();
    candidates
        .filter_map(|candidate| index(candidate.miner))
        .collect()
}

/// These attempts, as far as they decide who may be asked next.
pub(crate) fn earlier_attempts(attempts: &[Tried]) -> Vec<EarlierAttempt<'_>> {
    let earlier = attempts.iter();
    earlier
        .map(|tried| EarlierAttempt::new(tried.miner_key(), &tried.machine))
        .collect()
}

/// The end of a job that no miner is asked for any more: that of its last real attempt, or a reason of its own.
pub(crate) fn without_miner(stored: &Job) -> Outcome {
    last_failure(&earlier_attempts(&stored.attempts)).unwrap_or_else(|| {
        if stored.called_off {
            return Outcome::cancelled(JobStage::ExecutorStartup, CALLED_OFF);
        }
        rejected(JobRejectionReason::NoMinerForJob, "nobody is left")
    })
}

/// A rejection by the validator.
pub(crate) fn rejected(reason: JobRejectionReason, message: &str) -> Outcome {
    Outcome::Rejected(RejectionDetails {
        rejected_by: ParticipantType::Validator,
        reason,
        message: message.to_owned(),
        context: None,
    })
}

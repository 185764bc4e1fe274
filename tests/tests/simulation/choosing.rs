//! How the simulated validator chooses a miner, and what a user's calling a job off changes: with the real routing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use muster_protocol::job::{Attempt, Event, Outcome};
use muster_protocol::status::{JobRejectionReason, JobStage, ParticipantType};
use muster_protocol::wire::facilitator::RejectionDetails;
use muster_protocol::{AttemptId, JobId};
use muster_routing::{CacheKey, JobRequirements, MinerStats, RoutableNeuron, RoutingPolicy, route};

use crate::faults::Mutation;
use crate::invariants::Invariant;
use crate::miner::{CLASS, miner_key, validator_key};
use crate::papers::plan;
use crate::validator::{Job, Tried};
use crate::world::{Happening, MINERS, Node, World};

/// Why users call off.
pub(crate) const CALLED_OFF: &str = "no longer wanted";

impl World {
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
            let before = stored
                .attempts
                .last()
                .and_then(|tried| tried.machine.outcome().cloned());
            let cancelled = || Outcome::cancelled(JobStage::ExecutorStartup, CALLED_OFF);
            return self.close_job(job, before.unwrap_or_else(cancelled));
        }
        if !self.chain {
            let life = self.validator.life;
            return self.after(Duration::from_secs(1), Happening::Begin(job, life));
        }
        let last = stored.attempts.last().map(|tried| tried.id);
        let before = stored
            .attempts
            .last()
            .and_then(|tried| tried.machine.outcome().cloned());
        if stored.called_off {
            let how = format!("a miner is looked for, for job {job}");
            self.violate(Invariant::NobodyAskedAfterCancel, how);
        }
        let Some(miner) = self.route(job) else {
            let nobody = || {
                Outcome::Rejected(RejectionDetails {
                    rejected_by: ParticipantType::Validator,
                    reason: JobRejectionReason::NoMinerForJob,
                    message: "nobody is left".to_owned(),
                    context: None,
                })
            };
            return self.close_job(job, before.unwrap_or_else(nobody));
        };
        let id = match last {
            None => AttemptId::first_of(job),
            Some(last) if self.mutated(Mutation::ValidatorReusesIds) => last,
            Some(_) => AttemptId::from_uuid(self.dice.uuid()),
        };
        let attempt = Tried {
            id,
            miner,
            machine: Attempt::new(plan(), self.now),
            receipts: vec![],
            began: self.now,
        };
        if let Some(stored) = self.validator.jobs.get_mut(&job) {
            stored.attempts.push(attempt);
        }
        if !self.may_die_here(Node::Validator) {
            self.drive(job, false);
        }
    }

    /// The miner that the real routing asks first. It knows this validator's open attempts, and the miners that had an
    /// attempt.
    fn route(&self, job: JobId) -> Option<usize> {
        let tried = |stored: &Job| {
            stored
                .attempts
                .iter()
                .map(|tried| miner_key(tried.miner))
                .collect()
        };
        let wish = JobRequirements {
            job,
            class: CLASS,
            image: CacheKey::image("image"),
            inputs: BTreeSet::new(),
            avoided_owners: BTreeSet::new(),
            private_image: false,
            tried: self.validator.jobs.get(&job).map(tried).unwrap_or_default(),
        };
        let subject = |(index, uid): (usize, u16)| RoutableNeuron {
            uid,
            miner: miner_key(index),
            owner: miner_key(index).0,
            axon: Some(SocketAddr::from(([127, 0, 0, 1], 8_000 + uid))),
        };
        let subjects: Vec<_> = (0..MINERS).zip(0..).map(subject).collect();
        let mut standings: BTreeMap<_, MinerStats> = BTreeMap::new();
        let attempts = self.validator.jobs.values().flat_map(|job| &job.attempts);
        for tried in attempts.filter(|tried| tried.machine.holds_executor()) {
            let standing = standings.entry(miner_key(tried.miner)).or_default();
            *standing.open.entry(CLASS).or_default() += 1;
        }
        let policy = RoutingPolicy {
            me: validator_key().0,
            max_incidents: u32::MAX,
            blacklist: BTreeSet::new(),
            most_unproven: u32::MAX,
            prices: RoutingPolicy::PRICES,
        };
        let chosen = route(&wish, &subjects, &standings, &policy)
            .candidates
            .into_iter()
            .next()?;
        (0..MINERS).find(|index| miner_key(*index) == chosen.miner)
    }

    pub(crate) fn is_called_off(&self, job: JobId) -> bool {
        let stored = self.validator.jobs.get(&job);
        stored.is_some_and(|stored| stored.called_off) && !self.mutated(Mutation::ValidatorIgnoresCancel)
    }

    /// Written down before anything follows from it. A job that is over is told again.
    pub(crate) fn take_cancel(&mut self, job: JobId) {
        let Some(stored) = self.validator.jobs.get_mut(&job) else {
            return;
        };
        if let Some(end) = &stored.closed {
            let status = end.status();
            self.validator.report(job, status);
            return self.report_next();
        }
        let last = stored.attempts.last();
        let at_work = last
            .filter(|tried| tried.machine.outcome().is_none())
            .map(|tried| tried.id);
        if std::mem::replace(&mut stored.called_off, true) || self.may_die_here(Node::Validator) {
            return;
        }
        match at_work {
            Some(attempt) if self.is_called_off(job) => {
                self.apply(attempt, Event::Cancelled(CALLED_OFF.to_owned()));
                self.look_later(attempt);
            }
            Some(_) => {}
            None => self.begin(job),
        }
    }
}

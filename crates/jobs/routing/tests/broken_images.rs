//! The attack by broken images and by programs that break what runs them, over the rules that mark attempts, route jobs
//! and run trials: two accounts submit them, and a third account's jobs wait no longer for that.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use muster_protocol::job::{BROKEN_IMAGE_KEY, Outcome};
use muster_protocol::wire::facilitator::{FailureDetails, HordeFailureDetails, UserJobRequest};
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, HordeFailureReason, Hotkey, ImageId, JobFailureReason, JobId, JobStage,
    Manifest, MinerKey, ParticipantType, Signature, Timestamp,
};
use muster_routing::availability::{Availability, availability};
use muster_routing::retry::{NextStep, RetryContext, next_step};
use muster_routing::start_claims::{ProgramKey, StartClaims, is_start_claim};
use muster_routing::trials::{TrialSchedule, TrialVerdict};
use muster_routing::{
    AttemptMark, CacheKey, CollateralVerdict, Exclusion, JobRequirements, LedgerWindows, MarkEvidence,
    MarkedJob, MinerLedger, MinerStats, RoutableNeuron, Route, RoutingPolicy, mark_attempt, route,
};
use serde_json::json;
use uuid::Uuid;

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
/// Broken images of each kind, submitted by each of two accounts in turn.
const IMAGES: u32 = 50;

/// The window of incidents and suspects.
const WINDOW: Duration = Duration::from_secs(600);

/// The end of an attempt at one kind of broken image or of hostile program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The engine's words are known: the image is at fault.
    Broken,
    /// No row knows the engine's words: the executor takes the failure upon itself.
    Unknown,
    /// The image fills the machine's disk, or hits another bound of the machine.
    Machine,
    /// The program crashes its executor, as the miner says.
    Crash,
    /// The program cuts the connection of its miner.
    Cut,
    /// The program holds the executor so that no word comes in time.
    Hang,
}

impl Answer {
    const ALL: [Self; 6] = [
        Self::Broken,
        Self::Unknown,
        Self::Machine,
        Self::Crash,
        Self::Cut,
        Self::Hang,
    ];
}

fn outcome(answer: Answer) -> Outcome {
    match answer {
        Answer::Broken => Outcome::Failed(Box::new(FailureDetails {
            reason: JobFailureReason::Unknown,
            stage: JobStage::Execution,
            message: String::new(),
            context: Some(json!({
                BROKEN_IMAGE_KEY: true, "fault": "user", "ran": { "id": ImageId(Digest::of(b"x")) },
            })),
            docker_process_exit_status: None,
            docker_process_stdout: None,
            docker_process_stderr: None,
        })),
        Answer::Unknown => horde_failed(
            ParticipantType::Executor,
            HordeFailureReason::ExecutorSpinupFailed,
        ),
        Answer::Machine => horde_failed(ParticipantType::Executor, HordeFailureReason::GenericError),
        Answer::Crash => horde_failed(ParticipantType::Miner, HordeFailureReason::ExecutorDisconnected),
        Answer::Cut => horde_failed(
            ParticipantType::Validator,
            HordeFailureReason::MinerConnectionFailed,
        ),
        Answer::Hang => horde_failed(ParticipantType::Validator, HordeFailureReason::ExecutionTimedOut),
    }
}

fn horde_failed(reported_by: ParticipantType, reason: HordeFailureReason) -> Outcome {
    Outcome::HordeFailed(HordeFailureDetails {
        reported_by,
        reason,
        message: String::new(),
        context: Some(json!({ "fault": "executor" })),
    })
}

/// A validator's knowledge of some miners of different owners, each with one executor.
struct Subnet {
    ledger: MinerLedger,
    claims: StartClaims,
    /// Of a validator that has a known image.
    trials: Option<TrialSchedule>,
    /// The miners whose engines run nothing.
    broken: BTreeSet<MinerKey>,
    neurons: Vec<RoutableNeuron>,
    now: Timestamp,
    jobs: u128,
}

impl Subnet {
    /// A validator that runs trials.
    fn new(miners: u8) -> Self {
        Self {
            trials: Some(TrialSchedule::new(WINDOW)),
            ..Self::without_trials(miners)
        }
    }

    fn without_trials(miners: u8) -> Self {
        let mut ledger = MinerLedger::new(LedgerWindows {
            record: WINDOW,
            given: Duration::from_secs(3_600),
            manifest: Duration::from_secs(86_400),
            full: Duration::from_secs(5),
            warm: Duration::from_secs(86_400),
        });
        let now = Timestamp::from_secs(1_000);
        let neurons: Vec<_> = (1..=miners)
            .map(|seed| {
                let owner = Hotkey::from_bytes([seed; 32]);
                ledger.record_manifest(MinerKey(owner), Manifest::new([(CLASS, 1)]), now);
                RoutableNeuron {
                    uid: u16::from(seed),
                    miner: MinerKey(owner),
                    owner,
                    axon: Some(SocketAddr::from(([127, 0, 0, 1], 4_000))),
                    allowance_us: None,
                    collateral: CollateralVerdict::NotRequired,
                }
            })
            .collect();
        Self {
            ledger,
            claims: StartClaims::default(),
            trials: None,
            broken: BTreeSet::new(),
            neurons,
            now,
            jobs: 0,
        }
    }

    fn route(&self, tried: &BTreeSet<MinerKey>) -> Route {
        let policy = RoutingPolicy {
            me: Hotkey::from_bytes([0; 32]),
            max_incidents: 3,
            blacklist: BTreeSet::new(),
            most_unproven: 1,
            prices: RoutingPolicy::PRICES,
        };
        let requirements = JobRequirements {
            job: JobId::from_uuid(Uuid::from_u128(self.jobs)),
            class: CLASS,
            image: CacheKey::image("x"),
            inputs: BTreeSet::new(),
            tried: tried.clone(),
            avoided_owners: BTreeSet::new(),
            private_image: false,
            reserved_us: 0,
            lasts_s: 0,
        };
        let miners = self.neurons.iter().map(|neuron| neuron.miner);
        let stats: BTreeMap<_, _> = self.ledger.stats(miners, &BTreeSet::new(), self.now);
        route(&requirements, &self.neurons, &stats, &policy)
    }

    /// Runs one job, of which each attempt ends so, to its end. Returns its attempts.
    fn run(&mut self, program: ProgramKey, ends: impl Fn(MinerKey) -> Outcome) -> u32 {
        self.jobs += 1;
        let mut tried = BTreeSet::new();
        loop {
            let Some(chosen) = self.route(&tried).candidates.first().copied() else {
                return u32::try_from(tried.len()).unwrap();
            };
            let (miner, owner) = (chosen.miner, chosen.miner.0);
            self.ledger.record_offer(miner, self.now);
            self.now = self.now.plus(Duration::from_secs(2));
            let outcome = ends(miner);
            let started_elsewhere = self.claims.is_started_elsewhere(program, owner, self.now);
            let job = MarkedJob::Users {
                is_tried: self.trials.is_some(),
            };
            let evidence = MarkEvidence {
                job,
                started_elsewhere,
                ..MarkEvidence::default()
            };
            let mark = mark_attempt(&outcome, evidence);
            self.ledger.record_mark(miner, mark, self.now);
            if let Some(trials) = &mut self.trials
                && mark == AttemptMark::Suspect
            {
                trials.note_suspect(miner, CLASS, self.now);
            }
            self.run_trials();
            if is_start_claim(&outcome, mark, job) {
                let attempt: AttemptId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
                self.claims.note_claim(program, (attempt, miner, owner), self.now);
            } else if outcome.ran_to_its_end() {
                for wrong in self.claims.note_start(program, owner, self.now) {
                    self.ledger
                        .record_mark(wrong.miner, AttemptMark::Incident, self.now);
                }
            }
            tried.insert(miner);
            let context = RetryContext {
                attempts: u32::try_from(tried.len()).unwrap(),
                max_attempts: 3,
                cancelled: false,
                slow_images: 0,
                image_elsewhere: false,
                started_elsewhere,
                address_told: false,
                goes_on: None,
            };
            match next_step(&outcome, context) {
                NextStep::TryAnother => {}
                NextStep::Report(_) => return u32::try_from(tried.len()).unwrap(),
            }
        }
    }

    /// Runs the trials that are due. Each takes no time.
    fn run_trials(&mut self) {
        let Some(trials) = &mut self.trials else { return };
        for (miner, _) in trials.begin_due(self.now) {
            let outcome = match self.broken.contains(&miner) {
                true => outcome(Answer::Unknown),
                false => Outcome::Completed(Box::default()),
            };
            let evidence = MarkEvidence {
                job: MarkedJob::Trial {
                    is_last_chance: trials.is_last_chance(miner),
                },
                ..MarkEvidence::default()
            };
            let mark = mark_attempt(&outcome, evidence);
            let verdict = TrialVerdict::of(&outcome, mark);
            self.ledger.record_mark(miner, mark, self.now);
            trials.note_verdict(miner, verdict, self.now);
            if verdict == TrialVerdict::Passed {
                self.ledger.end_bench(miner);
            }
            trials.end(miner);
        }
    }

    /// Lets time pass, with the trials that are due in it.
    fn rest(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now.plus(Duration::from_secs(1));
            self.run_trials();
        }
    }

    /// The reason for which a miner gets no job.
    fn exclusion(&self, miner: MinerKey) -> Option<Exclusion> {
        let route = self.route(&BTreeSet::new());
        let mut excluded = route.excluded.iter();
        let found = excluded.find(|excluded| excluded.miner == miner)?;
        Some(found.reason)
    }

    fn stats(&self) -> BTreeMap<MinerKey, MinerStats> {
        let miners = self.neurons.iter().map(|neuron| neuron.miner);
        self.ledger.stats(miners, &BTreeSet::new(), self.now)
    }

    /// Whether a job of the third account starts at once.
    fn starts_at_once(&self) -> bool {
        matches!(availability(&self.route(&BTreeSet::new())), Availability::Now(_))
    }
}

fn program(name: &str) -> ProgramKey {
    let request: UserJobRequest = serde_json::from_value(json!({
        "signature": {
            "signature_type": "bittensor", "signatory": Hotkey::from_bytes([7; 32]), "timestamp_ns": 1,
            "signature": Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
        },
        "uuid": "11111111-2222-4333-8444-555555555555", "executor_class": CLASS, "docker_image": "x", "args": [],
        "env": {}, "download_time_limit": 1, "execution_time_limit": 1, "upload_time_limit": 1,
        "streaming_start_time_limit": 1,
    }))
    .unwrap();
    ProgramKey::of_job(ImageId(Digest::of(name.as_bytes())), &request).unwrap()
}

#[test]
fn fifty_broken_images_of_each_kind_bench_no_miner() {
    for miners in [1, 2, 5] {
        let mut subnet = Subnet::new(miners);
        for answer in Answer::ALL {
            for number in 0..IMAGES {
                for account in ["mallory", "trudy"] {
                    let image = program(&format!("{answer:?} {account} {number}"));
                    let attempts = subnet.run(image, |_| outcome(answer));
                    let most = if answer == Answer::Broken {
                        1
                    } else {
                        u32::from(miners).min(3)
                    };
                    assert_eq!(attempts, most, "{answer:?} at {miners} miners");
                    assert!(subnet.starts_at_once(), "{answer:?} {number} at {miners} miners");
                }
            }
        }
        let honest = subnet.run(program("honest"), |_| Outcome::Completed(Box::default()));
        assert_eq!(honest, 1, "the third account's job runs at the first miner");
    }
}

#[test]
fn a_miner_that_calls_every_image_broken_falls_behind_those_that_start_them() {
    let mut subnet = Subnet::new(3);
    let lazy = MinerKey(Hotkey::from_bytes([1; 32]));
    for number in 0..20 {
        let image = program(&number.to_string());
        let ends = |miner: MinerKey| match miner == lazy {
            true => outcome(Answer::Broken),
            false => Outcome::Completed(Box::default()),
        };
        // Several users run each program.
        for _ in 0..4 {
            subnet.run(image, ends);
        }
    }
    let miners = subnet.neurons.iter().map(|neuron| neuron.miner);
    let stats = subnet.ledger.stats(miners, &BTreeSet::new(), subnet.now);
    let incidents: Vec<_> = stats.values().map(|stats| stats.incidents).collect();
    assert!(incidents.first().is_some_and(|count| *count > 0), "{incidents:?}");
    assert_eq!(
        incidents.get(1..),
        Some(&[0, 0][..]),
        "the miners that started them have none"
    );
    let given: Vec<_> = stats.values().map(|stats| stats.given).collect();
    assert!(
        given
            .iter()
            .skip(1)
            .all(|honest| *honest > 2 * given.iter().copied().min().unwrap()),
        "{given:?}"
    );
}

#[test]
fn without_trials_a_broken_engine_has_incidents_by_the_second_attempts_of_the_same_jobs() {
    let mut subnet = Subnet::without_trials(2);
    let broken = MinerKey(Hotkey::from_bytes([1; 32]));
    for number in 0..12 {
        let attempts = subnet.run(program(&number.to_string()), |miner| match miner == broken {
            true => outcome(Answer::Unknown),
            false => Outcome::Completed(Box::default()),
        });
        assert!(attempts <= 2);
    }
    let stats = subnet.ledger.stats(
        [broken, MinerKey(Hotkey::from_bytes([2; 32]))],
        &BTreeSet::new(),
        subnet.now,
    );
    let incidents: Vec<_> = stats.values().map(|stats| stats.incidents).collect();
    assert!(incidents.first().is_some_and(|count| *count > 0), "{incidents:?}");
    assert_eq!(incidents.last(), Some(&0), "the miner that started them has none");
}

fn miner(seed: u8) -> MinerKey {
    MinerKey(Hotkey::from_bytes([seed; 32]))
}

#[test]
fn a_miner_with_a_broken_engine_is_benched_within_two_minutes_and_comes_back_once_it_works() {
    for miners in [1, 2, 5] {
        for users_jobs in [1, 50] {
            let mut subnet = Subnet::new(miners);
            let broken = miner(1);
            subnet.broken.insert(broken);
            let ends = |asked: MinerKey| match asked == broken {
                true => outcome(Answer::Unknown),
                false => Outcome::Completed(Box::default()),
            };
            // The miner is asked at last: the order among equals is drawn.
            let mut number = 0;
            while subnet.stats()[&broken].suspects == 0 {
                subnet.run(program(&number.to_string()), ends);
                number += 1;
            }
            let suspected = subnet.now;
            for _ in 1..users_jobs {
                subnet.run(program(&number.to_string()), ends);
                number += 1;
            }
            while subnet.exclusion(broken).is_none() && subnet.now.since(suspected) < WINDOW {
                subnet.rest(1);
            }
            let took = subnet.now.since(suspected);
            assert!(
                took <= Duration::from_secs(120),
                "{took:?} at {miners} miners and {users_jobs} jobs"
            );
            assert_eq!(subnet.exclusion(broken), Some(Exclusion::FailedTrial));
            // It stays benched for as long as it fails.
            for _ in 0..60 {
                subnet.rest(60);
                assert_eq!(subnet.exclusion(broken), Some(Exclusion::FailedTrial));
            }
            subnet.broken.clear();
            subnet.rest(480);
            assert_ne!(subnet.exclusion(broken), Some(Exclusion::FailedTrial));
        }
    }
}

#[test]
fn a_miner_that_passes_trials_and_fails_users_gets_only_what_nobody_else_takes() {
    for answer in [Answer::Unknown, Answer::Crash, Answer::Cut, Answer::Hang] {
        let mut subnet = Subnet::new(3);
        let hostile = miner(1);
        for number in 0..200 {
            subnet.run(program(&number.to_string()), |asked| match asked == hostile {
                true => outcome(answer),
                false => Outcome::Completed(Box::default()),
            });
        }
        let stats = subnet.stats();
        assert_eq!(
            stats[&hostile].suspects, 3,
            "{answer:?}: the fourth job of ten minutes goes elsewhere"
        );
        assert_eq!(subnet.exclusion(hostile), None, "{answer:?}: users bench nobody");
        let others: Vec<_> = [2, 3].map(|seed| stats[&miner(seed)].done).into();
        assert!(others.iter().all(|done| *done > 50), "{answer:?}: {others:?}");
    }
}

#[test]
fn programs_that_fail_at_one_miner_alone_keep_it_from_no_user_that_has_no_other() {
    let mut subnet = Subnet::new(2);
    let framed = miner(1);
    for number in 0..100 {
        subnet.run(program(&number.to_string()), |asked| match asked == framed {
            true => outcome(Answer::Cut),
            false => Outcome::Completed(Box::default()),
        });
        assert_eq!(subnet.exclusion(framed), None);
        let other_is_at_work = subnet.route(&[miner(2)].into());
        assert!(matches!(availability(&other_is_at_work), Availability::Now(_)));
    }
    subnet.rest(620);
    let candidates = subnet.route(&BTreeSet::new()).candidates;
    assert!(
        candidates.iter().all(|candidate| candidate.cost.doubt == 0),
        "the doubt ends with the window"
    );
}

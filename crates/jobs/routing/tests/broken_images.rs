//! The attack by broken images, over the rules that mark attempts and route jobs: two accounts submit images that no
//! engine can start, and a third account's jobs wait no longer for that.

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
use muster_routing::{
    AttemptMark, CacheKey, CollateralVerdict, JobRequirements, LedgerWindows, MarkEvidence, MinerLedger,
    RoutableNeuron, Route, RoutingPolicy, mark_attempt, route,
};
use serde_json::json;
use uuid::Uuid;

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
/// Broken images of each kind, submitted by each of two accounts in turn.
const IMAGES: u32 = 50;

/// The judgement of an executor about one kind of broken image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The engine's words are known: the image is at fault.
    Broken,
    /// No row knows the engine's words: the executor takes the failure upon itself.
    Unknown,
    /// The image fills the machine's disk, or hits another bound of the machine.
    Machine,
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
        Answer::Unknown | Answer::Machine => Outcome::HordeFailed(HordeFailureDetails {
            reported_by: ParticipantType::Executor,
            reason: match answer {
                Answer::Unknown => HordeFailureReason::ExecutorSpinupFailed,
                Answer::Broken | Answer::Machine => HordeFailureReason::GenericError,
            },
            message: String::new(),
            context: Some(json!({ "fault": "executor" })),
        }),
    }
}

/// A validator's knowledge of some miners of different owners, each with one executor.
struct Subnet {
    ledger: MinerLedger,
    claims: StartClaims,
    neurons: Vec<RoutableNeuron>,
    now: Timestamp,
    jobs: u128,
}

impl Subnet {
    fn new(miners: u8) -> Self {
        let mut ledger = MinerLedger::new(LedgerWindows {
            record: Duration::from_secs(600),
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
            let evidence = MarkEvidence {
                is_users: true,
                started_elsewhere,
                ..MarkEvidence::default()
            };
            let mark = mark_attempt(&outcome, evidence);
            self.ledger.record_mark(miner, mark, self.now);
            let failed = outcome.is_broken_image() || outcome.is_executors_own_failure();
            if is_start_claim(&outcome, mark) {
                let attempt: AttemptId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
                self.claims.note_claim(program, (attempt, miner, owner), self.now);
            } else if !failed {
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
        for answer in [Answer::Broken, Answer::Unknown, Answer::Machine] {
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
fn a_miner_whose_engine_is_broken_has_incidents_by_the_second_attempts_of_the_same_jobs() {
    let mut subnet = Subnet::new(2);
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

//! A batch in memory: one miner's executors behave as the test prescribes and sign their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use muster_grading::batch::{Batch, BatchAction, BatchEvent, BatchRules};
use muster_grading::batch_file::{
    BatchFile, BatchHead, FORMAT, ParticipantEvidence, ProofEvidence, ProvenCount,
};
use muster_grading::batch_plan::{
    Announcement, BatchBounds, BlockHash, ServingSession, SilentMiner, assign_sessions, draw_batch,
};
use muster_grading::batch_settlement::judge_silent_miner;
use muster_grading::evidence_signatures::{GRADE_PATH, IN_SESSION_PATH};
use muster_grading::grade_spec::{ALLOWANCE_US, GradeSpec, Trial};
use muster_grading::judgement::{Absence, Judgement, Why};
use muster_grading::trial_result::TrialResult;
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce};
use muster_hardware_proof::challenge_message::{HEAD, MessageKind, ProofSpec};
use muster_hardware_proof::conversation::{
    self, ExecutorCommand, ExecutorConversation, ProverLimits, ValidatorConversation, ValidatorInput,
};
use muster_hardware_proof::grade::ProofKind;
use muster_hardware_proof::prover::cheat::Smaller;
use muster_hardware_proof::prover::{CpuProver, NoObserver, Prover, perform_task};
use muster_hardware_proof::spec::WalkMemory;
use muster_hardware_proof::{Evidence, InstructionSet};
use muster_identity::Keypair;
use muster_protocol::receipt::AttemptAtWork;
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey,
};
use muster_response_proof::{
    Attestation, ChunkTree, Envelope, HashScheme, Price, ResponseProof, Sealable as _, SessionId, StreamEnd,
    Text, seal,
};
use muster_scoring::ObservationKind;
use uuid::Uuid;

pub(super) const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
pub(super) const HASH: BlockHash = [5; 32];
pub(super) const RULES: BatchRules = BatchRules {
    kind: ObservationKind::Announced,
    gather_us: 60_000_000,
};
pub(super) const CAPS: ProverLimits = ProverLimits {
    log2_n: 10,
    memory_bytes: 1 << 22,
    work: 64,
    read_bytes: 1 << 34,
};

/// The behaviour of an executor, in its first attempt at the products unless the variant names another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Honest,
    /// Multiplies matrices of half the side.
    Smaller,
    /// Commits to the roots of the executor at this place, in a message of its own challenge.
    Copies(usize),
    /// Sends a message that belongs to the challenge of the executor at this place.
    Foreign(usize),
    /// Repeats a message of an earlier batch.
    Replays,
    Late,
    LateOnce,
    /// Fills the memory of its first WALK too late.
    FillsLateOnce,
    Early,
    Oversized,
    Malformed,
    WrongOpening,
    LeavesAtBarrier,
    /// Leaves between its first trial and its second.
    LeavesBetween,
    /// Leaves after its last trial, while others are being judged.
    LeavesAtEnd,
    LeavesBefore,
    LeavesAfter,
    Declines(bool),
    /// Declines with receipts of this many attempts at work.
    Shows(u8),
    NeverReady,
    /// Serves a session, which the validator ends before the answer.
    IsLetGo,
}

pub(super) fn keypair(byte: u8) -> Keypair {
    Keypair::from_seed([byte; 32])
}

pub(super) fn key(byte: u8) -> Hotkey {
    keypair(byte).hotkey()
}

pub(super) fn job(place: usize) -> JobId {
    JobId::from_uuid(Uuid::from_u128(place as u128 + 1))
}

/// The session in which an executor is challenged, with its signing state.
pub(super) struct Session {
    key: Keypair,
    attestation: Envelope<Attestation>,
    path: &'static str,
    sequence: u64,
    previous: Digest,
}

impl Session {
    fn new(place: usize, job: JobId, path: &'static str) -> Self {
        let own = keypair(u8::try_from(100 + place).unwrap());
        let text = |text: &str| Text::new(text).unwrap();
        let stated = Attestation {
            session: SessionId(*job.as_uuid()),
            session_key: own.hotkey(),
            job,
            attempt: AttemptId::first_of(job),
            miner: MinerKey(key(1)),
            audience: me(),
            server_certificate: Digest::of(b"server"),
            client_certificate: Digest::of(b"client"),
            executor: text("executor"),
            address: text("127.0.0.1:1"),
            image: ImageId(Digest::of(b"image")),
            model: None,
            scheme: HashScheme::RawHttp,
            price: Price::default(),
            not_before: Timestamp::from_secs(0),
            not_after: Timestamp::from_secs(1_000),
        };
        let attestation = seal(&stated, &keypair(1));
        // A session in use has answered other requests before.
        let sequence = if path == GRADE_PATH { 0 } else { 9_000 };
        Self {
            key: own,
            previous: attestation.digest(),
            attestation,
            path,
            sequence,
        }
    }

    fn seal(&mut self, asked: &[u8], answer: &[u8]) -> String {
        let attested = self.attestation.statement().unwrap();
        let mut chunks = ChunkTree::default();
        chunks.update(answer);
        let at = Timestamp::from_secs(10);
        let stated = ResponseProof {
            session: attested.session,
            sequence: self.sequence,
            previous: self.previous,
            job: attested.job,
            attempt: attested.attempt,
            audience: attested.audience,
            client: None,
            attestation: self.attestation.digest(),
            client_nonce: None,
            gateway_nonce: None,
            method: Text::new("POST").unwrap(),
            path: Text::new(self.path).unwrap(),
            status: 200,
            content_type: None,
            scheme: attested.scheme,
            input: Digest::of(asked),
            output: Digest::of(answer),
            output_bytes: answer.len() as u64,
            chunks: chunks.finish(),
            from: at,
            first_byte: Some(at),
            to: at,
            tokens: None,
            engine: None,
            end: StreamEnd::Completed,
        };
        // Between two challenges, a session in use answers another request.
        self.sequence += if self.path == GRADE_PATH { 1 } else { 2 };
        self.previous = Digest::of(&stated.signed_bytes());
        seal(&stated, &self.key).to_text()
    }
}

pub(super) fn me() -> ValidatorKey {
    ValidatorKey(key(200))
}

pub(super) fn said(miner: u8, count: u32) -> Announcement {
    let miner = MinerKey(key(miner));
    let class = CLASS;
    Announcement { miner, class, count }
}

pub(super) fn prover() -> CpuProver {
    CpuProver::new(InstructionSet::best(), NonZeroUsize::MIN)
}

/// A finished batch and its file.
pub(super) struct Went {
    pub(super) file: BatchFile,
    /// When the first challenges were sent, in microseconds after the begin.
    pub(super) first_challenge_us: Option<u64>,
    /// The number of challenges and of releases of each executor.
    pub(super) fired: BTreeMap<usize, usize>,
    pub(super) released: BTreeMap<usize, usize>,
}

struct World {
    does: Vec<Does>,
    batch: Batch,
    id: BatchId,
    kept: BTreeMap<usize, ParticipantEvidence>,
    /// The results of executors that have committed, until the batch asks for them.
    judged: BTreeMap<usize, TrialResult>,
    fired: BTreeMap<usize, usize>,
    released: BTreeMap<usize, usize>,
    now_us: u64,
    first_challenge_us: Option<u64>,
    /// Commitments to products, for executors that copy.
    commitments: BTreeMap<usize, Vec<u8>>,
    /// The prover of each executor and the memory that it was asked to fill last.
    machines: BTreeMap<usize, (CpuProver, Option<WalkMemory>)>,
    /// The signing state of each challenged executor.
    sessions: BTreeMap<usize, Session>,
    /// The jobs of executors that serve, by place.
    serving: BTreeMap<usize, JobId>,
    /// The executors whose session the validator ends before the answer.
    let_go: BTreeSet<usize>,
}

/// Runs a batch of one miner's executors.
pub(super) fn run(does: &[Does]) -> Went {
    run_with(does, 0, 0)
}

/// Runs a batch of a miner that had `before` executors proven earlier and whose last `sessions` executors serve
/// sessions.
pub(super) fn run_with(does: &[Does], proven: u32, sessions: usize) -> Went {
    run_kind(ObservationKind::Announced, does, proven, sessions)
}

/// The same for a batch of this kind.
pub(super) fn run_kind(kind: ObservationKind, does: &[Does], proven: u32, sessions: usize) -> Went {
    let count = u32::try_from(does.len()).unwrap();
    let announced = vec![said(1, count)];
    let plan = draw_batch(kind, &HASH, me(), &announced, BatchBounds::default());
    let before = vec![ProvenCount {
        miner: MinerKey(key(1)),
        class: CLASS,
        proven,
    }];
    let grade_spec = GradeSpec::for_class(CLASS).unwrap();
    let serving: Vec<_> = (0..sessions)
        .map(|number| ServingSession {
            miner: MinerKey(key(1)),
            class: CLASS,
            job: job(1_000 + number),
        })
        .collect();
    let places = assign_sessions(&plan.participants, &serving);
    let rules = BatchRules { kind, ..RULES };
    let batch = Batch::new(plan.participants.clone(), [grade_spec.clone()], rules, 0);
    let mut world = World {
        does: does.to_vec(),
        batch: batch.with_sessions(places.keys().copied()),
        id: plan.id,
        kept: BTreeMap::new(),
        judged: BTreeMap::new(),
        fired: BTreeMap::new(),
        released: BTreeMap::new(),
        now_us: 0,
        first_challenge_us: None,
        commitments: BTreeMap::new(),
        machines: BTreeMap::new(),
        sessions: BTreeMap::new(),
        serving: places,
        let_go: BTreeSet::new(),
    };
    let head = BatchHead {
        validator: me(),
        kind,
        block: 77,
        hash: HASH,
        announced,
        silent: vec![SilentMiner {
            miner: MinerKey(key(2)),
            said: "no manifest came within 5 s".to_owned(),
        }],
        serving,
        bounds: BatchBounds::default(),
        grade_specs: vec![grade_spec],
        proven_before: before,
    };
    world.go();
    let (mut judgements, fingerprints) = world.batch.judgements(&head.proven_before()).unwrap();
    for (place, absence) in world.batch.absences() {
        world.kept.entry(*place).or_default().absence = Some(absence.clone());
    }
    for (place, session) in &world.sessions {
        let kept = world.kept.entry(*place).or_default();
        let stated = session.attestation.statement().unwrap();
        kept.job = Some(stated.job.to_string());
        kept.attestation = Some(session.attestation.to_text());
    }
    world
        .kept
        .insert(judgements.len(), ParticipantEvidence::default());
    judgements.extend(head.silent.iter().map(judge_silent_miner));
    let file = BatchFile {
        format: FORMAT.to_owned(),
        head,
        fingerprints,
        judgements,
        participants: world.kept,
    };
    Went {
        file,
        first_challenge_us: world.first_challenge_us,
        fired: world.fired,
        released: world.released,
    }
}

impl World {
    fn go(&mut self) {
        let mut actions = self.batch.tick(self.now_us);
        loop {
            let mut next = Vec::new();
            for action in actions {
                match action {
                    BatchAction::Lease(places) => {
                        for place in places {
                            next.extend(self.lease(place));
                        }
                    }
                    BatchAction::Challenge {
                        trial,
                        attempt,
                        participants,
                    } => {
                        self.first_challenge_us.get_or_insert(self.now_us);
                        for place in participants {
                            next.extend(self.challenge(place, trial, attempt));
                        }
                    }
                    BatchAction::Judge(places) => {
                        for place in places {
                            let results = self.judged.remove(&place).unwrap();
                            let leaves = match self.does[place] {
                                Does::LeavesBetween => results.trial == 0,
                                Does::LeavesAtEnd => results.trial == 1,
                                _ => false,
                            };
                            let event = BatchEvent::Judged(Box::new(results));
                            next.extend(self.batch.apply(place, event, self.now_us));
                            if leaves {
                                let event = BatchEvent::Lost("reset".to_owned());
                                next.extend(self.batch.apply(place, event, self.now_us));
                            }
                        }
                    }
                    BatchAction::Release(places) => {
                        for place in places {
                            *self.released.entry(place).or_default() += 1;
                        }
                    }
                    BatchAction::Finish => return,
                }
            }
            if next.is_empty() {
                self.now_us = self.batch.deadline_us().unwrap();
                next = self.batch.tick(self.now_us);
            }
            actions = next;
        }
    }

    fn decline(&self, attempts: u8) -> BatchEvent {
        let at_work = |attempt: u8| AttemptAtWork {
            attempt: AttemptId::from_uuid(Uuid::from_u128(attempt.into())),
            shown_at: Timestamp::from_secs(10),
            until: Timestamp::from_secs(100),
            is_organic: true,
        };
        BatchEvent::Absent(Absence::NotLeased {
            said: "busy".to_owned(),
            backed: attempts > 0,
            at_work: (1..=attempts).map(at_work).collect(),
        })
    }

    fn lease(&mut self, place: usize) -> Vec<BatchAction> {
        let event = match self.does[place] {
            Does::Declines(backed) => self.decline(if backed { 9 } else { 0 }),
            Does::Shows(attempts) => self.decline(attempts),
            Does::NeverReady => return Vec::new(),
            _ => BatchEvent::Ready,
        };
        let mut actions = self.batch.apply(place, event, self.now_us);
        if self.does[place] == Does::LeavesAtBarrier {
            actions.extend(
                self.batch
                    .apply(place, BatchEvent::Lost("reset".to_owned()), self.now_us),
            );
        }
        actions
    }

    fn challenge(&mut self, place: usize, trial: usize, attempt: u8) -> Vec<BatchAction> {
        *self.fired.entry(place).or_default() += 1;
        let shape = self
            .batch
            .grade_spec(place)
            .unwrap()
            .trial_in(trial)
            .unwrap()
            .shape;
        let of_products = matches!(shape.proof_kind(), ProofKind::Matmul(_));
        let first = attempt == 0 && (of_products || self.does[place] == Does::FillsLateOnce);
        let persistent = matches!(
            self.does[place],
            Does::Late
                | Does::Early
                | Does::Oversized
                | Does::Malformed
                | Does::LeavesBefore
                | Does::Replays
                | Does::Foreign(_)
        );
        let does = match self.does[place] {
            Does::FillsLateOnce if of_products => Does::Honest,
            does if first || (persistent && of_products) => does,
            _ => Does::Honest,
        };
        if !self.sessions.contains_key(&place) {
            let serves = self.serving.get(&place).copied();
            let path = if serves.is_some() {
                IN_SESSION_PATH
            } else {
                GRADE_PATH
            };
            let session = Session::new(place, serves.unwrap_or_else(|| job(place)), path);
            self.sessions.insert(place, session);
        }
        if does == Does::IsLetGo {
            self.let_go.insert(place);
            return self.batch.apply(
                place,
                BatchEvent::EndedByValidator("it was drained".to_owned()),
                self.now_us,
            );
        }
        let (evidence, seals) = self.converse(place, trial, attempt, does);
        let results = TrialResult::from_evidence(trial, &evidence, None, InstructionSet::best());
        let proof = ProofEvidence {
            seals,
            ..ProofEvidence::new(trial, 0, &evidence)
        };
        self.kept.entry(place).or_default().proofs.push(proof);
        self.judged.insert(place, results);
        self.batch.apply(place, BatchEvent::Committed, self.now_us)
    }

    fn converse(&mut self, place: usize, trial: usize, attempt: u8, does: Does) -> (Evidence, Vec<String>) {
        let mut seals = Vec::new();
        let mut session = self.sessions.remove(&place).unwrap();
        let evidence = self.talk(place, trial, attempt, does, &mut |asked, answer| {
            seals.push(session.seal(asked, answer));
        });
        self.sessions.insert(place, session);
        (evidence, seals)
    }

    fn talk(
        &mut self,
        place: usize,
        trial: usize,
        attempt: u8,
        does: Does,
        seal: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Evidence {
        let (own, memory) = self.machines.remove(&place).unwrap_or((prover(), None));
        let participant = self.batch.participants()[place];
        let trial = *self.batch.grade_spec(place).unwrap().trial_in(trial).unwrap();
        let identity = ChallengeIdentity {
            batch: self.id,
            executor: participant.executor_name(),
            nonce: ChallengeNonce([attempt + 1; 32]),
        };
        let spec = trial.shape.challenge_spec(identity, memory).unwrap();
        let validator = ValidatorConversation::new(spec, trial.limits());
        if does == Does::Smaller {
            let mut smaller = Smaller::new(own);
            return self.talk_with((place, does, trial), validator, &mut smaller, seal);
        }
        let mut own = own;
        let evidence = self.talk_with((place, does, trial), validator, &mut own, seal);
        let memory = spec.walk_memory().or(memory);
        self.machines.insert(place, (own, memory));
        evidence
    }

    fn talk_with(
        &mut self,
        (place, does, trial): (usize, Does, Trial),
        mut validator: ValidatorConversation,
        prover: &mut dyn Prover,
        seal: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Evidence {
        let mut executor = ExecutorConversation::new(CAPS);
        let spec = ProofSpec::from_bytes(&validator.challenge()[HEAD..]).unwrap();
        let mut to_executor = validator.challenge().to_vec();
        let mut now_us = 1;
        validator.apply(ValidatorInput::Started, now_us);
        loop {
            let ExecutorCommand::Run(task) = executor.receive(&to_executor).unwrap() else {
                panic!("work")
            };
            let output = perform_task(prover, &task, &NoObserver).unwrap();
            let ExecutorCommand::Send(mut message) = executor.complete_task(&output).unwrap() else {
                panic!("a message")
            };
            let kind = message[1];
            if kind == MessageKind::Commitment as u8 && spec.walk_memory().is_none() {
                self.commitments.entry(place).or_insert_with(|| message.clone());
            }
            now_us += ALLOWANCE_US;
            let mut input = ValidatorInput::Message(&message);
            match does {
                Does::Late | Does::LateOnce | Does::FillsLateOnce => now_us += trial.commit_us,
                Does::LeavesBefore => input = ValidatorInput::Gone,
                Does::LeavesAfter if kind == MessageKind::Opening as u8 => input = ValidatorInput::Gone,
                Does::Oversized => input = ValidatorInput::Oversized(1 << 40),
                Does::Malformed => {
                    message.truncate(30);
                    message[0] = 9;
                    input = ValidatorInput::Message(&message);
                }
                Does::Early => {
                    message[1] = MessageKind::Opening as u8;
                    input = ValidatorInput::Message(&message);
                }
                Does::WrongOpening if kind == MessageKind::Opening as u8 => {
                    message[100] ^= 1;
                    input = ValidatorInput::Message(&message);
                }
                Does::Copies(of) if kind == MessageKind::Commitment as u8 => {
                    let roots = self.commitments[&of][52..].to_vec();
                    message.splice(52.., roots);
                    // The executor goes on as if the roots were its own, and opens those of another one.
                    input = ValidatorInput::Message(&message);
                }
                Does::Foreign(of) => {
                    message = self.commitments[&of].clone();
                    input = ValidatorInput::Message(&message);
                }
                Does::Replays => {
                    message[4..36].fill(0xAA);
                    input = ValidatorInput::Message(&message);
                }
                _ => {}
            }
            if let ValidatorInput::Message(answer) = input {
                seal(&to_executor, answer);
            }
            match validator.apply(input, now_us) {
                Some(conversation::ValidatorAction::NeedRandomness) => {}
                Some(conversation::ValidatorAction::End) => return validator.into_evidence(),
                other => panic!("{does:?}: {other:?}"),
            }
            let drawn = validator.apply(ValidatorInput::Randomness([7; 32]), now_us);
            let Some(conversation::ValidatorAction::Send(bytes)) = drawn else {
                panic!("nothing sent")
            };
            if matches!(does, Does::Foreign(_) | Does::Replays) {
                // The executor cannot open the commitment of another one.
                validator.apply(ValidatorInput::Gone, now_us);
                return validator.into_evidence();
            }
            if let Does::Copies(_) = does {
                // The sent commitment has another digest than the one that its state machine knows.
                let digest = muster_hardware_proof::challenge_message::commitment_digest(&[0; 32], &message);
                let (_, places) = (digest, spec.draw_positions(&digest, &[7; 32]));
                let output =
                    perform_task(prover, &conversation::ProverTask::Open(places), &NoObserver).unwrap();
                let conversation::ProverOutput::Opened(opened) = output else {
                    panic!("opened")
                };
                let opening = muster_hardware_proof::challenge_message::encode_message(
                    MessageKind::Opening,
                    &spec.challenge_id(),
                    &[&digest, &opened],
                );
                seal(&bytes, &opening);
                assert_eq!(
                    validator.apply(ValidatorInput::Message(&opening), now_us),
                    Some(conversation::ValidatorAction::End)
                );
                return validator.into_evidence();
            }
            to_executor = bytes;
        }
    }
}

pub(super) fn reasons(judgement: &Judgement) -> &[Why] {
    match judgement {
        Judgement::Zero { reasons } => reasons,
        other => panic!("{other}"),
    }
}

pub(super) fn is_proven(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Proven { .. })
}

//! A batch in memory: one miner's executors answer as the test says, and sign what they say.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use muster_grading::batch::{Action, Batch, Event, Rules};
use muster_grading::course::{ALLOWANCE_US, Course};
use muster_grading::evidence::{BatchFile, Before, FORMAT, Head, ProofFile, SeatFile};
use muster_grading::judgement::{Absence, Judgement, Why};
use muster_grading::plan::{Announced, BlockHash, Bounds, Serving, Silent, draw, in_sessions};
use muster_grading::seals::{IN_SESSION, PATH};
use muster_grading::settlement::silence;
use muster_grading::trial_result::Tried;
use muster_hardware_proof::keys::{BatchId, Identity, Nonce};
use muster_hardware_proof::message::Kind;
use muster_hardware_proof::prover::cheat::Smaller;
use muster_hardware_proof::prover::{CpuProver, Prover, Unwatched, perform};
use muster_hardware_proof::session::{self, Caps, Command, Executor, Input, Validator};
use muster_hardware_proof::{Engine, Evidence};
use muster_identity::Keypair;
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey,
};
use muster_response_proof::{
    Attestation, ChunkTree, Envelope, HashScheme, Price, ResponseProof, Sealable as _, SessionId, StreamEnd,
    Text,
};
use uuid::Uuid;

pub(super) const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
pub(super) const HASH: BlockHash = [5; 32];
pub(super) const RULES: Rules = Rules {
    gather_us: 60_000_000,
};
pub(super) const CAPS: Caps = Caps {
    log2_n: 10,
    memory_bytes: 1 << 22,
    work: 64,
    read_bytes: 1 << 34,
};

/// What an executor does, in its first attempt at the first trial unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Honest,
    /// Multiplies matrices of half the side.
    Smaller,
    /// Commits the roots that the executor at this place commits, under its own name.
    Copies(usize),
    /// Hands on a message that was meant for the executor at this place.
    Foreign(usize),
    /// Repeats a message of an earlier batch.
    Replays,
    Late,
    LateOnce,
    Early,
    Oversized,
    Malformed,
    WrongOpening,
    LeavesAtBarrier,
    /// Between its first trial and its second.
    LeavesBetween,
    /// Once it has shown everything, while others are being judged.
    LeavesAtEnd,
    LeavesBefore,
    LeavesAfter,
    Declines(bool),
    NeverReady,
    /// It serves a session, and the validator ends that when it is to answer.
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

/// The session in which an executor is challenged, as it signs.
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
        let attestation = Envelope::new(&stated, |bytes| keypair(1).sign(bytes));
        // One that serves has answered others before.
        let sequence = if path == PATH { 0 } else { 9_000 };
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
        // Between two challenges a session that serves answers somebody else.
        self.sequence += if self.path == PATH { 1 } else { 2 };
        self.previous = Digest::of(&stated.signed_bytes());
        Envelope::new(&stated, |bytes| self.key.sign(bytes)).to_text()
    }
}

pub(super) fn me() -> ValidatorKey {
    ValidatorKey(key(200))
}

pub(super) fn said(miner: u8, count: u32) -> Announced {
    let miner = MinerKey(key(miner));
    let class = CLASS;
    Announced { miner, class, count }
}

pub(super) fn prover() -> CpuProver {
    CpuProver::new(Engine::best(), NonZeroUsize::MIN)
}

/// A batch as it went, and its file.
pub(super) struct Went {
    pub(super) file: BatchFile,
    /// How often each executor was challenged, and released.
    pub(super) fired: BTreeMap<usize, usize>,
    pub(super) released: BTreeMap<usize, usize>,
}

struct World {
    does: Vec<Does>,
    batch: Batch,
    id: BatchId,
    kept: BTreeMap<usize, SeatFile>,
    /// What was judged of those that have committed, until the batch asks for it.
    judged: BTreeMap<usize, Tried>,
    fired: BTreeMap<usize, usize>,
    released: BTreeMap<usize, usize>,
    now_us: u64,
    /// Honest commitments of everybody's first trial, for those who copy.
    commitments: BTreeMap<usize, Vec<u8>>,
    /// What each challenged executor signs with.
    sessions: BTreeMap<usize, Session>,
    /// Those that serve.
    serving: BTreeMap<usize, JobId>,
    /// Those that the validator lets go when they are to answer.
    let_go: BTreeSet<usize>,
}

/// Runs a batch of one miner's executors.
pub(super) fn run(does: &[Does]) -> Went {
    run_with(does, 0, 0)
}

/// Of a miner that had so many proven before, the last `sessions` of whose executors serve this validator's sessions.
pub(super) fn run_with(does: &[Does], proven: u32, sessions: usize) -> Went {
    let count = u32::try_from(does.len()).unwrap();
    let announced = vec![said(1, count)];
    let plan = draw(&HASH, me(), &announced, Bounds::default());
    let before = vec![Before {
        miner: MinerKey(key(1)),
        class: CLASS,
        proven,
    }];
    let course = Course::of(CLASS).unwrap();
    let serving: Vec<_> = (0..sessions)
        .map(|number| Serving {
            miner: MinerKey(key(1)),
            class: CLASS,
            job: job(1_000 + number),
        })
        .collect();
    let places = in_sessions(&plan.seats, &serving);
    let batch = Batch::new(plan.seats.clone(), [course.clone()], RULES, 0);
    let mut world = World {
        does: does.to_vec(),
        batch: batch.in_sessions(places.keys().copied()),
        id: plan.id,
        kept: BTreeMap::new(),
        judged: BTreeMap::new(),
        fired: BTreeMap::new(),
        released: BTreeMap::new(),
        now_us: 0,
        commitments: BTreeMap::new(),
        sessions: BTreeMap::new(),
        serving: places,
        let_go: BTreeSet::new(),
    };
    let head = Head {
        validator: me(),
        block: 77,
        hash: HASH,
        announced,
        silent: vec![Silent {
            miner: MinerKey(key(2)),
            said: "no manifest came within 5 s".to_owned(),
        }],
        serving,
        bounds: Bounds::default(),
        courses: vec![course],
        before,
    };
    world.go();
    let (mut judgements, marks) = world.batch.judgements(&head.proven_before()).unwrap();
    for (place, absence) in world.batch.absent() {
        world.kept.entry(*place).or_default().absence = Some(absence.clone());
    }
    for (place, session) in &world.sessions {
        let kept = world.kept.entry(*place).or_default();
        let stated = session.attestation.statement().unwrap();
        kept.job = Some(stated.job.to_string());
        kept.attestation = Some(session.attestation.to_text());
    }
    world.kept.insert(judgements.len(), SeatFile::default());
    judgements.extend(head.silent.iter().map(silence));
    let file = BatchFile {
        format: FORMAT.to_owned(),
        head,
        marks,
        judgements,
        seats: world.kept,
    };
    Went {
        file,
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
                    Action::Lease(places) => {
                        for place in places {
                            next.extend(self.lease(place));
                        }
                    }
                    Action::Fire {
                        trial,
                        attempt,
                        seats,
                    } => {
                        for place in seats {
                            next.extend(self.challenge(place, trial, attempt));
                        }
                    }
                    Action::Judge(places) => {
                        for place in places {
                            let tried = self.judged.remove(&place).unwrap();
                            let leaves = match self.does[place] {
                                Does::LeavesBetween => tried.trial == 0,
                                Does::LeavesAtEnd => tried.trial == 1,
                                _ => false,
                            };
                            let event = Event::Judged(Box::new(tried));
                            next.extend(self.batch.apply(place, event, self.now_us));
                            if leaves {
                                let event = Event::Lost("reset".to_owned());
                                next.extend(self.batch.apply(place, event, self.now_us));
                            }
                        }
                    }
                    Action::Release(places) => {
                        for place in places {
                            *self.released.entry(place).or_default() += 1;
                        }
                    }
                    Action::Finish => return,
                }
            }
            if next.is_empty() {
                self.now_us = self.batch.deadline_us().unwrap();
                next = self.batch.tick(self.now_us);
            }
            actions = next;
        }
    }

    fn lease(&mut self, place: usize) -> Vec<Action> {
        let said = || "busy".to_owned();
        let event = match self.does[place] {
            Does::Declines(backed) => Event::Absent(Absence::NotLeased { said: said(), backed }),
            Does::NeverReady => return Vec::new(),
            _ => Event::Ready,
        };
        let mut actions = self.batch.apply(place, event, self.now_us);
        if self.does[place] == Does::LeavesAtBarrier {
            actions.extend(
                self.batch
                    .apply(place, Event::Lost("reset".to_owned()), self.now_us),
            );
        }
        actions
    }

    fn challenge(&mut self, place: usize, trial: usize, attempt: u8) -> Vec<Action> {
        *self.fired.entry(place).or_default() += 1;
        let first = trial == 0 && attempt == 0;
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
        let does = if first || (persistent && trial == 0) {
            self.does[place]
        } else {
            Does::Honest
        };
        if !self.sessions.contains_key(&place) {
            let serves = self.serving.get(&place).copied();
            let path = if serves.is_some() { IN_SESSION } else { PATH };
            let session = Session::new(place, serves.unwrap_or_else(|| job(place)), path);
            self.sessions.insert(place, session);
        }
        if does == Does::IsLetGo {
            self.let_go.insert(place);
            return self
                .batch
                .apply(place, Event::Ours("it was drained".to_owned()), self.now_us);
        }
        let (evidence, seals) = self.converse(place, trial, attempt, does);
        let tried = Tried::judge(trial, &evidence, None, Engine::best());
        let proof = ProofFile {
            seals,
            ..ProofFile::new(trial, 0, &evidence)
        };
        self.kept.entry(place).or_default().proofs.push(proof);
        self.judged.insert(place, tried);
        self.batch.apply(place, Event::Committed, self.now_us)
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
        let seat = self.batch.seats()[place];
        let trial = self.batch.course(place).unwrap().trials[trial];
        let identity = Identity {
            batch: self.id,
            executor: seat.name(),
            nonce: Nonce([attempt + 1; 32]),
        };
        let spec = trial.shape.spec(identity).unwrap();
        let mut validator = Validator::new(spec, trial.limits());
        let mut executor = Executor::new(CAPS);
        let mut prover: Box<dyn Prover> = match does {
            Does::Smaller => Box::new(Smaller::new(prover())),
            _ => Box::new(prover()),
        };
        let mut to_executor = validator.challenge().to_vec();
        let mut now_us = 1;
        validator.apply(Input::Started, now_us);
        loop {
            let Command::Run(task) = executor.message(&to_executor).unwrap() else {
                panic!("work")
            };
            let output = perform(&mut *prover, &task, &Unwatched).unwrap();
            let Command::Send(mut message) = executor.output(&output).unwrap() else {
                panic!("a message")
            };
            let kind = message[1];
            if kind == Kind::Commitment as u8 {
                self.commitments.entry(place).or_insert_with(|| message.clone());
            }
            now_us += ALLOWANCE_US;
            let mut input = Input::Message(&message);
            match does {
                Does::Late | Does::LateOnce => now_us += trial.commit_us,
                Does::LeavesBefore => input = Input::Gone,
                Does::LeavesAfter if kind == Kind::Opening as u8 => input = Input::Gone,
                Does::Oversized => input = Input::Oversized(1 << 40),
                Does::Malformed => {
                    message.truncate(30);
                    message[0] = 9;
                    input = Input::Message(&message);
                }
                Does::Early => {
                    message[1] = Kind::Opening as u8;
                    input = Input::Message(&message);
                }
                Does::WrongOpening if kind == Kind::Opening as u8 => {
                    message[100] ^= 1;
                    input = Input::Message(&message);
                }
                Does::Copies(of) if kind == Kind::Commitment as u8 => {
                    let roots = self.commitments[&of][52..].to_vec();
                    message.splice(52.., roots);
                    // It goes on as if they were its own; what it opens is another's.
                    input = Input::Message(&message);
                }
                Does::Foreign(of) => {
                    message = self.commitments[&of].clone();
                    input = Input::Message(&message);
                }
                Does::Replays => {
                    message[4..36].fill(0xAA);
                    input = Input::Message(&message);
                }
                _ => {}
            }
            if let Input::Message(answer) = input {
                seal(&to_executor, answer);
            }
            match validator.apply(input, now_us) {
                Some(session::Action::NeedRandomness) => {}
                Some(session::Action::End) => return validator.into_evidence(),
                other => panic!("{does:?}: {other:?}"),
            }
            let drawn = validator.apply(Input::Randomness([7; 32]), now_us);
            let Some(session::Action::Send(bytes)) = drawn else {
                panic!("nothing sent")
            };
            if matches!(does, Does::Foreign(_) | Does::Replays) {
                // It cannot open what is not its own.
                validator.apply(Input::Gone, now_us);
                return validator.into_evidence();
            }
            if let Does::Copies(_) = does {
                // The digest of the commitment that was sent is not the one that its machine knows.
                let digest = muster_hardware_proof::message::commitment_digest(&[0; 32], &message);
                let (_, places) = (digest, spec.places(&digest, &[7; 32]));
                let output = perform(&mut *prover, &session::Task::Open(places), &Unwatched).unwrap();
                let session::Output::Opened(opened) = output else {
                    panic!("opened")
                };
                let opening = muster_hardware_proof::message::frame(
                    Kind::Opening,
                    &spec.session(),
                    &[&digest, &opened],
                );
                seal(&bytes, &opening);
                assert_eq!(
                    validator.apply(Input::Message(&opening), now_us),
                    Some(session::Action::End)
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

//! Whole batches in memory: every executor answers as the test says, and what comes of each has its name.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use muster_grading::batch::{Action, Batch, Event, Rules};
use muster_grading::course::{ALLOWANCE_US, Course};
use muster_grading::evidence::{BatchFile, Before, FORMAT, Head, ProofFile, SeatFile, replay};
use muster_grading::plan::{Announced, BlockHash, Bounds, draw};
use muster_grading::verdict::{Absence, Capacity, Judgement, Tried, Why, capacities};
use muster_proofs::keys::{BatchId, Identity, Nonce};
use muster_proofs::message::Kind;
use muster_proofs::prover::cheat::Smaller;
use muster_proofs::prover::{CpuProver, Prover, Unwatched, perform};
use muster_proofs::session::{self, Caps, Command, Executor, Input, Validator};
use muster_proofs::{Engine, Evidence};
use muster_protocol::{ExecutorClass, Hotkey, MinerKey, ValidatorKey};
use proptest::prelude::*;

const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;
const HASH: BlockHash = [5; 32];
const RULES: Rules = Rules {
    gather_us: 60_000_000,
};
const CAPS: Caps = Caps {
    log2_n: 10,
    memory_bytes: 1 << 22,
    work: 64,
    read_bytes: 1 << 34,
};

/// What an executor does, in its first attempt at the first trial unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
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
    LeavesBefore,
    LeavesAfter,
    Declines(bool),
    NeverReady,
}

fn key(byte: u8) -> Hotkey {
    Hotkey::from_bytes([byte; 32])
}

fn me() -> ValidatorKey {
    ValidatorKey(key(200))
}

fn said(miner: u8, count: u32) -> Announced {
    let miner = MinerKey(key(miner));
    let class = CLASS;
    Announced { miner, class, count }
}

fn prover() -> CpuProver {
    CpuProver::new(Engine::best(), NonZeroUsize::MIN)
}

/// A batch as it went, and its file.
struct Went {
    file: BatchFile,
    /// How often each executor was challenged, and released.
    fired: BTreeMap<usize, usize>,
    released: BTreeMap<usize, usize>,
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
}

/// Runs a batch of one miner's executors.
fn run(does: &[Does]) -> Went {
    run_with(does, 0)
}

fn run_with(does: &[Does], proven: u32) -> Went {
    let count = u32::try_from(does.len()).unwrap();
    let announced = vec![said(1, count)];
    let plan = draw(&HASH, me(), &announced, Bounds::default());
    let before = vec![Before {
        miner: MinerKey(key(1)),
        class: CLASS,
        proven,
    }];
    let course = Course::of(CLASS).unwrap();
    let mut world = World {
        does: does.to_vec(),
        batch: Batch::new(plan.seats.clone(), [course.clone()], RULES, 0),
        id: plan.id,
        kept: BTreeMap::new(),
        judged: BTreeMap::new(),
        fired: BTreeMap::new(),
        released: BTreeMap::new(),
        now_us: 0,
        commitments: BTreeMap::new(),
    };
    let head = Head {
        validator: me(),
        block: 77,
        hash: HASH,
        announced,
        bounds: Bounds::default(),
        courses: vec![course],
        before,
    };
    world.go();
    let (judgements, marks) = world.batch.judgements(&head.proven_before()).unwrap();
    for (place, absence) in world.batch.absent() {
        world.kept.entry(*place).or_default().absence = Some(absence.clone());
    }
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
                            let event = Event::Judged(Box::new(tried));
                            next.extend(self.batch.apply(place, event, self.now_us));
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
        let evidence = self.converse(place, trial, attempt, does);
        let tried = Tried::judge(trial, &evidence, None, Engine::best());
        let proof = ProofFile::new(trial, 0, &evidence);
        self.kept.entry(place).or_default().proofs.push(proof);
        self.judged.insert(place, tried);
        self.batch.apply(place, Event::Committed, self.now_us)
    }

    fn converse(&mut self, place: usize, trial: usize, attempt: u8, does: Does) -> Evidence {
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
            match validator.apply(input, now_us) {
                Some(session::Action::NeedRandomness) => {}
                Some(session::Action::End) => return validator.into_evidence(),
                other => panic!("{does:?}: {other:?}"),
            }
            let Some(session::Action::Send(bytes)) = validator.apply(Input::Randomness([7; 32]), now_us)
            else {
                panic!("nothing sent")
            };
            if matches!(does, Does::Foreign(_) | Does::Replays) {
                // It cannot open what is not its own.
                validator.apply(Input::Gone, now_us);
                return validator.into_evidence();
            }
            if let Does::Copies(_) = does {
                // The digest of the commitment that was sent is not the one that its machine knows.
                let digest = muster_proofs::message::commitment_digest(&[0; 32], &message);
                let (_, places) = (digest, spec.places(&digest, &[7; 32]));
                let output = perform(&mut *prover, &session::Task::Open(places), &Unwatched).unwrap();
                let session::Output::Opened(opened) = output else {
                    panic!("opened")
                };
                let opening =
                    muster_proofs::message::frame(Kind::Opening, &spec.session(), &[&digest, &opened]);
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

fn reasons(judgement: &Judgement) -> &[Why] {
    match judgement {
        Judgement::Zero { reasons } => reasons,
        other => panic!("{other}"),
    }
}

fn is_proven(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Proven { .. })
}

#[test]
fn an_honest_executor_passes_beside_every_cheat_and_each_cheat_has_its_name() {
    type Named = fn(&Why) -> bool;
    let cheats: [(Does, Named); 15] = [
        (Does::Smaller, |why| matches!(why, Why::WrongOpening { .. })),
        (Does::Copies(0), |why| *why == Why::CopiedRoot { of: 0 }),
        (Does::Foreign(0), |why| *why == Why::Foreign { of: 0 }),
        (Does::Replays, |why| *why == Why::Replayed),
        (Does::Late, |why| matches!(why, Why::Late { .. })),
        (Does::Early, |why| *why == Why::OutOfTurn { kind: 6 }),
        (Does::Oversized, |why| {
            matches!(
                why,
                Why::Oversized {
                    length: 0x100_0000_0000,
                    ..
                }
            )
        }),
        (Does::Malformed, |why| {
            matches!(why, Why::OutOfTurn { .. } | Why::Malformed { .. })
        }),
        (Does::WrongOpening, |why| matches!(why, Why::WrongOpening { .. })),
        (Does::LeavesAtBarrier, |why| {
            matches!(why, Why::VanishedAtBarrier { .. })
        }),
        (Does::LeavesBefore, |why| matches!(why, Why::Gone { .. })),
        (Does::LeavesAfter, |why| *why == Why::VanishedAfterCommitment),
        (Does::Declines(false), |why| {
            matches!(why, Why::NeverLeased { .. })
        }),
        (Does::Declines(true), |why| {
            *why == Why::ExcuseBeyondProven { proven: 0 }
        }),
        (Does::NeverReady, |why| matches!(why, Why::NotAtBarrier { .. })),
    ];
    let does: Vec<_> = [Does::Honest]
        .into_iter()
        .chain(cheats.iter().map(|(does, _)| *does))
        .chain([Does::Honest, Does::LateOnce])
        .collect();
    let went = run(&does);
    let judgements = &went.file.judgements;
    let (first, last) = (&judgements[0], &judgements[does.len() - 2..]);
    assert!(is_proven(first) && last.iter().all(is_proven), "{first} {last:?}");
    for ((does, named), judgement) in cheats.iter().zip(&judgements[1..]) {
        let why = reasons(judgement);
        assert!(why.iter().any(named), "{does:?}: {judgement}");
    }
    let proven = Capacity {
        miner: MinerKey(key(1)),
        class: CLASS,
        proven: 3,
        excused: 0,
    };
    assert_eq!(capacities(&draw_again(&went), judgements), [proven]);
    // Whoever was leased is released once, and a wrong proof is not tried again.
    assert!(
        went.released.values().all(|times| *times == 1),
        "{:?}",
        went.released
    );
    assert_eq!((went.fired[&1], went.fired[&0]), (1, 2));
    assert_eq!(went.fired[&(does.len() - 1)], 3, "late once, then two trials");

    // The same batch without the cheating passes: nothing else made the difference.
    let honest = run(&[Does::Honest; 3]);
    assert!(honest.file.judgements.iter().all(is_proven));
}

fn draw_again(went: &Went) -> Vec<muster_grading::Seat> {
    let head = &went.file.head;
    draw(&head.hash, head.validator, &head.announced, head.bounds).seats
}

#[test]
fn a_file_says_the_same_to_everybody_and_a_changed_one_is_found_out() {
    let went = run(&[
        Does::Honest,
        Does::Smaller,
        Does::Copies(0),
        Does::LeavesAfter,
        Does::Declines(false),
        Does::Foreign(0),
    ]);
    let text = serde_json::to_string(&went.file).unwrap();
    let file: BatchFile = serde_json::from_str(&text).unwrap();
    assert_eq!(file, went.file);
    for engine in Engine::available() {
        let replayed = replay(&file, engine).unwrap();
        assert_eq!(replayed.differences, Vec::<String>::new());
        let stated: Vec<_> = file.judgements.iter().collect();
        assert_eq!(replayed.judged.values().collect::<Vec<_>>(), stated);
    }
    // Evidence about some is judged as in the whole: copies are told by the marks.
    let mut some = file.clone();
    some.seats.retain(|place, _| *place == 2);
    let replayed = replay(&some, Engine::best()).unwrap();
    assert_eq!((replayed.differences.len(), replayed.judged.len()), (0, 1));

    type Change = fn(&mut BatchFile);
    let changes: [(&str, Change); 7] = [
        ("a pass for a cheat", |file| {
            file.judgements[1] = file.judgements[0].clone()
        }),
        ("a zero for an honest one", |file| {
            file.judgements[0] = file.judgements[1].clone()
        }),
        ("another block's hash", |file| file.head.hash = [6; 32]),
        ("a course that is easier", |file| {
            file.head.courses[0].trials[0].commit_us += 1
        }),
        ("another's evidence", |file| {
            let other = file.seats[&1].clone();
            file.seats.insert(0, other);
        }),
        ("marks that hide a copy", |file| {
            file.marks.remove(&0);
        }),
        ("fewer announced", |file| file.head.announced[0].count = 2),
    ];
    for (what, change) in changes {
        let mut changed = file.clone();
        change(&mut changed);
        let replayed = replay(&changed, Engine::best()).unwrap();
        assert!(!replayed.differences.is_empty(), "{what}");
    }
    let mut torn = file;
    torn.seats.get_mut(&0).unwrap().proofs[0].evidence.truncate(100);
    replay(&torn, Engine::best()).unwrap_err();
}

#[test]
fn receipts_excuse_no_more_executors_than_were_ever_proven_at_once() {
    let does = [
        Does::Honest,
        Does::Declines(true),
        Does::Declines(true),
        Does::Declines(true),
    ];
    for (before, excused) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (9, 3)] {
        let went = run_with(&does, before);
        let count = went
            .file
            .judgements
            .iter()
            .filter(|judged| matches!(judged, Judgement::Excused { .. }))
            .count();
        assert_eq!(count, excused, "{before} proven before");
        assert!(is_proven(&went.file.judgements[0]));
        assert_eq!(
            replay(&went.file, Engine::best()).unwrap().differences,
            Vec::<String>::new()
        );
    }
}

/// Roots of one executor are wrong for every other, whose keys are others: what is right for one is never right for two.
#[test]
fn no_two_executors_of_a_batch_have_an_answer_in_common() {
    let went = run(&[Does::Honest; 4]);
    let marks: Vec<_> = went.file.marks.values().flatten().collect();
    let sessions: BTreeSet<_> = marks.iter().map(|facts| facts.session).collect();
    let roots: BTreeSet<_> = marks.iter().filter_map(|facts| facts.roots).collect();
    assert_eq!((sessions.len(), roots.len()), (8, 8));
}

/// What may happen to an executor, in any order and as often as anything likes.
fn event() -> impl Strategy<Value = (usize, u8)> {
    (0usize..6, 0u8..7)
}

proptest! {
    #[test]
    fn whatever_happens_in_whatever_order_a_batch_ends_and_everybody_has_a_judgement(
        events in proptest::collection::vec(event(), 0..200), spin in any::<bool>(),
    ) {
        let classes = if spin { [CLASS, ExecutorClass::SpinUpGpu24Gb] } else { [CLASS, CLASS] };
        let seat = |index: u32| muster_grading::Seat {
            miner: MinerKey(key(1)), class: classes[index as usize % 2], index,
        };
        let seats: Vec<_> = (0..6).map(seat).collect();
        let courses = [CLASS, ExecutorClass::SpinUpGpu24Gb].map(|class| Course::of(class).unwrap());
        let mut batch = Batch::new(seats.clone(), courses, RULES, 0);
        let mut now = 0;
        let (mut leased, mut released, mut fired) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut proving = BTreeSet::new();
        let mut finished = 0;
        let mut take = |actions: Vec<Action>| -> Result<(), TestCaseError> {
            for action in actions {
                match action {
                    Action::Lease(places) => for place in places { prop_assert!(leased.insert(place)); },
                    Action::Release(places) => for place in places {
                        proving.remove(&place);
                        prop_assert!(leased.contains(&place) && released.insert(place));
                    },
                    Action::Fire { trial, attempt, seats } => for place in seats {
                        prop_assert!(leased.contains(&place) && !released.contains(&place));
                        prop_assert!(fired.insert((place, trial, attempt)) && proving.insert(place));
                    },
                    Action::Judge(places) => {
                        for place in places {
                            prop_assert!(proving.remove(&place), "each challenge is judged once");
                        }
                        prop_assert!(proving.is_empty(), "nothing is verified while a clock runs");
                    }
                    Action::Finish => { finished += 1; prop_assert_eq!(&leased, &released); }
                }
            }
            Ok(())
        };
        let passed = |trial| Tried {
            trial,
            verdict: muster_proofs::Verdict::Zero(muster_proofs::Reason::Gone),
            trouble: None,
            facts: muster_grading::verdict::Facts { session: [0; 32], roots: None, named: None },
        };
        for (place, what) in events {
            let event = match what {
                0 => Event::Ready,
                1 => Event::Absent(Absence::NotReady { said: String::new() }),
                2 => Event::Lost(String::new()),
                3 => Event::Committed,
                4 => Event::Judged(Box::new(passed(0))),
                _ => {
                    now += u64::from(what) * 1_000_000;
                    take(batch.tick(now))?;
                    continue;
                }
            };
            take(batch.apply(place, event, now))?;
        }
        // Then nobody says anything more but how their conversations ended.
        for _ in 0..100 {
            for place in 0..6 {
                take(batch.apply(place, Event::Committed, now))?;
                for trial in 0..3 {
                    take(batch.apply(place, Event::Judged(Box::new(passed(trial))), now))?;
                }
            }
            let Some(deadline) = batch.deadline_us() else { break };
            now = deadline;
            take(batch.tick(now))?;
        }
        prop_assert_eq!(finished, 1);
        let (judgements, _) = batch.judgements(&BTreeMap::new()).unwrap();
        prop_assert_eq!(judgements.len(), 6);
        for judgement in judgements {
            if let Judgement::Zero { reasons } = judgement { prop_assert!(!reasons.is_empty()); }
        }
    }
}

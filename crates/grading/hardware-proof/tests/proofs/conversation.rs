//! Whole conversations: honest ones pass, each alteration fails with its own reason, nothing that arrives hurts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::{CAPS, LIMITS, at, bound_chain, chain, converse, identity, prover, walk};
use muster_hardware_proof::merkle::LEAF;
use muster_hardware_proof::message::{Kind, Spec};
use muster_hardware_proof::prover::{Part, Prover, ProverError, Unwatched, Watch, perform};
use muster_hardware_proof::session::{Action, Command, Executor, Input, Refusal, Task, Validator};
use muster_hardware_proof::spec::Numbers;
use muster_hardware_proof::{DecodeError, Ending, Engine, Evidence, Measured, Reason, Verdict};

/// Where the first opening begins in a message: head, digest.
const FIRST: usize = 36 + 32;

fn honest(spec: Spec) -> anyhow::Result<Evidence> {
    converse(&mut prover(Engine::best()), spec, 7, |_, _| {})
}

fn reason(evidence: &Evidence) -> Option<Reason> {
    match evidence.judge(Engine::best()) {
        Verdict::Passed(_) => None,
        Verdict::Zero(reason) => Some(reason),
    }
}

#[test]
fn honest_chains_pass_on_every_engine() -> anyhow::Result<()> {
    for numbers in [Numbers::Int8, Numbers::Fp16] {
        for engine in Engine::available() {
            let evidence = converse(
                &mut prover(engine),
                Spec::Chain(chain(numbers, 4, 16)?),
                1,
                |_, _| {},
            )?;
            // 200 ms less the allowance of 150 would be 50: never less than half.
            let rate = 2 * 256 * 256 * 256 * 4 / 100_000;
            let passed = Verdict::Passed(Measured::Chain {
                numbers,
                rate,
                elapsed_us: 100_000,
            });
            for judge in Engine::available() {
                assert_eq!(
                    evidence.judge(judge),
                    passed,
                    "{} judged by {}",
                    engine.name(),
                    judge.name()
                );
            }
        }
    }
    Ok(())
}

#[test]
fn an_honest_walk_passes_and_so_does_a_chain_over_its_memory() -> anyhow::Result<()> {
    let spec = walk(128)?;
    for engine in Engine::available() {
        let mut prover = prover(engine);
        let evidence = converse(&mut prover, Spec::Walk(spec), 1, |_, _| {})?;
        let passed = Measured::Walk {
            bytes: 1 << 20,
            rate: (16 * 64 * 1024) / 100_000,
            elapsed_us: 100_000,
        };
        assert_eq!(evidence.judge(Engine::PORTABLE), Verdict::Passed(passed));
        let bound = converse(&mut prover, Spec::Chain(bound_chain(&spec)?), 1, |_, _| {})?;
        assert!(matches!(bound.judge(Engine::best()), Verdict::Passed(_)));
    }
    // Without the memory there is nothing to multiply.
    let task = Task::Chain(bound_chain(&spec)?);
    assert!(matches!(
        perform(&mut prover(Engine::best()), &task, &Unwatched),
        Err(ProverError::OutOfOrder(_))
    ));
    Ok(())
}

#[test]
fn evidence_survives_storing_and_replays_to_the_same_verdict() -> anyhow::Result<()> {
    for spec in [Spec::Chain(chain(Numbers::Int8, 2, 8)?), Spec::Walk(walk(16)?)] {
        let evidence = honest(spec)?;
        let stored = evidence.to_bytes();
        let read = Evidence::from_bytes(&stored)?;
        assert_eq!(read, evidence);
        assert_eq!(read.to_bytes(), stored);
        assert_eq!(read.judge(Engine::PORTABLE), evidence.judge(Engine::best()));
    }
    Ok(())
}

#[test]
fn each_alteration_of_a_chain_has_its_own_reason() -> anyhow::Result<()> {
    let spec = chain(Numbers::Int8, 2, 8)?;
    let honest = honest(Spec::Chain(spec))?;
    // Where things stand in the opening of draw 0.
    let opening = spec.opening_bytes();
    let first_column = honest
        .opening
        .as_ref()
        .map(|received| received.bytes[FIRST + 8])
        .unwrap_or_default();
    let entry = FIRST + 12 + 4 * usize::from(first_column);
    let beside = FIRST + 12 + 4 * usize::from(first_column.wrapping_add(1));
    let in_opening = |what: &dyn Fn(&mut Vec<u8>)| {
        let mut altered = honest.clone();
        if let Some(received) = &mut altered.opening {
            what(&mut received.bytes);
        }
        reason(&altered)
    };
    assert_eq!(reason(&honest), None);
    assert!(matches!(
        in_opening(&|m| m[entry] ^= 1),
        Some(Reason::WrongEntry { draw: 0, .. })
    ));
    assert_eq!(
        in_opening(&|m| m[beside] ^= 1),
        Some(Reason::AlteredLeaf { draw: 0 })
    );
    assert_eq!(
        in_opening(&|m| m[FIRST + 12 + LEAF] ^= 1),
        Some(Reason::AlteredPath { draw: 0 })
    );
    assert_eq!(
        in_opening(&|m| m[FIRST] = 1),
        Some(Reason::OtherRound {
            draw: 0,
            expected: 0,
            found: 1
        })
    );
    assert_eq!(
        in_opening(&|m| m[FIRST + 4] ^= 1),
        Some(Reason::OtherPlace { draw: 0 })
    );
    // Order: the first two openings change places; they are of rounds 0 and 1.
    let swapped = in_opening(&|m| {
        let (a, b) = m[FIRST..].split_at_mut(opening);
        a.swap_with_slice(&mut b[..opening]);
    });
    assert!(matches!(swapped, Some(Reason::OtherRound { draw: 0, .. })));
    assert_eq!(in_opening(&|m| m[36] ^= 1), Some(Reason::OtherCommitment));
    assert_eq!(in_opening(&|m| m[4] ^= 1), Some(Reason::OtherSession));
    assert!(matches!(
        in_opening(&|m| m.truncate(m.len() - 1)),
        Some(Reason::Malformed(DecodeError::Length { .. }))
    ));
    assert_eq!(in_opening(&|m| m[1] = 4), Some(Reason::OutOfTurn { kind: 4 }));

    let mut root = honest.clone();
    root.commitment
        .as_mut()
        .map(|received| received.bytes[36 + 16 + 32] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&root), Some(Reason::OtherCommitment));
    let mut print = honest.clone();
    print
        .commitment
        .as_mut()
        .map(|received| received.bytes[36] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&print), Some(Reason::OtherKey));
    // The same transcript under another nonce, another executor or another draw.
    let shape = *spec.shape();
    let mut nonce = honest.clone();
    nonce.spec = Spec::Chain(muster_hardware_proof::chain::ChainSpec::new(
        identity(99),
        shape,
        None,
    )?);
    assert_eq!(reason(&nonce), Some(Reason::OtherSession));
    let mut draw = honest.clone();
    draw.draw
        .as_mut()
        .map(|sent| sent.bytes[0] ^= 1)
        .unwrap_or_default();
    assert!(matches!(reason(&draw), Some(Reason::OtherPlace { draw: 0 })));
    let mut late = honest.clone();
    late.commitment
        .as_mut()
        .map(|received| received.at_us += 3_000_000)
        .unwrap_or_default();
    assert_eq!(
        reason(&late),
        Some(Reason::NotCommitted {
            limit_us: LIMITS.commit_us
        })
    );
    Ok(())
}

/// A message that was changed on its way: the executor notices that the draw belongs to another commitment than it made.
#[test]
fn a_commitment_changed_on_its_way_ends_the_conversation() -> anyhow::Result<()> {
    let spec = Spec::Chain(chain(Numbers::Int8, 2, 8)?);
    let evidence = converse(&mut prover(Engine::best()), spec, 7, |kind, message| {
        if kind == Kind::Commitment {
            message[36 + 16 + 32] ^= 1;
        }
    });
    assert!(evidence.is_err_and(|error| error.downcast_ref() == Some(&Refusal::OtherCommitment)));
    Ok(())
}

#[test]
fn each_alteration_of_a_walk_has_its_own_reason() -> anyhow::Result<()> {
    let spec = walk(8)?;
    let honest = honest(Spec::Walk(spec))?;
    assert_eq!(reason(&honest), None);
    let step = honest
        .opening
        .as_ref()
        .map(|received| received.bytes[FIRST + 4])
        .unwrap_or_default();
    let within = usize::from(step % 32);
    anyhow::ensure!(
        within > 1 && within < 30,
        "the seed of this test draws a step inside its leaf"
    );
    let state = FIRST + 12 + 32 * within;
    let alter = |place: usize| {
        let mut altered = honest.clone();
        altered
            .opening
            .as_mut()
            .map(|received| received.bytes[place] ^= 1)
            .unwrap_or_default();
        reason(&altered)
    };
    assert_eq!(alter(state), Some(Reason::WrongStep { draw: 0 }));
    assert_eq!(alter(state - 32), Some(Reason::WrongStep { draw: 0 }));
    assert_eq!(alter(FIRST + 12), Some(Reason::AlteredLeaf { draw: 0 }));
    assert_eq!(alter(FIRST + 12 + LEAF), Some(Reason::AlteredPath { draw: 0 }));
    assert_eq!(alter(FIRST), Some(Reason::OtherPlace { draw: 0 }));
    let mut root = honest.clone();
    root.commitment
        .as_mut()
        .map(|received| received.bytes[36 + 16] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&root), Some(Reason::OtherCommitment));
    let mut seed = honest.clone();
    seed.seed
        .as_mut()
        .map(|sent| sent.bytes[0] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&seed), Some(Reason::OtherKey));
    let mut labels = honest.clone();
    labels
        .filled
        .as_mut()
        .map(|received| received.bytes[36] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&labels), Some(Reason::OtherKey));
    let mut slow = honest;
    slow.filled
        .as_mut()
        .map(|received| received.at_us = LIMITS.fill_us + 1)
        .unwrap_or_default();
    assert_eq!(
        reason(&slow),
        Some(Reason::NotFilled {
            limit_us: LIMITS.fill_us
        })
    );
    Ok(())
}

/// A draw that opens the first step of a second leaf: the leaf before it is checked too.
#[test]
fn the_border_between_two_leaves_is_checked() -> anyhow::Result<()> {
    let spec = walk(64)?;
    let honest = honest(Spec::Walk(spec))?;
    let Some(opening) = &honest.opening else {
        anyhow::bail!("an opening")
    };
    let mut start = FIRST;
    let leaf = LEAF + 32 * spec.depth();
    let border = std::iter::from_fn(|| {
        let step = u64::from(*opening.bytes.get(start + 4)?);
        let here = start;
        start += 12 + if step == 32 { 2 * leaf } else { leaf };
        Some((step, here))
    })
    .find(|(step, _)| *step == 32);
    let Some((_, here)) = border else {
        anyhow::bail!("64 draws of this seed hit a border")
    };
    let last_state_before = here + 12 + leaf + LEAF - 32;
    let mut altered = honest.clone();
    altered
        .opening
        .as_mut()
        .map(|received| received.bytes[last_state_before] ^= 1)
        .unwrap_or_default();
    assert!(matches!(reason(&altered), Some(Reason::AlteredPath { .. })));
    Ok(())
}

fn committed(spec: Spec) -> anyhow::Result<(Validator, Vec<u8>)> {
    let evidence = honest(spec)?;
    let commitment = evidence
        .commitment
        .map(|received| received.bytes)
        .unwrap_or_default();
    let mut validator = Validator::new(spec, LIMITS);
    validator.apply(Input::Started, 0);
    Ok((validator, commitment))
}

#[test]
fn silence_and_leaving_are_told_apart_by_their_moment() -> anyhow::Result<()> {
    let spec = Spec::Chain(chain(Numbers::Int8, 2, 4)?);
    let (mut gone, commitment) = committed(spec)?;
    let (mut silent, mut vanished, mut hung_up) = (gone.clone(), gone.clone(), gone.clone());
    assert_eq!(gone.apply(Input::Gone, 5), Some(Action::End));
    assert_eq!(reason(&gone.into_evidence()), Some(Reason::Gone));

    assert_eq!(silent.deadline_us(), Some(2_000_001));
    assert_eq!(silent.apply(Input::Tick, 2_000_000), None);
    assert_eq!(silent.apply(Input::Tick, 2_000_001), Some(Action::End));
    assert_eq!(
        reason(&silent.into_evidence()),
        Some(Reason::NotCommitted { limit_us: 2_000_000 })
    );

    for (validator, last) in [(&mut vanished, Input::Tick), (&mut hung_up, Input::Gone)] {
        assert_eq!(
            validator.apply(Input::Message(&commitment), 10),
            Some(Action::NeedRandomness)
        );
        assert!(matches!(
            validator.apply(Input::Randomness([1; 32]), 11),
            Some(Action::Send(_))
        ));
        assert_eq!(validator.deadline_us(), Some(500_012));
        assert_eq!(validator.apply(last, 500_012), Some(Action::End));
    }
    assert_eq!(reason(&vanished.into_evidence()), Some(Reason::Vanished));
    assert_eq!(reason(&hung_up.into_evidence()), Some(Reason::Vanished));
    Ok(())
}

#[test]
fn floods_cost_nothing_and_are_named() -> anyhow::Result<()> {
    let spec = Spec::Chain(chain(Numbers::Int8, 2, 4)?);
    let (fresh, commitment) = committed(spec)?;
    // Longer than anything that could be right, whether it was read or only announced.
    let most = fresh.most_bytes();
    assert_eq!(most, 36 + 16 + 64);
    let mut oversized = fresh.clone();
    assert_eq!(
        oversized.apply(Input::Message(&vec![4; most + 1]), 1),
        Some(Action::End)
    );
    let evidence = oversized.into_evidence();
    assert!(evidence.commitment.is_none(), "nothing of it is kept");
    assert_eq!(
        reason(&evidence),
        Some(Reason::Oversized {
            length: most as u64 + 1,
            most: most as u64
        })
    );
    let mut announced = fresh.clone();
    announced.apply(Input::Oversized(u64::MAX), 1);
    assert_eq!(
        reason(&announced.into_evidence()),
        Some(Reason::Oversized {
            length: u64::MAX,
            most: most as u64
        })
    );
    // The same commitment twice, before and after the draw went out.
    for draw_first in [false, true] {
        let mut repeated = fresh.clone();
        repeated.apply(Input::Message(&commitment), 1);
        if draw_first {
            repeated.apply(Input::Randomness([1; 32]), 2);
        }
        assert_eq!(repeated.apply(Input::Message(&commitment), 3), Some(Action::End));
        for _ in 0..1000 {
            assert_eq!(
                repeated.apply(Input::Message(&commitment), 4),
                None,
                "after the end nothing happens"
            );
        }
        assert_eq!(
            reason(&repeated.into_evidence()),
            Some(Reason::OutOfTurn { kind: 4 })
        );
    }
    // An opening where a commitment belongs, an empty message, a message before the challenge was sent.
    for (message, kind) in [(vec![1, 6, 0, 0], 6), (vec![], 0)] {
        let mut other = fresh.clone();
        other.apply(Input::Message(&message), 1);
        assert_eq!(reason(&other.into_evidence()), Some(Reason::OutOfTurn { kind }));
    }
    let mut early = Validator::new(spec, LIMITS);
    assert_eq!(early.apply(Input::Message(&commitment), 0), Some(Action::End));
    // A short commitment ends the conversation at once and is judged.
    let mut short = fresh;
    assert_eq!(
        short.apply(Input::Message(&commitment[..60]), 1),
        Some(Action::End)
    );
    assert!(matches!(
        reason(&short.into_evidence()),
        Some(Reason::Malformed(DecodeError::Length { .. }))
    ));
    Ok(())
}

#[test]
fn an_executor_takes_only_what_belongs_to_its_conversation() -> anyhow::Result<()> {
    let spec = chain(Numbers::Int8, 2, 4)?;
    let challenge = Validator::new(Spec::Chain(spec), LIMITS).challenge().to_vec();
    let fresh = || Executor::new(CAPS);
    assert_eq!(fresh().message(&challenge)?, Command::Run(Task::Chain(spec)));
    // Twice, with another session in the head, with something after it, with nothing in it.
    let mut twice = fresh();
    twice.message(&challenge)?;
    assert_eq!(twice.message(&challenge), Err(Refusal::OutOfTurn));
    assert_eq!(twice.message(&challenge), Err(Refusal::OutOfTurn));
    let mut other = challenge.clone();
    *at(&mut other, 4)? ^= 1;
    assert_eq!(fresh().message(&other), Err(Refusal::OtherSession));
    let longer = [challenge.clone(), vec![0]].concat();
    assert!(matches!(fresh().message(&longer), Err(Refusal::Malformed(_))));
    assert!(matches!(fresh().message(&[]), Err(Refusal::Malformed(_))));
    // More than it offers.
    let small = muster_hardware_proof::session::Caps {
        log2_n: 7,
        memory_bytes: 1 << 10,
        ..CAPS
    };
    assert_eq!(
        Executor::new(small).message(&challenge),
        Err(Refusal::TooMuch("side of the matrices"))
    );
    let fill = Validator::new(Spec::Walk(walk(4)?), LIMITS).challenge().to_vec();
    assert_eq!(
        Executor::new(small).message(&fill),
        Err(Refusal::TooMuch("memory"))
    );
    let slow = muster_hardware_proof::session::Caps { work: 1, ..CAPS };
    assert_eq!(Executor::new(slow).message(&fill), Err(Refusal::TooMuch("work")));
    // A verdict ends it at any time.
    let verdict = muster_hardware_proof::message::frame(Kind::Verdict, &spec.session(), &[&[13, 0, 0, 0]]);
    let mut judged = fresh();
    judged.message(&challenge)?;
    assert_eq!(judged.message(&verdict)?, Command::End(13));
    Ok(())
}

/// Seeded noise over every parser: no input panics, and what is read is what would be written.
#[test]
fn parsers_take_anything() -> anyhow::Result<()> {
    let evidence = honest(Spec::Walk(walk(4)?))?.to_bytes();
    let spec = chain(Numbers::Fp16, 3, 9)?.to_bytes();
    let mut random = muster_hardware_proof::Draws::new(muster_hardware_proof::chacha::Key([8; 32]));
    for _ in 0..20_000 {
        for sample in [&spec, &evidence] {
            let mut bytes = sample.clone();
            for _ in 0..=random.below(3) {
                // Mostly in the head, where lengths and tags are.
                let range = if random.below(4) > 0 {
                    260
                } else {
                    bytes.len() as u32
                };
                let place = random.below(range.min(bytes.len() as u32)) as usize;
                *at(&mut bytes, place)? = random.below(256) as u8;
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len() as u32) as usize);
            }
            if let Ok(read) = Spec::from_bytes(&bytes) {
                assert_eq!(read.to_bytes(), bytes);
            }
            if let Ok(read) = Evidence::from_bytes(&bytes) {
                assert_eq!(read.to_bytes(), bytes);
            }
            let _ = Executor::new(CAPS).message(&bytes);
        }
    }
    Ok(())
}

/// Evidence with damaged parts is judged without a panic, and never passes when the opening was damaged.
#[test]
fn damaged_evidence_is_judged() -> anyhow::Result<()> {
    let whole = honest(Spec::Chain(chain(Numbers::Int8, 2, 4)?))?;
    let mut random = muster_hardware_proof::Draws::new(muster_hardware_proof::chacha::Key([9; 32]));
    for _ in 0..300 {
        let mut damaged = whole.clone();
        if let Some(opening) = &mut damaged.opening {
            let place = random.below(opening.bytes.len() as u32) as usize;
            *at(&mut opening.bytes, place)? ^= 1 << random.below(8);
        }
        assert!(reason(&damaged).is_some());
    }
    for ending in [
        Ending::Gone,
        Ending::TimedOut,
        Ending::Complete,
        Ending::OutOfTurn(9),
        Ending::Oversized(1, 0),
    ] {
        let cut = Evidence {
            opening: None,
            ending,
            ..whole.clone()
        };
        assert!(reason(&cut).is_some());
    }
    Ok(())
}

#[derive(Default)]
struct Meter {
    rounds: AtomicU64,
    blocks: AtomicU64,
    stop: AtomicBool,
}

impl Watch for Meter {
    fn progress(&self, part: Part, done: u64, total: u64) {
        match part {
            Part::Rounds => self.rounds.fetch_max(done, Ordering::Relaxed),
            Part::Fill => self.blocks.fetch_max(done * 1000 / total, Ordering::Relaxed),
            Part::Prepare | Part::Walks | Part::Open => 0,
        };
    }

    fn cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[test]
fn progress_is_told_and_work_can_be_stopped() -> anyhow::Result<()> {
    let mut prover = prover(Engine::best());
    let meter = Meter::default();
    perform(&mut prover, &Task::Chain(chain(Numbers::Int8, 3, 4)?), &meter)?;
    prover.fill(&walk(4)?, &meter)?;
    assert_eq!(meter.rounds.load(Ordering::Relaxed), 3);
    assert_eq!(meter.blocks.load(Ordering::Relaxed), 1000);
    meter.stop.store(true, Ordering::Relaxed);
    for task in [Task::Chain(chain(Numbers::Int8, 3, 4)?), Task::Fill(walk(4)?)] {
        assert!(matches!(
            perform(&mut prover, &task, &meter),
            Err(ProverError::Cancelled)
        ));
    }
    Ok(())
}

//! Whole conversations: honest ones pass, each alteration fails with its own reason, and no input causes a panic.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::{CAPS, LIMITS, at, bound_chain, chain, converse, identity, prover, walk};
use muster_hardware_proof::challenge_message::{MessageKind, ProofSpec};
use muster_hardware_proof::conversation::{
    ChallengeRejection, ExecutorCommand, ExecutorConversation, ProverTask, ValidatorAction,
    ValidatorConversation, ValidatorInput,
};
use muster_hardware_proof::merkle::LEAF;
use muster_hardware_proof::prover::{
    NoObserver, Prover, ProverError, ProverPhase, WorkObserver, perform_task,
};
use muster_hardware_proof::spec::NumberFormat;
use muster_hardware_proof::{
    ConversationEnd, DecodeError, Evidence, InstructionSet, Measurement, ProofVerdict, ZeroReason,
};

/// The offset of the first opening in a message, after the head and the digest.
const FIRST: usize = 36 + 32;

fn honest(spec: ProofSpec) -> anyhow::Result<Evidence> {
    converse(&mut prover(InstructionSet::best()), spec, 7, |_, _| {})
}

fn reason(evidence: &Evidence) -> Option<ZeroReason> {
    match evidence.judge(InstructionSet::best()) {
        ProofVerdict::Passed(_) => None,
        ProofVerdict::Zero(reason) => Some(reason),
    }
}

#[test]
fn honest_chains_pass_on_every_engine() -> anyhow::Result<()> {
    for numbers in [NumberFormat::Int8, NumberFormat::Fp16] {
        for engine in InstructionSet::available() {
            let evidence = converse(
                &mut prover(engine),
                ProofSpec::Matmul(chain(numbers, 4, 16)?),
                1,
                |_, _| {},
            )?;
            // 200 ms less the allowance of 150 ms would be 50 ms, but at least half of the time counts.
            let rate = 2 * 256 * 256 * 256 * 4 / 100_000;
            let passed = ProofVerdict::Passed(Measurement::Matmul {
                numbers,
                rate,
                elapsed_us: 100_000,
            });
            for judge in InstructionSet::available() {
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
    for engine in InstructionSet::available() {
        let mut prover = prover(engine);
        let evidence = converse(&mut prover, ProofSpec::Walk(spec), 1, |_, _| {})?;
        let passed = Measurement::Walk {
            bytes: 1 << 20,
            rate: (16 * 64 * 1024) / 100_000,
            elapsed_us: 100_000,
        };
        assert_eq!(
            evidence.judge(InstructionSet::PORTABLE),
            ProofVerdict::Passed(passed)
        );
        let bound = converse(&mut prover, ProofSpec::Matmul(bound_chain(&spec)?), 1, |_, _| {})?;
        assert!(matches!(
            bound.judge(InstructionSet::best()),
            ProofVerdict::Passed(_)
        ));
    }
    // The bound product fails without the memory.
    let task = ProverTask::Matmul(bound_chain(&spec)?);
    assert!(matches!(
        perform_task(&mut prover(InstructionSet::best()), &task, &NoObserver),
        Err(ProverError::OutOfOrder(_))
    ));
    Ok(())
}

#[test]
fn evidence_survives_storing_and_replays_to_the_same_verdict() -> anyhow::Result<()> {
    for spec in [
        ProofSpec::Matmul(chain(NumberFormat::Int8, 2, 8)?),
        ProofSpec::Walk(walk(16)?),
    ] {
        let evidence = honest(spec)?;
        let stored = evidence.to_bytes();
        let read = Evidence::from_bytes(&stored)?;
        assert_eq!(read, evidence);
        assert_eq!(read.to_bytes(), stored);
        assert_eq!(
            read.judge(InstructionSet::PORTABLE),
            evidence.judge(InstructionSet::best())
        );
    }
    Ok(())
}

#[test]
fn each_alteration_of_a_chain_has_its_own_reason() -> anyhow::Result<()> {
    let spec = chain(NumberFormat::Int8, 2, 8)?;
    let honest = honest(ProofSpec::Matmul(spec))?;
    // The offsets in the opening of draw 0.
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
        Some(ZeroReason::WrongEntry { draw: 0, .. })
    ));
    assert_eq!(
        in_opening(&|m| m[beside] ^= 1),
        Some(ZeroReason::AlteredLeaf { draw: 0 })
    );
    assert_eq!(
        in_opening(&|m| m[FIRST + 12 + LEAF] ^= 1),
        Some(ZeroReason::AlteredPath { draw: 0 })
    );
    assert_eq!(
        in_opening(&|m| m[FIRST] = 1),
        Some(ZeroReason::OtherRound {
            draw: 0,
            expected: 0,
            found: 1
        })
    );
    assert_eq!(
        in_opening(&|m| m[FIRST + 4] ^= 1),
        Some(ZeroReason::OtherPlace { draw: 0 })
    );
    // The first two openings, of rounds 0 and 1, are exchanged.
    let swapped = in_opening(&|m| {
        let (a, b) = m[FIRST..].split_at_mut(opening);
        a.swap_with_slice(&mut b[..opening]);
    });
    assert!(matches!(swapped, Some(ZeroReason::OtherRound { draw: 0, .. })));
    assert_eq!(in_opening(&|m| m[36] ^= 1), Some(ZeroReason::OtherCommitment));
    assert_eq!(in_opening(&|m| m[4] ^= 1), Some(ZeroReason::OtherChallenge));
    assert!(matches!(
        in_opening(&|m| m.truncate(m.len() - 1)),
        Some(ZeroReason::Malformed(DecodeError::Length { .. }))
    ));
    assert_eq!(in_opening(&|m| m[1] = 4), Some(ZeroReason::OutOfTurn { kind: 4 }));

    let mut root = honest.clone();
    root.commitment
        .as_mut()
        .map(|received| received.bytes[36 + 16 + 32] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&root), Some(ZeroReason::OtherCommitment));
    let mut print = honest.clone();
    print
        .commitment
        .as_mut()
        .map(|received| received.bytes[36] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&print), Some(ZeroReason::OtherKey));
    // The same transcript under another nonce, another executor or another draw.
    let shape = *spec.shape();
    let mut nonce = honest.clone();
    nonce.spec = ProofSpec::Matmul(muster_hardware_proof::matmul::MatmulSpec::new(
        identity(99),
        shape,
        None,
    )?);
    assert_eq!(reason(&nonce), Some(ZeroReason::OtherChallenge));
    let mut draw = honest.clone();
    draw.draw
        .as_mut()
        .map(|sent| sent.bytes[0] ^= 1)
        .unwrap_or_default();
    assert!(matches!(reason(&draw), Some(ZeroReason::OtherPlace { draw: 0 })));
    let mut late = honest.clone();
    late.commitment
        .as_mut()
        .map(|received| received.at_us += 3_000_000)
        .unwrap_or_default();
    assert_eq!(
        reason(&late),
        Some(ZeroReason::NotCommitted {
            limit_us: LIMITS.commit_us
        })
    );
    Ok(())
}

/// A commitment is altered in transit. The executor notices that the draw belongs to another commitment than its own.
#[test]
fn a_commitment_changed_on_its_way_ends_the_conversation() -> anyhow::Result<()> {
    let spec = ProofSpec::Matmul(chain(NumberFormat::Int8, 2, 8)?);
    let evidence = converse(&mut prover(InstructionSet::best()), spec, 7, |kind, message| {
        if kind == MessageKind::Commitment {
            message[36 + 16 + 32] ^= 1;
        }
    });
    assert!(evidence.is_err_and(|error| error.downcast_ref() == Some(&ChallengeRejection::OtherCommitment)));
    Ok(())
}

#[test]
fn each_alteration_of_a_walk_has_its_own_reason() -> anyhow::Result<()> {
    let spec = walk(8)?;
    let honest = honest(ProofSpec::Walk(spec))?;
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
    assert_eq!(alter(state), Some(ZeroReason::WrongStep { draw: 0 }));
    assert_eq!(alter(state - 32), Some(ZeroReason::WrongStep { draw: 0 }));
    assert_eq!(alter(FIRST + 12), Some(ZeroReason::AlteredLeaf { draw: 0 }));
    assert_eq!(
        alter(FIRST + 12 + LEAF),
        Some(ZeroReason::AlteredPath { draw: 0 })
    );
    assert_eq!(alter(FIRST), Some(ZeroReason::OtherPlace { draw: 0 }));
    let mut root = honest.clone();
    root.commitment
        .as_mut()
        .map(|received| received.bytes[36 + 16] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&root), Some(ZeroReason::OtherCommitment));
    let mut seed = honest.clone();
    seed.seed
        .as_mut()
        .map(|sent| sent.bytes[0] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&seed), Some(ZeroReason::OtherKey));
    let mut labels = honest.clone();
    labels
        .filled
        .as_mut()
        .map(|received| received.bytes[36] ^= 1)
        .unwrap_or_default();
    assert_eq!(reason(&labels), Some(ZeroReason::OtherKey));
    let mut slow = honest;
    slow.filled
        .as_mut()
        .map(|received| received.at_us = LIMITS.fill_us + 1)
        .unwrap_or_default();
    assert_eq!(
        reason(&slow),
        Some(ZeroReason::NotFilled {
            limit_us: LIMITS.fill_us
        })
    );
    Ok(())
}

/// The draw opens the first step of a second leaf, so the leaf before it is checked too.
#[test]
fn the_border_between_two_leaves_is_checked() -> anyhow::Result<()> {
    let spec = walk(64)?;
    let honest = honest(ProofSpec::Walk(spec))?;
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
    assert!(matches!(reason(&altered), Some(ZeroReason::AlteredPath { .. })));
    Ok(())
}

fn committed(spec: ProofSpec) -> anyhow::Result<(ValidatorConversation, Vec<u8>)> {
    let evidence = honest(spec)?;
    let commitment = evidence
        .commitment
        .map(|received| received.bytes)
        .unwrap_or_default();
    let mut validator = ValidatorConversation::new(spec, LIMITS);
    validator.apply(ValidatorInput::Started, 0);
    Ok((validator, commitment))
}

#[test]
fn silence_and_leaving_are_told_apart_by_their_moment() -> anyhow::Result<()> {
    let spec = ProofSpec::Matmul(chain(NumberFormat::Int8, 2, 4)?);
    let (mut gone, commitment) = committed(spec)?;
    let (mut silent, mut vanished, mut hung_up) = (gone.clone(), gone.clone(), gone.clone());
    assert_eq!(gone.apply(ValidatorInput::Gone, 5), Some(ValidatorAction::End));
    assert_eq!(reason(&gone.into_evidence()), Some(ZeroReason::Gone));

    assert_eq!(silent.deadline_us(), Some(2_000_001));
    assert_eq!(silent.apply(ValidatorInput::Tick, 2_000_000), None);
    assert_eq!(
        silent.apply(ValidatorInput::Tick, 2_000_001),
        Some(ValidatorAction::End)
    );
    assert_eq!(
        reason(&silent.into_evidence()),
        Some(ZeroReason::NotCommitted { limit_us: 2_000_000 })
    );

    for (validator, last) in [
        (&mut vanished, ValidatorInput::Tick),
        (&mut hung_up, ValidatorInput::Gone),
    ] {
        assert_eq!(
            validator.apply(ValidatorInput::Message(&commitment), 10),
            Some(ValidatorAction::NeedRandomness)
        );
        assert!(matches!(
            validator.apply(ValidatorInput::Randomness([1; 32]), 11),
            Some(ValidatorAction::Send(_))
        ));
        assert_eq!(validator.deadline_us(), Some(500_012));
        assert_eq!(validator.apply(last, 500_012), Some(ValidatorAction::End));
    }
    assert_eq!(reason(&vanished.into_evidence()), Some(ZeroReason::Vanished));
    assert_eq!(reason(&hung_up.into_evidence()), Some(ZeroReason::Vanished));
    Ok(())
}

#[test]
fn floods_cost_nothing_and_are_named() -> anyhow::Result<()> {
    let spec = ProofSpec::Matmul(chain(NumberFormat::Int8, 2, 4)?);
    let (fresh, commitment) = committed(spec)?;
    // Messages longer than any valid one, both read and only announced.
    let most = fresh.max_message_bytes();
    assert_eq!(most, 36 + 16 + 64);
    let mut oversized = fresh.clone();
    assert_eq!(
        oversized.apply(ValidatorInput::Message(&vec![4; most + 1]), 1),
        Some(ValidatorAction::End)
    );
    let evidence = oversized.into_evidence();
    assert!(evidence.commitment.is_none(), "nothing of it is kept");
    assert_eq!(
        reason(&evidence),
        Some(ZeroReason::Oversized {
            length: most as u64 + 1,
            most: most as u64
        })
    );
    let mut announced = fresh.clone();
    announced.apply(ValidatorInput::Oversized(u64::MAX), 1);
    assert_eq!(
        reason(&announced.into_evidence()),
        Some(ZeroReason::Oversized {
            length: u64::MAX,
            most: most as u64
        })
    );
    // The same commitment twice, before and after the draw was sent.
    for draw_first in [false, true] {
        let mut repeated = fresh.clone();
        repeated.apply(ValidatorInput::Message(&commitment), 1);
        if draw_first {
            repeated.apply(ValidatorInput::Randomness([1; 32]), 2);
        }
        assert_eq!(
            repeated.apply(ValidatorInput::Message(&commitment), 3),
            Some(ValidatorAction::End)
        );
        for _ in 0..1000 {
            assert_eq!(
                repeated.apply(ValidatorInput::Message(&commitment), 4),
                None,
                "after the end nothing happens"
            );
        }
        assert_eq!(
            reason(&repeated.into_evidence()),
            Some(ZeroReason::OutOfTurn { kind: 4 })
        );
    }
    // An opening instead of a commitment, an empty message, a message before the challenge was sent.
    for (message, kind) in [(vec![1, 6, 0, 0], 6), (vec![], 0)] {
        let mut other = fresh.clone();
        other.apply(ValidatorInput::Message(&message), 1);
        assert_eq!(
            reason(&other.into_evidence()),
            Some(ZeroReason::OutOfTurn { kind })
        );
    }
    let mut early = ValidatorConversation::new(spec, LIMITS);
    assert_eq!(
        early.apply(ValidatorInput::Message(&commitment), 0),
        Some(ValidatorAction::End)
    );
    // A short commitment ends the conversation at once and is judged.
    let mut short = fresh;
    assert_eq!(
        short.apply(ValidatorInput::Message(&commitment[..60]), 1),
        Some(ValidatorAction::End)
    );
    assert!(matches!(
        reason(&short.into_evidence()),
        Some(ZeroReason::Malformed(DecodeError::Length { .. }))
    ));
    Ok(())
}

#[test]
fn an_executor_takes_only_what_belongs_to_its_conversation() -> anyhow::Result<()> {
    let spec = chain(NumberFormat::Int8, 2, 4)?;
    let challenge = ValidatorConversation::new(ProofSpec::Matmul(spec), LIMITS)
        .challenge()
        .to_vec();
    let fresh = || ExecutorConversation::new(CAPS);
    assert_eq!(
        fresh().receive(&challenge)?,
        ExecutorCommand::Run(ProverTask::Matmul(spec))
    );
    // A challenge twice, with another id in the head, with additional bytes, and with no body.
    let mut twice = fresh();
    twice.receive(&challenge)?;
    assert_eq!(twice.receive(&challenge), Err(ChallengeRejection::OutOfTurn));
    assert_eq!(twice.receive(&challenge), Err(ChallengeRejection::OutOfTurn));
    let mut other = challenge.clone();
    *at(&mut other, 4)? ^= 1;
    assert_eq!(fresh().receive(&other), Err(ChallengeRejection::OtherChallenge));
    let longer = [challenge.clone(), vec![0]].concat();
    assert!(matches!(
        fresh().receive(&longer),
        Err(ChallengeRejection::Malformed(_))
    ));
    assert!(matches!(
        fresh().receive(&[]),
        Err(ChallengeRejection::Malformed(_))
    ));
    // Challenges that exceed the executor's limits.
    let small = muster_hardware_proof::conversation::ProverLimits {
        log2_n: 7,
        memory_bytes: 1 << 10,
        ..CAPS
    };
    assert_eq!(
        ExecutorConversation::new(small).receive(&challenge),
        Err(ChallengeRejection::TooMuch("side of the matrices"))
    );
    let fill = ValidatorConversation::new(ProofSpec::Walk(walk(4)?), LIMITS)
        .challenge()
        .to_vec();
    assert_eq!(
        ExecutorConversation::new(small).receive(&fill),
        Err(ChallengeRejection::TooMuch("memory"))
    );
    let slow = muster_hardware_proof::conversation::ProverLimits { work: 1, ..CAPS };
    assert_eq!(
        ExecutorConversation::new(slow).receive(&fill),
        Err(ChallengeRejection::TooMuch("work"))
    );
    // A verdict ends the conversation at any time.
    let verdict = muster_hardware_proof::challenge_message::encode_message(
        MessageKind::Verdict,
        &spec.challenge_id(),
        &[&[13, 0, 0, 0]],
    );
    let mut judged = fresh();
    judged.receive(&challenge)?;
    assert_eq!(judged.receive(&verdict)?, ExecutorCommand::End(13));
    Ok(())
}

/// Seeded random changes of the input of every parser: no input panics, and parsed values encode to the same bytes.
#[test]
fn parsers_take_anything() -> anyhow::Result<()> {
    let evidence = honest(ProofSpec::Walk(walk(4)?))?.to_bytes();
    let spec = chain(NumberFormat::Fp16, 3, 9)?.to_bytes();
    let mut random = muster_hardware_proof::Draws::new(muster_hardware_proof::chacha::Key([8; 32]));
    for _ in 0..20_000 {
        for sample in [&spec, &evidence] {
            let mut bytes = sample.clone();
            for _ in 0..=random.draw_below(3) {
                // Most changes are in the head, which holds lengths and tags.
                let range = if random.draw_below(4) > 0 {
                    260
                } else {
                    bytes.len() as u32
                };
                let place = random.draw_below(range.min(bytes.len() as u32)) as usize;
                *at(&mut bytes, place)? = random.draw_below(256) as u8;
            }
            if random.draw_below(4) == 0 {
                bytes.truncate(random.draw_below(bytes.len() as u32) as usize);
            }
            if let Ok(read) = ProofSpec::from_bytes(&bytes) {
                assert_eq!(read.to_bytes(), bytes);
            }
            if let Ok(read) = Evidence::from_bytes(&bytes) {
                assert_eq!(read.to_bytes(), bytes);
            }
            let _ = ExecutorConversation::new(CAPS).receive(&bytes);
        }
    }
    Ok(())
}

/// Evidence with damaged parts is judged without a panic, and never passes when the opening was damaged.
#[test]
fn damaged_evidence_is_judged() -> anyhow::Result<()> {
    let whole = honest(ProofSpec::Matmul(chain(NumberFormat::Int8, 2, 4)?))?;
    let mut random = muster_hardware_proof::Draws::new(muster_hardware_proof::chacha::Key([9; 32]));
    for _ in 0..300 {
        let mut damaged = whole.clone();
        if let Some(opening) = &mut damaged.opening {
            let place = random.draw_below(opening.bytes.len() as u32) as usize;
            *at(&mut opening.bytes, place)? ^= 1 << random.draw_below(8);
        }
        assert!(reason(&damaged).is_some());
    }
    for ending in [
        ConversationEnd::Gone,
        ConversationEnd::TimedOut,
        ConversationEnd::Complete,
        ConversationEnd::OutOfTurn(9),
        ConversationEnd::Oversized(1, 0),
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

impl WorkObserver for Meter {
    fn report_progress(&self, part: ProverPhase, done: u64, total: u64) {
        match part {
            ProverPhase::Rounds => self.rounds.fetch_max(done, Ordering::Relaxed),
            ProverPhase::Fill => self.blocks.fetch_max(done * 1000 / total, Ordering::Relaxed),
            ProverPhase::Prepare | ProverPhase::Walks | ProverPhase::Open => 0,
        };
    }

    fn is_cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[test]
fn progress_is_told_and_work_can_be_stopped() -> anyhow::Result<()> {
    let mut prover = prover(InstructionSet::best());
    let meter = Meter::default();
    perform_task(
        &mut prover,
        &ProverTask::Matmul(chain(NumberFormat::Int8, 3, 4)?),
        &meter,
    )?;
    prover.fill_memory(&walk(4)?, &meter)?;
    assert_eq!(meter.rounds.load(Ordering::Relaxed), 3);
    assert_eq!(meter.blocks.load(Ordering::Relaxed), 1000);
    meter.stop.store(true, Ordering::Relaxed);
    for task in [
        ProverTask::Matmul(chain(NumberFormat::Int8, 3, 4)?),
        ProverTask::Fill(walk(4)?),
    ] {
        assert!(matches!(
            perform_task(&mut prover, &task, &meter),
            Err(ProverError::Cancelled)
        ));
    }
    Ok(())
}

//! Runs a whole conversation in one call.

use std::num::NonZeroUsize;

use anyhow::{Context, bail};
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName};
use muster_hardware_proof::challenge_message::{MessageKind, ProofSpec};
use muster_hardware_proof::conversation::{
    ExecutorCommand, ExecutorConversation, ProverLimits, ValidatorAction, ValidatorConversation,
    ValidatorInput,
};
use muster_hardware_proof::matmul::{MatmulShape, MatmulSpec, MemoryBinding};
use muster_hardware_proof::memory_walk::{WalkShape, WalkSpec};
use muster_hardware_proof::prover::{CpuProver, NoObserver, Prover, perform_task};
use muster_hardware_proof::spec::NumberFormat;
use muster_hardware_proof::{Evidence, InstructionSet, Limits};

pub(crate) const LIMITS: Limits = Limits {
    fill_us: 1_000_000,
    commit_us: 2_000_000,
    open_us: 500_000,
    allowance_us: 150_000,
};

pub(crate) const CAPS: ProverLimits = ProverLimits {
    log2_n: 10,
    memory_bytes: 1 << 21,
    work: 64,
    read_bytes: 1 << 30,
};

pub(crate) fn identity(nonce: u8) -> ChallengeIdentity {
    ChallengeIdentity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: ChallengeNonce([nonce; 32]),
    }
}

pub(crate) fn chain(numbers: NumberFormat, rounds: u16, entries: u16) -> anyhow::Result<MatmulSpec> {
    Ok(MatmulSpec::new(
        identity(3),
        MatmulShape {
            numbers,
            log2_n: 8,
            rounds,
            entries,
        },
        None,
    )?)
}

pub(crate) fn bound_chain(walk: &WalkSpec) -> anyhow::Result<MatmulSpec> {
    let shape = MatmulShape {
        numbers: NumberFormat::Int8,
        log2_n: 10,
        rounds: 2,
        entries: 4,
    };
    let binding = MemoryBinding {
        blocks_per_row: 1,
        memory: walk.memory(),
    };
    Ok(MatmulSpec::new(identity(4), shape, Some(binding))?)
}

/// The size of the tests: 1 MiB, t = 16, 16 walks of 64 steps.
pub(crate) fn walk(draws: u16) -> anyhow::Result<WalkSpec> {
    let shape = WalkShape {
        blocks: 1024,
        work: 16,
        log2_walks: 4,
        log2_leaves: 1,
        draws,
    };
    Ok(WalkSpec::new(identity(5), shape)?)
}

pub(crate) fn prover(engine: InstructionSet) -> CpuProver {
    CpuProver::new(engine, NonZeroUsize::new(2).unwrap_or(NonZeroUsize::MIN))
}

/// Runs both sides and passes every message of the executor through `alter`. Each step takes 200 ms of the validator's
/// time. The randomness is `[draw; 32]`, then `[draw + 1; 32]`, and so on.
pub(crate) fn converse(
    prover: &mut dyn Prover,
    spec: ProofSpec,
    draw: u8,
    mut alter: impl FnMut(MessageKind, &mut Vec<u8>),
) -> anyhow::Result<Evidence> {
    let mut validator = ValidatorConversation::new(spec, LIMITS);
    let mut executor = ExecutorConversation::new(CAPS);
    let mut to_executor = validator.challenge().to_vec();
    let mut now_us = 1_000;
    let mut randomness = draw;
    validator.apply(ValidatorInput::Started, now_us);
    for _ in 0..4 {
        let ExecutorCommand::Run(task) = executor.receive(&to_executor)? else {
            bail!("no work after {to_executor:?}")
        };
        let output = perform_task(prover, &task, &NoObserver)?;
        let ExecutorCommand::Send(mut message) = executor.complete_task(&output)? else {
            bail!("no message after the work")
        };
        let kind = match message.get(1) {
            Some(2) => MessageKind::Filled,
            Some(4) => MessageKind::Commitment,
            Some(6) => MessageKind::Opening,
            other => bail!("kind {other:?}"),
        };
        alter(kind, &mut message);
        now_us += 200_000;
        match validator.apply(ValidatorInput::Message(&message), now_us) {
            Some(ValidatorAction::NeedRandomness) => {}
            Some(ValidatorAction::End) => return Ok(validator.into_evidence()),
            other => bail!("the validator did {other:?}"),
        }
        let Some(ValidatorAction::Send(bytes)) =
            validator.apply(ValidatorInput::Randomness([randomness; 32]), now_us)
        else {
            bail!("nothing sent after randomness")
        };
        randomness = randomness.wrapping_add(1);
        to_executor = bytes;
    }
    bail!("a conversation without end")
}

/// The byte at this offset in a message.
pub(crate) fn at(message: &mut [u8], place: usize) -> anyhow::Result<&mut u8> {
    message.get_mut(place).context("a place outside the message")
}

//! A whole conversation in one call.

use std::num::NonZeroUsize;

use anyhow::{Context, bail};
use muster_hardware_proof::chain::{Binding, ChainShape, ChainSpec};
use muster_hardware_proof::keys::{BatchId, ExecutorName, Identity, Nonce};
use muster_hardware_proof::message::{Kind, Spec};
use muster_hardware_proof::prover::{CpuProver, Prover, Unwatched, perform};
use muster_hardware_proof::session::{Action, Caps, Command, Executor, Input, Validator};
use muster_hardware_proof::spec::Numbers;
use muster_hardware_proof::walk::{WalkShape, WalkSpec};
use muster_hardware_proof::{Engine, Evidence, Limits};

pub(crate) const LIMITS: Limits = Limits {
    fill_us: 1_000_000,
    commit_us: 2_000_000,
    open_us: 500_000,
    allowance_us: 150_000,
};

pub(crate) const CAPS: Caps = Caps {
    log2_n: 10,
    memory_bytes: 1 << 21,
    work: 64,
    read_bytes: 1 << 30,
};

pub(crate) fn identity(nonce: u8) -> Identity {
    Identity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: Nonce([nonce; 32]),
    }
}

pub(crate) fn chain(numbers: Numbers, rounds: u16, entries: u16) -> anyhow::Result<ChainSpec> {
    Ok(ChainSpec::new(
        identity(3),
        ChainShape {
            numbers,
            log2_n: 8,
            rounds,
            entries,
        },
        None,
    )?)
}

pub(crate) fn bound_chain(walk: &WalkSpec) -> anyhow::Result<ChainSpec> {
    let shape = ChainShape {
        numbers: Numbers::Int8,
        log2_n: 10,
        rounds: 2,
        entries: 4,
    };
    let binding = Binding {
        blocks_per_row: 1,
        memory: walk.memory(),
    };
    Ok(ChainSpec::new(identity(4), shape, Some(binding))?)
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

pub(crate) fn prover(engine: Engine) -> CpuProver {
    CpuProver::new(engine, NonZeroUsize::new(2).unwrap_or(NonZeroUsize::MIN))
}

/// Both sides, every message of the executor's through `alter`; each step takes 200 ms of the validator's time. The
/// randomness is `[draw; 32]` and what follows.
pub(crate) fn converse(
    prover: &mut dyn Prover,
    spec: Spec,
    draw: u8,
    mut alter: impl FnMut(Kind, &mut Vec<u8>),
) -> anyhow::Result<Evidence> {
    let mut validator = Validator::new(spec, LIMITS);
    let mut executor = Executor::new(CAPS);
    let mut to_executor = validator.challenge().to_vec();
    let mut now_us = 1_000;
    let mut randomness = draw;
    validator.apply(Input::Started, now_us);
    for _ in 0..4 {
        let Command::Run(task) = executor.message(&to_executor)? else {
            bail!("no work after {to_executor:?}")
        };
        let output = perform(prover, &task, &Unwatched)?;
        let Command::Send(mut message) = executor.output(&output)? else {
            bail!("no message after the work")
        };
        let kind = match message.get(1) {
            Some(2) => Kind::Filled,
            Some(4) => Kind::Commitment,
            Some(6) => Kind::Opening,
            other => bail!("kind {other:?}"),
        };
        alter(kind, &mut message);
        now_us += 200_000;
        match validator.apply(Input::Message(&message), now_us) {
            Some(Action::NeedRandomness) => {}
            Some(Action::End) => return Ok(validator.into_evidence()),
            other => bail!("the validator did {other:?}"),
        }
        let Some(Action::Send(bytes)) = validator.apply(Input::Randomness([randomness; 32]), now_us) else {
            bail!("nothing sent after randomness")
        };
        randomness = randomness.wrapping_add(1);
        to_executor = bytes;
    }
    bail!("a conversation without end")
}

/// The bytes of an opening, wherever in a message they begin.
pub(crate) fn at(message: &mut [u8], place: usize) -> anyhow::Result<&mut u8> {
    message.get_mut(place).context("a place outside the message")
}

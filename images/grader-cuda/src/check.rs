//! Whether a prover gives the right bits: against the vectors of the Python reference, and through whole conversations that a
//! validator judges.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use muster_hardware_proof::chain::{Binding, ChainShape, ChainSpec};
use muster_hardware_proof::keys::{BatchId, ExecutorName, Identity, Nonce};
use muster_hardware_proof::message::{Kind, Places, Spec, commitment_digest, frame};
use muster_hardware_proof::prover::{Prover, Unwatched, perform};
use muster_hardware_proof::session::{Action, Caps, Command, Executor, Input, Output, Task, Validator};
use muster_hardware_proof::spec::Numbers;
use muster_hardware_proof::walk::{StepPlace, WalkShape, WalkSpec};
use muster_hardware_proof::{Engine, Limits, Verdict};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const VECTORS: &str = include_str!("../../../tests/vectors/proofs.json");

/// Reproduces every commitment and every opening of `tests/vectors/proofs.json`; gives what was held against them.
///
/// # Errors
/// Names the first that differs, or what the prover failed with.
pub fn golden(prover: &mut dyn Prover) -> anyhow::Result<Vec<&'static str>> {
    let all: Value = serde_json::from_str(VECTORS)?;
    chain(prover, field(&all, "int8")?).context("int8")?;
    chain(prover, field(&all, "fp16")?).context("fp16")?;
    let vector = field(&all, "walk")?;
    let spec = WalkSpec::from_bytes(&bytes(field(vector, "spec")?)?)?;
    let seed = array(field(vector, "seed")?)?;
    perform(prover, &Task::Fill(spec), &Unwatched)?;
    chain(prover, field(&all, "bound")?).context("the chain bound to a memory")?;
    let output = perform(prover, &Task::Walk(spec, seed), &Unwatched)?;
    let mut border = Vec::new();
    prover.walk_open(&[StepPlace { walk: 1, step: 32 }], &mut border, &Unwatched)?;
    ensure!(
        hex::encode(border) == *field(field(vector, "border")?, "bytes")?,
        "the step at a leaf's border differs"
    );
    opened(prover, &Spec::Walk(spec), vector, &seed, &output).context("walk")?;
    Ok(vec![
        "CHAIN int8",
        "CHAIN fp16",
        "WALK",
        "CHAIN bound to the memory",
    ])
}

fn chain(prover: &mut dyn Prover, vector: &Value) -> anyhow::Result<()> {
    let spec = ChainSpec::from_bytes(&bytes(field(vector, "spec")?)?)?;
    let output = perform(prover, &Task::Chain(spec), &Unwatched)?;
    opened(prover, &Spec::Chain(spec), vector, &[0; 32], &output)
}

/// The commitment, and the opening of what the vector draws from it.
fn opened(
    prover: &mut dyn Prover,
    spec: &Spec,
    vector: &Value,
    seed: &[u8; 32],
    output: &Output,
) -> anyhow::Result<()> {
    let Output::Committed(print, roots) = output else {
        bail!("the prover did not commit");
    };
    let commitment = frame(Kind::Commitment, &spec.session(), &[print, roots.as_flattened()]);
    ensure!(
        hex::encode(&commitment) == *field(vector, "commitment")?,
        "the commitment differs"
    );
    let digest = commitment_digest(seed, &commitment);
    let places: Places = spec.places(&digest, &array(field(vector, "entropy")?)?);
    let Output::Opened(opening) = perform(prover, &Task::Open(places), &Unwatched)? else {
        bail!("the prover did not open");
    };
    let opening = frame(Kind::Opening, &spec.session(), &[&digest, &opening]);
    let sha = hex::encode(Sha256::digest(opening));
    ensure!(sha == *field(vector, "opening_sha256")?, "the opening differs");
    Ok(())
}

fn field<'a>(value: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    value
        .get(name)
        .with_context(|| format!("the vectors have no {name}"))
}

fn bytes(value: &Value) -> anyhow::Result<Vec<u8>> {
    Ok(hex::decode(value.as_str().context("a vector is no text")?)?)
}

fn array<const N: usize>(value: &Value) -> anyhow::Result<[u8; N]> {
    let bytes = bytes(value)?;
    bytes
        .try_into()
        .map_err(|_| anyhow::anyhow!("a vector has not {N} bytes"))
}

/// How large the conversations are.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// log₂ of the side of CHAIN's matrices.
    pub log2_n: u8,
    /// Blocks of WALK's memory.
    pub blocks: u64,
    /// Applications of the one-way function per word.
    pub work: u32,
    /// log₂ of the walks.
    pub log2_walks: u8,
    /// log₂ of the leaves of each.
    pub log2_leaves: u8,
}

/// Whole conversations of these sizes, judged as a validator does: a chain of each kind, a walk, a chain bound to its memory.
///
/// # Errors
/// Names the first that does not pass.
pub fn conversations(
    prover: &mut dyn Prover,
    sizes: &Sizes,
    clock: &dyn Fn() -> Duration,
) -> anyhow::Result<Vec<Verdict>> {
    let walk = WalkShape {
        blocks: sizes.blocks,
        work: sizes.work,
        log2_walks: sizes.log2_walks,
        log2_leaves: sizes.log2_leaves,
        draws: 128,
    };
    let walk = WalkSpec::new(identity(3), walk)?;
    let binding = Binding {
        blocks_per_row: 1,
        memory: walk.memory(),
    };
    let chain = |numbers, binding| {
        let shape = ChainShape {
            numbers,
            log2_n: sizes.log2_n,
            rounds: 4,
            entries: 256,
        };
        ChainSpec::new(identity(4), shape, binding).map(Spec::Chain)
    };
    let mut specs = vec![
        chain(Numbers::Int8, None)?,
        chain(Numbers::Fp16, None)?,
        Spec::Walk(walk),
    ];
    // A row of the smallest matrices is shorter than a block.
    specs.extend(
        (sizes.log2_n >= 10)
            .then(|| chain(Numbers::Int8, Some(binding)))
            .transpose()?,
    );
    let mut verdicts = Vec::new();
    for spec in specs {
        let verdict = converse(prover, spec, clock)?;
        ensure!(matches!(verdict, Verdict::Passed(_)), "{spec:?}: {verdict:?}");
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn identity(nonce: u8) -> Identity {
    Identity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: Nonce([nonce; 32]),
    }
}

/// Both sides of a conversation.
///
/// # Errors
/// The prover fails, or one of the sides does something that has no place.
pub fn converse(
    prover: &mut dyn Prover,
    spec: Spec,
    clock: &dyn Fn() -> Duration,
) -> anyhow::Result<Verdict> {
    const HOUR_US: u64 = 3_600_000_000;
    let limits = Limits {
        fill_us: HOUR_US,
        commit_us: HOUR_US,
        open_us: HOUR_US,
        allowance_us: 0,
    };
    let caps = Caps {
        log2_n: 16,
        memory_bytes: u64::MAX,
        work: u32::MAX,
        read_bytes: u128::MAX,
    };
    let now = || clock().as_micros() as u64;
    let (mut validator, mut executor) = (Validator::new(spec, limits), Executor::new(caps));
    let mut message = validator.challenge().to_vec();
    validator.apply(Input::Started, now());
    loop {
        let Command::Run(task) = executor.message(&message)? else {
            bail!("no work after a message");
        };
        let Command::Send(answer) = executor.output(&perform(prover, &task, &Unwatched)?)? else {
            bail!("no message after the work");
        };
        match validator.apply(Input::Message(&answer), now()) {
            Some(Action::NeedRandomness) => {}
            Some(Action::End) => return Ok(validator.into_evidence().judge(Engine::best())),
            other => bail!("the validator did {other:?}"),
        }
        let Some(Action::Send(next)) = validator.apply(Input::Randomness([9; 32]), now()) else {
            bail!("nothing sent after randomness");
        };
        message = next;
    }
}

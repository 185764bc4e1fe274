//! Checks that a prover gives the right bits: it is compared with the vectors of the Python reference, and a validator
//! judges whole conversations with it.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName};
use muster_hardware_proof::challenge_message::{
    DrawnPositions, MessageKind, ProofSpec, commitment_digest, encode_message,
};
use muster_hardware_proof::conversation::{
    ExecutorCommand, ExecutorConversation, ProverLimits, ProverOutput, ProverTask, ValidatorAction,
    ValidatorConversation, ValidatorInput,
};
use muster_hardware_proof::matmul::{MatmulShape, MatmulSpec, MemoryBinding};
use muster_hardware_proof::memory_walk::{StepPosition, WalkShape, WalkSpec};
use muster_hardware_proof::prover::{NoObserver, Prover, perform_task};
use muster_hardware_proof::spec::NumberFormat;
use muster_hardware_proof::{InstructionSet, Limits, ProofVerdict};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const VECTORS: &str = include_str!("../../../tests/vectors/proofs.json");

/// Compares every commitment and every opening of a prover with `tests/vectors/proofs.json`. Returns the names of the
/// proofs.
///
/// # Errors
/// Names the first difference, or the prover fails.
pub fn check_golden_vectors(prover: &mut dyn Prover) -> anyhow::Result<Vec<&'static str>> {
    let all: Value = serde_json::from_str(VECTORS)?;
    check_matmul(prover, field(&all, "int8")?).context("the int8 product")?;
    check_matmul(prover, field(&all, "fp16")?).context("the fp16 product")?;
    let vector = field(&all, "walk")?;
    let spec = WalkSpec::from_bytes(&bytes(field(vector, "spec")?)?)?;
    let seed = array(field(vector, "seed")?)?;
    perform_task(prover, &ProverTask::Fill(spec), &NoObserver)?;
    check_matmul(prover, field(&all, "bound")?).context("the products bound to a memory")?;
    let output = perform_task(prover, &ProverTask::Walk(spec, seed), &NoObserver)?;
    let mut border = Vec::new();
    prover.open_steps(&[StepPosition { walk: 1, step: 32 }], &mut border, &NoObserver)?;
    ensure!(
        hex::encode(border) == *field(field(vector, "border")?, "bytes")?,
        "the step at a leaf's border differs"
    );
    check_opening(prover, &ProofSpec::Walk(spec), vector, &seed, &output).context("the walk")?;
    Ok(vec![
        "MATMUL int8",
        "MATMUL fp16",
        "WALK",
        "MATMUL bound to the memory",
    ])
}

fn check_matmul(prover: &mut dyn Prover, vector: &Value) -> anyhow::Result<()> {
    let spec = MatmulSpec::from_bytes(&bytes(field(vector, "spec")?)?)?;
    let output = perform_task(prover, &ProverTask::Matmul(spec), &NoObserver)?;
    check_opening(prover, &ProofSpec::Matmul(spec), vector, &[0; 32], &output)
}

/// Compares the commitment, and the opening of the positions that the vector draws from it.
fn check_opening(
    prover: &mut dyn Prover,
    spec: &ProofSpec,
    vector: &Value,
    seed: &[u8; 32],
    output: &ProverOutput,
) -> anyhow::Result<()> {
    let ProverOutput::Committed(print, roots) = output else {
        bail!("the prover did not commit");
    };
    let commitment = encode_message(
        MessageKind::Commitment,
        &spec.challenge_id(),
        &[print, roots.as_flattened()],
    );
    ensure!(
        hex::encode(&commitment) == *field(vector, "commitment")?,
        "the commitment differs"
    );
    let digest = commitment_digest(seed, &commitment);
    let places: DrawnPositions = spec.draw_positions(&digest, &array(field(vector, "entropy")?)?);
    let ProverOutput::Opened(opening) = perform_task(prover, &ProverTask::Open(places), &NoObserver)? else {
        bail!("the prover did not open");
    };
    let opening = encode_message(MessageKind::Opening, &spec.challenge_id(), &[&digest, &opening]);
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
    Ok(hex::decode(value.as_str().context("a vector is not text")?)?)
}

fn array<const N: usize>(value: &Value) -> anyhow::Result<[u8; N]> {
    let bytes = bytes(value)?;
    bytes
        .try_into()
        .map_err(|_| anyhow::anyhow!("a vector does not have {N} bytes"))
}

/// The sizes of the conversations.
#[derive(Debug, Clone, Copy)]
pub struct ConversationSizes {
    /// log₂ of the side of MATMUL's matrices.
    pub log2_n: u8,
    /// The number of 1 KiB blocks of WALK's memory.
    pub blocks: u64,
    /// Applications of the one-way function per word of memory.
    pub work: u32,
    /// log₂ of the number of walks.
    pub log2_walks: u8,
    /// log₂ of the number of leaves of each walk.
    pub log2_leaves: u8,
}

/// Runs whole conversations of these sizes and judges them as a validator does: a MATMUL of each format, a WALK, and a
/// MATMUL bound to its memory.
///
/// # Errors
/// Names the first conversation that does not pass.
pub fn run_conversations(
    prover: &mut dyn Prover,
    sizes: &ConversationSizes,
    clock: &dyn Fn() -> Duration,
) -> anyhow::Result<Vec<ProofVerdict>> {
    let walk = WalkShape {
        blocks: sizes.blocks,
        work: sizes.work,
        log2_walks: sizes.log2_walks,
        log2_leaves: sizes.log2_leaves,
        draws: 128,
    };
    let walk = WalkSpec::new(identity(3), walk)?;
    let binding = MemoryBinding {
        blocks_per_row: 1,
        memory: walk.memory(),
    };
    let matmul = |numbers, binding| {
        let shape = MatmulShape {
            numbers,
            log2_n: sizes.log2_n,
            rounds: 4,
            entries: 256,
        };
        MatmulSpec::new(identity(4), shape, binding).map(ProofSpec::Matmul)
    };
    let mut specs = vec![
        matmul(NumberFormat::Int8, None)?,
        matmul(NumberFormat::Fp16, None)?,
        ProofSpec::Walk(walk),
    ];
    // A row of the smallest matrices is shorter than a block.
    specs.extend(
        (sizes.log2_n >= 10)
            .then(|| matmul(NumberFormat::Int8, Some(binding)))
            .transpose()?,
    );
    let mut verdicts = Vec::new();
    for spec in specs {
        let verdict = converse(prover, spec, clock)?;
        ensure!(
            matches!(verdict, ProofVerdict::Passed(_)),
            "{spec:?}: {verdict:?}"
        );
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn identity(nonce: u8) -> ChallengeIdentity {
    ChallengeIdentity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: ChallengeNonce([nonce; 32]),
    }
}

/// Runs both sides of a conversation and judges it.
///
/// # Errors
/// The prover fails, or one side sends an unexpected message.
pub fn converse(
    prover: &mut dyn Prover,
    spec: ProofSpec,
    clock: &dyn Fn() -> Duration,
) -> anyhow::Result<ProofVerdict> {
    const HOUR_US: u64 = 3_600_000_000;
    let limits = Limits {
        fill_us: HOUR_US,
        commit_us: HOUR_US,
        open_us: HOUR_US,
        allowance_us: 0,
    };
    let caps = ProverLimits {
        log2_n: 16,
        memory_bytes: u64::MAX,
        work: u32::MAX,
        read_bytes: u128::MAX,
    };
    let now = || clock().as_micros() as u64;
    let (mut validator, mut executor) = (
        ValidatorConversation::new(spec, limits),
        ExecutorConversation::new(caps),
    );
    let mut message = validator.challenge().to_vec();
    validator.apply(ValidatorInput::Started, now());
    loop {
        let ExecutorCommand::Run(task) = executor.receive(&message)? else {
            bail!("a message led to no work");
        };
        let ExecutorCommand::Send(answer) =
            executor.complete_task(&perform_task(prover, &task, &NoObserver)?)?
        else {
            bail!("the work led to no message");
        };
        match validator.apply(ValidatorInput::Message(&answer), now()) {
            Some(ValidatorAction::NeedRandomness) => {}
            Some(ValidatorAction::End) => return Ok(validator.into_evidence().judge(InstructionSet::best())),
            other => bail!("the validator did {other:?}"),
        }
        let Some(ValidatorAction::Send(next)) = validator.apply(ValidatorInput::Randomness([9; 32]), now())
        else {
            bail!("the validator sent nothing after randomness");
        };
        message = next;
    }
}

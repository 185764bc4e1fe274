//! Compares every step with the vectors of the Python reference.

use crate::support::prover;
use anyhow::Context;
use muster_hardware_proof::chacha::{self, Key};
use muster_hardware_proof::challenge_keys;
use muster_hardware_proof::challenge_message::{
    self, DrawnPositions, MessageKind, ProofSpec, commitment_digest,
};
use muster_hardware_proof::conversation::{ProverOutput, ProverTask};
use muster_hardware_proof::matmul::{EntryPosition, MatmulSpec, MatrixGenerator};
use muster_hardware_proof::memory_walk::{self, StepPosition, WalkSpec};
use muster_hardware_proof::merkle::{self, LEAF, MerkleTree};
use muster_hardware_proof::prover::{NoObserver, Prover, perform_task};
use muster_hardware_proof::{Draws, InstructionSet, compute_label_block};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn vectors() -> anyhow::Result<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/vectors/proofs.json");
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

fn bytes(value: &Value) -> anyhow::Result<Vec<u8>> {
    Ok(hex::decode(value.as_str().context("a text")?)?)
}

fn array<const N: usize>(value: &Value) -> anyhow::Result<[u8; N]> {
    bytes(value)?
        .try_into()
        .map_err(|_| anyhow::anyhow!("not {N} bytes"))
}

fn number(value: &Value) -> anyhow::Result<u64> {
    value.as_u64().context("a number")
}

fn list(value: &Value) -> anyhow::Result<&Vec<Value>> {
    value.as_array().context("a list")
}

fn sha(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

#[test]
fn chacha_draws_and_trees() -> anyhow::Result<()> {
    let all = vectors()?;
    let key = Key(array(&all["chacha"]["key"])?);
    for block in list(&all["chacha"]["blocks"])? {
        let found = chacha::keystream_block(&key, number(&block["counter"])?, number(&block["stream"])?);
        assert_eq!(hex::encode(found), block["bytes"]);
    }
    let mut draws = Draws::new(Key(array(&all["draws"]["key"])?));
    for (bound, values) in list(&all["draws"]["bounds"])?
        .iter()
        .zip(list(&all["draws"]["values"])?)
    {
        for value in list(values)? {
            assert_eq!(u64::from(draws.draw_below(number(bound)? as u32)), number(value)?);
        }
    }
    let tree = &all["merkle"];
    assert_eq!(hex::encode(merkle::hash_leaf(&[0; LEAF])), tree["leaf"]);
    assert_eq!(
        hex::encode(merkle::hash_node(&[0; 32], &Sha256::digest(b"right").into())),
        tree["node"]
    );
    let four = MerkleTree::build((0..4).map(|i| merkle::hash_leaf(&[i; LEAF])).collect());
    assert_eq!(hex::encode(four.root()), tree["root_of_4"]);
    let step = &all["step"];
    let (walk, count) = (number(&step["walk"])? as u32, number(&step["number"])?);
    let next = memory_walk::next_state(walk, count, &array(&step["state"])?, &array(&step["block"])?);
    assert_eq!(hex::encode(next), step["next"]);
    Ok(())
}

/// Compares every intermediate value of one MATMUL with the vectors, for one instruction set.
fn chain(vector: &Value, engine: InstructionSet, prover: &mut dyn Prover) -> anyhow::Result<()> {
    let spec = MatmulSpec::from_bytes(&bytes(&vector["spec"])?)?;
    let session = spec.challenge_id();
    assert_eq!(hex::encode(spec.to_bytes()), vector["spec"]);
    assert_eq!(hex::encode(session.0), vector["session"]);
    assert_eq!(
        hex::encode(challenge_message::encode_message(
            MessageKind::Challenge,
            &session,
            &[&spec.to_bytes()]
        )),
        vector["challenge"]
    );
    let generator = MatrixGenerator::new(spec, engine);
    assert_eq!(hex::encode(generator.b_key().0), vector["b_key"]);
    let mut column = vec![0; spec.row_bytes()];
    let mut columns = Vec::new();
    for j in 0..spec.n() as u32 {
        generator.fill_column(j, &mut column);
        columns.extend(&column);
    }
    assert_eq!(
        columns.get(..64).map(hex::encode).as_deref(),
        vector["column_0"].as_str()
    );
    assert_eq!(sha(&columns), vector["columns_sha256"]);
    let mut previous = [0; 32];
    for (k, round) in (0..).zip(list(&vector["rounds"])?) {
        assert_eq!(hex::encode(generator.a_key(k, &previous).0), round["a_key"]);
        let mut rows = Vec::new();
        for i in 0..spec.n() as u32 {
            generator.fill_bound_row(k, &previous, i, &mut column);
            rows.extend(&column);
        }
        assert_eq!(
            rows.get(..64).map(hex::encode).as_deref(),
            round["row_0"].as_str()
        );
        assert_eq!(sha(&rows), round["rows_sha256"]);
        let last = spec.n() as u32 - 1;
        let entry = |row, column| {
            i64::from(generator.compute_entry(
                EntryPosition {
                    round: k,
                    row,
                    column,
                },
                &previous,
            ))
        };
        assert_eq!(Some(entry(0, 0)), round["c_0_0"].as_i64());
        assert_eq!(Some(entry(last, last)), round["c_last"].as_i64());
        previous = array(&round["root"])?;
    }
    let output = perform_task(prover, &ProverTask::Matmul(spec), &NoObserver)?;
    let ProverOutput::Committed(print, roots) = output else {
        anyhow::bail!("not committed")
    };
    let commitment =
        challenge_message::encode_message(MessageKind::Commitment, &session, &[&print, roots.as_flattened()]);
    assert_eq!(hex::encode(&commitment), vector["commitment"]);
    opened(&ProofSpec::Matmul(spec), vector, &[0; 32], &commitment, prover)
}

/// Compares the digest, the draw and the opening of either kind.
fn opened(
    spec: &ProofSpec,
    vector: &Value,
    seed: &[u8; 32],
    commitment: &[u8],
    prover: &mut dyn Prover,
) -> anyhow::Result<()> {
    let digest = commitment_digest(seed, commitment);
    assert_eq!(hex::encode(digest), vector["commitment_digest"]);
    let places = spec.draw_positions(&digest, &array(&vector["entropy"])?);
    let drawn: Vec<Vec<u64>> = match &places {
        DrawnPositions::Matmul(places) => places
            .iter()
            .map(|p| vec![p.round.into(), p.row.into(), p.column.into()])
            .collect(),
        DrawnPositions::Walk(places) => places.iter().map(|p| vec![p.walk.into(), p.step]).collect(),
    };
    assert_eq!(serde_json::to_value(drawn)?, vector["places"]);
    let ProverOutput::Opened(out) = perform_task(prover, &ProverTask::Open(places.clone()), &NoObserver)?
    else {
        anyhow::bail!("not opened")
    };
    if let Some(first) = vector.get("first_opening") {
        let first = bytes(first)?;
        assert!(out.starts_with(&first));
    }
    let opening =
        challenge_message::encode_message(MessageKind::Opening, &spec.challenge_id(), &[&digest, &out]);
    assert_eq!(opening.len() as u64, number(&vector["opening_bytes"])?);
    assert_eq!(opening.len(), spec.opening_bytes(&places));
    assert_eq!(sha(&opening), vector["opening_sha256"]);
    Ok(())
}

#[test]
fn both_chains_on_every_engine() -> anyhow::Result<()> {
    let all = vectors()?;
    for engine in InstructionSet::available() {
        chain(&all["int8"], engine, &mut prover(engine))?;
        chain(&all["fp16"], engine, &mut prover(engine))?;
    }
    Ok(())
}

#[test]
fn the_walk_and_the_chain_bound_to_it_on_every_engine() -> anyhow::Result<()> {
    let all = vectors()?;
    let vector = &all["walk"];
    let spec = WalkSpec::from_bytes(&bytes(&vector["spec"])?)?;
    let (session, memory) = (spec.challenge_id(), spec.memory());
    assert_eq!(hex::encode(spec.to_bytes()), vector["spec"]);
    assert_eq!(hex::encode(session.0), vector["session"]);
    assert_eq!(hex::encode(memory.label_key().0), vector["label_key"]);
    let print = challenge_keys::key_confirmation(&session, &memory.label_key());
    assert_eq!(
        hex::encode(challenge_message::encode_message(
            MessageKind::Filled,
            &session,
            &[&print]
        )),
        vector["filled"]
    );
    let seed: [u8; 32] = array(&vector["seed"])?;
    let key = spec.start_key(&seed);
    assert_eq!(hex::encode(key.0), vector["start_key"]);
    for engine in InstructionSet::available() {
        let mut blocks = vec![[0; LEAF]; memory.blocks as usize];
        for (index, block) in (0..).zip(&mut blocks) {
            compute_label_block(engine, &memory, index, block);
        }
        for block in list(&vector["blocks"])? {
            assert_eq!(
                hex::encode(blocks[number(&block["index"])? as usize]),
                block["bytes"]
            );
        }
        assert_eq!(sha(blocks.as_flattened()), vector["memory_sha256"]);
        for (walk, states) in (0..).zip(list(&vector["states"])?) {
            let mut state = memory_walk::start_state(&key, walk);
            for (count, expected) in (0..).zip(list(states)?.iter().take(4)) {
                assert_eq!(hex::encode(state), *expected);
                let address = memory.address(memory_walk::address_bits(&state)) as usize;
                state = memory_walk::next_state(walk, count, &state, &blocks[address]);
            }
        }
        let mut prover = prover(engine);
        perform_task(&mut prover, &ProverTask::Fill(spec), &NoObserver)?;
        chain(&all["bound"], engine, &mut prover)?;
        let output = perform_task(&mut prover, &ProverTask::Walk(spec, seed), &NoObserver)?;
        let ProverOutput::Committed(print, roots) = output else {
            anyhow::bail!("not committed")
        };
        assert_eq!(hex::encode(roots[0]), vector["root"]);
        let commitment = challenge_message::encode_message(
            MessageKind::Commitment,
            &session,
            &[&print, roots.as_flattened()],
        );
        assert_eq!(hex::encode(&commitment), vector["commitment"]);
        let border = StepPosition { walk: 1, step: 32 };
        let mut out = Vec::new();
        prover.open_steps(&[border], &mut out, &NoObserver)?;
        assert_eq!(hex::encode(out), vector["border"]["bytes"]);
        opened(&ProofSpec::Walk(spec), vector, &seed, &commitment, &mut prover)?;
    }
    Ok(())
}

//! Cheats are found at the rates of docs/proofs.md. The seeds are fixed, so the tests are deterministic.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{LIMITS, chain, converse, walk as walk_spec};
use anyhow::Context as _;
use muster_hardware_proof::chacha::Key;
use muster_hardware_proof::challenge_message::{
    DrawnPositions, MessageKind, ProofSpec, commitment_digest, encode_message,
};
use muster_hardware_proof::conversation::{ProverOutput, ProverTask};
use muster_hardware_proof::matmul::{EntryPosition, MatmulSpec, MatrixGenerator};
use muster_hardware_proof::memory_walk::{self, StepPosition, WalkSpec};
use muster_hardware_proof::merkle::{self, Hash, LEAF, MerkleTree};
use muster_hardware_proof::prover::{NoObserver, Prover, ProverError, WorkObserver, perform_task};
use muster_hardware_proof::spec::{self, NumberFormat};
use muster_hardware_proof::{
    ConversationEnd, Draws, Evidence, InstructionSet, ProofVerdict, ReceivedMessage, SentRandomness,
    ZeroReason, compute_label_block,
};

/// A MATMUL prover that keeps everything and may invent single leaves or whole rounds before it commits.
struct Liar {
    spec: MatmulSpec,
    leaves: Vec<Vec<[u8; LEAF]>>,
    trees: Vec<MerkleTree>,
    wrong: Vec<Vec<bool>>,
}

impl Liar {
    /// `lie(round, leaf)` selects the leaves that the prover invents.
    fn new(spec: MatmulSpec, lie: impl Fn(u32, usize) -> bool) -> anyhow::Result<Self> {
        let generator = MatrixGenerator::new(spec, InstructionSet::best());
        let mut liar = Self {
            spec,
            leaves: vec![],
            trees: vec![],
            wrong: vec![],
        };
        let mut previous = [0; 32];
        for round in 0..u32::from(spec.shape().rounds) {
            let mut leaves = Vec::new();
            let mut wrong = Vec::new();
            for row in 0..spec.n() as u32 {
                let mut leaf = [0; LEAF];
                let made_up = lie(round, row as usize);
                for (column, bytes) in (0..).zip(leaf.as_chunks_mut::<4>().0) {
                    let place = EntryPosition { round, row, column };
                    let entry = if made_up {
                        row as i32
                    } else {
                        generator.compute_entry(place, &previous)
                    };
                    *bytes = entry.to_le_bytes();
                }
                leaves.push(leaf);
                wrong.push(made_up);
            }
            let tree = MerkleTree::build(leaves.iter().map(merkle::hash_leaf).collect());
            previous = tree.root();
            liar.leaves.push(leaves);
            liar.trees.push(tree);
            liar.wrong.push(wrong);
        }
        Ok(liar)
    }

    /// The evidence of a conversation in which the validator drew `entropy`.
    fn evidence(&self, entropy: [u8; 32]) -> anyhow::Result<Evidence> {
        let spec = ProofSpec::Matmul(self.spec);
        let session = spec.challenge_id();
        let roots: Vec<Hash> = self.trees.iter().map(MerkleTree::root).collect();
        let print = MatrixGenerator::new(self.spec, InstructionSet::best()).key_confirmation();
        let commitment = encode_message(MessageKind::Commitment, &session, &[&print, roots.as_flattened()]);
        let digest = commitment_digest(&[0; 32], &commitment);
        let DrawnPositions::Matmul(places) = spec.draw_positions(&digest, &entropy) else {
            anyhow::bail!("entries")
        };
        let mut out = Vec::new();
        for place in places {
            for number in [place.round, place.row, place.column] {
                out.extend(number.to_le_bytes());
            }
            let (round, row) = (place.round as usize, place.row as usize);
            let leaf = self
                .leaves
                .get(round)
                .and_then(|leaves| leaves.get(row))
                .context("a leaf")?;
            let tree = self.trees.get(round).context("a tree")?;
            out.extend(leaf);
            out.extend(tree.path(u64::from(place.row)).as_flattened());
        }
        let opening = encode_message(MessageKind::Opening, &session, &[&digest, &out]);
        Ok(Evidence {
            spec,
            limits: LIMITS,
            filled: None,
            seed: None,
            commitment: Some(ReceivedMessage {
                at_us: 1,
                bytes: commitment,
            }),
            draw: Some(SentRandomness {
                at_us: 2,
                bytes: entropy,
            }),
            opening: Some(ReceivedMessage {
                at_us: 3,
                bytes: opening,
            }),
            ending: ConversationEnd::Complete,
        })
    }

    /// The probability that the lies escape: the forced draw of each round, then the free draws.
    fn predicted(&self) -> f64 {
        let shares: Vec<f64> = self
            .wrong
            .iter()
            .map(|w| w.iter().filter(|x| **x).count() as f64 / w.len() as f64)
            .collect();
        let forced: f64 = shares.iter().map(|share| 1.0 - share).product();
        let all = shares.iter().sum::<f64>() / shares.len() as f64;
        let free = i32::from(self.spec.shape().entries) - shares.len() as i32;
        forced * (1.0 - all).powi(free)
    }

    /// The number of `trials` conversations that pass.
    fn escapes(&self, trials: u32) -> anyhow::Result<u32> {
        let mut escaped = 0;
        for trial in 0..trials {
            let mut entropy = [7; 32];
            entropy[..4].copy_from_slice(&trial.to_le_bytes());
            match self.evidence(entropy)?.judge(InstructionSet::best()) {
                ProofVerdict::Passed(_) => escaped += 1,
                ProofVerdict::Zero(ZeroReason::WrongEntry { .. }) => {}
                ProofVerdict::Zero(other) => anyhow::bail!("{other}"),
            }
        }
        Ok(escaped)
    }
}

/// Checks a count against three standard deviations of a binomial around the predicted value.
fn within(found: u32, trials: u32, probability: f64) {
    let expected = f64::from(trials) * probability;
    let room = 3.0 * (expected * (1.0 - probability)).sqrt().max(1.0);
    assert!(
        (f64::from(found) - expected).abs() <= room,
        "{found} of {trials}, expected {expected:.1} ± {room:.1}"
    );
}

#[test]
fn made_up_rows_are_caught_at_the_predicted_rate() -> anyhow::Result<()> {
    for every in [64, 24, 8] {
        let liar = Liar::new(chain(NumberFormat::Int8, 4, 64)?, |round, row| {
            (row + round as usize).is_multiple_of(every)
        })?;
        let predicted = liar.predicted();
        assert!((0.0001..0.5).contains(&predicted), "{predicted}");
        within(liar.escapes(1500)?, 1500, predicted);
    }
    Ok(())
}

/// Twelve draws over twelve rounds with one invented round, which free draws would miss with (11/12)¹² = 35 %.
#[test]
fn a_made_up_round_is_always_caught() -> anyhow::Result<()> {
    let liar = Liar::new(chain(NumberFormat::Int8, 12, 12)?, |round, _| round == 7)?;
    assert_eq!(liar.predicted(), 0.0);
    assert_eq!(liar.escapes(200)?, 0);
    Ok(())
}

#[test]
fn honesty_always_passes() -> anyhow::Result<()> {
    let liar = Liar::new(chain(NumberFormat::Fp16, 2, 32)?, |_, _| false)?;
    assert_eq!(liar.escapes(50)?, 50);
    Ok(())
}

/// A WALK prover that stores the first blocks only. It recomputes and counts missing blocks, or invents them.
struct Forgetful {
    spec: Option<WalkSpec>,
    blocks: Vec<[u8; LEAF]>,
    share: f64,
    honest: bool,
    recomputed: AtomicU64,
    reads: AtomicU64,
    walked: Vec<Vec<memory_walk::WalkState>>,
    wrong: Vec<Vec<bool>>,
}

impl Forgetful {
    fn new(share: f64, honest: bool) -> Self {
        let (recomputed, reads) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            spec: None,
            blocks: vec![],
            share,
            honest,
            recomputed,
            reads,
            walked: vec![],
            wrong: vec![],
        }
    }

    fn tree(&self) -> MerkleTree {
        MerkleTree::build(self.leaves().iter().map(merkle::hash_leaf).collect())
    }

    fn leaves(&self) -> Vec<[u8; LEAF]> {
        let leaf =
            |states: &[memory_walk::WalkState]| states.as_flattened().as_chunks::<LEAF>().0.first().copied();
        self.walked
            .iter()
            .flat_map(|states| states.chunks(32).filter_map(leaf))
            .collect()
    }
}

impl Prover for Forgetful {
    fn start_matmul(&mut self, _: &MatmulSpec, _: &dyn WorkObserver) -> Result<(), ProverError> {
        Err(ProverError::OutOfOrder("a chain"))
    }

    fn compute_round(&mut self, _: u32, _: &Hash, _: &dyn WorkObserver) -> Result<Hash, ProverError> {
        Err(ProverError::OutOfOrder("a chain"))
    }

    fn open_entries(
        &mut self,
        _: &[EntryPosition],
        _: &mut Vec<u8>,
        _: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        Err(ProverError::OutOfOrder("a chain"))
    }

    fn fill_memory(&mut self, spec: &WalkSpec, _: &dyn WorkObserver) -> Result<(), ProverError> {
        let kept = (spec.shape().blocks as f64 * self.share) as usize;
        self.blocks = vec![[0; LEAF]; kept];
        for (index, block) in (0..).zip(&mut self.blocks) {
            compute_label_block(InstructionSet::best(), &spec.memory(), index, block);
        }
        self.spec = Some(*spec);
        Ok(())
    }

    fn run_walks(&mut self, seed: &[u8; 32], _: &dyn WorkObserver) -> Result<Hash, ProverError> {
        let spec = self.spec.ok_or(ProverError::OutOfOrder("a walk"))?;
        let (key, memory) = (spec.start_key(seed), spec.memory());
        self.walked.clear();
        self.wrong.clear();
        for number in 0..spec.walks() {
            let mut state = memory_walk::start_state(&key, number);
            let (mut states, mut wrong) = (Vec::new(), Vec::new());
            for count in 0..spec.steps() {
                let address = memory.address(memory_walk::address_bits(&state));
                self.reads.fetch_add(1, Ordering::Relaxed);
                let block = self.blocks.get(address as usize).copied().unwrap_or_else(|| {
                    let mut block = [0; LEAF];
                    if self.honest {
                        self.recomputed
                            .fetch_add(spec::WORDS_PER_BLOCK, Ordering::Relaxed);
                        compute_label_block(InstructionSet::best(), &memory, address, &mut block);
                    }
                    block
                });
                wrong.push(!self.honest && address as usize >= self.blocks.len());
                state = memory_walk::next_state(number, count, &state, &block);
                states.push(state);
            }
            self.walked.push(states);
            self.wrong.push(wrong);
        }
        Ok(self.tree().root())
    }

    fn open_steps(
        &mut self,
        places: &[StepPosition],
        out: &mut Vec<u8>,
        _: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let spec = self.spec.ok_or(ProverError::OutOfOrder("an opening"))?;
        let (tree, leaves) = (self.tree(), self.leaves());
        for place in places {
            out.extend(place.walk.to_le_bytes());
            out.extend(place.step.to_le_bytes());
            let index = spec.leaf_index(place.walk, place.step);
            let before = place.needs_leaf_before().then(|| index - 1);
            for index in std::iter::once(index).chain(before) {
                out.extend(leaves.get(index as usize).copied().unwrap_or([0; LEAF]));
                out.extend(tree.path(index).as_flattened());
            }
        }
        Ok(())
    }
}

/// With nine tenths of the memory, the answer is right, but a tenth of the reads cost sixteen labels each.
#[test]
fn a_missing_tenth_of_the_memory_costs_the_predicted_number_of_labels() -> anyhow::Result<()> {
    let mut forgetful = Forgetful::new(0.9, true);
    let evidence = converse(&mut forgetful, ProofSpec::Walk(walk_spec(128)?), 1, |_, _| {})?;
    assert!(matches!(
        evidence.judge(InstructionSet::best()),
        ProofVerdict::Passed(_)
    ));
    let reads = forgetful.reads.load(Ordering::Relaxed);
    assert_eq!(reads, 16 * 64);
    let recomputed = forgetful.recomputed.load(Ordering::Relaxed);
    assert_eq!(recomputed % spec::WORDS_PER_BLOCK, 0);
    let missing = 1.0 - (1024.0f64 * 0.9).floor() / 1024.0;
    within((recomputed / spec::WORDS_PER_BLOCK) as u32, reads as u32, missing);
    // With the whole memory, no label is recomputed.
    let mut whole = Forgetful::new(1.0, true);
    converse(&mut whole, ProofSpec::Walk(walk_spec(16)?), 1, |_, _| {})?;
    assert_eq!(whole.recomputed.load(Ordering::Relaxed), 0);
    Ok(())
}

#[test]
fn made_up_blocks_are_caught_at_the_predicted_rate() -> anyhow::Result<()> {
    for (share, draws) in [(0.95, 16), (0.98, 64), (0.90, 24)] {
        let spec = walk_spec(draws)?;
        let mut forgetful = Forgetful::new(share, false);
        let evidence = converse(&mut forgetful, ProofSpec::Walk(spec), 1, |_, _| {})?;
        let all = forgetful.wrong.iter().flatten();
        let wrong = all.clone().filter(|wrong| **wrong).count() as f64 / all.count() as f64;
        let predicted = (1.0 - wrong).powi(i32::from(draws));
        let (Some(commitment), Some(seed)) = (&evidence.commitment, evidence.seed) else {
            anyhow::bail!("committed")
        };
        let digest = commitment_digest(&seed.bytes, &commitment.bytes);
        let mut escaped = 0;
        for trial in 0..1000u32 {
            let mut redrawn = evidence.clone();
            let mut entropy = [9; 32];
            entropy[..4].copy_from_slice(&trial.to_le_bytes());
            redrawn.draw = Some(SentRandomness {
                bytes: entropy,
                ..evidence.draw.unwrap_or(SentRandomness {
                    at_us: 0,
                    bytes: entropy,
                })
            });
            let task = ProverTask::Open(redrawn.spec.draw_positions(&digest, &entropy));
            let ProverOutput::Opened(out) = perform_task(&mut forgetful, &task, &NoObserver)? else {
                anyhow::bail!("opened")
            };
            let bytes = encode_message(MessageKind::Opening, &spec.challenge_id(), &[&digest, &out]);
            redrawn.opening = redrawn
                .opening
                .map(|received| ReceivedMessage { bytes, ..received });
            match redrawn.judge(InstructionSet::best()) {
                ProofVerdict::Passed(_) => escaped += 1,
                ProofVerdict::Zero(ZeroReason::WrongStep { .. }) => {}
                ProofVerdict::Zero(other) => anyhow::bail!("{other}"),
            }
        }
        within(escaped, 1000, predicted);
    }
    Ok(())
}

/// A generator that a production network uses: (seed + i + j) mod 2³², a Hankel matrix of rank two.
fn structured(row: u32, column: u32) -> i64 {
    i64::from(0x9e37_79b9_u32.wrapping_add(row).wrapping_add(column))
}

/// A shortcut: if `A[i+1][j] = A[i][j] + 1`, the next row of the product is this row plus the column sums of B, which
/// takes n additions instead of n² products. Returns the share of right entries.
fn hankel_trick(n: u32, a: impl Fn(u32, u32) -> i64, b: impl Fn(u32, u32) -> i64) -> f64 {
    let wrap = |x: i64| x as i32;
    let product = |row: u32, column: u32| {
        (0..n).fold(0i64, |sum, k| {
            sum.wrapping_add(a(row, k).wrapping_mul(b(k, column)))
        })
    };
    let sums: Vec<i64> = (0..n).map(|column| (0..n).map(|k| b(k, column)).sum()).collect();
    let mut right = 0;
    for row in 0..8 {
        for (column, sum) in (0..).zip(&sums) {
            right +=
                u32::from(wrap(product(row, column).wrapping_add(*sum)) == wrap(product(row + 1, column)));
        }
    }
    f64::from(right) / f64::from(8 * n)
}

fn rows(count: u32) -> anyhow::Result<Vec<Vec<u8>>> {
    let spec = chain(NumberFormat::Int8, 1, 1)?;
    let generator = MatrixGenerator::new(spec, InstructionSet::best());
    let key = generator.a_key(0, &[0; 32]);
    Ok((0..count)
        .map(|row| {
            let mut bytes = vec![0; spec.row_bytes()];
            generator.fill_row(&key, row, &mut bytes);
            bytes
        })
        .collect())
}

#[test]
fn the_hankel_trick_works_on_the_structured_generator_and_fails_on_ours() -> anyhow::Result<()> {
    let spec = chain(NumberFormat::Int8, 1, 1)?;
    let mut columns = vec![vec![0; spec.row_bytes()]; 256];
    let generator = MatrixGenerator::new(spec, InstructionSet::best());
    for (j, column) in (0..).zip(&mut columns) {
        generator.fill_column(j, column);
    }
    let b = |k: u32, j: u32| i64::from(columns[j as usize][k as usize].cast_signed());
    assert_eq!(hankel_trick(256, structured, b), 1.0);
    let rows = rows(9)?;
    let ours = hankel_trick(
        256,
        |i, j| i64::from(rows[i as usize][j as usize].cast_signed()),
        b,
    );
    assert!(ours < 0.01, "{ours}");
    Ok(())
}

/// The largest |z| of the correlation of neighbouring rows, over shifts of up to eight places.
fn neighbours(rows: &[Vec<u8>]) -> f64 {
    let mut most = 0.0f64;
    for shift in -8i64..=8 {
        let (mut sum, mut count) = (0.0, 0.0);
        for [above, below] in rows.array_windows::<2>() {
            for (j, x) in (0i64..).zip(above) {
                if let Some(y) = usize::try_from(j + shift).ok().and_then(|place| below.get(place)) {
                    sum += (f64::from(x.cast_signed()) + 0.5) * (f64::from(y.cast_signed()) + 0.5);
                    count += 1.0;
                }
            }
        }
        // Variance of a uniform signed byte: (256² - 1)/12.
        most = most.max((sum / (65_535.0 / 12.0) / f64::sqrt(count)).abs());
    }
    most
}

#[test]
fn neighbouring_rows_share_no_structure() -> anyhow::Result<()> {
    let ours = rows(256)?;
    // 17 shifts: |z| above 4.5 has a probability of about 10⁻⁴.
    assert!(neighbours(&ours) < 4.5, "{}", neighbours(&ours));
    // The control: the middle byte of the structured generator, and our rows shifted by one position.
    let control: Vec<Vec<u8>> = (0..64)
        .map(|i| {
            (0..256)
                .map(|j| (structured(i * 256, j * 256) >> 8) as u8)
                .collect()
        })
        .collect();
    assert!(neighbours(&control) > 20.0);
    let long: Vec<u8> = ours.concat();
    let shifted: Vec<Vec<u8>> = (0..64).map(|i| long[i..i + 256].to_vec()).collect();
    assert!(neighbours(&shifted) > 20.0);
    // Bytes are uniform: χ² with 255 degrees of freedom, mean 255, standard deviation 22.6.
    let mut counts = [0u32; 256];
    for byte in &long {
        counts[usize::from(*byte)] += 1;
    }
    let chi: f64 = counts
        .iter()
        .map(|&count| (f64::from(count) - 256.0).powi(2) / 256.0)
        .sum();
    assert!((165.0..345.0).contains(&chi), "{chi}");
    Ok(())
}

/// Two challenges that differ only in the nonce, the executor or the round have unrelated matrices.
#[test]
fn no_work_is_shared_between_sessions_or_rounds() -> anyhow::Result<()> {
    let shape = *chain(NumberFormat::Int8, 1, 1)?.shape();
    let row = |nonce: u8, round: u32, previous: Hash| -> anyhow::Result<Vec<u8>> {
        let spec = MatmulSpec::new(crate::support::identity(nonce), shape, None)?;
        let generator = MatrixGenerator::new(spec, InstructionSet::best());
        let mut bytes = vec![0; spec.row_bytes()];
        generator.fill_row(&generator.a_key(round, &previous), 0, &mut bytes);
        Ok(bytes)
    };
    let base = row(1, 0, [0; 32])?;
    for other in [row(2, 0, [0; 32])?, row(1, 1, [0; 32])?, row(1, 0, [1; 32])?] {
        let equal = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(equal < 10, "256 bytes agree by chance in one place: {equal}");
    }
    assert_eq!(Draws::new(Key([0; 32])).draw_below(1), 0);
    Ok(())
}

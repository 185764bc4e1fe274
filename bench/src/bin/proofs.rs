//! Proofs of hardware: what a core checks, and the CPU prover's int8 product against oneDNN's.
//!
//! The peer is a program of its own (`bench/peers/onednn_int8.cpp`, the command that builds it is at its head), named
//! by `MUSTER_BENCH_ONEDNN`; without it our products stand alone. Times are processor seconds of one thread, so that
//! other work on the machine counts for less; pin both sides with `taskset`.

use std::{
    hint::black_box,
    io::{BufRead, BufReader, Write},
    num::NonZeroUsize,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use muster_bench::{Direction, Report, Row, take_turns};
use muster_hardware_proof::{
    ConversationEnd, Evidence, InstructionSet, Limits, ProofVerdict, ReceivedMessage, SentRandomness,
    chacha::{self, Key},
    challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName},
    challenge_message::{MessageKind, ProofSpec, commitment_digest, encode_message},
    compute_label_block,
    conversation::{ProverOutput, ProverTask},
    matmul::{EntryPosition, MatmulShape, MatmulSpec, MatrixGenerator},
    memory_walk::{self, WalkShape, WalkSpec},
    merkle::LEAF,
    prover::{CpuProver, MatrixProduct, NoObserver, Prover, perform_task},
    spec::{NumberFormat, WalkMemory},
};

const ROUNDS: usize = 9;
const SIDES: [usize; 2] = [1024, 4096];
const LIMITS: Limits = Limits {
    fill_us: 1,
    commit_us: 1,
    open_us: 1,
    allowance_us: 0,
};

fn main() -> anyhow::Result<()> {
    let mut report = Report::default();
    let best = InstructionSet::best();
    let chain = chain_evidence()?;
    let walk = walk_evidence()?;
    for engine in InstructionSet::available() {
        report.rows.extend(checking(engine, &chain, &walk)?);
    }
    for (what, evidence) in [
        ("256 entries at n = 8192", &chain),
        ("128 steps over 1 MiB", &walk),
    ] {
        let size = evidence.opening.as_ref().map_or(0, |opening| opening.bytes.len()) as f64;
        let row = Row::alone(
            &format!("opening of {what}"),
            "bytes",
            Direction::LowerIsBetter,
            vec![size],
        );
        report.rows.push(row);
    }
    let mut peer = std::env::var_os("MUSTER_BENCH_ONEDNN")
        .map(|path| Peer::start(&path))
        .transpose()?;
    for n in SIDES {
        report.rows.push(product(best, n, peer.as_mut())?);
    }
    report.notes = vec![
        format!("one thread, processor time; the CPU prover uses {}", best.name()),
        "an executor is 256 entries at n = 8192 with their Merkle paths and 128 walk steps (1 MiB, t = 16), judged from stored evidence".to_owned(),
        "the peer's weights are packed beforehand, as ours are".to_owned(),
    ];
    report.print()
}

/// The checks per minute of one core with one implementation.
fn checking(engine: InstructionSet, chain: &Evidence, walk: &Evidence) -> anyhow::Result<Vec<Row>> {
    let name = engine.name();
    let ProofSpec::Matmul(spec) = chain.spec else {
        bail!("a chain")
    };
    let generator = MatrixGenerator::new(spec, engine);
    let mut place = EntryPosition {
        round: 0,
        row: 0,
        column: 0,
    };
    let entries = sample(|| {
        for _ in 0..200 {
            place.row = (place.row + 1) % 8192;
            place.column = (place.column + 7) % 8192;
            black_box(generator.compute_entry(place, &[0; 32]));
        }
        Ok(200.0)
    })?;
    let mut rows = vec![rate(&format!("entries at n = 8192 ({name})"), "1/s", entries)];
    for work in [16, 256] {
        let memory = WalkMemory {
            challenge_id: spec.challenge_id(),
            blocks: 1024,
            work,
        };
        let mut state = [0; 32];
        let mut block = [0; LEAF];
        let steps = sample(|| {
            for number in 0..100 {
                compute_label_block(
                    engine,
                    &memory,
                    memory.address(memory_walk::address_bits(&state)),
                    &mut block,
                );
                state = memory_walk::next_state(0, number, &state, &block);
            }
            Ok(100.0)
        })?;
        black_box(state);
        rows.push(rate(&format!("walk steps at t = {work} ({name})"), "1/s", steps));
    }
    let executors = sample(|| {
        for evidence in [chain, walk] {
            ensure!(
                matches!(evidence.judge(engine), ProofVerdict::Passed(_)),
                "an honest proof was refused"
            );
        }
        Ok(60.0)
    })?;
    let row = rate(&format!("executors checked ({name})"), "1/min", executors);
    rows.push(row.target(20_000.0));
    Ok(rows)
}

fn rate(what: &str, unit: &str, samples: Vec<f64>) -> Row {
    Row::alone(what, unit, Direction::HigherIsBetter, samples)
}

/// Amounts per processor second, the first one dropped.
fn sample(mut work: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<Vec<f64>> {
    work()?;
    (0..ROUNDS)
        .map(|_| {
            let before = processor_seconds()?;
            let mut amount = 0.0;
            let mut repeats = 0;
            // The kernel counts a running thread's time in ticks: measure many.
            while repeats < 20 || processor_seconds()? - before < 0.2 {
                amount += work()?;
                repeats += 1;
            }
            Ok(amount / (processor_seconds()? - before))
        })
        .collect()
}

/// Seconds that this thread has run.
fn processor_seconds() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split_whitespace().next().context("schedstat is empty")?;
    Ok(nanoseconds.parse::<f64>()? / 1e9)
}

/// Our product of n × n int8 matrices against the peer's, in 10⁹ operations per second.
fn product(engine: InstructionSet, n: usize, peer: Option<&mut Peer>) -> anyhow::Result<Row> {
    let (mut rows, mut columns) = (vec![0; n * n], vec![0; n * n]);
    chacha::fill_keystream(&Key([1; 32]), 0, &mut rows);
    chacha::fill_keystream(&Key([2; 32]), 0, &mut columns);
    let prepared = MatrixProduct::new(engine, NumberFormat::Int8, n, columns);
    let mut out = vec![0; n * n];
    let operations = 2.0 * (n as f64).powi(3) / 1e9;
    // The kernel counts a running thread's time in ticks: measure many.
    let mut ours = || {
        let before = processor_seconds()?;
        let mut done = 0.0;
        while processor_seconds()? - before < 0.25 {
            prepared.multiply(&rows, &mut out);
            black_box(&mut out);
            done += operations;
        }
        Ok(done / (processor_seconds()? - before))
    };
    let what = format!("int8 product at n = {n} ({})", engine.name());
    let Some(peer) = peer else {
        let samples = (0..ROUNDS).map(|_| ours()).collect::<anyhow::Result<_>>()?;
        return Ok(rate(&what, "10⁹ op/s", samples));
    };
    let name = format!("oneDNN {}", peer.ask(0)?);
    let turns = take_turns(ROUNDS, ours, || Ok(operations / peer.ask(n)?.parse::<f64>()?))?;
    Ok(Row::against(&what, "10⁹ op/s", Direction::HigherIsBetter, &name, turns).target(0.5))
}

struct Peer {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(path: &std::ffi::OsStr) -> anyhow::Result<Self> {
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the peer named by MUSTER_BENCH_ONEDNN")?;
        let questions = child.stdin.take().context("the peer's input")?;
        let answers = BufReader::new(child.stdout.take().context("the peer's output")?);
        Ok(Self {
            child,
            questions,
            answers,
        })
    }

    fn ask(&mut self, n: usize) -> anyhow::Result<String> {
        writeln!(self.questions, "{n}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the peer ended: {:?}", self.child.try_wait()?);
        Ok(line.trim().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its input; if it does not, nothing here depends on it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn identity() -> ChallengeIdentity {
    ChallengeIdentity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: ChallengeNonce([3; 32]),
    }
}

fn chain_evidence() -> anyhow::Result<Evidence> {
    let shape = MatmulShape {
        numbers: NumberFormat::Int8,
        log2_n: 13,
        rounds: 2,
        entries: 256,
    };
    let spec = MatmulSpec::new(identity(), shape, None)?;
    let mut prover = prover();
    let output = perform_task(&mut prover, &ProverTask::Matmul(spec), &NoObserver)?;
    evidence(ProofSpec::Matmul(spec), &mut prover, output, None)
}

fn walk_evidence() -> anyhow::Result<Evidence> {
    let shape = WalkShape {
        blocks: 1024,
        work: 16,
        log2_walks: 4,
        log2_leaves: 1,
        draws: 128,
    };
    let spec = WalkSpec::new(identity(), shape)?;
    let mut prover = prover();
    let ProverOutput::Filled(print) = perform_task(&mut prover, &ProverTask::Fill(spec), &NoObserver)? else {
        bail!("not filled")
    };
    let filled = encode_message(MessageKind::Filled, &spec.challenge_id(), &[&print]);
    let output = perform_task(&mut prover, &ProverTask::Walk(spec, [5; 32]), &NoObserver)?;
    evidence(ProofSpec::Walk(spec), &mut prover, output, Some(filled))
}

fn prover() -> CpuProver {
    CpuProver::new(InstructionSet::best(), NonZeroUsize::MIN)
}

/// The evidence that a validator would have stored of an honest proof.
fn evidence(
    spec: ProofSpec,
    prover: &mut dyn Prover,
    output: ProverOutput,
    filled: Option<Vec<u8>>,
) -> anyhow::Result<Evidence> {
    let ProverOutput::Committed(print, roots) = output else {
        bail!("not committed")
    };
    let session = spec.challenge_id();
    let seed = if filled.is_some() { [5; 32] } else { [0; 32] };
    let commitment = encode_message(MessageKind::Commitment, &session, &[&print, roots.as_flattened()]);
    let digest = commitment_digest(&seed, &commitment);
    let entropy = [6; 32];
    let task = ProverTask::Open(spec.draw_positions(&digest, &entropy));
    let ProverOutput::Opened(opened) = perform_task(prover, &task, &NoObserver)? else {
        bail!("not opened")
    };
    let opening = encode_message(MessageKind::Opening, &session, &[&digest, &opened]);
    let received = |bytes| ReceivedMessage { at_us: 1, bytes };
    let sent = |bytes| SentRandomness { at_us: 1, bytes };
    Ok(Evidence {
        spec,
        limits: LIMITS,
        seed: filled.as_ref().map(|_| sent(seed)),
        filled: filled.map(received),
        commitment: Some(received(commitment)),
        draw: Some(sent(entropy)),
        opening: Some(received(opening)),
        ending: ConversationEnd::Complete,
    })
}

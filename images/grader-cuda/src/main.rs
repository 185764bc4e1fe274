//! `muster-grader-cuda`: waits for a validator's challenges in front of a CUDA card; `check` and `bench` say what the card gives.
#![expect(clippy::print_stdout, reason = "what was asked for")]

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use muster_hardware_proof::merkle::LEAF;
use muster_image_grader::{machine, program};
use muster_image_grader_cuda::check::{self, Sizes};
use muster_image_grader_cuda::cublas::CublasLt;
use muster_image_grader_cuda::cuda::Cuda;
use muster_image_grader_cuda::device::Device as _;
use muster_image_grader_cuda::prover::{DeviceProver, Pace};
use muster_image_grader_cuda::{bench, suggest};

/// Proves what this container's card can do to whoever challenges it.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    listening: program::Listening,
    /// Which of the container's cards.
    #[arg(long, global = true, default_value_t = 0)]
    card: u32,
    /// MiB of the card that a WALK may fill; what is free but for a reserve if it is not given.
    #[arg(long)]
    memory_mib: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Hold the card against the golden vectors, then let it pass whole conversations.
    Check {
        /// Only the vectors.
        #[arg(long)]
        vectors: bool,
    },
    /// Measure the card: products (against cuBLASLt, if it is there), hashes, fill, walks (against a copy).
    Bench(BenchArguments),
}

#[derive(Debug, Args)]
struct BenchArguments {
    /// log₂ of the side of the products.
    #[arg(long, default_value_t = 15)]
    log2_n: u8,
    /// Rounds of the chains.
    #[arg(long, default_value_t = 8)]
    rounds: u16,
    /// GiB of the memory that is filled and walked; three quarters of what is free if it is not given.
    #[arg(long)]
    memory_gib: Option<u64>,
    /// log₂ of the walks.
    #[arg(long, default_value_t = 17)]
    log2_walks: u8,
    /// log₂ of the leaves of each.
    #[arg(long, default_value_t = 9)]
    log2_leaves: u8,
    /// How often each is measured.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let cuda = Cuda::open(arguments.card)?;
    match &arguments.command {
        None => serve(cuda, &arguments),
        Some(Command::Check { vectors }) => check(cuda, *vectors),
        Some(Command::Bench(options)) => bench(cuda, arguments.card, options),
    }
}

fn serve(cuda: Cuda, arguments: &Arguments) -> anyhow::Result<()> {
    let memory = match arguments.memory_mib {
        Some(mib) => mib.saturating_mul(1 << 20),
        None => cuda.free()?.saturating_sub(suggest::RESERVE),
    };
    let prover = DeviceProver::new(cuda, Pace::default());
    let runtime = tokio::runtime::Runtime::new().context("no runtime")?;
    runtime.block_on(program::run(prover, machine::caps(memory), &arguments.listening))
}

fn check(cuda: Cuda, vectors: bool) -> anyhow::Result<()> {
    println!("{}", cuda.describe());
    // The vectors are small: in pieces they use both streams.
    let mut prover = DeviceProver::new(cuda, Pace::PIECES);
    for what in check::golden(&mut prover).context("the card does not give the bits of the golden vectors")? {
        println!("golden vectors: {what}: equal");
    }
    if vectors {
        return Ok(());
    }
    prover.set_pace(Pace::default());
    let sizes = Sizes {
        log2_n: 13,
        blocks: 1 << 20,
        work: 256,
        log2_walks: 12,
        log2_leaves: 6,
    };
    let clock = clock();
    for verdict in check::conversations(&mut prover, &sizes, &clock)? {
        println!("conversation: {verdict:?}");
    }
    Ok(())
}

fn bench(cuda: Cuda, card: u32, asked: &BenchArguments) -> anyhow::Result<()> {
    let free = cuda.free()?;
    let bytes = asked
        .memory_gib
        .map_or(free / 4 * 3, |gib| gib.saturating_mul(1 << 30));
    let options = bench::Options {
        log2_n: asked.log2_n,
        rounds: asked.rounds,
        blocks: (bytes / LEAF as u64).max(1),
        work: 256,
        log2_walks: asked.log2_walks,
        log2_leaves: asked.log2_leaves,
        copy_bytes: (free / 8).min(4 << 30),
        repeat: asked.repeat,
    };
    let clock = clock();
    // Its own handle on the same context: the primary one.
    let beside = Cuda::open(card)?;
    let library = CublasLt::find();
    let rival = library
        .as_ref()
        .map(|library| |numbers, n| library.seconds(&beside, (numbers, n), asked.repeat, &clock));
    if rival.is_none() {
        println!("libcublasLt.so is not at hand: the products are not compared");
    }
    let mut prover = DeviceProver::new(cuda, Pace::default());
    let report = match &rival {
        Some(rival) => bench::run(&mut prover, &options, &clock, Some(rival)),
        None => bench::run(&mut prover, &options, &clock, None),
    }?;
    print!("{report}");
    Ok(())
}

/// The time since now.
fn clock() -> impl Fn() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a measurement is of real time")]
    let start = std::time::Instant::now();
    move || start.elapsed()
}

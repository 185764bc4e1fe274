//! `muster-grader-cuda`: answers a validator's challenges with a CUDA card. `check` and `bench` check and measure the
//! card.
#![expect(clippy::print_stdout, reason = "the output of the program")]

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use muster_hardware_proof::merkle::LEAF;
use muster_image_grader::{challenge_limits, program};
use muster_image_grader_cuda::check::{self, ConversationSizes};
use muster_image_grader_cuda::cublas::CublasLt;
use muster_image_grader_cuda::cuda_card::Cuda;
use muster_image_grader_cuda::device_interface::Device as _;
use muster_image_grader_cuda::prover::{DeviceProver, LaunchSizes};
use muster_image_grader_cuda::{bench, suggest};

/// Answers a validator's challenges and so proves the card of this container.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<CardCommand>,
    #[command(flatten)]
    listening: program::ListenArguments,
    /// The number of the card among those of the container.
    #[arg(long, global = true, default_value_t = 0)]
    card: u32,
    /// MiB of the card's memory that a WALK may fill; without it, the free memory less a reserve.
    #[arg(long)]
    memory_mib: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum CardCommand {
    /// Compare the card with the golden vectors, then run whole conversations.
    Check {
        /// Compare with the vectors only.
        #[arg(long)]
        vectors: bool,
    },
    /// Measure the card: products (compared with cuBLASLt, if it is installed), hashes, fill, walks (compared with a
    /// copy).
    Bench(BenchArguments),
}

#[derive(Debug, Args)]
struct BenchArguments {
    /// log₂ of the side of the products.
    #[arg(long, default_value_t = 15)]
    log2_n: u8,
    /// The number of rounds of a MATMUL.
    #[arg(long, default_value_t = 8)]
    rounds: u16,
    /// GiB of memory for the fill and the walks; without it, three quarters of the free memory.
    #[arg(long)]
    memory_gib: Option<u64>,
    /// log₂ of the number of walks.
    #[arg(long, default_value_t = 17)]
    log2_walks: u8,
    /// log₂ of the number of leaves of each walk.
    #[arg(long, default_value_t = 9)]
    log2_leaves: u8,
    /// The number of runs of each measurement.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let cuda = Cuda::open(arguments.card)?;
    match &arguments.command {
        None => serve(cuda, &arguments),
        Some(CardCommand::Check { vectors }) => check(cuda, *vectors),
        Some(CardCommand::Bench(options)) => bench(cuda, arguments.card, options),
    }
}

fn serve(cuda: Cuda, arguments: &Arguments) -> anyhow::Result<()> {
    let memory = match arguments.memory_mib {
        Some(mib) => mib.saturating_mul(1 << 20),
        None => cuda.free()?.saturating_sub(suggest::RESERVE),
    };
    let prover = DeviceProver::new(cuda, LaunchSizes::default());
    let runtime = tokio::runtime::Runtime::new().context("no runtime")?;
    runtime.block_on(program::run(
        prover,
        challenge_limits::prover_limits(memory),
        &arguments.listening,
    ))
}

fn check(cuda: Cuda, vectors: bool) -> anyhow::Result<()> {
    println!("{}", cuda.describe());
    // The vectors are small, so only small launches use both streams.
    let mut prover = DeviceProver::new(cuda, LaunchSizes::PIECES);
    for what in check::check_golden_vectors(&mut prover)
        .context("the card does not give the bits of the golden vectors")?
    {
        println!("golden vectors: {what}: equal");
    }
    if vectors {
        return Ok(());
    }
    prover.set_launch_sizes(LaunchSizes::default());
    let sizes = ConversationSizes {
        log2_n: 13,
        blocks: 1 << 20,
        work: 256,
        log2_walks: 12,
        log2_leaves: 6,
    };
    let clock = clock();
    for verdict in check::run_conversations(&mut prover, &sizes, &clock)? {
        println!("conversation: {verdict:?}");
    }
    Ok(())
}

fn bench(cuda: Cuda, card: u32, asked: &BenchArguments) -> anyhow::Result<()> {
    let free = cuda.free()?;
    let bytes = asked
        .memory_gib
        .map_or(free / 4 * 3, |gib| gib.saturating_mul(1 << 30));
    let options = bench::BenchOptions {
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
    // A second handle on the same context, the card's primary one.
    let beside = Cuda::open(card)?;
    let library = CublasLt::find();
    let rival = library
        .as_ref()
        .map(|library| |numbers, n| library.seconds(&beside, (numbers, n), asked.repeat, &clock));
    if rival.is_none() {
        println!("libcublasLt.so is not installed: the products are not compared");
    }
    let mut prover = DeviceProver::new(cuda, LaunchSizes::default());
    let report = match &rival {
        Some(rival) => bench::run(&mut prover, &options, &clock, Some(rival)),
        None => bench::run(&mut prover, &options, &clock, None),
    }?;
    print!("{report}");
    Ok(())
}

/// A clock that starts at zero now.
fn clock() -> impl Fn() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a measurement needs real time")]
    let start = std::time::Instant::now();
    move || start.elapsed()
}

//! `muster-devchain`: starts a local chain and prints where it listens.

use anyhow::Context;
use clap::Parser;
use muster_devchain::clock::Clock;
use muster_devchain::node::{Node, Options};
use muster_devchain::server;
use muster_devchain::spec::Spec;
use muster_devchain_runtime::SLOT_DURATION_MS;
use muster_devchain_store::Store;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tracing_subscriber::EnvFilter;

/// A local Substrate chain with Bittensor's interface.
#[derive(Parser)]
#[command(name = "muster-devchain", version, about)]
struct Flags {
    /// Port of JSON-RPC on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 9944, value_name = "PORT")]
    port: u16,
    /// The chain's beginning, as JSON [default: see --print-default-spec]
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Milliseconds between blocks
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    block_time_ms: u64,
    /// Seal blocks only when the RPC method dev_seal asks for it
    #[arg(long, conflicts_with = "block_time_ms")]
    manual_seal: bool,
    /// Milliseconds between the timestamps of blocks that dev_seal seals with --manual-seal
    #[arg(long, default_value_t = SLOT_DURATION_MS, value_name = "MS", requires = "manual_seal", value_parser = clap::value_parser!(u64).range(1..))]
    step_ms: u64,
    /// Folder in which the chain is kept, and goes on after a stop; without it the chain ends with the process
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How many blocks' states are kept, the last ones; or "archive" for all
    #[arg(long, default_value = "4096", value_name = "N", value_parser = states)]
    states: u32,
    /// How many blocks the last final one is behind the best
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=4096))]
    finality_lag: u32,
    /// Connections at once
    #[arg(long, default_value_t = server::Limits::default().connections, value_name = "N")]
    max_connections: u32,
    /// Stop when standard input ends: the tie to a supervisor that may be killed
    #[arg(long, hide = true)]
    lifeline: bool,
    /// Print the specification that is used without --spec, and stop
    #[arg(long)]
    print_default_spec: bool,
}

/// How many states are kept.
fn states(text: &str) -> Result<u32, String> {
    match text {
        "archive" => Ok(u32::MAX),
        "0" => Err("at least one state is kept, the last".into()),
        number => number
            .parse()
            .map_err(|cause| format!("neither a number nor \"archive\": {cause}")),
    }
}

/// The exit code of wrong input, as in sysexits.
const USAGE: u8 = 64;

#[tokio::main]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A reader that is gone must not bring the chain down: by default a failed write is printed, which panics.
        .log_internal_errors(false)
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")))
        .init();
    let spec = match read_spec(&flags) {
        Ok(spec) => spec,
        Err(problem) => return fail(&problem, USAGE),
    };
    match if flags.print_default_spec {
        print_spec(&spec)
    } else {
        run(&flags, &spec).await
    } {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(&problem, 1),
    }
}

/// Says what went wrong and why. There is nobody left to tell if standard error is closed.
fn fail(problem: &anyhow::Error, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "muster-devchain: {problem:#}");
    ExitCode::from(code)
}

fn read_spec(flags: &Flags) -> anyhow::Result<Spec> {
    let spec = match &flags.spec {
        Some(path) if !flags.print_default_spec => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("reading the specification {} failed", path.display()))?;
            Spec::parse(&text).with_context(|| path.display().to_string())?
        }
        Some(_) | None => Spec::development()?,
    };
    spec.genesis()?;
    Ok(spec)
}

fn print_spec(spec: &Spec) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(spec)?)?;
    Ok(())
}

async fn run(flags: &Flags, spec: &Spec) -> anyhow::Result<()> {
    let clock = if flags.manual_seal {
        Clock::steps(flags.step_ms)
    } else {
        Clock::wall()
    };
    let options = Options {
        states: flags.states,
        lag: flags.finality_lag,
        ..Options::new(clock)
    };
    let store = match &flags.data {
        Some(folder) => Store::open(folder),
        None => Store::temporary(),
    };
    let opened = store
        .map_err(Into::into)
        .and_then(|store| Node::open(&spec.genesis()?, store, options).map_err(anyhow::Error::from));
    let node = opened.with_context(|| match &flags.data {
        Some(folder) => format!("opening the chain in {} failed", folder.display()),
        None => "beginning the chain failed".to_owned(),
    })?;
    let limits = server::Limits {
        connections: flags.max_connections,
        ..server::Limits::default()
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let running = server::serve(&node, flags.port, limits).await?;
    {
        let mut out = std::io::stdout();
        writeln!(
            out,
            "listening ws://{} genesis {:?}",
            running.address,
            node.genesis()
        )?;
        out.flush()?;
    }
    tokio::select! {
        () = seal(&node, flags) => {}
        () = supervised(flags.lifeline) => {}
        _ = interrupt.recv() => tracing::info!("interrupted"),
        _ = terminate.recv() => tracing::info!("asked to stop"),
    }
    running.stop().await;
    Ok(())
}

/// Ends with standard input where that is the tie to a supervisor; else never.
async fn supervised(lifeline: bool) {
    if !lifeline {
        return std::future::pending().await;
    }
    let (ended, gone) = tokio::sync::oneshot::channel();
    // A thread of its own: a read of standard input cannot be cancelled, and must not hold the runtime back.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = ended.send(());
    });
    let _ = gone.await;
}

/// Seals blocks by time for ever; waits for ever where only the RPC seals.
async fn seal(node: &Node, flags: &Flags) {
    if flags.manual_seal {
        return std::future::pending().await;
    }
    let mut tick = interval(Duration::from_millis(flags.block_time_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    loop {
        tick.tick().await;
        if node.faults().head_stalled() {
            continue;
        }
        // An epoch of a large subnet takes longer than the others may wait for this thread.
        match tokio::task::block_in_place(|| node.seal()) {
            Ok(block) => tracing::debug!(
                number = block.header.number,
                transactions = block.body.len(),
                "sealed"
            ),
            Err(problem) => tracing::error!(%problem, "no block was sealed"),
        }
    }
}

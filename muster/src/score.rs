//! `muster score` and `muster simulate`: the terms of weights, from a validator or from a file.

use std::process::ExitCode;

use muster_operator::score::{
    Score, ScoreExplain, ScoreList, ScoreToolError, Simulate, check_snapshot, cycle_rows, explain_miner,
    find_cycle, list_cycles, read, run_simulation, write,
};
use muster_terminal::print;

use crate::failure::Result;
use crate::validator;

/// Cycles among which the newest one is looked for whose weights are on the chain.
const RECENT: u32 = 100;

/// Runs `muster score`.
pub(crate) async fn run(command: Score) -> Result<ExitCode> {
    let args = match command {
        Score::Ls(args) => return list(&args).await,
        Score::Explain(args) => args,
    };
    let text = match &args.snapshot {
        Some(file) => read(file)?,
        None => fetch(&args).await?,
    };
    if let Some(file) = &args.save {
        write(file, &text)?;
    }
    print::raw(&explain_miner(&text, args.miner, args.json)?);
    Ok(ExitCode::SUCCESS)
}

/// The text of a cycle's snapshot, with the digest that the validator states. A validator lists at most 1,000 cycles.
async fn fetch(args: &ScoreExplain) -> Result<String> {
    let at = validator::address(args.state, &args.dir)?;
    let limit = if args.cycle.is_some() { 1_000 } else { RECENT };
    let state = validator::ask(at, &format!("/v0/state?limit={limit}")).await?;
    let cycles = list_cycles(&state)?;
    let cycle = find_cycle(&cycles, args.cycle)?;
    let digest = cycle.snapshot.as_ref().ok_or(ScoreToolError::NoSnapshot)?;
    let body = validator::ask(at, &format!("/v0/scoring-snapshots/{digest}")).await?;
    if !args.json {
        print::line(format_args!("cycle {}: {}", cycle.number, cycle.fate()));
    }
    Ok(check_snapshot(&body, digest)?)
}

/// Runs `muster score ls`.
async fn list(args: &ScoreList) -> Result<ExitCode> {
    let at = validator::address(args.state, &args.dir)?;
    let state = validator::ask(at, &format!("/v0/state?limit={}", args.limit)).await?;
    if args.json {
        let cycles = state.get("cycles").unwrap_or(&serde_json::Value::Null);
        print::line(format_args!("{cycles:#}"));
        return Ok(ExitCode::SUCCESS);
    }
    let cycles = list_cycles(&state)?;
    print::table(&["cycle", "blocks", "weights", "state"], cycle_rows(&cycles));
    Ok(ExitCode::SUCCESS)
}

/// Runs `muster simulate`; it ends with 1 if a strategy wins more than its formula states.
pub(crate) fn run_simulate(args: &Simulate) -> Result<ExitCode> {
    let (table, all_hold) = run_simulation(args)?;
    print::raw(&table);
    Ok(if all_hold {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

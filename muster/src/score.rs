//! `muster score` and `muster simulate`: the terms of weights, from a validator or from a file.

use std::process::ExitCode;

use muster_operator::score::{
    Score, ScoreExplain, Simulate, check_snapshot, explain_miner, find_snapshot, read, run_simulation, write,
};
use muster_terminal::print;

use crate::failure::Result;
use crate::validator;

/// Runs `muster score`.
pub(crate) async fn run(command: Score) -> Result<ExitCode> {
    let Score::Explain(args) = command;
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
    let limit = if args.cycle.is_some() { 1_000 } else { 1 };
    let state = validator::ask(at, &format!("/v0/state?limit={limit}")).await?;
    let digest = find_snapshot(&state, args.cycle)?;
    let body = validator::ask(at, &format!("/v0/scoring-snapshots/{digest}")).await?;
    Ok(check_snapshot(&body, &digest)?)
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

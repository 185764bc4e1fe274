//! `muster miner audits` and `muster miner appeal`: the store of the miner on this machine answers.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use muster_identity::wallet::load_hotkey;
use muster_miner::Config;
use muster_miner::store::Store;
use muster_process::SharedClock;
use muster_score_tools::{MinerAppeal, MinerAudits};
use muster_terminal::print;

use crate::failure::Result;
use crate::roles::configure;

/// Runs `muster miner audits`.
pub(crate) async fn list(args: &MinerAudits) -> Result<ExitCode> {
    let Some((_, store)) = open(args.config.as_deref()).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let witness = store.witness().context("the miner keeps nothing")?;
    let answer = args.run(&witness).await;
    store.close().await;
    print::raw(&answer.map_err(|error| anyhow!(error))?);
    Ok(ExitCode::SUCCESS)
}

/// Runs `muster miner appeal`.
pub(crate) async fn appeal(args: &MinerAppeal, clock: &SharedClock) -> Result<ExitCode> {
    let Some((config, store)) = open(args.config.as_deref()).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let key = load_hotkey(&config.wallet).context("cannot use the miner's wallet")?;
    let witness = store.witness().context("the miner keeps nothing")?;
    let answer = args.run(&witness, &key, clock.now()).await;
    store.close().await;
    print::raw(&answer.map_err(|error| anyhow!(error))?);
    Ok(ExitCode::SUCCESS)
}

async fn open(file: Option<&Path>) -> Result<Option<(Config, Store)>> {
    let Some(config) = configure::<Config>(file, false)? else {
        return Ok(None);
    };
    let store = Store::open(&config.store).await;
    Ok(Some((config, store.context("cannot open the miner's store")?)))
}

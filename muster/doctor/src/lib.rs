//! The facts of `muster doctor` about a miner: its configuration, held against the chain, its port and its engines.

pub mod machine_verdict;

use std::time::Duration;

use muster_chain::ChainClient;
use muster_enrollment::key_and_certificate::load_or_create;
use muster_identity::wallet::load_hotkey;
use muster_miner::config::Config;
use muster_miner::executor_pools::ask_places;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Digest, Hotkey};
use muster_websocket::{Limits, connect, pinned};

use crate::machine_verdict::{MinerFacts, PoolFacts};

/// The time limit of each question.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gathers the facts about the miner of a configuration.
pub async fn gather(config: &Config, clock: &SharedClock) -> MinerFacts {
    let (hotkey, error) = match load_hotkey(&config.wallet) {
        Ok(pair) => (Some(pair.hotkey()), None),
        Err(error) => (None, Some(Causes(&error).to_string())),
    };
    let certificate = certificate_of(config);
    let mut facts = MinerFacts {
        hotkey: hotkey.as_ref().map(Hotkey::to_string),
        error,
        netuid: config.chain.netuid.0,
        address: config.announce.unwrap_or(config.bind).to_string(),
        certificate: certificate.map(|digest| digest.to_string()),
        unanswered: answer_at(config, certificate).await.err(),
        pools: pools(config, hotkey.as_ref(), clock).await,
        ..MinerFacts::default()
    };
    if let Some(hotkey) = &hotkey
        && config.follows_chain()
    {
        ask_chain(config, hotkey, &mut facts).await;
    }
    facts
}

/// The digest of the certificate in the configured file; `None` if there is none that can be read.
fn certificate_of(config: &Config) -> Option<Digest> {
    let path = &config.tls.certificate;
    if !config.tls.enabled || !path.exists() {
        return None;
    }
    Some(load_or_create(path, "miner").ok()?.fingerprint())
}

async fn ask_chain(config: &Config, hotkey: &Hotkey, facts: &mut MinerFacts) {
    let asking = async {
        let chain = ChainClient::connect(&config.chain.url).await?;
        chain.metagraph(config.chain.netuid).await
    };
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(Ok(metagraph)) => {
            let neuron = metagraph.find(hotkey);
            facts.registered = Some(neuron.is_some());
            facts.chain_address = neuron.and_then(|neuron| neuron.axon).map(|axon| axon.to_string());
            facts.chain_certificate = metagraph.certificate_of(hotkey).map(|digest| digest.to_string());
        }
        Ok(Err(error)) => facts.error = Some(Causes(&error).to_string()),
        Err(_) => facts.error = Some(format!("{} does not answer in time", config.chain.url)),
    }
}

/// Dials the announced address from this machine, with the certificate that validators know.
async fn answer_at(config: &Config, certificate: Option<Digest>) -> Result<(), String> {
    let address = config.announce.unwrap_or(config.bind);
    if address.ip().is_unspecified() {
        return Err("the configuration announces no address: set announce".to_owned());
    }
    // A token that no lease has: the miner upgrades, and then refuses it.
    let path = "v0.1/executor_interface/doctor";
    let url = match certificate {
        Some(certificate) => pinned(&format!("wss://{address}/{path}"), certificate),
        None => format!("ws://{address}/{path}"),
    };
    match tokio::time::timeout(PATIENCE, connect(&url, &Limits::miner())).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Causes(&error).to_string()),
        Err(_) => Err("it does not answer in time".to_owned()),
    }
}

async fn pools(config: &Config, hotkey: Option<&Hotkey>, clock: &SharedClock) -> Vec<PoolFacts> {
    let owner = hotkey.map(Hotkey::to_string).unwrap_or_default();
    let mut found = Vec::new();
    for pool in &config.executor.pools {
        if let Some(places) = ask_places(pool, &owner, clock).await {
            let (places, error) = match places {
                Ok(places) => (Some(places), None),
                Err(error) => (None, Some(error)),
            };
            found.push(PoolFacts {
                name: pool.name.clone(),
                engine: pool.engine.name().to_owned(),
                count: pool.count,
                places,
                error,
            });
        }
    }
    found
}

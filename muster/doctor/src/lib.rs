//! The facts of `muster doctor` about a miner: its configuration, held against the chain, its port and its engines.

pub mod machine_verdict;

use std::time::Duration;

use muster_chain::ChainClient;
use muster_enrollment::key_and_certificate::load_or_create;
use muster_identity::wallet::load_hotkey;
use muster_miner::config::Config;
use muster_miner::executor_pools::{EngineKind, PoolConfig, ask_places};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Digest, Hotkey};
use muster_websocket::{Limits, connect, pinned, with_path};

use crate::machine_verdict::{DialFacts, MinerFacts, PoolFacts, PromisedExecutors, is_example};

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
        promised: promised(config),
        dials: dials(config, certificate).await,
        ..MinerFacts::default()
    };
    if is_example(&config.chain.url) {
        facts.error = Some(format!(
            "{} is still the example, so it was not asked",
            config.chain.url
        ));
    } else if let Some(hotkey) = &hotkey
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
    let scheme = if certificate.is_some() { "wss" } else { "ws" };
    ask(&format!("{scheme}://{address}"), certificate).await
}

/// Dials a miner at `address`, `ws://…` or `wss://…`, and with TLS only one that has this certificate. An example is
/// not dialled.
async fn ask(address: &str, certificate: Option<Digest>) -> Result<(), String> {
    if is_example(address) {
        return Err("it is still the example, so it was not dialled".to_owned());
    }
    // A token that no lease has: the miner upgrades, and then refuses it.
    let url = with_path(address, "/v0.1/executor_interface/doctor");
    let url = match certificate.filter(|_| address.starts_with("wss://")) {
        Some(certificate) => pinned(&url, certificate),
        None => url,
    };
    match tokio::time::timeout(PATIENCE, connect(&url, &Limits::miner())).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Causes(&error).to_string()),
        Err(_) => Err("it does not answer in time".to_owned()),
    }
}

/// The pools of a miner, `[executor]` itself among them.
fn all_pools(config: &Config) -> impl Iterator<Item = PoolConfig> {
    let further = config.executor.pools.iter().cloned();
    std::iter::once(config.executor.own_pool())
        .chain(further)
        .filter(|pool| pool.count > 0)
}

/// The executors that the miner starts on its own machine, which is this one.
fn promised(config: &Config) -> Vec<PromisedExecutors> {
    let local = all_pools(config).filter(|pool| pool.engine == EngineKind::Local);
    let promise = |pool: PoolConfig| PromisedExecutors {
        pool: pool.name,
        class: pool.class,
        count: pool.count,
    };
    local.map(promise).collect()
}

/// The addresses that executors dial, each asked once from this machine.
async fn dials(config: &Config, certificate: Option<Digest>) -> Vec<DialFacts> {
    let mut dials: Vec<DialFacts> = Vec::new();
    for pool in all_pools(config) {
        let is_from_elsewhere = pool.engine != EngineKind::Local;
        let named = [&pool.dial, &config.executor.dial];
        let address = match named.into_iter().find(|dial| !dial.is_empty()) {
            Some(dial) => dial.clone(),
            None if is_from_elsewhere => format!("ws://{}", config.bind),
            // On this machine the bound address will do.
            None => continue,
        };
        match dials.iter_mut().find(|dial| dial.address == address) {
            Some(known) => {
                known.pools.push(pool.name);
                known.is_from_elsewhere |= is_from_elsewhere;
            }
            None => dials.push(DialFacts {
                unanswered: ask(&address, certificate).await.err(),
                pools: vec![pool.name],
                address,
                is_from_elsewhere,
            }),
        }
    }
    dials
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        muster_process::config::parse(text, "miner").unwrap()
    }

    #[tokio::test]
    async fn an_example_is_never_dialled() {
        for address in ["ws://miner.example:8092", "wss://192.0.2.7:8092"] {
            let refused = ask(address, Some(Digest::of(b"certificate"))).await.unwrap_err();
            assert!(refused.contains("was not dialled"), "{address}: {refused}");
        }
    }

    #[tokio::test]
    async fn every_pool_elsewhere_has_an_address_to_dial_and_one_here_promises_its_class() {
        let config = config(
            "[executor]\ncount = 2\nclass = \"always_on.cpu.8c.16gb\"\n\
             [[executor.pools]]\nname = \"a\"\nengine = \"slurm\"\ndial = \"ws://miner.example:8092\"\n\
             [[executor.pools]]\nname = \"b\"\nengine = \"slurm\"\ndial = \"ws://miner.example:8092\"\n",
        );
        let promised = promised(&config);
        assert_eq!((promised.len(), promised[0].count), (1, 2));
        assert_eq!(promised[0].class.as_str(), "always_on.cpu.8c.16gb");
        let dials = dials(&config, None).await;
        assert_eq!(dials.len(), 1);
        assert_eq!(dials[0].pools, ["a", "b"]);
        assert!(dials[0].is_from_elsewhere);
    }
}

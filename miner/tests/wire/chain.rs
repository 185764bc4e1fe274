//! The miner on a real chain: it announces where it is, and serves those whom the metagraph permits.

use muster_chain::Netuid;
use muster_enrollment::key_and_certificate::load_or_create;
use muster_identity::Keypair;
use muster_miner::TlsConfig;
use muster_miner::certificate::rotate;
use muster_protocol::Manifest;
use muster_protocol::wire::validator_socket::MinerToValidator;
use serde_json::json;

use crate::devchain::{Devchain, TAO};
use crate::harness::*;

const NETUID: Netuid = Netuid(3);

fn account(name: &str) -> String {
    Keypair::from_uri(name).unwrap().hotkey().to_string()
}

/// A validator with a permit, one without, and the miner.
fn spec() -> serde_json::Value {
    let neuron = |name: &str, stake: u64, permit: bool| {
        json!({"netuid": NETUID.0, "hotkey": account(name), "coldkey": account(&format!("{name}//cold")),
               "stake": stake, "permit": permit})
    };
    json!({
        "stake_threshold": TAO,
        "subnets": [{"netuid": NETUID.0, "tempo": 20}],
        "neurons": [
            neuron("//Validator", 1000 * TAO, true),
            neuron("//Other", 10 * TAO, false),
            neuron("//Miner", 10 * TAO, false),
        ],
    })
}

/// The miner's answer to a connection that claims to be `name` and does not greet.
async fn refusal(miner: &Miner, name: &str) -> String {
    let path = format!("v0.1/validator_interface/{}", account(name));
    let mut party = Party::dial(&miner.url(&path)).await;
    let MinerToValidator::GenericError(error) = party.recv().await else {
        panic!("{name} is not refused")
    };
    error.details.unwrap()
}

#[tokio::test]
async fn the_address_is_announced_and_the_metagraph_says_who_is_served() {
    let chain = Devchain::start(&spec()).await.unwrap();
    let mut miner = Miner::start_with(|config| {
        config.validators.clear();
        config.chain.url = chain.url.clone();
        config.chain.netuid = NETUID;
    })
    .await;

    // From strangers to neurons: the metagraph has been read.
    let inactive = format!("Inactive validator: {}", account("//Other"));
    soon(async { while refusal(&miner, "//Other").await != inactive {} }).await;
    let unknown = format!("Unknown validator: {}", account("//Stranger"));
    assert_eq!(refusal(&miner, "//Stranger").await, unknown);
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    assert_eq!(miner.wanted().await.order.token.attempt(), attempt);

    let client = chain.client().await.unwrap();
    let announced = async || {
        let metagraph = client.metagraph(NETUID).await.unwrap();
        metagraph.find(&miner_key().hotkey()).unwrap().axon
    };
    soon(async { while announced().await != Some(miner.address) {} }).await;
    // The certificate of the port is there too, and the executors.
    let certificate = async || {
        client
            .metagraph(NETUID)
            .await
            .unwrap()
            .certificate_of(&miner_key().hotkey())
    };
    let config = TlsConfig {
        certificate: miner.folder.path().join("tls/port.pem"),
        ..TlsConfig::default()
    };
    let first = load_or_create(&config.certificate, "miner")
        .unwrap()
        .fingerprint();
    assert_eq!(certificate().await, Some(first));
    let stated = async || client.commitment_of(NETUID, &miner_key().hotkey()).await.unwrap();
    soon(async { while stated().await.is_none() {} }).await;
    let manifest = Manifest::new([(CLASS, 1)]);
    assert_eq!(stated().await, Some(manifest.to_commitment()));
    // A rotated certificate replaces it.
    let second = rotate(&config).unwrap();
    soon(async {
        while certificate().await != Some(second) {
            miner.clock.advance(std::time::Duration::from_secs(5));
        }
    })
    .await;
    miner.stop().await;
}

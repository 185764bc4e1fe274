//! TLS on the miner's port: a certificate of its own, pinned by those who dial, and rotated while the miner runs.

#![expect(
    clippy::unwrap_used,
    reason = "a failure of these helpers is the test's failure, on its line"
)]

use std::path::{Path, PathBuf};

use muster_enrollment::key_and_certificate::load_or_create;
use muster_identity::sign_validator_auth;
use muster_miner::TlsConfig;
use muster_miner::certificate::rotate;
use muster_process::{Clock as _, tls};
use muster_protocol::wire::encode;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{Digest, MinerKey};
use muster_websocket::{ConnectError, Limits, connect, pinned};

use crate::harness::*;

fn file(miner: &Miner) -> PathBuf {
    miner.folder.path().join("tls/port.pem")
}

/// The digest of the certificate in a file.
fn digest_in(file: &Path) -> Digest {
    load_or_create(file, "miner").unwrap().fingerprint()
}

fn path() -> String {
    format!("v0.1/validator_interface/{}", validator_key().hotkey())
}

async fn dial(miner: &Miner, certificate: Digest) -> Result<Party, ConnectError> {
    let url = pinned(&format!("wss://{}/{}", miner.address, path()), certificate);
    let socket = connect(&url, &Limits::miner()).await?;
    Ok(Party { socket })
}

/// Greets, and takes the manifest.
async fn greet(party: &mut Party, miner: &Miner) {
    let auth = sign_validator_auth(
        &validator_key(),
        MinerKey(miner_key().hotkey()),
        miner.clock.now(),
    );
    party
        .send(encode(&ValidatorToMiner::ValidatorAuthForMiner(auth)))
        .await;
    assert!(matches!(
        party.recv().await,
        MinerToValidator::V0ExecutorManifestRequest(_)
    ));
}

#[tokio::test]
async fn a_validator_dials_the_certificate_that_it_knows_and_no_other() {
    let miner = Miner::start().await;
    let certificate = digest_in(&file(&miner));
    greet(&mut dial(&miner, certificate).await.unwrap(), &miner).await;
    // ComputeHorde's validators know no certificate, and are served all the same.
    Validator::connect(&miner).await;
    // The miner is another one than the chain states, or somebody stands in between.
    let swapped = dial(&miner, Digest::of(b"another certificate")).await;
    assert!(matches!(swapped, Err(ConnectError::Tls { .. })));
}

#[tokio::test]
async fn a_certificate_knows_no_dates_and_no_names() {
    // It is made by somebody else's program, for another name, and ended long ago.
    let miner = Miner::start().await;
    let mut params = rcgen::CertificateParams::new(vec!["expired.example".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let text = [params.self_signed(&key).unwrap().pem(), key.serialize_pem()].concat();
    std::fs::write(file(&miner), text).unwrap();
    let certificate = digest_in(&file(&miner));
    let served = async {
        loop {
            miner.clock.advance(std::time::Duration::from_secs(5));
            if let Ok(mut party) = dial(&miner, certificate).await {
                return greet(&mut party, &miner).await;
            }
        }
    };
    soon(served).await;
}

#[tokio::test]
async fn a_rotation_costs_no_connection_and_both_certificates_are_served() {
    let miner = Miner::start().await;
    let old = digest_in(&file(&miner));
    let mut open = dial(&miner, old).await.unwrap();
    greet(&mut open, &miner).await;
    let config = TlsConfig {
        certificate: file(&miner),
        ..TlsConfig::default()
    };
    let new = rotate(&config).unwrap();
    let served = async {
        while dial(&miner, new).await.is_err() {
            miner.clock.advance(std::time::Duration::from_secs(5));
            tokio::task::yield_now().await;
        }
    };
    soon(served).await;
    // A validator that has not read the chain since then, and a connection from before.
    greet(&mut dial(&miner, old).await.unwrap(), &miner).await;
    open.send(encode(&ValidatorToMiner::V0MainHotkeyMessage(
        muster_protocol::wire::miner::MainHotkey { main_hotkey: None },
    )))
    .await;
    assert!(matches!(
        open.recv().await,
        MinerToValidator::V0MainHotkeyMessage(_)
    ));
    // After the next rotation, the first one is gone.
    let newest = rotate(&config).unwrap();
    let served = async {
        while dial(&miner, newest).await.is_err() {
            miner.clock.advance(std::time::Duration::from_secs(5));
            tokio::task::yield_now().await;
        }
    };
    soon(served).await;
    assert!(dial(&miner, new).await.is_ok());
    assert!(matches!(dial(&miner, old).await, Err(ConnectError::Tls { .. })));
}

#[tokio::test]
async fn a_miner_that_refuses_plain_connections_says_what_to_do() {
    tls::install_provider();
    let miner = Miner::start_with(|config| config.tls.refuse_plain = true).await;
    let refused = connect(&miner.url(&path()), &Limits::miner()).await;
    assert!(
        matches!(refused, Err(ConnectError::Refused { status: 426, .. })),
        "{refused:?}"
    );
    let told = reqwest::get(format!("http://{}/{}", miner.address, path()))
        .await
        .unwrap();
    assert!(told.text().await.unwrap().contains("wss://"));
    greet(&mut dial(&miner, digest_in(&file(&miner))).await.unwrap(), &miner).await;
    // Receipts are public and signed, so everybody may read them.
    let health = reqwest::get(miner.url("health")).await.unwrap();
    assert!(health.status().is_success());
    // Executors on the miner's machine do without.
    let token = "v0.1/executor_interface/no-token";
    assert!(connect(&miner.url(token), &Limits::miner()).await.is_ok());
}

#[tokio::test]
async fn a_miner_without_tls_answers_no_handshake() {
    let miner = Miner::start_with(|config| config.tls.enabled = false).await;
    tls::install_provider();
    assert!(dial(&miner, Digest::of(b"any")).await.is_err());
    Validator::connect(&miner).await;
    assert!(!file(&miner).exists(), "no certificate is made");
}

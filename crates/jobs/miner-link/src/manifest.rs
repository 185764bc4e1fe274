//! Asks a miner which executors it has.

use std::error::Error;
use std::net::SocketAddr;

use muster_identity::{Keypair, sign_validator_auth};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::wire::miner::{ExecutorManifest, FromMiner, ToMiner};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{FeatureSet, MinerKey};
use muster_websocket::{Limits, connect};

/// Dials the miner at `address`, greets it as the validator `keypair`, and returns the first manifest that it sends,
/// with the features that it showed.
///
/// A miner sends its manifest only when a connection begins, so this opens a connection of its own.
///
/// # Errors
/// The miner cannot be reached, or it disconnected before its manifest. The error is a text for the operator.
pub async fn fetch_manifest(
    keypair: &Keypair,
    clock: &SharedClock,
    miner: MinerKey,
    address: SocketAddr,
) -> Result<(ExecutorManifest, FeatureSet), String> {
    let url = format!("ws://{address}/v0.1/validator_interface/{}", keypair.hotkey());
    let causes = |error: &(dyn Error + 'static)| Causes(error).to_string();
    let mut socket = connect(&url, &Limits::miner())
        .await
        .map_err(|error| causes(&error))?;
    let greeting = ToMiner::ValidatorAuthForMiner(sign_validator_auth(keypair, miner, clock.now()));
    socket
        .send(encode(&greeting))
        .await
        .map_err(|error| causes(&error))?;
    loop {
        match socket.recv().await {
            Ok(Some(frame)) => {
                if let Ok(FromMiner::V0ExecutorManifestRequest(message)) = decode(&frame) {
                    return Ok((message, socket.features()));
                }
            }
            Ok(None) => return Err("it disconnected before it sent its manifest".to_owned()),
            Err(error) => return Err(causes(&error)),
        }
    }
}

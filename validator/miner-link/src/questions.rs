//! Asks a miner which executors it has, and which hotkey is the main one of its owner.

use std::error::Error;
use std::time::Duration;

use muster_identity::{Keypair, sign_validator_auth};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::wire::miner::{ExecutorManifest, MainHotkey};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{FeatureSet, Hotkey};
use muster_websocket::{Limits, Socket, SocketError, connect};
use tokio::time::timeout;

use crate::endpoint::MinerEndpoint;

/// How long a miner that has sent its manifest may take to name its main hotkey.
const MAIN_HOTKEY_WAIT: Duration = Duration::from_secs(2);

/// The answers of a miner.
#[derive(Clone, Debug, PartialEq)]
pub struct MinerAnswers {
    /// The executors that it offers, by class.
    pub manifest: ExecutorManifest,
    /// The features that it showed.
    pub features: FeatureSet,
    /// The main hotkey of its owner, as it states; `None` if it names none.
    pub main_hotkey: Option<Hotkey>,
}

/// Dials a miner, greets it as the validator `keypair`, and returns the first manifest that it sends,
/// with the features that it showed and the main hotkey that it names.
///
/// A miner sends its manifest only when a connection begins, so this opens a connection of its own. The manifest has to
/// come within `limit`. A miner that names no main hotkey within two seconds after its manifest has named none.
///
/// # Errors
/// The miner cannot be reached, or it sent no manifest. The error is a text for the operator.
pub async fn ask_miner(
    keypair: &Keypair,
    clock: &SharedClock,
    endpoint: MinerEndpoint,
    limit: Duration,
) -> Result<MinerAnswers, String> {
    let asked = timeout(limit, fetch_manifest(keypair, clock, endpoint));
    let (mut socket, mut heard) = match asked.await {
        Ok(asked) => asked?,
        Err(_) => return Err(format!("no manifest came within {} s", limit.as_secs())),
    };
    let question = ValidatorToMiner::V0MainHotkeyMessage(MainHotkey { main_hotkey: None });
    let naming = async {
        // A miner that hangs up now has answered what it wanted to. It is asked after its manifest: a question that it
        // does not read any more could cost what it has sent.
        let _ = socket.send(encode(&question)).await;
        while heard.main_hotkey.is_none() && heard.next(&mut socket).await.unwrap_or(false) {}
    };
    // Without an answer in time it has named none.
    let _ = timeout(MAIN_HOTKEY_WAIT, naming).await;
    let manifest = heard.manifest.take();
    Ok(MinerAnswers {
        manifest: manifest.ok_or("it sent no manifest")?,
        features: socket.features(),
        main_hotkey: heard.main_hotkey.flatten(),
    })
}

/// The connection to a miner that has sent its manifest.
async fn fetch_manifest(
    keypair: &Keypair,
    clock: &SharedClock,
    endpoint: MinerEndpoint,
) -> Result<(Socket, HeardAnswers), String> {
    let url = endpoint.url(keypair);
    let causes = |error: &(dyn Error + 'static)| Causes(error).to_string();
    let mut socket = connect(&url, &Limits::miner())
        .await
        .map_err(|error| causes(&error))?;
    let greeting =
        ValidatorToMiner::ValidatorAuthForMiner(sign_validator_auth(keypair, endpoint.miner, clock.now()));
    socket
        .send(encode(&greeting))
        .await
        .map_err(|error| causes(&error))?;
    let mut heard = HeardAnswers::default();
    while heard.manifest.is_none() {
        match heard.next(&mut socket).await {
            Ok(true) => {}
            Ok(false) => return Err("it disconnected before it sent its manifest".to_owned()),
            Err(error) => return Err(causes(&error)),
        }
    }
    Ok((socket, heard))
}

/// The answers that have come so far.
#[derive(Default)]
struct HeardAnswers {
    manifest: Option<ExecutorManifest>,
    /// The answer to the question for the main hotkey, which may name none.
    main_hotkey: Option<Option<Hotkey>>,
}

impl HeardAnswers {
    /// Reads one frame; `false` if the miner has hung up.
    async fn next(&mut self, socket: &mut Socket) -> Result<bool, SocketError> {
        let Some(frame) = socket.recv().await? else {
            return Ok(false);
        };
        let message = decode::<MinerToValidator>(&frame);
        if let Ok(MinerToValidator::V0ExecutorManifestRequest(manifest)) = message {
            self.manifest.get_or_insert(manifest);
        } else if let Ok(MinerToValidator::V0MainHotkeyMessage(answer)) = message {
            self.main_hotkey.get_or_insert(answer.main_hotkey);
        }
        Ok(true)
    }
}

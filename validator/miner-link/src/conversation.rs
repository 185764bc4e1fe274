//! A connection of its own to a miner, for messages about no attempt.

use std::time::Duration;

use muster_identity::{Keypair, sign_validator_auth};
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::Feature;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode};
use muster_websocket::{CloseCode, Limits, Socket, connect};
use tokio::time::timeout;

use crate::endpoint::MinerEndpoint;

/// An open connection to a miner that knows a feature.
pub struct MinerConversation {
    socket: Socket,
    limit: Duration,
}

impl MinerConversation {
    /// Dials a miner and greets it as the validator `keypair`. `None` if the miner does not show
    /// `feature`: it is hung up on at once. `limit` bounds dialling, and each message afterwards.
    ///
    /// # Errors
    /// The miner cannot be reached; the reason as text.
    pub async fn open(
        keypair: &Keypair,
        clock: &SharedClock,
        endpoint: MinerEndpoint,
        feature: Feature,
        limit: Duration,
    ) -> Result<Option<Self>, String> {
        let url = endpoint.url(keypair);
        let opening = async {
            let mut socket = connect(&url, &Limits::miner())
                .await
                .map_err(|error| Causes(&error).to_string())?;
            let greeting = ValidatorToMiner::ValidatorAuthForMiner(sign_validator_auth(
                keypair,
                endpoint.miner,
                clock.now(),
            ));
            let greeted = socket.send(encode(&greeting)).await;
            greeted.map_err(|error| Causes(&error).to_string())?;
            Ok::<_, String>(socket)
        };
        let opened = timeout(limit, opening).await;
        let socket = opened.map_err(|_| too_slow(limit))??;
        if !socket.features().has(feature) {
            socket.close(CloseCode::Normal, "").await;
            return Ok(None);
        }
        Ok(Some(Self { socket, limit }))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection is lost; the reason as text.
    pub async fn send(&mut self, message: &ValidatorToMiner) -> Result<(), String> {
        let sent = timeout(self.limit, self.socket.send(encode(message))).await;
        sent.map_err(|_| too_slow(self.limit))?
            .map_err(|error| Causes(&error).to_string())
    }

    /// The miner's next message. Frames that are no messages are dropped.
    ///
    /// # Errors
    /// The connection is lost, or the miner sends nothing in time; the reason as text.
    pub async fn next(&mut self) -> Result<MinerToValidator, String> {
        let receiving = async {
            loop {
                match self.socket.recv().await {
                    Ok(Some(frame)) => {
                        if let Ok(message) = decode(&frame) {
                            return Ok(message);
                        }
                    }
                    Ok(None) => return Err("the miner closed the connection".to_owned()),
                    Err(error) if error.is_fatal() => return Err(Causes(&error).to_string()),
                    Err(error) => tracing::debug!(%error, "a frame of a miner was dropped"),
                }
            }
        };
        let received = timeout(self.limit, receiving).await;
        received.map_err(|_| too_slow(self.limit))?
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.socket.close(CloseCode::Normal, "").await;
    }
}

impl std::fmt::Debug for MinerConversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MinerConversation")
    }
}

fn too_slow(limit: Duration) -> String {
    format!("the miner takes longer than {} s", limit.as_secs())
}

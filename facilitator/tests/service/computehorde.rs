//! A scripted validator that speaks ComputeHorde's protocol only.

use futures_util::{SinkExt as _, StreamExt as _};
use muster_identity::sign_facilitator_auth;
use muster_protocol::JobId;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::ToFacilitator;
use muster_testbed::within;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::facilitator::{Facilitator, key};

/// A ComputeHorde validator, or a third party with its greeting: it does not send Muster's header.
pub(crate) struct ComputeHordeValidator {
    pub(crate) socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl ComputeHordeValidator {
    pub(crate) async fn dial(facilitator: &Facilitator) -> Self {
        let (socket, _) = connect_async(facilitator.socket_url()).await.unwrap();
        Self { socket }
    }

    /// Sends the greeting of `//name`. Returns the type of the error, or `success`.
    pub(crate) async fn greet(&mut self, name: &str) -> String {
        let auth = ToFacilitator::V0AuthenticationRequest(sign_facilitator_auth(&key(name)));
        self.send(&encode(&auth)).await;
        self.answer().await
    }

    pub(crate) async fn report(&mut self, uuid: JobId, status: &str) -> String {
        let update =
            json!({"message_type": "V0JobStatusUpdate", "uuid": uuid, "status": status, "metadata": null});
        self.send(&update.to_string()).await;
        self.answer().await
    }

    /// Sends a heartbeat, and waits until every earlier message has been handled.
    pub(crate) async fn settle(&mut self) {
        self.send(r#"{"message_type":"V0Heartbeat"}"#).await;
        assert_eq!(self.greet("Nobody").await, "auth.already_authenticated");
    }

    pub(crate) async fn send(&mut self, frame: &str) {
        self.socket.send(Message::text(frame)).await.unwrap();
    }

    pub(crate) async fn answer(&mut self) -> String {
        let answer = self.next().await;
        let kind = answer["errors"][0]["type"].as_str();
        kind.or(answer["status"].as_str()).unwrap().to_owned()
    }

    pub(crate) async fn next(&mut self) -> Value {
        loop {
            let message = within("a message", self.socket.next()).await.unwrap().unwrap();
            if let Message::Text(text) = message {
                return serde_json::from_str(text.as_str()).unwrap();
            }
        }
    }
}

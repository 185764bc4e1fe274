//! The miner's side of the socket: frames as Python writes them, without any header of Muster.

use futures_util::{SinkExt, StreamExt};
use muster_testbed::within;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Callback, ErrorResponse, Request, Response};

/// Waits for executors.
pub(crate) struct FakeMiner {
    listener: TcpListener,
    shows: Shows,
}

/// The headers that a miner shows to an executor that connects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// Nothing, as ComputeHorde's miners.
    Nothing,
    /// That it is Muster.
    Muster,
    /// That it is Muster and has these features.
    Features(&'static str),
}

/// One executor's socket.
pub(crate) struct Wire {
    /// The path that the executor requested.
    pub(crate) path: String,
    socket: WebSocketStream<TcpStream>,
}

/// Records the path of the request.
struct NotePath<'a>(&'a mut String, Shows);

impl Callback for NotePath<'_> {
    fn on_request(self, request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
        *self.0 = request.uri().path().to_owned();
        let headers = response.headers_mut();
        if self.1 != Shows::Nothing {
            headers.insert("Muster-Protocol", "1".parse().unwrap());
        }
        if let Shows::Features(features) = self.1 {
            headers.insert("Muster-Features", features.parse().unwrap());
        }
        Ok(response)
    }
}

impl FakeMiner {
    /// A miner as ComputeHorde's.
    pub(crate) async fn start() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            shows: Shows::Nothing,
        }
    }

    /// A Muster miner.
    pub(crate) async fn muster() -> Self {
        Self {
            shows: Shows::Muster,
            ..Self::start().await
        }
    }

    /// A Muster miner that takes executors back.
    pub(crate) async fn reattaching() -> Self {
        Self::with_features("reattach").await
    }

    /// A Muster miner with these features.
    pub(crate) async fn with_features(features: &'static str) -> Self {
        Self {
            shows: Shows::Features(features),
            ..Self::start().await
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("ws://{}", self.listener.local_addr().unwrap())
    }

    pub(crate) async fn accept(&self) -> Wire {
        within("an executor", async {
            let (stream, _) = self.listener.accept().await.unwrap();
            let mut path = String::new();
            let socket = tokio_tungstenite::accept_hdr_async(stream, NotePath(&mut path, self.shows))
                .await
                .unwrap();
            Wire { path, socket }
        })
        .await
    }
}

impl Wire {
    pub(crate) async fn send(&mut self, message: &Value) {
        self.socket
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }

    pub(crate) async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// The last message before the executor leaves; null if there is none.
    pub(crate) async fn last(&mut self) -> Value {
        let mut last = Value::Null;
        while let Some(message) = self.recv().await {
            last = message;
        }
        last
    }

    /// The next message; `None` once the executor has closed.
    pub(crate) async fn recv(&mut self) -> Option<Value> {
        let text = self.recv_text().await?;
        Some(serde_json::from_str(&text).unwrap())
    }

    /// The next message as it was written; `None` once the executor has closed.
    pub(crate) async fn recv_text(&mut self) -> Option<String> {
        loop {
            let frame = within("a word of the executor", self.socket.next()).await;
            match frame? {
                Ok(Message::Text(text)) => return Some(text.as_str().to_owned()),
                Err(_) => return None,
                // The answer to a close is sent with the next read, after which the stream ends.
                Ok(_) => {}
            }
        }
    }

    /// The next message, which must be of this type.
    pub(crate) async fn expect(&mut self, kind: &str) -> Value {
        let message = self
            .recv()
            .await
            .unwrap_or_else(|| panic!("closed where {kind} should come"));
        assert_eq!(message["message_type"], kind, "{message:#}");
        message
    }

    /// The next report of the attempt, which must be of this type. Live output and progress before it are passed over.
    pub(crate) async fn expect_report(&mut self, kind: &str) -> Value {
        loop {
            let message = self
                .recv()
                .await
                .unwrap_or_else(|| panic!("closed where {kind} should come"));
            let named = message["message_type"].as_str().unwrap();
            if named == kind {
                return message;
            }
            assert!(named.starts_with("Muster"), "{message:#}");
        }
    }

    /// Every message up to the first of this type, that one included.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self
                .recv()
                .await
                .unwrap_or_else(|| panic!("closed where {kind} should come: {messages:#?}"));
            let found = message["message_type"] == kind;
            messages.push(message);
            if found {
                return messages;
            }
        }
    }

    /// Checks that the executor now closes its socket.
    pub(crate) async fn expect_end(&mut self) {
        let message = self.recv().await;
        assert!(message.is_none(), "{message:?}");
    }

    pub(crate) async fn close(mut self) {
        self.socket.close(None).await.unwrap();
    }
}

//! The calls of a running validator, and their failures.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use muster_process::operator_token::OperatorToken;
use serde_json::Value;

/// A slash waits until its transaction is final; the validator's own bound is `collateral.receipt_s`.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Why a command did nothing, or is not known to have done something.
#[derive(Debug, thiserror::Error)]
pub enum OperatorToolError {
    /// The command was not given as it must be, or was called off.
    #[error("{0}")]
    Usage(String),
    /// The evidence cannot be read.
    #[error("cannot read {}", path.display())]
    Evidence {
        /// The path on the command line.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The terminal cannot be read.
    #[error("cannot read the answer from the terminal")]
    Terminal(#[source] std::io::Error),
    /// No validator answers.
    #[error("no validator answers at {at}; its `bind` says where its state can be read")]
    NoAnswer {
        /// The address that was asked.
        at: SocketAddr,
        /// The reason of the HTTP client.
        source: reqwest::Error,
    },
    /// The validator refused, with its reason.
    #[error("the validator at {at}: {said}")]
    Refused {
        /// The address that was asked.
        at: SocketAddr,
        /// The validator's text.
        said: String,
    },
    /// The answer has another shape.
    #[error("the validator at {0} is of another version")]
    OtherVersion(SocketAddr),
}

/// The body of an order.
pub(crate) enum OrderBody {
    /// A JSON document.
    Json(Value),
    /// A text that is sent byte for byte.
    Text(String),
}

/// Calls the validator: a POST with the operator's token if there is a body, else a GET.
pub(crate) async fn call(
    at: SocketAddr,
    path: &str,
    order: Option<(&OperatorToken, OrderBody)>,
) -> Result<Value, OperatorToolError> {
    let unanswered = |source| OperatorToolError::NoAnswer { at, source };
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build();
    let (client, url) = (client.map_err(unanswered)?, format!("http://{at}{path}"));
    let request = match order {
        None => client.get(url),
        Some((token, body)) => {
            let request = client.post(url).header("authorization", token.authorization());
            match body {
                OrderBody::Json(body) => request.json(&body),
                OrderBody::Text(body) => request.body(body),
            }
        }
    };
    let answer = request.send().await.map_err(unanswered)?;
    let succeeded = answer.status().is_success();
    let body: Value = answer
        .json()
        .await
        .map_err(|_| OperatorToolError::OtherVersion(at))?;
    if succeeded {
        return Ok(body);
    }
    let said = body.get("error").and_then(Value::as_str);
    Err(OperatorToolError::Refused {
        at,
        said: said.unwrap_or("it cannot say").to_owned(),
    })
}

/// A text as a part of a query.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

//! JSON-RPC over HTTP to one EVM node, with bounds on time and size.

use std::time::Duration;

use muster_process::error::Causes;
use muster_process::tls;
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::contract::{name_revert, sanitize};
use crate::error::CollateralError;

/// The longest answer that is read. The largest that is asked for is a contract's code.
const MAX_ANSWER: usize = 1 << 20;

/// The client of one node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    http: reqwest::Client,
    url: Url,
}

/// A node's answer in JSON-RPC.
#[derive(Debug, Deserialize)]
struct RpcAnswer {
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<RpcError>,
}

#[derive(Debug, Deserialize)]
struct RpcError {
    code: i64,
    #[serde(default)]
    message: String,
    /// The bytes with which a contract reverted, here or deeper in an object.
    #[serde(default)]
    data: Value,
}

impl Node {
    /// A client that follows no redirect and uses no proxy, with a bound on each request.
    pub(crate) fn client(limit: Duration) -> Result<reqwest::Client, reqwest::Error> {
        tls::install_provider();
        reqwest::Client::builder()
            .timeout(limit)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
    }

    pub(crate) fn new(http: reqwest::Client, url: Url) -> Self {
        Self { http, url }
    }

    /// The node's host. The rest of its address may hold a key and is never shown.
    pub(crate) fn host(&self) -> String {
        let host = self.url.host_str().unwrap_or("without a host");
        match self.url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// Calls a method. A `null` result is returned as [`Value::Null`].
    pub(crate) async fn call(
        &self,
        doing: &'static str,
        method: &str,
        params: Value,
    ) -> Result<Value, CollateralError> {
        let body = self
            .post(method, params)
            .await
            .map_err(|said| CollateralError::NodeAway {
                doing,
                said: format!("{}: {said}", self.host()),
            })?;
        let answer: RpcAnswer = serde_json::from_slice(&body)
            .map_err(|_| self.not_understood(doing, "it is not JSON-RPC".to_owned()))?;
        match answer {
            RpcAnswer {
                error: Some(error), ..
            } => Err(self.refused(doing, error)),
            RpcAnswer { result, error: None } => Ok(result.unwrap_or(Value::Null)),
        }
    }

    async fn post(&self, method: &str, params: Value) -> Result<Vec<u8>, String> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let sent = self.http.post(self.url.clone()).json(&request).send().await;
        // The error's own text would show the whole address.
        let mut answer = sent.map_err(|error| Causes(&error.without_url()).to_string())?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(piece) = answer
            .chunk()
            .await
            .map_err(|error| Causes(&error.without_url()).to_string())?
        {
            if body.len().saturating_add(piece.len()) > MAX_ANSWER {
                return Err(format!("its answer is longer than {MAX_ANSWER} bytes"));
            }
            body.extend_from_slice(&piece);
        }
        // Some nodes answer an error of JSON-RPC with a status of its own.
        if !status.is_success() && serde_json::from_slice::<RpcAnswer>(&body).is_err() {
            return Err(format!("it answers with status {status}"));
        }
        Ok(body)
    }

    fn refused(&self, doing: &'static str, error: RpcError) -> CollateralError {
        if let Some(reason) = reverted(&error) {
            return CollateralError::Reverted { doing, reason };
        }
        CollateralError::NodeRefused {
            doing,
            host: self.host(),
            code: error.code,
            message: sanitize(&error.message),
        }
    }

    pub(crate) fn not_understood(&self, doing: &'static str, what: String) -> CollateralError {
        CollateralError::Answer {
            doing,
            host: self.host(),
            what,
        }
    }

    /// Reads a number such as `"0x1f"`.
    pub(crate) fn quantity(&self, doing: &'static str, value: &Value) -> Result<u64, CollateralError> {
        let parsed = value
            .as_str()
            .and_then(|text| text.strip_prefix("0x"))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        parsed.ok_or_else(|| self.not_understood(doing, "a number is missing or too large".to_owned()))
    }

    /// Reads bytes such as `"0x00ff"`.
    pub(crate) fn bytes(&self, doing: &'static str, value: &Value) -> Result<Vec<u8>, CollateralError> {
        read_bytes(value).ok_or_else(|| self.not_understood(doing, "bytes are missing".to_owned()))
    }
}

fn read_bytes(value: &Value) -> Option<Vec<u8>> {
    hex::decode(value.as_str()?.strip_prefix("0x")?).ok()
}

/// The code with which nodes report that a call was reverted (EIP-1474 leaves it to them; geth, Frontier and web3 use
/// 3).
const REVERTED: i64 = 3;

/// The reason of a reverted call; `None` for any other error.
fn reverted(error: &RpcError) -> Option<String> {
    let data = read_bytes(&error.data).or_else(|| read_bytes(error.data.get("data")?));
    if let Some(named) = data.as_deref().and_then(name_revert) {
        return Some(named);
    }
    let says_so = error.code == REVERTED || error.message.contains("revert");
    says_so.then(|| match sanitize(&error.message) {
        text if text.is_empty() => "it gave no reason".to_owned(),
        text => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(url: &str) -> Node {
        tls::install_provider();
        Node::new(reqwest::Client::new(), url.parse().unwrap())
    }

    #[test]
    fn an_address_is_shown_without_what_may_be_secret() {
        assert_eq!(
            node("https://user:word@rpc.example/key-123?x=1").host(),
            "rpc.example"
        );
        assert_eq!(node("http://127.0.0.1:8545/").host(), "127.0.0.1:8545");
    }

    #[test]
    fn numbers_and_bytes_of_a_node_are_read_or_refused() {
        let node = node("http://a.example");
        assert_eq!(node.quantity("x", &json!("0x1f")).unwrap(), 31);
        for bad in [
            json!("31"),
            json!("0x"),
            json!(31),
            json!("0x10000000000000000"),
            Value::Null,
        ] {
            assert!(node.quantity("x", &bad).is_err(), "{bad}");
        }
        assert_eq!(node.bytes("x", &json!("0x00ff")).unwrap(), [0, 255]);
        for bad in [json!("0x0"), json!("00"), json!([0]), Value::Null] {
            assert!(node.bytes("x", &bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_revert_is_told_from_other_errors() {
        let error = |code, message: &str, data| RpcError {
            code,
            message: message.to_owned(),
            data,
        };
        let not_trustee = json!("0x5aa309bb");
        for data in [not_trustee.clone(), json!({ "data": not_trustee })] {
            let reason = reverted(&error(-32_000, "no", data)).unwrap();
            assert!(reason.starts_with("NotTrustee"), "{reason}");
        }
        assert_eq!(reverted(&error(3, "", Value::Null)).unwrap(), "it gave no reason");
        assert_eq!(reverted(&error(-32_601, "no such method", Value::Null)), None);
    }
}

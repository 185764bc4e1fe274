//! One connection to one endpoint, with checks of the address and of the chain behind it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use subxt::backend::LegacyBackend;
use subxt::client::OnlineClient;
use subxt::config::RpcConfigFor;
use subxt::config::SubstrateConfig;
use subxt::config::substrate::H256;
use subxt::rpcs::{LegacyRpcMethods, RpcClient};
use tokio::time::timeout;
use url::{Host, Url};

use crate::error::ChainError;
use crate::subxt_errors::{name_failure, no_answer};

/// An open connection.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) api: OnlineClient<SubstrateConfig>,
    /// The older RPC methods, which answer for blocks whose state a node has forgotten.
    pub(crate) methods: LegacyRpcMethods<RpcConfigFor<SubstrateConfig>>,
}

impl Link {
    /// Dials `url`, which must serve the chain of `genesis` if that is known. Waits at most for `patience`.
    pub(crate) async fn dial(
        url: &str,
        patience: Duration,
        genesis: Option<H256>,
    ) -> Result<Self, ChainError> {
        const DOING: &str = "connect to the chain";
        if check_address(url)? {
            muster_process::tls::install_provider();
        }
        let dial = async {
            let rpc = RpcClient::from_insecure_url(url)
                .await
                .map_err(|error| no_answer(DOING, url, Some(Box::new(error))))?;
            // Every node, devchain included, serves the older RPC methods: one code path for all.
            let methods = LegacyRpcMethods::new(rpc.clone());
            let backend = LegacyBackend::builder().build(rpc);
            OnlineClient::from_backend(Arc::new(backend))
                .await
                .map(|api| (api, methods))
                .map_err(|error| name_failure(DOING, url, error))
        };
        let (api, methods) = timeout(patience, dial)
            .await
            .map_err(|_| no_answer(DOING, url, None))??;
        let found: H256 = api.genesis_hash();
        match genesis {
            Some(expected) if expected != found => Err(ChainError::WrongChain {
                url: url.to_owned(),
                expected: format!("{expected:?}"),
                found: format!("{found:?}"),
            }),
            Some(_) | None => Ok(Self { api, methods }),
        }
    }
}

/// Checks that the address may be dialled, and returns whether it is encrypted.
///
/// # Errors
/// [`ChainError::Address`] if the address may not be dialled.
pub(crate) fn check_address(text: &str) -> Result<bool, ChainError> {
    secure(text).map_err(|reason| ChainError::Address {
        url: text.to_owned(),
        reason,
    })
}

/// Whether the address is encrypted; an error if it may not be dialled.
///
/// Without encryption any party on the way can invent a metagraph, so unencrypted addresses must be on this machine.
fn secure(text: &str) -> Result<bool, &'static str> {
    let url = Url::parse(text).map_err(|_| "it is not an address such as wss://host:port")?;
    let local = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip).is_loopback(),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip).is_loopback(),
        None => return Err("it names no host"),
    };
    match url.scheme() {
        "wss" => Ok(true),
        "ws" if local => Ok(false),
        "ws" => Err("only this machine's own endpoints may be used without encryption: use wss"),
        _ => Err("its scheme is neither ws nor wss"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_addresses_are_for_this_machine() {
        for (text, expected) in [
            ("ws://127.0.0.1:9944", false),
            ("ws://127.9.9.9", false),
            ("ws://[::1]:9944", false),
            ("ws://localhost:9944", false),
            ("wss://entrypoint-finney.opentensor.ai:443", true),
        ] {
            assert_eq!(secure(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "finney",
            "ws://10.0.0.1",
            "ws://localhost.evil.example",
            "http://127.0.0.1",
            "file:///x",
        ] {
            assert!(secure(text).is_err(), "{text}");
        }
    }
}

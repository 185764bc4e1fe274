//! The connection to one endpoint: which addresses are dialled, how long is waited, and what its failures are called.
//!
//! Below is a client that reconnects by itself for ever. It queues requests while it does, so every wait here has an end.

use std::net::IpAddr;
use std::time::Duration;

use subxt::backend::LegacyBackend;
use subxt::client::{ClientAtBlock, OnlineClient, OnlineClientAtBlockImpl};
use subxt::config::SubstrateConfig;
use subxt::error::{
    BackendError, BlocksError, ExtrinsicError, OnlineClientAtBlockError, RpcError, RuntimeApiError,
    StorageError,
};
use subxt::rpcs::client::reconnecting_rpc_client::{FibonacciBackoff, RpcClient};
use tokio::time::timeout;
use url::{Host, Url};

use crate::error::ChainError;

/// How long is waited for the chain. What is not there by then has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For an answer, reconnecting included.
    pub read: Duration,
    /// For a call to be final. On the public network that takes three or four blocks of 12 seconds.
    pub finality: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(15),
            finality: Duration::from_secs(180),
        }
    }
}

/// How long is waited between two tries to reconnect, at first and at most.
const RECONNECT: (u64, Duration) = (100, Duration::from_secs(5));

/// The chain at one block.
pub(crate) type AtBlock = ClientAtBlock<SubstrateConfig, OnlineClientAtBlockImpl<SubstrateConfig>>;

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    url: String,
    pub(crate) patience: Patience,
    pub(crate) api: OnlineClient<SubstrateConfig>,
}

impl Endpoint {
    pub(crate) async fn connect(url: &str, patience: Patience) -> Result<Self, ChainError> {
        const DOING: &str = "connect to the chain";
        let secure = check_address(url).map_err(|reason| ChainError::Address {
            url: url.to_owned(),
            reason,
        })?;
        if secure {
            muster_kit::tls::install_provider();
        }
        let unreachable = |cause| ChainError::Unreachable {
            doing: DOING,
            url: url.to_owned(),
            cause,
        };
        let dial = async {
            let rpc = RpcClient::builder()
                .retry_policy(FibonacciBackoff::from_millis(RECONNECT.0).max_delay(RECONNECT.1))
                .request_timeout(patience.read)
                .build(url)
                .await
                .map_err(|error| unreachable(Some(Box::new(error))))?;
            // The older RPC methods are served by every node there is, and by devchain: one code path for all.
            let backend = LegacyBackend::builder().build(rpc);
            OnlineClient::from_backend(std::sync::Arc::new(backend))
                .await
                .map_err(|error| unreachable(Some(Box::new(error))))
        };
        let api = timeout(patience.read, dial)
            .await
            .map_err(|_| unreachable(None))??;
        Ok(Self {
            url: url.to_owned(),
            patience,
            api,
        })
    }

    /// The chain at its last finalised block.
    pub(crate) async fn head(&self, doing: &'static str) -> Result<AtBlock, ChainError> {
        self.read(doing, self.api.at_current_block()).await
    }

    /// Waits for a read, at most for the read limit, and names its failure.
    pub(crate) async fn read<T, E: Failure>(
        &self,
        doing: &'static str,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ChainError> {
        match timeout(self.patience.read, future).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failed(doing, error)),
            Err(_) => Err(ChainError::Unreachable {
                doing,
                url: self.url.clone(),
                cause: None,
            }),
        }
    }

    /// What a failed read is called: the endpoint's silence, or an answer that is not as expected.
    pub(crate) fn failed<E: Failure>(&self, doing: &'static str, error: E) -> ChainError {
        match error.backend() {
            Some(BackendError::Rpc(RpcError::ClientError(subxt::rpcs::Error::User(said)))) => {
                ChainError::Answer {
                    doing,
                    what: said.to_string(),
                }
            }
            Some(_) => ChainError::Unreachable {
                doing,
                url: self.url.clone(),
                cause: Some(Box::new(error)),
            },
            None => ChainError::Answer {
                doing,
                what: error.to_string(),
            },
        }
    }
}

/// Whether the address may be dialled, and whether it is encrypted.
///
/// Without encryption anyone on the way can invent a metagraph, so that is for this machine only.
fn check_address(text: &str) -> Result<bool, &'static str> {
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

/// An error of subxt that may be the endpoint's fault.
pub(crate) trait Failure: std::error::Error + Send + Sync + 'static {
    /// What went wrong with the endpoint, if that is the reason.
    fn backend(&self) -> Option<&BackendError>;
}

impl Failure for OnlineClientAtBlockError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotGetCurrentBlock { reason }
        | Self::CannotGetBlockHash { reason, .. }
        | Self::CannotGetBlockHeader { reason, .. }
        | Self::CannotGetSpecVersion { reason, .. } = self
        {
            Some(reason)
        } else {
            None
        }
    }
}

impl Failure for RuntimeApiError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotCallApi(reason) = self {
            Some(reason)
        } else {
            None
        }
    }
}

impl Failure for StorageError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::CannotFetchValue(reason)
        | Self::CannotIterateValues(reason)
        | Self::StreamFailure(reason) = self
        {
            Some(reason)
        } else {
            None
        }
    }
}

impl Failure for BlocksError {
    fn backend(&self) -> Option<&BackendError> {
        match self {
            Self::CannotGetCurrentBlock(error) => error.backend(),
            Self::CannotGetBlockHeaderStream(reason) | Self::CannotGetBlockHeader(reason) => Some(reason),
            _ => None,
        }
    }
}

impl Failure for ExtrinsicError {
    fn backend(&self) -> Option<&BackendError> {
        if let Self::AccountNonceError {
            reason: subxt::error::AccountNonceError::CouldNotRetrieve(reason),
            ..
        }
        | Self::ErrorSubmittingTransaction(reason)
        | Self::TransactionStatusStreamError(reason) = self
        {
            Some(reason)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_addresses_are_for_this_machine() {
        for (text, secure) in [
            ("ws://127.0.0.1:9944", false),
            ("ws://127.9.9.9", false),
            ("ws://[::1]:9944", false),
            ("ws://localhost:9944", false),
            ("wss://entrypoint-finney.opentensor.ai:443", true),
        ] {
            assert_eq!(check_address(text), Ok(secure), "{text}");
        }
        for text in [
            "",
            "finney",
            "ws://10.0.0.1",
            "ws://localhost.evil.example",
            "http://127.0.0.1",
            "file:///x",
        ] {
            assert!(check_address(text).is_err(), "{text}");
        }
    }
}

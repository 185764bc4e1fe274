//! A connection to the chain that is made by the first call that needs it.

use std::sync::Arc;

use muster_chain::{ChainClient, ChainError, ChainTimeouts};
use muster_process::SharedClock;
use tokio::sync::OnceCell;

/// The chain's endpoints, and the client once one of them has answered. From then on the client reconnects by itself.
#[derive(Debug)]
pub struct ChainLink {
    urls: Vec<String>,
    clock: SharedClock,
    client: OnceCell<Arc<ChainClient>>,
}

impl ChainLink {
    /// The chain at `urls`, the preferred endpoint first. Does not connect yet.
    pub fn new(urls: Vec<String>, clock: SharedClock) -> Arc<Self> {
        Arc::new(Self {
            urls,
            clock,
            client: OnceCell::new(),
        })
    }

    pub(crate) async fn client(&self) -> Result<&Arc<ChainClient>, ChainError> {
        self.client
            .get_or_try_init(|| {
                ChainClient::connect_any(&self.urls, ChainTimeouts::default(), Arc::clone(&self.clock))
            })
            .await
    }
}

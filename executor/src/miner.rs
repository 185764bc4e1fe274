//! The miner as its executor sees it: where to dial, what is said.

use muster_protocol::ExecutorToken;
use muster_protocol::wire::miner::{FromMiner, ToMiner};
use muster_protocol::wire::{WireError, decode, encode};
use muster_rpc::Peer;

/// The other side of the socket. A miner is trusted by its executor, which it started.
#[derive(Debug)]
pub(crate) struct Miner;

impl Peer for Miner {
    type In = ToMiner;
    type Out = FromMiner;
    type Malformed = WireError;

    fn decode(frame: &str) -> Result<ToMiner, WireError> {
        decode(frame)
    }

    fn encode(message: &FromMiner) -> String {
        encode(message)
    }
}

/// Where the lease of a token is taken up.
pub(crate) fn url(miner_address: &str, token: &ExecutorToken) -> String {
    format!(
        "{}/v0.1/executor_interface/{token}",
        miner_address.trim_end_matches('/')
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_may_end_with_a_slash() {
        let uuid = "11111111-2222-4333-8444-555555555555";
        let token: ExecutorToken = format!("{uuid}-{uuid}").parse().unwrap();
        for address in ["ws://h:1", "ws://h:1/"] {
            assert_eq!(
                url(address, &token),
                format!("ws://h:1/v0.1/executor_interface/{uuid}-{uuid}")
            );
        }
    }
}

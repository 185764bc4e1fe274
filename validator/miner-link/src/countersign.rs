//! A receipt that a miner is asked to sign outside its attempt.

use muster_identity::{Verified, verify_countersigned};
use muster_process::SharedClock;
use muster_protocol::receipt::OfferedReceipt;
use muster_protocol::wire::validator_socket::MinerToValidator;
use muster_protocol::{Receipt, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::{ChannelEvent, MinerChannel};

/// Sends a receipt in this frame to the miner of a channel, and waits for its signature. `None` if the miner cannot be
/// reached, which is tried once, or has not signed at `until`.
pub async fn ask_for_signature(
    mut channel: MinerChannel,
    offered: &OfferedReceipt,
    frame: String,
    (clock, until): (&SharedClock, Timestamp),
    stop: CancellationToken,
) -> Option<Verified<Receipt>> {
    channel.dial();
    let signed = loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => break None,
            () = clock.sleep_until(until) => break None,
            event = channel.next() => event,
        };
        match event {
            ChannelEvent::Up => channel.send(frame.clone()).await,
            ChannelEvent::Message(message) => {
                if let MinerToValidator::MusterReceiptCountersigned(signed) = *message
                    && let Ok(signed) = verify_countersigned(signed.receipt, offered, clock.now())
                {
                    break Some(signed);
                }
            }
            ChannelEvent::Down(_) => break None,
            ChannelEvent::Malformed(_) => {}
        }
    };
    channel.close().await;
    signed
}

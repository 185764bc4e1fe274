//! Telling a subscriber something about every new block. It follows by number, so a slow subscriber misses none.

use crate::chain::Block;
use crate::node::Node;
use jsonrpsee::SubscriptionSink;
use jsonrpsee::core::to_json_raw_value;
use muster_devchain_runtime::BlockNumber;
use serde::Serialize;
use std::ops::ControlFlow;

/// Sends one value. Breaks when the subscriber is gone.
pub(super) async fn send(sink: &SubscriptionSink, value: &impl Serialize) -> ControlFlow<()> {
    let Ok(json) = to_json_raw_value(value) else {
        return ControlFlow::Break(());
    };
    match sink.send(json).await {
        Ok(()) => ControlFlow::Continue(()),
        Err(_gone) => ControlFlow::Break(()),
    }
}

/// Sends what `tell` says of each block from number `next` on, until it breaks or the subscriber is gone. What it says with its
/// break is sent too.
pub(super) async fn blocks<T: Serialize>(
    node: &Node,
    sink: &SubscriptionSink,
    mut next: BlockNumber,
    mut tell: impl FnMut(&Block) -> ControlFlow<Vec<T>, Vec<T>>,
) {
    let mut heads = node.heads();
    loop {
        while let Some(block) = node.block_at(next) {
            let (values, last) = match tell(&block) {
                ControlFlow::Continue(values) => (values, false),
                ControlFlow::Break(values) => (values, true),
            };
            for value in &values {
                if send(sink, value).await.is_break() {
                    return;
                }
            }
            if last {
                return;
            }
            next = next.saturating_add(1);
        }
        tokio::select! {
            () = sink.closed() => return,
            changed = heads.wait_for(|head| *head >= next) => if changed.is_err() { return },
        }
    }
}

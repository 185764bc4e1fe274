//! Sends a subscriber something about every new block. It follows by parent, so a slow subscriber misses none, and one
//! whose last block was given up goes on from where the branches parted.

use crate::block::Block;
use crate::node::{Error, Node};
use jsonrpsee::SubscriptionSink;
use jsonrpsee::core::to_json_raw_value;
use muster_devchain_runtime::BlockNumber;
use serde::Serialize;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Which blocks a subscriber follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// All that are sealed.
    All,
    /// Those that were best when they came: of a branch that replaces another, those above its head.
    Best,
    /// Those that are final.
    Final,
}

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

/// The last block of those that are followed.
fn head(node: &Node, which: Which) -> Arc<Block> {
    match which {
        Which::All | Which::Best => node.head(),
        Which::Final => node.finalised(),
    }
}

/// Sends what `tell` returns of the last block and of each that comes, until the subscriber is gone.
pub(super) async fn blocks<T: Serialize>(
    node: &Node,
    sink: &SubscriptionSink,
    which: Which,
    mut tell: impl FnMut(&Block) -> Option<T>,
) {
    let mut changes = node.changes();
    let mut last = head(node, which);
    let mut due = vec![Arc::clone(&last)];
    loop {
        for block in &due {
            if let Some(value) = tell(block)
                && send(sink, &value).await.is_break()
            {
                return;
            }
        }
        due = match after(node, &last, which) {
            Ok(due) => due,
            Err(problem) => {
                tracing::error!(%problem, "a subscription ends: its blocks cannot be read");
                return;
            }
        };
        if let Some(newest) = due.last() {
            last = Arc::clone(newest);
            continue;
        }
        tokio::select! {
            () = sink.closed() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// The most blocks that are looked up at once.
const AT_ONCE: BlockNumber = 64;

/// The blocks that come after one.
fn after(node: &Node, last: &Arc<Block>, which: Which) -> Result<Vec<Arc<Block>>, Error> {
    let mut parted = Arc::clone(last);
    // Back to where the way to the best block leaves the one that was followed.
    while node
        .block_at(parted.header.number)?
        .is_none_or(|block| block.hash != parted.hash)
    {
        match node.block(Some(parted.header.parent_hash))? {
            Some(parent) => parted = parent,
            // Given up so long ago that it is forgotten: everything above the final block is news.
            None => {
                parted = node.finalised();
                break;
            }
        }
    }
    let from = match which {
        Which::All | Which::Final => parted.header.number,
        Which::Best => parted.header.number.max(last.header.number),
    };
    let head = head(node, which).header.number;
    let to = head.min(from.saturating_add(AT_ONCE));
    let numbers = from.saturating_add(1)..=to;
    let mut found = Vec::new();
    for number in numbers {
        // The head may have been reorganised meanwhile; the next look sees it.
        let Some(block) = node.block_at(number)? else {
            break;
        };
        found.push(block);
    }
    Ok(found)
}

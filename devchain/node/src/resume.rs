//! Going on with a chain that is kept: which one it is, whether it is whole, and the states of its last blocks.

use crate::block::{Block, Entry};
use crate::node::{Error, sealed};
use crate::state::State;
use crate::view::View;
use muster_devchain_runtime::{BlockNumber, SPEC_VERSION};
use muster_devchain_store::Store;
use sp_core::H256;
use std::sync::Arc;

/// The note with the version of the runtime that made the chain.
const RUNTIME: &str = "runtime";

/// The blocks in memory: those of the chain that the store holds, or the first one, which the store holds then.
///
/// # Errors
/// When the store holds a chain with another beginning or of another runtime, or is damaged.
pub fn resume(store: &Store, genesis: Entry, states: u32) -> Result<View, Error> {
    let Some((number, hash)) = store.last()? else {
        store.leave_note(RUNTIME, &SPEC_VERSION.to_le_bytes())?;
        store.commit(&[sealed(&genesis)], states)?;
        return Ok(View::new(vec![], forgetful(genesis), states));
    };
    let runtime = store
        .note(RUNTIME)?
        .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    let runtime = runtime.map_or(0, u32::from_le_bytes);
    if runtime != SPEC_VERSION {
        return Err(Error::OtherRuntime {
            expected: SPEC_VERSION,
            found: runtime,
        });
    }
    let first = store.block(0)?.map_or(H256::zero(), |(hash, _)| H256(hash));
    if first != genesis.block.hash {
        return Err(Error::OtherChain {
            expected: genesis.block.hash,
            found: first,
        });
    }
    if number == 0 {
        return Ok(View::new(vec![], forgetful(genesis), states));
    }
    let block = whole(store, number)?;
    let entries = store.state()?;
    let state = State::from_entries(
        entries
            .into_iter()
            .map(|(key, value)| (key, Some(value)))
            .collect(),
    );
    if state.root() != block.header.state_root || block.hash.0 != hash {
        return Err(Error::Damaged(format!(
            "the state is not the one after block {number}"
        )));
    }
    let last = held(block, state);
    let before = earlier(store, &last, states)?;
    tracing::info!(number, hash = ?last.block.hash, states = before.len() + 1, "went on with the chain that was kept");
    Ok(View::new(before, last, states))
}

/// The blocks before the last one whose states can be derived, in their order.
fn earlier(store: &Store, last: &Entry, states: u32) -> Result<Vec<Entry>, Error> {
    let number = last.block.header.number;
    let oldest = number.saturating_sub(states.saturating_sub(1));
    let mut before: Vec<Entry> = Vec::new();
    let mut state = last.state.clone();
    for number in (oldest..number).rev() {
        let Some(undo) = store.undo(number.saturating_add(1))? else {
            break;
        };
        state = state.with(undo);
        before.push(held(whole(store, number)?, state.clone()));
    }
    if let Some(first) = before.last()
        && first.state.root() != first.block.header.state_root
    {
        return Err(Error::Damaged(
            "the states of the last blocks do not follow each other".into(),
        ));
    }
    before.reverse();
    Ok(before)
}

fn held(block: Arc<Block>, state: State) -> Entry {
    Entry {
        block,
        state,
        changes: Vec::new(),
    }
}

/// The store has its changes.
fn forgetful(entry: Entry) -> Entry {
    Entry {
        changes: Vec::new(),
        ..entry
    }
}

fn whole(store: &Store, number: BlockNumber) -> Result<Arc<Block>, Error> {
    kept(store, number)?.ok_or_else(|| Error::Damaged(format!("block {number} is missing")))
}

/// A block that the store keeps.
///
/// # Errors
/// When the store cannot be read, or what it gives is not that block.
pub fn kept(store: &Store, number: BlockNumber) -> Result<Option<Arc<Block>>, Error> {
    let Some((hash, bytes)) = store.block(number)? else {
        return Ok(None);
    };
    let block = Block::decode(H256(hash), &bytes).filter(|block| block.header.number == number);
    let block = block.ok_or_else(|| Error::Damaged(format!("block {number} is not what was sealed")))?;
    Ok(Some(Arc::new(block)))
}

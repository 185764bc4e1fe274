//! How blocks are named in parameters and shown in results.

use super::error;
use crate::block::Block;
use crate::node::Node;
use crate::state::State;
use jsonrpsee::core::RpcResult;
use muster_devchain_runtime::{BlockNumber, Header};
use serde::{Deserialize, Serialize};
use sp_core::{Bytes, H256};
use std::sync::Arc;

/// A block's number: a JSON number or a hexadecimal string.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Number {
    Plain(u64),
    Hex(String),
}

impl Number {
    /// `None` where no block can have this number.
    ///
    /// # Errors
    /// When the string is not a hexadecimal number.
    pub(super) fn value(&self) -> RpcResult<Option<BlockNumber>> {
        let value = match self {
            Self::Plain(value) => *value,
            Self::Hex(text) => {
                let digits = text.strip_prefix("0x").unwrap_or(text);
                u64::from_str_radix(digits, 16).map_err(|cause| {
                    error::params(format!("reading block number {text:?} failed: {cause}"))
                })?
            }
        };
        Ok(BlockNumber::try_from(value).ok())
    }
}

/// One or many.
#[derive(Deserialize, Serialize, Clone)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    Many(Vec<T>),
    One(T),
}

/// A block with its transactions.
#[derive(Serialize, Clone)]
pub(super) struct Body {
    header: Header,
    extrinsics: Vec<Bytes>,
}

/// A block as `chain_getBlock` shows it. Finality is instant and needs no justification.
#[derive(Serialize, Clone)]
pub(super) struct SignedBlock {
    block: Body,
    justifications: Option<()>,
}

impl From<&Block> for SignedBlock {
    fn from(block: &Block) -> Self {
        let extrinsics = block.body.iter().cloned().map(Bytes).collect();
        Self {
            block: Body {
                header: block.header.clone(),
                extrinsics,
            },
            justifications: None,
        }
    }
}

/// The named block or the best one, with the state after it.
///
/// # Errors
/// When there is no such block or its state is no longer kept.
pub(super) fn find(node: &Node, hash: Option<H256>) -> RpcResult<(Arc<Block>, State)> {
    node.state(hash).map_err(|missing| error::missing(&missing, hash))
}

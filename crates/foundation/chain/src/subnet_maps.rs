//! The chain's maps with an entry for each hotkey of a subnet.

use std::collections::BTreeMap;

use muster_protocol::{Hotkey, Netuid};
use subxt::dynamic::{self, Value};

use crate::answer_decoding::AnswerValue;
use crate::endpoint_pool::{ChainHead, Endpoint};
use crate::error::ChainError;

/// A map of the chain whose keys are a subnet and a hotkey.
#[derive(Clone, Copy)]
pub(crate) struct SubnetMap {
    /// The words for reading it, in errors.
    pub(crate) doing: &'static str,
    /// The pallet that has it.
    pub(crate) pallet: &'static str,
    /// Its name there.
    pub(crate) entry: &'static str,
}

impl SubnetMap {
    /// The entries of one subnet that `decode` understands. A chain without the map has none.
    pub(crate) async fn read_at<T>(
        self,
        endpoint: &Endpoint,
        head: &ChainHead,
        netuid: Netuid,
        decode: impl Fn(&Value) -> Option<T>,
    ) -> Result<BTreeMap<Hotkey, T>, ChainError> {
        let mut found = BTreeMap::new();
        if !head.has_entry(self.pallet, self.entry) {
            return Ok(found);
        }
        let address = dynamic::storage::<Vec<Value>, AnswerValue>(self.pallet, self.entry);
        let prefix = vec![Value::u128(netuid.0.into())];
        let storage = head.at.storage();
        let reading = storage.iter(address, prefix);
        let mut entries = endpoint.read(head, self.doing, reading).await?;
        loop {
            let next = async { entries.next().await.transpose() };
            let Some(entry) = endpoint.read(head, self.doing, next).await? else {
                return Ok(found);
            };
            let key = entry.key().ok();
            let hotkey = key.and_then(|key| key.part(1)?.decode_as::<[u8; 32]>().ok().flatten());
            let Ok(AnswerValue(value)) = entry.value().decode() else {
                continue;
            };
            if let (Some(hotkey), Some(decoded)) = (hotkey, decode(&value)) {
                found.insert(Hotkey::from_bytes(hotkey), decoded);
            }
        }
    }
}

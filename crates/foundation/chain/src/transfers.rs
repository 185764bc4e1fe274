//! The transfers of one account in finalised blocks.

use muster_protocol::{BlockNumber, Hotkey, Rao};
use subxt::ext::scale_value::Composite;

use crate::chain_reader::ChainClient;
use crate::endpoint_pool::ChainHead;
use crate::error::ChainError;
use crate::scale_value::{account, number};

const DOING: &str = "read the transfers of a block";

/// A transfer that is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountTransfer {
    /// The account that paid.
    pub from: Hotkey,
    /// The account that was paid.
    pub to: Hotkey,
    /// The amount that the receiver got.
    pub amount: Rao,
}

/// Blocks whose transfers are read and stored together, so that a long reading goes on where it was interrupted.
pub const TRANSFER_BLOCKS_AT_ONCE: u64 = 64;

/// The last block of the next piece of a reading that has come to block `read`, towards `last`; `None` at its end.
pub fn next_transfer_piece(read: BlockNumber, last: BlockNumber) -> Option<BlockNumber> {
    let piece = read.0.saturating_add(TRANSFER_BLOCKS_AT_ONCE);
    (read < last).then(|| BlockNumber(piece.min(last.0)))
}

impl ChainClient {
    /// The transfers to or from an account in the blocks after `after` up to and including `through`, in their order,
    /// each with its block.
    ///
    /// # Errors
    /// As [`Self::transfers_in`]: the transfers of all these blocks are known, or none.
    pub async fn transfers_after(
        &self,
        after: BlockNumber,
        through: BlockNumber,
        of: &Hotkey,
    ) -> Result<Vec<(BlockNumber, AccountTransfer)>, ChainError> {
        let mut found = Vec::new();
        for number in after.0.saturating_add(1)..=through.0 {
            let block = BlockNumber(number);
            let transfers = self.transfers_in(block, of).await?;
            found.extend(transfers.into_iter().map(|transfer| (block, transfer)));
        }
        Ok(found)
    }

    /// The transfers to or from an account in a finalised block, in the block's order.
    ///
    /// # Errors
    /// No endpoint answers, the block is not final, or its endpoint has forgotten it. A transfer that cannot be read is
    /// an error, too: none is left out.
    pub async fn transfers_in(
        &self,
        block: BlockNumber,
        of: &Hotkey,
    ) -> Result<Vec<AccountTransfer>, ChainError> {
        self.endpoint
            .ask(DOING, |head| self.transfers_at(head, block, of))
            .await
    }

    async fn transfers_at(
        &self,
        head: ChainHead,
        block: BlockNumber,
        of: &Hotkey,
    ) -> Result<Vec<AccountTransfer>, ChainError> {
        let last = head.at.block_number();
        if block.0 > last {
            return Err(not_understood(format!(
                "block {block} is not final, the last is {last}"
            )));
        }
        let at = self
            .endpoint
            .read(&head, DOING, head.link.api.at_block(block.0))
            .await?;
        let events = at.events();
        let events = self.endpoint.read(&head, DOING, events.fetch()).await?;
        let mut found = Vec::new();
        for event in events.iter() {
            let event = event.map_err(|error| not_understood(error.to_string()))?;
            if (event.pallet_name(), event.event_name()) != ("Balances", "Transfer") {
                continue;
            }
            let fields = event.decode_fields_unchecked_as::<Composite<()>>();
            let fields = fields.map_err(|error| not_understood(error.to_string()))?;
            let transfer = read_transfer(&fields);
            let transfer = transfer
                .ok_or_else(|| not_understood("the event of a transfer has another layout".to_owned()))?;
            if transfer.from == *of || transfer.to == *of {
                found.push(transfer);
            }
        }
        Ok(found)
    }
}

fn read_transfer(fields: &Composite<()>) -> Option<AccountTransfer> {
    let Composite::Named(fields) = fields else {
        return None;
    };
    let field = |name: &str| {
        let found = fields.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value)
    };
    Some(AccountTransfer {
        from: account(field("from")?)?,
        to: account(field("to")?)?,
        amount: Rao(number(field("amount")?)?),
    })
}

fn not_understood(what: String) -> ChainError {
    ChainError::Answer { doing: DOING, what }
}

#[cfg(test)]
mod tests {
    use subxt::dynamic::Value;

    use super::*;

    #[test]
    fn a_reading_goes_on_in_pieces_and_reads_every_block_once() {
        let at = BlockNumber;
        assert_eq!(next_transfer_piece(at(10), at(10)), None);
        assert_eq!(next_transfer_piece(at(11), at(10)), None);
        let (mut read, mut pieces) = (at(10), Vec::new());
        while let Some(through) = next_transfer_piece(read, at(150)) {
            pieces.push(through.0);
            read = through;
        }
        assert_eq!(pieces, [74, 138, 150]);
    }

    #[test]
    fn a_transfer_is_read_by_the_names_of_its_fields() {
        let key = |seed| Value::unnamed_composite([Value::from_bytes([seed; 32])]);
        let fields =
            |amount| Composite::named([("to", key(2)), ("from", key(1)), ("amount", Value::u128(amount))]);
        let expected = AccountTransfer {
            from: Hotkey::from_bytes([1; 32]),
            to: Hotkey::from_bytes([2; 32]),
            amount: Rao(5),
        };
        assert_eq!(read_transfer(&fields(5)), Some(expected));
        assert_eq!(read_transfer(&fields(u128::MAX)), None);
        assert_eq!(read_transfer(&Composite::named([("from", key(1))])), None);
    }
}

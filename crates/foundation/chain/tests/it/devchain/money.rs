//! Calls that move money: transfers with their fee, registrations with a limit.

use muster_chain::{AccountTransfer, BlockNumber, CallRejection, ChainError, EvmAssociation, Rao, Uid};
use muster_identity::Keypair;

use super::{CLOSED, OPEN, Test, assert_refused, key, spec};
use crate::support::{Devchain, TAO};

const LIMIT: Rao = Rao(50 * TAO);

#[tokio::test]
async fn a_hotkey_is_registered_for_its_price() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let (eve, new) = (key("Eve"), key("Eve//hot").hotkey());
    let (before, price) = (
        client.balance(&eve.hotkey()).await?,
        client.registration_price(OPEN).await?,
    );
    let dear = client.burned_register(&eve, OPEN, &new, Rao(price.0 - 1)).await;
    assert!(matches!(dear, Err(ChainError::TooDear { .. })), "{dear:?}");
    assert_eq!(client.balance(&eve.hotkey()).await?, before, "nothing was paid");

    let registered = client.burned_register(&eve, OPEN, &new, price).await?;
    assert_eq!(registered.price, price);
    assert_eq!(client.uid_of(OPEN, &new).await?, Uid(4));
    let graph = client.metagraph(OPEN).await?;
    let neuron = graph.find(&new).unwrap();
    assert_eq!(
        (neuron.coldkey, neuron.registered),
        (eve.hotkey(), registered.block)
    );
    let after = client.balance(&eve.hotkey()).await?;
    assert_eq!(Some(after), before.checked_sub(Rao(price.0 + registered.fee.0)));

    assert_refused(
        client.burned_register(&eve, OPEN, &new, LIMIT).await,
        &CallRejection::AlreadyRegistered,
        None,
    );
    assert_refused(
        client.burned_register(&eve, CLOSED, &new, LIMIT).await,
        &CallRejection::RegistrationClosed,
        None,
    );
    let poor = key("Ferdie//hot").hotkey();
    let poor = client.burned_register(&key("Ferdie"), OPEN, &poor, LIMIT).await;
    assert_refused(poor, &CallRejection::BalanceTooLow, None);
    Ok(())
}

#[tokio::test]
async fn a_transfer_is_final_and_says_its_fee() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let (alice, bob) = (key("Alice"), key("Bob//purse").hotkey());
    let (had, amount) = (client.balance(&alice.hotkey()).await?, Rao(3 * TAO + 7));
    let moved = client.transfer(&alice, &bob, amount).await?;
    assert_eq!(moved.amount, amount);
    assert!(client.head().await? >= moved.block);
    assert_eq!(client.balance(&bob).await?, amount);
    let left = had.checked_sub(amount).unwrap().checked_sub(moved.fee).unwrap();
    assert_eq!(client.balance(&alice.hotkey()).await?, left);
    assert!(moved.fee.0 > 0, "transfers are not free on this chain: {moved:?}");

    let all = client.transfer(&alice, &bob, left).await;
    assert!(
        matches!(all, Err(ChainError::Refused { .. })),
        "the account must stay alive: {all:?}"
    );
    let poor = client.transfer(&key("Nobody"), &bob, Rao(1)).await;
    assert!(matches!(poor, Err(ChainError::Refused { .. })), "{poor:?}");
    Ok(())
}

#[tokio::test]
async fn the_transfers_of_an_account_are_read_block_by_block() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let (alice, eve, purse) = (key("Alice"), key("Eve"), key("Bob//purse").hotkey());
    let first = client.transfer(&alice, &purse, Rao(TAO)).await?;
    let second = client.transfer(&eve, &alice.hotkey(), Rao(7)).await?;
    let transfer = |from: &Keypair, to, amount| AccountTransfer {
        from: from.hotkey(),
        to,
        amount: Rao(amount),
    };
    let of_alice = client.transfers_in(first.block, &alice.hotkey()).await?;
    assert_eq!(of_alice, [transfer(&alice, purse, TAO)]);
    assert_eq!(client.transfers_in(first.block, &purse).await?, of_alice);
    assert_eq!(client.transfers_in(first.block, &eve.hotkey()).await?, []);
    let of_alice = client.transfers_in(second.block, &alice.hotkey()).await?;
    assert_eq!(of_alice, [transfer(&eve, alice.hotkey(), 7)]);
    // Several blocks at once: every transfer with its block, in order, and nothing of the block before them.
    let (before, of) = (BlockNumber(first.block.0 - 1), alice.hotkey());
    let both = client.transfers_after(before, second.block, &of).await?;
    let sums: Vec<_> = both
        .iter()
        .map(|(block, transfer)| (*block, transfer.amount))
        .collect();
    assert_eq!(sums, [(first.block, Rao(TAO)), (second.block, Rao(7))]);
    let later = client
        .transfers_after(first.block, second.block, &alice.hotkey())
        .await?;
    assert_eq!(later.len(), 1);
    let ahead = BlockNumber(client.head().await?.0 + 1_000);
    assert!(
        client.transfers_in(ahead, &purse).await.is_err(),
        "that block is not final"
    );
    Ok(())
}

#[tokio::test]
async fn the_evm_keys_of_hotkeys_are_associated_and_read() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    assert!(client.evm_associations(OPEN).await?.is_empty());
    // The key 0x46…46, its address, and its signature for Bob and block 6, made with eth-account 0.14.0.
    let address = hex::decode("9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f")?;
    let address: [u8; 20] = address.try_into().map_err(|_| anyhow::anyhow!("20 bytes"))?;
    let signature = hex::decode(
        "fda8748f265d819235aa1a2a24ab0ba17319cee4f1f2c8084d5f48b516addc81\
         0350f2eceb2723563538507a6ac59331e4e67c7b0dd8d996d5d82fc115380ebb1b",
    )?;
    let signature: [u8; 65] = signature.try_into().map_err(|_| anyhow::anyhow!("65 bytes"))?;
    let at = BlockNumber(6);
    let stranger = client
        .associate_evm_key(&key("Charlie"), OPEN, address, at, signature)
        .await;
    assert!(
        matches!(stranger, Err(ChainError::Refused { .. })),
        "{stranger:?}"
    );
    let block = client
        .associate_evm_key(&key("Bob"), OPEN, address, at, signature)
        .await?;
    let expected = [(Uid(1), EvmAssociation { address, block })];
    assert_eq!(client.evm_associations(OPEN).await?, expected.into());
    assert!(client.evm_associations(CLOSED).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn stake_is_read() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    assert!(client.stake(OPEN, &key("Alice").hotkey()).await? >= Rao(1000 * TAO));
    assert_eq!(client.stake(OPEN, &key("Eve").hotkey()).await?, Rao(0));
    Ok(())
}

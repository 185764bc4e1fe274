//! Calls that move money: transfers with their fee, registrations with a limit.

use muster_chain::{CallRejection, ChainError, Rao, Uid};

use super::support::{Devchain, TAO};
use super::{CLOSED, OPEN, Test, assert_refused, key, spec};

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
async fn stake_is_read() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    assert!(client.stake(OPEN, &key("Alice").hotkey()).await? >= Rao(1000 * TAO));
    assert_eq!(client.stake(OPEN, &key("Eve").hotkey()).await?, Rao(0));
    Ok(())
}

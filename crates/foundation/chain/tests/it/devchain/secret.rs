//! Weights that are committed first: salted and timelocked, on a chain that keeps them secret until their epoch.

use std::sync::Arc;

use muster_chain::timelock::{WeightsPayload, seal};
use muster_chain::weights_commit::{CommitLoss, CommitStatus, OnChainWeights, Revealer, assess_commit};
use muster_chain::{CallRejection, ChainClient, ChainError, PendingReveal, Uid, WeightsCall, WeightsMethod};
use serde_json::json;

use super::{COMMITTED, Test, assert_refused, key, spec};
use crate::support::Devchain;

const SALT: [u16; 8] = [3, 1, 4, 1, 5, 9, 2, 6];
const WEIGHTS: [(Uid, u16); 2] = [(Uid(1), 65535), (Uid(2), 21845)];

async fn shown(client: &Arc<ChainClient>) -> Result<OnChainWeights, ChainError> {
    client
        .read_onchain_weights(COMMITTED, &key("Alice").hotkey())
        .await
}

/// Follows the chain until a commit's status is no longer to wait.
async fn waited(client: &Arc<ChainClient>, pending: &PendingReveal) -> anyhow::Result<CommitStatus> {
    let hash = pending.hash(&key("Alice").hotkey(), COMMITTED);
    let mut blocks = client.blocks().await?;
    let waited = async {
        loop {
            blocks.next().await?;
            match assess_commit(pending, hash, &shown(client).await?) {
                CommitStatus::Wait => {}
                end @ (CommitStatus::Reveal | CommitStatus::Revealed | CommitStatus::Lost(_)) => {
                    return Ok::<_, ChainError>(end);
                }
            }
        }
    };
    Ok(muster_testbed::within("the epoch of the reveal", waited).await?)
}

#[tokio::test]
async fn a_salted_commit_is_revealed_in_its_epoch() -> Test {
    let mut quick = spec();
    quick["subnets"][2]["tempo"] = json!(20);
    let chain = Devchain::start(&quick).await?;
    let client = chain.client().await?;
    let alice = key("Alice");
    let mut pending = PendingReveal {
        by: Revealer::Us { salt: SALT },
        weights: WEIGHTS.iter().map(|(uid, weight)| (uid.0, *weight)).collect(),
        version_key: 0,
        committed: None,
    };
    let hash = pending.hash(&alice.hotkey(), COMMITTED).unwrap();
    let commit = WeightsCall::Commit { hash };
    // A signature that would be valid for longer than the caller allows is not made.
    let (head, _) = client.head_hash().await?;
    let brief = Some(muster_protocol::BlockNumber(head.0 + 31));
    let late = client.submit_weights(&alice, COMMITTED, &commit, brief).await;
    let is_late = matches!(
        &late,
        Err(ChainError::Refused {
            refusal: CallRejection::TooLate,
            ..
        })
    );
    assert!(is_late, "{late:?}");
    let long = Some(muster_protocol::BlockNumber(head.0 + 1_000));
    pending.committed = Some(client.submit_weights(&alice, COMMITTED, &commit, long).await?);
    assert!(
        shown(&client)
            .await?
            .commits
            .iter()
            .any(|commit| commit.hash == hash)
    );

    // The stored commit is all that is needed: a new client continues with it.
    let stored = serde_json::to_string(&pending)?;
    drop(client);
    let client = chain.client().await?;
    let pending: PendingReveal = serde_json::from_str(&stored)?;
    let reveal = |salt| WeightsCall::Reveal {
        weights: WEIGHTS.to_vec(),
        salt,
        version_key: 0,
    };
    let wrong = client
        .submit_weights(&alice, COMMITTED, &reveal([0; 8]), None)
        .await;
    assert!(matches!(wrong, Err(ChainError::Refused { .. })), "{wrong:?}");

    assert_eq!(waited(&client, &pending).await?, CommitStatus::Reveal);
    client
        .submit_weights(&alice, COMMITTED, &reveal(SALT), None)
        .await?;
    assert_eq!(client.weights_of(COMMITTED, Uid(0)).await?, pending.weights);
    let seen = shown(&client).await?;
    assert_eq!(assess_commit(&pending, Some(hash), &seen), CommitStatus::Revealed);
    let again = client
        .submit_weights(&alice, COMMITTED, &reveal(SALT), None)
        .await;
    assert!(matches!(again, Err(ChainError::Refused { .. })), "{again:?}");
    Ok(())
}

#[tokio::test]
async fn plain_weights_are_refused_where_they_must_be_committed() -> Test {
    let chain = Devchain::start(&spec()).await?;
    let client = chain.client().await?;
    let plain = client.set_weights(&key("Alice"), COMMITTED, &WEIGHTS, 0).await;
    assert_refused(
        plain,
        &CallRejection::CommitRevealEnabled,
        Some(muster_protocol::ErrorCode::WeightsNotSet),
    );
    assert!(client.weight_rules(COMMITTED).await?.method() != WeightsMethod::Plain);
    assert_eq!(
        client.weight_rules(super::OPEN).await?.method(),
        WeightsMethod::Plain
    );
    Ok(())
}

#[tokio::test]
async fn timelocked_weights_are_opened_by_the_chain() -> Test {
    let mut quick = spec();
    quick["subnets"][2]["tempo"] = json!(200);
    let chain = Devchain::start(&quick).await?;
    let client = chain.client().await?;
    let alice = key("Alice");
    let mut blocks = client.blocks().await?;
    // The pace of blocks is measured over the last twenty, and the first of a busy machine are slow.
    while blocks.next().await?.0 < 40 {}
    let row: Vec<(u16, u16)> = WEIGHTS.iter().map(|(uid, weight)| (uid.0, *weight)).collect();
    // On a busy machine blocks may come much faster after the commit than before it, so that the epoch is over before
    // its round is out. That is reported, and the next commit succeeds.
    for seed in 1..=5 {
        let rules = client.weight_rules(COMMITTED).await?;
        assert_eq!(rules.method(), WeightsMethod::Timelocked, "{rules:?}");
        let (Some(round), Some(beacon)) = (rules.round(), &rules.beacon) else {
            panic!("{rules:?}");
        };
        let payload = WeightsPayload {
            hotkey: alice.hotkey(),
            weights: WEIGHTS.to_vec(),
            version_key: 0,
        };
        let ciphertext = seal(beacon, round, &payload.encode(), [seed; 32])?;
        let commit = WeightsCall::CommitTimelocked { ciphertext, round };
        let committed = client.submit_weights(&alice, COMMITTED, &commit, None).await?;
        assert_eq!(client.weights_of(COMMITTED, Uid(0)).await?, []);
        let pending = PendingReveal {
            by: Revealer::Chain { round },
            weights: row.clone(),
            version_key: 0,
            committed: Some(committed),
        };
        match waited(&client, &pending).await? {
            CommitStatus::Revealed => {
                assert_eq!(client.weights_of(COMMITTED, Uid(0)).await?, row);
                return Ok(());
            }
            lost @ (CommitStatus::Wait | CommitStatus::Reveal | CommitStatus::Lost(_)) => {
                assert_eq!(lost, CommitStatus::Lost(CommitLoss::Unopened));
            }
        }
    }
    panic!("five commits, and the chain opened none of them");
}

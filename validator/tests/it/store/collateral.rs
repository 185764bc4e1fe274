//! The book of the collateral account, and slashes.

use muster_chain::BlockNumber;
use muster_protocol::{Digest, Hotkey, MinerKey, Rao};
use muster_validator::store::{BookedTransfers, SlashState, StoredBalance, StoredSlash};

use super::{NOW, each};

fn coldkey(seed: u8) -> Hotkey {
    Hotkey::from_bytes([seed; 32])
}

fn transfers(seed: u8, deposited: u64, returned: u64, paid: u64) -> BookedTransfers {
    let balance = StoredBalance {
        deposited: Rao(deposited),
        returned: Rao(returned),
    };
    BookedTransfers {
        accounts: [(coldkey(seed), balance)].into(),
        slashes_paid: Rao(paid),
    }
}

fn slash(seed: u8, amount: u64) -> StoredSlash {
    StoredSlash {
        evidence: Digest::of(&[seed]),
        miner: MinerKey(coldkey(9)),
        source: "ledger".to_owned(),
        account: coldkey(1).to_string(),
        amount: Rao(amount),
        md5: "900150983cd24fb0d6963f7d28e17f72".to_owned(),
        url: String::new(),
        plan: format!("plan {amount}"),
        state: SlashState::Planned,
        reference: String::new(),
        created_at: NOW(i64::from(seed)),
        ended_at: None,
    }
}

#[tokio::test]
async fn blocks_are_booked_once_and_in_order_on_each_chain() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        assert_eq!(store.collateral_book().await.unwrap(), None);
        let first = transfers(1, 100, 0, 0);
        assert!(store.book_collateral(None, BlockNumber(5), &first).await.unwrap());
        // The same blocks again, and blocks behind a gap.
        assert!(!store.book_collateral(None, BlockNumber(5), &first).await.unwrap());
        let gap = store.book_collateral(Some(BlockNumber(6)), BlockNumber(7), &first);
        assert!(!gap.await.unwrap());
        let second = transfers(1, 20, 30, 7);
        let after = Some(BlockNumber(5));
        assert!(
            store
                .book_collateral(after, BlockNumber(8), &second)
                .await
                .unwrap()
        );
        assert!(
            !store
                .book_collateral(after, BlockNumber(8), &second)
                .await
                .unwrap()
        );
        store.note_collateral_transfer(BlockNumber(77)).await.unwrap();

        let book = store.collateral_book().await.unwrap().unwrap();
        assert_eq!(
            (book.booked, book.transfer_until),
            (BlockNumber(8), BlockNumber(77))
        );
        assert_eq!(book.slashes_paid, Rao(7));
        let balance = StoredBalance {
            deposited: Rao(120),
            returned: Rao(30),
        };
        assert_eq!(
            store.collateral_balances().await.unwrap(),
            [(coldkey(1), balance)].into()
        );

        store.note_chain("0xb", BlockNumber(1), NOW(2)).await.unwrap();
        assert_eq!(store.collateral_book().await.unwrap(), None);
        assert!(store.collateral_balances().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_slash_is_stored_once_for_a_miner_and_its_evidence() {
    for (_test, store) in each().await {
        store.note_chain("0xa", BlockNumber(9), NOW(1)).await.unwrap();
        let (one, two) = (slash(1, 5), slash(2, 8));
        assert!(store.plan_slash(&one).await.unwrap());
        assert!(store.plan_slash(&two).await.unwrap());
        assert!(!store.plan_slash(&slash(1, 6)).await.unwrap());
        assert_eq!(
            store.slash_of(one.evidence, one.miner).await.unwrap(),
            Some(one.clone())
        );
        let sums = || store.slashed_amounts("ledger");
        assert_eq!(sums().await.unwrap(), [(one.account.clone(), Rao(13))].into());
        assert!(store.slashed_amounts("evm").await.unwrap().is_empty());

        // A failed one takes nothing, and may be planned anew.
        let (failed, done) = (SlashState::Failed, SlashState::Done);
        store
            .end_slash(one.evidence, one.miner, failed, "reverted", NOW(7))
            .await
            .unwrap();
        assert_eq!(sums().await.unwrap(), [(one.account.clone(), Rao(8))].into());
        let again = slash(1, 6);
        assert!(store.plan_slash(&again).await.unwrap());
        assert_eq!(
            store.slash_of(one.evidence, one.miner).await.unwrap(),
            Some(again)
        );
        store
            .end_slash(one.evidence, one.miner, done, "0x12", NOW(8))
            .await
            .unwrap();
        // An end is final.
        store
            .end_slash(one.evidence, one.miner, failed, "late", NOW(9))
            .await
            .unwrap();
        let ended = store.slash_of(one.evidence, one.miner).await.unwrap().unwrap();
        assert_eq!((ended.state, ended.reference.as_str()), (done, "0x12"));
        assert_eq!(ended.ended_at, Some(NOW(8)));
        let listed = store.slashes(1).await.unwrap();
        assert_eq!(listed, [two], "the newest first");
        assert!(!store.plan_slash(&slash(1, 6)).await.unwrap());
    }
}

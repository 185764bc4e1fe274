//! The pool's rules: what replaces what, what comes again, how much there is room for, and that no bytes bring it down.

use crate::support::{Chain, Client, next, options, weights};
use muster_devchain::node::Options;
use muster_devchain::pool;
use muster_devchain::server::Limits;
use muster_devchain::spec::Spec;
use muster_devchain_runtime::RuntimeCall;
use serde_json::{Value, json};
use sp_core::{Bytes, H256};
use sp_keyring::Sr25519Keyring::{self, Alice, Bob, Charlie};

const SUBMIT: &str = "author_submitExtrinsic";
const WATCH: &str = "author_submitAndWatchExtrinsic";
const UNWATCH: &str = "author_unwatchExtrinsic";

fn remark(byte: u8, length: usize) -> RuntimeCall {
    RuntimeCall::System(frame_system::Call::remark {
        remark: vec![byte; length],
    })
}

async fn refused(client: &Client, transaction: &Bytes) -> (i32, String) {
    let error = client
        .call::<Value>(SUBMIT, json!([transaction]))
        .await
        .unwrap_err();
    let data = error.data().map(|data| data.get().to_owned()).unwrap_or_default();
    (error.code(), format!("{} {data}", error.message()))
}

async fn limited(count: usize, bytes: usize) -> Chain {
    let options = Options {
        pool: pool::Limits { count, bytes },
        ..options()
    };
    Chain::start_limited(Spec::development().unwrap(), options, Limits::default()).await
}

#[tokio::test]
async fn a_larger_tip_replaces_and_a_smaller_does_not() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let first = chain.sign_with_tip(Alice, 0, remark(1, 1), 10);
    let mut watch = client.subscribe(WATCH, json!([first]), UNWATCH).await.unwrap();
    assert_eq!(next(&mut watch).await, json!("ready"));
    for tip in [10, 3] {
        let (code, said) = refused(&client, &chain.sign_with_tip(Alice, 0, remark(2, 1), tip)).await;
        assert_eq!(code, 1014, "{said}");
        assert!(
            said.starts_with("Priority is too low: (") && said.contains("already in the pool"),
            "{said}"
        );
    }
    let second = chain.sign_with_tip(Alice, 0, remark(2, 1), 1_000);
    let hash: H256 = client.call(SUBMIT, json!([second])).await.unwrap();
    assert_eq!(next(&mut watch).await, json!({ "usurped": hash }));
    let block = client.seal(1).await;
    let body: Value = client.call("chain_getBlock", json!([block])).await.unwrap();
    assert_eq!(
        body["block"]["extrinsics"].as_array().unwrap()[1..],
        [json!(second)]
    );
}

#[tokio::test]
async fn a_transaction_of_a_block_is_banned_for_a_while() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let transaction = chain.sign(Alice, 0, weights());
    client.call::<H256>(SUBMIT, json!([transaction])).await.unwrap();
    assert_eq!(refused(&client, &transaction).await.0, 1013);
    client.seal(1).await;
    let (code, said) = refused(&client, &transaction).await;
    assert_eq!((code, said.trim()), (1012, "Transaction is temporarily banned"));
    // Another with the same nonce is merely late.
    let (code, said) = refused(&client, &chain.sign(Alice, 0, remark(1, 1))).await;
    assert!(code == 1010 && said.contains("outdated"), "{said}");
    client
        .call::<Value>("dev_advance", json!([pool::BAN_MS]))
        .await
        .unwrap();
    client.seal(1).await;
    let (code, said) = refused(&client, &transaction).await;
    assert!(code == 1010 && said.contains("outdated"), "{said}");
}

#[tokio::test]
async fn a_future_nonce_waits_for_the_ones_before() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let mut late = client
        .subscribe(WATCH, json!([chain.sign(Alice, 1, weights())]), UNWATCH)
        .await
        .unwrap();
    assert_eq!(next(&mut late).await, json!("future"));
    let next_index = async || {
        let account = Alice.to_account_id().to_string();
        client
            .call::<u32>("system_accountNextIndex", json!([account]))
            .await
            .unwrap()
    };
    assert_eq!(next_index().await, 0, "a gap is not skipped");
    client.seal(1).await;
    client
        .call::<H256>(SUBMIT, json!([chain.sign(Alice, 0, weights())]))
        .await
        .unwrap();
    assert_eq!(next(&mut late).await, json!("ready"));
    assert_eq!(next_index().await, 2);
    let block = client.seal(1).await;
    assert_eq!(next(&mut late).await, json!({ "inBlock": block }));
    assert_eq!(next_index().await, 2);
}

#[tokio::test]
async fn a_full_pool_keeps_what_is_most_urgent() {
    let chain = limited(3, 1 << 20).await;
    let client = chain.client().await;
    let keys = [Alice, Bob, Charlie, Sr25519Keyring::Dave];
    let mut watch = None;
    for (key, tip) in keys.into_iter().zip([50, 5, 40]) {
        let transaction = chain.sign_with_tip(key, 0, remark(1, 1), tip);
        let told = client
            .subscribe(WATCH, json!([transaction]), UNWATCH)
            .await
            .unwrap();
        if tip == 5 {
            watch = Some(told);
        }
    }
    let mut watch = watch.unwrap();
    assert_eq!(next(&mut watch).await, json!("ready"));
    let (code, said) = refused(&client, &chain.sign_with_tip(keys[3], 0, remark(1, 1), 1)).await;
    assert!(code == 1016 && said.contains("Immediately Dropped"), "{said}");
    let better = chain.sign_with_tip(keys[3], 0, remark(1, 1), 30);
    client.call::<H256>(SUBMIT, json!([better])).await.unwrap();
    assert_eq!(next(&mut watch).await, json!("dropped"));
    let pending: Vec<Bytes> = client.call("author_pendingExtrinsics", json!([])).await.unwrap();
    assert_eq!(pending.len(), 3);
    assert_eq!(pending[2], better, "the largest tip comes first");
}

#[tokio::test]
async fn the_pool_has_room_for_so_many_bytes() {
    let chain = limited(100, 10_000).await;
    let client = chain.client().await;
    let large = chain.sign(Alice, 0, remark(1, 9_000));
    client.call::<H256>(SUBMIT, json!([large])).await.unwrap();
    let another = chain.sign(Bob, 0, remark(1, 9_000));
    assert_eq!(refused(&client, &another).await.0, 1016);
    // A tenth of it is for those that wait for others.
    let waits = chain.sign(Charlie, 5, remark(1, 2_000));
    assert_eq!(refused(&client, &waits).await.0, 1016);
    client.seal(1).await;
    client.call::<H256>(SUBMIT, json!([another])).await.unwrap();
}

#[tokio::test]
async fn a_transaction_larger_than_a_block_is_refused() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let (code, said) = refused(&client, &chain.sign(Alice, 0, remark(1, 5_000_000))).await;
    assert!(
        code == 1010 && said.contains("exhaust the block limits"),
        "{code} {said}"
    );
}

#[tokio::test]
async fn transactions_that_exceed_a_block_wait_for_the_next() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    for key in [Alice, Bob] {
        let transaction = chain.sign(key, 0, remark(1, 3_000_000));
        client.call::<H256>(SUBMIT, json!([transaction])).await.unwrap();
    }
    for _ in 0..2 {
        let block = client.seal(1).await;
        let body: Value = client.call("chain_getBlock", json!([block])).await.unwrap();
        assert_eq!(
            body["block"]["extrinsics"].as_array().unwrap().len(),
            2,
            "the timestamp and one"
        );
    }
}

/// The same numbers in every run.
fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    usize::try_from(*seed >> 33).unwrap()
}

/// Submissions with random bytes.
const ROUNDS: usize = 2_000;

#[tokio::test]
async fn no_bytes_bring_the_node_down() {
    let chain = Chain::start().await;
    let client = chain.client().await;
    let (mut seed, mut refusals) = (42, 0);
    for round in 0..ROUNDS {
        let mut raw = if round % 2 == 0 {
            chain.sign(Alice, 0, weights()).0
        } else {
            vec![0; random(&mut seed) % 300]
        };
        for _ in 0..=random(&mut seed) % 8 {
            match (random(&mut seed) % 4, raw.len()) {
                (0, length) if length > 0 => raw.truncate(random(&mut seed) % length),
                (1, _) => raw.push(u8::try_from(random(&mut seed) % 256).unwrap()),
                (2, length) if length > 0 => {
                    let at = random(&mut seed) % length;
                    raw[at] = u8::try_from(random(&mut seed) % 256).unwrap();
                }
                // A length that promises more than there is.
                _ => raw.insert(0, 0xfe),
            }
        }
        if let Err(error) = client.call::<Value>(SUBMIT, json!([Bytes(raw)])).await {
            refusals += 1;
            let known = [1002, 1010, 1011, 1012, 1013, 1014, 1016];
            assert!(known.contains(&error.code()), "{error}");
        }
    }
    assert!(refusals > ROUNDS / 4 * 3, "{refusals}");
    // Runtime calls with such arguments, too.
    for round in 0..200 {
        let argument = vec![u8::try_from(random(&mut seed) % 256).unwrap(); random(&mut seed) % 64];
        let apis = [
            "SubnetInfoRuntimeApi_get_metagraph",
            "SubnetInfoRuntimeApi_get_selective_metagraph",
            "TaggedTransactionQueue_validate_transaction",
            "TransactionPaymentApi_query_info",
            "Core_execute_block",
            "BlockBuilder_apply_extrinsic",
        ];
        let params = json!([apis[round % apis.len()], Bytes(argument)]);
        if let Err(error) = client.call::<Value>("state_call", params).await {
            assert_eq!(error.code(), 4003, "{error}");
        }
    }
    client.seal(1).await;
    client.call::<Value>("system_health", json!([])).await.unwrap();
}

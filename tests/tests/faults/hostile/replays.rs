//! Requests without a signature, and a login that is sent twice.

use muster_identity::{Keypair, sign_login};
use muster_protocol::MinerKey;
use muster_protocol::account_api::{LoginNonce, LoginRequest};
use muster_testbed::wait_for;
use muster_tests::{Layout, Parts, Role};
use tokio::runtime::Runtime;

use super::miners::Validator;
use super::outside_users::base;

#[test]
fn a_job_request_without_a_signature_gets_no_executor_and_a_login_counts_once() {
    let layout = Layout {
        executors: 1,
        ..Layout::default()
    };
    let mut parts = Parts::start(&layout).unwrap();
    let runtime = Runtime::new().unwrap();
    // Somebody has the validator's connection and not its key.
    parts.kill(Role::Validator).unwrap();
    let (address, miner) = (parts.address(Role::Miner), MinerKey(parts.keys().miner.hotkey()));
    let mut stolen = wait_for("the miner's service", || {
        let connected = Validator::connect(address, miner, &parts.keys().validator);
        anyhow::Ok(runtime.block_on(connected).ok())
    })
    .unwrap();
    let declined = runtime.block_on(stolen.offer(60)).unwrap();
    assert!(declined.contains("sign"), "{declined}");

    let key = Keypair::generate();
    let http = reqwest::Client::new();
    let nonce = runtime.block_on(async {
        let asked = http
            .get(format!("{}/auth/nonce", base(&parts)))
            .send()
            .await
            .unwrap();
        asked.json::<LoginNonce>().await.unwrap().nonce.parse().unwrap()
    });
    let login = LoginRequest::new(key.hotkey(), sign_login(&key, &nonce, None), &nonce);
    let send = |parts: &Parts| {
        let sent = http
            .post(format!("{}/auth/login", base(parts)))
            .json(&login)
            .send();
        runtime.block_on(sent).unwrap().status().as_u16()
    };
    assert_eq!(send(&parts), 200);
    let again = send(&parts);
    assert!((400..404).contains(&again), "the same login once more: {again}");
    // A facilitator that is killed remembers it.
    parts.kill(Role::Facilitator).unwrap();
    parts.begin(Role::Facilitator).unwrap();
    let later = wait_for("the facilitator", || {
        anyhow::Ok(std::net::TcpStream::connect(parts.address(Role::Facilitator)).ok())
    });
    drop(later);
    let again = send(&parts);
    assert!((400..404).contains(&again), "and after a restart: {again}");
}

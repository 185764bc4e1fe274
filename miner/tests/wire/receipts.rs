//! Receipts: countersigned, served with ranges, the same after a restart, and none that is forged.

use muster_identity::{Keypair, verify_receipt};
use muster_process::Clock as _;
use muster_protocol::Receipt;
use muster_protocol::receipt::page_of;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};

use crate::harness::*;

async fn page(miner: &Miner, range: Option<&str>) -> reqwest::Response {
    muster_process::tls::install_provider();
    let url = miner.url(&format!("receipts/{}.jsonl", page_of(miner.clock.now())));
    let mut request = reqwest::Client::new().get(url);
    if let Some(range) = range {
        request = request.header("range", range);
    }
    request.send().await.unwrap()
}

async fn countersigned(validator: &mut Validator) -> Receipt {
    let heard = validator.receive().await;
    let MinerToValidator::MusterReceiptCountersigned(message) = heard else {
        panic!("not a receipt: {heard:?}")
    };
    message.receipt
}

#[tokio::test]
async fn receipts_are_countersigned_and_served() {
    let mut miner = Miner::start().await;
    assert_eq!(page(&miner, None).await.status(), 404);
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    miner.wanted().await;
    validator.accepted(attempt).await;
    let accepted = countersigned(&mut validator).await;
    validator.finished(attempt).await;
    let finished = countersigned(&mut validator).await;
    // Sent again, it is answered from the store and not stored again.
    validator.finished(attempt).await;
    assert_eq!(countersigned(&mut validator).await, finished);

    let whole = page(&miner, None).await;
    assert_eq!(whole.status(), 200);
    let text = whole.text().await.unwrap();
    let lines: Vec<Receipt> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[1..], [accepted, finished]);
    for receipt in lines {
        verify_receipt(receipt, miner.clock.now()).unwrap();
    }

    let first = text.lines().next().unwrap().len() + 1;
    let part = page(&miner, Some(&format!("bytes={first}-"))).await;
    assert_eq!(part.status(), 206);
    let range = part.headers()["content-range"].to_str().unwrap().to_owned();
    assert_eq!(range, format!("bytes {first}-{}/{}", text.len() - 1, text.len()));
    assert_eq!(part.text().await.unwrap(), text[first..]);
    let beyond = page(&miner, Some(&format!("bytes={}-", text.len()))).await;
    assert_eq!(beyond.status(), 416);
    assert_eq!(
        beyond.headers()["content-range"],
        format!("bytes */{}", text.len()).as_str()
    );

    // Torn by a crash, a page is whole again after the restart.
    let file = miner
        .folder
        .path()
        .join(format!("receipts/{}.jsonl", page_of(miner.clock.now())));
    std::fs::write(&file, &text[..first + 10]).unwrap();
    let miner = miner.killed_and_restarted().await;
    assert_eq!(page(&miner, None).await.text().await.unwrap(), text);
    for name in ["x", "1.jsonl", "..%2fstore.db", "1.jsonl.gz"] {
        assert_eq!(
            reqwest::get(miner.url(&format!("receipts/{name}")))
                .await
                .unwrap()
                .status(),
            404,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_finished_receipt_for_a_running_job_ends_it() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    let started = miner.wanted().await;
    validator.finished(attempt).await;
    countersigned(&mut validator).await;
    soon(started.stop.cancelled()).await;
    validator.offer(new_attempt()).await;
}

#[tokio::test]
async fn forged_receipts_are_refused_in_words() {
    let mut miner = Miner::start().await;
    let mut validator = Validator::connect(&miner).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    miner.wanted().await;
    let good = finished(attempt, validator.now);
    let mut refused = Vec::new();
    let mut forged = good.clone();
    forged.payload.score_str = "9000.000000".to_owned();
    refused.push((forged, "signature"));
    let mut elsewhere = good.clone();
    elsewhere.payload.miner_hotkey.0 = Keypair::from_uri("//Other").unwrap().hotkey();
    refused.push((elsewhere, "names miner"));
    let mut other = good.clone();
    other.payload.validator_hotkey.0 = Keypair::from_uri("//Stranger").unwrap().hotkey();
    refused.push((other, "names validator"));
    refused.push((finished(new_attempt(), validator.now), "unknown job_uuid"));
    refused.push((
        finished(attempt, validator.now.plus(std::time::Duration::from_secs(4000))),
        "future",
    ));
    for (request, why) in refused {
        validator
            .send_message(&ValidatorToMiner::V0JobFinishedReceiptRequest(request))
            .await;
        let details = validator.receive_error().await;
        assert!(details.contains(why), "{details}");
    }
    let text = page(&miner, None).await.text().await.unwrap();
    assert_eq!(text.lines().count(), 1, "only the started receipt");
}

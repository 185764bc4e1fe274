//! Pages of a miner over HTTP, and the checks of lines from honest and from lying miners.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use muster_identity::{Keypair, countersign, offer_receipt};
use muster_process::Tasks;
use muster_protocol::receipt::{FinishedReceipt, FinishedTag, PAGE_SECS, page_of};
use muster_protocol::{AttemptId, MinerKey, Receipt, ReceiptPayload, Signature, Timestamp, ValidatorKey};
use muster_receipts::fetch::MAX_PIECE;
use muster_receipts::page_check::digest;
use muster_receipts::{
    FetchError, Fetcher, PagePart, PageRequest, PageSource, ReadingRules, RejectionReason, check_receipts,
    cut_lines, key_of, read_lines,
};
use uuid::Uuid;

const PAGE: &[u8] = b"one\ntwo\nthree\n";

/// The server's behaviour, which the name of the page selects.
async fn page(State(()): State<()>, Path(name): Path<String>, headers: HeaderMap) -> Response<Body> {
    let first = headers
        .get("range")
        .and_then(|range| {
            range
                .to_str()
                .ok()?
                .strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse()
                .ok()
        })
        .unwrap_or(0_usize);
    let answer = |status: u16, range: Option<String>, body: Vec<u8>| {
        let mut answer = Response::builder().status(status);
        if let Some(range) = range {
            answer = answer.header("content-range", range);
        }
        answer.body(Body::from(body)).unwrap()
    };
    let rest = PAGE.get(first..).unwrap_or_default().to_vec();
    match name.as_str() {
        "1.jsonl" if rest.is_empty() => answer(416, None, vec![]),
        "1.jsonl" => answer(
            206,
            Some(format!("bytes {first}-{}/{}", PAGE.len() - 1, PAGE.len())),
            rest,
        ),
        "2.jsonl" => answer(200, None, PAGE.to_vec()),
        "3.jsonl" => answer(206, None, rest),
        "4.jsonl" => answer(206, Some("bytes 0-3/4".to_owned()), rest),
        "5.jsonl" => Response::builder()
            .status(StatusCode::FOUND)
            .header("location", "/receipts/2.jsonl")
            .body(Body::empty())
            .unwrap(),
        "6.jsonl.gz" => {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(PAGE).unwrap();
            answer(200, None, packed.finish().unwrap())
        }
        "7.jsonl.gz" => answer(200, None, b"garbage".to_vec()),
        "8.jsonl" => answer(200, None, vec![b'x'; 9 << 20]),
        _ => answer(404, None, vec![]),
    }
}

async fn serving(tasks: &Tasks) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/receipts/{name}", get(page)).with_state(());
    let stop = tasks.token();
    drop(tasks.spawn("pages", async move {
        tokio::select! {
            served = async { axum::serve(listener, router).await } => served.unwrap(),
            () = stop.cancelled() => {}
        }
    }));
    address
}

#[tokio::test]
async fn a_page_is_read_in_whichever_way_the_miner_serves_it() {
    let tasks = Tasks::new();
    let address = serving(&tasks).await;
    let fetcher = Fetcher::new().unwrap();
    let ask = async |page, form| fetcher.fetch(address, PageRequest { page, form }).await;
    for page in [1, 2] {
        assert_eq!(ask(page, PagePart::From(0)).await.unwrap().bytes, PAGE, "{page}");
        assert_eq!(
            ask(page, PagePart::From(4)).await.unwrap().bytes,
            &PAGE[4..],
            "{page}"
        );
        let end = ask(page, PagePart::From(14)).await.unwrap();
        assert!(end.bytes.is_empty() && end.whole, "{page}");
        assert_eq!(
            ask(page, PagePart::Archive).await.unwrap().bytes,
            PAGE,
            "without an archive, {page}"
        );
    }
    assert_eq!(ask(6, PagePart::Archive).await.unwrap().bytes, PAGE);
    assert!(ask(99, PagePart::Archive).await.unwrap().bytes.is_empty());
    tasks.shutdown();
}

#[tokio::test]
async fn answers_that_no_page_gives_are_refused_and_bounded() {
    let tasks = Tasks::new();
    let address = serving(&tasks).await;
    let fetcher = Fetcher::new().unwrap();
    let ask = async |page, form| fetcher.fetch(address, PageRequest { page, form }).await;
    assert!(
        matches!(ask(3, PagePart::From(0)).await, Err(FetchError::Range)),
        "which range?"
    );
    assert!(
        matches!(ask(4, PagePart::From(4)).await, Err(FetchError::Range)),
        "another range"
    );
    assert!(matches!(
        ask(5, PagePart::From(0)).await,
        Err(FetchError::Status { status: 302 })
    ));
    assert!(matches!(
        ask(7, PagePart::Archive).await,
        Err(FetchError::Archive(_))
    ));
    let long = ask(8, PagePart::From(0)).await.unwrap();
    assert_eq!((long.bytes.len(), long.whole), (MAX_PIECE, false));
    assert!(cut_lines(&long.bytes).endless);
    tasks.shutdown();
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let silent = fetcher
        .fetch(
            nobody,
            PageRequest {
                page: 1,
                form: PagePart::From(0),
            },
        )
        .await;
    assert!(matches!(silent, Err(FetchError::Unreachable { .. })));
}

fn now() -> Timestamp {
    Timestamp::from_secs(1_769_000_000)
}

fn receipt(attempt: u128, amount: &str, at: Timestamp) -> Receipt {
    let (validator, miner) = (Keypair::from_seed([1; 32]), Keypair::from_seed([2; 32]));
    let payload = ReceiptPayload::Finished(FinishedReceipt {
        job_uuid: AttemptId::from_uuid(Uuid::from_u128(attempt)),
        miner_hotkey: MinerKey(miner.hotkey()),
        validator_hotkey: ValidatorKey(validator.hotkey()),
        timestamp: at,
        receipt_type: FinishedTag,
        time_started: now(),
        time_took_us: 1,
        score_str: amount.to_owned(),
        block_numbers: vec![],
    });
    let offered = offer_receipt(&validator, payload).unwrap();
    countersign(&miner, offered).unwrap().into_inner()
}

fn line(receipt: &Receipt) -> Vec<u8> {
    serde_json::to_vec(receipt).unwrap()
}

#[test]
fn receipts_that_lie_are_refused_with_the_reason_and_the_others_count() {
    let from = receipt(1, "1", now()).payload.miner();
    let hours = |hours: i64| Timestamp::from_secs(1_769_000_000 + hours * 3_600);
    let mut forged_by_miner = receipt(2, "1.000000", now());
    forged_by_miner.validator_signature = Signature::from_bytes([9; 64]);
    let mut forged_by_validator = receipt(3, "1.000000", now());
    forged_by_validator.miner_signature = Signature::from_bytes([9; 64]);
    let mut raised = receipt(4, "1.000000", now());
    if let ReceiptPayload::Finished(finished) = &mut raised.payload {
        finished.score_str = "100.000000".to_owned();
    }
    let others = {
        let (validator, miner) = (Keypair::from_seed([1; 32]), Keypair::from_seed([3; 32]));
        let ReceiptPayload::Finished(mut finished) = receipt(5, "1", now()).payload else {
            unreachable!()
        };
        finished.miner_hotkey = MinerKey(miner.hotkey());
        let offered = offer_receipt(&validator, ReceiptPayload::Finished(finished)).unwrap();
        countersign(&miner, offered).unwrap().into_inner()
    };
    // Its signatures are not even checked.
    let mut made_up = receipt(11, "1.000000", now());
    if let ReceiptPayload::Finished(finished) = &mut made_up.payload {
        finished.validator_hotkey = ValidatorKey(Keypair::from_seed([7; 32]).hotkey());
    }
    let known = receipt(6, "1.000000", now());
    let held: BTreeMap<_, _> = [(key_of(&known), digest(&known))].into();
    let cases: [(Vec<u8>, Result<(), RejectionReason>); 17] = [
        (line(&receipt(1, "1.000000", now())), Ok(())),
        (line(&forged_by_miner), Err(RejectionReason::ForgedValidator)),
        // The forged copy came first, and the true receipt still counts.
        (line(&receipt(2, "1.000000", now())), Ok(())),
        (line(&forged_by_validator), Err(RejectionReason::ForgedMiner)),
        (line(&raised), Err(RejectionReason::ForgedValidator)),
        (line(&others), Err(RejectionReason::OtherMiner)),
        // Its validator served it before.
        (line(&known), Ok(())),
        (
            line(&receipt(6, "2.000000", now())),
            Err(RejectionReason::Contradicts),
        ),
        (
            line(&receipt(1, "1.000000", now())),
            Err(RejectionReason::Repeated),
        ),
        (
            line(&receipt(1, "3.000000", now())),
            Err(RejectionReason::Contradicts),
        ),
        (
            line(&receipt(7, "1.000000", hours(2))),
            Err(RejectionReason::Future),
        ),
        (
            line(&receipt(8, "1.000000", hours(-49))),
            Err(RejectionReason::Stale),
        ),
        (
            line(&receipt(10, "1.000000", hours(-2))),
            Err(RejectionReason::FarFromPage),
        ),
        (line(&made_up), Err(RejectionReason::NoPermit)),
        (
            line(&receipt(9, "much", now())),
            Err(RejectionReason::OutsideLimits),
        ),
        (b"{\"payload\": 1}".to_vec(), Err(RejectionReason::NotAReceipt)),
        (vec![0xff, 0xfe], Err(RejectionReason::NotAReceipt)),
    ];
    let lines: Vec<_> = cases.iter().map(|(line, _)| line.clone()).collect();
    let permitted = [known.payload.validator()].into();
    let rules = ReadingRules {
        source: PageSource::Miner(from),
        page: page_of(now()),
        permitted: &permitted,
        before_page: Duration::from_secs(3_600),
    };
    let (receipts, mut refused) = read_lines(&lines, &rules, now());
    let judged = check_receipts(receipts, &held, now());
    refused.extend(judged.refused);
    let mut told: Vec<_> = refused.iter().map(|refusal| refusal.why).collect();
    let mut expected: Vec<_> = cases.iter().filter_map(|(_, expected)| expected.err()).collect();
    told.sort_unstable();
    expected.sort_unstable();
    assert_eq!(told, expected);
    assert_eq!(judged.good.len(), 2);
    assert!(refused.iter().all(|refusal| refusal.example.len() <= 800));
    for why in RejectionReason::ALL {
        assert_eq!(serde_json::to_value(why).unwrap(), why.as_str());
    }
}

#[test]
fn a_receipt_is_signed_near_the_time_of_its_page_and_its_line_is_shown_without_control_characters() {
    let page = page_of(now());
    let begin = page * PAGE_SECS;
    let permitted = [receipt(1, "1", now()).payload.validator()].into();
    let rules = ReadingRules {
        source: PageSource::Miner(receipt(1, "1", now()).payload.miner()),
        page,
        permitted: &permitted,
        before_page: Duration::from_secs(7_200),
    };
    let reason = |secs: i64| {
        let lines = [line(&receipt(1, "1", Timestamp::from_secs(secs)))];
        // Long after the page, so that no time lies ahead of the reader's clock.
        let later = Timestamp::from_secs(begin + 20_000);
        let (_, refused) = read_lines(&lines, &rules, later);
        refused.first().map(|refused| refused.why)
    };
    let far = Some(RejectionReason::FarFromPage);
    assert_eq!([reason(begin - 7_201), reason(begin - 7_200)], [far, None]);
    let end = begin + PAGE_SECS;
    assert_eq!([reason(end + 3_600), reason(end + 3_601)], [None, far]);

    let (_, refused) = read_lines(&[b"a\0b\x1b[31m".to_vec()], &rules, now());
    assert_eq!(refused[0].example, "a\u{fffd}b\u{fffd}[31m");
}

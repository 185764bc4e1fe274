//! Every page with hostile texts, and the marks by which an operator sees what is wrong.

use muster_status_views::validator::{MinersStatus, SubnetStatus, ValidatorStatus};
use serde::de::DeserializeOwned;

use super::*;
use crate::CallAnswer;

const HOSTILE: &str = "<script>alert(1)</script>\u{1b}[31m\"'&";
const MINER: &str = "5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy";

fn read<T: DeserializeOwned>(text: &str) -> CallAnswer<T> {
    let escaped = serde_json::to_string(HOSTILE).unwrap();
    let text = text
        .replace("HOSTILE", escaped.trim_matches('"'))
        .replace("MINER", MINER);
    Ok(serde_json::from_str(&text).unwrap())
}

fn visit() -> ValidatorVisit<'static> {
    ValidatorVisit {
        validator: "5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty",
        now: Timestamp::from_secs(10_000),
    }
}

fn status() -> CallAnswer<ValidatorStatus> {
    read(
        r#"{"block":1234,"chain":{"state":"connected"},"facilitator":{"state":"lost","reason":"HOSTILE"},
        "jobs":[{"job":"HOSTILE","status":"failed","outcome":{"summary":"HOSTILE"},"fault":"miner",
        "attempts":[{"attempt":"a","miner":"HOSTILE","uid":7,"state":"HOSTILE"}]}],
        "cycles":[{"number":1200,"state":"set","error":"HOSTILE","weights":[[7,65535]],"snapshot":"HOSTILE",
        "scores":[{"uid":7,"miner":"MINER","points":9,"micros":90000000,"credit":2000}],
        "zeros":[["HOSTILE"]],"dropped":[["a","HOSTILE"]]}]}"#,
    )
}

fn subnet_status() -> CallAnswer<SubnetStatus> {
    read(
        r#"{"block":1234,"netuid":1,"neurons":[{"uid":7,"hotkey":"MINER","axon":"127.0.0.1:1","reliability_permille":950,
        "stated":{"always_on.test":2},"weight":65535,"chain_weight":100}]}"#,
    )
}

fn miners_status() -> CallAnswer<MinersStatus> {
    read(
        r#"{"miners":[{"miner":"MINER","proven":[{"class":"always_on.test","challenged":3,"proven":2,"block":9}],
        "claims":{"offers":[{"class":"always_on.test","executors":3}],"specs":[
        {"class":"always_on.test","told_at":"1970-01-01T02:46:30Z","cpu":"HOSTILE","cores":16,"memory":34359738368,
        "disk":0,"os":"HOSTILE","gpus":["HOSTILE"]}],
        "machines":[{"name":"HOSTILE","class":"always_on.test","at":"1970-01-01T02:46:30Z","cpu_permille":350,"memory_total":1,
        "memory_used":1,"disk_total":1,"disk_used":1,"gpus":0,"gpu_percent":0,"gpu_memory_total":0,"gpu_memory_used":0}]}}]}"#,
    )
}

/// Every page, filled with hostile texts.
fn all() -> Vec<(&'static str, String)> {
    let (visit, status, miners) = (visit(), status(), miners_status());
    let queue = read(
        r#"{"lines":[{"class":"HOSTILE","waiting":2,"why":"HOSTILE"}],"jobs":[{"job":"HOSTILE","account":"HOSTILE","class":"x"}]}"#,
    );
    let batches = read(r#"{"batches":[{"batch":"HOSTILE","state":"HOSTILE","grades":{"HOSTILE":1}}]}"#);
    let sessions_status = read(
        r#"{"models":[{"model":"HOSTILE","trouble":"HOSTILE"}],"sessions":[{"session":"HOSTILE","miner":"HOSTILE","fault":"HOSTILE"}]}"#,
    );
    let routes = read(
        r#"{"job":"x","routes":[{"ordinal":1,"decided_at":"1970-01-01T02:46:30Z","block":12,"class":"always_on.test","chosen":"MINER",
        "candidates":[{"uid":7,"miner":"MINER","address":"127.0.0.1:5","cost":{"record":5,"load":100,"image":300,"inputs":0,"fairness":20}}],
        "more":2,"excluded":[{"reason":{"why":"full_lately"},"uids":[4,9]}]}]}"#,
    );
    let adopted = read(
        r#"{"audits":[{"digest":"HOSTILE","coldkey":"HOSTILE","miners":["HOSTILE"],"model":"HOSTILE","verdict":"HOSTILE","quality_per_mille":500}]}"#,
    );
    let report = read(
        r#"{"replayed":{"coldkey":"HOSTILE","model":"HOSTILE","verdict":"HOSTILE","level":"HOSTILE","alternatives":["HOSTILE"],
        "exceeded":[{"machine":"HOSTILE","alternative":"HOSTILE"}],"tests":{"all":{"answers":2,"alarm":1}},"discriminates":true},
        "alarm":182500000,"wealth":[{"test":"HOSTILE","points":[{"answer":1,"log2":3000}]}],
        "curve":[{"alternative":"HOSTILE","share":300,"trials":50}],
        "roc":[{"alternative":"HOSTILE","share":300,"trials":50,"points":[{"wealth":1,"honest":1,"cheats":9}]}]}"#,
    );
    let grades = read(r#"{"grades":[{"class":"HOSTILE","said":"HOSTILE"}]}"#);
    vec![
        ("subnet", subnet(&visit, &status, &subnet_status(), &miners)),
        ("jobs", jobs(&visit, &queue, &status)),
        ("route", route(&visit, HOSTILE, &routes)),
        ("grading", grading(&visit, &batches)),
        ("weights", weights(&visit, &status, &subnet_status())),
        ("sessions", sessions(&visit, &sessions_status)),
        ("miner", miner(&visit, MINER, &miners, &grades)),
        ("audits", audits(&visit, &adopted)),
        ("audit", audit(&visit, HOSTILE, &report)),
        ("public", public(&visit, &status, &queue, &miners)),
    ]
}

#[test]
fn hostile_texts_are_text_on_every_page() {
    for (name, page) in all() {
        assert!(
            !page.contains("<script>alert") && !page.contains('\u{1b}'),
            "{name}"
        );
        assert!(page.contains("&lt;script"), "{name}");
        assert!(!page.contains("href=\"javascript"), "{name}");
    }
}

#[test]
fn a_weight_that_the_chain_shows_otherwise_is_marked_and_the_score_is_explained() {
    let pages = all();
    let of = |name: &str| &pages.iter().find(|(of, _)| *of == name).unwrap().1;
    assert!(
        of("subnet").contains("<span class=\"bad\">100</span>"),
        "{}",
        of("subnet")
    );
    assert!(
        of("miner").contains("16 × ") && of("miner").contains("32.0 GiB"),
        "{}",
        of("miner")
    );
    assert!(
        of("subnet")
            .contains("3 × always_on.test, on the chain <span class=\"bad\">2 × always_on.test</span>"),
        "{}",
        of("subnet")
    );
    assert!(of("subnet").contains("95.0 %") && of("subnet").contains("2 of 3"));
    assert!(of("weights").contains("2.000") && of("weights").contains("100.0 %"));
    assert!(of("weights").contains("Receipts that do not count: 1"));
    assert!(
        of("route").contains("<strong>asked</strong>") && of("route").contains("425"),
        "{}",
        of("route")
    );
    assert!(of("route").contains("Not asked: uid 4, 9"));
}

#[test]
fn a_part_that_fails_leaves_the_others() {
    let page = subnet(
        &visit(),
        &status(),
        &Err("the chain is away".to_owned()),
        &miners_status(),
    );
    assert!(page.contains("the chain is away") && page.contains("1,234"));
}

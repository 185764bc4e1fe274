//! `muster up --demo`: one job through five real processes, and its weight on a real chain.

use std::path::Path;
use std::process::Command;

use muster_testbed::tally::count_subnet;
use muster_tests::{muster, run};
use serde_json::Value;

#[test]
fn the_demo_does_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    count_subnet("a demonstration").unwrap();
    let output = run(Command::new(muster().unwrap())
        .args(["up", "--demo", "--block-ms", "200", "--json", "--dir"])
        .arg(folder.path()))
    .unwrap();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();

    let statuses: Vec<_> = report["job"]["status_history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["status"].as_str().unwrap())
        .collect();
    assert_eq!(
        statuses,
        [
            "sent",
            "received",
            "accepted",
            "executor_ready",
            "volumes_ready",
            "execution_done",
            "completed"
        ]
    );
    let seconds: Vec<_> = report["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["seconds"].as_f64().unwrap())
        .collect();
    assert!(seconds.is_sorted(), "time runs forward: {seconds:?}");
    let words = report["words"]["top"].as_array().unwrap();
    assert!(
        words
            .iter()
            .any(|top| top["word"] == "the" && top["count"].as_u64().unwrap() > 100),
        "{words:?}"
    );

    let receipts: Vec<_> = report["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|receipt| receipt["payload"]["receipt_type"].as_str().unwrap())
        .collect();
    assert!(
        receipts.contains(&"JobStartedReceipt") && receipts.contains(&"JobFinishedReceipt"),
        "{receipts:?}"
    );
    let paid = report["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|receipt| receipt["payload"]["score_str"].as_str());
    // The time that the job took, at least ten seconds and at most the 480 that it reserved.
    let seconds: f64 = paid.unwrap().parse().unwrap();
    assert!((10.0..=480.0).contains(&seconds), "{paid:?}");

    let [cheated, honest] = [&report["batches"][0], &report["batches"][1]];
    assert_eq!(
        (&cheated["executors"], &cheated["proven"]),
        (&2.into(), &1.into()),
        "{cheated}"
    );
    let reason = cheated["reasons"][0].as_str().unwrap();
    assert!(reason.starts_with("its opening is wrong: draw "), "{reason}");
    assert_eq!(
        (&honest["executors"], &honest["proven"]),
        (&2.into(), &2.into()),
        "{honest}"
    );

    assert_eq!(report["weight"]["weight"], 65535);
    assert_eq!(report["drawn"]["executors"], 2, "a block's hash drew a batch");
    assert_ne!(report["weight"]["miner_uid"], report["weight"]["validator_uid"]);

    // Once more in the same folder: a new chain, the same stores.
    count_subnet("a demonstration").unwrap();
    let again = run(Command::new(muster().unwrap())
        .args(["up", "--demo", "--block-ms", "200", "--dir"])
        .arg(folder.path()))
    .unwrap();
    assert_eq!(again.code, Some(0), "{}\n{}", again.stdout, again.stderr);
    assert!(again.stdout.ends_with("all of it happened\n"), "{}", again.stdout);

    assert!(leaves_nothing_behind(folder.path()));
}

/// Whether no process of a subnet in this folder has left its mark.
fn leaves_nothing_behind(folder: &Path) -> bool {
    let Ok(marks) = std::fs::read_dir(folder.join("run")) else {
        return false;
    };
    marks
        .flatten()
        .all(|file| file.path().extension().is_none_or(|extension| extension != "pid"))
}

#[test]
fn the_demo_of_spot_checks_convicts_the_cheat_only() {
    let folder = tempfile::tempdir().unwrap();
    count_subnet("a demonstration").unwrap();
    let output = run(Command::new(muster().unwrap())
        .args(["up", "--demo", "audits", "--json", "--dir"])
        .arg(folder.path()))
    .unwrap();
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();

    let verdicts = report["verdicts"].as_object().unwrap();
    let (cheats, honest): (Vec<_>, Vec<_>) = verdicts
        .iter()
        .partition(|(_, verdict)| verdict["verdict"] == "convicted");
    let ([(cheat, _)], [(honest, of_honest)]) = (cheats.as_slice(), honest.as_slice()) else {
        panic!("{report}")
    };
    assert_eq!(of_honest["verdict"], "consistent", "{report}");
    let weights = |place: usize, miner: &str| report["weights"][place][miner].as_u64().unwrap_or(0);
    assert!(weights(0, cheat) > 0 && weights(0, honest) > 0, "{report}");
    assert_eq!((weights(1, cheat), weights(1, honest)), (0, 65_535), "{report}");
    let machines = |name: &str| report[name].as_u64().unwrap();
    assert!(
        machines("provisioned") >= 2,
        "a reference, and one that confirms it"
    );
    assert_eq!(machines("provisioned"), machines("released"));
    for chat in report["chats"].as_array().unwrap() {
        assert_eq!(chat["verdict"], "proven", "{chat}");
    }
    assert!(leaves_nothing_behind(folder.path()));
}

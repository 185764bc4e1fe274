//! An operator's batch on a whole subnet, and its evidence as anybody judges it again.

use std::process::Command;
use std::time::Duration;

use muster_tests::{RunningSubnet, muster, run, wait_for};
use serde_json::Value;

#[test]
fn a_batch_is_run_listed_explained_and_judged_again_and_exchanged_evidence_shows() {
    let subnet = RunningSubnet::start().unwrap();
    // The validator has to see the miner's address on the chain first.
    let graded = wait_for("a batch", Duration::from_secs(120), || {
        let graded = subnet.muster(&["grade", "run"])?;
        let nobody = graded.stderr.contains("no miner announces an executor");
        Ok((!nobody).then_some(graded))
    });
    let graded = graded.unwrap();
    assert_eq!(graded.code, Some(0), "{graded:?}\n{}", subnet.log("validator"));
    assert_eq!(graded.stdout.matches(" proven: ").count(), 2, "{graded:?}");
    let miner = graded.stdout.lines().nth(2).unwrap();
    let miner = miner.split_whitespace().next().unwrap();

    let listed = subnet.muster(&["grade", "ls", "--json"]).unwrap();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let [batch] = listed["batches"].as_array().unwrap().as_slice() else {
        panic!("one batch was run: {listed}")
    };
    assert_eq!(
        (&batch["state"], &batch["grades"]["proven"]),
        (&"done".into(), &2.into()),
        "{listed}"
    );

    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("evidence.json");
    let saved = file.to_str().unwrap();
    let explained = subnet
        .muster(&["grade", "explain", miner, "--save", saved])
        .unwrap();
    assert_eq!(explained.stdout.matches(" proven: ").count(), 2, "{explained:?}");
    let again = || run(Command::new(muster().unwrap()).args(["grade", "replay", saved])).unwrap();
    let replayed = again();
    assert_eq!(replayed.code, Some(0), "{replayed:?}");

    // Each executor shows its neighbour's proofs.
    let mut evidence: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let first = evidence["seats"]["0"]["proofs"].take();
    let second = std::mem::replace(&mut evidence["seats"]["1"]["proofs"], first);
    evidence["seats"]["0"]["proofs"] = second;
    std::fs::write(&file, evidence.to_string()).unwrap();
    let exchanged = again();
    assert_eq!(exchanged.code, Some(1), "{exchanged:?}");
    assert!(exchanged.stdout.contains("DIFFERS: "), "{exchanged:?}");

    // What is none at all is named.
    std::fs::write(&file, "{}").unwrap();
    let none = again();
    assert!(
        none.code == Some(1) && none.stderr.contains("is no evidence"),
        "{none:?}"
    );
}

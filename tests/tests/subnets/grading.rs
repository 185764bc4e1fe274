//! An operator's batch on a whole subnet, and its evidence as anybody judges it again.

use std::process::Command;

use muster_testbed::wait_for;
use muster_tests::{RunningSubnet, muster, run};
use serde_json::Value;

#[test]
fn a_batch_is_run_listed_explained_and_judged_again_whoever_serves_and_altered_evidence_shows() {
    let subnet = RunningSubnet::start().unwrap();
    // The validator has to see the miner's address on the chain first.
    let graded = wait_for("a batch", || {
        let graded = subnet.muster(&["grade", "run"])?;
        let nobody = graded.stderr.contains("no miner announces an executor");
        anyhow::Ok((!nobody).then_some(graded))
    });
    let graded = graded.unwrap();
    assert_eq!(graded.code, Some(0), "{graded:?}\n{}", subnet.log("validator"));
    assert_eq!(graded.stdout.matches(" proven: ").count(), 2, "{graded:?}");
    let miner = graded.stdout.lines().nth(2).unwrap();
    let miner = miner.split_whitespace().next().unwrap();
    // The validator calls its own job off, which is no cancellation by a user. The command does not wait for it.
    let called_off = "called off this job of its own: its grading is over";
    let log = wait_for("the end of the validator's own job", || {
        let log = subnet.log("validator");
        anyhow::Ok(log.contains(called_off).then_some(log))
    });
    let log = log.unwrap();
    assert!(!log.contains("cancelled by its user"), "{log}");

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

    let mut evidence: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    // One bit of what the miner signed.
    let attested = evidence["seats"]["1"]["attestation"].as_str().unwrap().to_owned();
    let other = if attested.as_bytes()[40] == b'A' { "B" } else { "A" };
    let mut bent = attested.clone();
    bent.replace_range(40..41, other);
    evidence["seats"]["1"]["attestation"] = bent.into();
    std::fs::write(&file, evidence.to_string()).unwrap();
    let forged = again();
    assert!(
        forged.code == Some(1)
            && forged
                .stdout
                .contains(&format!("executor 1: miner {miner} did not sign")),
        "{forged:?}"
    );
    evidence["seats"]["1"]["attestation"] = attested.into();

    // Each executor shows its neighbour's proofs.
    let first = evidence["seats"]["0"]["proofs"].take();
    let second = std::mem::replace(&mut evidence["seats"]["1"]["proofs"], first);
    evidence["seats"]["0"]["proofs"] = second;
    std::fs::write(&file, evidence.to_string()).unwrap();
    let exchanged = again();
    assert_eq!(exchanged.code, Some(1), "{exchanged:?}");
    assert!(exchanged.stdout.contains("DIFFERS: "), "{exchanged:?}");

    // A file that is no evidence is named as such.
    std::fs::write(&file, "{}").unwrap();
    let none = again();
    assert!(
        none.code == Some(1) && none.stderr.contains("is no evidence"),
        "{none:?}"
    );

    // An executor that serves is challenged where it serves, by a grader that its engine starts beside the model.
    let chat = subnet.muster(&["chat", "parrot", "-m", "one two"]).unwrap();
    assert_eq!(chat.code, Some(0), "{chat:?}");
    let graded = subnet.muster(&["grade", "run"]).unwrap();
    assert_eq!(graded.code, Some(0), "{graded:?}\n{}", subnet.log("validator"));
    let counts = [" proven: ", " serving: "].map(|grade| graded.stdout.matches(grade).count());
    assert_eq!(counts, [1, 1], "{graded:?}\n{}", subnet.log("validator"));
    let explained = subnet
        .muster(&["grade", "explain", miner, "--save", saved])
        .unwrap();
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let replayed = again();
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    // The client of the session is still served.
    let chat = subnet.muster(&["chat", "parrot", "-m", "three"]).unwrap();
    assert_eq!(chat.code, Some(0), "{chat:?}");
}

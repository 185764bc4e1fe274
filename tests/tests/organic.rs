//! Organic jobs that succeed: several at once, and what their users see of them.

use std::time::Duration;

use muster_tests::{RunningSubnet, wait_for};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn two_jobs_run_at_once_each_with_its_own_input_and_output() {
    let subnet = RunningSubnet::start().unwrap();
    let submit = |word: &str| {
        let file = subnet.folder().join(word);
        std::fs::write(&file, format!("{word} {word} {word}")).unwrap();
        let input = format!("text.txt={}", file.display());
        let args = [
            "job",
            "run",
            subnet.demo_image(),
            "--detach",
            "--input",
            &input,
            "--",
            "words",
        ];
        subnet.muster(&args).unwrap().stdout.trim().to_owned()
    };
    let ids = ["apple", "pear"].map(|word| (word, submit(word)));
    for (word, id) in &ids {
        let job = subnet.wait_for_status(id, "completed", PATIENCE).unwrap();
        assert!(
            job["stdout"].as_str().unwrap().contains(&format!("3  {word}")),
            "{job}"
        );
        assert!(job["artifacts"]["/artifacts/words.json"].is_string());
    }

    // One of them, as a person sees it.
    let shown = subnet.muster(&["job", "show", &ids[0].1]).unwrap().stdout;
    for part in [
        "completed",
        "JobStartedReceipt",
        "JobFinishedReceipt",
        "signed by both",
        "/artifacts/words.json",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    // Two attempts, two pay slips.
    let state: Value = subnet.validator_state().unwrap();
    let paid = state["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|r| r["payload"]["score_str"].is_string());
    assert_eq!(paid.count(), 2, "{state}");
}

#[test]
fn fifty_jobs_on_two_executors_all_complete_and_start_in_the_order_of_their_arrival() {
    const JOBS: usize = 50;
    let subnet = RunningSubnet::start_with(&["--miners", "1", "--executors", "2"]).unwrap();
    let mut submitted = Vec::new();
    for _ in 0..JOBS {
        let args = ["job", "run", subnet.demo_image(), "--detach", "--", "words"];
        submitted.push(subnet.muster(&args).unwrap().stdout.trim().to_owned());
    }
    let state = wait_for("every job to end", PATIENCE * 3, || {
        let state = subnet.validator_state()?;
        let jobs = state["jobs"].as_array().map_or(0, |jobs| {
            jobs.iter().filter(|job| job["closed_at"].is_string()).count()
        });
        Ok((jobs >= JOBS).then_some(state))
    })
    .unwrap();
    let jobs = state["jobs"].as_array().unwrap();
    let mut started = Vec::new();
    for id in &submitted {
        let job = jobs.iter().find(|job| job["job"] == id.as_str()).unwrap();
        assert_eq!(job["status"], "completed", "{job}");
        let attempts = job["attempts"].as_array().unwrap();
        assert_eq!(
            attempts.len(),
            1,
            "no job is declined because the miner is busy: {job}"
        );
        started.push((
            job["created_at"].to_string(),
            attempts[0]["started_at"].to_string(),
        ));
    }
    started.sort();
    let times: Vec<_> = started.iter().map(|(_, started)| started).collect();
    assert!(times.is_sorted(), "{started:#?}");
}

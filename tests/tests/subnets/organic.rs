//! Organic jobs that succeed: several at once, and what their users see of them.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "sections of a test fail as tests do"
)]

use muster_testbed::wait_for;
use muster_tests::RunningSubnet;
use serde_json::Value;

pub(crate) fn two_jobs_run_at_once_each_with_its_own_input_and_output(subnet: &RunningSubnet) {
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
        let job = subnet.wait_for_status(id, "completed").unwrap();
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
        .filter(|receipt| {
            ids.iter()
                .any(|(_, id)| receipt["payload"]["job_uuid"] == id.as_str())
        })
        .filter(|receipt| receipt["payload"]["score_str"].is_string());
    assert_eq!(paid.count(), 2, "{state}");
}

pub(crate) fn fifty_jobs_on_two_executors_all_complete_and_start_in_the_order_of_their_arrival(
    subnet: &RunningSubnet,
) {
    const JOBS: usize = 50;
    let mut submitted = Vec::new();
    for _ in 0..JOBS {
        let args = ["job", "run", subnet.demo_image(), "--detach", "--", "words"];
        submitted.push(subnet.muster(&args).unwrap().stdout.trim().to_owned());
    }
    let state = wait_for("every job to end", || {
        let state = subnet.validator_state()?;
        let jobs = state["jobs"].as_array().map_or(0, |jobs| {
            let closed = jobs.iter().filter(|job| job["closed_at"].is_string());
            let ids = closed.filter_map(|job| job["job"].as_str());
            ids.filter(|id| submitted.iter().any(|job| job.as_str() == *id))
                .count()
        });
        anyhow::Ok((jobs >= JOBS).then_some(state))
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

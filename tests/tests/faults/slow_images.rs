//! Images that take their time: a real registry behind a slow line, and a registry that never answers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::time::Duration;

use muster_process::{Clock as _, SystemClock};
use muster_protocol::Timestamp;
use muster_routing::AttemptMark;
use muster_testbed::wait_for;
use muster_tests::{BUSYBOX, Output, Registry, RunningSubnet, SlowRelay};
use muster_validator::store::Store;
use serde_json::Value;
use tokio::runtime::Runtime;

/// Bytes a second of a slow line.
const RATE: usize = 120_000;
/// A little more than the time that an executor has to start.
const SLOW_SECS: usize = 14;

fn view(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The marks that attempts have left on the miners' records.
fn marks(runtime: &Runtime, subnet: &RunningSubnet) -> Vec<AttemptMark> {
    let file = subnet.folder().join("data/validator.db");
    let store = runtime
        .block_on(Store::open(&format!("sqlite:{}", file.display())))
        .unwrap();
    let long_ago = Timestamp::from_secs(0);
    let groups = runtime.block_on(store.history(long_ago, long_ago)).unwrap();
    runtime.block_on(store.close());
    groups
        .iter()
        .filter_map(|group| group.ended.map(|(_, mark)| mark))
        .collect()
}

/// An API key of an account that has nothing to do with the subnet's own user.
fn key_of_another_account(subnet: &RunningSubnet) -> String {
    // The local validator lists one user; its own hotkey is the only other account whose jobs it takes.
    let args = ["keys", "new", "program", "--wallet", "validator", "--json"];
    let made = view(&subnet.muster(&args).unwrap());
    made.get("key").and_then(Value::as_str).unwrap().to_owned()
}

/// Executors, which read their settings when they start, give no image up that stands still.
fn wait_long_for_registries(subnet: &RunningSubnet) {
    let file = subnet.folder().join("config/executor.toml");
    let mut settings: toml::Table = toml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let images = settings.get_mut("images").and_then(toml::Value::as_table_mut);
    images.unwrap().insert("stall_s".to_owned(), 1_800.into());
    std::fs::write(&file, toml::to_string(&settings).unwrap()).unwrap();
}

#[test]
fn a_slow_registry_takes_its_time_and_a_tarpit_delays_and_marks_nobody() {
    let runtime = Runtime::new().unwrap();
    muster_process::tls::install_provider();
    let registry = Registry::start().unwrap();
    let image = runtime.block_on(registry.publish(RATE * SLOW_SECS)).unwrap();
    let others_image = runtime.block_on(registry.publish(1 << 10)).unwrap();
    let slow = runtime
        .block_on(SlowRelay::relay(registry.address(), RATE))
        .unwrap();
    let tarpit = runtime.block_on(SlowRelay::tarpit()).unwrap();
    let subnet = RunningSubnet::start_with(&["--miners", "3", "--executors", "1"]).unwrap();
    wait_long_for_registries(&subnet);
    let others_key = key_of_another_account(&subnet);
    let stuck = format!("{}/muster/never:1", tarpit.address());
    let patient = format!("{}/{}", slow.address(), image.place);
    // Three jobs whose image never comes, as many as there are executors, and which wait for it as long as this test
    // lasts.
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let args = [
                "job",
                "run",
                stuck.as_str(),
                "--image-time-limit",
                "30m",
                "--detach",
                "--json",
            ];
            let begun = view(&subnet.muster(&args).unwrap());
            begun["uuid"].as_str().unwrap().to_owned()
        })
        .collect();
    for job in &waiting {
        wait_for("a job that waits for its image", || {
            let view = subnet.job(job)?;
            let history = view["status_history"].as_array().unwrap();
            let is_accepted = history.iter().any(|entry| entry["status"] == "accepted");
            anyhow::Ok(is_accepted.then_some(()))
        })
        .unwrap();
    }
    std::thread::scope(|scope| {
        // A fourth one gives up after 4 seconds at each of two miners of different owners.
        let stuck = scope.spawn(|| {
            let args = ["job", "run", stuck.as_str(), "--image-time-limit", "4s", "--json"];
            subnet.muster(&args).unwrap()
        });
        let slow = scope.spawn(|| {
            let args = ["job", "run", patient.as_str(), "--", "-c"];
            let script = format!("{BUSYBOX} echo it is here");
            subnet.muster(&[&args[..], &[script.as_str()]].concat()).unwrap()
        });
        // Another account has an image fetched and a job run meanwhile, though a tarpit keeps the miners waiting.
        let image = format!("{}/{}", registry.address(), others_image.place);
        let args = ["job", "run", image.as_str(), "--api-key", &others_key, "--json"];
        let script = ["--", "-c", "echo for another account"];
        let other = subnet.muster(&[&args[..], &script].concat()).unwrap();
        assert_eq!(other.code, Some(0), "{other:?}\n{}", subnet.log("validator"));
        assert_eq!(view(&other)["stdout"], "for another account\n");

        let slow = slow.join().unwrap();
        assert_eq!(slow.code, Some(0), "{slow:?}\n{}", subnet.log("validator"));
        assert_eq!(slow.stdout, "it is here\n");
        assert!(
            slow.stderr.contains("of 1 layers"),
            "its progress is shown: {slow:?}"
        );
        let ended = view(&stuck.join().unwrap());
        let last = ended["status_history"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone();
        let details = &last["metadata"]["horde_failure_details"];
        let message = details["message"].as_str().unwrap_or_default();
        assert!(message.contains("came to none of 2 miners"), "{last:#}");
        let context = &details["context"]["reported"];
        assert_eq!(context["fault"], "user", "{last:#}");
    });
    // The tarpit has held its three jobs all the time.
    for job in &waiting {
        let view = subnet.job(job).unwrap();
        let history = view["status_history"].as_array().unwrap();
        assert_eq!(history.last().unwrap()["status"], "accepted", "{view:#}");
    }
    // The slow image came at the first try, and the tarpit marks no miner.
    let marks = marks(&runtime, &subnet);
    let count = |mark| marks.iter().filter(|left| **left == mark).count();
    assert_eq!(
        (count(AttemptMark::Incident), count(AttemptMark::Excuse)),
        (0, 0),
        "{marks:?}"
    );
    assert!(count(AttemptMark::Clean) > 0, "{marks:?}");
}

/// Bytes a second of a line that needs a minute for the image of the long test.
const SLOWER_RATE: usize = 60_000;
const MINUTE_SECS: usize = 60;

#[test]
#[ignore = "soak: the image takes a minute on its slow line, so `cargo xtask soak` runs it"]
fn an_image_of_a_minute_arrives_at_the_first_try_and_runs() {
    let runtime = Runtime::new().unwrap();
    muster_process::tls::install_provider();
    let registry = Registry::start().unwrap();
    let size = SLOWER_RATE * MINUTE_SECS;
    let published = runtime.block_on(registry.publish(size)).unwrap();
    let slow = runtime
        .block_on(SlowRelay::relay(registry.address(), SLOWER_RATE))
        .unwrap();
    let subnet = RunningSubnet::start_with(&["--miners", "2", "--executors", "1"]).unwrap();
    let image = format!("{}/{}", slow.address(), published.place);
    let script = format!("{BUSYBOX} echo it is here");
    let clock = SystemClock::default();
    let began = clock.now();
    let ran = subnet
        .muster(&["job", "run", &image, "--", "-c", &script])
        .unwrap();
    let took = clock.now().since(began);
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", subnet.log("validator"));
    assert_eq!(ran.stdout, "it is here\n");
    // Shorter would mean that the image did not come over the slow line.
    assert!(took >= Duration::from_secs(55), "the job took {took:?}");
    let marks = marks(&runtime, &subnet);
    assert_eq!(marks, [AttemptMark::Done], "one attempt, which ended well");
}

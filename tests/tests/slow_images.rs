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
use muster_tests::{BUSYBOX, Output, Registry, RunningSubnet, SlowDoor};
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

#[test]
fn a_slow_registry_takes_its_time_and_a_tarpit_delays_and_marks_nobody() {
    let runtime = Runtime::new().unwrap();
    muster_process::tls::install_provider();
    let registry = Registry::start().unwrap();
    let image = runtime.block_on(registry.publish(RATE * SLOW_SECS)).unwrap();
    let slow = runtime
        .block_on(SlowDoor::relay(registry.address(), RATE))
        .unwrap();
    let tarpit = runtime.block_on(SlowDoor::tarpit()).unwrap();
    let subnet = RunningSubnet::start_with(&["--miners", "3", "--executors", "1"]).unwrap();
    let stuck = format!("{}/muster/never:1", tarpit.address());
    let patient = format!("{}/{}", slow.address(), image.place);
    let clock = SystemClock::default();
    std::thread::scope(|scope| {
        // Three jobs whose image never comes: two miners of different owners try each, 4 seconds long.
        let stuck: Vec<_> = (0..3)
            .map(|_| {
                let args = ["job", "run", stuck.as_str(), "--image-time-limit", "4s", "--json"];
                let subnet = &subnet;
                scope.spawn(move || subnet.muster(&args).unwrap())
            })
            .collect();
        let slow = scope.spawn(|| {
            let args = ["job", "run", patient.as_str(), "--", "-c"];
            let script = format!("{BUSYBOX} echo it is here");
            subnet.muster(&[&args[..], &[script.as_str()]].concat()).unwrap()
        });
        // Another user's job finds an executor at once, though three registries keep the miners waiting.
        let began = clock.now();
        let other = subnet
            .muster(&["job", "run", subnet.demo_image(), "--json"])
            .unwrap();
        assert_eq!(other.code, Some(0), "{other:?}");
        let took = clock.now().since(began);
        assert!(took < Duration::from_secs(20), "another user waited for {took:?}");

        let slow = slow.join().unwrap();
        assert_eq!(slow.code, Some(0), "{slow:?}\n{}", subnet.log("validator"));
        assert_eq!(slow.stdout, "it is here\n");
        assert!(
            slow.stderr.contains("of 1 layers"),
            "its progress is shown: {slow:?}"
        );
        for stuck in stuck {
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
        }
    });
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
        .block_on(SlowDoor::relay(registry.address(), SLOWER_RATE))
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

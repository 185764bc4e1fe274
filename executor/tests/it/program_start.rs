//! How the program of a job is started: its standard input, byte for byte. The differential test has the working
//! directory and the entry point beside docker's.

use muster_testbed::within;
use serde_json::{Value, json};

use crate::support::lease::{Job, Lease, inline_volume};
use crate::support::miner::FakeMiner;
use crate::support::{engine, image};

/// More than the pipes and the buffers between the executor and a program hold.
const LARGE: usize = 3 << 20;

/// Runs the demo program with this standard input, and returns the last message.
async fn run_with_stdin(args: &[&str], stdin: &str) -> Value {
    let engine = engine().await;
    let image = image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let job = Job {
        image: image.id.to_string(),
        volume: inline_volume(&[("in/text", stdin)]),
        start: json!({"stdin": "in/text"}),
        ..Job::new(args)
    };
    let (executor, mut wire) = lease.start(&miner).await;
    lease.to_running(&mut wire, &job).await;
    let last = within("the end of the job", wire.last()).await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
    last
}

/// FNV-1a of 64 bits, as the program prints it.
fn checksum(bytes: &[u8]) -> String {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, add))
}

#[tokio::test]
async fn the_bytes_of_an_input_come_to_the_program_exact_with_an_end() {
    let text = "\0\r\n\u{e4}\u{4}\u{1a}".repeat(LARGE / 7);
    for stdin in ["", "no newline", &text] {
        let last = run_with_stdin(&["probe", "read"], stdin).await;
        let sum = checksum(stdin.as_bytes());
        assert_eq!(
            last["docker_process_stdout"],
            format!("{} bytes, checksum {sum}\n", stdin.len()),
            "{last:#}"
        );
    }
}

#[tokio::test]
async fn a_program_that_reads_a_part_of_its_input_is_no_failure() {
    let last = run_with_stdin(&["probe", "read", "1000"], &"y".repeat(LARGE)).await;
    let sum = checksum(&[b'y'; 1_000]);
    assert_eq!(
        last["docker_process_stdout"],
        format!("1000 bytes, checksum {sum}\n"),
        "{last:#}"
    );
}

#[tokio::test]
async fn a_program_that_never_reads_its_input_ends_as_ever() {
    let last = run_with_stdin(&["probe", "exit", "3"], &"x".repeat(LARGE)).await;
    assert_eq!(last["docker_process_exit_status"], 3, "{last:#}");
    assert_eq!(last["docker_process_stdout"], "about to exit with 3\n");
}

#[tokio::test]
async fn an_input_that_no_file_brings_is_the_users_fault() {
    let engine = engine().await;
    let image = image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let job = Job {
        image: image.id.to_string(),
        volume: inline_volume(&[("folder/file", "x")]),
        start: json!({"stdin": "folder"}),
        ..Job::new(&["words"])
    };
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&lease.offer(&job)).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    let last = within("the end of the job", wire.last()).await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
    assert_eq!(last["message_type"], "V0JobFailedRequest", "{last:#}");
    let message = last["message"].as_str().unwrap();
    assert!(
        message.contains("\"folder\"") && message.contains("no file in /volume"),
        "{message}"
    );
    assert_eq!(last["context"]["fault"], "user");
}

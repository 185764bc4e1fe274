//! How a job's program is started, from the command line to the engine: its standard input, working directory and entry
//! point; the machine that it asks for; and its output since a time.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread;

use muster_testbed::wait_for;
use muster_tests::{BUSYBOX, RunningSubnet, muster};
use serde_json::Value;

use super::differential::{IMAGE, load_image};

/// Runs `muster job` with these words and this standard input.
fn job(subnet: &RunningSubnet, words: &[&str], stdin: &[u8]) -> Output {
    let mut running = Command::new(muster().unwrap())
        .args(["job", words.first().unwrap(), "--dir"])
        .arg(subnet.folder())
        .args(words.get(1..).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, bytes) = (running.stdin.take().unwrap(), stdin.to_vec());
    let writing = thread::spawn(move || drop(to.write_all(&bytes)));
    let ended = running.wait_with_output().unwrap();
    writing.join().unwrap();
    ended
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a job that ends well.
fn printed(subnet: &RunningSubnet, words: &[&str], stdin: &[u8]) -> Vec<u8> {
    let ended = job(subnet, words, stdin);
    assert_eq!(ended.status.code(), Some(0), "{words:?}: {}", text(&ended.stderr));
    ended.stdout
}

pub(crate) fn a_program_starts_as_its_user_says(subnet: &RunningSubnet) {
    load_image();
    // More than travels inside a request, and more than a text in a result has.
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3 << 20).collect();
    let run = ["run", IMAGE, "--entrypoint", BUSYBOX, "-i", "-", "--", "cat"];
    assert!(
        printed(subnet, &run, &bytes) == bytes,
        "other bytes than those that went in"
    );
    let script = "pwd; cat; cat /volume/stdin";
    let run = [
        "run",
        IMAGE,
        "-w",
        "/tmp/made/here",
        "--entrypoint",
        BUSYBOX,
        "-i",
        "-",
    ];
    let run = [&run[..], &["--", "sh", "-c", script]].concat();
    assert_eq!(text(&printed(subnet, &run, b"in\n")), "/tmp/made/here\nin\nin\n");
    let id = text(&printed(subnet, &["ls", "-n", "1", "--json"], b""));
    let id = serde_json::from_str::<Value>(&id).unwrap();
    let id = id[0]["uuid"].as_str().unwrap();
    let again = printed(subnet, &["run", "--again", id], b"");
    assert_eq!(
        text(&again),
        "/tmp/made/here\nin\nin\n",
        "its input is still there"
    );

    let refused = job(subnet, &["run", IMAGE, "-w", "here"], b"");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(
        text(&refused.stderr).contains("absolute path"),
        "{}",
        text(&refused.stderr)
    );
    let folder = tempfile::tempdir().unwrap();
    let source = format!("-={}", folder.path().display());
    let refused = job(subnet, &["run", IMAGE, "-i", &source, "--", "true"], b"");
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert!(
        text(&refused.stderr).contains("no folder"),
        "{}",
        text(&refused.stderr)
    );
}

pub(crate) fn a_file_describes_the_start_and_the_command_line_sets_its_values(subnet: &RunningSubnet) {
    load_image();
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("jobs");
    std::fs::create_dir(&below).unwrap();
    std::fs::write(below.join("words.txt"), "of the file\n").unwrap();
    let spec = format!(
        "image = {IMAGE:?}\nworkdir = \"/usr\"\nentrypoint = {BUSYBOX:?}\nmemory = \"1m\"\n\
         command = [\"sh\", \"-c\", \"pwd; echo $EPOCHS; cat\"]\n\
         [inputs]\n\"-\" = \"words.txt\"\n[parameters]\nepochs = 10\n"
    );
    std::fs::write(below.join("job.toml"), spec).unwrap();
    let path = below.join("job.toml").display().to_string();
    // A class has the memory that its miners report, which comes with the first job's end.
    wait_for("the hardware of the class", || {
        let listed = subnet.muster(&["subnet", "--json"])?;
        let listed: Value = serde_json::from_str(&listed.stdout)?;
        anyhow::Ok(listed["results"][0]["classes"][0]["hardware"].as_str().map(drop))
    })
    .unwrap();
    let run = [
        "run",
        "--spec",
        &path,
        "--set",
        "epochs=20",
        "--set",
        "workdir=/tmp",
    ];
    assert_eq!(text(&printed(subnet, &run, b"")), "/tmp\n20\nof the file\n");
    let refused = job(subnet, &["run", "--spec", &path, "--set", "epoch=20"], b"");
    let told = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(125) && told.contains("epochs"),
        "{told}"
    );
    let refused = job(subnet, &["run", IMAGE, "--gpus", "9", "--", "true"], b"");
    let told = text(&refused.stderr);
    assert!(
        refused.status.code() == Some(125) && told.contains("E0055") && told.contains("always_on.test: "),
        "{told}"
    );
}

pub(crate) fn the_output_since_a_time_is_printed(subnet: &RunningSubnet) {
    load_image();
    let run = ["run", IMAGE, "--", BUSYBOX, "sh", "-c", "echo out; echo err >&2"];
    printed(subnet, &run, b"");
    let since = |time: &str| job(subnet, &["logs", "@last", "--since", time], b"");
    let all = since("1h");
    assert_eq!(all.status.code(), Some(0), "{}", text(&all.stderr));
    assert_eq!(
        (text(&all.stdout), text(&all.stderr)),
        ("out\n".to_owned(), "err\n".to_owned())
    );
    let none = since("2100-01-01T00:00:00Z");
    assert_eq!(
        (text(&none.stdout), text(&none.stderr)),
        (String::new(), String::new())
    );
    let run = [
        "run",
        IMAGE,
        "-d",
        "--",
        BUSYBOX,
        "sh",
        "-c",
        "echo begun; sleep 600",
    ];
    let id = text(&printed(subnet, &run, b""));
    wait_for("the output of a job that runs", || {
        let logs = job(subnet, &["logs", id.trim()], b"");
        anyhow::Ok(Some(text(&logs.stdout)).filter(|shown| shown == "begun\n"))
    })
    .unwrap();
    job(subnet, &["cancel", id.trim()], b"");
    let refused = since("yesterday");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

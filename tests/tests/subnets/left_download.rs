//! Ctrl-C while the results of a job are fetched: the command ends at once, and the next one goes on where it stopped.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use muster_process::{Clock as _, SystemClock};
use muster_testbed::wait_for;
use muster_tests::muster;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const JOB: &str = "11111111-2222-4333-8444-555555555555";
const FILE: &str = "21111111-2222-4333-8444-555555555555";
const VALIDATOR: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
const AT: &str = "2026-01-01T00:00:00Z";

/// The length of the output, and the part of it that comes.
const LENGTH: usize = 64 << 20;
const COMES: usize = 1 << 20;

/// The time within which the command must end.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Serves a job that has ended, and the first part of its output. The rest never comes.
fn serve_a_stalling_download() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer(stream.unwrap(), address));
        }
    });
    address
}

fn answer(mut stream: TcpStream, address: SocketAddr) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap() == 0 {
            return;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.parse().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let file = |complete: bool| {
        json!({
            "id": FILE, "name": "big.bin", "size": complete.then_some(LENGTH), "complete": complete,
            "sha256": complete.then(|| "a".repeat(64)), "expires_at": AT, "created_at": AT,
            "upload_url": format!("http://{address}/files/{FILE}/upload?Signature=x"),
            "download_url": format!("http://{address}/files/{FILE}/content?Signature=x"),
        })
    };
    let words: Vec<_> = head.split(' ').take(2).collect();
    let (status, answer) = match *words.as_slice() {
        ["GET", "/health"] => ("200 OK", json!({"features": []})),
        ["POST", "/api/v1/files/"] => ("201 Created", file(false)),
        ["POST", "/api/v1/job-docker/"] => ("201 Created", job("received", body.get("uploads").unwrap())),
        ["GET", path] if path == format!("/api/v1/files/{FILE}/") => ("200 OK", file(true)),
        ["GET", path] if path == format!("/api/v1/jobs/{JOB}/") => {
            let uploads = json!([{
                "output_upload_type": "single_file_put", "relative_path": "big.bin",
                "url": format!("http://{address}/files/{FILE}/upload?Signature=x"),
            }]);
            ("200 OK", job("completed", &uploads))
        }
        ["GET", path] if path.starts_with(&format!("/files/{FILE}/content")) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&vec![7; COMES]).unwrap();
            // Until the client leaves.
            let _ = stream.read(&mut [0]);
            return;
        }
        _ => ("404 Not Found", json!({"detail": "Not found."})),
    };
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    stream
        .write_all(&[head.as_bytes(), answer.as_bytes()].concat())
        .unwrap();
}

fn job(status: &str, uploads: &Value) -> Value {
    json!({
        "uuid": JOB, "executor_class": "always_on.test", "created_at": AT, "last_update": AT, "status": "",
        "docker_image": "alpine", "args": [], "env": {}, "use_gpu": false, "target_validator_hotkey": VALIDATOR,
        "download_time_limit": 1, "execution_time_limit": 1, "streaming_start_time_limit": 1, "upload_time_limit": 1,
        "uploads": uploads, "status_history": [{"status": status, "metadata": {}, "created_at": AT}],
    })
}

/// The part of the output that has come to the folder.
fn part(folder: &Path) -> Option<usize> {
    let part = fs::metadata(folder.join("big.bin.aaaaaaaa.part")).ok()?;
    usize::try_from(part.len()).ok()
}

#[test]
fn ctrl_c_while_results_are_fetched_ends_at_once_and_keeps_what_came() {
    let address = serve_a_stalling_download();
    let folder = tempfile::tempdir().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut running = Command::new(muster().unwrap())
        .args(["job", "run", "alpine", "-o", "big.bin", "--validator", VALIDATOR])
        .args(["--facilitator", &format!("http://{address}")])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env("MUSTER_API_KEY", "key")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.reopen().unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(log.path()).unwrap();
    wait_for("the part of the output that comes", || {
        match running.try_wait()? {
            Some(_) => Err(std::io::Error::other(said())),
            None => Ok(part(folder.path()).filter(|length| *length == COMES)),
        }
    })
    .unwrap();
    let clock = SystemClock::new();
    let asked = clock.now();
    kill(
        Pid::from_raw(i32::try_from(running.id()).unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let ended = running.wait().unwrap();
    let took = clock.now().since(asked);
    assert_eq!(ended.code(), Some(130), "{}", said());
    assert!(took <= AT_ONCE, "{took:?}");
    assert!(
        said().contains(&format!("`muster job get {JOB} --save .` goes on")),
        "{}",
        said()
    );
    assert_eq!(part(folder.path()), Some(COMES), "the part stays");
    assert!(!folder.path().join("big.bin").exists());
}

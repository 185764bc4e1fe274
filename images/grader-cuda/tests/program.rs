//! The program as it is shipped, in front of a driver whose card is the emulator: what it asks of the driver, and its service.
//!
//! That driver is preloaded; everything it does not have comes from the libcuda that the program was built against.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use muster_hardware_proof::chain::{ChainShape, ChainSpec};
use muster_hardware_proof::keys::{BatchId, ExecutorName, Identity, Nonce};
use muster_hardware_proof::message::Spec;
use muster_hardware_proof::session::{Action, Input, Validator};
use muster_hardware_proof::spec::Numbers;
use muster_hardware_proof::{Engine, Limits, Verdict};

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_muster-grader-cuda"));
    program.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    program
}

fn with_a_card() -> Command {
    let mut program = program();
    program.env("LD_PRELOAD", env!("MUSTER_EMULATED_DRIVER"));
    program
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn the_card_of_a_driver_gives_the_golden_vectors() {
    let output = with_a_card().args(["check", "--vectors"]).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(": equal").count(), 4, "{said}");
    assert!(said.contains("emulated card, compute capability 8.0"), "{said}");
}

#[test]
fn a_benchmark_writes_its_table() {
    let sizes = [
        "--log2-n=8",
        "--rounds=1",
        "--memory-gib=0",
        "--log2-walks=3",
        "--log2-leaves=0",
        "--repeat=1",
    ];
    let output = with_a_card().arg("bench").args(sizes).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    for line in [
        "| int8: product, n = 256",
        "| CHAIN fp16",
        "| walks against the copy",
        "| suggested WALK",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn a_card_that_is_not_there_is_named() {
    let output = with_a_card().args(["check", "--card", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("no device to prove with"),
        "{}",
        said(&output)
    );
}

/// Ends the program whatever comes of the test.
struct Serving(Child);

impl Serving {
    /// Waits until it does, or has ended.
    fn listens(&mut self, socket: &Path) {
        while UnixStream::connect(socket).is_err() {
            assert_eq!(self.0.try_wait().unwrap(), None, "the program ended");
            std::thread::yield_now();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_validator_passes_the_service_over_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("http.sock");
    let mut serving = Serving(with_a_card().arg("--socket").arg(&socket).spawn().unwrap());
    serving.listens(&socket);
    let shape = ChainShape {
        numbers: Numbers::Int8,
        log2_n: 8,
        rounds: 1,
        entries: 16,
    };
    let identity = Identity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: Nonce([3; 32]),
    };
    let limits = Limits {
        fill_us: 1_000_000,
        commit_us: 1_000_000,
        open_us: 1_000_000,
        allowance_us: 0,
    };
    let spec = Spec::Chain(ChainSpec::new(identity, shape, None).unwrap());
    let mut validator = Validator::new(spec, limits);
    validator.apply(Input::Started, 0);
    let commitment = ask(&socket, validator.challenge());
    assert_eq!(
        validator.apply(Input::Message(&commitment), 1),
        Some(Action::NeedRandomness)
    );
    let Some(Action::Send(draw)) = validator.apply(Input::Randomness([9; 32]), 2) else {
        panic!("a draw follows a commitment")
    };
    let opening = ask(&socket, &draw);
    assert_eq!(validator.apply(Input::Message(&opening), 3), Some(Action::End));
    let verdict = validator.into_evidence().judge(Engine::best());
    assert!(matches!(verdict, Verdict::Passed(_)), "{verdict:?}");
}

/// One message over a connection of its own.
fn ask(socket: &Path, message: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = message.len();
    write!(
        stream,
        "POST /v1/grade HTTP/1.1\r\nhost: grader\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    )
    .unwrap();
    stream.write_all(message).unwrap();
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    answer.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    while line != "\r\n" {
        line.clear();
        answer.read_line(&mut line).unwrap();
    }
    let mut body = Vec::new();
    answer.read_to_end(&mut body).unwrap();
    body
}

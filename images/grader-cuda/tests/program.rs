//! Runs the shipped program with a driver whose card is the emulator, and tests its calls of the driver and its
//! service.
//!
//! That driver is preloaded. All other functions come from the libcuda against which the program was built.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName};
use muster_hardware_proof::challenge_message::ProofSpec;
use muster_hardware_proof::conversation::{ValidatorAction, ValidatorConversation, ValidatorInput};
use muster_hardware_proof::matmul::{MatmulShape, MatmulSpec};
use muster_hardware_proof::spec::NumberFormat;
use muster_hardware_proof::{InstructionSet, Limits, ProofVerdict};

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
        "| MATMUL fp16",
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

/// Ends the program when the test ends.
struct Serving(Child);

impl Serving {
    /// Waits until the program listens or has ended.
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
    let shape = MatmulShape {
        numbers: NumberFormat::Int8,
        log2_n: 8,
        rounds: 1,
        entries: 16,
    };
    let identity = ChallengeIdentity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: ChallengeNonce([3; 32]),
    };
    let limits = Limits {
        fill_us: 1_000_000,
        commit_us: 1_000_000,
        open_us: 1_000_000,
        allowance_us: 0,
    };
    let spec = ProofSpec::Matmul(MatmulSpec::new(identity, shape, None).unwrap());
    let mut validator = ValidatorConversation::new(spec, limits);
    validator.apply(ValidatorInput::Started, 0);
    let commitment = ask(&socket, validator.challenge());
    assert_eq!(
        validator.apply(ValidatorInput::Message(&commitment), 1),
        Some(ValidatorAction::NeedRandomness)
    );
    let Some(ValidatorAction::Send(draw)) = validator.apply(ValidatorInput::Randomness([9; 32]), 2) else {
        panic!("a draw follows a commitment")
    };
    let opening = ask(&socket, &draw);
    assert_eq!(
        validator.apply(ValidatorInput::Message(&opening), 3),
        Some(ValidatorAction::End)
    );
    let verdict = validator.into_evidence().judge(InstructionSet::best());
    assert!(matches!(verdict, ProofVerdict::Passed(_)), "{verdict:?}");
}

/// Sends one message over a connection of its own and returns the answer.
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

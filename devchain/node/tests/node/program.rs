//! The program as people start it.

use muster_devchain::spec::Spec;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster-devchain"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn signal(child: &Child, name: &str) {
    assert!(
        Command::new("kill")
            .args([name, &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn it_says_where_it_listens_and_stops_when_asked() {
    for name in ["-TERM", "-INT"] {
        let mut child = program()
            .args(["--port", "0", "--block-time-ms", "20"])
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            (words.len(), words[0], words[2]),
            (4, "listening", "genesis"),
            "{line}"
        );
        assert!(
            words[1].starts_with("ws://127.0.0.1:") && words[3].starts_with("0x"),
            "{line}"
        );
        signal(&child, name);
        assert!(child.wait().unwrap().success(), "{name}");
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "one line on standard output and no more");
    }
}

#[test]
fn it_prints_its_default_specification() {
    let output = run(&["--print-default-spec"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(Spec::parse(&text).unwrap(), Spec::development().unwrap());
}

#[test]
fn wrong_input_stops_it_with_all_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.json");
    std::fs::write(&path, r#"{"subnets":[{"netuid":0},{"netuid":1,"tempo":0}]}"#).unwrap();
    let output = run(&["--port", "0", "--spec", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(64), 0),
        "{text}"
    );
    assert!(
        text.contains("subnets[0]") && text.contains("subnets[1]"),
        "{text}"
    );

    let output = run(&["--spec", dir.path().join("missing.json").to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(text.contains("missing.json"), "{text}");

    for arguments in [
        &["--port", "70000"][..],
        &["--block-time-ms", "0"],
        &["--nonsense"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_taken_port_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(&["--port", &port, "--manual-seal"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&port) && text.contains("--port"), "{text}");
}

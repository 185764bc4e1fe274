//! Commands whose output is longer than a result's text, or is no text: `muster job run IMAGE -- COMMAND > FILE` gives
//! the file that docker gives. The other commands of the corpus run in the tests of the executor.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::{Command, Output, Stdio};

use muster_executor::ContainerEngine;
use muster_executor::image_archive::{ImageArchive, ImageContent, ImageFile};
use muster_tests::{BUSYBOX, RunningSubnet, muster};
use serde::Deserialize;

const IMAGE: &str = "muster/differential-busybox:subnet";

#[derive(Deserialize)]
struct CommandTable {
    command: Vec<CorpusCommand>,
}

#[derive(Deserialize)]
struct CorpusCommand {
    name: String,
    run: Vec<String>,
    #[serde(default)]
    through: String,
}

fn load_image() {
    let busybox = std::fs::read(BUSYBOX).or_else(|_| std::fs::read("/usr/bin/busybox"));
    let archive = ImageArchive::new(&ImageContent {
        tag: IMAGE.to_owned(),
        files: vec![ImageFile {
            path: BUSYBOX.to_owned(),
            mode: 0o755,
            contents: busybox.unwrap(),
        }],
        ..ImageContent::default()
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = ContainerEngine::connect("").await.unwrap();
        engine.load(archive.unwrap().bytes).await.unwrap();
    });
}

fn ended(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn a_job_prints_the_bytes_that_docker_prints(subnet: &RunningSubnet) {
    load_image();
    let table: CommandTable =
        toml::from_str(include_str!("../../../executor/tests/differential/commands.toml")).unwrap();
    let commands: Vec<_> = table
        .command
        .iter()
        .filter(|command| command.through == "cli")
        .collect();
    assert!(commands.len() >= 3);
    for command in commands {
        let mut docker = Command::new("docker");
        docker
            .args(["run", "--rm", "--network", "none", IMAGE])
            .args(&command.run);
        let mut job = Command::new(muster().unwrap());
        job.args(["job", "run", "--dir"]).arg(subnet.folder());
        job.args([IMAGE, "--"]).args(&command.run);
        let (theirs, ours) = (ended(&mut docker), ended(&mut job));
        let words = String::from_utf8_lossy(&ours.stderr);
        let name = &command.name;
        assert_eq!(ours.status.code(), theirs.status.code(), "{name}: {words}");
        assert_eq!(ours.stdout.len(), theirs.stdout.len(), "{name}: {words}");
        assert!(
            ours.stdout == theirs.stdout,
            "{name}: other bytes than docker's; {words}"
        );
    }
}

//! `muster job run` beside `docker run`, in what the tests of the executor cannot see: output that is longer than a
//! result's text or no text, folders as they are delivered, and clients that are killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use muster_executor::ContainerEngine;
use muster_executor::image_archive::{ImageArchive, ImageContent, ImageFile};
use muster_tests::{BUSYBOX, RunningSubnet, muster};
use serde::Deserialize;
use serde_json::Value;

/// An image with a shell, which [`load_image`] gives the engine.
pub(crate) const IMAGE: &str = "muster/differential-busybox:subnet";

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

pub(crate) fn load_image() {
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

/// An entry of a folder.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Folder { mode: u32 },
    File { mode: u32, contents: Vec<u8> },
    Link { target: OsString },
    Other,
}

/// The entries below a folder by their paths, with their permission bits as far as the user's mask leaves them. A
/// delivered folder can always be written by its owner.
fn entries(folder: &Path) -> BTreeMap<OsString, Entry> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(above) = waiting.pop() {
        for path in std::fs::read_dir(above)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            let traits = path.symlink_metadata().unwrap();
            let (kind, mode) = (traits.file_type(), traits.permissions().mode() & 0o755);
            let entry = if kind.is_dir() {
                waiting.push(path.clone());
                Entry::Folder { mode: mode | 0o700 }
            } else if kind.is_symlink() {
                Entry::Link {
                    target: path.read_link().unwrap().into(),
                }
            } else if kind.is_file() {
                let contents = std::fs::read(&path).unwrap();
                Entry::File { mode, contents }
            } else {
                assert!(kind.is_fifo(), "{}", path.display());
                Entry::Other
            };
            found.insert(OsString::from(path.strip_prefix(folder).unwrap()), entry);
        }
    }
    found
}

/// A program that leaves files of many modes, kinds and names in `/output`.
const LEAVE_FILES: &str = "b() { /bin/busybox \"$@\"; }; cd /output; b mkdir -p d/deep/er empty closed; \
    for mode in 400 444 600 640 644 666 755 700 500 777; do echo $mode > d/$mode; b chmod $mode d/$mode; done; \
    b chmod 700 closed; echo x > closed/x; b chmod 555 d/deep/er; : > d/nothing; b ln d/644 d/hard; \
    b ln -s 644 d/beside; b ln -s ../../d/755 d/deep/up; b ln -s deep d/folder; b ln -s d/755 last; \
    b ln -s /etc/hosts outside; b ln -s ../../etc/hosts d/above; b ln -s none d/dangling; b ln -s /output/d/644 d/whole; \
    b mkfifo d/pipe; b truncate -s 3M d/sparse; b mkdir .hidden; echo x > .hidden/.x; \
    for name in ' ' 'two words' -dash '*' 'a\\b' \"$(printf 'new\\nline')\" \"$(printf '\\303\\244')\" \
    \"$(printf 'r\\351sultat')\" '~' '$x' \"$(printf 'n%0254d' 0)\"; do echo \"$name\" > d/\"$name\"; done";

/// The entries that no job delivers: links that lead out of the folder, and pipes.
const NOT_DELIVERED: [&str; 3] = ["outside", "d/above", "d/pipe"];

pub(crate) fn a_job_delivers_the_folder_that_docker_leaves(subnet: &RunningSubnet) {
    load_image();
    let here = tempfile::tempdir().unwrap();
    let (theirs, ours) = (here.path().join("theirs"), here.path().join("ours"));
    for folder in [&theirs, &ours] {
        std::fs::create_dir(folder).unwrap();
    }
    let mut docker = Command::new("docker");
    docker
        .args(["run", "--rm", "--network", "none", "--volume"])
        .arg(format!("{}:/output", theirs.display()))
        .args([IMAGE, BUSYBOX, "sh", "-c", LEAVE_FILES]);
    let left = ended(&mut docker);
    assert!(left.status.success() && left.stderr.is_empty(), "{left:?}");
    let mut job = Command::new("sh");
    job.args(["-c", "umask 022; exec \"$@\"", "sh"]);
    job.arg(muster().unwrap());
    job.args(["job", "run", "--dir"]).arg(subnet.folder());
    job.args(["--output", ".", "--save"]).arg(&ours);
    job.args([IMAGE, "--", BUSYBOX, "sh", "-c", LEAVE_FILES]);
    let ran = ended(&mut job);
    let words = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{words}");
    let (mut theirs, ours) = (entries(&theirs), entries(&ours));
    for name in NOT_DELIVERED {
        assert!(theirs.remove(OsStr::new(name)).is_some(), "{name}");
        assert!(words.contains(name), "{name} is not named: {words}");
    }
    // A link by a path in the container leads to the same file where the folder is now.
    let moved = Entry::Link {
        target: "../d/644".into(),
    };
    theirs.insert("d/whole".into(), moved).unwrap();
    for (name, entry) in &theirs {
        assert_eq!(ours.get(name), Some(entry), "{}; {words}", name.display());
    }
    assert_eq!(ours.len(), theirs.len(), "{:?}", ours.keys());
}

/// A program that goes on after its first line.
const SPEAK_AND_WAIT: &str = "echo first; /bin/busybox sleep 3; echo last; echo error >&2; exit 7";

/// Starts a client, and kills it when its program has spoken.
fn kill_when_it_speaks(client: &mut Command) {
    let mut client = client
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(client.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(first, "first\n");
}

pub(crate) fn a_program_outlives_its_killed_client_as_in_docker(subnet: &RunningSubnet) {
    load_image();
    let name = format!("muster-differential-{}", std::process::id());
    let mut docker = Command::new("docker");
    docker.args(["run", "--name", &name, "--network", "none", IMAGE]);
    kill_when_it_speaks(docker.args([BUSYBOX, "sh", "-c", SPEAK_AND_WAIT]));
    let code = ended(Command::new("docker").args(["wait", &name]));
    let theirs = ended(Command::new("docker").args(["logs", &name]));
    ended(Command::new("docker").args(["rm", "--force", &name]));

    let mut job = Command::new(muster().unwrap());
    job.args(["job", "run", "--dir"]).arg(subnet.folder());
    kill_when_it_speaks(job.args([IMAGE, "--", BUSYBOX, "sh", "-c", SPEAK_AND_WAIT]));
    let listed = subnet.muster(&["job", "ls", "--limit", "1", "--json"]).unwrap();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let id = listed.pointer("/0/uuid").and_then(Value::as_str).unwrap();
    let ours = subnet.muster(&["job", "logs", id, "--follow"]).unwrap();
    assert_eq!(code.stdout, b"7\n");
    assert_eq!(ours.code, Some(7), "{ours:?}");
    assert_eq!(ours.stdout.as_bytes(), theirs.stdout, "{ours:?}");
    assert!(ours.stderr.contains("error"), "{ours:?}");
}

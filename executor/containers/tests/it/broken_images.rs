//! Images that no engine can start: each is told as its user's fault, at once, without a path of the machine.

use std::collections::HashMap;

use muster_containers::engine_answer::AnswerFault;
use muster_containers::image_folders::UNSEEN;
use muster_containers::sandbox::{Bind, Gpus, ResourceLimits, Root, RunAs, Sandbox};
use muster_containers::{ContainerEngine, EngineError, ImageArchive, ImageContent, ImageFile};
use muster_process::Backoff;
use uuid::Uuid;

use crate::support::{LABEL, clock, engine, host_files};

const LIMITS: ResourceLimits = ResourceLimits {
    nano_cpus: 1_000_000_000,
    memory: 64 << 20,
    shm: 1 << 20,
    tmpfs: 1 << 20,
    pids: 16,
    disk: 1 << 20,
};

#[derive(Default)]
struct BrokenImage {
    user: &'static str,
    working_dir: Option<&'static str>,
    /// Paths of files that hold `x`.
    files: &'static [&'static str],
    entrypoint: &'static [&'static str],
}

fn kinds() -> Vec<(&'static str, BrokenImage, AnswerFault)> {
    let program: &[&str] = &["/program"];
    let base = || BrokenImage {
        entrypoint: program,
        ..BrokenImage::default()
    };
    vec![
        ("no program", BrokenImage::default(), AnswerFault::Image),
        (
            "unknown user",
            BrokenImage {
                user: "nosuchuser",
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "unknown group",
            BrokenImage {
                user: "0:nogroup",
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "user out of range",
            BrokenImage {
                user: "99999999999",
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "folder below a file",
            BrokenImage {
                working_dir: Some("/program/x"),
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "folder is a file",
            BrokenImage {
                working_dir: Some("/program"),
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "output is a file",
            BrokenImage {
                files: &["/output"],
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "scratch is a file",
            BrokenImage {
                files: &["/tmp"],
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "scratch below a file",
            BrokenImage {
                files: &["/var"],
                ..base()
            },
            AnswerFault::Image,
        ),
        (
            "missing program",
            BrokenImage {
                entrypoint: &["/nope"],
                ..base()
            },
            AnswerFault::User,
        ),
        (
            "program below a file",
            BrokenImage {
                entrypoint: &["/program/x"],
                ..base()
            },
            AnswerFault::User,
        ),
        (
            "program is no program",
            BrokenImage {
                entrypoint: &["/text"],
                files: &["/text"],
                ..base()
            },
            AnswerFault::User,
        ),
    ]
}

fn file(path: &str, mode: u32) -> ImageFile {
    ImageFile {
        path: path.to_owned(),
        mode,
        contents: b"x".to_vec(),
    }
}

/// Creates and starts a container as an executor does, with its retries.
async fn start(engine: &ContainerEngine, name: &str, broken: &BrokenImage) -> Result<(), EngineError> {
    let texts = broken.files.iter().map(|path| file(path, 0o644));
    let content = ImageContent {
        tag: format!("muster/engine-test-broken:{name}"),
        files: texts.chain([file("/program", 0o755)]).collect(),
        entrypoint: broken.entrypoint.iter().map(|&part| part.to_owned()).collect(),
        user: broken.user.to_owned(),
        ..ImageContent::default()
    };
    let archive = ImageArchive::new(&content).unwrap();
    engine.load(archive.bytes.clone()).await?;
    let image = engine.find_image(&archive.id.to_string()).await?.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox {
        image: &image,
        command: None,
        environment: vec![],
        binds: vec![Bind {
            source: folder.path().to_owned(),
            target: "/output".to_owned(),
            writable: true,
        }],
        host_files: host_files(),
        labels: HashMap::from([(LABEL.to_owned(), String::new())]),
        image_folders: &UNSEEN,
        image_files: std::path::Path::new("/"),
        allowance: LIMITS,
        runtime: "",
        gpus: Gpus::None,
        run_as: RunAs::Image,
        root: Root::ReadOnly,
    };
    let mut body = sandbox.container().unwrap();
    body.working_dir = broken.working_dir.map(str::to_owned);
    let clock = clock();
    let create = || engine.create(name, body.clone());
    let begin = || engine.start(name);
    let created = Backoff::OUTAGE.retry(&clock, "create a container", create).await;
    let started = match created {
        Ok(()) => Backoff::OUTAGE.retry(&clock, "start a container", begin).await,
        Err(error) => Err(error),
    };
    engine.remove(name).await?;
    engine.remove_tag(&archive.id.to_string()).await?;
    let shown = started
        .as_ref()
        .err()
        .and_then(EngineError::answer)
        .map(|answer| answer.message);
    assert!(
        !shown
            .unwrap_or_default()
            .contains(&folder.path().display().to_string()),
        "a folder of the machine is told"
    );
    started
}

#[tokio::test]
async fn every_kind_of_broken_image_is_told_at_once_as_its_users_fault() {
    let engine = engine().await;
    for (kind, broken, fault) in kinds() {
        let name = format!("muster-broken-{}", Uuid::new_v4());
        let error = start(&engine, &name, &broken).await.expect_err(kind);
        let answer = error.answer().unwrap_or_else(|| panic!("{kind}: {error:?}"));
        assert_eq!(answer.fault, fault, "{kind}: {}", answer.message);
        assert_eq!(answer.exit_code.is_some(), fault == AnswerFault::User, "{kind}");
        assert!(
            !error.is_recoverable(),
            "{kind}: it would be tried for half a minute"
        );
        for path in ["/var/lib", "/tmp/.", "/proc/self"] {
            assert!(!answer.message.contains(path), "{kind}: {}", answer.message);
        }
    }
}

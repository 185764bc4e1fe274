//! Users' own images through real processes.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use muster_executor::ContainerEngine;
use muster_executor::image_archive::{ImageArchive, ImageContent, ImageFile};
use muster_protocol::ImageId;
use muster_tests::{BUSYBOX, REGISTRY_PASSWORD, REGISTRY_USER, Registry, RunningSubnet};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub(crate) fn a_job_runs_an_image_from_an_archive_of_its_user(subnet: &RunningSubnet) {
    let here = tempfile::tempdir().unwrap();
    let words = format!("only in this image: {}", here.path().display());
    let busybox = std::fs::read(BUSYBOX).or_else(|_| std::fs::read("/usr/bin/busybox"));
    let file = |path: &str, contents: Vec<u8>| ImageFile {
        path: path.to_owned(),
        mode: 0o755,
        contents,
    };
    let archive = ImageArchive::new(&ImageContent {
        tag: "muster/users-own:1".to_owned(),
        files: vec![
            file(BUSYBOX, busybox.unwrap()),
            file("/words", words.clone().into_bytes()),
        ],
        entrypoint: vec![BUSYBOX.to_owned(), "cat".to_owned()],
        ..ImageContent::default()
    })
    .unwrap();
    // Packed, as `docker save IMAGE | gzip` writes it.
    let plain = here.path().join("own.tar");
    std::fs::write(&plain, &archive.bytes).unwrap();
    let packed = std::process::Command::new("gzip").arg(&plain).status().unwrap();
    assert!(packed.success());
    let path = here.path().join("own.tar.gz");
    let args = [
        "job",
        "run",
        "--image-archive",
        path.to_str().unwrap(),
        "--image-time-limit",
        "5m",
        "--json",
        "--",
        "/words",
    ];
    let ran = subnet.muster(&args).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", subnet.log("validator"));
    let view: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(view["stdout"], json!(words));
    assert_eq!(view["docker_image"], json!(archive.id));
    let terms = &view["muster"]["terms"];
    assert_eq!(terms["image_time_limit"], 300);
    assert_eq!(terms["image_archive"]["length"], json!(archive.bytes.len()));
    assert!(view["muster"]["signature"].is_null(), "{view}");

    // An archive that is no image stops before anything is sent.
    std::fs::write(&path, b"hello").unwrap();
    let refused = subnet.muster(&args).unwrap();
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("own.tar.gz"), "{refused:?}");
    assert!(refused.stderr.contains("docker save"), "{refused:?}");
}

/// The files below a folder that contain one of these texts.
fn files_with(folder: &Path, texts: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                // A journal of a store may vanish between the listing and this.
                let bytes = std::fs::read(entry.path()).unwrap_or_default();
                let holds =
                    |text: &Vec<u8>| bytes.windows(text.len()).any(|window| window == text.as_slice());
                if texts.iter().any(holds) {
                    found.push(entry.path());
                }
            }
        }
    }
    found.sort();
    found
}

/// The forms in which programs write a password down.
fn forms_of(password: &str) -> Vec<Vec<u8>> {
    let pair = format!("{REGISTRY_USER}:{password}");
    let mut forms = vec![password.as_bytes().to_vec(), hex::encode(password).into_bytes()];
    for text in [password, pair.as_str()] {
        // The end of the encoding depends on what follows.
        for encoded in [STANDARD.encode(text), URL_SAFE_NO_PAD.encode(text)] {
            let whole = text.len() / 3 * 4;
            forms.push(encoded.as_bytes()[..whole].to_vec());
        }
    }
    forms
}

/// Removes an image from this machine's engine.
fn forget(runtime: &Runtime, id: ImageId) {
    runtime.block_on(async {
        let engine = ContainerEngine::connect("").await.unwrap();
        for name in engine.list_tags(id).await.unwrap() {
            engine.remove_tag(&name).await.unwrap();
        }
        engine.remove_tag(&id.to_string()).await.unwrap();
    });
}

#[test]
fn a_users_login_brings_the_image_through_all_roles_and_is_written_down_nowhere() {
    let runtime = Runtime::new().unwrap();
    muster_process::tls::install_provider();
    let registry = Registry::start_with_login().unwrap();
    let image = runtime.block_on(registry.publish(1_000)).unwrap();
    let name = format!("{}/{}", registry.address(), image.place);
    let mut subnet = RunningSubnet::start().unwrap();
    let script = format!("{BUSYBOX} echo it came");
    let with_login = |password: &str| {
        let args = [
            "job",
            "run",
            name.as_str(),
            "--registry-user",
            REGISTRY_USER,
            "--registry-password-stdin",
        ];
        let rest = ["--json", "--", "-c", script.as_str()];
        subnet
            .muster_with_input(&[&args[..], &rest].concat(), &format!("{password}\n"))
            .unwrap()
    };
    let ran = with_login(REGISTRY_PASSWORD);
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", subnet.log("validator"));
    let view: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(view["stdout"], json!("it came\n"));
    assert!(
        view.get("muster").is_none(),
        "the view tells nothing of the login: {view}"
    );
    let last = view["status_history"].as_array().unwrap().last().unwrap().clone();
    let receipts = last["metadata"]["muster"]["receipts"].as_array().unwrap().len();
    assert_eq!(receipts, 3, "{last}");

    // Another user, or the same one without the login, does not get the image, although the engine has it.
    let plain = ["job", "run", name.as_str(), "--json", "--", "-c", script.as_str()];
    let without = subnet.muster(&plain).unwrap();
    let wrong = with_login("not-the-password-7c2b");
    for refused in [&without, &wrong] {
        let view: Value =
            serde_json::from_str(&refused.stdout).unwrap_or_else(|error| panic!("{error}: {refused:?}"));
        let history = view["status_history"].as_array().unwrap();
        let details = &history.last().unwrap()["metadata"]["horde_failure_details"];
        assert_eq!(
            (refused.code, details["context"]["image_fetch"].as_str()),
            (Some(125), Some("no_right")),
            "{view:#}"
        );
    }

    // Everything that the roles wrote down, while they run and after they have stopped.
    let job = view["uuid"].as_str().unwrap();
    let page = subnet.validator_state().unwrap().to_string();
    let shown = subnet.job(job).unwrap().to_string();
    for _ in 0..2 {
        let naming: Vec<_> = files_with(subnet.folder(), &[image.place.clone().into_bytes()]);
        for store in ["facilitator", "validator"] {
            let has = |path: &PathBuf| path.to_string_lossy().contains(store);
            assert!(
                naming.iter().any(has),
                "the search finds what is there: {naming:?}"
            );
        }
        for password in [REGISTRY_PASSWORD, "not-the-password-7c2b"] {
            let forms = forms_of(password);
            assert_eq!(files_with(subnet.folder(), &forms), Vec::<PathBuf>::new());
            for told in [
                &page,
                &shown,
                &ran.stdout,
                &ran.stderr,
                &wrong.stdout,
                &wrong.stderr,
            ] {
                let bytes = told.as_bytes();
                let holds =
                    |form: &Vec<u8>| bytes.windows(form.len()).any(|window| window == form.as_slice());
                assert!(!forms.iter().any(holds), "{told}");
            }
        }
        subnet.stop().unwrap();
    }
    forget(&runtime, image.id);
}

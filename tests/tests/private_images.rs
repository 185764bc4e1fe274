//! Users' own images through real processes.

use muster_executor::image_archive::{ImageArchive, ImageContent, ImageFile};
use muster_tests::{BUSYBOX, RunningSubnet};
use serde_json::{Value, json};

#[test]
fn a_job_runs_an_image_from_an_archive_of_its_user() {
    let subnet = RunningSubnet::start().unwrap();
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
    let path = here.path().join("own.tar");
    std::fs::write(&path, &archive.bytes).unwrap();
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
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.stderr.contains("own.tar"), "{refused:?}");
}

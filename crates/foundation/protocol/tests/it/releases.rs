//! The frames that each release has sent are read by every later version. A release writes them down once, by
//! `MUSTER_WRITE_FRAMES=1`, and nobody changes the file afterwards.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

use muster_protocol::wire::facilitator::ToFacilitator;

use crate::golden::{computehorde_frames, facilitator_frames, rewrite, round_trip};
use crate::sockets::own_frames;

/// The beginnings of the names of a release's two files: frames to a facilitator, and those between validator, miner
/// and executor. Some of their messages have one name and other fields.
const TO_FACILITATOR: &str = "frames-to-facilitator-";
const OTHERS: &str = "frames-";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/vectors")
}

fn write_frames(beginning: &str, frames: &[String]) {
    let name = format!("{beginning}{}.jsonl", env!("CARGO_PKG_VERSION"));
    fs::write(folder().join(name), frames.join("\n") + "\n").unwrap();
}

#[test]
fn frames_of_every_release_are_read() {
    if std::env::var_os("MUSTER_WRITE_FRAMES").is_some() {
        write_frames(TO_FACILITATOR, &facilitator_frames());
        write_frames(OTHERS, &[computehorde_frames(), own_frames()].concat());
    }
    let mut files = 0;
    for file in fs::read_dir(folder()).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        if !name.starts_with(OTHERS) {
            continue;
        }
        files += 1;
        let frames = fs::read_to_string(file.path()).unwrap();
        assert!(frames.lines().count() > 10, "{name} is short");
        for frame in frames.lines() {
            // Both panic, with the frame, where it is not read.
            if name.starts_with(TO_FACILITATOR) {
                rewrite::<ToFacilitator>(&name, frame);
            } else {
                round_trip(&name, frame);
            }
        }
    }
    assert!(files >= 2, "no release has written its frames");
}

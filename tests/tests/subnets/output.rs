//! The output of programs that print much, or have no room for it, as `muster job run` prints it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "sections of a test fail as tests do"
)]

use std::io::Read as _;
use std::process::{Command, Stdio};

use muster_tests::{RunningSubnet, muster};
use tempfile::NamedTempFile;

/// The bytes of a stream that an executor keeps by default.
const BOUND: u64 = 1 << 30;

/// A command whose job prints about so many bytes in lines of 80.
fn printing(subnet: &RunningSubnet, bytes: u64) -> Command {
    let mut job = Command::new(muster().unwrap());
    job.args(["job", "run", "--dir"]).arg(subnet.folder());
    job.args(["--timeout", "1h", subnet.demo_image(), "--"]);
    job.args(["probe", "print", &bytes.to_string()]);
    job.stdin(Stdio::null());
    job
}

/// The bytes that it prints.
fn lines(bytes: usize) -> Vec<u8> {
    let line = [vec![b'x'; 79], vec![b'\n']].concat();
    [line.repeat(bytes / 80), b"end\n".to_vec()].concat()
}

#[test]
#[ignore = "soak: a gibibyte in lines takes minutes, so `cargo xtask soak` runs it"]
fn a_gibibyte_of_output_comes_whole() {
    let subnet = RunningSubnet::start().unwrap();
    let bytes = BOUND - 80;
    let told = NamedTempFile::new().unwrap();
    let mut job = printing(&subnet, bytes)
        .stdout(Stdio::piped())
        .stderr(told.reopen().unwrap())
        .spawn()
        .unwrap();
    let mut from = job.stdout.take().unwrap();
    // The lines repeat, so a piece of them has what stands behind any offset.
    let (mut at, mut piece, repeated) = (0, vec![0; 1 << 20], lines((1 << 20) + 160));
    let end = usize::try_from(bytes / 80 * 80).unwrap();
    while at < end {
        let wanted = piece.len().min(end - at);
        let read = from.read(&mut piece[..wanted]).unwrap();
        assert_ne!(
            read,
            0,
            "it ends at {at}: {}",
            std::fs::read_to_string(told.path()).unwrap()
        );
        assert!(
            piece[..read] == repeated[at % 80..][..read],
            "other bytes from {at} on"
        );
        at += read;
    }
    let mut rest = String::new();
    from.read_to_string(&mut rest).unwrap();
    let ended = job.wait().unwrap();
    let told = std::fs::read_to_string(told.path()).unwrap();
    assert_eq!((ended.code(), rest.as_str()), (Some(0), "end\n"), "{told}");
}

/// Restarts the facilitator with a small room for each account, and then with the usual one again.
pub(crate) fn an_account_without_room_gets_the_beginning_and_is_told_how_much_there_is(
    subnet: &RunningSubnet,
) {
    let config = subnet.folder().join("config/facilitator.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let small = text.replace("[files]\n", "[files]\nquota_mib = 40\nmax_file_mib = 10\n");
    assert_ne!(small, text);
    std::fs::write(&config, small).unwrap();
    subnet.restart("facilitator").unwrap();
    // Of 40 MiB the first two leave 9, which take one block of the third.
    for bytes in [18_000_000, 15_000_000] {
        let filled = printing(subnet, bytes).output().unwrap();
        let told = String::from_utf8_lossy(&filled.stderr);
        assert_eq!(filled.status.code(), Some(0), "{told}");
        assert!(filled.stdout == lines(usize::try_from(bytes).unwrap()), "{told}");
    }
    let cut = printing(subnet, 20_000_000).output().unwrap();
    let told = String::from_utf8_lossy(&cut.stderr);
    assert_eq!(cut.status.code(), Some(125), "{told}");
    assert!(
        cut.stdout == lines(20_000_000)[..8 << 20],
        "{} bytes: {told}",
        cut.stdout.len()
    );
    let expected = "output incomplete from byte 8388608 of 20000004, because the account has no more room";
    assert!(told.contains(expected), "{told}");
    std::fs::write(&config, text).unwrap();
    subnet.restart("facilitator").unwrap();
}

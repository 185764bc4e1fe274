//! Which files other processes of this machine have open for writing.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use muster_checkpoints::FileTree;

/// Whether a process of this machine has a file of the tree in `folder` open for writing, as far as this process may
/// see. A process that is hidden from it counts as one that has none open: the rest that a checkpoint must have had
/// remains. The look at all processes blocks.
pub fn is_open_for_writing(folder: &Path, tree: &FileTree) -> bool {
    fs::metadata(folder).is_ok_and(|folder| is_open_on(folder.dev(), tree))
}

/// Whether a file of the tree, which lies on this device, is open. Each job has a disk of its own, so files of two jobs
/// often have one inode, and a program may keep a file open for as long as it runs.
fn is_open_on(device: u64, tree: &FileTree) -> bool {
    let files = tree.entries().iter().filter(|entry| !entry.is_folder);
    let inodes: HashSet<u64> = files.map(|entry| entry.inode).collect();
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    let own = std::process::id().to_string();
    for process in processes.flatten() {
        let name = process.file_name();
        let is_number = name
            .to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if is_number && name != own.as_str() && has_open(&process.path(), device, &inodes) {
            return true;
        }
    }
    false
}

fn has_open(process: &Path, device: u64, inodes: &HashSet<u64>) -> bool {
    let Ok(open) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    for descriptor in open.flatten() {
        let Ok(facts) = fs::metadata(descriptor.path()) else {
            continue;
        };
        if facts.dev() == device && inodes.contains(&facts.ino()) && facts.is_file() {
            let about = process.join("fdinfo").join(descriptor.file_name());
            if fs::read_to_string(about).is_ok_and(|about| is_writable(&about)) {
                return true;
            }
        }
    }
    false
}

/// Whether `fdinfo` describes a descriptor that may be written: the lowest two bits of its octal flags are not 0.
fn is_writable(about: &str) -> bool {
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & 0o3 != 0))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use muster_checkpoints::TreeLimits;

    use super::*;
    use crate::folder_scan::{look_at, open_folder};

    #[test]
    fn a_writer_is_seen_and_a_reader_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        fs::write(&path, "12345").unwrap();
        let fd = open_folder(folder.path()).unwrap();
        let tree = look_at(&fd, "c", TreeLimits::default()).unwrap();
        let is_open = || is_open_for_writing(folder.path(), &tree);
        let elsewhere = folder.path().metadata().unwrap().dev() + 1;
        assert!(!is_open());
        for (redirection, expected) in [(">>", true), ("<", false)] {
            let mut shell = Command::new("sh")
                .args([
                    "-c",
                    &format!("exec 7{redirection}\"$1\"; echo open; read wait"),
                    "sh",
                ])
                .arg(&path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(shell.stdout.take().unwrap())
                .read_line(&mut line)
                .unwrap();
            assert_eq!((line.as_str(), is_open()), ("open\n", expected));
            assert!(
                !is_open_on(elsewhere, &tree),
                "a file of another job has this inode"
            );
            shell.stdin.take().unwrap().write_all(b"\n").unwrap();
            shell.wait().unwrap();
        }
        assert!(!is_open());
    }

    #[test]
    fn flags_are_octal() {
        assert!(is_writable("pos:\t0\nflags:\t0100001\nmnt_id:\t1\n"));
        assert!(is_writable("flags:\t02100002"));
        assert!(!is_writable("flags:\t0100000") && !is_writable("") && !is_writable("flags:\tx"));
    }
}

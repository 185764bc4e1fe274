//! Loop devices, on which the disks of jobs lie, for a container that has only those of its node's past.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// The devices that a container gets. The kernel gives the lowest number that is free on the node.
const DEVICES: u64 = 256;
/// The major number of loop devices (Linux, `Documentation/admin-guide/devices.txt`).
const MAJOR: u64 = 7;

/// Makes the devices that `dev` does not have. A container has those that its node had when it started, and nobody
/// makes those there that the kernel adds later. Nothing is done where the kernel fills `dev` itself, and where it has
/// no loop devices.
///
/// # Errors
/// The container may not make devices: it is not privileged.
pub(super) fn make(dev: &Path) -> io::Result<()> {
    let control = fs::metadata(dev.join("loop-control"));
    let has_loops = control.is_ok_and(|found| found.file_type().is_char_device());
    if !has_loops || is_filled_by_the_kernel(dev, &fs::read_to_string("/proc/self/mounts")?) {
        return Ok(());
    }
    for number in 0..DEVICES {
        let device = dev.join(format!("loop{number}"));
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        match mknod(&device, SFlag::S_IFBLK, mode, makedev(MAJOR, number)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether `dev` is a mount of `devtmpfs` in the text of `/proc/self/mounts`; the last mount at a place counts.
fn is_filled_by_the_kernel(dev: &Path, mounts: &str) -> bool {
    let kind = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (Path::new(place) == dev).then_some(kind)
    });
    kind == Some("devtmpfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_fills_the_devices_of_a_machine_and_not_those_of_a_container() {
        let dev = Path::new("/dev");
        let machine = "udev /dev devtmpfs rw,nosuid 0 0\ndevpts /dev/pts devpts rw 0 0\n";
        let container = "overlay / overlay rw 0 0\ntmpfs /dev tmpfs rw,nosuid 0 0\n";
        assert!(is_filled_by_the_kernel(dev, machine));
        assert!(!is_filled_by_the_kernel(dev, container));
        assert!(!is_filled_by_the_kernel(dev, &format!("{machine}{container}")));
        assert!(!is_filled_by_the_kernel(dev, ""));
    }

    #[test]
    fn a_folder_without_loop_devices_gets_none() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

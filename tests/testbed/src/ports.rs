//! Addresses for processes that are started and started again during a test.
//!
//! A listener that was bound to port 0 and closed gives no such address: the kernel may give its port to the next
//! connection of any process.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Below the ports that the kernel gives to outgoing connections and to listeners that name none.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// The locks on the ports of this process, which the kernel releases with it.
static OWN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// An address on which nobody listens at this moment, and which no other test gets while this process runs.
///
/// # Errors
/// The folder of temporary files cannot be used, or every port is taken.
pub fn free_address() -> io::Result<SocketAddr> {
    let locks = std::env::temp_dir().join(format!("muster-test-ports-{}", geteuid()));
    make_private(&locks)?;
    let span = PORTS.end - PORTS.start;
    // Processes begin at different places, so that they seldom ask for the same port.
    let first = std::process::id().wrapping_mul(61);
    let ports = (0..u32::from(span)).filter_map(|step| {
        let offset = u16::try_from(first.wrapping_add(step) % u32::from(span)).ok()?;
        Some(PORTS.start + offset)
    });
    for port in ports {
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(locks.join(port.to_string()))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if lock.try_lock().is_err() || TcpListener::bind(address).is_err() {
            continue;
        }
        OWN.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
        return Ok(address);
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        "every port for tests is taken",
    ))
}

/// Makes a folder of this user alone. One that another user has made, or may write into, is an error: its links would
/// lead to files of the other user's choice.
fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = fs::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let fault = format!(
        "{} is not a folder of this user alone; remove it",
        folder.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, fault))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_of_locks_that_others_may_write_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("locks");
        make_private(&folder).unwrap();
        make_private(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(
            make_private(&folder).unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
    }

    #[test]
    fn no_address_is_given_twice() {
        let (first, second) = (free_address().unwrap(), free_address().unwrap());
        assert_ne!(first, second);
        let _listener = TcpListener::bind(first).unwrap();
        assert!(PORTS.contains(&first.port()));
    }
}

//! Addresses for processes that are started and started again during a test.
//!
//! A listener that was bound to port 0 and closed gives no such address: the kernel may give its port to the next
//! connection of any process.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Below the ports that the kernel gives to outgoing connections and to listeners that name none.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// The locks on the ports of this process, which the kernel releases with it.
static OWN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// An address on which nobody listens at this moment, and which no other test gets while this process runs.
///
/// # Errors
/// The folder of temporary files cannot be used, or every port is taken.
pub fn free_address() -> io::Result<SocketAddr> {
    let locks = std::env::temp_dir().join("muster-test-ports");
    std::fs::create_dir_all(&locks)?;
    let span = PORTS.end - PORTS.start;
    // Processes begin at different places, so that they seldom ask for the same port.
    let first = std::process::id().wrapping_mul(61);
    let ports = (0..u32::from(span)).filter_map(|step| {
        let offset = u16::try_from(first.wrapping_add(step) % u32::from(span)).ok()?;
        Some(PORTS.start + offset)
    });
    for port in ports {
        let lock = File::create(locks.join(port.to_string()))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice() {
        let (first, second) = (free_address().unwrap(), free_address().unwrap());
        assert_ne!(first, second);
        let _listener = TcpListener::bind(first).unwrap();
        assert!(PORTS.contains(&first.port()));
    }
}

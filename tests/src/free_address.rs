//! Addresses for processes that are started and started again during a test.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Mutex;

use anyhow::{Context as _, Result};

/// Below the ports that the kernel gives to outgoing connections and to listeners that name none.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// The locks on the ports of this process, which the kernel releases with it.
static OWN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// An address on which nobody listens at this moment, and which no other test gets while this process runs.
///
/// # Errors
/// The folder of temporary files cannot be used, or every port is taken.
pub fn free_address() -> Result<SocketAddr> {
    let locks = std::env::temp_dir().join("muster-test-ports");
    std::fs::create_dir_all(&locks)?;
    let span = PORTS.end - PORTS.start;
    // Processes begin at different places, so that they seldom ask for the same port.
    let first = std::process::id().wrapping_mul(61) % u32::from(span);
    for step in 0..u32::from(span) {
        let port = PORTS.start + u16::try_from((first + step) % u32::from(span))?;
        let lock = File::create(locks.join(port.to_string()))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if lock.try_lock().is_err() || TcpListener::bind(address).is_err() {
            continue;
        }
        OWN.lock()
            .map_err(|_| anyhow::anyhow!("another test panicked with the ports"))?
            .push(lock);
        return Ok(address);
    }
    None.context("every port is taken")
}

//! The ports of a local subnet: well-known ones where they are free, so that examples can be pasted.
//!
//! A port is claimed by a locked file until this process ends. Several `muster up` on one machine never choose the same
//! port, although each role binds its port only after it was chosen.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use muster_process::private_folder;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// The chain's JSON-RPC, as Substrate's nodes have it.
pub const CHAIN: u16 = 9944;
/// The facilitator's REST API.
pub const FACILITATOR: u16 = 8090;
/// The status page of the first validator.
pub const VALIDATOR: u16 = 8091;
/// Of the first miner.
pub const MINER: u16 = 8092;
/// The gateway of the first validator.
pub const GATEWAY: u16 = 8093;
/// Of the first validator.
pub const METRICS: u16 = 8094;
/// Of the facilitator's metrics; those of the miners and of the further validators follow.
pub const FURTHER_METRICS: u16 = 8030;
/// Of the second miner; the others follow.
pub const FURTHER_MINERS: u16 = 8095;

/// Of the first validator's pages; those of the others follow.
pub const PAGES: u16 = 8070;
/// Of the second validator's status; the others follow.
pub const FURTHER_VALIDATORS: u16 = 8051;

/// Of the first validator's operator; those of the miners and of the further validators follow.
pub const OPERATORS: u16 = 8010;

/// Of the validator's own miner, which is not registered.
pub const TRUSTED_MINER: u16 = 8061;

/// A taken port is passed over by this much, so that the ports of a second subnet end like those of the first.
const STEP: u16 = 10;

/// The ports that one subnet has chosen.
pub struct PortClaims {
    /// The folder of the locked files, one for each user of the machine.
    folder: PathBuf,
    locks: Vec<File>,
    /// A line for each port that is not the well-known one.
    moved: Vec<String>,
}

// === impl PortClaims ===

impl PortClaims {
    /// No port is claimed yet.
    ///
    /// # Errors
    /// The folder of the locked files cannot be made, or another user of the machine has made it.
    pub fn new() -> anyhow::Result<Self> {
        Self::in_folder(if geteuid().is_root() {
            private_folder::usual_place("ports")
        } else {
            std::env::temp_dir().join(format!("muster-ports-{}", geteuid()))
        })
    }

    /// As [`Self::new`], with the locked files in `folder`.
    fn in_folder(folder: PathBuf) -> anyhow::Result<Self> {
        private_folder::create(&folder)
            .with_context(|| format!("cannot lock ports in {}", folder.display()))?;
        Ok(Self {
            folder,
            locks: Vec::new(),
            moved: Vec::new(),
        })
    }

    /// An address on this machine for `name`: that of an earlier run, else the well-known port, else the next free one.
    ///
    /// # Errors
    /// No port is free.
    pub fn claim(
        &mut self,
        name: &str,
        earlier: Option<SocketAddr>,
        port: u16,
    ) -> anyhow::Result<SocketAddr> {
        if let Some(address) = earlier
            && self.try_claim(address)
        {
            return Ok(address);
        }
        let ports = (port..=u16::MAX).step_by(usize::from(STEP));
        for candidate in ports {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, candidate));
            if self.try_claim(address) {
                if candidate != port {
                    self.moved
                        .push(format!("port {port} is taken: the {name} is at {address}"));
                }
                return Ok(address);
            }
        }
        anyhow::bail!("no port from {port} on is free for the {name}")
    }

    /// The lines about ports that were taken.
    pub fn moved(&self) -> &[String] {
        &self.moved
    }

    fn try_claim(&mut self, address: SocketAddr) -> bool {
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(self.folder.join(address.port().to_string()))
            .ok();
        let Some(lock) = lock.filter(|lock| lock.try_lock().is_ok()) else {
            return false;
        };
        // Programs that are not ours lock no file.
        let free = TcpListener::bind(address).is_ok();
        if free {
            self.locks.push(lock);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_folder_that_others_may_write_is_refused_and_no_link_is_followed() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("ports");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let refused = PortClaims::in_folder(folder.clone()).err().unwrap();
        assert!(format!("{refused:#}").contains("chmod 700"), "{refused:#}");

        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        let mut claims = PortClaims::in_folder(folder.clone()).unwrap();
        let precious = home.path().join("precious");
        std::fs::write(&precious, "kept").unwrap();
        symlink(&precious, folder.join("28290")).unwrap();
        let address = claims.claim("miner", None, 28_290).unwrap();
        assert_ne!(address.port(), 28_290);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
    }

    #[test]
    fn a_claimed_port_is_passed_over_until_its_subnet_ends_and_the_move_is_said() {
        let (mut one, mut two) = (PortClaims::new().unwrap(), PortClaims::new().unwrap());
        let first = one.claim("miner", None, 28_090).unwrap();
        let second = two.claim("miner", None, 28_090).unwrap();
        assert_eq!(second.port() % STEP, first.port() % STEP);
        assert!(second.port() > first.port());
        assert!(two.moved()[0].contains("the miner is at 127.0.0.1:"));
        drop(one);
        let mut three = PortClaims::new().unwrap();
        assert_eq!(three.claim("miner", None, first.port()).unwrap(), first);
    }

    #[test]
    fn a_port_on_which_another_program_listens_is_passed_over() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = listener.local_addr().unwrap();
        let mut claims = PortClaims::new().unwrap();
        assert_ne!(claims.claim("chain", Some(taken), taken.port()).unwrap(), taken);
    }

    #[test]
    fn an_earlier_address_is_kept_while_it_is_free() {
        let free = {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            listener.local_addr().unwrap()
        };
        let mut claims = PortClaims::new().unwrap();
        assert_eq!(claims.claim("chain", Some(free), 28_190).unwrap(), free);
        assert_eq!(claims.moved(), [""; 0]);
    }
}

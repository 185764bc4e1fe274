//! The files that a job finds at `/etc/hosts` and `/etc/hostname`: read-only files of the executor's, by which
//! `localhost` and the job's own host name lead to its loopback.
//!
//! The engine's own files would do it too. They show the machine's name server, though, and under a writable root they
//! are writable files on the engine's disk that no bound counts.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::sandbox::Bind;

/// The host name of every job.
pub const HOST_NAME: &str = "job";
const HOSTS: &str = "/etc/hosts";
const HOSTNAME: &str = "/etc/hostname";
/// The paths in a container at which files are mounted in every job.
pub(crate) const MOUNTED_FILES: [&str; 2] = [HOSTS, HOSTNAME];

/// The paths of both files on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFiles {
    hosts: PathBuf,
    hostname: PathBuf,
}

// === impl HostFiles ===

impl HostFiles {
    /// The paths of the files in `folder`. Writes nothing.
    pub fn under(folder: &Path) -> Self {
        Self {
            hosts: folder.join("hosts"),
            hostname: folder.join("hostname"),
        }
    }

    /// Writes both files. Blocks.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self) -> io::Result<()> {
        let has_ipv6 = loopback_has_ipv6(|path| fs::read_to_string(path).ok());
        write(&self.hosts, &hosts_text(has_ipv6))?;
        write(&self.hostname, &format!("{HOST_NAME}\n"))
    }

    /// The mounts of both files.
    pub(crate) fn binds(&self) -> [Bind; 2] {
        [(&self.hosts, HOSTS), (&self.hostname, HOSTNAME)].map(|(source, target)| Bind {
            source: source.clone(),
            target: target.to_owned(),
            writable: false,
        })
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    // Every user of an image reads it, whatever the executor's umask is.
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

/// The host name has a line of its own, because the first name of a line is the full name of all of its names.
fn hosts_text(has_ipv6: bool) -> String {
    let ipv4 = format!("127.0.0.1\tlocalhost\n127.0.0.1\t{HOST_NAME}\n");
    if has_ipv6 {
        format!("{ipv4}::1\tlocalhost ip6-localhost ip6-loopback\n")
    } else {
        ipv4
    }
}

/// Whether the loopback of a new network namespace gets the address `::1`, by the kernel's settings that `read` finds.
/// See `Documentation/networking/ip-sysctl.rst` of Linux, `devconf_inherit_init_net`.
fn loopback_has_ipv6(read: impl Fn(&str) -> Option<String>) -> bool {
    let number = |path: &str| read(path).and_then(|text| text.trim().parse::<i64>().ok());
    let is_set = |path: &str| number(path).is_some_and(|value| value != 0);
    let own = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    if number(own).is_none() || is_set("/sys/module/ipv6/parameters/disable") {
        return false;
    }
    match number("/proc/sys/net/core/devconf_inherit_init_net") {
        // New namespaces copy the settings of the machine's or of the engine's own namespace.
        Some(1 | 3) => !is_set(own) && !is_set("/proc/sys/net/ipv6/conf/all/disable_ipv6"),
        Some(_) | None => !is_set("/sys/module/ipv6/parameters/disable_ipv6"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn host_files_name_the_loopback_and_the_job() {
        let folder = tempfile::tempdir().unwrap();
        let files = HostFiles::under(folder.path());
        files.write().unwrap();
        let [hosts, hostname] = files.binds();
        let text = fs::read_to_string(&hosts.source).unwrap();
        assert!(
            text.starts_with("127.0.0.1\tlocalhost\n127.0.0.1\tjob\n"),
            "{text}"
        );
        assert_eq!(fs::read_to_string(&hostname.source).unwrap(), "job\n");
        for bind in [hosts, hostname] {
            let mode = fs::metadata(&bind.source).unwrap().permissions().mode();
            assert_eq!((mode & 0o777, bind.writable), (0o644, false));
        }
        assert_eq!(hosts_text(false), "127.0.0.1\tlocalhost\n127.0.0.1\tjob\n");
        assert!(hosts_text(true).contains("::1\tlocalhost "));
    }

    #[test]
    fn a_loopback_has_ipv6_where_the_kernel_gives_it_to_new_namespaces() {
        let own = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
        let module = "/sys/module/ipv6/parameters/";
        let inherit = "/proc/sys/net/core/devconf_inherit_init_net";
        let has = |given: &[(&str, &str)]| {
            let given: HashMap<_, _> = given.iter().copied().collect();
            loopback_has_ipv6(|path| given.get(path).map(|text| format!("{text}\n")))
        };
        assert!(has(&[(own, "0")]));
        assert!(has(&[(own, "1"), (inherit, "0")]), "a new namespace begins anew");
        assert!(!has(&[]), "the kernel has no IPv6");
        assert!(!has(&[(own, "0"), (&format!("{module}disable"), "1")]));
        assert!(!has(&[(own, "0"), (&format!("{module}disable_ipv6"), "1")]));
        assert!(!has(&[(own, "1"), (inherit, "1")]));
        assert!(has(&[
            (own, "0"),
            (inherit, "1"),
            (&format!("{module}disable_ipv6"), "1")
        ]));
    }
}

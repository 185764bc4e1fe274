//! The container of a job for podman 4.3, which takes some of Docker's values in another form: the path of a profile of
//! system calls instead of its text, and a log of Kubernetes' form instead of Docker's `local` one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;

use bollard::models::{ContainerCreateBody, HostConfigLogConfig};
use parking_lot::Mutex;

/// The option of a container that has its profile.
const PROFILE: &str = "seccomp=";
/// The driver of a log in a file, and its one option that podman takes.
const LOG_DRIVER: &str = "k8s-file";
const LOG_SIZE: &str = "max-size";

/// Rewrites the containers for one engine. It holds the files of their profiles, by their texts. They have no names on
/// any disk: the engine, which is on the same machine, opens them as files of this process. They go with the process.
#[derive(Debug, Default)]
pub(crate) struct PodmanBodies(Mutex<HashMap<String, File>>);

impl PodmanBodies {
    /// Puts podman's form in place of Docker's.
    ///
    /// # Errors
    /// No file can be made for a profile.
    pub(crate) fn rewrite(&self, body: &mut ContainerCreateBody) -> io::Result<()> {
        let Some(host) = &mut body.host_config else {
            return Ok(());
        };
        if let Some(log) = &mut host.log_config {
            rewrite_log(log);
        }
        for option in host.security_opt.iter_mut().flatten() {
            if let Some(profile) = option.strip_prefix(PROFILE).filter(|text| text.starts_with('{')) {
                *option = format!("{PROFILE}{}", self.path_of(profile)?);
            }
        }
        Ok(())
    }

    fn path_of(&self, profile: &str) -> io::Result<String> {
        let mut files = self.0.lock();
        if !files.contains_key(profile) {
            let mut file = tempfile::tempfile()?;
            file.write_all(profile.as_bytes())?;
            files.insert(profile.to_owned(), file);
        }
        let file = files.get(profile).ok_or(io::ErrorKind::NotFound)?;
        Ok(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    }
}

fn rewrite_log(log: &mut HostConfigLogConfig) {
    if log.typ.as_deref() == Some("local") {
        log.typ = Some(LOG_DRIVER.to_owned());
        if let Some(options) = &mut log.config {
            options.retain(|name, _| name == LOG_SIZE);
        }
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::HostConfig;

    use super::*;

    fn rewritten(bodies: &PodmanBodies, host: HostConfig) -> HostConfig {
        let mut body = ContainerCreateBody {
            host_config: Some(host),
            ..ContainerCreateBody::default()
        };
        bodies.rewrite(&mut body).unwrap();
        body.host_config.unwrap()
    }

    #[test]
    fn a_profile_becomes_a_file_that_others_can_open_and_other_options_stay() {
        let options = [
            "no-new-privileges",
            "seccomp={\"defaultAction\": \"SCMP_ACT_ERRNO\"}",
            "seccomp=unconfined",
        ];
        let host = || HostConfig {
            security_opt: Some(options.map(str::to_owned).to_vec()),
            ..HostConfig::default()
        };
        let bodies = PodmanBodies::default();
        let first = rewritten(&bodies, host()).security_opt.unwrap();
        assert_eq!((first[0].as_str(), first[2].as_str()), (options[0], options[2]));
        let path = first[1].strip_prefix(PROFILE).unwrap();
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            options[1].strip_prefix(PROFILE).unwrap()
        );
        let again = rewritten(&bodies, host()).security_opt.unwrap();
        assert_eq!(again, first, "one file for each text");
    }

    #[test]
    fn a_log_has_podmans_driver_and_its_bound() {
        let options = [("max-size", "5m"), ("max-file", "2")];
        let log = HostConfigLogConfig {
            typ: Some("local".to_owned()),
            config: Some(
                options
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
            ),
        };
        let host = HostConfig {
            log_config: Some(log),
            ..HostConfig::default()
        };
        let log = rewritten(&PodmanBodies::default(), host).log_config.unwrap();
        assert_eq!(log.typ.as_deref(), Some("k8s-file"));
        assert_eq!(
            log.config,
            Some([("max-size".to_owned(), "5m".to_owned())].into())
        );
    }
}

//! Profiles of system calls for podman, which takes the path of a file where Docker takes the text.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;

use bollard::models::ContainerCreateBody;
use parking_lot::Mutex;

/// The option of a container that has its profile.
const OPTION: &str = "seccomp=";

/// Files with the profiles of one engine's containers, by their texts. They have no names on any disk: the engine,
/// which is on the same machine, opens them as files of this process. They go with the process.
#[derive(Debug, Default)]
pub(crate) struct ProfileFiles(Mutex<HashMap<String, File>>);

impl ProfileFiles {
    /// Names a file in place of each profile's text.
    ///
    /// # Errors
    /// No file can be made.
    pub(crate) fn name_profiles(&self, body: &mut ContainerCreateBody) -> io::Result<()> {
        let options = body
            .host_config
            .iter_mut()
            .flat_map(|host| &mut host.security_opt);
        for option in options.flatten() {
            if let Some(profile) = option.strip_prefix(OPTION).filter(|text| text.starts_with('{')) {
                *option = format!("{OPTION}{}", self.path_of(profile)?);
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

#[cfg(test)]
mod tests {
    use bollard::models::HostConfig;

    use super::*;

    #[test]
    fn a_profile_becomes_a_file_that_others_can_open_and_other_options_stay() {
        let options = [
            "no-new-privileges",
            "seccomp={\"defaultAction\": \"SCMP_ACT_ERRNO\"}",
            "seccomp=unconfined",
        ];
        let body = || ContainerCreateBody {
            host_config: Some(HostConfig {
                security_opt: Some(options.map(str::to_owned).to_vec()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let named = |files: &ProfileFiles| {
            let mut body = body();
            files.name_profiles(&mut body).unwrap();
            body.host_config.unwrap().security_opt.unwrap()
        };
        let files = ProfileFiles::default();
        let first = named(&files);
        assert_eq!((first[0].as_str(), first[2].as_str()), (options[0], options[2]));
        let path = first[1].strip_prefix(OPTION).unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), options[1][OPTION.len()..]);
        assert_eq!(named(&files), first, "one file for each text");
    }
}

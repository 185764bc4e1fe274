//! The part of a job's terms about how its program is started.

use serde::{Deserialize, Serialize};

use crate::job_files::relative_path::check_relative_path;

/// The longest path of Linux in bytes (`PATH_MAX`, without the zero at its end): the bound of a working directory and
/// of a program's name.
pub const MAX_PROGRAM_PATH_BYTES: usize = 4_095;

/// How the program of a job is started, where its image does not decide. Each field is that of `docker run`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramStart {
    /// The working directory (`--workdir`): an absolute path of at most 4,095 bytes, which is made if it is not there;
    /// the image's own if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 4095))]
    pub workdir: Option<String>,
    /// The program in place of the image's entry point (`--entrypoint`), at most 4,095 bytes; the image's arguments are
    /// not used beside it. With an empty text there is no entry point: the first of the job's arguments is the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 4095))]
    pub entrypoint: Option<String>,
    /// The path below `/volume` of the input whose bytes the program reads from its standard input (`--interactive`);
    /// standard input is empty if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

impl ProgramStart {
    /// The reason why no program can be started so; `None` if one can.
    pub fn find_flaw(&self) -> Option<String> {
        let is_path = |text: &str| text.len() <= MAX_PROGRAM_PATH_BYTES && !text.contains('\0');
        if let Some(workdir) = &self.workdir
            && !(workdir.starts_with('/') && is_path(workdir))
        {
            return Some(format!(
                "The working directory must be an absolute path of at most {MAX_PROGRAM_PATH_BYTES} bytes without NUL, \
                 such as /work."
            ));
        }
        if self
            .entrypoint
            .as_deref()
            .is_some_and(|program| !is_path(program))
        {
            return Some(format!(
                "The entry point may have {MAX_PROGRAM_PATH_BYTES} bytes at most, and no NUL."
            ));
        }
        let reason = check_relative_path(self.stdin.as_deref()?).err()?;
        Some(format!("The path of the input for standard input {reason}."))
    }

    /// Adds the fixed layout to the terms': for the working directory, the entry point and the input in this order, a
    /// byte that states whether it is there, and if so its length (2, little-endian) and its bytes. Longer ones are
    /// over their limits.
    pub(super) fn add_layout(&self, layout: &mut Vec<u8>) {
        for text in [&self.workdir, &self.entrypoint, &self.stdin] {
            layout.push(u8::from(text.is_some()));
            if let Some(text) = text {
                layout.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
                layout.extend_from_slice(text.as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_no_engine_could_carry_out_is_refused_with_the_reason() {
        let workdir = |path: &str| ProgramStart {
            workdir: Some(path.to_owned()),
            ..ProgramStart::default()
        };
        let entrypoint = |program: &str| ProgramStart {
            entrypoint: Some(program.to_owned()),
            ..ProgramStart::default()
        };
        let stdin = |path: &str| ProgramStart {
            stdin: Some(path.to_owned()),
            ..ProgramStart::default()
        };
        let longest = format!("/{}", "x".repeat(MAX_PROGRAM_PATH_BYTES - 1));
        for good in [
            ProgramStart::default(),
            workdir("/"),
            workdir("/a/../b c/ä"),
            workdir(&longest),
            entrypoint(""),
            entrypoint("sh"),
            entrypoint(&longest),
            stdin("stdin"),
            stdin("a/b"),
        ] {
            assert_eq!(good.find_flaw(), None, "{good:?}");
        }
        let too_long = format!("{longest}x");
        for (bad, word) in [
            (workdir(""), "working directory"),
            (workdir("work"), "working directory"),
            (workdir("/a\0"), "working directory"),
            (workdir(&too_long), "working directory"),
            (entrypoint("a\0"), "entry point"),
            (entrypoint(&too_long), "entry point"),
            (stdin(""), "is empty"),
            (stdin("/etc/passwd"), "absolute"),
            (stdin("../x"), "'..'"),
        ] {
            let flaw = bad.find_flaw().unwrap_or_default();
            assert!(flaw.contains(word), "{bad:?}: {flaw}");
        }
    }
}

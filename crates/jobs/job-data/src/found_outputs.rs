//! The files that a job left in its output folder, for the message about an output that is missing.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::output_folder::{Folder, WalkError};
use crate::safe_names::shown;

/// The names in a message.
const MAX_NAMED: usize = 20;

/// The first files below a job's output folder, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundOutputs {
    named: Vec<String>,
    has_more: bool,
}

/// The reason for which a walk ended early.
enum Ended {
    NamedEnough,
    Failed,
}

impl From<WalkError> for Ended {
    fn from(_: WalkError) -> Self {
        Self::Failed
    }
}

impl FoundOutputs {
    /// Reads the folder without the files at the paths `without`. A folder that cannot be read to its end has the names
    /// that came before.
    pub(crate) fn read(folder: &Folder, without: &[PathBuf]) -> Self {
        let mut found = Self::default();
        let walked = folder.walk(&mut |path: &Path, _, _| {
            if without.iter().any(|left_out| left_out == path) {
                return Ok(());
            }
            if found.named.len() == MAX_NAMED {
                return Err(Ended::NamedEnough);
            }
            let name = path.to_string_lossy().escape_debug().to_string();
            found.named.push(shown(&name));
            Ok(())
        });
        found.has_more = match walked {
            Ok(omitted) => omitted.count() > 0,
            Err(Ended::NamedEnough | Ended::Failed) => true,
        };
        found
    }
}

impl fmt::Display for FoundOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.named.join(", ");
        match (self.named.is_empty(), self.has_more) {
            (true, false) => f.write_str("/output is empty"),
            (true, true) => f.write_str("no regular file lies there"),
            (false, false) => write!(f, "there are: {names}"),
            (false, true) => write!(f, "there are: {names}, and more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_files_of_a_job_are_named_within_bounds() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let text =
            || FoundOutputs::read(&Folder::open(root.path()).unwrap(), &["stdout.txt".into()]).to_string();
        fs::write(at("stdout.txt"), "").unwrap();
        assert_eq!(text(), "/output is empty");
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        assert_eq!(text(), "no regular file lies there");
        fs::remove_file(at("link")).unwrap();
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/result.csv"), "").unwrap();
        fs::write(at("a\nb"), "").unwrap();
        assert_eq!(text(), "there are: a\\nb, sub/result.csv");
        for number in 0..MAX_NAMED {
            fs::write(at(&format!("n{number:02}")), "").unwrap();
        }
        let many = text();
        assert!(many.ends_with("n17, n18, and more"), "{many}");
    }
}

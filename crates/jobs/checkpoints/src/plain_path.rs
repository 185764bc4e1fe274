//! Paths inside a checkpoint. They follow the rules of paths in archives: nothing in them leaves the folder.

use std::fmt;
use std::str::FromStr;

/// The longest name of a file or a folder, in bytes.
const MAX_NAME: usize = 255;
/// The longest path, in bytes.
pub const MAX_PATH: usize = 1_024;
/// The most folders above a file.
const MAX_DEPTH: usize = 64;

/// A relative path of ordinary names, with `/` between them. Paths are ordered by their bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlainPath(String);

/// The reason why a text is no path inside a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathFlaw {
    /// The text is longer than 1,024 bytes.
    #[error("a path is longer than {MAX_PATH} bytes")]
    TooLong,
    /// The path has more than 64 names.
    #[error("a path is more than {MAX_DEPTH} folders deep")]
    TooDeep,
    /// A name is longer than 255 bytes.
    #[error("a name is longer than {MAX_NAME} bytes")]
    LongName,
    /// A name is empty, `.` or `..`, or holds a NUL or a backslash.
    #[error("a name is empty, '.' or '..', or holds a NUL or a backslash")]
    OddName,
}

impl PlainPath {
    /// The text of the path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names of the path, from the top.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The first name, which is that of the checkpoint.
    pub fn top(&self) -> &str {
        self.names().next().unwrap_or_default()
    }

    /// The path of the folder that holds it; `None` at the top.
    pub fn parent(&self) -> Option<&str> {
        self.0.rsplit_once('/').map(|(parent, _)| parent)
    }

    /// The path of an entry of this folder.
    ///
    /// # Errors
    /// The name is no ordinary one, or the whole path is too long.
    pub fn join(&self, name: &str) -> Result<Self, PathFlaw> {
        format!("{}/{name}", self.0).parse()
    }
}

impl FromStr for PlainPath {
    type Err = PathFlaw;

    fn from_str(text: &str) -> Result<Self, PathFlaw> {
        if text.len() > MAX_PATH {
            return Err(PathFlaw::TooLong);
        }
        if text.contains(['\0', '\\']) {
            return Err(PathFlaw::OddName);
        }
        for (depth, name) in text.split('/').enumerate() {
            match name {
                "" | "." | ".." => return Err(PathFlaw::OddName),
                long if long.len() > MAX_NAME => return Err(PathFlaw::LongName),
                _ if depth >= MAX_DEPTH => return Err(PathFlaw::TooDeep),
                _ => {}
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for PlainPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_paths_pass_and_others_have_a_reason() {
        let path: PlainPath = "checkpoint-5/model/weights ä.bin".parse().unwrap();
        assert_eq!(
            (path.top(), path.parent()),
            ("checkpoint-5", Some("checkpoint-5/model"))
        );
        assert_eq!(
            path.join("x").unwrap().as_str(),
            "checkpoint-5/model/weights ä.bin/x"
        );
        for odd in ["", "/", "/a", "a//b", "a/", "./a", "a/..", "..", "a\\b", "a\0b"] {
            assert_eq!(odd.parse::<PlainPath>(), Err(PathFlaw::OddName), "{odd:?}");
        }
        assert_eq!("x".repeat(256).parse::<PlainPath>(), Err(PathFlaw::LongName));
        assert_eq!(
            vec!["x"; 65].join("/").parse::<PlainPath>(),
            Err(PathFlaw::TooDeep)
        );
        assert_eq!(
            vec!["x".repeat(200); 6].join("/").parse::<PlainPath>(),
            Err(PathFlaw::TooLong)
        );
    }

    proptest! {
        #[test]
        fn no_path_leaves_its_folder(text in "[a./\\\\\u{0}]{0,12}") {
            if let Ok(path) = text.parse::<PlainPath>() {
                prop_assert!(path.names().all(|name| !matches!(name, "" | "." | "..")));
            }
        }
    }
}

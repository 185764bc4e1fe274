//! Checks names that must stay inside a folder. Pure.

use std::path::PathBuf;

use muster_protocol::relative_path::check_relative_path;

/// Upper bound on the characters of a name in an error.
const MAX_SHOWN: usize = 120;

/// A relative path of ordinary names, or the reason why the name is not one.
pub(crate) fn plain_path(name: &str) -> Result<PathBuf, &'static str> {
    check_relative_path(name).map(|()| PathBuf::from(name))
}

/// The path of a volume: a plain path, or nothing for the root.
pub(crate) fn base_path(name: Option<&str>) -> Result<PathBuf, &'static str> {
    match name.map(|path| path.trim_end_matches('/')) {
        // A path of slashes alone is absolute.
        Some("") if name.is_some_and(|name| name.starts_with('/')) => Err("is an absolute path"),
        None | Some("" | ".") => Ok(PathBuf::new()),
        Some(path) => plain_path(path),
    }
}

/// An untrusted name, cleaned and shortened for a message.
pub(crate) fn shown(name: &str) -> String {
    name.chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use super::*;
    use crate::mutation::Mutator;

    #[test]
    fn plain_names_pass_and_others_say_why() {
        assert_eq!(plain_path("a/b c/ä.txt"), Ok(PathBuf::from("a/b c/ä.txt")));
        for wrong in ["", "/", "/a", "a//b", "a/", "./a", "a/..", "..", "a\\b", "a\0b"] {
            assert!(plain_path(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(base_path(Some("a/")), Ok(PathBuf::from("a")));
        assert_eq!(base_path(Some(".")), Ok(PathBuf::new()));
        assert!(base_path(Some("/")).is_err() && base_path(Some("../")).is_err());
    }

    #[test]
    fn damaged_names_never_leave() {
        let samples = ["a/../b", "/etc/passwd", "..\\..", "sub/file.txt", "a/./b", "\0/x"]
            .map(|text| text.as_bytes().to_vec());
        let mut mutator = Mutator::seeded(15);
        for _ in 0..20_000 {
            let text = String::from_utf8_lossy(&mutator.next_from(&samples)).into_owned();
            if let Ok(path) = plain_path(&text) {
                assert!(
                    path.components().all(|part| matches!(part, Component::Normal(_))),
                    "{text:?}"
                );
                assert!(path.components().count() > 0 && !text.contains('\0'));
            }
        }
    }
}

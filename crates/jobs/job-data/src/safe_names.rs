//! Checks names that must stay inside a folder. Pure.

use std::path::PathBuf;

const MAX_COMPONENT: usize = 255;
const MAX_PATH: usize = 1_024;
const MAX_DEPTH: usize = 64;
/// Upper bound on the characters of a name in an error.
const MAX_SHOWN: usize = 120;

/// A relative path of ordinary names, or the reason why the name is not one.
pub(crate) fn plain_path(name: &str) -> Result<PathBuf, &'static str> {
    if name.starts_with('/') {
        return Err("is an absolute path");
    }
    if name.len() > MAX_PATH {
        return Err("is longer than 1024 bytes");
    }
    if name.contains('\0') {
        return Err("holds a NUL");
    }
    if name.contains('\\') {
        return Err("holds a backslash; paths in archives are written with '/'");
    }
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > MAX_DEPTH {
        return Err("is more than 64 folders deep");
    }
    for part in &parts {
        match *part {
            "" => return Err("has an empty component"),
            "." | ".." => return Err("has a component '.' or '..'"),
            part if part.len() > MAX_COMPONENT => return Err("has a component longer than 255 bytes"),
            _ => {}
        }
    }
    Ok(parts.iter().collect())
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
        assert!(plain_path(&"x".repeat(256)).is_err() && plain_path(&"x".repeat(255)).is_ok());
        assert!(plain_path(&vec!["x"; 65].join("/")).is_err());
        assert!(plain_path(&vec!["x".repeat(200); 6].join("/")).is_err());
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

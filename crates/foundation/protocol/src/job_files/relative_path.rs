//! The one spelling in which a job names a file below `/volume` or `/output`. ComputeHorde's SDK 0.0.19 has the same
//! rule for outputs, without a bound on the whole path.

/// The longest name of a file or a folder, in bytes: no file system of Linux takes a longer one.
pub const MAX_NAME_BYTES: usize = 255;

/// The longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 1_024;

/// The most names in a path: the folders and the file.
pub const MAX_PATH_NAMES: usize = 100;

/// Checks that a path is relative, stays below its folder, and has one spelling only: no empty component, no `.`, no
/// `..`, and no backslash. Nothing is rewritten, so two different paths name two different files.
///
/// # Errors
/// The reason, to stand behind the path in a sentence.
pub fn check_relative_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("is empty");
    }
    if path.starts_with('/') {
        return Err("is an absolute path");
    }
    if path.len() > MAX_PATH_BYTES {
        return Err("is longer than 1024 bytes");
    }
    if path.contains('\0') {
        return Err("holds a NUL");
    }
    if path.contains('\\') {
        return Err("holds a backslash; paths are written with '/'");
    }
    let mut names = 0;
    for name in path.split('/') {
        names += 1;
        match name {
            "" => return Err("has an empty component"),
            "." | ".." => return Err("has a component '.' or '..'"),
            name if name.len() > MAX_NAME_BYTES => return Err("has a component longer than 255 bytes"),
            _ => {}
        }
    }
    if names > MAX_PATH_NAMES {
        return Err("is more than 100 folders deep");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_of_a_path_passes() {
        for plain in ["a", "a/b c/ä.txt", ".hidden", "a/..b", "...", "a\nb"] {
            assert_eq!(check_relative_path(plain), Ok(()), "{plain:?}");
        }
        for wrong in [
            "", "/", "/a", "a//b", "a/", "./a", "a/.", "a/..", "..", ".", "a\\b", "a\0b",
        ] {
            assert!(check_relative_path(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_and_depth_of_a_path_are_bounded() {
        assert!(check_relative_path(&"x".repeat(255)).is_ok());
        assert!(check_relative_path(&"x".repeat(256)).is_err());
        assert!(check_relative_path(&"ä".repeat(128)).is_err(), "bytes count");
        assert!(check_relative_path(&["x"; 100].join("/")).is_ok());
        assert!(check_relative_path(&["x"; 101].join("/")).is_err());
        assert!(check_relative_path(&vec!["x".repeat(200); 6].join("/")).is_err());
    }
}

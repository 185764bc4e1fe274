//! The files of a job's output folder whose paths match a pattern. A part of a pattern matches one name of a path: `*`
//! and `?` do not cross folders.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use crate::error::UploadError;
use crate::glob;
use crate::linked_path::{LinkedEntry, open_linked};
use crate::output_folder::{Folder, MAX_KEPT};

/// Whether a path below `/output` matches a pattern: they have the same number of names, and each matches its part, in
/// which `*`, `?`, `[a-z]` and `[!a-z]` are special.
pub fn matches_path(pattern: &str, path: &str) -> bool {
    let (mut parts, mut names) = (pattern.split('/'), path.split('/'));
    loop {
        match (parts.next(), names.next()) {
            (Some(part), Some(name)) if glob::matches(part, name) => {}
            (None, None) => return true,
            (Some(_) | None, Some(_) | None) => return false,
        }
    }
}

/// Visits the files whose paths match, in the order of their names, also those behind links that stay below the folder.
/// Others that match, and names that are not UTF-8, are passed over.
pub(crate) fn visit_matching(
    folder: &Folder,
    pattern: &str,
    visit: &mut impl FnMut(&Path, File, u64) -> Result<(), UploadError>,
) -> Result<(), UploadError> {
    let parts: Vec<&str> = pattern.split('/').collect();
    descend(folder, folder, Path::new(""), &parts, visit)
}

fn descend(
    root: &Folder,
    folder: &Folder,
    below: &Path,
    parts: &[&str],
    visit: &mut impl FnMut(&Path, File, u64) -> Result<(), UploadError>,
) -> Result<(), UploadError> {
    let Some((part, deeper)) = parts.split_first() else {
        return Ok(());
    };
    for name in matching_names(folder, part)? {
        let path = below.join(&name);
        if deeper.is_empty() {
            if let LinkedEntry::File(file, len) = open_linked(root, &path).map_err(UploadError::Disk)? {
                visit(&path, file, len)?;
            }
        } else if let Some(inner) = folder.folder(Path::new(&name)).map_err(UploadError::Disk)? {
            descend(root, &inner, &path, deeper, visit)?;
        }
    }
    Ok(())
}

/// The names in a folder that match a part of a pattern, in their order.
fn matching_names(folder: &Folder, part: &str) -> Result<Vec<PathBuf>, UploadError> {
    // The standard library can list an open folder only through this path.
    let listing = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())).map_err(UploadError::Disk)?;
    let is_match = |name: &OsStr| name.to_str().is_some_and(|name| glob::matches(part, name));
    let mut names = Vec::new();
    for entry in listing {
        let name = entry.map_err(UploadError::Disk)?.file_name();
        if is_match(&name) {
            names.push(PathBuf::from(name));
        }
        if names.len() > MAX_KEPT {
            return Err(UploadError::TooMany {
                what: "names that match an output's pattern",
                limit: MAX_KEPT,
            });
        }
    }
    names.sort();
    Ok(names)
}

/// Whether a file in the folder at `output` matches.
///
/// # Errors
/// The folder cannot be read.
pub fn has_match(output: &Path, pattern: &str) -> io::Result<bool> {
    let mut is_found = false;
    let folder = Folder::open(output)?;
    let visited = visit_matching(&folder, pattern, &mut |_, _, _| {
        is_found = true;
        Ok(())
    });
    match visited {
        Err(UploadError::Disk(error)) => Err(error),
        Ok(()) | Err(_) => Ok(is_found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_in_its_folder() {
        for (pattern, path, expected) in [
            ("*.csv", "a.csv", true),
            ("*.csv", "sub/a.csv", false),
            ("*/*.csv", "sub/a.csv", true),
            ("run?/model", "run1/model", true),
            ("run?/model", "run12/model", false),
            ("*", "a/b", false),
            ("a/*", "a", false),
        ] {
            assert_eq!(matches_path(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn files_that_match_are_visited_in_order_and_no_link_leads_out() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("out/run1")).unwrap();
        fs::create_dir_all(at("out/folder.csv")).unwrap();
        for name in ["b.csv", "a.csv", "a.txt", "run1/c.csv"] {
            fs::write(at("out").join(name), name).unwrap();
        }
        fs::write(at("secret.csv"), "secret").unwrap();
        std::os::unix::fs::symlink("../secret.csv", at("out/out.csv")).unwrap();
        std::os::unix::fs::symlink("a.txt", at("out/inside.csv")).unwrap();
        std::os::unix::fs::symlink("run1", at("out/run2")).unwrap();
        let found = |pattern: &str| {
            let mut found = Vec::new();
            let folder = Folder::open(&at("out")).unwrap();
            visit_matching(&folder, pattern, &mut |path, _, len| {
                assert!(matches_path(pattern, path.to_str().unwrap()));
                found.push((path.to_str().unwrap().to_owned(), len));
                Ok(())
            })
            .unwrap();
            found
        };
        let names = |found: Vec<(String, u64)>| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(found("*.csv")), ["a.csv", "b.csv", "inside.csv"]);
        assert_eq!(found("*/*.csv"), [("run1/c.csv".to_owned(), 10)]);
        assert!(has_match(&at("out"), "run*/c.*").unwrap() && !has_match(&at("out"), "*.bin").unwrap());
    }
}

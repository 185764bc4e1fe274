//! The user's cache of programs that the tests need and that neither cargo nor apt keeps: made once for each version.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};

/// The folder `name` of a kind, filled by `fill` if no complete one is there.
///
/// # Errors
/// There is no cache, or the folder cannot be filled.
pub(crate) fn make_once(
    kind: &str,
    name: &str,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let cache = user_cache(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
        .ok_or_else(|| anyhow!("neither XDG_CACHE_HOME nor HOME is set, so there is no place to keep it"))?;
    let folder = cache.join(kind).join(name);
    make(&folder, fill)?;
    Ok(folder)
}

/// Fills a folder unless a complete one is there. One maker at a time: test runs of two checkouts share the cache.
fn make(folder: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let parent = folder
        .parent()
        .ok_or_else(|| anyhow!("{} has no parent", folder.display()))?;
    fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    let lock = File::create(folder.with_added_extension("lock"))
        .context("open the lock of a folder in the cache")?;
    lock.lock()
        .context("wait for another run that makes the same folder")?;
    let complete = folder.join(".complete");
    if !complete.exists() {
        if folder.exists() {
            fs::remove_dir_all(folder)
                .with_context(|| format!("remove the unfinished {}", folder.display()))?;
        }
        fill(folder)?;
        File::create(&complete).with_context(|| format!("mark {} as complete", folder.display()))?;
    }
    Ok(())
}

fn user_cache(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set(xdg).or_else(|| Some(set(home)?.join(".cache")))?;
    Some(cache.join("muster"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_the_users() {
        let folder =
            |xdg: Option<&str>, home: Option<&str>| user_cache(xdg.map(Into::into), home.map(Into::into));
        assert_eq!(folder(Some("/x"), Some("/h")), Some("/x/muster".into()));
        assert_eq!(folder(Some(""), Some("/h")), Some("/h/.cache/muster".into()));
        assert_eq!(folder(None, None), None);
    }

    #[test]
    fn a_folder_is_made_once() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("a-1.0");
        make(&folder, |folder| Ok(fs::create_dir(folder)?)).unwrap();
        make(&folder, |_| panic!("it is complete")).unwrap();
    }

    #[test]
    fn an_unfinished_folder_is_made_anew() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("a-1.0");
        let broken = make(&folder, |folder| {
            fs::create_dir(folder)?;
            fs::write(folder.join("half"), "")?;
            Err(anyhow!("the network went away"))
        });
        assert!(broken.unwrap_err().to_string().contains("the network went away"));
        make(&folder, |folder| Ok(fs::create_dir(folder)?)).unwrap();
        assert!(!folder.join("half").exists());
    }
}

//! Decides whether scratch space may cover the home folder of an image's user: only if the image keeps no files there.
//!
//! The engine's API cannot list the files of an image, only those of a container. So a container is created, never
//! started, and removed again.

use std::collections::HashMap;

use bollard::models::ContainerCreateBody;

use crate::docker_engine::{ContainerEngine, EngineError, LocalImage};
use crate::sandbox::home_folder;

/// Files that a distribution puts into every home for login shells. A job does not need them.
const SHELL_FILES: [&str; 5] = [".bashrc", ".profile", ".bash_profile", ".bash_logout", ".cshrc"];
/// Upper bound on the archive of a home that is examined, in bytes. A larger one counts as not empty.
const MAX_EXAMINED: usize = 256 * 1024;

/// The home folder of the image's user if the image keeps no files there, so that scratch space may cover it.
///
/// `name` is the name of the container that is created to look into the image. Its `labels` let a later process find
/// it if this process cannot remove it.
///
/// # Errors
/// The engine failed.
pub async fn find_bare_home(
    engine: &ContainerEngine,
    image: &LocalImage,
    name: &str,
    labels: HashMap<String, String>,
) -> Result<Option<String>, EngineError> {
    let Some(home) = home_folder(image) else {
        return Ok(None);
    };
    let body = ContainerCreateBody {
        image: Some(image.id.to_string()),
        // An image without a program cannot be turned into a container without a command. The command is never run.
        entrypoint: Some(vec!["look".to_owned()]),
        labels: Some(labels),
        network_disabled: Some(true),
        ..ContainerCreateBody::default()
    };
    engine.create(name, body).await?;
    let held = engine.read_archive(name, &home, MAX_EXAMINED).await;
    engine.remove(name).await?;
    let bare = held?.is_none_or(|archive| archive.len() <= MAX_EXAMINED && is_bare(&archive));
    if !bare {
        tracing::info!(
            home,
            "the image keeps files in its home folder, so the folder stays read-only"
        );
    }
    Ok(bare.then_some(home))
}

/// Whether an archive of a home holds only folders and shell files. An unreadable archive counts as not empty.
fn is_bare(archive: &[u8]) -> bool {
    let mut archive = tar::Archive::new(archive);
    let Ok(mut entries) = archive.entries() else {
        return false;
    };
    entries.all(|entry| {
        entry.is_ok_and(|entry| {
            let kind = entry.header().entry_type();
            let path = entry.path_bytes();
            let shell_file = || {
                let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                SHELL_FILES.iter().any(|file| file.as_bytes() == name)
            };
            kind.is_dir() || (kind.is_file() && shell_file())
        })
    })
}

#[cfg(test)]
mod tests {
    use tar::{Builder, EntryType, Header};

    use super::*;

    fn archive(entries: &[(&str, EntryType)]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (path, kind) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(0);
            if kind.is_symlink() {
                header.set_link_name("/elsewhere").unwrap();
            }
            tar.append_data(&mut header, path, std::io::empty()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    #[test]
    fn home_with_only_folders_and_shell_files_is_bare() {
        let (folder, file, link) = (EntryType::Directory, EntryType::Regular, EntryType::Symlink);
        let bare = [
            &[("root/", folder)][..],
            &[("root/", folder), ("root/.bashrc", file), ("root/.ssh/", folder)],
        ];
        for entries in bare {
            assert!(is_bare(&archive(entries)), "{entries:?}");
        }
        let kept = [
            &[("root/", folder), ("root/model", file)][..],
            &[
                ("root/", folder),
                ("root/.cache/", folder),
                ("root/.cache/model", file),
            ],
            &[("root/", folder), ("root/.bashrc", link)],
            &[("root", link)],
            &[("root", file)],
        ];
        for entries in kept {
            assert!(!is_bare(&archive(entries)), "{entries:?}");
        }
        assert!(!is_bare(&[7; 2_048]));
    }
}

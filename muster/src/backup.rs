//! `muster backup` and `muster restore`: a role's state in one folder, copied while the role runs.
//!
//! A backup is a folder:
//!
//! ```text
//! backup.json          role, time, and the size and SHA-256 of every file; written last
//! store.db             the SQLite store at one moment
//! folders/NAME/…       the role's folders and single files
//! ```
//!
//! Folders are copied before the store and, as far as they have changed, after it: a file that the store's copy speaks
//! of was there before its row, so one of the two passes has it.

mod copied_parts;
mod folder;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use muster_facilitator_store::Store as FacilitatorStore;
use muster_process::SharedClock;
use muster_store::backup::{copy_sqlite, sqlite_file};
use muster_terminal::print;
use muster_validator::store::Store as ValidatorStore;

use self::copied_parts::{RoleParts, read_parts};
use crate::backup::folder::{Manifest, copy_changed, make_private_folder};
use crate::cli::{Backup, BackupRole, Restore};
use crate::failure::Result;
use crate::role_config::ensure_owner;

/// The store's place in a backup.
const STORE: &str = "store.db";

/// `muster backup`.
pub(crate) async fn backup(args: Backup, clock: SharedClock) -> Result<ExitCode> {
    let parts = read_parts(args.role, args.config.as_deref())?;
    let manifest = make_backup(&parts, &args.to, args.without_store, &clock).await?;
    let bytes: u64 = manifest.files.values().map(|file| file.bytes).sum();
    print::line(format_args!(
        "backed up the {}: {} files, {} in {}",
        parts.role,
        manifest.files.len(),
        print::size(bytes),
        args.to.display()
    ));
    print::line(format_args!(
        "it holds the role's secrets: keep it like a wallet. Its configuration and wallet are not in it."
    ));
    Ok(ExitCode::SUCCESS)
}

/// `muster restore`.
pub(crate) async fn restore(args: Restore, clock: SharedClock) -> Result<ExitCode> {
    let parts = read_parts(args.role, args.config.as_deref())?;
    ensure_owner(&parts.state_dir)?;
    let manifest = restore_backup(&parts, &args.from, &clock).await?;
    print::line(format_args!(
        "restored the {} of {}: start it with `muster {}`",
        parts.role, manifest.made_at, parts.role
    ));
    match args.role {
        BackupRole::Facilitator => print::line(format_args!(
            "all browsers are signed out. An API key that was revoked after {} is valid again: revoke it once more",
            manifest.made_at
        )),
        BackupRole::Validator | BackupRole::Miner | BackupRole::Executor => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies the parts of a role into the new folder `to`, and returns the manifest that it wrote last.
async fn make_backup(
    parts: &RoleParts,
    to: &Path,
    without_store: bool,
    clock: &SharedClock,
) -> anyhow::Result<Manifest> {
    let store = match &parts.store {
        None => None,
        Some(_) if without_store => None,
        Some(url) => match sqlite_file(url)? {
            Some(file) => Some(file),
            None => bail!(
                "the store of this {} is not a SQLite file: copy a PostgreSQL store with `pg_dump --format=custom` \
                 first, then run this command with --without-store for the folders",
                parts.role
            ),
        },
    };
    if let Some(file) = &store {
        ensure!(
            file.exists(),
            "there is no store at {}: check `store` in the configuration, and the folder that this command runs in",
            file.display()
        );
    }
    let is_new = match std::fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => true,
    };
    ensure!(
        is_new,
        "{} is not empty: a backup needs a folder of its own",
        to.display()
    );
    make_private_folder(to)?;
    copy_folders(parts, to)?;
    if let Some(file) = &store {
        let copied = to.join(STORE);
        copy_sqlite(file, &copied).await?;
        std::fs::File::open(&copied)?.sync_all()?;
    }
    copy_folders(parts, to)?;
    let manifest = Manifest::of(to, parts.role, clock.now())?;
    manifest.write(to)?;
    Ok(manifest)
}

/// Copies what is new or has changed in each folder.
fn copy_folders(parts: &RoleParts, to: &Path) -> anyhow::Result<()> {
    for (name, path) in &parts.folders {
        let copied = to.join("folders").join(name);
        copy_changed(path, &copied).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}

/// Brings a backup to the places that the configuration names. Nothing is overwritten.
async fn restore_backup(parts: &RoleParts, from: &Path, clock: &SharedClock) -> anyhow::Result<Manifest> {
    let manifest = Manifest::read(from)?;
    ensure!(
        manifest.role == parts.role,
        "{} is the backup of a {}, not of a {}",
        from.display(),
        manifest.role,
        parts.role
    );
    manifest.check(from)?;
    let store = match (&parts.store, manifest.files.contains_key(STORE)) {
        (Some(url), true) => {
            let file = sqlite_file(url)?;
            let file = file
                .context("the backup holds a SQLite store, but `store` in the configuration names another")?;
            ensure!(
                !file.exists(),
                "{} exists: stop the role, move its store away, and restore again",
                file.display()
            );
            Some(file)
        }
        (Some(_) | None, _) => None,
    };
    for (_, path) in &parts.folders {
        let is_free = match std::fs::metadata(path) {
            Ok(found) => found.is_dir() && std::fs::read_dir(path)?.next().is_none(),
            Err(_) => true,
        };
        ensure!(
            is_free,
            "{} exists and is not empty: stop the role, move it away, and restore again",
            path.display()
        );
    }
    for (name, path) in &parts.folders {
        let copied = from.join("folders").join(name);
        copy_changed(&copied, path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(file) = store {
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        copy_changed(&from.join(STORE), &file).with_context(|| format!("cannot write {}", file.display()))?;
        forget_what_ended(parts, clock).await?;
    }
    Ok(manifest)
}

/// Ends what may have ended after the backup. A validator does not know the signatures that came after it, so it
/// refuses all from before now: otherwise a job of that time could run twice. A facilitator does not know the browsers
/// that were signed out since, so all are.
async fn forget_what_ended(parts: &RoleParts, clock: &SharedClock) -> anyhow::Result<()> {
    match (parts.kind, &parts.store) {
        (BackupRole::Validator, Some(url)) => {
            let store = ValidatorStore::open(url).await?;
            let nanos = clock.now().micros().saturating_mul(1_000);
            store.refuse_signatures_before(nanos).await?;
            store.close().await;
            Ok(())
        }
        (BackupRole::Facilitator, Some(url)) => {
            let store = FacilitatorStore::open(url).await?;
            store.end_restored_sessions(clock.now()).await?;
            store.pool().close().await;
            Ok(())
        }
        (BackupRole::Facilitator | BackupRole::Validator | BackupRole::Miner | BackupRole::Executor, _) => {
            Ok(())
        }
    }
}

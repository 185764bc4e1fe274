//! A job's folder, and a fetcher and an uploader that may only reach this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_job_data::volumes::{UnpackLimits, merge_volumes};
use muster_job_data::{Fetcher, Pace, Settings, UploadError, Uploaded, Uploader, VolumeError};
use muster_process::SystemClock;
use muster_protocol::{OutputUpload, Volume};
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

pub(crate) const LIMITS: UnpackLimits = UnpackLimits {
    bytes: 64 << 20,
    entries: 1_000,
};

/// Short pauses between tries, of 1, 2, 4, 8, 16 milliseconds, and time-outs that no test reaches.
pub(crate) const PACE: Pace = Pace {
    first_pause: Duration::from_millis(1),
    head: Duration::from_secs(600),
    stall: Duration::from_secs(600),
};

pub(crate) struct Room {
    root: TempDir,
    pub(crate) settings: Settings,
    pub(crate) pace: Pace,
    pub(crate) limits: UnpackLimits,
}

impl Room {
    /// Loopback is permitted; nothing is cached.
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings {
            allow: vec!["127.0.0.0/8".to_owned()],
            cache_dir: root.path().join("kept"),
            cache_mib: 0,
            ..Settings::default()
        };
        Self {
            root,
            settings,
            pace: PACE,
            limits: LIMITS,
        }
    }

    pub(crate) fn keeping(mut self, mib: u64) -> Self {
        self.settings.cache_mib = mib;
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Puts a volume, given in its wire form, in place; checks that a refused one leaves no files.
    pub(crate) async fn place(&self, volume: Value) -> Result<BTreeMap<String, Vec<u8>>, VolumeError> {
        self.place_until(volume, &CancellationToken::new()).await
    }

    pub(crate) async fn place_until(
        &self,
        volume: Value,
        called_off: &CancellationToken,
    ) -> Result<BTreeMap<String, Vec<u8>>, VolumeError> {
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let job = tempfile::tempdir_in(self.root.path()).unwrap();
        let target = job.path().join("volume");
        let clock = Arc::new(SystemClock::default());
        let fetcher = Fetcher::new(self.settings.clone(), clock)
            .unwrap()
            .with_pace(self.pace);
        let parts = merge_volumes(Some(volume), None).unwrap();
        let outcome = fetcher.place(parts, &target, self.limits, called_off).await;
        let placed = outcome.map(|()| files(&target)).inspect_err(|error| {
            assert!(!target.exists(), "something is left after: {error}");
        });
        let _ = fs::remove_dir_all(&target);
        assert_eq!(
            fs::read_dir(job.path()).unwrap().count(),
            0,
            "something lies beside the volume"
        );
        placed
    }

    /// Uploads from a folder with these files.
    pub(crate) async fn upload(
        &self,
        upload: Value,
        outputs: &[(&str, &[u8])],
    ) -> Result<Uploaded, UploadError> {
        let job = tempfile::tempdir_in(self.root.path()).unwrap();
        let output = job.path().join("output");
        fs::create_dir(&output).unwrap();
        for (name, content) in outputs {
            let path = output.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        self.upload_from(upload, &output).await
    }

    pub(crate) async fn upload_from(&self, upload: Value, output: &Path) -> Result<Uploaded, UploadError> {
        let (uploaded, sent) = self.upload_partly(upload, output).await;
        sent.map(|()| uploaded)
    }

    /// The uploads that succeeded, and the first failure.
    pub(crate) async fn upload_partly(
        &self,
        upload: Value,
        output: &Path,
    ) -> (Uploaded, Result<(), UploadError>) {
        let upload: OutputUpload = serde_json::from_value(upload).unwrap();
        let uploader = Uploader::new(&self.settings).unwrap().with_pace(self.pace);
        uploader.upload(&upload, output, &CancellationToken::new()).await
    }
}

pub(crate) fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                folders.push(path);
            } else {
                assert!(kind.is_file(), "{} is no regular file", path.display());
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

pub(crate) fn zipped(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, contents) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(contents).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Incompressible bytes, the same in every run.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

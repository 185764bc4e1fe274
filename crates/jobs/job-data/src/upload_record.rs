//! The uploads of a job that have succeeded, in a file of the job's folder. A process that takes a job over does not
//! repeat them.
//!
//! The file has one JSON line for each upload. The last line may be torn, by a process that was killed while it wrote;
//! that upload is made again.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use indexmap::IndexMap;
use muster_protocol::Digest;
use serde::{Deserialize, Serialize};

use crate::upload_reports::UploadAnswer;

/// An upload: its name in results and its URL, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct UploadId(Digest);

/// One line of the record.
#[derive(Debug, Serialize, Deserialize)]
struct RecordedUpload {
    upload: UploadId,
    headers: IndexMap<String, String>,
    /// The body of the server's answer, in Base64.
    body: String,
    notice: Option<String>,
}

/// An upload that has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DoneUpload {
    pub(crate) answer: UploadAnswer,
    /// A line for the job's stderr about files that were left out.
    pub(crate) notice: Option<String>,
}

/// The record of one job.
#[derive(Clone, Debug)]
pub(crate) struct UploadRecord(PathBuf);

impl UploadId {
    pub(crate) fn new(key: &str, url: &str) -> Self {
        Self(Digest::of(format!("{key}\n{url}").as_bytes()))
    }
}

impl UploadRecord {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The uploads that have succeeded. Blocks.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub(crate) fn read(&self) -> io::Result<HashMap<UploadId, DoneUpload>> {
        let text = match fs::read(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
            Err(error) => return Err(error),
        };
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        Ok(lines.filter_map(read_line).collect())
    }

    /// Adds an upload. Blocks for as long as the page cache takes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn add(&self, upload: UploadId, done: &DoneUpload) -> io::Result<()> {
        let line = RecordedUpload {
            upload,
            headers: done.answer.headers.clone(),
            body: STANDARD.encode(&done.answer.body),
            notice: done.notice.clone(),
        };
        let mut line = serde_json::to_vec(&line)?;
        line.push(b'\n');
        // One write in append mode, so that uploads that end together do not mix their lines.
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.0)?;
        file.write_all(&line)
    }
}

fn read_line(line: &[u8]) -> Option<(UploadId, DoneUpload)> {
    let line: RecordedUpload = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    let answer = UploadAnswer {
        headers: line.headers,
        body: STANDARD.decode(&line.body).ok()?,
    };
    let done = DoneUpload {
        answer,
        notice: line.notice,
    };
    Some((line.upload, done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_an_upload_that_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let record = UploadRecord::new(&folder.path().join("uploads"));
        assert_eq!(record.read().unwrap(), HashMap::new());
        let done = DoneUpload {
            answer: UploadAnswer {
                headers: IndexMap::from([("etag".to_owned(), "\"e\"".to_owned())]),
                body: vec![0xff, b'\n'],
            },
            notice: Some("a link was left out".to_owned()),
        };
        let ids = ["a", "b"].map(|key| UploadId::new(key, "https://example.com/x"));
        for id in ids {
            record.add(id, &done).unwrap();
        }
        assert_eq!(
            record.read().unwrap(),
            HashMap::from(ids.map(|id| (id, done.clone())))
        );
        let written = fs::read(&record.0).unwrap();
        for torn in [1, 10, 60] {
            fs::write(&record.0, written.get(..written.len() - torn).unwrap()).unwrap();
            assert_eq!(
                record.read().unwrap(),
                HashMap::from([(ids[0], done.clone())]),
                "without {torn} bytes"
            );
        }
    }
}

//! Writes a download to a file and hashes it on the way. Writing blocks, so it runs on a thread of its own.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use bytes::Bytes;
use muster_protocol::Digest;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Upper bound on the chunks that wait for the disk. A chunk is one read of a socket, at most half a MiB.
const MAX_QUEUED_CHUNKS: usize = 16;

/// The file of one download, with its digests so far.
#[derive(Debug)]
pub(crate) struct HashingFile {
    file: File,
    sha256: Sha256,
    /// The digest of a git blob, if git names the file.
    git: Option<Sha1>,
    /// The length that git puts before the content.
    git_len: Option<u64>,
    len: u64,
}

/// The digests of the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digests {
    pub(crate) len: u64,
    pub(crate) sha256: Digest,
    /// The SHA-1 of the git blob.
    pub(crate) git: Option<[u8; 20]>,
}

impl HashingFile {
    /// Writes into an empty file. `git_len` is the promised length of a file that git names.
    pub(crate) fn new(file: File, git_len: Option<u64>) -> Self {
        Self {
            file,
            sha256: Sha256::new(),
            git: git_len.map(git_head),
            git_len,
            len: 0,
        }
    }

    /// Number of bytes written.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        self.sha256.update(piece);
        if let Some(git) = &mut self.git {
            git.update(piece);
        }
        self.len = self.len.saturating_add(piece.len() as u64);
        Ok(())
    }

    /// Discards all bytes received so far.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.sha256 = Sha256::new();
        self.git = self.git_len.map(git_head);
        self.len = 0;
        Ok(())
    }

    /// The digests of all bytes received.
    pub(crate) fn digests(&self) -> Digests {
        Digests {
            len: self.len,
            sha256: Digest::from_bytes(self.sha256.clone().finalize().into()),
            git: self.git.clone().map(|git| git.finalize().into()),
        }
    }
}

fn git_head(len: u64) -> Sha1 {
    Sha1::new_with_prefix(format!("blob {len}\0"))
}

/// A sink that writes on a blocking thread.
pub(crate) struct FileWriter {
    pieces: mpsc::Sender<Bytes>,
    writer: JoinHandle<(HashingFile, io::Result<()>)>,
}

impl FileWriter {
    pub(crate) fn new(mut sink: HashingFile) -> Self {
        let (pieces, mut incoming) = mpsc::channel::<Bytes>(MAX_QUEUED_CHUNKS);
        let writer = spawn_blocking(move || {
            while let Some(piece) = incoming.blocking_recv() {
                if let Err(error) = sink.write(&piece) {
                    return (sink, Err(error));
                }
            }
            (sink, Ok(()))
        });
        Self { pieces, writer }
    }

    /// Waits for room and queues a chunk. Returns false if the writer has failed; [`FileWriter::finish`] then returns
    /// its error.
    pub(crate) async fn push(&self, piece: Bytes) -> bool {
        self.pieces.send(piece).await.is_ok()
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) async fn finish(self) -> io::Result<HashingFile> {
        drop(self.pieces);
        let (sink, written) = self.writer.await.map_err(io::Error::other)?;
        written.map(|()| sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn downloaded_pieces_are_written_and_hashed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sink = HashingFile::new(file.reopen().unwrap(), Some(6));
        sink.write(b"wrong").unwrap();
        sink.restart().unwrap();
        let flow = FileWriter::new(sink);
        for piece in [&b"hel"[..], b"", b"lo\n"] {
            assert!(flow.push(Bytes::from_static(piece)).await);
        }
        let digests = flow.finish().await.unwrap().digests();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"hello\n");
        assert_eq!(digests.len, 6);
        assert_eq!(digests.sha256, Digest::of(b"hello\n"));
        // `printf 'hello\n' | git hash-object --stdin`
        assert_eq!(
            hex::encode(digests.git.unwrap()),
            "ce013625030ba8dba906f756967f9e9ca394464a"
        );
    }

    #[tokio::test]
    async fn a_disk_that_refuses_is_heard() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read_only = File::open(file.path()).unwrap();
        let flow = FileWriter::new(HashingFile::new(read_only, None));
        flow.push(Bytes::from_static(b"x")).await;
        assert!(flow.finish().await.is_err());
    }
}

//! The standard input of a job's program: the bytes of one of the job's inputs, handed to the engine byte for byte.
//!
//! The engine closes a program's standard input when the connection that feeds it ends. A program could then take a
//! part of its input for all of it, so a mark on the disk states whether the engine has the whole: only then does
//! another process of this executor go on with the job.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use muster_containers::docker_engine::InputSink;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The mark of a job whose program gets an input: empty until the engine has the whole of it.
const MARK: &str = "stdin";
/// The text of the mark from then on.
const SENT: &str = "sent";
/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// The input of a program that is about to be started.
#[derive(Debug)]
pub(crate) struct ProgramInput {
    file: File,
    mark: PathBuf,
}

/// How far the input of a program has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputStage {
    /// The program gets none.
    Absent,
    /// The engine may have a part of it.
    Begun,
    /// The engine has it.
    Sent,
}

// === impl ProgramInput ===

impl ProgramInput {
    /// Opens an input below the folder of inputs, before anything of the user's runs. The mark lies in `logs`.
    ///
    /// # Errors
    /// There is no file at this path, or the mark cannot be written.
    pub(crate) fn open(volume: &Path, path: &str, logs: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .custom_flags(O_NOFOLLOW | O_NONBLOCK)
            .open(volume.join(path))?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let mark = logs.join(MARK);
        fs::write(&mark, "")?;
        Ok(Self { file, mark })
    }

    /// Hands all of it to a program, and closes the program's standard input. A program that reads no more, or has
    /// ended, is no error.
    ///
    /// # Errors
    /// The file cannot be read to its end.
    pub(crate) async fn send(self, mut sink: InputSink) -> io::Result<()> {
        let mut file = tokio::fs::File::from_std(self.file);
        let mut piece = vec![0; PIECE];
        loop {
            let read = file.read(&mut piece).await?;
            let sent = match piece.get(..read) {
                Some(bytes) if read > 0 => sink.write_all(bytes).await,
                Some(_) | None => sink.shutdown().await,
            };
            if let Err(error) = sent {
                // An engine that went away looks the same, so this is no end that may be marked.
                tracing::info!(%error, "the program reads no more of its standard input");
                return Ok(());
            }
            if read == 0 {
                break;
            }
        }
        if let Err(error) = fs::write(&self.mark, SENT) {
            tracing::warn!(%error, "another process cannot take the job over: its input is not marked as sent");
        }
        Ok(())
    }
}

/// How far the input of the program has come whose copies of output lie in `logs`.
pub(crate) fn input_stage(logs: &Path) -> InputStage {
    match fs::read_to_string(logs.join(MARK)) {
        Ok(text) if text == SENT => InputStage::Sent,
        Ok(_) => InputStage::Begun,
        Err(_) => InputStage::Absent,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::io::duplex;

    use super::*;

    fn open(folder: &Path, bytes: &[u8]) -> ProgramInput {
        fs::write(folder.join("in"), bytes).unwrap();
        ProgramInput::open(folder, "in", folder).unwrap()
    }

    #[tokio::test]
    async fn the_bytes_come_exact_with_an_end_and_are_marked() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(input_stage(folder.path()), InputStage::Absent);
        let bytes: Vec<u8> = (0..=255).cycle().take(3 * PIECE + 7).collect();
        let input = open(folder.path(), &bytes);
        assert_eq!(input_stage(folder.path()), InputStage::Begun);
        let (mut theirs, ours) = duplex(1_000);
        let mut read = Vec::new();
        let (sent, got) = tokio::join!(input.send(Box::pin(ours)), theirs.read_to_end(&mut read));
        sent.unwrap();
        got.unwrap();
        assert!(read == bytes, "{} bytes of {}", read.len(), bytes.len());
        assert_eq!(input_stage(folder.path()), InputStage::Sent);
    }

    #[tokio::test]
    async fn a_program_that_closes_its_input_early_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let input = open(folder.path(), &[7; 3 * PIECE]);
        let (mut theirs, ours) = duplex(1_000);
        let first = async {
            theirs.read_exact(&mut [0; 10]).await.unwrap();
            drop(theirs);
        };
        let (sent, ()) = tokio::join!(input.send(Box::pin(ours)), first);
        sent.unwrap();
        assert_eq!(input_stage(folder.path()), InputStage::Begun);
    }

    #[test]
    fn a_folder_a_link_and_a_missing_file_are_no_input() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        symlink("/etc/passwd", at.join("link")).unwrap();
        fs::create_dir(at.join("folder")).unwrap();
        for path in ["link", "folder", "absent"] {
            assert!(ProgramInput::open(at, path, at).is_err(), "{path}");
        }
        assert_eq!(input_stage(at), InputStage::Absent);
    }
}

//! A file that is never forced to the disk: what a chain without a folder is kept in.

use redb::StorageBackend;
use redb::backends::FileBackend;
use std::fs::File;
use std::io;

/// A file that is never forced to the disk.
#[derive(Debug)]
pub struct Unsynced(FileBackend);

impl Unsynced {
    /// Uses a file.
    ///
    /// # Errors
    /// When it is in use.
    pub fn new(file: File) -> Result<Self, redb::DatabaseError> {
        Ok(Self(FileBackend::new(file)?))
    }
}

impl StorageBackend for Unsynced {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

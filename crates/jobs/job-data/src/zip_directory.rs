//! Opens an untrusted zip archive in bounded memory. The reader of archives keeps the whole directory in memory and
//! reserves room for as many entries as the archive claims, so claims are read and bounded first, and the directory is
//! read through a meter.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zip::ZipArchive;
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;

/// Upper bound on the bytes that are read to open an archive: its directory, and the search for it. A hundred thousand
/// entries with names of 255 bytes take half of it.
const MAX_DIRECTORY: u64 = 64 << 20;
/// The longest end of an archive: the end record, a comment of 64 KiB, and the locator of a zip64 record before it.
const MAX_END: u64 = 65_535 + END + LOCATOR;
/// Bytes of the end record without its comment.
const END: u64 = 22;
/// Bytes of the locator of the zip64 end record.
const LOCATOR: u64 = 20;
/// Bytes of the zip64 end record without extensions.
const END_64: u64 = 56;

/// An archive is not opened.
#[derive(Debug)]
pub(crate) enum DirectoryError {
    /// It claims more entries than it may have.
    TooMany,
    /// Its directory is too large.
    TooLarge,
    /// It is no archive, or the disk failed.
    Zip(ZipError),
}

impl From<io::Error> for DirectoryError {
    fn from(error: io::Error) -> Self {
        Self::Zip(error.into())
    }
}

/// A reader that fails once it has given out as many bytes as it may.
#[derive(Debug)]
pub(crate) struct MeteredReader<R> {
    inner: R,
    left: Arc<AtomicU64>,
}

impl<R: Read> Read for MeteredReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let left = self.left.load(Ordering::Relaxed);
        let rest = left
            .checked_sub(read as u64)
            .ok_or_else(|| io::Error::other("the directory of the archive is too large"));
        self.left.store(*rest.as_ref().unwrap_or(&0), Ordering::Relaxed);
        rest.map(|_| read)
    }
}

impl<R: Seek> Seek for MeteredReader<R> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}

/// Opens an archive of at most `max_entries` entries.
pub(crate) fn open_archive<R: Read + Seek>(
    mut reader: R,
    max_entries: usize,
) -> Result<ZipArchive<MeteredReader<R>>, DirectoryError> {
    let offset = check_claims(&mut reader, max_entries as u64)?;
    let left = Arc::new(AtomicU64::new(MAX_DIRECTORY));
    let metered = MeteredReader {
        inner: reader,
        left: Arc::clone(&left),
    };
    // A known offset keeps the reader from searching the whole file for other records than those checked here.
    let config = Config {
        archive_offset: ArchiveOffset::Known(offset),
    };
    match ZipArchive::with_config(config, metered) {
        Ok(archive) => {
            left.store(u64::MAX, Ordering::Relaxed);
            Ok(archive)
        }
        Err(_) if left.load(Ordering::Relaxed) == 0 => Err(DirectoryError::TooLarge),
        Err(error) => Err(DirectoryError::Zip(error)),
    }
}

/// Checks every claim in the archive's end about the number of its entries. Returns the number of bytes before the
/// archive itself: a program may stand before it.
fn check_claims<R: Read + Seek>(reader: &mut R, max_entries: u64) -> Result<u64, DirectoryError> {
    let len = reader.seek(SeekFrom::End(0))?;
    let start = len.saturating_sub(MAX_END);
    let mut end = vec![0; usize::try_from(len - start).unwrap_or_default()];
    reader.seek(SeekFrom::Start(start))?;
    reader.read_exact(&mut end)?;
    let is_record = |at: &usize| end.get(*at..).is_some_and(|rest| rest.starts_with(b"PK\x05\x06"));
    let records: Vec<usize> = (0..end.len()).rev().filter(is_record).collect();
    let mut offset = None;
    for at in &records {
        let position = start + *at as u64;
        let locator = at.checked_sub(LOCATOR as usize).and_then(|at| end.get(at..));
        let locator = locator.filter(|rest| rest.starts_with(b"PK\x06\x07"));
        let Some(locator) = locator else {
            let (size, directory) = (number(&end, at + 12, 4), number(&end, at + 16, 4));
            offset.get_or_insert(position.saturating_sub(size.saturating_add(directory)));
            continue;
        };
        let claimed = number(locator, 8, 8);
        let before = position.saturating_sub(LOCATOR + END_64);
        // The record lies where the locator states, or right before it if something stands before the archive.
        for place in [
            Some(claimed),
            Some(before),
            offset.map(|offset: u64| claimed.saturating_add(offset)),
        ] {
            let record = place.map_or(Ok(None), |place| read_end_64(reader, place, len))?;
            if let (Some(record), Some(place)) = (record, place) {
                offset.get_or_insert(place.saturating_sub(claimed));
                if number(&record, 24, 8).max(number(&record, 32, 8)) > max_entries {
                    return Err(DirectoryError::TooMany);
                }
            }
        }
    }
    Ok(offset.unwrap_or_default())
}

/// The zip64 end record at a place; `None` if there is none.
fn read_end_64<R: Read + Seek>(reader: &mut R, place: u64, len: u64) -> io::Result<Option<Vec<u8>>> {
    if place.checked_add(END_64).is_none_or(|end| end > len) {
        return Ok(None);
    }
    let mut record = vec![0; END_64 as usize];
    reader.seek(SeekFrom::Start(place))?;
    reader.read_exact(&mut record)?;
    Ok(record.starts_with(b"PK\x06\x06").then_some(record))
}

/// A number of `len` bytes, the lowest first; 0 beyond the end.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let field = bytes.get(at..at.saturating_add(len)).unwrap_or_default();
    field
        .iter()
        .rev()
        .fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write as _};

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::mutation::Mutator;

    fn archive(names: &[&str]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for name in names {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(name.as_bytes()).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    /// The end of a zip64 archive that claims `entries` entries at the beginning of the file.
    fn end_64(at: u64, entries: u64) -> Vec<u8> {
        let mut end = Vec::new();
        end.extend(b"PK\x06\x06");
        end.extend(44_u64.to_le_bytes());
        end.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for field in [entries, entries, at, 0] {
            end.extend(field.to_le_bytes());
        }
        end.extend(b"PK\x06\x07\0\0\0\0");
        end.extend(at.to_le_bytes());
        end.extend(1_u32.to_le_bytes());
        end.extend(b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
        end
    }

    fn names(bytes: &[u8]) -> Vec<String> {
        let archive = open_archive(Cursor::new(bytes), 100).unwrap();
        let names = archive.file_names().map(|name| name.unwrap().into_owned());
        names.collect()
    }

    #[test]
    fn archives_are_read_with_a_program_before_them_and_rubbish_behind_them() {
        let plain = archive(&["a", "b/c"]);
        assert_eq!(names(&plain), ["a", "b/c"]);
        assert_eq!(names(&[b"#!/bin/sh\nexit\n", &plain[..]].concat()), ["a", "b/c"]);
        assert_eq!(names(&[&plain[..], b"rubbish"].concat()), ["a", "b/c"]);
        assert_eq!(names(&archive(&[])), Vec::<String>::new());
        let mut inside = open_archive(Cursor::new(&plain), 100).unwrap();
        let mut text = String::new();
        inside.by_index(1).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "b/c");
    }

    /// A file of zeros with an end behind them: forty million entries could lie in it.
    #[derive(Debug)]
    struct Sparse {
        end: Cursor<Vec<u8>>,
        zeros: u64,
        at: u64,
    }

    impl Read for Sparse {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = match self.at.checked_sub(self.zeros) {
                Some(at) => {
                    self.end.set_position(at);
                    self.end.read(buffer)?
                }
                None => {
                    let zeros = usize::try_from(self.zeros - self.at).unwrap().min(buffer.len());
                    buffer[..zeros].fill(0);
                    zeros
                }
            };
            self.at += read as u64;
            Ok(read)
        }
    }

    impl Seek for Sparse {
        fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
            let len = self.zeros + self.end.get_ref().len() as u64;
            self.at = match position {
                SeekFrom::Start(at) => at,
                SeekFrom::End(at) => len.checked_add_signed(at).unwrap(),
                SeekFrom::Current(at) => self.at.checked_add_signed(at).unwrap(),
            };
            Ok(self.at)
        }
    }

    #[test]
    fn a_claim_of_millions_of_entries_reserves_no_memory() {
        let zeros = 2 << 30;
        for entries in [101, 40_000_000, u64::MAX] {
            let sparse = Sparse {
                end: Cursor::new(end_64(zeros, entries)),
                zeros,
                at: 0,
            };
            let refused = open_archive(sparse, 100).unwrap_err();
            assert!(matches!(refused, DirectoryError::TooMany), "{refused:?}");
        }
        // An earlier end is a claim too: the reader falls back to it.
        let mut two = vec![0; 4_000];
        two.extend(end_64(4_000, 50_000_000));
        two.extend(archive(&["a"]));
        let refused = open_archive(Cursor::new(two), 100).unwrap_err();
        assert!(matches!(refused, DirectoryError::TooMany), "{refused:?}");
    }

    #[test]
    fn a_directory_of_long_comments_is_not_read_to_its_end() {
        let entries: u64 = 1_100;
        let mut bytes = b"PK\x03\x04".to_vec();
        bytes.resize(64, 0);
        for number in 0..entries {
            bytes.extend(b"PK\x01\x02");
            bytes.extend([20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            bytes.extend([0; 12]);
            bytes.extend([8, 0, 0, 0, 255, 255]);
            bytes.extend([0; 12]);
            bytes.extend(format!("{number:08}").as_bytes());
            bytes.resize(bytes.len() + 65_535, b'c');
        }
        let size = u32::try_from(bytes.len() - 64).unwrap();
        assert!(u64::from(size) > MAX_DIRECTORY);
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        let count = u16::try_from(entries).unwrap().to_le_bytes();
        bytes.extend([count, count].concat());
        bytes.extend(size.to_le_bytes());
        bytes.extend(64_u32.to_le_bytes());
        bytes.extend([0, 0]);
        let refused = open_archive(Cursor::new(&bytes), 100_000).unwrap_err();
        assert!(matches!(refused, DirectoryError::TooLarge), "{refused:?}");
    }

    #[test]
    fn damaged_archives_are_opened_or_refused() {
        let samples = [
            archive(&["a", "b/c"]),
            end_64(0, 3),
            [end_64(0, 1), archive(&["x"])].concat(),
        ];
        let mut mutator = Mutator::seeded(23);
        for _ in 0..20_000 {
            if let Ok(archive) = open_archive(Cursor::new(mutator.next_from(&samples)), 100) {
                assert!(archive.len() <= 65_535);
            }
        }
    }
}

//! Receipt pages: files `{unix seconds / 300}.jsonl` that validators poll with ranges.
//!
//! The store decides and the files are made from it: a page that differs from the store after a crash is written
//! anew at start, byte for byte as it would have been, so a reader's offset into it stays right.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use muster_http::range::RequestedRange;
use muster_protocol::Timestamp;
use muster_protocol::receipt::{PAGE_SECS, SERVED_SECS, page_of, parse_page_name};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, Take};

use crate::store::PageLine;

/// The number of pages that are served beside the newest one.
const KEEP_PAGES: i64 = SERVED_SECS / PAGE_SECS;

/// A page file that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("receipt pages: cannot {operation} {path}; check that receipts_dir exists, is writable and has space", path = path.display())]
pub struct PageError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The part of a page that a request gets.
#[derive(Debug)]
pub struct PageContent {
    /// The range that the request's `Range` header asked for.
    pub range: RequestedRange,
    /// Bytes of the whole page.
    pub size: u64,
    /// The bytes of the range, which is all of the page for [`RequestedRange::Whole`]. They are read as they are sent:
    /// nobody has to be trusted to ask for little.
    pub bytes: Take<File>,
}

/// The oldest page still served at a moment.
pub fn oldest_page(now: Timestamp) -> i64 {
    page_of(now).saturating_sub(KEEP_PAGES)
}

/// The folder of pages.
#[derive(Clone, Debug)]
pub struct Pages {
    folder: PathBuf,
}

impl Pages {
    /// Pages in `folder`, made if it is missing, and brought in line with `lines`: all lines from the oldest page on.
    ///
    /// # Errors
    /// The folder cannot be made or written.
    pub async fn open(folder: &Path, lines: Vec<PageLine>, now: Timestamp) -> Result<Self, PageError> {
        let pages = Self {
            folder: folder.to_owned(),
        };
        tokio::fs::create_dir_all(folder)
            .await
            .map_err(failed("make the folder", folder))?;
        let mut contents = BTreeMap::<i64, String>::new();
        for PageLine { page, line } in lines {
            let content = contents.entry(page).or_default();
            content.push_str(&line);
            content.push('\n');
        }
        pages
            .remove(|page| page < oldest_page(now) || !contents.contains_key(&page))
            .await?;
        for (page, content) in contents {
            let held = pages.read(page).await?;
            if held.as_deref() != Some(content.as_bytes()) {
                pages.replace(page, &content).await?;
            }
        }
        Ok(pages)
    }

    /// Adds lines that the store has just made durable.
    ///
    /// # Errors
    /// A file cannot be written. The receipts are safe; the page is put right at the next start.
    pub async fn append(&self, lines: &[PageLine]) -> Result<(), PageError> {
        for PageLine { page, line } in lines {
            let path = self.path(*page);
            let written = async {
                let mut file = tokio::fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(&path)
                    .await?;
                // One write: a reader sees the whole line or none of it.
                file.write_all(format!("{line}\n").as_bytes()).await?;
                file.flush().await
            };
            written.await.map_err(failed("add to", &path))?;
        }
        Ok(())
    }

    /// A whole page; `None` if there is none.
    ///
    /// # Errors
    /// It is there but cannot be read.
    pub async fn read(&self, page: i64) -> Result<Option<Vec<u8>>, PageError> {
        let Some(mut content) = self.open_range(page, None).await? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = content.bytes.read_to_end(&mut bytes).await;
        read.map_err(failed("read", &self.path(page)))?;
        Ok(Some(bytes))
    }

    /// Opens the part of a page that a `Range` header asks for; `None` if there is no such page.
    ///
    /// # Errors
    /// It is there but cannot be read.
    pub async fn open_range(&self, page: i64, range: Option<&str>) -> Result<Option<PageContent>, PageError> {
        let path = self.path(page);
        match open_range(&path, range).await {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Removes pages that are no longer served.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn prune(&self, now: Timestamp) -> Result<(), PageError> {
        self.remove(|page| page < oldest_page(now)).await
    }

    async fn remove(&self, which: impl Fn(i64) -> bool) -> Result<(), PageError> {
        let listing = failed("list", &self.folder);
        let mut entries = tokio::fs::read_dir(&self.folder).await.map_err(&listing)?;
        while let Some(entry) = entries.next_entry().await.map_err(&listing)? {
            let name = entry.file_name();
            if name.to_str().and_then(parse_page_name).is_some_and(&which) {
                let path = entry.path();
                tokio::fs::remove_file(&path)
                    .await
                    .map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    async fn replace(&self, page: i64, content: &str) -> Result<(), PageError> {
        let path = self.path(page);
        let beside = path.with_extension("new");
        tokio::fs::write(&beside, content)
            .await
            .map_err(failed("write", &beside))?;
        tokio::fs::rename(&beside, &path)
            .await
            .map_err(failed("put in place", &path))
    }

    fn path(&self, page: i64) -> PathBuf {
        self.folder.join(format!("{page}.jsonl"))
    }
}

/// Opens the bytes that a `Range` header asks for, and no others.
async fn open_range(path: &Path, range: Option<&str>) -> io::Result<PageContent> {
    let mut file = File::open(path).await?;
    let size = file.metadata().await?.len();
    let range = RequestedRange::parse(range, size);
    let (first, end) = match range {
        RequestedRange::Whole => (0, size),
        RequestedRange::Part { first, end } => (first, end),
        RequestedRange::Unsatisfiable => (0, 0),
    };
    file.seek(io::SeekFrom::Start(first)).await?;
    // Lines that are appended meanwhile belong to the next request.
    let bytes = file.take(end.saturating_sub(first));
    Ok(PageContent { range, size, bytes })
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> PageError + use<> {
    let path = path.to_owned();
    move |source| PageError {
        operation,
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_range_of_a_page_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::from_secs(1_767_225_600);
        let page = page_of(now);
        let lines = vec![PageLine {
            page,
            line: "012345678".to_owned(),
        }];
        let pages = Pages::open(folder.path(), lines, now).await.unwrap();
        let part = |first, end| RequestedRange::Part { first, end };
        for (header, range, bytes) in [
            (None, RequestedRange::Whole, &b"012345678\n"[..]),
            (Some("bytes=4-"), part(4, 10), b"45678\n"),
            (Some("bytes=4-5"), part(4, 6), b"45"),
            (Some("bytes=-3"), part(7, 10), b"78\n"),
            (Some("bytes=10-"), RequestedRange::Unsatisfiable, b""),
            (Some("lines=1-"), RequestedRange::Whole, b"012345678\n"),
        ] {
            let mut content = pages.open_range(page, header).await.unwrap().unwrap();
            let mut read = Vec::new();
            content.bytes.read_to_end(&mut read).await.unwrap();
            assert_eq!(
                (content.range, content.size, &read[..]),
                (range, 10, bytes),
                "{header:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_page_of_any_size_costs_the_bytes_that_are_sent() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::from_secs(1_767_225_600);
        let pages = Pages::open(folder.path(), vec![], now).await.unwrap();
        let size = 1 << 40;
        let page = std::fs::File::create(pages.path(page_of(now))).unwrap();
        page.set_len(size).unwrap();
        for header in [None, Some("bytes=0-")] {
            let mut content = pages.open_range(page_of(now), header).await.unwrap().unwrap();
            assert_eq!((content.size, content.bytes.limit()), (size, size));
            assert_eq!(content.bytes.read_u8().await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn pages_follow_the_store_whatever_the_files_hold() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::from_secs(1_767_225_600);
        let page = page_of(now);
        let line = |page, line: &str| PageLine {
            page,
            line: line.to_owned(),
        };
        let old = oldest_page(now) - 1;
        for (name, content) in [(page, "torn"), (page - 1, "not in the store\n"), (old, "old\n")] {
            std::fs::write(folder.path().join(format!("{name}.jsonl")), content).unwrap();
        }
        std::fs::write(folder.path().join("notes.txt"), "not ours").unwrap();

        let lines = vec![line(page, "a"), line(page, "b")];
        let pages = Pages::open(folder.path(), lines, now).await.unwrap();
        pages
            .append(&[line(page, "c"), line(page + 1, "d")])
            .await
            .unwrap();
        assert_eq!(pages.read(page).await.unwrap().unwrap(), b"a\nb\nc\n");
        assert_eq!(pages.read(page + 1).await.unwrap().unwrap(), b"d\n");
        assert_eq!(pages.read(page - 1).await.unwrap(), None);
        assert_eq!(pages.read(old).await.unwrap(), None);
        assert!(folder.path().join("notes.txt").exists());

        pages
            .prune(now.plus(std::time::Duration::from_secs(3 * 24 * 3600)))
            .await
            .unwrap();
        assert_eq!(pages.read(page).await.unwrap(), None);
    }

    /// xorshift64*: a seed is a whole run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
        }
    }

    #[tokio::test]
    async fn receipt_pages_equal_the_store_whatever_their_files_hold() {
        let mut random = Random(2);
        let now = Timestamp::from_secs(1_767_225_600);
        let newest = page_of(now);
        for run in 0..200 {
            let folder = tempfile::tempdir().unwrap();
            let mut lines = Vec::new();
            let mut truth = BTreeMap::<i64, Vec<u8>>::new();
            for n in 0..random.below(12) {
                let page = newest - 2 + i64::try_from(n / 4).unwrap();
                let line = format!("{{\"n\":{n},\"text\":\"{}\"}}", "é".repeat(random.below(40)));
                truth
                    .entry(page)
                    .or_default()
                    .extend(format!("{line}\n").into_bytes());
                lines.push(PageLine { page, line });
            }
            for page in newest - 3..=newest + 1 {
                let mut file = truth.get(&page).cloned().unwrap_or_default();
                match random.below(6) {
                    0 => continue,
                    1 => file.truncate(random.below(file.len() + 1)),
                    2 => file.extend((0..random.below(50)).map(|_| random.0 as u8)),
                    3 => file.extend(b"{\"not\":\"in the store\"}\n"),
                    4 if !file.is_empty() => {
                        let at = random.below(file.len());
                        file[at] ^= 0xff;
                    }
                    _ => {}
                }
                std::fs::write(folder.path().join(format!("{page}.jsonl")), file).unwrap();
            }
            let pages = Pages::open(folder.path(), lines, now).await.unwrap();
            for page in newest - 3..=newest + 1 {
                let held = pages.read(page).await.unwrap();
                assert_eq!(held.as_ref(), truth.get(&page), "run {run}, page {page}");
            }
        }
    }
}

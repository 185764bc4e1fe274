//! Counts words: the work of the demo job.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The number of words that the result lists.
const LISTED: usize = 1_000;

/// The number of occurrences of each word, and totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frequencies {
    /// The number of files read.
    pub files: u64,
    /// The number of bytes read.
    pub bytes: u64,
    /// The number of words in all files.
    pub words: u64,
    counts: BTreeMap<String, u64>,
}

impl Frequencies {
    /// Adds one text. A word is a run of letters, in any script; case does not matter.
    pub fn add(&mut self, text: &str) {
        self.files = self.files.saturating_add(1);
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        for word in text
            .split(|letter: char| !letter.is_alphabetic())
            .filter(|word| !word.is_empty())
        {
            self.words = self.words.saturating_add(1);
            let count = self.counts.entry(word.to_lowercase()).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// The words, most frequent first, then in alphabetical order, so that every run gives the same order.
    pub fn ranked(&self) -> Vec<(&str, u64)> {
        let mut ranked: Vec<_> = self
            .counts
            .iter()
            .map(|(word, count)| (word.as_str(), *count))
            .collect();
        ranked.sort_by(|(a, more), (b, less)| less.cmp(more).then(a.cmp(b)));
        ranked
    }

    /// The result as JSON: totals and the most frequent words.
    pub fn to_json(&self) -> Value {
        let top: Vec<Value> = self
            .ranked()
            .into_iter()
            .take(LISTED)
            .map(|(word, count)| json!({"word": word, "count": count}))
            .collect();
        json!({
            "files": self.files,
            "bytes": self.bytes,
            "words": self.words,
            "distinct_words": self.counts.len(),
            "top": top,
        })
    }

    /// The result in a few lines for people.
    pub fn summary(&self) -> String {
        let mut lines = format!(
            "{} words ({} distinct) in {} files\n",
            self.words,
            self.counts.len(),
            self.files
        );
        for (word, count) in self.ranked().into_iter().take(10) {
            lines.push_str(&format!("{count:>8}  {word}\n"));
        }
        lines
    }
}

/// Counts the words of every file under `folder`, in the order of their paths.
///
/// # Errors
/// A folder or a file cannot be read. Bytes that are not UTF-8 are no error.
pub fn count_folder(folder: &Path) -> io::Result<Frequencies> {
    let mut frequencies = Frequencies::default();
    for file in files_under(folder)? {
        frequencies.add(&String::from_utf8_lossy(&std::fs::read(file)?));
    }
    Ok(frequencies)
}

fn files_under(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_whatever_their_case() {
        let mut frequencies = Frequencies::default();
        frequencies.add("The licence, the Licence; THE end. Ärger 42");
        frequencies.add("end");
        assert_eq!(frequencies.words, 8);
        assert_eq!(
            frequencies.ranked(),
            [("the", 3), ("end", 2), ("licence", 2), ("ärger", 1)]
        );
        let json = frequencies.to_json();
        assert_eq!(json["files"], 2);
        assert_eq!(json["distinct_words"], 4);
        assert_eq!(json["top"][0], json!({"word": "the", "count": 3}));
        assert!(
            frequencies
                .summary()
                .starts_with("8 words (4 distinct) in 2 files\n       3  the\n")
        );
    }

    #[test]
    fn nothing_gives_an_empty_result() {
        assert_eq!(Frequencies::default().to_json()["top"], json!([]));
    }
}

//! Parses the untrusted answers of the hub's API: the commit of a revision, the files of a commit. Pure.
//!
//! `GET /api/{models,datasets,spaces}/{repo}/revision/{revision}` answers an object whose `sha` is the commit. `GET
//! …/tree/{commit}?recursive=true` answers pages of entries `{type, path, size, oid, lfs: {oid, size}}`: `oid` is
//! git's name of the blob; `lfs.oid` is the SHA-256 of a large file, for which `size` is its own length too. Checked
//! against the Python client `huggingface_hub`, which reads the same fields.

use muster_protocol::Digest;
use muster_protocol::volume::Patterns;
use serde::Deserialize;

use crate::download::ExpectedContent;
use crate::glob;

/// Upper bound on the number of patterns of one volume, and on the characters of one pattern.
const MAX_PATTERNS: usize = 1_000;
const MAX_PATTERN: usize = 1_024;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubFile {
    pub(crate) path: String,
    pub(crate) len: u64,
    pub(crate) promise: ExpectedContent,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Parses the commit of a revision.
pub(crate) fn commit(text: &[u8]) -> Result<String, String> {
    let revision: Revision = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let plain =
        (40..=64).contains(&revision.sha.len()) && revision.sha.bytes().all(|c| c.is_ascii_hexdigit());
    if plain {
        Ok(revision.sha)
    } else {
        Err("its commit is not a hexadecimal name".to_owned())
    }
}

/// Parses the files of one page.
pub(crate) fn files(text: &[u8]) -> Result<Vec<HubFile>, String> {
    let entries: Vec<Entry> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let files = entries.into_iter().filter(|entry| entry.kind == "file");
    files.map(Entry::file).collect()
}

impl Entry {
    fn file(self) -> Result<HubFile, String> {
        let promise = match &self.lfs {
            Some(lfs) => {
                let digits = lfs.oid.strip_prefix("sha256:").unwrap_or(&lfs.oid);
                let sha256: Digest = format!("sha256:{digits}")
                    .parse()
                    .map_err(|_| "a large file has no SHA-256".to_owned())?;
                ExpectedContent {
                    len: Some(lfs.size),
                    sha256: Some(sha256),
                    git: None,
                }
            }
            None => {
                let mut name = [0; 20];
                let oid = self.oid.unwrap_or_default();
                hex::decode_to_slice(oid, &mut name).map_err(|_| "a file has no git name".to_owned())?;
                ExpectedContent {
                    len: Some(self.size),
                    sha256: None,
                    git: Some(name),
                }
            }
        };
        Ok(HubFile {
            len: promise.len.unwrap_or_default(),
            path: self.path,
            promise,
        })
    }
}

/// The patterns of a volume as the Python client reads them: a folder stands for everything below it.
pub(crate) fn patterns(patterns: Option<&Patterns>) -> Result<Option<Vec<String>>, &'static str> {
    let listed = match patterns {
        None => return Ok(None),
        Some(Patterns::One(one)) => std::slice::from_ref(one),
        Some(Patterns::Many(many)) => many.as_slice(),
    };
    if listed.len() > MAX_PATTERNS || listed.iter().any(|one| one.len() > MAX_PATTERN) {
        return Err("allow_patterns");
    }
    let below = |one: &String| {
        if one.ends_with('/') {
            format!("{one}*")
        } else {
            one.clone()
        }
    };
    Ok(Some(listed.iter().map(below).collect()))
}

/// Whether the patterns select a file.
pub(crate) fn wanted(patterns: Option<&[String]>, path: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| glob::matches(pattern, path)))
}

/// Whether a text is a repository's name: one or two parts of letters, digits, `-`, `_`, `.`.
pub(crate) fn is_repo(text: &str) -> bool {
    let parts: Vec<_> = text.split('/').collect();
    let plain = |part: &&str| {
        (1..=96).contains(&part.len())
            && part
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && !part.contains("..")
    };
    (1..=2).contains(&parts.len()) && parts.iter().all(plain)
}

/// Whether a text is the name of a branch, tag or commit.
pub(crate) fn is_revision(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && !text.contains("..")
        && text.chars().all(|c| !c.is_control() && c != '\\')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutator;

    const PAGE: &str = r#"[
        {"type":"directory","oid":"aa536c4ea18073388b5b0bc791057a7296a00398","size":0,"path":"sub"},
        {"type":"file","oid":"d3d7c1e8c3e78eeb1640b8e2041ee256e24c9ee1","size":582,"path":"config.json"},
        {"type":"file","oid":"1111111111111111111111111111111111111111","size":5,"path":"sub/model.safetensors",
         "lfs":{"oid":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824","size":5,"pointerSize":127},
         "xetHash":"x"}]"#;

    #[test]
    fn a_listing_says_length_and_digest_of_each_file() {
        let files = files(PAGE.as_bytes()).unwrap();
        assert_eq!(files.len(), 2);
        assert_eq!((files[0].path.as_str(), files[0].len), ("config.json", 582));
        assert!(files[0].promise.git.is_some() && files[0].promise.sha256.is_none());
        assert_eq!(files[1].promise.sha256, Some(Digest::of(b"hello")));
        assert_eq!(files[1].promise.git, None);
    }

    #[test]
    fn malformed_listings_are_refused() {
        for wrong in [
            "",
            "{}",
            "[1]",
            r#"[{"type":"file","path":"a","size":1}]"#,
            r#"[{"type":"file","path":"a","oid":"zz"}]"#,
            r#"[{"type":"file","path":"a","oid":"","lfs":{"oid":"short","size":1}}]"#,
            r#"[{"type":"file","path":"a","oid":"","size":-1}]"#,
        ] {
            assert!(files(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(commit(br#"{"sha":"0123456789012345678901234567890123456789"}"#).is_ok());
        for wrong in [r#"{"sha":"../../x"}"#, r#"{"sha":null}"#, "{}", r#"{"sha":""}"#] {
            assert!(commit(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_and_patterns() {
        for repo in ["gpt2", "owner/name-1.5_x", "a/b"] {
            assert!(is_repo(repo), "{repo}");
        }
        for wrong in [
            "", "a/b/c", "../x", "a/..", "a b", "a/", "/a", "a?b", "a#b", "a%2e", ".a",
        ] {
            assert!(!is_repo(wrong), "{wrong}");
        }
        assert!(
            is_revision("refs/pr/1") && is_revision("main") && !is_revision("a/../b") && !is_revision("")
        );
        let one = Patterns::One("*.json".into());
        let many = Patterns::Many(vec!["data/".into(), "x".into()]);
        let listed = patterns(Some(&many)).unwrap().unwrap();
        assert_eq!(listed, ["data/*", "x"]);
        assert!(wanted(Some(&listed), "data/a/b") && !wanted(Some(&listed), "datax"));
        assert!(wanted(patterns(Some(&one)).unwrap().as_deref(), "a/b.json"));
        assert!(wanted(None, "anything"));
        assert!(patterns(Some(&Patterns::One("x".repeat(2_000)))).is_err());
    }

    #[test]
    fn damaged_answers_are_read_or_refused() {
        let samples = [
            PAGE.as_bytes().to_vec(),
            br#"{"sha":"0123456789012345678901234567890123456789"}"#.to_vec(),
        ];
        let mut mutator = Mutator::seeded(16);
        for _ in 0..20_000 {
            let bytes = mutator.next_from(&samples);
            for file in files(&bytes).unwrap_or_default() {
                assert!(file.promise.len == Some(file.len));
                assert!(file.promise.sha256.is_some() || file.promise.git.is_some());
            }
            assert!(commit(&bytes).is_ok_and(|sha| sha.len() >= 40) || commit(&bytes).is_err());
        }
    }
}

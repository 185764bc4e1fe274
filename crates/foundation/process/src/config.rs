//! Configuration files: the whole file is read and every problem reported before the role begins.
//!
//! A role's configuration is a struct with `#[serde(default, deny_unknown_fields)]` and a text of commented defaults
//! that `muster ROLE --print-config` shows. Nothing binds or connects before the whole file is known to be good.

mod config_folder;
mod problem;
mod strict;

use std::io::ErrorKind;
use std::path::Path;

use serde::de::DeserializeOwned;

pub use config_folder::ConfigFolder;
pub use problem::{ConfigErrors, Problem};

/// A role's configuration.
pub trait RoleConfig: DeserializeOwned {
    /// The text of a file with the default of each key and its explanation. A test compares it with `Default`.
    const COMMENTED_DEFAULT: &'static str;

    /// The folder from which relative paths count instead of the file's own; empty for the file's own.
    fn state_dir(&self) -> &Path;

    /// Lets the relative paths of a file count from `folder`.
    fn place_paths(&mut self, folder: &mut ConfigFolder);

    /// Problems that types do not exclude: ranges, keys that exclude one another. Empty if there is none.
    fn validate(&self) -> Vec<Problem>;
}

/// Reads the file at `path`. Relative paths in it, and those of its defaults, count from its `state_dir`, or from its
/// folder.
///
/// # Errors
/// Every problem of the file at once, each with its line and key: see [`parse`].
pub fn load<T: RoleConfig>(path: &Path) -> Result<T, ConfigErrors> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let reason = if error.kind() == ErrorKind::NotFound {
            "there is no such file".to_owned()
        } else if error.kind() == ErrorKind::InvalidData {
            "it is not UTF-8 text".to_owned()
        } else {
            error.to_string()
        };
        ConfigErrors::of_file(name.clone(), Problem::whole(reason))
    })?;
    parse_in(&text, &name, ConfigFolder::of(path))
}

/// Reads the text of a file; `name` is its name in errors.
///
/// # Errors
/// One problem if it is not TOML. Otherwise all of these together: every unknown key with its path and the most similar
/// known key, every value of a wrong type, and the findings of [`RoleConfig::validate`] in the rest.
pub fn parse<T: RoleConfig>(text: &str, name: &str) -> Result<T, ConfigErrors> {
    parse_in(text, name, None)
}

fn parse_in<T: RoleConfig>(text: &str, name: &str, folder: Option<ConfigFolder>) -> Result<T, ConfigErrors> {
    let (mut config, mut problems) = strict::read::<T>(text);
    if let Some(config) = &mut config {
        let state_dir = config.state_dir();
        let folder = if state_dir.as_os_str().is_empty() {
            folder
        } else {
            Some(ConfigFolder::state(state_dir, folder))
        };
        if let Some(mut folder) = folder {
            config.place_paths(&mut folder);
            problems.extend(folder.into_problems());
        }
        // A removed key has its default now; a problem of that default would not help the reader.
        let struck: Vec<String> = problems.iter().map(|problem| problem.path.clone()).collect();
        let found = config.validate();
        problems.extend(
            found
                .into_iter()
                .filter(|problem| !struck.contains(&problem.path)),
        );
    }
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        Some(_) | None => Err(ConfigErrors::new(name.to_owned(), problems)),
    }
}

/// Reads a role's own commented defaults. Each role has a test that they equal its `Default`.
///
/// # Errors
/// The text does not fit the type, which is a defect of the role.
pub fn commented_default<T: RoleConfig>() -> Result<T, ConfigErrors> {
    parse(T::COMMENTED_DEFAULT, "the commented defaults")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::PathBuf;

    use muster_protocol::ErrorCode;
    use serde::Deserialize;

    use super::*;
    use crate::error::Coded;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Sample {
        state_dir: PathBuf,
        listen: SocketAddr,
        netuid: u16,
        wallet: Option<PathBuf>,
        chain: Chain,
        peers: Vec<Peer>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Chain {
        url: String,
        retries: u32,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Peer {
        name: String,
        #[serde(default)]
        weight: u8,
    }

    impl Default for Sample {
        fn default() -> Self {
            Self {
                state_dir: PathBuf::new(),
                listen: SocketAddr::from(([127, 0, 0, 1], 8000)),
                netuid: 1,
                wallet: None,
                chain: Chain::default(),
                peers: Vec::new(),
            }
        }
    }

    impl Default for Chain {
        fn default() -> Self {
            Self {
                url: "ws://127.0.0.1:9944".to_owned(),
                retries: 3,
            }
        }
    }

    impl RoleConfig for Sample {
        const COMMENTED_DEFAULT: &'static str = r#"
# Where to listen.
listen = "127.0.0.1:8000"
netuid = 1
# wallet = "name"
[chain]
url = "ws://127.0.0.1:9944"
retries = 3
"#;

        fn state_dir(&self) -> &Path {
            &self.state_dir
        }

        fn place_paths(&mut self, folder: &mut ConfigFolder) {
            self.wallet.iter_mut().for_each(|path| folder.place(path));
        }

        fn validate(&self) -> Vec<Problem> {
            let mut problems = Vec::new();
            if !self.chain.url.starts_with("ws") {
                problems.push(Problem::at("chain.url", "must begin with ws:// or wss://"));
            }
            if self.netuid == 0 {
                problems.push(Problem::at("netuid", "0 is the root network"));
            }
            problems
        }
    }

    fn complaints(text: &str) -> Vec<String> {
        let errors = parse::<Sample>(text, "sample.toml").unwrap_err();
        assert_eq!(errors.code(), Some(ErrorCode::ConfigInvalid));
        errors.problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_commented_defaults_are_the_defaults() {
        assert_eq!(commented_default::<Sample>().unwrap(), Sample::default());
        assert_eq!(parse::<Sample>("", "empty").unwrap(), Sample::default());
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let text = r#"
lisen = "127.0.0.1:1"
netuid = "one"
zebra = 1
[chain]
url = "http://x"
retry = 5
retries = -1
[[peers]]
name = "a"
[[peers]]
name = "b"
wieght = 1
"#;
        assert_eq!(
            complaints(text),
            [
                "line 2: `lisen`: unknown key; is `listen` meant?",
                "line 3: `netuid`: invalid type: string \"one\", expected u16",
                "line 4: `zebra`: unknown key; known here are `state_dir`, `listen`, `netuid`, `wallet`, `chain`, `peers`",
                "line 7: `chain.retry`: unknown key; known here are `url`, `retries`",
                "line 8: `chain.retries`: invalid value: integer `-1`, expected u32",
                "line 13: `peers[1].wieght`: unknown key; is `weight` meant?",
                "`chain.url`: must begin with ws:// or wss://",
            ]
        );
    }

    #[test]
    fn a_relative_path_counts_from_the_state_dir() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sample.toml");
        std::fs::write(&file, "state_dir = \"/var/lib/sample\"\nwallet = \"w\"").unwrap();
        assert_eq!(
            load::<Sample>(&file).unwrap().wallet,
            Some(PathBuf::from("/var/lib/sample/w"))
        );
        let text = "state_dir = \"/var/lib/sample\"\nwallet = \"/w\"";
        assert_eq!(
            parse::<Sample>(text, "text").unwrap().wallet,
            Some(PathBuf::from("/w"))
        );
    }

    #[test]
    fn text_that_is_no_toml_has_one_problem() {
        let found = complaints("netuid = 1\nlisten = \n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("line 2: "), "{found:?}");
    }

    #[test]
    fn a_missing_key_is_named_and_the_rest_still_read() {
        let found = complaints("[[peers]]\nweight = 1\n[chain]\nretries = true\n");
        assert_eq!(
            found,
            [
                "line 1: `peers`: missing field `name`",
                "line 4: `chain.retries`: invalid type: boolean `true`, expected u32",
            ]
        );
    }

    #[test]
    fn validation_does_not_complain_about_what_was_struck_out() {
        let found = complaints("netuid = 0\n[chain]\nurl = 1\n");
        assert_eq!(
            found,
            [
                "line 3: `chain.url`: invalid type: integer `1`, expected a string",
                "`netuid`: 0 is the root network",
            ]
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,40}", key in "[a-z.\\[\\]\"]{1,12}", value in "[-0-9a-z\"'\\[\\]{}=., ]{0,12}") {
            for text in [text.clone(), format!("{key} = {value}"), format!("[{key}]\n{text}"), format!("peers = [{{{key} = {value}}}]")] {
                let _ = parse::<Sample>(&text, "any");
            }
        }
    }

    #[test]
    fn unreadable_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("role.toml");
        let error = load::<Sample>(&path).unwrap_err();
        assert!(error.to_string().contains("there is no such file"), "{error}");
        assert!(error.to_string().contains("role.toml"), "{error}");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        let error = load::<Sample>(&path).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
        std::fs::write(&path, "netuid = 7").unwrap();
        assert_eq!(load::<Sample>(&path).unwrap().netuid, 7);
    }

    #[test]
    fn relative_paths_count_from_the_folder_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("role.toml");
        std::fs::write(&path, "wallet = \"keys/own\"").unwrap();
        let wallet = |config: Sample| config.wallet.unwrap();
        assert_eq!(wallet(load(&path).unwrap()), folder.path().join("keys/own"));
        assert_eq!(
            wallet(parse("wallet = \"keys/own\"", "text").unwrap()),
            PathBuf::from("keys/own")
        );
    }
}

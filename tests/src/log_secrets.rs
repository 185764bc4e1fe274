//! Secrets in logs: every subnet of the suite is searched when it ends, and so are roles that a test starts one by one.
//! A log goes to people and to services that must not have the keys of its role.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

/// The shortest text that counts as a secret: shorter ones occur by chance.
const SHORTEST: usize = 16;
/// The beginnings of secrets, each with the least number of characters that make it one after that.
const BEGINNINGS: &[(&str, usize)] = &[
    // An API key.
    ("msk_", 64),
    // An invitation of an executor.
    ("muster-enrol-1/", 16),
    // A token of a login: JSON objects in base64.
    ("eyJ", 60),
    // A credential of HTTP.
    ("Bearer ", 16),
    // A signed URL of the file store.
    ("Signature=", 16),
];
/// The most bytes of a wallet's file.
const MOST_WALLET_BYTES: u64 = 64 * 1024;
/// The fields of a wallet's file that are secret.
const WALLET_SECRETS: &[&str] = &["secretPhrase", "secretSeed", "privateKey"];

/// The secrets of a subnet's folder that its logs show, each as the log, the line's number and the kind of secret.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn find_in_logs(folder: &Path) -> Result<Vec<String>> {
    let mut files = files_below(&folder.join("data"))?;
    files.extend(files_below(&folder.join("wallets"))?);
    let mut logs = files_below(&folder.join("logs"))?;
    logs.push(folder.join("up.log"));
    Ok(search(logs, &own_secrets(files)?))
}

/// As [`find_in_logs`], of roles whose files and logs lie in one folder.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn find_beside_roles(folder: &Path) -> Result<Vec<String>> {
    let files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let is_log = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let logs = files.iter().filter(is_log).cloned().collect();
    Ok(search(logs, &own_secrets(files)?))
}

fn search(logs: Vec<PathBuf>, secrets: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for log in logs {
        let bytes = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        for (number, line) in text.lines().enumerate() {
            if let Some(kind) = secret_in(line, secrets) {
                let name = log.file_name().unwrap_or_default().to_string_lossy();
                found.push(format!("{name}:{}: {kind}", number.saturating_add(1)));
            }
        }
    }
    found
}

/// The kind of the secret that a line shows.
fn secret_in(line: &str, secrets: &BTreeSet<String>) -> Option<String> {
    if secrets.iter().any(|secret| line.contains(secret)) {
        return Some("a token or a key of the subnet's folder".to_owned());
    }
    let begins = |(beginning, least): &&(&str, usize)| {
        line.match_indices(beginning).any(|(place, _)| {
            let rest = line
                .get(place.saturating_add(beginning.len())..)
                .unwrap_or_default();
            let is_secret = |c: &char| c.is_ascii_alphanumeric() || "+/=_-.%".contains(*c);
            rest.chars().take_while(is_secret).count() >= *least
        })
    };
    let (beginning, _) = BEGINNINGS.iter().find(begins)?;
    Some(format!("a text that begins with {beginning:?}"))
}

/// The tokens and the keys in these files.
fn own_secrets(files: Vec<PathBuf>) -> Result<BTreeSet<String>> {
    let mut secrets = BTreeSet::new();
    for file in files {
        if file.extension().is_some_and(|extension| extension == "token") {
            secrets.insert(std::fs::read_to_string(&file)?.trim().to_owned());
            continue;
        }
        // Wallets are small; stores of roles are not.
        if std::fs::metadata(&file).is_ok_and(|about| about.len() > MOST_WALLET_BYTES || !about.is_file()) {
            continue;
        }
        let text = std::fs::read(&file).unwrap_or_default();
        let Ok(wallet) = serde_json::from_slice::<Value>(&text) else {
            continue;
        };
        let fields = WALLET_SECRETS
            .iter()
            .filter_map(|field| wallet.get(field)?.as_str());
        secrets.extend(fields.map(|secret| secret.trim_start_matches("0x").to_owned()));
    }
    secrets.retain(|secret| secret.len() >= SHORTEST);
    Ok(secrets)
}

/// Every file in a folder and its folders; none if there is no such folder.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            // Files of jobs come and go, and sockets are no files.
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_and_their_names_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let (token, seed) = ("ab".repeat(32), "cd".repeat(32));
        write("data/validator.token", &format!("{token}\n"));
        write(
            "wallets/user/hotkeys/default",
            &format!(r#"{{"ss58Address":"5Grw","secretSeed":"0x{seed}"}}"#),
        );
        let key = format!("msk_{}", "0".repeat(64));
        write(
            "logs/quiet.log",
            "keys begin with msk_ and tokens go after Bearer \n5Grw Signature=short\n",
        );
        assert_eq!(find_in_logs(folder.path()).unwrap(), [""; 0]);
        write(
            "logs/loud.log",
            &format!("one\nkey {key}\nseed {seed}\n\u{1b}[2mtoken={token}\n"),
        );
        write(
            "up.log",
            "GET /files/a/content?Expires=1&Signature=0123456789abcdef01\n",
        );
        let found = find_in_logs(folder.path()).unwrap();
        assert_eq!(found.len(), 4, "{found:?}");
        // Roles that are started one by one have everything in one folder.
        write("miner.token", &token);
        write("miner.log", &format!("nothing\nthe token is {token}\n"));
        let beside = find_beside_roles(folder.path()).unwrap();
        assert!(
            beside.contains(&"miner.log:2: a token or a key of the subnet's folder".to_owned()),
            "{beside:?}"
        );
        assert!(
            found
                .iter()
                .any(|line| line.starts_with("loud.log:2: a text that begins with \"msk_\""))
        );
        assert!(
            !found
                .iter()
                .any(|line| line.contains(&token) || line.contains(&key)),
            "{found:?}"
        );
    }
}

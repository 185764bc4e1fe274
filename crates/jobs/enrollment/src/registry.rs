//! A miner's roll of standing executors: a folder of small files, one an executor, one a token that is still good.
//!
//! Files, so that an operator's command and a running miner share it without asking each other, and so that a name can be
//! struck off with `rm`. Of a token only its digest is there, as the file's name. Taking a token is renaming its file,
//! which succeeds once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_process::tls::TlsIdentity;
use muster_protocol::wire::executor::EnrolSecret;
use muster_protocol::{Digest, ExecutorClass, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::invitation::Invitation;
use crate::keys::{KeyError, load_or_create};

/// An executor's name in bytes, at most.
const MAX_NAME: usize = 64;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The kind of executor that it admits.
    pub class: ExecutorClass,
    /// How many jobs that executor may run at once, at most.
    pub capacity: u32,
    /// Until when.
    pub expires: Timestamp,
}

/// An executor on the roll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// For people.
    pub name: String,
    /// Of which kind it is.
    pub class: ExecutorClass,
    /// How many jobs it may run at once, at most.
    pub capacity: u32,
    /// Since when.
    pub enrolled: Timestamp,
    /// The digest of the token it came with.
    pub token: Digest,
}

/// Why an executor is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Never drawn here, or used.
    #[error("the token is unknown here or was used; ask the miner's operator for another")]
    Unknown,
    /// Too late.
    #[error("the token has expired; ask the miner's operator for another")]
    Expired,
    /// A name that is none.
    #[error("an executor's name has 1 to {MAX_NAME} letters, digits, dots, hyphens or underscores")]
    Name,
}

/// A roll that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RollError {
    /// A file of it.
    #[error("the roll of executors in {path} cannot be used; the folder must belong to the miner's user", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The miner's key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Nothing was drawn.
    #[error("no secret can be drawn on this machine")]
    Random(#[from] getrandom::Error),
    /// Not taken in.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nobody, or several.
    #[error(
        "{found} executors have a fingerprint that begins with {prefix:?}; `muster miner --executors` lists them"
    )]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// How many.
        found: usize,
    },
}

/// The folder. Every call reads it anew; all of them block, none for long.
#[derive(Clone, Debug)]
pub struct Roll {
    folder: PathBuf,
}

impl Roll {
    /// The roll in `folder`, which is made when it is first needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The miner's own key towards its executors, drawn when it is first needed.
    ///
    /// # Errors
    /// The key's file.
    pub fn identity(&self) -> Result<TlsIdentity, RollError> {
        Ok(load_or_create(&self.folder.join("miner.pem"), "muster miner")?)
    }

    /// Draws a token for one executor.
    ///
    /// # Errors
    /// The folder, or no randomness.
    pub fn invite(
        &self,
        address: String,
        class: ExecutorClass,
        capacity: u32,
        lives: Duration,
        now: Timestamp,
    ) -> Result<Invitation, RollError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        let secret = EnrolSecret::from_bytes(bytes);
        let terms = Terms {
            class,
            capacity,
            expires: now.plus(lives),
        };
        self.write(&self.token_file(secret.digest()), &terms)?;
        Ok(Invitation {
            address,
            miner: self.identity()?.fingerprint(),
            secret,
        })
    }

    /// Whether any token is good now, so that a stranger may come in to enrol.
    ///
    /// # Errors
    /// The folder.
    pub fn expects_anyone(&self, now: Timestamp) -> Result<bool, RollError> {
        let tokens = self.files_in("tokens")?;
        Ok(tokens
            .iter()
            .filter_map(|path| read::<Terms>(path))
            .any(|terms| now < terms.expires))
    }

    /// Takes in the executor with this certificate for a token. The same executor may show the same token again: its
    /// first answer may have been lost.
    ///
    /// # Errors
    /// [`RollError::Refused`]; the folder.
    pub fn enrol(
        &self,
        secret: &EnrolSecret,
        certificate: Digest,
        name: &str,
        now: Timestamp,
    ) -> Result<Member, RollError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(plain) {
            return Err(Refusal::Name.into());
        }
        let token = secret.digest();
        if let Some(known) = self.find(certificate)?.filter(|known| known.token == token) {
            return Ok(known);
        }
        // Of all that show one token at once, one succeeds here.
        let (file, taken) = (self.token_file(token), self.taken_file(token, certificate));
        match fs::rename(&file, &taken) {
            Ok(()) => {}
            // Taken by the same executor, by a miner that was killed before it had written the rest.
            Err(error) if error.kind() == io::ErrorKind::NotFound && taken.exists() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Refusal::Unknown.into()),
            Err(source) => return Err(RollError::File { path: file, source }),
        }
        let terms: Terms = read(&taken).ok_or(Refusal::Unknown)?;
        if now >= terms.expires {
            self.remove(&taken)?;
            return Err(Refusal::Expired.into());
        }
        let member = Member {
            name: name.to_owned(),
            class: terms.class,
            capacity: terms.capacity,
            enrolled: now,
            token,
        };
        self.write(&self.member_file(certificate), &member)?;
        self.remove(&taken)?;
        Ok(member)
    }

    /// The executor with this certificate, if it is on the roll.
    ///
    /// # Errors
    /// The folder.
    pub fn find(&self, certificate: Digest) -> Result<Option<Member>, RollError> {
        let path = self.member_file(certificate);
        match fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RollError::File { path, source }),
        }
    }

    /// Everyone on the roll.
    ///
    /// # Errors
    /// The folder.
    pub fn members(&self) -> Result<Vec<(Digest, Member)>, RollError> {
        let named = |path: &PathBuf| {
            let hex = path.file_stem()?.to_str()?;
            Some((format!("sha256:{hex}").parse().ok()?, read(path)?))
        };
        Ok(self.files_in("executors")?.iter().filter_map(named).collect())
    }

    /// Strikes off the one executor whose fingerprint begins with `prefix`. A running miner lets it go within seconds.
    ///
    /// # Errors
    /// [`RollError::Ambiguous`]; the folder.
    pub fn revoke(&self, prefix: &str) -> Result<(Digest, Member), RollError> {
        let mut found = self.members()?;
        found.retain(|(certificate, _)| certificate.hex().starts_with(prefix));
        match (found.pop(), found.len()) {
            (Some((certificate, member)), 0) => {
                self.remove(&self.member_file(certificate))?;
                Ok((certificate, member))
            }
            (one, more) => Err(RollError::Ambiguous {
                prefix: prefix.to_owned(),
                found: more + usize::from(one.is_some()),
            }),
        }
    }

    fn token_file(&self, token: Digest) -> PathBuf {
        self.folder.join("tokens").join(format!("{}.json", token.hex()))
    }

    fn taken_file(&self, token: Digest, by: Digest) -> PathBuf {
        self.folder
            .join("taken")
            .join(format!("{}-{}.json", token.hex(), by.hex()))
    }

    fn member_file(&self, certificate: Digest) -> PathBuf {
        self.folder
            .join("executors")
            .join(format!("{}.json", certificate.hex()))
    }

    /// In the order of their names.
    fn files_in(&self, part: &str) -> Result<Vec<PathBuf>, RollError> {
        let path = self.folder.join(part);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(|source| RollError::File { path, source })?,
        };
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        Ok(files)
    }

    fn write(&self, path: &Path, content: &impl Serialize) -> Result<(), RollError> {
        let failed = |source| RollError::File {
            path: path.to_owned(),
            source,
        };
        files::private_folder(&self.folder.join("taken")).map_err(failed)?;
        let text = serde_json::to_vec(content).map_err(|error| failed(error.into()))?;
        files::write(path, &text).map_err(failed)
    }

    fn remove(&self, path: &Path) -> Result<(), RollError> {
        fs::remove_file(path).map_err(|source| RollError::File {
            path: path.to_owned(),
            source,
        })
    }
}

/// What cannot be read is as good as absent: nobody is admitted by a broken file.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn roll() -> (tempfile::TempDir, Roll) {
        let folder = tempfile::tempdir().unwrap();
        let roll = Roll::new(folder.path().join("standing"));
        (folder, roll)
    }

    fn invite(roll: &Roll, now: Timestamp) -> Invitation {
        roll.invite("h:1".to_owned(), ExecutorClass::AlwaysOnTest, 2, HOUR, now)
            .unwrap()
    }

    fn refusal(outcome: Result<Member, RollError>) -> Refusal {
        let error = outcome.unwrap_err();
        let RollError::Refused(refusal) = error else {
            panic!("{error}")
        };
        refusal
    }

    #[test]
    fn a_token_admits_one_executor_once() {
        let ((_folder, roll), now) = (roll(), Timestamp::from_secs(1_000));
        let invitation = invite(&roll, now);
        assert_eq!(invitation.miner, roll.identity().unwrap().fingerprint());
        let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
        assert_eq!(roll.find(one).unwrap(), None);
        let member = roll.enrol(&invitation.secret, one, "box-1", now).unwrap();
        assert_eq!((member.class, member.capacity), (ExecutorClass::AlwaysOnTest, 2));
        assert_eq!(roll.find(one).unwrap(), Some(member.clone()));
        // Its first answer may have been lost; nobody else profits from that.
        assert_eq!(roll.enrol(&invitation.secret, one, "box-1", now).unwrap(), member);
        assert_eq!(
            refusal(roll.enrol(&invitation.secret, two, "box-2", now)),
            Refusal::Unknown
        );
        assert_eq!(roll.members().unwrap(), [(one, member)]);
        // Nothing in the folder tells the secret.
        let secret = invitation.secret.to_string();
        for part in ["tokens", "taken", "executors"] {
            for path in roll.files_in(part).unwrap() {
                let text = fs::read_to_string(&path).unwrap();
                assert!(!text.contains(&secret) && !path.display().to_string().contains(&secret));
            }
        }
    }

    #[test]
    fn a_token_dies_of_age() {
        let ((_folder, roll), now) = (roll(), Timestamp::from_secs(1_000));
        assert!(!roll.expects_anyone(now).unwrap());
        let invitation = invite(&roll, now);
        assert!(roll.expects_anyone(now).unwrap());
        let late = now.plus(HOUR);
        assert!(!roll.expects_anyone(late).unwrap());
        let certificate = Digest::of(b"one");
        let enrol = |at| roll.enrol(&invitation.secret, certificate, "box", at);
        assert_eq!(refusal(enrol(late)), Refusal::Expired);
        assert_eq!(
            refusal(enrol(now)),
            Refusal::Unknown,
            "it was taken and thrown away"
        );
    }

    #[test]
    fn names_are_plain_and_a_bad_one_costs_no_token() {
        let ((_folder, roll), now) = (roll(), Timestamp::from_secs(1_000));
        let secret = invite(&roll, now).secret;
        let certificate = Digest::of(b"one");
        for name in ["", "a b", "../x", &"x".repeat(65)] {
            assert_eq!(
                refusal(roll.enrol(&secret, certificate, name, now)),
                Refusal::Name
            );
        }
        roll.enrol(&secret, certificate, "gpu-1.rack_2", now).unwrap();
    }

    #[test]
    fn who_is_struck_off_is_not_found() {
        let ((_folder, roll), now) = (roll(), Timestamp::from_secs(1_000));
        let certificates = [Digest::of(b"one"), Digest::of(b"two")];
        for certificate in certificates {
            roll.enrol(&invite(&roll, now).secret, certificate, "box", now)
                .unwrap();
        }
        for (prefix, found) in [("", 2), ("zz", 0)] {
            let error = roll.revoke(prefix).unwrap_err();
            assert!(
                matches!(error, RollError::Ambiguous { found: f, .. } if f == found),
                "{error}"
            );
        }
        let hex = certificates[0].hex();
        assert_eq!(roll.revoke(&hex[..12]).unwrap().0, certificates[0]);
        assert_eq!(roll.find(certificates[0]).unwrap(), None);
        assert!(roll.find(certificates[1]).unwrap().is_some());
    }

    #[test]
    fn of_many_at_once_one_is_admitted() {
        let ((_folder, roll), now) = (roll(), Timestamp::from_secs(1_000));
        let secret = invite(&roll, now).secret;
        let admitted = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8_u8)
                .map(|n| {
                    let (roll, secret) = (&roll, &secret);
                    scope.spawn(move || roll.enrol(secret, Digest::of(&[n]), "box", now).is_ok())
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .filter(|admitted| *admitted)
                .count()
        });
        assert_eq!(admitted, 1);
    }
}

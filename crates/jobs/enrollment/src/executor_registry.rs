//! A miner's registry of persistent executors: a folder with one small file for each executor and each unused token.
//!
//! Files, so that an operator's command and a running miner share it without talking to each other, and so that an
//! executor can be removed with `rm`. A token's file is named by the token's digest; the token itself is not stored. A
//! token is used by renaming its file, which succeeds once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_process::tls::TlsIdentity;
use muster_protocol::wire::executor::OneTimeSecret;
use muster_protocol::{Digest, ExecutorClass, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::invitation::Invitation;
use crate::key_and_certificate::{KeyError, load_or_create};
use crate::private_files;

/// Bytes of an executor's name, at most.
const MAX_NAME: usize = 64;

/// The terms under which a token admits an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenTerms {
    /// The class of the executor that it admits.
    pub class: ExecutorClass,
    /// Jobs that the executor may run at once, at most.
    pub capacity: u32,
    /// The time from which the token is refused.
    pub expires: Timestamp,
}

/// An executor in the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolledExecutor {
    /// The executor's name for people, chosen when it enrolled.
    pub name: String,
    /// The class of jobs that it takes.
    pub class: ExecutorClass,
    /// Jobs that it may run at once, at most.
    pub capacity: u32,
    /// The time of its enrollment.
    pub enrolled: Timestamp,
    /// The digest of the token with which it enrolled.
    pub token: Digest,
}

/// Why an executor is not enrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrollmentRejection {
    /// The token was never drawn by this miner, or was used.
    #[error("the token is unknown here or was used; ask the miner's operator for another")]
    Unknown,
    /// The token has expired.
    #[error("the token has expired; ask the miner's operator for another")]
    Expired,
    /// The name has characters or a length that are not allowed.
    #[error("an executor's name has 1 to {MAX_NAME} letters, digits, dots, hyphens or underscores")]
    Name,
}

/// An operation of the registry that failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A file cannot be read, written or removed.
    #[error("the registry of executors in {path} cannot be used; the folder must belong to the miner's user", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The miner's key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The operating system gives no randomness.
    #[error("no secret can be drawn on this machine")]
    Random(#[from] getrandom::Error),
    /// The executor is not enrolled.
    #[error(transparent)]
    Refused(#[from] EnrollmentRejection),
    /// No executor, or more than one, has such a fingerprint.
    #[error(
        "{found} executors have a fingerprint that begins with {prefix:?}; `muster miner --executors` lists them"
    )]
    Ambiguous {
        /// The beginning of the fingerprint.
        prefix: String,
        /// Executors whose fingerprint begins so.
        found: usize,
    },
}

/// The most executors that one token admits.
pub const MAX_USES: u32 = 10_000;

/// The terms of an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvitationTerms {
    /// The class of the executors.
    pub class: ExecutorClass,
    /// The most jobs that each of them may run at once.
    pub capacity: u32,
    /// The time until the invitation expires.
    pub lives: Duration,
    /// The executors that it admits: 1 to [`MAX_USES`].
    pub uses: u32,
}

/// The folder of the registry. Every call reads it anew; all calls block, none for long.
#[derive(Clone, Debug)]
pub struct ExecutorRegistry {
    folder: PathBuf,
}

impl ExecutorRegistry {
    /// The registry in `folder`, which is made when it is first needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The miner's own key towards its executors, drawn when it is first needed.
    ///
    /// # Errors
    /// The key's file cannot be used.
    pub fn identity(&self) -> Result<TlsIdentity, RegistryError> {
        Ok(load_or_create(&self.folder.join("miner.pem"), "muster miner")?)
    }

    /// Draws a token, which admits as many executors as the invitation says, each once.
    ///
    /// # Errors
    /// The folder cannot be used, or there is no randomness.
    pub fn invite(
        &self,
        address: String,
        terms: InvitationTerms,
        now: Timestamp,
    ) -> Result<Invitation, RegistryError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        let secret = OneTimeSecret::from_bytes(bytes);
        let token = TokenTerms {
            class: terms.class,
            capacity: terms.capacity,
            expires: now.plus(terms.lives),
        };
        for place in 0..terms.uses.clamp(1, MAX_USES) {
            self.write(&self.token_file(secret.digest(), place), &token)?;
        }
        Ok(Invitation {
            address,
            miner: self.identity()?.fingerprint(),
            secret,
        })
    }

    /// Whether any token is valid now, so that connections of unknown executors are accepted.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn has_valid_token(&self, now: Timestamp) -> Result<bool, RegistryError> {
        let tokens = self.files_in("tokens")?;
        Ok(tokens
            .iter()
            .filter_map(|path| read::<TokenTerms>(path))
            .any(|terms| now < terms.expires))
    }

    /// Enrols the executor with this certificate for a token. The same executor may show the same token again: the
    /// first answer may have been lost.
    ///
    /// # Errors
    /// [`RegistryError::Refused`]; the folder cannot be used.
    pub fn enroll(
        &self,
        secret: &OneTimeSecret,
        certificate: Digest,
        name: &str,
        now: Timestamp,
    ) -> Result<EnrolledExecutor, RegistryError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(plain) {
            return Err(EnrollmentRejection::Name.into());
        }
        let token = secret.digest();
        if let Some(known) = self.find(certificate)?.filter(|known| known.token == token) {
            return Ok(known);
        }
        let taken = self.taken_file(token, certificate);
        // The same executor may have used it before, and the miner was killed before it wrote the executor's file.
        if !taken.exists() && !self.take_place(token, &taken)? {
            return Err(EnrollmentRejection::Unknown.into());
        }
        let terms: TokenTerms = read(&taken).ok_or(EnrollmentRejection::Unknown)?;
        if now >= terms.expires {
            self.remove(&taken)?;
            return Err(EnrollmentRejection::Expired.into());
        }
        let member = EnrolledExecutor {
            name: name.to_owned(),
            class: terms.class,
            capacity: terms.capacity,
            enrolled: now,
            token,
        };
        self.write(&self.executor_file(certificate), &member)?;
        self.remove(&taken)?;
        Ok(member)
    }

    /// The executor with this certificate, if it is enrolled.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn find(&self, certificate: Digest) -> Result<Option<EnrolledExecutor>, RegistryError> {
        let path = self.executor_file(certificate);
        match fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RegistryError::File { path, source }),
        }
    }

    /// All executors, with the digests of their certificates.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn executors(&self) -> Result<Vec<(Digest, EnrolledExecutor)>, RegistryError> {
        let named = |path: &PathBuf| {
            let hex = path.file_stem()?.to_str()?;
            Some((format!("sha256:{hex}").parse().ok()?, read(path)?))
        };
        Ok(self.files_in("executors")?.iter().filter_map(named).collect())
    }

    /// Removes the one executor whose fingerprint begins with `prefix`. A running miner disconnects it within seconds.
    ///
    /// # Errors
    /// [`RegistryError::Ambiguous`]; the folder cannot be used.
    pub fn revoke(&self, prefix: &str) -> Result<(Digest, EnrolledExecutor), RegistryError> {
        let mut found = self.executors()?;
        found.retain(|(certificate, _)| certificate.hex().starts_with(prefix));
        match (found.pop(), found.len()) {
            (Some((certificate, member)), 0) => {
                self.remove(&self.executor_file(certificate))?;
                Ok((certificate, member))
            }
            (one, more) => Err(RegistryError::Ambiguous {
                prefix: prefix.to_owned(),
                found: more + usize::from(one.is_some()),
            }),
        }
    }

    /// Takes one of the places that a token still has. Of several executors that show the token at once, each gets
    /// another place, as long as there is one.
    fn take_place(&self, token: Digest, taken: &Path) -> Result<bool, RegistryError> {
        let is_of_token = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&token.hex()))
        };
        for file in self.files_in("tokens")?.into_iter().filter(is_of_token) {
            match fs::rename(&file, taken) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(RegistryError::File { path: file, source }),
            }
        }
        Ok(false)
    }

    /// The file of one place of a token. Versions that knew one place called it by the token alone.
    fn token_file(&self, token: Digest, place: u32) -> PathBuf {
        let name = match place {
            0 => format!("{}.json", token.hex()),
            place => format!("{}-{place}.json", token.hex()),
        };
        self.folder.join("tokens").join(name)
    }

    fn taken_file(&self, token: Digest, by: Digest) -> PathBuf {
        self.folder
            .join("taken")
            .join(format!("{}-{}.json", token.hex(), by.hex()))
    }

    fn executor_file(&self, certificate: Digest) -> PathBuf {
        self.folder
            .join("executors")
            .join(format!("{}.json", certificate.hex()))
    }

    /// The files of a subfolder, by name.
    fn files_in(&self, part: &str) -> Result<Vec<PathBuf>, RegistryError> {
        let path = self.folder.join(part);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(|source| RegistryError::File { path, source })?,
        };
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        Ok(files)
    }

    fn write(&self, path: &Path, content: &impl Serialize) -> Result<(), RegistryError> {
        let failed = |source| RegistryError::File {
            path: path.to_owned(),
            source,
        };
        private_files::private_folder(&self.folder.join("taken")).map_err(failed)?;
        let text = serde_json::to_vec(content).map_err(|error| failed(error.into()))?;
        private_files::write(path, &text).map_err(failed)
    }

    fn remove(&self, path: &Path) -> Result<(), RegistryError> {
        fs::remove_file(path).map_err(|source| RegistryError::File {
            path: path.to_owned(),
            source,
        })
    }
}

/// A file's content. A broken file counts as absent, so it admits no executor.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn registry() -> (tempfile::TempDir, ExecutorRegistry) {
        let folder = tempfile::tempdir().unwrap();
        let registry = ExecutorRegistry::new(folder.path().join("standing"));
        (folder, registry)
    }

    fn terms(uses: u32) -> InvitationTerms {
        InvitationTerms {
            class: ExecutorClass::AlwaysOnTest,
            capacity: 2,
            lives: HOUR,
            uses,
        }
    }

    fn invite(registry: &ExecutorRegistry, now: Timestamp) -> Invitation {
        registry.invite("h:1".to_owned(), terms(1), now).unwrap()
    }

    fn refusal(outcome: Result<EnrolledExecutor, RegistryError>) -> EnrollmentRejection {
        let error = outcome.unwrap_err();
        let RegistryError::Refused(refusal) = error else {
            panic!("{error}")
        };
        refusal
    }

    #[test]
    fn a_token_for_three_admits_three_executors_and_each_once() {
        let ((_folder, registry), now) = (registry(), Timestamp::from_secs(1_000));
        let invitation = registry.invite("h:1".to_owned(), terms(3), now).unwrap();
        let enroll = |name: &str| registry.enroll(&invitation.secret, Digest::of(name.as_bytes()), name, now);
        for name in ["box-1", "box-2", "box-2", "box-3", "box-1"] {
            enroll(name).unwrap();
        }
        assert_eq!(refusal(enroll("box-4")), EnrollmentRejection::Unknown);
        assert_eq!(registry.executors().unwrap().len(), 3);
        assert!(!registry.has_valid_token(now).unwrap());
    }

    #[test]
    fn a_token_admits_one_executor_once() {
        let ((_folder, registry), now) = (registry(), Timestamp::from_secs(1_000));
        let invitation = invite(&registry, now);
        assert_eq!(invitation.miner, registry.identity().unwrap().fingerprint());
        let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
        assert_eq!(registry.find(one).unwrap(), None);
        let member = registry.enroll(&invitation.secret, one, "box-1", now).unwrap();
        assert_eq!((member.class, member.capacity), (ExecutorClass::AlwaysOnTest, 2));
        assert_eq!(registry.find(one).unwrap(), Some(member.clone()));
        // The first answer may have been lost; another executor gains nothing from that.
        assert_eq!(
            registry.enroll(&invitation.secret, one, "box-1", now).unwrap(),
            member
        );
        assert_eq!(
            refusal(registry.enroll(&invitation.secret, two, "box-2", now)),
            EnrollmentRejection::Unknown
        );
        assert_eq!(registry.executors().unwrap(), [(one, member)]);
        // No file holds the secret.
        let secret = invitation.secret.to_string();
        for part in ["tokens", "taken", "executors"] {
            for path in registry.files_in(part).unwrap() {
                let text = fs::read_to_string(&path).unwrap();
                assert!(!text.contains(&secret) && !path.display().to_string().contains(&secret));
            }
        }
    }

    #[test]
    fn a_token_dies_of_age() {
        let ((_folder, registry), now) = (registry(), Timestamp::from_secs(1_000));
        assert!(!registry.has_valid_token(now).unwrap());
        let invitation = invite(&registry, now);
        assert!(registry.has_valid_token(now).unwrap());
        let late = now.plus(HOUR);
        assert!(!registry.has_valid_token(late).unwrap());
        let certificate = Digest::of(b"one");
        let enrol = |at| registry.enroll(&invitation.secret, certificate, "box", at);
        assert_eq!(refusal(enrol(late)), EnrollmentRejection::Expired);
        assert_eq!(
            refusal(enrol(now)),
            EnrollmentRejection::Unknown,
            "it was taken and thrown away"
        );
    }

    #[test]
    fn names_are_plain_and_a_bad_one_costs_no_token() {
        let ((_folder, registry), now) = (registry(), Timestamp::from_secs(1_000));
        let secret = invite(&registry, now).secret;
        let certificate = Digest::of(b"one");
        for name in ["", "a b", "../x", &"x".repeat(65)] {
            assert_eq!(
                refusal(registry.enroll(&secret, certificate, name, now)),
                EnrollmentRejection::Name
            );
        }
        registry
            .enroll(&secret, certificate, "gpu-1.rack_2", now)
            .unwrap();
    }

    #[test]
    fn a_revoked_executor_is_not_found() {
        let ((_folder, registry), now) = (registry(), Timestamp::from_secs(1_000));
        let certificates = [Digest::of(b"one"), Digest::of(b"two")];
        for certificate in certificates {
            registry
                .enroll(&invite(&registry, now).secret, certificate, "box", now)
                .unwrap();
        }
        for (prefix, found) in [("", 2), ("zz", 0)] {
            let error = registry.revoke(prefix).unwrap_err();
            assert!(
                matches!(error, RegistryError::Ambiguous { found: f, .. } if f == found),
                "{error}"
            );
        }
        let hex = certificates[0].hex();
        assert_eq!(registry.revoke(&hex[..12]).unwrap().0, certificates[0]);
        assert_eq!(registry.find(certificates[0]).unwrap(), None);
        assert!(registry.find(certificates[1]).unwrap().is_some());
    }

    #[test]
    fn a_token_used_by_many_at_once_admits_one() {
        let ((_folder, registry), now) = (registry(), Timestamp::from_secs(1_000));
        let secret = invite(&registry, now).secret;
        let admitted = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8_u8)
                .map(|n| {
                    let (registry, secret) = (&registry, &secret);
                    scope.spawn(move || registry.enroll(secret, Digest::of(&[n]), "box", now).is_ok())
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

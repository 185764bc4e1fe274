//! Signed URLs of a job's blocks. Pure.
//!
//! The signature covers bytes of a fixed layout: [`DOMAIN`] (20 bytes), the access (1 byte: 4 read and write, 5 read, 6
//! read for another job, 7 read and write what programs print), the job (16 bytes), the expiry (8 bytes, big endian,
//! Unix seconds), and for access 6 the job that reads (16 bytes).
//!
//! A URL of access 4, 6 or 7 may be narrowed to one attempt of the job that holds it
//! ([`attempt_url`](muster_checkpoints::attempt_url())).

use muster_checkpoints::is_attempt_signature;
use muster_protocol::{JobId, Timestamp};
use serde::Deserialize;

use crate::UrlKey;

/// The beginning of the signed bytes. Another layout gets another version number.
pub const DOMAIN: &[u8; 20] = b"muster block url v1\0";

/// The use that a URL permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAccess {
    /// Reading and writing while the job is open; for the executors of the job.
    Write,
    /// Reading; for the job's user. Facilitators of before [`Self::ReadFor`] also gave it to jobs that begin from a
    /// checkpoint of the job.
    Read,
    /// Reading while this other job is open, which begins from a checkpoint of the job.
    ReadFor(JobId),
    /// As [`Self::Write`], with the smaller room of what programs print; for the executors of a job without
    /// checkpoints.
    Output,
}

/// The permission that a URL carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// The permitted use.
    pub access: BlockAccess,
    /// The job whose blocks it is for.
    pub job: JobId,
    /// The expiry, in whole seconds.
    pub until: Timestamp,
}

/// The parameters of a signed URL of blocks, as text that nobody has checked.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct BlockQuery {
    /// The expiry in Unix seconds.
    #[serde(rename = "Expires")]
    pub expires: String,
    /// The signature in hex.
    #[serde(rename = "Signature")]
    pub signature: String,
    /// The job that reads; absent where the job itself, or its user, holds the URL.
    #[serde(rename = "Reader")]
    pub reader: Option<String>,
    /// The attempt that the URL was narrowed to; absent for a URL of the whole job.
    #[serde(rename = "Attempt")]
    pub attempt: Option<String>,
}

/// A permission with the attempt that it was narrowed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldGrant {
    /// The permission of the whole job.
    pub grant: BlockGrant,
    /// The number of the attempt in [`BlockGrant::holder`], from 1; `None` for a URL of the whole job.
    pub attempt: Option<u32>,
}

impl BlockAccess {
    /// Whether it permits writing.
    pub const fn writes(self) -> bool {
        match self {
            Self::Write | Self::Output => true,
            Self::Read | Self::ReadFor(_) => false,
        }
    }
}

impl BlockGrant {
    /// The bytes that are signed.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        bytes.push(match self.access {
            BlockAccess::Write => 4,
            BlockAccess::Read => 5,
            BlockAccess::ReadFor(_) => 6,
            BlockAccess::Output => 7,
        });
        bytes.extend_from_slice(self.job.as_uuid().as_bytes());
        bytes.extend_from_slice(&self.until.secs().to_be_bytes());
        if let BlockAccess::ReadFor(reader) = self.access {
            bytes.extend_from_slice(reader.as_uuid().as_bytes());
        }
        bytes
    }

    /// The URL below `base`, which has no slash at its end. The signature is its last parameter.
    pub fn url(&self, key: &UrlKey, base: &str) -> String {
        let (signature, until) = (key.sign_bytes(&self.canonical_bytes()), self.until.secs());
        let reader = match self.access {
            BlockAccess::Write | BlockAccess::Read | BlockAccess::Output => String::new(),
            BlockAccess::ReadFor(reader) => format!("&Reader={reader}"),
        };
        format!(
            "{base}/blocks/{}?Expires={until}{reader}&Signature={signature}",
            self.job
        )
    }

    /// The job whose end ends the permission; `None` for one that only expires.
    pub const fn holder(&self) -> Option<JobId> {
        match self.access {
            BlockAccess::Write | BlockAccess::Output => Some(self.job),
            BlockAccess::Read => None,
            BlockAccess::ReadFor(reader) => Some(reader),
        }
    }

    /// The permission that a URL with these parameters carries at `now`; `None` if it carries none.
    pub fn read(key: &UrlKey, job: JobId, query: &BlockQuery, now: Timestamp) -> Option<HeldGrant> {
        let until = Timestamp::from_secs(read_number(&query.expires, 12)?);
        let attempt = match &query.attempt {
            None => None,
            Some(text) => Some(u32::try_from(read_number(text, 10)?).ok()?),
        };
        let accesses = match &query.reader {
            None => vec![BlockAccess::Write, BlockAccess::Read, BlockAccess::Output],
            Some(reader) => vec![BlockAccess::ReadFor(reader.parse().ok()?)],
        };
        let mut grants = accesses.into_iter().map(|access| Self { access, job, until });
        let grant = grants.find(|grant| grant.is_signed(key, attempt, &query.signature))?;
        (now < until).then_some(HeldGrant { grant, attempt })
    }

    fn is_signed(&self, key: &UrlKey, attempt: Option<u32>, signature: &str) -> bool {
        match attempt {
            None => key.verify_bytes(&self.canonical_bytes(), signature),
            // A user's URL is of no attempt.
            Some(attempt) => {
                let job = key.sign_bytes(&self.canonical_bytes());
                self.holder().is_some() && is_attempt_signature(&job, attempt, signature)
            }
        }
    }
}

/// A number without a sign, of at most `digits` digits.
fn read_number(text: &str, digits: usize) -> Option<i64> {
    let fits = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_checkpoints::attempt_url;
    use proptest::prelude::*;

    fn now() -> Timestamp {
        Timestamp::from_secs(1_768_999_999)
    }

    fn job(last: u8) -> JobId {
        format!("11111111-2222-4333-8444-55555555555{last}")
            .parse()
            .unwrap()
    }

    fn key() -> UrlKey {
        UrlKey::new(*b"0123456789abcdef0123456789abcdef")
    }

    fn grant(access: BlockAccess) -> BlockGrant {
        BlockGrant {
            access,
            job: job(5),
            until: Timestamp::from_secs(1_769_000_000),
        }
    }

    fn query(url: &str) -> BlockQuery {
        let url = url::Url::parse(url).unwrap();
        let value = |name: &str| {
            let mut pairs = url.query_pairs();
            pairs.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
        };
        BlockQuery {
            expires: value("Expires").unwrap(),
            signature: value("Signature").unwrap(),
            reader: value("Reader"),
            attempt: value("Attempt"),
        }
    }

    fn read(query: &BlockQuery) -> Option<HeldGrant> {
        BlockGrant::read(&key(), job(5), query, now())
    }

    #[test]
    fn the_signed_bytes_are_these_and_a_url_is_good_for_its_job_and_its_time() {
        assert_eq!(
            hex::encode(grant(BlockAccess::Write).canonical_bytes()),
            "6d757374657220626c6f636b2075726c207631000411111111222243338444555555555555000000006970cc40"
        );
        assert_eq!(
            hex::encode(grant(BlockAccess::ReadFor(job(6))).canonical_bytes()),
            "6d757374657220626c6f636b2075726c207631000611111111222243338444555555555555000000006970cc40\
             11111111222243338444555555555556"
        );
        assert_eq!(
            hex::encode(grant(BlockAccess::Output).canonical_bytes()),
            "6d757374657220626c6f636b2075726c207631000711111111222243338444555555555555000000006970cc40"
        );
        for access in [
            BlockAccess::Write,
            BlockAccess::Read,
            BlockAccess::ReadFor(job(6)),
            BlockAccess::Output,
        ] {
            let query = query(&grant(access).url(&key(), "http://f"));
            let held = HeldGrant {
                grant: grant(access),
                attempt: None,
            };
            assert_eq!(read(&query), Some(held));
            let with = |change: fn(&mut BlockQuery)| {
                let mut query = query.clone();
                change(&mut query);
                read(&query)
            };
            assert_eq!(with(|query| query.expires = "1769000001".to_owned()), None);
            assert_eq!(with(|query| query.expires = "+1769000000".to_owned()), None);
            assert_eq!(with(|query| query.signature = "00".to_owned()), None);
            assert_eq!(with(|query| query.attempt = Some("1".to_owned())), None);
            assert_eq!(with(|query| query.reader = Some(job(7).to_string())), None);
            assert_eq!(BlockGrant::read(&key(), job(6), &query, now()), None);
            let expired = Timestamp::from_secs(1_769_000_000);
            assert_eq!(BlockGrant::read(&key(), job(5), &query, expired), None);
        }
    }

    #[test]
    fn a_url_of_an_attempt_is_good_for_that_attempt() {
        for access in [
            BlockAccess::Write,
            BlockAccess::ReadFor(job(6)),
            BlockAccess::Output,
        ] {
            let whole = grant(access).url(&key(), "http://f");
            let narrowed = query(&attempt_url(&whole, 3).unwrap());
            let held = HeldGrant {
                grant: grant(access),
                attempt: Some(3),
            };
            assert_eq!(read(&narrowed), Some(held));
            for other in [
                None,
                Some("4".to_owned()),
                Some("+3".to_owned()),
                Some(String::new()),
            ] {
                let changed = BlockQuery {
                    attempt: other,
                    ..narrowed.clone()
                };
                assert_eq!(read(&changed), None, "{changed:?}");
            }
        }
        // The URL of a user is of no attempt.
        let users = attempt_url(&grant(BlockAccess::Read).url(&key(), "http://f"), 3).unwrap();
        assert_eq!(read(&query(&users)), None);
    }

    proptest! {
        #[test]
        fn no_text_is_a_permission_by_chance(
            expires in ".{0,14}", signature in "[0-9a-f]{0,70}", reader in proptest::option::of(".{0,40}"),
            attempt in proptest::option::of(".{0,12}"),
        ) {
            let query = BlockQuery { expires, signature, reader, attempt };
            prop_assert_eq!(BlockGrant::read(&key(), job(5), &query, Timestamp::from_secs(0)), None);
        }
    }
}

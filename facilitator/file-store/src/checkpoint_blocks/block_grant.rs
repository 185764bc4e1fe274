//! Signed URLs of a job's blocks. Pure.
//!
//! The signature covers bytes of a fixed layout: [`DOMAIN`] (20 bytes), the access (1 byte: 4 read and write, 5 read),
//! the job (16 bytes), the expiry (8 bytes, big endian, Unix seconds).

use muster_protocol::{JobId, Timestamp};

use crate::UrlKey;

/// The beginning of the signed bytes. Another layout gets another version number.
pub const DOMAIN: &[u8; 20] = b"muster block url v1\0";

/// The use that a URL permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAccess {
    /// Reading and writing while the job is open; for the executors of the job.
    Write,
    /// Reading; for the job's user, and for a job that begins from one of its checkpoints.
    Read,
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

impl BlockGrant {
    /// The bytes that are signed.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        bytes.push(match self.access {
            BlockAccess::Write => 4,
            BlockAccess::Read => 5,
        });
        bytes.extend_from_slice(self.job.as_uuid().as_bytes());
        bytes.extend_from_slice(&self.until.secs().to_be_bytes());
        bytes
    }

    /// The URL below `base`, which has no slash at its end.
    pub fn url(&self, key: &UrlKey, base: &str) -> String {
        let (signature, until) = (key.sign_bytes(&self.canonical_bytes()), self.until.secs());
        format!("{base}/blocks/{}?Expires={until}&Signature={signature}", self.job)
    }

    /// The permission that a URL with these parameters carries at `now`; `None` if it carries none.
    pub fn read(key: &UrlKey, job: JobId, expires: &str, signature: &str, now: Timestamp) -> Option<Self> {
        let digits = (1..=12).contains(&expires.len()) && expires.bytes().all(|byte| byte.is_ascii_digit());
        let until = Timestamp::from_secs(expires.parse().ok().filter(|_| digits)?);
        let grants = [BlockAccess::Write, BlockAccess::Read].map(|access| Self { access, job, until });
        let signed = grants
            .into_iter()
            .find(|grant| key.verify_bytes(&grant.canonical_bytes(), signature))?;
        (now < until).then_some(signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_bytes_are_these_and_a_url_is_good_for_its_job_and_its_time() {
        let key = UrlKey::new(*b"0123456789abcdef0123456789abcdef");
        let job: JobId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        let grant = |access| BlockGrant {
            access,
            job,
            until: Timestamp::from_secs(1_769_000_000),
        };
        assert_eq!(
            hex::encode(grant(BlockAccess::Write).canonical_bytes()),
            "6d757374657220626c6f636b2075726c207631000411111111222243338444555555555555000000006970cc40"
        );
        let now = Timestamp::from_secs(1_768_999_999);
        for access in [BlockAccess::Write, BlockAccess::Read] {
            let url = grant(access).url(&key, "http://f");
            let signature = url.rsplit_once("Signature=").unwrap().1;
            let read = |job, expires: &str, now| BlockGrant::read(&key, job, expires, signature, now);
            assert_eq!(read(job, "1769000000", now), Some(grant(access)), "{url}");
            assert_eq!(read(job, "1769000001", now), None);
            assert_eq!(read(job, "+1769000000", now), None);
            assert_eq!(read(job, "1769000000", Timestamp::from_secs(1_769_000_000)), None);
            let other = "11111111-2222-4333-8444-555555555556".parse().unwrap();
            assert_eq!(read(other, "1769000000", now), None);
            assert_eq!(BlockGrant::read(&key, job, "1769000000", "00", now), None);
        }
    }
}

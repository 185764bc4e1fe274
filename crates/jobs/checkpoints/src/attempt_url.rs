//! The URL of a job's blocks, narrowed to one attempt. Pure.
//!
//! A facilitator signs a URL for a job and gives it to the job's validator. The validator narrows it to each attempt
//! without asking: the job's signature becomes the key of the attempt's, so a miner that has the second cannot make the
//! first, nor that of another attempt. The facilitator computes both from its own secret.
//!
//! The signature of an attempt is HMAC-SHA256 under the 32 bytes of the job's signature, over [`DOMAIN`] (20 bytes) and
//! the number of the attempt (4 bytes, big endian).

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// The beginning of the signed bytes. Another layout gets another version number.
pub const DOMAIN: &[u8; 20] = b"muster attempt url 1";

/// The parameter with a job's signature, which is the last of its URL.
const SIGNATURE: &str = "&Signature=";

fn attempt_mac(job_signature: &str, attempt: u32) -> Option<Hmac<Sha256>> {
    let mut key = [0; 32];
    hex::decode_to_slice(job_signature, &mut key).ok()?;
    // HMAC accepts keys of every length.
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(DOMAIN);
    mac.update(&attempt.to_be_bytes());
    Some(mac)
}

/// Whether a text is the signature of an attempt's URL. `job_signature` is that of the job's URL in hex. The comparison
/// takes constant time.
pub fn is_attempt_signature(job_signature: &str, attempt: u32, signature: &str) -> bool {
    let given = hex::decode(signature).ok();
    let checked = given
        .zip(attempt_mac(job_signature, attempt))
        .map(|(given, mac)| mac.verify_slice(&given));
    checked.is_some_and(|checked| checked.is_ok())
}

/// The URL of a job narrowed to an attempt, which counts from 1. `None` if the URL does not end with a signature.
pub fn attempt_url(job_url: &str, attempt: u32) -> Option<String> {
    let (rest, job_signature) = job_url.rsplit_once(SIGNATURE)?;
    let signature = hex::encode(attempt_mac(job_signature, attempt)?.finalize().into_bytes());
    Some(format!("{rest}&Attempt={attempt}{SIGNATURE}{signature}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JOB: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn the_url_of_an_attempt_is_this_and_hides_the_jobs_signature() {
        let job = format!("https://f.example/blocks/J?Expires=1769000000&Signature={JOB}");
        // Checked with Python: hmac.new(bytes.fromhex(JOB), DOMAIN + (3).to_bytes(4, "big"), "sha256").hexdigest().
        assert_eq!(
            attempt_url(&job, 3).unwrap(),
            "https://f.example/blocks/J?Expires=1769000000&Attempt=3\
             &Signature=4380232a87e642213883e0b7290fd3350964d7772240021517951c4c45fd680c"
        );
        let signature = "4380232a87e642213883e0b7290fd3350964d7772240021517951c4c45fd680c";
        assert!(is_attempt_signature(JOB, 3, signature));
        assert!(!is_attempt_signature(JOB, 4, signature) && !is_attempt_signature(JOB, 3, JOB));
        for url in [
            "",
            "https://f.example/blocks/J",
            "https://f.example/blocks/J?Expires=1&Signature=00",
            "https://f.example/blocks/J?Expires=1&Signature=",
        ] {
            assert_eq!(attempt_url(url, 1), None, "{url}");
        }
    }

    proptest! {
        #[test]
        fn a_narrowed_url_never_holds_the_jobs_signature(rest in ".{0,40}", key in any::<[u8; 32]>(), attempt: u32) {
            let job = hex::encode(key);
            let url = attempt_url(&format!("{rest}{SIGNATURE}{job}"), attempt).unwrap();
            prop_assert!(url.starts_with(&rest) && !url.contains(&job));
        }

        #[test]
        fn no_text_breaks_it(text in ".{0,200}", attempt: u32) {
            let _ = attempt_url(&text, attempt);
        }
    }
}

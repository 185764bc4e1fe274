//! The digest of a response as its reader got it: without the comment lines that gateways insert and the line that
//! carries the proof.

use muster_openai::BodyKind;

use crate::comment::strip_comments;
use crate::{BodyDigest, BodyHasher, HashScheme};

/// Hashes a whole body by a session's scheme.
pub(crate) fn hash_body(scheme: HashScheme, content_type: Option<&str>, body: &[u8]) -> BodyDigest {
    let kind = BodyKind::of(content_type);
    let mut hash = BodyHasher::new(scheme, kind);
    match kind {
        BodyKind::Events => hash.update(&strip_comments(body)),
        BodyKind::Json | BodyKind::Other => hash.update(body),
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;

    use super::*;
    use crate::comment::{comment_line, proof_line};

    #[test]
    fn the_comments_of_a_gateway_and_the_line_with_the_proof_are_not_hashed() {
        for body in [
            &b"data: {}\n\ndata: [DONE]\n\n"[..],
            b"data: {}\r\n\r\n",
            b"data: unfinished",
            b": muster",
            b"",
        ] {
            let mut whole = comment_line("wait").to_vec();
            whole.extend_from_slice(body);
            let bare = hash_body(HashScheme::RawHttp, Some("text/event-stream"), &whole);
            assert_eq!((bare.digest, bare.bytes), (Digest::of(body), body.len() as u64));
            whole.extend_from_slice(&proof_line("AAAA"));
            let proven = hash_body(HashScheme::RawHttp, Some("text/event-stream"), &whole);
            assert_eq!(
                (proven.digest, proven.bytes),
                (Digest::of(body), body.len() as u64),
                "{body:?}"
            );
        }
        let json = hash_body(HashScheme::RawHttp, Some("application/json"), b": muster-x\n{}");
        assert_eq!(json.digest, Digest::of(b": muster-x\n{}"));
    }
}

//! An answer of a bundle whose signatures and place in the log were checked.

use muster_protocol::Digest;
use muster_response_proof::ResponseProof;

use crate::bundle::AnswerEvidence;
use crate::verdict::Publicity;

/// An answer whose signatures and place in the log were checked.
#[derive(Clone, Debug)]
pub(crate) struct CheckedAnswer<'a> {
    pub(crate) evidence: &'a AnswerEvidence,
    pub(crate) proof: ResponseProof,
    /// The digest of the proof's signed bytes.
    pub(crate) digest: Digest,
    /// The list of own prompts and the position there whose prompt it answers; `None` of a user's answer, and of one in
    /// a bundle of an earlier format.
    pub(crate) position: Option<(Digest, u64)>,
    /// The body of the request to which it is the answer, if it is to an own prompt.
    pub(crate) request: Option<Vec<u8>>,
    /// The label of the client, of which four answers a day are tested; without one, as in earlier formats, the
    /// pseudonym.
    pub(crate) stratum: Digest,
    /// Whether the draw or the committed list makes it one to audit.
    pub(crate) is_audited: bool,
    /// Whether it can convict.
    pub(crate) publicity: Publicity,
    pub(crate) nonce: NonceState,
}

/// Whether the rule of nonces gave an answer its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonceState {
    /// A revealed key gives it.
    Derived,
    /// No key of its time gives it: the validator may have chosen it. The answer counts for the miner.
    Foreign,
    /// The bundle does not show all keys of its time.
    Unchecked,
}

/// The origin of an answer's prompt, as far as it was checked.
pub(crate) struct CheckedOrigin {
    /// Whether it is a prompt of the validator's own.
    pub(crate) is_own: bool,
    pub(crate) publicity: Publicity,
    /// As that of [`CheckedAnswer`].
    pub(crate) position: Option<(Digest, u64)>,
    /// As that of [`CheckedAnswer`].
    pub(crate) request: Option<Vec<u8>>,
}

impl CheckedOrigin {
    /// The origin of a client's prompt.
    pub(crate) const fn of_user() -> Self {
        Self {
            is_own: false,
            publicity: Publicity::Private,
            position: None,
            request: None,
        }
    }
}

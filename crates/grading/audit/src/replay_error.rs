//! The reasons why a bundle has no verdict.

use muster_response_proof::SessionId;

/// Something in a bundle does not follow from what was signed, so it proves nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The text is not JSON, or lacks fields.
    #[error("the file is not a bundle of audit evidence")]
    Text(#[from] serde_json::Error),
    /// The text exceeds the bound.
    #[error("the file is longer than a bundle may be")]
    TooLong,
    /// The format of the bundle or of its calibration is another one.
    #[error("the file is a bundle or a calibration of another version")]
    Format,
    /// The bundle exceeds a bound.
    #[error("the file is larger than a bundle may be: {0}")]
    Bound(&'static str),
    /// The scoring machines are not two that differ, or the first ran another image than the calibration's.
    #[error(
        "a bundle needs two references that differ in machine or engine, the first with the calibration's engine"
    )]
    References,
    /// A header is not the validator's, is of another subnet, or stands out of order.
    #[error("the header of bucket {bucket} is not the validator's, or is of another subnet or out of order")]
    Header {
        /// The number of the bucket, or its place in the list if it cannot be read.
        bucket: u64,
    },
    /// A draw is not the validator's for this bucket and block.
    #[error("the draw from bucket {bucket} is not the validator's for this block")]
    Draw {
        /// The number of the bucket.
        bucket: u64,
    },
    /// A share is not among those that the header commits to.
    #[error("a share of bucket {bucket} is not among those that its header commits to")]
    Share {
        /// The number of the bucket.
        bucket: u64,
    },
    /// An attestation is not of a miner of this bundle, or of another model, engine or validator.
    #[error("session {place} is not attested by a miner of this bundle for its model, engine and validator")]
    Attestation {
        /// The place of the session in the bundle.
        place: usize,
    },
    /// An answer without a proof stands out of order, or behind more answers than its session has.
    #[error("an answer without a proof of session {place} stands at no place among the session's answers")]
    Unproven {
        /// The place of the session in the bundle.
        place: usize,
    },
    /// A proof is not its session's, or the numbers have a gap.
    #[error("answer {sequence} of session {session} is not proven by it, or an answer before it is missing")]
    Proof {
        /// The session whose answer it is.
        session: SessionId,
        /// The number that the answer has to have.
        sequence: u64,
    },
    /// A proof stands in the bundle twice.
    #[error("answer {sequence} of session {session} stands in the bundle more than once")]
    Repeated {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
    /// The list of miners has a miner twice, or one without an answer in the bundle, or lacks one.
    #[error("the bundle's miners are not exactly those whose answers it shows")]
    Miners,
    /// An answer does not stand in the log where the bundle says.
    #[error("answer {sequence} of session {session} does not stand in the log where the bundle says")]
    Leaf {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
    /// An audited answer hides the client of its leaf, or one that is not audited shows it.
    #[error("answer {sequence} of session {session} is audited and hides its client, or shows it and is not")]
    Client {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
    /// A commitment is not the validator's, stands out of order, or commits to a list again.
    #[error(
        "commitment {place} to a list of own prompts is not the validator's, or is out of order or a second one"
    )]
    Commitment {
        /// The place of the commitment in the bundle.
        place: usize,
    },
    /// A prompt is not from a list that was committed to before, or was asked otherwise than its position fixes.
    #[error(
        "answer {sequence} of session {session} is not the first one to its own prompt in the session and with the nonce \
         to which an earlier header commits"
    )]
    Canary {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
    /// Opened words are not those that the session's proof names, or may not be published.
    #[error(
        "the words of answer {sequence} of session {session} are not those of its proof, or are a user's"
    )]
    Words {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
    /// An own prompt whose request names no seed has margins.
    #[error(
        "answer {sequence} of session {session} has margins, and its request names no seed of its engine"
    )]
    Seed {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
    /// A key of nonces is not the validator's for its block, or stands out of order.
    #[error("the key of nonces of period {period} is not the validator's for its block, or out of order")]
    NonceKey {
        /// The number of the period.
        period: u64,
    },
    /// Scores are there for another number of tokens than the proof states, or for too many.
    #[error("answer {sequence} of session {session} has another number of tokens than its proof states")]
    TokenCount {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
    /// An answer is said to have false ids, and its session signed none.
    #[error("answer {sequence} of session {session} is said to have false ids, and its proof states none")]
    FalseIds {
        /// The session whose answer it is.
        session: SessionId,
        /// The number of the answer.
        sequence: u64,
    },
}

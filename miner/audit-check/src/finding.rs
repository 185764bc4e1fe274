//! The findings of a miner about a validator's spot checks.

use muster_response_proof::SessionId;

/// The most characters of the text of a finding.
const MAX_WORDS: usize = 600;

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// A header, or a header before it, is not signed by the validator or cannot be read.
    ForgedHeader,
    /// The validator has signed two headers for one bucket.
    TwoHeaders,
    /// A header does not name the digest of the header before it.
    BrokenChain,
    /// A header came after its draw block existed, although the miner could have been notified before.
    LateHeader,
    /// A leaf does not stand in the tree of its header.
    FalseLeaf,
    /// A leaf has the number of one of the miner's answers, and another proof.
    ForeignLeaf,
    /// One answer stands at two places of the log.
    RepeatedLeaf,
    /// One of the miner's answers stands in no header.
    Withheld,
    /// The draw that the validator shows is not its draw from that bucket.
    FalseDraw,
    /// An answer is shown as drawn that the draw does not choose.
    WrongDraw,
    /// The draw chooses an answer that is not shown as drawn.
    HiddenDraw,
    /// A drawn answer has no outcome; it counts for the miner.
    NoOutcome,
    /// A bucket's draw was not revealed in time.
    NoReveal,
    /// A bundle of evidence proves nothing, or something else than the validator states.
    FalseVerdict,
}

impl FindingKind {
    /// Every kind, in the order of a bucket's life.
    pub const ALL: [Self; 14] = [
        Self::ForgedHeader,
        Self::TwoHeaders,
        Self::BrokenChain,
        Self::LateHeader,
        Self::FalseLeaf,
        Self::ForeignLeaf,
        Self::RepeatedLeaf,
        Self::Withheld,
        Self::FalseDraw,
        Self::WrongDraw,
        Self::HiddenDraw,
        Self::NoOutcome,
        Self::NoReveal,
        Self::FalseVerdict,
    ];

    /// The name in the store and in lists.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForgedHeader => "forged_header",
            Self::TwoHeaders => "two_headers",
            Self::BrokenChain => "broken_chain",
            Self::LateHeader => "late_header",
            Self::FalseLeaf => "false_leaf",
            Self::ForeignLeaf => "foreign_leaf",
            Self::RepeatedLeaf => "repeated_leaf",
            Self::Withheld => "withheld",
            Self::FalseDraw => "false_draw",
            Self::WrongDraw => "wrong_draw",
            Self::HiddenDraw => "hidden_draw",
            Self::NoOutcome => "no_outcome",
            Self::NoReveal => "no_reveal",
            Self::FalseVerdict => "false_verdict",
        }
    }

    /// The kind of this name; `None` if there is none.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something that a miner has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind, by which lists are sorted.
    pub kind: FindingKind,
    /// The subject, which distinguishes two findings of one kind: a bucket, an answer, a bundle.
    pub about: String,
    /// The finding as text.
    pub words: String,
}

impl Finding {
    /// A finding about a subject. A long text is cut.
    pub fn new(kind: FindingKind, about: impl ToString, words: impl AsRef<str>) -> Self {
        Self {
            kind,
            about: about.to_string(),
            words: words.as_ref().chars().take(MAX_WORDS).collect(),
        }
    }
}

/// The subject of a finding about a bucket.
pub(crate) fn about_bucket(bucket: u64) -> String {
    format!("bucket {bucket}")
}

/// The subject of a finding about an answer.
pub(crate) fn about_answer(session: SessionId, sequence: u64) -> String {
    format!("answer {sequence} of session {session}")
}

//! An audit as it is stored and shown: how far it is, and what came of it.

use muster_protocol::{Digest, Hotkey, Timestamp};
use serde::Serialize;

use crate::audits::subject::Subject;

/// The reason of an audit or a self-test that its process did not end.
pub(crate) const RESTARTED: &str = "the validator was restarted";

/// An audit that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRun {
    /// The id of the audit.
    pub run: String,
    /// The coldkey that is judged.
    pub coldkey: Hotkey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// `starting` (a reference is being started), `scoring`, `judged`, `ended` without a verdict, or `interrupted`.
    pub state: RunState,
    /// The answers that are to be scored.
    pub answers: u64,
    /// The answers of them that a reference was asked about.
    pub scored: u64,
    /// When it began.
    pub began_at: Timestamp,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// The bundle that came of it.
    pub bundle: Option<Digest>,
    /// The verdict by its name.
    pub verdict: Option<String>,
    /// Why there is no verdict.
    pub reason: Option<String>,
}

impl AuditRun {
    /// The coldkey and the model that are judged.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            coldkey: self.coldkey,
            model: self.model.clone(),
        }
    }
}

/// The state of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A reference is being started.
    Starting,
    /// The references score.
    Scoring,
    /// There is a verdict.
    Judged,
    /// It ended without a verdict.
    Ended,
    /// Its process ended before it did. The subject is audited again.
    Interrupted,
}

impl RunState {
    pub(crate) const ALL: [Self; 5] = [
        Self::Starting,
        Self::Scoring,
        Self::Judged,
        Self::Ended,
        Self::Interrupted,
    ];

    /// The name in the database and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Scoring => "scoring",
            Self::Judged => "judged",
            Self::Ended => "ended",
            Self::Interrupted => "interrupted",
        }
    }
}

//! An appeal as it is stored and shown.

use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};
use serde::Serialize;

use crate::audits::subject::Subject;

/// An appeal as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredAppeal {
    /// The digest of the bundle that it is about.
    pub bundle: Digest,
    /// When it was received.
    pub received_at: Timestamp,
    /// The miner that appeals.
    pub miner: MinerKey,
    /// The coldkey that was judged.
    pub coldkey: Hotkey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The reason in the miner's words.
    pub reason: String,
    /// Until when fresh answers are audited.
    pub open_until: Timestamp,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// How it ended: `lifted`, `upheld` or `expired`.
    pub ended: Option<String>,
    /// The bundle of the fresh answers.
    pub fresh_bundle: Option<Digest>,
}

impl StoredAppeal {
    /// The answer to the miner as text.
    pub(crate) fn words(&self) -> String {
        format!(
            "fresh answers are audited until {}: keep an executor free for a session of this validator",
            self.open_until
        )
    }

    /// Whether fresh answers are audited at this time.
    pub(crate) fn is_open(&self) -> bool {
        self.ended_at.is_none()
    }

    pub(crate) fn subject(&self) -> Subject {
        Subject {
            coldkey: self.coldkey,
            model: self.model.clone(),
        }
    }
}

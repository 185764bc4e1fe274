//! A response that has begun, and is therefore signed exactly once, whatever becomes of it.

use std::sync::Arc;

use muster_protocol::Digest;
use muster_response_proof::{StreamEnd, Text};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::digest::BodyHash;
use crate::sealer::{Asking, Facts, Sealer};
use muster_openai::BodyKind;

/// Between a request's head and the signature over its answer. Dropping one that has not ended signs that its client went
/// away: nothing else drops it.
pub(crate) struct Open {
    sealer: Arc<Sealer>,
    facts: Facts,
    output: BodyHash,
    signed: bool,
    _under_way: TaskTrackerToken,
    _permit: OwnedSemaphorePermit,
}

impl Open {
    /// From here on there will be a proof. `permit` is one of as many as may be under way.
    pub(crate) fn begin(
        sealer: &Arc<Sealer>,
        asked: Asking,
        input: Digest,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            facts: Facts {
                asked,
                input,
                status: 0,
                content_type: None,
                first_byte: None,
            },
            output: BodyHash::default(),
            signed: false,
            _under_way: sealer.tracker().token(),
            _permit: permit,
            sealer: Arc::clone(sealer),
        }
    }

    /// The answer's head, as it is sent.
    pub(crate) fn head(&mut self, status: u16, content_type: Option<Text>, kind: BodyKind) {
        self.output = BodyHash::new(self.sealer.scheme(), kind);
        self.facts.status = status;
        self.facts.content_type = content_type;
    }

    /// These bytes of its body are being sent.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        if self.facts.first_byte.is_none() {
            self.facts.first_byte = Some(self.sealer.clock().now());
        }
        self.output.update(bytes);
    }

    /// Another digest of what went in, where it was not known at the beginning.
    pub(crate) fn input(&mut self, input: Digest) {
        self.facts.input = input;
    }

    /// It is over. The proof, unless there is one already or the session is closed.
    pub(crate) fn finish(&mut self, end: StreamEnd) -> Option<Arc<str>> {
        if std::mem::replace(&mut self.signed, true) {
            return None;
        }
        let output = std::mem::take(&mut self.output).finish();
        self.sealer.sign(&self.facts, output, end)
    }

    pub(crate) fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let end = if self.sealer.is_closing() {
            StreamEnd::SessionClosed
        } else {
            StreamEnd::ClientGone
        };
        self.finish(end);
    }
}

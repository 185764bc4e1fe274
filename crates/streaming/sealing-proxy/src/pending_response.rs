//! A response that has begun and will be signed exactly once, however it ends.

use std::sync::Arc;

use muster_openai::BodyKind;
use muster_protocol::Digest;
use muster_response_proof::{BodyHasher, StreamEnd, Text};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::proof_signer::{ProofSigner, RequestFacts, ResponseFacts};

/// A response between its request's head and its signature. If it is dropped before its end, it is signed as left by
/// its client, or as cut by the session's close: nothing else drops it.
pub(crate) struct PendingResponse {
    signer: Arc<ProofSigner>,
    facts: ResponseFacts,
    output: BodyHasher,
    is_signed: bool,
    _tracked: TaskTrackerToken,
    _permit: OwnedSemaphorePermit,
}

impl PendingResponse {
    /// Begins a response, which will be signed. `permit` is one of as many as may be under way.
    pub(crate) fn begin(
        signer: &Arc<ProofSigner>,
        request: RequestFacts,
        input: Digest,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            facts: ResponseFacts {
                request,
                input,
                status: 0,
                content_type: None,
                first_byte: None,
            },
            output: BodyHasher::default(),
            is_signed: false,
            _tracked: signer.tracker().token(),
            _permit: permit,
            signer: Arc::clone(signer),
        }
    }

    /// Notes the response's head, as it is sent.
    pub(crate) fn set_head(&mut self, status: u16, content_type: Option<Text>, kind: BodyKind) {
        self.output = BodyHasher::new(self.signer.scheme(), kind);
        self.facts.status = status;
        self.facts.content_type = content_type;
    }

    /// Hashes bytes of the body that are sent.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        if self.facts.first_byte.is_none() {
            self.facts.first_byte = Some(self.signer.clock().now());
        }
        self.output.update(bytes);
    }

    /// Sets the digest of the input, if it was not known at the beginning.
    pub(crate) fn set_input(&mut self, input: Digest) {
        self.facts.input = input;
    }

    /// Ends and signs the response. Returns the proof's text form, unless it was signed before or the session is
    /// closed.
    pub(crate) fn finish(&mut self, end: StreamEnd) -> Option<Arc<str>> {
        if std::mem::replace(&mut self.is_signed, true) {
            return None;
        }
        let output = std::mem::take(&mut self.output).finish();
        self.signer.sign(&self.facts, output, end)
    }

    pub(crate) fn signer(&self) -> &Arc<ProofSigner> {
        &self.signer
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let end = if self.signer.is_closing() {
            StreamEnd::SessionClosed
        } else {
            StreamEnd::ClientGone
        };
        self.finish(end);
    }
}

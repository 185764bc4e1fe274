//! A response that has begun and will be signed exactly once, however it ends.

use std::sync::Arc;

use muster_openai::{BodyKind, TokenIdReader};
use muster_protocol::Digest;
use muster_response_proof::{BodyHasher, StreamEnd, Text, TokenFacts};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::proof_signer::{ProofSigner, RequestFacts, ResponseFacts};

/// A response between its request's head and its signature. If it is dropped before its end, it is signed as left by
/// its client, or as cut by the session's close: nothing else drops it.
pub(crate) struct PendingResponse {
    signer: Arc<ProofSigner>,
    facts: ResponseFacts,
    output: BodyHasher,
    token_ids: TokenIdReading,
    is_signed: bool,
    _tracked: TaskTrackerToken,
    _permit: OwnedSemaphorePermit,
}

/// Whether a response is read for the ids of tokens.
enum TokenIdReading {
    /// The request did not ask for them, or the response cannot be read.
    Off,
    /// The request asked for them; the response's head has not come.
    Expected,
    // Boxed, as few responses are read and many wait.
    Reading(Box<TokenIdReader>),
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
            token_ids: TokenIdReading::Off,
            is_signed: false,
            _tracked: signer.tracker().token(),
            _permit: permit,
            signer: Arc::clone(signer),
        }
    }

    /// Notes the response's head, as it is sent.
    pub(crate) fn set_head(&mut self, status: u16, content_type: Option<Text>, kind: BodyKind) {
        self.output = BodyHasher::new(self.signer.scheme(), kind);
        self.token_ids = match (&self.token_ids, TokenIdReader::new(kind)) {
            (TokenIdReading::Expected | TokenIdReading::Reading(_), Some(reader)) => {
                TokenIdReading::Reading(Box::new(reader))
            }
            (TokenIdReading::Off, _) | (_, None) => TokenIdReading::Off,
        };
        self.facts.status = status;
        self.facts.content_type = content_type;
    }

    /// Hashes bytes of the body that are sent.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        if self.facts.first_byte.is_none() {
            self.facts.first_byte = Some(self.signer.clock().now());
        }
        self.output.update(bytes);
        if let TokenIdReading::Reading(reader) = &mut self.token_ids {
            reader.update(bytes);
        }
    }

    /// Notes that the request asked for the ids of tokens. The response is read for them: the proof binds those that
    /// the engine states for the whole answer.
    pub(crate) fn expect_token_ids(&mut self) {
        self.token_ids = TokenIdReading::Expected;
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
        let tokens = std::mem::replace(&mut self.token_ids, TokenIdReading::Off).finish();
        self.signer.sign(&self.facts, output, tokens, end)
    }

    pub(crate) fn signer(&self) -> &Arc<ProofSigner> {
        &self.signer
    }
}

impl TokenIdReading {
    fn finish(self) -> Option<TokenFacts> {
        match self {
            Self::Off | Self::Expected => None,
            Self::Reading(reader) => reader.finish().map(|stated| TokenFacts {
                prompt: stated.prompt,
                prompt_count: stated.prompt_count,
                output: stated.output,
                output_count: stated.output_count,
            }),
        }
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

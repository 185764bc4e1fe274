//! A question that the validator asks on its own behalf.

use bytes::Bytes;
use muster_protocol::Digest;
use muster_response_proof::{ClientKey, RequestNonce};
use muster_sealed_client::draw_nonce;

use crate::request_client::{AdmittedClient, SeenAs};

/// A question of the validator's own.
#[derive(Clone, Debug)]
pub struct OwnQuestion {
    /// Whether it is asked as a chat; otherwise it is a completion.
    pub is_chat: bool,
    /// The body of the request.
    pub body: Bytes,
    /// The pseudonym under which it is asked.
    pub client: Digest,
    /// The nonce that its client names.
    pub client_nonce: Option<RequestNonce>,
    /// The gateway's nonce, which the position of the prompt fixes.
    pub gateway_nonce: RequestNonce,
}

impl OwnQuestion {
    /// A client that asks this question alone. Its leaf has a commitment as those of users' answers have one.
    ///
    /// # Errors
    /// The operating system has no randomness.
    pub(crate) fn client(&self) -> Result<AdmittedClient, getrandom::Error> {
        Ok(AdmittedClient {
            name: self.client,
            key: ClientKey::from_bytes(*draw_nonce()?.as_bytes()),
            seen_as: SeenAs::Always(self.client),
        })
    }

    /// The path at which users ask such questions.
    pub(crate) const fn path(&self) -> &'static str {
        if self.is_chat {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        }
    }
}

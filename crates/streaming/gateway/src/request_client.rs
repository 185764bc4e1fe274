//! The client of a request: as the gateway knows it, and as the session sees it.

use muster_protocol::Digest;
use muster_response_proof::{ClientKey, RequestNonce};

/// An admitted client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmittedClient {
    /// The name under which its answers are kept: the same for all of its requests.
    pub(crate) name: Digest,
    pub(crate) key: ClientKey,
    pub(crate) seen_as: SeenAs,
}

/// How sessions see the client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenAs {
    /// By a pseudonym of the request, which the client's key gives.
    EachRequest,
    /// By this pseudonym: of an own prompt, or of a client whose facilitator, of an earlier release, can open no other.
    Always(Digest),
}

/// The client of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestClient {
    pub(crate) admitted: AdmittedClient,
    /// The nonce of the pseudonym: the one that the client named, or a drawn one that no session sees.
    nonce: RequestNonce,
    /// Whether the nonce was drawn here, so that the client has to be told it.
    is_drawn: bool,
}

// === impl RequestClient ===

impl RequestClient {
    /// `drawn` is a fresh nonce; it serves if the client named none.
    pub(crate) fn new(admitted: AdmittedClient, named: Option<RequestNonce>, drawn: RequestNonce) -> Self {
        Self {
            admitted,
            nonce: named.unwrap_or(drawn),
            is_drawn: named.is_none(),
        }
    }

    /// The name under which the answer is kept.
    pub(crate) const fn name(&self) -> Digest {
        self.admitted.name
    }

    /// The pseudonym that the session sees with a request of this digest.
    pub(crate) fn pseudonym(&self, input: &Digest) -> Digest {
        match self.admitted.seen_as {
            SeenAs::EachRequest => self.admitted.key.pseudonym(input, &self.nonce),
            SeenAs::Always(pseudonym) => pseudonym,
        }
    }

    /// The nonce that opens the pseudonym and that the client does not know yet.
    pub(crate) fn told_nonce(&self) -> Option<RequestNonce> {
        match self.admitted.seen_as {
            SeenAs::EachRequest => self.is_drawn.then_some(self.nonce),
            SeenAs::Always(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_equal_requests_of_a_client_have_nothing_in_common_for_a_session() {
        let admitted = AdmittedClient {
            name: Digest::of(b"alice"),
            key: ClientKey::from_bytes([7; 32]),
            seen_as: SeenAs::EachRequest,
        };
        let (input, nonce) = (Digest::of(b"hello"), |byte| RequestNonce::from_bytes([byte; 32]));
        let request = |drawn| RequestClient::new(admitted, None, nonce(drawn));
        assert_ne!(request(1).pseudonym(&input), request(2).pseudonym(&input));
        assert_ne!(request(1).pseudonym(&input), request(1).name());
        assert_eq!(request(1).told_nonce(), Some(nonce(1)));
        let named = RequestClient::new(admitted, Some(nonce(3)), nonce(1));
        assert_eq!(named.pseudonym(&input), admitted.key.pseudonym(&input, &nonce(3)));
        assert_eq!(named.told_nonce(), None, "the client knows it");
        let earlier = AdmittedClient {
            seen_as: SeenAs::Always(admitted.name),
            ..admitted
        };
        let stable = RequestClient::new(earlier, None, nonce(1));
        assert_eq!(
            (stable.pseudonym(&input), stable.told_nonce()),
            (admitted.name, None)
        );
    }
}

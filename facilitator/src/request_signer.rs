//! Checks the signature of a user's request, or signs in the facilitator's name for accounts without a hotkey.

use axum::http::HeaderMap;
use muster_facilitator_core::credentials::{Account, Credential};
use muster_facilitator_core::signature::{self, SignatureFreshness, SignatureRejection};
use muster_identity::{Keypair, verify_request};
use muster_process::SharedClock;
use muster_protocol::rest::{CreateJob, headers};
use muster_protocol::wire::facilitator::{SignatureScope, UserSignature};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{Feature, FeatureSet, Hotkey};
use serde_json::Value;

use muster_facilitator_store::Actor;

/// The facilitator's own key, and how fresh a user's signature must be.
pub(crate) struct RequestSigner {
    keypair: Keypair,
    freshness: SignatureFreshness,
    clock: SharedClock,
}

// === impl RequestSigner ===

impl RequestSigner {
    pub(crate) fn new(keypair: Keypair, freshness: SignatureFreshness, clock: SharedClock) -> Self {
        Self {
            keypair,
            freshness,
            clock,
        }
    }

    /// The hotkey that signs for accounts without one.
    pub(crate) fn hotkey(&self) -> Hotkey {
        self.keypair.hotkey()
    }

    /// Reads the actor's own signature from the headers and checks its scope, its signatory and its age.
    ///
    /// `None` means that the facilitator signs: the actor used an API key and sent no signature, or is a browser.
    ///
    /// # Errors
    /// The signature is missing, malformed, another user's or not fresh. The body is not checked here.
    pub(crate) fn check_headers(
        &self,
        actor: &Actor,
        headers: &HeaderMap,
        scope: SignatureScope,
    ) -> Result<Option<UserSignature>, SignatureRejection> {
        let signed = headers.contains_key(headers::SIGNATURE);
        let user = match (&actor.account, &actor.credential) {
            (Account::Hotkey(user), Credential::Hotkey) => *user,
            (Account::Hotkey(user), Credential::ApiKey(_)) if signed => *user,
            (Account::Hotkey(_) | Account::Named(_), Credential::ApiKey(_) | Credential::Browser(_))
            | (Account::Named(_), Credential::Hotkey) => {
                return Ok(None);
            }
        };
        let signature = signature::read_headers(headers)?;
        signature::check(&signature, scope, user, self.freshness, self.clock.now())?;
        Ok(Some(signature))
    }

    /// The signature over a whole body: the actor's own after a check, or the facilitator's.
    ///
    /// # Errors
    /// See [`Self::check_headers`]; also if the signature does not cover the body.
    pub(crate) fn sign_or_check_body(
        &self,
        actor: &Actor,
        headers: &HeaderMap,
        body: &Value,
    ) -> Result<UserSignature, SignatureRejection> {
        match self.check_headers(actor, headers, SignatureScope::FullRequest)? {
            Some(signature) => {
                verify_request(&signature, body).map_err(|_| SignatureRejection::Wrong)?;
                Ok(signature)
            }
            None => Ok(muster_identity::sign_request(&self.keypair, body, self.now_ns())),
        }
    }

    /// The facilitator's signature over a job.
    pub(crate) fn sign_job(&self, job: &CreateJob) -> UserSignature {
        muster_identity::sign_job(&self.keypair, &job.signed_fields(), self.now_ns())
    }

    /// The key `muster` of a job that the facilitator signs: the account for a validator that knows terms, and the
    /// user's terms with the facilitator's signature.
    pub(crate) fn sign_extension(
        &self,
        actor: &Actor,
        job: &CreateJob,
        signature: &UserSignature,
        validator: FeatureSet,
    ) -> Option<Box<JobExtension>> {
        let mut extension = job.muster.as_deref().cloned().unwrap_or_default();
        extension.account = validator.has(Feature::Terms).then(|| actor.account.to_string());
        extension.signature = extension.terms.as_ref().map(|terms| {
            let digest = job.signed_fields().digest(signature.timestamp_ns);
            muster_identity::sign_terms(&self.keypair, terms, &digest)
        });
        (extension != JobExtension::default()).then(|| Box::new(extension))
    }

    /// The time in Unix nanoseconds.
    fn now_ns(&self) -> i64 {
        self.clock.now().micros().saturating_mul(1000)
    }
}

//! The services behind OpenAI's interface: admission, quotas, the choice of a gateway, and the count of usage.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use muster_facilitator_core::credentials::Account;
use muster_gateway_client::{ForwardError, ForwardReport, ForwardRequest, GatewayClient, bearer_token};
use muster_openai::OpenAiError;
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{ClientKey, ReportedAnswer, ResponseProof, client_pseudonym};
use muster_store::StoreError;

use super::authentication::Admission;
use super::model_usage::{CountedRequest, ReservationError, UsageCounter};
use super::rights::ChatRight;
use crate::gateways::{GatewayDirectory, ReachableGateway};
use crate::rest::page_caller::SessionCaller;
use crate::rest::rejection::ApiRejection;

/// The header by which a client chooses the validator whose gateway serves it.
const VALIDATOR: HeaderName = HeaderName::from_static("muster-validator");

/// The services behind the calls about models.
pub(crate) struct ModelService {
    pub(crate) admission: Arc<Admission>,
    pub(crate) gateways: Arc<GatewayDirectory>,
    /// Forwards requests to validators' gateways.
    pub(crate) gateway_client: GatewayClient,
    /// How long a gateway may take to begin a streamed answer, or to give a proof.
    pub(crate) head_limit: Duration,
    /// How long it may take to begin any other answer.
    pub(crate) silence_limit: Duration,
    /// The secret that pseudonyms of accounts are derived from.
    pub(crate) client_secret: Vec<u8>,
    pub(crate) usage: Arc<UsageCounter>,
}

// === impl ModelService ===

impl ModelService {
    pub(super) async fn admit(&self, parts: &Parts) -> Result<Account, OpenAiError> {
        if parts.extensions.get::<SessionCaller>().is_none() {
            bearer_token(&parts.headers)?;
        }
        match self.admission.admit::<ChatRight>(parts).await {
            Ok(caller) => Ok(caller.account().clone()),
            Err(rejection) => Err(to_openai(&rejection)),
        }
    }

    /// Counts a request before it is forwarded.
    pub(super) async fn reserve(
        &self,
        account: &Account,
        model: &str,
        body: &[u8],
    ) -> Result<Arc<CountedRequest>, OpenAiError> {
        match self.usage.reserve(account, model, body).await {
            Ok(counted) => Ok(counted),
            Err(ReservationError::Exhausted(refusal)) => Err(refusal),
            Err(ReservationError::Store(error)) => Err(store_unavailable(error)),
        }
    }

    /// The gateways that can be asked now, in their order: that of the validator that the client named, or all of them.
    pub(super) async fn gateways(&self, parts: &Parts) -> Result<Vec<ReachableGateway>, OpenAiError> {
        let wanted = match parts.headers.get(VALIDATOR) {
            None => None,
            Some(named) => {
                let named = named
                    .to_str()
                    .ok()
                    .and_then(|text| text.parse::<ValidatorKey>().ok());
                Some(named.ok_or(OpenAiError::BadParameter {
                    parameter: "muster-validator",
                    message: "the header muster-validator must be the ss58 address of a validator".to_owned(),
                })?)
            }
        };
        self.gateways.reachable(wanted).await.map_err(store_unavailable)
    }

    /// Asks one gateway, and notes whether it responded.
    pub(super) async fn ask(
        &self,
        gateway: &ReachableGateway,
        request: ForwardRequest,
        report: impl FnOnce(ForwardReport) + Send + 'static,
    ) -> Result<Response, ForwardError> {
        let asked = self
            .gateway_client
            .forward(&gateway.target(), request, report)
            .await;
        self.gateways.note(gateway.validator, asked.is_ok());
        Ok(asked?.map(Body::new))
    }

    /// The name under which gateways know an account. Without the facilitator's secret it reveals nothing.
    pub(super) fn pseudonym(&self, account: &Account) -> Digest {
        let mut named = self.client_secret.clone();
        named.extend_from_slice(account.to_string().as_bytes());
        Digest::of(&named)
    }

    /// The key of an account at one validator's gateway, which gives each of its requests a pseudonym of its own.
    pub(super) fn client_key(&self, account: &Account, validator: &ValidatorKey) -> ClientKey {
        ClientKey::of_account(&self.client_secret, validator, &account.to_string())
    }

    /// Whether an answer was given to an account; `None` if the report lacks the nonce that opens the pseudonym.
    /// Gateways of earlier releases showed the name of the account.
    pub(super) fn is_answer_to(
        &self,
        account: &Account,
        reported: &ReportedAnswer,
        proof: &ResponseProof,
    ) -> Option<bool> {
        if proof.client == Some(self.gateway_name(account)) {
            return Some(true);
        }
        reported.is_of(proof, &self.client_key(account, &proof.audience))
    }

    /// The name under which gateways keep an account's answers: the pseudonym, sent by this facilitator.
    pub(super) fn gateway_name(&self, account: &Account) -> Digest {
        let key = self.gateway_client.key();
        client_pseudonym(key.as_bytes(), self.pseudonym(account).as_bytes())
    }
}

/// Translates a rejection of the REST API into OpenAI's shape.
fn to_openai(rejection: &ApiRejection) -> OpenAiError {
    let message = rejection.message();
    let retry_after = rejection.retry_after().unwrap_or(Duration::from_secs(1));
    match rejection.status() {
        StatusCode::UNAUTHORIZED => OpenAiError::InvalidKey(message),
        StatusCode::FORBIDDEN => OpenAiError::Forbidden(message),
        StatusCode::TOO_MANY_REQUESTS => OpenAiError::RateLimited { message, retry_after },
        _ => OpenAiError::Unavailable { message, retry_after },
    }
}

fn store_unavailable(error: StoreError) -> OpenAiError {
    to_openai(&ApiRejection::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_of_the_rest_api_become_openais() {
        let rejection = to_openai(&ApiRejection::throttled(Duration::from_secs(2)));
        assert_eq!(
            (rejection.kind(), rejection.retry_after()),
            ("rate_limit_error", Some(3))
        );
        let rejection = to_openai(&ApiRejection::detail(
            StatusCode::UNAUTHORIZED,
            "Invalid API key.",
        ));
        assert_eq!(rejection, OpenAiError::InvalidKey("Invalid API key.".to_owned()));
    }
}

//! Admission to the REST API: the account behind a token or an API key, and the request rates of accounts and
//! addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use muster_facilitator_core::account::{Account, ApiKeySecret, Credential};
use muster_facilitator_core::login_tokens::{Issuer, TokenRejection};
use muster_process::SharedClock;

use super::rejection::ApiRejection;
use crate::access_policy::AccessPolicy;
use crate::store::{Actor, Store};
use crate::user_limits::RequestRates;

/// The services that decide who may call the API.
pub(crate) struct Admission {
    pub(crate) store: Store,
    pub(crate) issuer: Issuer,
    pub(crate) policy: Arc<AccessPolicy>,
    pub(crate) rates: RequestRates,
    pub(crate) clock: SharedClock,
}

/// The caller that the request's token or API key names.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Actor);

/// A caller without credentials, whose address has not used up its request rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnonymousCaller;

// === impl Admission ===

impl Admission {
    /// Finds the caller of a request, checks that the account is served, and counts the request.
    ///
    /// # Errors
    /// The credentials are missing or invalid, the account is not served or asks too often, or the store failed.
    pub(crate) async fn admit(&self, headers: &HeaderMap) -> Result<Caller, ApiRejection> {
        let actor = self.authenticate(headers).await?;
        if !self.policy.admits(&actor.account) {
            return Err(ApiRejection::detail(StatusCode::FORBIDDEN, "Hotkey not allowed."));
        }
        self.rates
            .count_account(&actor.account, self.clock.now())
            .map_err(ApiRejection::throttled)?;
        Ok(Caller(actor))
    }

    async fn authenticate(&self, headers: &HeaderMap) -> Result<Actor, ApiRejection> {
        let reject = |detail: &str| ApiRejection::detail(StatusCode::UNAUTHORIZED, detail);
        let header = headers
            .get(header::AUTHORIZATION)
            .ok_or_else(|| reject("Authentication credentials were not provided."))?;
        let bearer = header
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| reject("Invalid token."))?;
        match ApiKeySecret::parse(bearer) {
            Some(secret) => {
                let owner = self.store.find_key_owner(&secret).await?;
                let (account, id) =
                    owner.ok_or_else(|| reject("Invalid API key: it is unknown or has been revoked."))?;
                Ok(Actor {
                    account,
                    credential: Credential::ApiKey(id),
                })
            }
            None => match self.issuer.check_token(bearer, self.clock.now()) {
                Ok(user) => Ok(Actor::user(user)),
                Err(TokenRejection::Invalid) => Err(reject("Invalid token.")),
                // ComputeHorde's SDK searches for these words and logs in again.
                Err(TokenRejection::Expired) => Err(reject("Token expired.")),
            },
        }
    }
}

// === impl Caller, AnonymousCaller ===

impl Caller {
    /// The account that the request is made for.
    pub(crate) fn account(&self) -> &Account {
        &self.0.account
    }
}

impl<S> FromRequestParts<S> for Caller
where
    S: Send + Sync,
    Arc<Admission>: FromRef<S>,
{
    type Rejection = ApiRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRejection> {
        Arc::<Admission>::from_ref(state).admit(&parts.headers).await
    }
}

impl<S> FromRequestParts<S> for AnonymousCaller
where
    S: Send + Sync,
    Arc<Admission>: FromRef<S>,
{
    type Rejection = ApiRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRejection> {
        let admission = Arc::<Admission>::from_ref(state);
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let address = peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip());
        admission
            .rates
            .count_address(address, admission.clock.now())
            .map_err(ApiRejection::throttled)?;
        Ok(Self)
    }
}

//! Admission to the REST API: the account behind a token or an API key, and the request rates of accounts and
//! addresses.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode, header};
use muster_facilitator_core::access_policy::AccessPolicy;
use muster_facilitator_core::credentials::{Account, ApiKeySecret, Credential};
use muster_facilitator_core::granted_rights::{Authority, CallerProof};
use muster_facilitator_core::login_rules::LoginRules;
use muster_facilitator_core::login_tokens::{Issuer, TokenRejection};
use muster_http::server::ClientAddress;
use muster_process::SharedClock;
use muster_process::connections::AddressGroup;
use muster_protocol::Digest;

use super::rights::NeededRight;
use muster_facilitator_store::{Actor, KeyOwner, Store};

use crate::rest::page_caller::SessionCaller;
use crate::rest::rejection::ApiRejection;
use crate::user_limits::RequestRates;

/// The services that decide who may call the API.
pub(crate) struct Admission {
    pub(crate) store: Store,
    pub(crate) issuer: Issuer,
    pub(crate) login: LoginRules,
    pub(crate) policy: Arc<AccessPolicy>,
    pub(crate) rates: RequestRates,
    pub(crate) clock: SharedClock,
}

/// The caller that the request's token or API key, or the browser's session, names, which has the right `R`.
pub(crate) struct Caller<R> {
    pub(crate) actor: Actor,
    /// The rights and the end of the token or key.
    pub(crate) authority: Authority,
    /// The evidence that the request shows of its caller.
    pub(crate) proof: CallerProof,
    right: PhantomData<R>,
}

/// A caller without credentials, whose address has not used up its request rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnonymousCaller;

// === impl Admission ===

impl Admission {
    /// Finds the caller of a request, checks that the account is served and that the credential has the right, and
    /// counts the request.
    ///
    /// # Errors
    /// The credentials are missing or invalid, or lack the right; the address has shown too many invalid ones; the
    /// account is not served or asks too often, or the store failed.
    pub(crate) async fn admit<R: NeededRight>(&self, parts: &Parts) -> Result<Caller<R>, ApiRejection> {
        let (actor, authority, proof) = self.authenticate(parts).await?;
        if !self.policy.admits(&actor.account) {
            return Err(ApiRejection::detail(StatusCode::FORBIDDEN, "Hotkey not allowed."));
        }
        self.rates
            .count_account(&actor.account, self.clock.now())
            .map_err(ApiRejection::throttled)?;
        match R::RIGHT.filter(|right| !authority.rights.has(*right)) {
            None => Ok(Caller {
                actor,
                authority,
                proof,
                right: PhantomData,
            }),
            Some(right) => {
                let reason = format!(
                    "This API key lacks the right `{right}`; use a key that has it, or log in with the hotkey."
                );
                Err(ApiRejection::detail(StatusCode::FORBIDDEN, reason))
            }
        }
    }

    async fn authenticate(&self, parts: &Parts) -> Result<(Actor, Authority, CallerProof), ApiRejection> {
        if let Some(session) = parts.extensions.get::<SessionCaller>() {
            let SessionCaller {
                actor,
                authority,
                signed_at,
            } = session.clone();
            return Ok((actor, authority, CallerProof::Session { signed_at }));
        }
        let reject = |detail: &str| ApiRejection::detail(StatusCode::UNAUTHORIZED, detail);
        let address = client_group(&parts.extensions);
        let header = parts
            .headers
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
                let (hash, now) = (secret.hash(), self.clock.now());
                self.rates
                    .admit_key(address, hash, now)
                    .map_err(ApiRejection::throttled)?;
                let Some(owner) = self.store.find_key_owner(&secret, now).await? else {
                    self.count_failure(address, Some(hash))?;
                    return Err(reject(
                        "Invalid API key: it is unknown, has ended, or has been revoked.",
                    ));
                };
                self.rates.note_valid_key(hash, self.clock.now());
                let KeyOwner {
                    account,
                    id,
                    authority,
                } = owner;
                let credential = Credential::ApiKey(id);
                Ok((Actor { account, credential }, authority, CallerProof::ApiKey))
            }
            None => match self.issuer.check_token(bearer, self.clock.now()) {
                Ok((user, signed_at)) => {
                    let proof = CallerProof::Login(signed_at);
                    Ok((Actor::user(user), Authority::login(), proof))
                }
                Err(TokenRejection::Invalid) => {
                    self.count_failure(address, None)?;
                    Err(reject("Invalid token."))
                }
                // ComputeHorde's SDK searches for these words and logs in again.
                Err(TokenRejection::Expired) => Err(reject("Token expired.")),
            },
        }
    }

    /// Counts a wrong credential.
    ///
    /// # Errors
    /// The address has shown too many.
    fn count_failure(&self, address: AddressGroup, key: Option<Digest>) -> Result<(), ApiRejection> {
        self.rates
            .count_failure(address, key, self.clock.now())
            .map_err(ApiRejection::throttled)
    }
}

/// The addresses that count as the client's.
fn client_group(extensions: &Extensions) -> AddressGroup {
    let client = extensions.get::<ClientAddress>();
    AddressGroup::of(client.map_or(IpAddr::from([0, 0, 0, 0]), |client| client.0))
}

// === impl Caller, AnonymousCaller ===

impl<R> Caller<R> {
    /// The account that the request is made for.
    pub(crate) fn account(&self) -> &Account {
        &self.actor.account
    }
}

impl<R> fmt::Debug for Caller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Caller").field(&self.actor).finish()
    }
}

impl<R, S> FromRequestParts<S> for Caller<R>
where
    R: NeededRight,
    S: Send + Sync,
    Arc<Admission>: FromRef<S>,
{
    type Rejection = ApiRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRejection> {
        Arc::<Admission>::from_ref(state).admit::<R>(parts).await
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
        admission
            .rates
            .count_address(client_group(&parts.extensions), admission.clock.now())
            .map_err(ApiRejection::throttled)?;
        Ok(Self)
    }
}

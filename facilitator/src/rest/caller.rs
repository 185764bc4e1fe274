//! Who a request comes from, and whether they may ask now.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use muster_facilitator_core::account::{Account, ApiKeySecret, Credential};
use muster_facilitator_core::auth::TokenRefused;
use muster_facilitator_core::signature::{self, SignatureRefused};
use muster_identity::verify_request;
use muster_protocol::rest::headers;
use muster_protocol::wire::facilitator::{SignatureScope, UserSignature};
use serde_json::Value;

use super::refusal::Refusal;
use crate::door::Door;
use crate::store::Actor;

/// Whom the request's bearer token or API key names.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Actor);

/// Somebody unknown, by where they come from, who may still ask at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stranger;

// === impl Caller ===

impl Caller {
    /// Their account.
    pub(crate) fn account(&self) -> &Account {
        &self.0.account
    }

    /// The signature of a request that must be signed, fresh and the caller's own; `None` where the facilitator signs,
    /// which it does for who came with an API key and signed nothing.
    ///
    /// # Errors
    /// Missing, malformed, or not to be believed. Whether it covers the body is not checked here.
    pub(crate) fn signature(
        &self,
        door: &Door,
        headers: &HeaderMap,
        scope: SignatureScope,
    ) -> Result<Option<UserSignature>, SignatureRefused> {
        let signed = headers.contains_key(headers::SIGNATURE);
        let user = match (&self.0.account, &self.0.credential) {
            (Account::Hotkey(user), Credential::Hotkey) => *user,
            (Account::Hotkey(user), Credential::ApiKey(_)) if signed => *user,
            (Account::Hotkey(_) | Account::Named(_), Credential::ApiKey(_))
            | (Account::Named(_), Credential::Hotkey) => {
                return Ok(None);
            }
        };
        let signature = signature::read(headers)?;
        signature::admits(&signature, scope, user, door.freshness, door.clock.now())?;
        Ok(Some(signature))
    }

    /// The signature over a whole body: the caller's own, checked, or the facilitator's.
    ///
    /// # Errors
    /// As [`Self::signature`], and when it does not cover the body.
    pub(crate) fn signed(
        &self,
        door: &Door,
        headers: &HeaderMap,
        body: &Value,
    ) -> Result<UserSignature, SignatureRefused> {
        match self.signature(door, headers, SignatureScope::FullRequest)? {
            Some(signature) => {
                verify_request(&signature, body).map_err(|_| SignatureRefused::Wrong)?;
                Ok(signature)
            }
            None => Ok(muster_identity::sign_request(&door.keypair, body, door.now_ns())),
        }
    }
}

impl FromRequestParts<Arc<Door>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<Door>) -> Result<Self, Refusal> {
        let refuse = |detail: &str| Refusal::detail(StatusCode::UNAUTHORIZED, detail);
        let header = parts
            .headers
            .get(header::AUTHORIZATION)
            .ok_or_else(|| refuse("Authentication credentials were not provided."))?;
        let bearer = header
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| refuse("Invalid token."))?;
        let actor = match ApiKeySecret::read(bearer) {
            Some(secret) => {
                let owner = door.store.key_owner(&secret).await?;
                let (account, id) =
                    owner.ok_or_else(|| refuse("Invalid API key: it is unknown or has been revoked."))?;
                Actor {
                    account,
                    credential: Credential::ApiKey(id),
                }
            }
            None => match door.issuer.user_of(bearer, door.clock.now()) {
                Ok(user) => Actor::user(user),
                Err(TokenRefused::Invalid) => return Err(refuse("Invalid token.")),
                // The SDK looks for these words and logs in again.
                Err(TokenRefused::Expired) => return Err(refuse("Token expired.")),
            },
        };
        if !door.admits(&actor.account) {
            return Err(Refusal::detail(StatusCode::FORBIDDEN, "Hotkey not allowed."));
        }
        door.paces
            .caller(&actor.account, door.clock.now())
            .map_err(Refusal::too_soon)?;
        Ok(Self(actor))
    }
}

impl FromRequestParts<Arc<Door>> for Stranger {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<Door>) -> Result<Self, Refusal> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let address = peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip());
        door.paces
            .stranger(address, door.clock.now())
            .map_err(Refusal::too_soon)?;
        Ok(Self)
    }
}

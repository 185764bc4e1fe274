//! Bodies about accounts: logins, API keys and the audit log.

use serde::{Deserialize, Serialize};

use crate::keys::Hotkey;
use crate::signature::Signature;
use crate::time::Timestamp;

/// `GET /auth/nonce`: the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Nonce))]
pub struct LoginNonce {
    /// Opaque text whose bytes the login signs.
    pub nonce: String,
}

/// `POST /auth/login`. Fields are optional so that an error can name each missing one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Login))]
pub struct LoginRequest {
    /// The ss58 address of the user that logs in.
    #[serde(default)]
    pub hotkey: Option<String>,
    /// The user's signature over the nonce's bytes, hex without `0x`.
    #[serde(default)]
    pub signature: Option<String>,
    /// The nonce from `GET /auth/nonce`.
    #[serde(default)]
    pub nonce: Option<String>,
}

impl LoginRequest {
    /// A login of `hotkey` with its signature over `nonce`.
    pub fn new(hotkey: Hotkey, signature: Signature, nonce: String) -> Self {
        Self {
            hotkey: Some(hotkey.to_string()),
            signature: Some(signature.to_bare_hex()),
            nonce: Some(nonce),
        }
    }
}

/// The answer to a login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// A JWT for the header `Authorization: Bearer`.
    pub token: String,
}

/// `POST /api/v1/keys/`: creates an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKey {
    /// The owner's name for the key.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100))]
    pub name: String,
    /// The account without a hotkey that the key opens; for administrators only. Absent, the key opens the caller's own
    /// account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 48))]
    pub account: Option<String>,
}

/// An API key as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    /// The id of the key in the API.
    pub id: String,
    /// The owner's name for the key.
    pub name: String,
    /// The account that the key opens.
    pub account: String,
    /// The key itself, `msk_…`; shown only in the answer that creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The time of creation.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
}

/// `GET /api/v1/keys/`: the valid keys, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyList {
    /// The keys, newest first.
    pub results: Vec<ApiKey>,
}

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// The id of the entry.
    pub id: String,
    /// The time of the action.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// The account that acted: a hotkey, or the name of an account without one.
    pub account: String,
    /// The credential that admitted the request: `hotkey`, or the id of an API key.
    pub credential: String,
    /// The action, such as `login` or `job.created`.
    pub action: String,
    /// The thing that the action concerned, such as a job.
    pub subject: String,
}

/// `GET /api/v1/audit/`: one page of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditPage {
    /// The number of entries on all pages together.
    pub count: u64,
    /// The URL of the next page; null on the last one.
    pub next: Option<String>,
    /// The URL of the page before; null on the first one.
    pub previous: Option<String>,
    /// The entries of this page, newest first.
    pub results: Vec<AuditEntry>,
}

/// An error of the login: `{"error": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginError {
    /// The failure in words.
    pub error: String,
}

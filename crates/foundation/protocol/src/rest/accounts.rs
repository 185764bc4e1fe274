//! Bodies about accounts: logins, API keys and the audit log.

use serde::{Deserialize, Serialize};

use crate::keys::Hotkey;
use crate::signature::Signature;
use crate::time::Timestamp;

/// `GET /auth/nonce`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Nonce))]
pub struct LoginNonce {
    /// Opaque; the login signs its bytes.
    pub nonce: String,
}

/// `POST /auth/login`. Fields are optional so that each missing one can be named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Login))]
pub struct LoginRequest {
    /// Who logs in.
    #[serde(default)]
    pub hotkey: Option<String>,
    /// Hex without `0x`, over the nonce's bytes.
    #[serde(default)]
    pub signature: Option<String>,
    /// From `GET /auth/nonce`.
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

/// `POST /api/v1/keys/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKey {
    /// What its owner calls it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100))]
    pub name: String,
    /// For an administrator: the account of someone without a hotkey that the key is to open. Else the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 48))]
    pub account: Option<String>,
}

/// An API key as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    /// Its name in the API.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// The account that it opens.
    pub account: String,
    /// `msk_…`; shown once, when it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When it was made.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub created_at: Timestamp,
}

/// `GET /api/v1/keys/`: the keys that hold, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyList {
    /// The keys.
    pub results: Vec<ApiKey>,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// Its name.
    pub id: String,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// Whose account: a hotkey, or the name of an account without one.
    pub account: String,
    /// By what they were let in: `hotkey`, or the id of an API key.
    pub credential: String,
    /// What was done: `login`, `job.created` and the like.
    pub action: String,
    /// What it was done to, such as a job.
    pub subject: String,
}

/// `GET /api/v1/audit/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditPage {
    /// Entries in all.
    pub count: u64,
    /// URL of the next page.
    pub next: Option<String>,
    /// URL of the page before.
    pub previous: Option<String>,
    /// The entries, newest first.
    pub results: Vec<AuditEntry>,
}

/// An error of the login: `{"error": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginError {
    /// What failed.
    pub error: String,
}

//! The bodies of the facilitator's REST API about accounts: logins, API keys and the audit log.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::login::NonceText;
use crate::{Hotkey, Signature, Timestamp};

/// `GET /auth/nonce`: the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Nonce))]
pub struct LoginNonce {
    /// The text that the login signs: 32 hex digits, `:`, 1 to 16 base-62 digits, `:`, a base64url signature.
    pub nonce: String,
    /// The host of the facilitator's configured address, in lower case, with its port where that is not the scheme's
    /// default. A client that dialled this host may sign `muster/login/1`, the host and the nonce, a line each, instead
    /// of the nonce alone. Absent if no address is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// `POST /auth/login`. Fields are optional so that an error can name each missing one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Login))]
pub struct LoginRequest {
    /// The ss58 address of the user that logs in.
    #[serde(default)]
    pub hotkey: Option<String>,
    /// The user's signature over the nonce's bytes, or over the bound text that [`LoginNonce::host`] describes; hex
    /// without `0x`.
    #[serde(default)]
    pub signature: Option<String>,
    /// The nonce from `GET /auth/nonce`.
    #[serde(default)]
    pub nonce: Option<String>,
}

impl LoginRequest {
    /// A login of `hotkey` with its signature for `nonce`.
    pub fn new(hotkey: Hotkey, signature: Signature, nonce: &NonceText) -> Self {
        Self {
            hotkey: Some(hotkey.to_string()),
            signature: Some(signature.to_bare_hex()),
            nonce: Some(nonce.to_string()),
        }
    }
}

/// `POST /api/v1/web-links/`: a link that signs a browser in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebLink {
    /// The address to open in a browser. It works once.
    pub url: String,
    /// The time at which the link ends.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub expires_at: Timestamp,
}

/// The answer to a login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// A JWT for the header `Authorization: Bearer`.
    pub token: String,
}

/// A right of an API key. A login with a hotkey has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeyRight {
    /// Submits and cancels jobs, and reports on their results.
    Jobs,
    /// Asks models through OpenAI's calls, and reads the proofs of their answers.
    Chat,
    /// Makes, lists, reads and deletes files.
    Files,
    /// Reads jobs, usage, the account and the audit log.
    Read,
    /// Makes and revokes API keys, sets the account's webhook, and deletes an account without a hotkey.
    Keys,
}

impl KeyRight {
    /// Every right, in the order in which they are written.
    pub const ALL: [Self; 5] = [Self::Jobs, Self::Chat, Self::Files, Self::Read, Self::Keys];

    /// The rights of a key whose maker names none.
    pub const USUAL: [Self; 4] = [Self::Jobs, Self::Chat, Self::Files, Self::Read];

    /// The right's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Chat => "chat",
            Self::Files => "files",
            Self::Read => "read",
            Self::Keys => "keys",
        }
    }
}

impl fmt::Display for KeyRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the name of a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key's rights are jobs, chat, files, read and keys")]
pub struct KeyRightError;

impl FromStr for KeyRight {
    type Err = KeyRightError;

    fn from_str(text: &str) -> Result<Self, KeyRightError> {
        let found = Self::ALL.into_iter().find(|right| right.as_str() == text);
        found.ok_or(KeyRightError)
    }
}

/// The days for which a key is valid whose maker names none.
pub const USUAL_KEY_DAYS: u32 = 365;
/// The most days for which a key can be valid.
pub const MAX_KEY_DAYS: u32 = 3_650;

/// `POST /api/v1/keys/`: creates an API key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The rights of the key; `jobs`, `chat`, `files` and `read` if absent. A key that makes a key can give its own
    /// rights only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 5))]
    pub rights: Option<Vec<KeyRight>>,
    /// The days for which the key is valid; 365 if absent. A key that is made by a key ends with it at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3650))]
    pub days: Option<u32>,
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
    /// The rights of the key. A facilitator that knows no rights leaves them out: its keys may do everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rights: Vec<KeyRight>,
    /// The time at which the key ends; absent for a key that was made before keys had an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub expires_at: Option<Timestamp>,
}

/// `GET /api/v1/keys/`: the valid keys, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyList {
    /// The keys, newest first.
    pub results: Vec<ApiKey>,
}

/// `GET /api/v1/account/`: what the caller's account holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountView {
    /// The account's name: a hotkey's address, or the name of an account without one.
    pub account: String,
    /// The number of its jobs, ended or not.
    pub jobs: u64,
    /// The number of its jobs that have not ended.
    pub open_jobs: u64,
    /// The number of its files, complete or not.
    pub files: u64,
    /// The number of its API keys that hold.
    pub keys: u64,
}

/// `DELETE /api/v1/account/`: what was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountDeleted {
    /// The account's name.
    pub account: String,
    /// The number of deleted rows, by their kind. A job takes its statuses and results with it.
    pub deleted: BTreeMap<String, u64>,
    /// The things that stay, in words.
    pub stays: Vec<String>,
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
    /// The credential that admitted the request: `hotkey`, `browser`, or the id of an API key.
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

//! Bodies about webhooks: an account's webhook, and where the message about a job's end stands.

use serde::{Deserialize, Serialize};

use crate::macros::open_enum;
use crate::time::Timestamp;

/// `PUT /api/v1/webhook/`: sets the account's webhook, and draws its secret if it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetWebhook {
    /// The URL that is told of the end of every job that names no URL of its own; null for none.
    #[serde(default)]
    pub url: Option<String>,
    /// Whether a new secret replaces the present one.
    #[serde(default)]
    pub new_secret: bool,
}

/// The webhook of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountWebhookView {
    /// The URL that is told of the end of every job that names no URL of its own; null for none.
    pub url: Option<String>,
    /// The secret that signs every message of the account, `whsec_…`; only in the answer that draws it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The time of the last change.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub changed_at: Timestamp,
}

open_enum!(
    /// Where the message about a job's end stands.
    WebhookState {
        /// The job has not ended.
        Waiting = "waiting",
        /// The message is sent at the next opportunity.
        Due = "due",
        /// The receiver has the message.
        Delivered = "delivered",
        /// The message was given up.
        Failed = "failed",
    }
);

/// The message about a job's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookDelivery {
    /// The URL that gets the message.
    pub url: String,
    /// Where the message stands: `waiting`, `due`, `delivered` or `failed`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub state: WebhookState,
    /// How often the message was sent.
    pub attempts: u32,
    /// The reason for which the last attempt failed.
    #[serde(default)]
    pub error: Option<String>,
    /// When a due message is sent next.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub next_at: Option<Timestamp>,
    /// The time of the last change.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub changed_at: Timestamp,
}

//! The caller of the API that a web page names, instead of a token or an API key.

use muster_facilitator_core::granted_rights::Authority;
use muster_facilitator_store::Actor;
use muster_protocol::Timestamp;

/// The caller of a request that a page makes. Only the code of pages puts it into a request: what comes over the
/// network has no such extension.
#[derive(Clone, Debug)]
pub(crate) struct SessionCaller {
    /// The account and the credential of the session.
    pub(crate) actor: Actor,
    /// The session's rights.
    pub(crate) authority: Authority,
    /// The time at which the account's hotkey signed for the session; `None` if an API key has signed the browser in.
    pub(crate) signed_at: Option<Timestamp>,
}

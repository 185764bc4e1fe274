//! Which accounts the configuration serves, and which of them administer the facilitator.

use std::collections::BTreeSet;

use muster_facilitator_core::account::{Account, Credential};
use muster_protocol::UserKey;

use crate::config::Config;
use muster_facilitator_store::Actor;

/// The configured users and administrators.
pub(crate) struct AccessPolicy {
    /// The hotkeys that may log in; `None` if every hotkey may.
    users: Option<BTreeSet<UserKey>>,
    administrators: BTreeSet<UserKey>,
}

impl AccessPolicy {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            users: config.users.clone().map(BTreeSet::from_iter),
            administrators: config.administrators.iter().copied().collect(),
        }
    }

    /// Whether this account may be served. An account without a hotkey exists because an administrator made it.
    pub(crate) fn admits(&self, account: &Account) -> bool {
        match account {
            Account::Named(_) => true,
            Account::Hotkey(user) => {
                let listed = self.users.as_ref().is_none_or(|users| users.contains(user));
                listed || self.administrators.contains(user)
            }
        }
    }

    /// Whether the actor is an administrator who has proven their own hotkey. An API key or a browser never
    /// administers.
    pub(crate) fn is_administrator(&self, actor: &Actor) -> bool {
        match (&actor.account, &actor.credential) {
            (Account::Hotkey(user), Credential::Hotkey) => self.administrators.contains(user),
            (
                Account::Hotkey(_) | Account::Named(_),
                Credential::Hotkey | Credential::ApiKey(_) | Credential::Browser,
            ) => false,
        }
    }
}

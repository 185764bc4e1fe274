//! Which accounts the configuration serves, and which of them administer the facilitator.

use std::collections::BTreeSet;

use muster_protocol::UserKey;

use crate::credentials::{Account, Credential};

/// The configured users and administrators.
#[derive(Clone, Debug)]
pub struct AccessPolicy {
    /// The hotkeys that may log in; `None` if every hotkey may.
    users: Option<BTreeSet<UserKey>>,
    administrators: BTreeSet<UserKey>,
}

impl AccessPolicy {
    /// These users may log in, or every hotkey without such a list; the administrators may in any case.
    pub fn new(users: Option<&[UserKey]>, administrators: &[UserKey]) -> Self {
        Self {
            users: users.map(|users| users.iter().copied().collect()),
            administrators: administrators.iter().copied().collect(),
        }
    }

    /// Whether this account may be served. An account without a hotkey exists because an administrator made it.
    pub fn admits(&self, account: &Account) -> bool {
        match account {
            Account::Named(_) => true,
            Account::Hotkey(user) => {
                let listed = self.users.as_ref().is_none_or(|users| users.contains(user));
                listed || self.administrators.contains(user)
            }
        }
    }

    /// Whether this account is an administrator's that has proven its own hotkey. An API key or a browser never
    /// administers.
    pub fn is_administrator(&self, account: &Account, credential: &Credential) -> bool {
        match (account, credential) {
            (Account::Hotkey(user), Credential::Hotkey) => self.administrators.contains(user),
            (
                Account::Hotkey(_) | Account::Named(_),
                Credential::Hotkey | Credential::ApiKey(_) | Credential::Browser(_),
            ) => false,
        }
    }
}

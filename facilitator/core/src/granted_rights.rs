//! The rights of a credential, and the rights and the end of the keys that it makes. Pure.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use muster_protocol::Timestamp;
use muster_protocol::account_api::{KeyRight, USUAL_KEY_DAYS};

const DAY: Duration = Duration::from_secs(86_400);

/// A set of rights. Text form: the names with commas; names of a later version are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRights(BTreeSet<KeyRight>);

/// The rights of a credential, and the time at which it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The things that it may do.
    pub rights: KeyRights,
    /// Its end; `None` for a login, whose token has an end of its own, and for keys without an end.
    pub expires_at: Option<Timestamp>,
}

/// The evidence that a request shows of its caller, as far as the making of keys depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerProof {
    /// A token, for which the hotkey signed at this time.
    Login(Timestamp),
    /// An API key.
    ApiKey,
    /// The cookie of a browser's session.
    Session {
        /// The time at which the hotkey signed for the session; `None` if an API key has signed the browser in.
        signed_at: Option<Timestamp>,
    },
}

/// The reason why a browser's session may make no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionKeyError {
    /// The hotkey signed too long ago.
    #[error(
        "A browser makes keys only in the ten minutes after its hotkey has signed. Run `muster login --web` on the \
         machine that has the wallet, and open its link here; or make the key there with `muster keys new`."
    )]
    Stale,
    /// No hotkey signed for the session.
    #[error(
        "A browser that an API key has signed in makes no keys. Make them with `muster keys new` and an API key that \
         has the right `keys`."
    )]
    Unsigned,
}

/// How long after the hotkey's signature a browser's session may make keys.
const FRESH_SIGNATURE: Duration = Duration::from_secs(600);

/// The reason why a credential may not make a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The key would have a right that its maker lacks.
    #[error("this API key lacks the right `{0}` itself")]
    Beyond(KeyRight),
    /// No rights are named, and the maker has none of the usual ones.
    #[error("this API key has none of the usual rights; name the rights of the new key")]
    NoneLeft,
}

// === impl KeyRights ===

impl KeyRights {
    /// Whether the right is in the set.
    pub fn has(&self, right: KeyRight) -> bool {
        self.0.contains(&right)
    }

    /// The rights, in the order in which they are written.
    pub fn iter(&self) -> impl Iterator<Item = KeyRight> {
        self.0.iter().copied()
    }
}

impl FromIterator<KeyRight> for KeyRights {
    fn from_iter<I: IntoIterator<Item = KeyRight>>(rights: I) -> Self {
        Self(rights.into_iter().collect())
    }
}

impl fmt::Display for KeyRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, right) in self.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            write!(f, "{separator}{right}")?;
        }
        Ok(())
    }
}

impl FromStr for KeyRights {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.split(',').filter_map(|name| name.parse().ok()).collect())
    }
}

// === impl CallerProof ===

impl CallerProof {
    /// The time at which the caller's hotkey signed, if it did.
    pub const fn signed_at(self) -> Option<Timestamp> {
        match self {
            Self::Login(at) => Some(at),
            Self::ApiKey => None,
            Self::Session { signed_at } => signed_at,
        }
    }

    /// Whether a caller with the right to make keys may do so now. A stolen cookie opens a session for hours, so a
    /// session makes keys only for minutes after the hotkey has signed.
    ///
    /// # Errors
    /// See [`SessionKeyError`].
    pub fn check_key_making(self, now: Timestamp) -> Result<(), SessionKeyError> {
        match self {
            Self::Login(_) | Self::ApiKey => Ok(()),
            Self::Session { signed_at: None } => Err(SessionKeyError::Unsigned),
            Self::Session {
                signed_at: Some(signed_at),
            } if now < signed_at.plus(FRESH_SIGNATURE) => Ok(()),
            Self::Session { signed_at: Some(_) } => Err(SessionKeyError::Stale),
        }
    }
}

// === impl Authority ===

impl Authority {
    /// The authority of a login with a hotkey: every right.
    pub fn login() -> Self {
        Self {
            rights: KeyRight::ALL.into_iter().collect(),
            expires_at: None,
        }
    }

    /// Whether a browser with this authority sees which browsers are signed in to the account.
    pub fn may_list_sessions(&self) -> bool {
        self.rights.has(KeyRight::Read)
    }

    /// Whether a browser with this authority ends other sessions of the account, and so the keys that they have made.
    pub fn may_end_sessions(&self) -> bool {
        self.rights.has(KeyRight::Keys)
    }

    /// The authority of a key that this credential makes: the wanted rights, or those of the usual ones that it has;
    /// and the wanted days, or a year, but no longer than its own. The caller has checked that it may make keys.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn grant(
        &self,
        rights: Option<&[KeyRight]>,
        days: Option<u32>,
        now: Timestamp,
    ) -> Result<Self, GrantError> {
        let rights: KeyRights = match rights {
            Some(wanted) => {
                if let Some(beyond) = wanted.iter().find(|right| !self.rights.has(**right)) {
                    return Err(GrantError::Beyond(*beyond));
                }
                wanted.iter().copied().collect()
            }
            None => {
                let usual = KeyRight::USUAL.into_iter();
                usual.filter(|right| self.rights.has(*right)).collect()
            }
        };
        if rights.0.is_empty() {
            return Err(GrantError::NoneLeft);
        }
        let end = now.plus(DAY.saturating_mul(days.unwrap_or(USUAL_KEY_DAYS)));
        let expires_at = Some(self.expires_at.map_or(end, |own| own.min(end)));
        Ok(Self { rights, expires_at })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn authority(rights: &[KeyRight], end: Option<i64>) -> Authority {
        Authority {
            rights: rights.iter().copied().collect(),
            expires_at: end.map(at),
        }
    }

    #[test]
    fn a_key_without_wishes_has_the_usual_rights_for_a_year() {
        let made = Authority::login().grant(None, None, at(0)).unwrap();
        assert_eq!(made, authority(&KeyRight::USUAL, Some(365 * 86_400)));
        assert!(!made.rights.has(KeyRight::Keys));
        assert_eq!(made.rights.to_string(), "jobs,chat,files,read");
        assert_eq!(made.rights.to_string().parse(), Ok(made.rights));
        assert_eq!(
            "read,later,".parse(),
            Ok(authority(&[KeyRight::Read], None).rights)
        );
    }

    #[test]
    fn a_key_gives_no_right_that_it_lacks_and_no_day_beyond_its_own() {
        let maker = authority(&[KeyRight::Keys, KeyRight::Read], Some(86_400));
        let made = maker.grant(None, Some(30), at(0)).unwrap();
        assert_eq!(made, authority(&[KeyRight::Read], Some(86_400)));
        let refused = maker.grant(Some(&[KeyRight::Read, KeyRight::Chat]), None, at(0));
        assert_eq!(refused, Err(GrantError::Beyond(KeyRight::Chat)));
        let only = authority(&[KeyRight::Keys], None);
        assert_eq!(only.grant(None, None, at(0)), Err(GrantError::NoneLeft));
        let short = Authority::login().grant(Some(&[KeyRight::Jobs]), Some(1), at(5));
        assert_eq!(short, Ok(authority(&[KeyRight::Jobs], Some(86_405))));
    }

    #[test]
    fn a_session_makes_keys_for_ten_minutes_after_the_hotkeys_signature() {
        let session = |signed_at| CallerProof::Session { signed_at };
        assert_eq!(session(Some(at(0))).check_key_making(at(599)), Ok(()));
        assert_eq!(
            session(Some(at(0))).check_key_making(at(600)),
            Err(SessionKeyError::Stale)
        );
        assert_eq!(
            session(None).check_key_making(at(0)),
            Err(SessionKeyError::Unsigned)
        );
        for proof in [CallerProof::Login(at(0)), CallerProof::ApiKey] {
            assert_eq!(proof.check_key_making(at(3_000)), Ok(()));
        }
    }

    #[test]
    fn a_key_that_only_chats_neither_lists_nor_ends_sessions() {
        let may = |rights: &[KeyRight]| {
            let authority = authority(rights, None);
            (authority.may_list_sessions(), authority.may_end_sessions())
        };
        assert_eq!(may(&[KeyRight::Chat]), (false, false));
        assert_eq!(may(&KeyRight::USUAL), (true, false));
        assert_eq!(may(&[KeyRight::Keys]), (false, true));
        let login = Authority::login();
        assert!(login.may_list_sessions() && login.may_end_sessions());
    }

    fn any_rights() -> impl Strategy<Value = Vec<KeyRight>> {
        prop::sample::subsequence(KeyRight::ALL.to_vec(), 0..=5)
    }

    proptest! {
        #[test]
        fn nothing_grows_along_a_chain_of_keys(
            first in any_rights(),
            end in 1..1_000_000_i64,
            wishes in prop::collection::vec((prop::option::of(any_rights()), prop::option::of(1..4_000_u32)), 0..5),
        ) {
            let mut maker = authority(&first, Some(end));
            for (rights, days) in wishes {
                let Ok(made) = maker.grant(rights.as_deref(), days, at(0)) else { continue };
                prop_assert!(made.rights.iter().all(|right| maker.rights.has(right)));
                prop_assert!(made.expires_at <= maker.expires_at && made.expires_at.is_some());
                maker = made;
            }
        }
    }
}

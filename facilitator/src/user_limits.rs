//! Limits on users that live in the memory of one process: requests a minute.

use std::time::Duration;

use muster_facilitator_core::credentials::Account;
use muster_http::rate_limit::{CredentialPace, RateLimiter};
use muster_process::connections::AddressGroup;
use muster_protocol::{Digest, Timestamp};
use parking_lot::Mutex;

use crate::config::LimitsConfig;

/// The request rates of accounts, and of addresses that have not logged in or have shown wrong credentials.
pub(crate) struct RequestRates {
    accounts: Mutex<RateLimiter<Account>>,
    addresses: Mutex<RateLimiter<AddressGroup>>,
    /// API keys are remembered by their hashes.
    credentials: Mutex<CredentialPace<AddressGroup, Digest>>,
}

// === impl RequestRates ===

impl RequestRates {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        Self {
            accounts: Mutex::new(RateLimiter::new(limits.requests_per_minute)),
            addresses: Mutex::new(RateLimiter::new(limits.strangers_per_minute)),
            credentials: Mutex::new(CredentialPace::new(limits.failures_per_minute)),
        }
    }

    /// Counts one request of an account.
    ///
    /// # Errors
    /// The time to wait before the next request.
    pub(crate) fn count_account(&self, account: &Account, now: Timestamp) -> Result<(), Duration> {
        self.accounts.lock().take(account.clone(), now)
    }

    /// Counts one request from an address.
    ///
    /// # Errors
    /// The time to wait before the next request.
    pub(crate) fn count_address(&self, address: AddressGroup, now: Timestamp) -> Result<(), Duration> {
        self.addresses.lock().take(address, now)
    }

    /// Decides whether an API key may be looked up for a request from an address.
    ///
    /// # Errors
    /// The address has shown too many wrong credentials: the time to wait before the next one.
    pub(crate) fn admit_key(
        &self,
        address: AddressGroup,
        key: Digest,
        now: Timestamp,
    ) -> Result<(), Duration> {
        self.credentials.lock().admit(&address, &key, now)
    }

    /// Notes that an API key is valid.
    pub(crate) fn note_valid_key(&self, key: Digest, now: Timestamp) {
        self.credentials.lock().note_right(key, now);
    }

    /// Counts a wrong credential of an address: the API key with this hash, or a token or a signature.
    ///
    /// # Errors
    /// The address has shown too many: the time to wait before the next one.
    pub(crate) fn count_failure(
        &self,
        address: AddressGroup,
        key: Option<Digest>,
        now: Timestamp,
    ) -> Result<(), Duration> {
        self.credentials.lock().note_wrong(address, key.as_ref(), now)
    }
}

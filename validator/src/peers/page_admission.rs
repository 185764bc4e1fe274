//! Which requests for this validator's pages are answered now: each address has a pace, and few long texts are sent at
//! one time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use muster_http::rate_limit::RateLimiter;
use muster_process::SharedClock;
use muster_process::connections::AddressGroup;
use muster_protocol::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests a minute of one address, which may come at once. A validator that catches up after two days reads some 600
/// receipt pages in a row.
const REQUESTS_PER_MINUTE: u32 = 1_200;

/// Long texts that are sent at one time, each to another address.
const SENT_AT_ONCE: usize = 2;

/// How long a request waits for its turn. Other validators wait three seconds for an answer.
const TURN_PATIENCE: Duration = Duration::from_secs(2);

/// How long a long text may take: eight mebibytes at 1.1 Mbit/s.
const SEND_LIMIT: Duration = Duration::from_secs(60);

/// The seconds after which a request that got no turn may come again.
pub(super) const BUSY_SECS: u64 = 5;

/// The pace of addresses and the turns of long texts. Clones are one.
#[derive(Clone, Debug)]
pub(super) struct PageAdmission {
    clock: SharedClock,
    pace: Arc<Mutex<RateLimiter<AddressGroup>>>,
    turns: Arc<Semaphore>,
    sending: Arc<Mutex<HashSet<AddressGroup>>>,
}

/// The right to send one long text. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct TextTurn {
    clock: SharedClock,
    until: Timestamp,
    _permit: OwnedSemaphorePermit,
    _address: SendingAddress,
}

/// An address to which a long text is sent.
#[derive(Debug)]
struct SendingAddress {
    address: AddressGroup,
    sending: Arc<Mutex<HashSet<AddressGroup>>>,
}

/// No long text may be sent to the address now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy;

impl PageAdmission {
    pub(super) fn new(clock: SharedClock) -> Self {
        Self {
            clock,
            pace: Arc::new(Mutex::new(RateLimiter::new(REQUESTS_PER_MINUTE))),
            turns: Arc::new(Semaphore::new(SENT_AT_ONCE)),
            sending: Arc::default(),
        }
    }

    /// Counts one request of an address.
    ///
    /// # Errors
    /// The time to wait before the next request.
    pub(super) fn count(&self, address: AddressGroup) -> Result<(), Duration> {
        self.pace.lock().take(address, self.clock.now())
    }

    /// Waits until a long text may be sent to the address.
    ///
    /// # Errors
    /// One is being sent to the address, or none of the others ended within [`TURN_PATIENCE`].
    pub(super) async fn take_turn(&self, address: AddressGroup) -> Result<TextTurn, Busy> {
        let address = SendingAddress::enter(&self.sending, address).ok_or(Busy)?;
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&self.turns).acquire_owned() => permit.map_err(|_| Busy)?,
            () = self.clock.sleep(TURN_PATIENCE) => return Err(Busy),
        };
        Ok(TextTurn {
            clock: Arc::clone(&self.clock),
            until: self.clock.now().plus(SEND_LIMIT),
            _permit: permit,
            _address: address,
        })
    }
}

impl TextTurn {
    /// Whether the text has taken longer than it may.
    pub(super) fn is_over(&self) -> bool {
        self.clock.now() >= self.until
    }
}

impl SendingAddress {
    fn enter(sending: &Arc<Mutex<HashSet<AddressGroup>>>, address: AddressGroup) -> Option<Self> {
        let entered = sending.lock().insert(address);
        entered.then(|| Self {
            address,
            sending: Arc::clone(sending),
        })
    }
}

impl Drop for SendingAddress {
    fn drop(&mut self) {
        self.sending.lock().remove(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_process::TestClock;

    fn address(last: u8) -> AddressGroup {
        AddressGroup::of([192, 0, 2, last].into())
    }

    #[tokio::test]
    async fn two_addresses_get_a_turn_and_the_third_waits_and_is_refused() {
        let clock = TestClock::default();
        let admission = PageAdmission::new(Arc::new(clock.clone()));
        let first = admission.take_turn(address(1)).await.unwrap();
        assert_eq!(admission.take_turn(address(1)).await.unwrap_err(), Busy);
        let _second = admission.take_turn(address(2)).await.unwrap();
        let waits = async {
            clock.wait_for_sleepers(1).await;
            clock.advance(TURN_PATIENCE);
        };
        let (refused, ()) = tokio::join!(admission.take_turn(address(3)), waits);
        assert_eq!(refused.unwrap_err(), Busy);
        let ends = async {
            clock.wait_for_sleepers(1).await;
            drop(first);
        };
        let (third, ()) = tokio::join!(admission.take_turn(address(3)), ends);
        let third = third.unwrap();
        assert!(!third.is_over());
        clock.advance(SEND_LIMIT);
        assert!(third.is_over());
    }

    #[test]
    fn an_address_is_paced_and_another_is_not() {
        let admission = PageAdmission::new(Arc::new(TestClock::default()));
        assert!((0..REQUESTS_PER_MINUTE).all(|_| admission.count(address(1)).is_ok()));
        assert!(admission.count(address(1)).is_err());
        assert!(admission.count(address(2)).is_ok());
    }
}

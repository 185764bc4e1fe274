//! Time, injected: only this module asks the operating system for it.

mod system;
mod test;
mod tokio_clock;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_protocol::Timestamp;

pub use system::SystemClock;
pub use test::TestClock;
pub use tokio_clock::TokioClock;

/// A wait that has been started; it owns all it needs.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// The clock that a whole process shares.
pub type SharedClock = Arc<dyn Clock>;

/// Returns the time and wakes sleepers.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now; never earlier than a time it returned before.
    fn now(&self) -> Timestamp;

    /// Ends once [`Clock::now`] has reached `deadline`; at once if it has already.
    fn sleep_until(&self, deadline: Timestamp) -> Sleep;

    /// Ends after `span`.
    fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now().plus(span))
    }
}

//! How a standing executor and its miner come to know each other.
//!
//! A miner's operator draws an [`Invitation`]: an address, the fingerprint of the miner's certificate, and a secret that
//! admits one executor once and not for long. The executor makes a key of its own, dials that address, takes no other
//! certificate than the one invited to, and shows the secret; the miner writes the executor's certificate into its
//! [`Roll`] and the executor keeps a [`Membership`]. From then on each knows the other by its certificate alone.
//!
//! Everything here is small files and values. Sockets are the roles' own.

mod files;
pub mod invitation;
pub mod keys;
pub mod membership;
pub mod roll;

pub use invitation::Invitation;
pub use keys::{KeyError, StoredIdentity};
pub use membership::{Membership, MembershipError};
pub use roll::{Member, Refusal, Roll, RollError};

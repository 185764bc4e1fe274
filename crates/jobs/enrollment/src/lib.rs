//! How a persistent executor and its miner come to know each other.
//!
//! A miner's operator draws an [`Invitation`]: an address, the fingerprint of the miner's certificate, and a secret
//! that admits one executor once and not for long. The executor makes a key of its own, dials that address, takes no
//! other certificate than the one invited to, and shows the secret; the miner writes the executor's certificate into
//! its [`ExecutorRegistry`] and the executor keeps its [`ExecutorCredentials`]. From then on each knows the other by
//! its certificate alone.
//!
//! This crate is small files and values. The sockets belong to the roles.

pub mod credentials;
pub mod executor_registry;
pub mod invitation;
pub mod key_and_certificate;
mod private_files;

pub use credentials::{CredentialsError, ExecutorCredentials};
pub use executor_registry::{
    EnrolledExecutor, EnrollmentRejection, ExecutorRegistry, InvitationTerms, MAX_USES, RegistryError,
};
pub use invitation::Invitation;
pub use key_and_certificate::{KeyError, StoredIdentity};

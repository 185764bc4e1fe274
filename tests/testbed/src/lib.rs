//! The test bed: ports, patience, counts and clusters that the tests of every crate share. It uses no crate of ours, so
//! that a change of one does not build it again.

pub mod database_relay;
pub mod foreign_signature;
pub mod ports;
pub mod slurm;
pub mod tally;
pub mod wait;

pub use database_relay::{Cut, DatabaseRelay};
pub use foreign_signature::sign_as_other_programs_do;
pub use ports::free_address;
pub use wait::{patience, until, wait_for, within};

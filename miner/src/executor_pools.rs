//! A miner's pools of executors. Each pool has a class, a bound on its executors at one time, and an engine that starts
//! them; several pools may have the same class.
//!
//! [`PoolConfig`] is one pool as the operator writes it, [`open`] makes its manager, and [`Pools`] chooses the pool for
//! a lease. A class has as many executors as its pools' engines have places for, as they last reported, and no more
//! than the pools allow.

mod config;
mod open;
mod pools;

pub use config::{EngineKind, PoolConfig};
pub use open::{OpenPoolError, PoolOwner, ask_places, open};
pub use pools::{Pool, PoolSlot, PoolStatus, Pools};

//! What the executor's tests share: a miner that speaks as ComputeHorde's Python miner does, and an image of ours.

pub(crate) mod image;
pub(crate) mod lease;
pub(crate) mod miner;

use muster_executor::Engine;

/// The engine of this machine; `None`, with the reason on stderr, where there is none.
pub(crate) async fn engine() -> Option<Engine> {
    match Engine::connect("").await {
        Ok(engine) => Some(engine),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

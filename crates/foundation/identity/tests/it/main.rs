//! Signatures and wallets that other implementations made, and ours under their eyes.

mod next_release;
mod official_wallet;
mod signed_forms;
mod vectors;

//! Aura, reduced to the one constant that clients read. Blocks are sealed by time or on command, by nobody in
//! particular; but the official client takes the length of a block from `Aura.SlotDuration`.

pub use pallet::*;

#[frame_support::pallet]
#[allow(
    missing_docs,
    reason = "the macro generates public items without documentation"
)]
mod pallet {
    use frame_support::pallet_prelude::*;

    #[pallet::pallet]
    pub struct Pallet<T>(_);

    /// The requirements on the runtime.
    #[pallet::config]
    pub trait Config: frame_system::Config {
        /// Milliseconds per block, as clients should assume them.
        #[pallet::constant]
        type SlotDuration: Get<u64>;
    }
}

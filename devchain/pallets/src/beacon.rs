//! The chain's view of a randomness beacon: it knows which rounds have come, and opens texts that were sealed to them.

/// A randomness beacon.
pub trait Beacon {
    /// The latest round whose time has come.
    fn last_round() -> u64;

    /// Opens a payload that was sealed to a round: `None` before the round's time, then the payload, or nothing where
    /// the bytes are none or were sealed to something else.
    fn open(sealed: &[u8], round: u64) -> Option<Result<Vec<u8>, Closed>>;
}

/// A payload does not open with the pulse of its round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

/// No beacon: no round ever comes.
impl Beacon for () {
    fn last_round() -> u64 {
        0
    }

    fn open(_sealed: &[u8], _round: u64) -> Option<Result<Vec<u8>, Closed>> {
        None
    }
}

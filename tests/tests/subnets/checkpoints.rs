//! Jobs that leave checkpoints go on from the last one that was kept, on another miner, and end as if nothing had
//! happened: a program that counts, and programs that train.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

mod counting;
mod subnet;
mod training;

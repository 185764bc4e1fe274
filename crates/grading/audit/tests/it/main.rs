//! Spot checks from outside the crate: the draw, bundles of evidence, and what the policy does over many days.

mod bundles;
#[cfg(test)]
mod draw;
mod simulated_days;

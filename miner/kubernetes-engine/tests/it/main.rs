//! The engine against a Kubernetes API: recorded answers of a real one, answers that no sound one gives, and, started
//! by `cargo xtask fleets`, a real one with and without nodes.

#[cfg(test)]
mod broken_apis;
#[cfg(test)]
mod nodes;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod recording;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod target;

//! The client of the chain against a real chain and against the official library.

#[cfg(test)]
mod devchain;
mod official_timelock;
#[cfg(test)]
mod support;

//! The unregistered miner through real processes: it serves its one validator, runs the jobs that ask for it and the
//! references of spot checks, and loses nothing when it is killed.

#[cfg(test)]
mod audit_kills;
#[cfg(test)]
mod audits;
#[cfg(test)]
mod cheating_engine;
#[cfg(test)]
mod engine_trial;
#[cfg(test)]
pub(crate) mod engines;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod llama_cpp;
#[cfg(test)]
mod trusted_subnet;

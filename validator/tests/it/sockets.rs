//! One validator over real sockets, with a scripted facilitator, scripted miners, and a chain whose blocks a test
//! makes.

#[cfg(test)]
mod accounts;
#[cfg(test)]
mod attempt_urls;
#[cfg(test)]
mod audit_kills;
#[cfg(test)]
mod audit_runs;
#[cfg(test)]
mod audits;
#[cfg(test)]
mod burns;
#[cfg(test)]
mod capacity;
#[cfg(test)]
mod chain_faults;
#[cfg(test)]
mod collateral;
#[cfg(test)]
mod concurrent_jobs;
#[cfg(test)]
mod contradictions;
#[cfg(test)]
mod convicts;
#[cfg(test)]
pub(crate) mod cross_checks;
#[cfg(test)]
mod facilitator_faults;
#[cfg(test)]
mod false_ids;
#[cfg(test)]
mod faults;
mod fetch_slots;
#[cfg(test)]
mod gateway;
#[cfg(test)]
mod gathering;
#[cfg(test)]
mod grading;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod hostile_pages;
#[cfg(test)]
mod killed;
#[cfg(test)]
mod main_hotkeys;
#[cfg(test)]
mod miner_audit_checks;
#[cfg(test)]
mod operator_pages;
#[cfg(test)]
mod organic;
#[cfg(test)]
mod own_prompts;
#[cfg(test)]
mod pay;
#[cfg(test)]
mod plain_miners;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod reported_answers;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod seeded_engines;
#[cfg(test)]
mod support;
#[cfg(test)]
mod trials;
#[cfg(test)]
mod trusted_miner;
#[cfg(test)]
mod verdict_exchange;
#[cfg(test)]
mod weight_renewal;
#[cfg(test)]
mod weights;

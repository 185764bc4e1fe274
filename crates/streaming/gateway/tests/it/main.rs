//! A gateway between clients that a test plays and sealed sessions that it opens and kills. Sockets, TLS, seals, proofs
//! and the store are the real ones; only the subnet that runs the jobs is the test's.

#[cfg(test)]
mod answer_log;
#[cfg(test)]
mod closing;
#[cfg(test)]
mod engine;
#[cfg(test)]
mod failed_requests;
#[cfg(test)]
mod hidden_proofs;
#[cfg(test)]
mod kept_texts;
#[cfg(test)]
mod nonces;
#[cfg(test)]
mod official;
#[cfg(test)]
mod pseudonyms;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod store;
#[cfg(test)]
mod subnet;
#[cfg(test)]
mod token_counts;
#[cfg(test)]
mod tokenizer_counts;

//! The log of answers: its buckets are closed with signed headers and drawn from, by shares that the headers commit to.

pub(crate) mod keeper;
pub(crate) mod leaves;
pub(crate) mod nonce_key_release;
pub(crate) mod shares;

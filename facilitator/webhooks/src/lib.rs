//! Webhooks: messages about jobs' ends, which a facilitator sends to URLs that users named.
//!
//! [`message`] is the message, its signature and the times of its attempts, without IO. [`store`] keeps the messages in
//! the facilitator's database, where a message becomes due in the transaction of its job's end. [`sender`] sends what
//! is due.

pub mod message;
pub mod sender;
pub mod store;

//! Text for people at a terminal.
//!
//! [`mod@print`] writes lines and tables. [`failure`] is why a command ended badly, and how it is shown. [`job_text`]
//! is a job as text: its steps, its place in a queue, its failure and its receipts. [`job_display`] shows a job while
//! it runs, of whose output [`printed_part`] is here. [`miner_text`] is a miner's machines as text, and [`key_text`]
//! the rights and the end of an API key.
//! [`checkpoint_text`] are the checkpoints of a job, [`completion_text`] is what its program left and used,
//! [`subnet_text`] are the offers of a subnet, and [`trace_text`] is the way of one job across the roles.

pub mod checkpoint_text;
pub mod completion_text;
pub mod failure;
mod failure_hint;
pub mod job_display;
pub mod job_text;
pub mod key_text;
pub mod miner_text;
mod open_line;
pub mod print;
pub mod printed_part;
pub mod subnet_text;
pub mod trace_text;

//! The reference engine for language models of the Llama architecture: serves with a seeded sampler that a replay can
//! check, and scores a given answer in one pass.
//!
//! `model` reads files, `backend` multiplies, `sampler` chooses (in integers, over `noise`),
//! `replay` and `llama_cpp` know how other engines choose, `engine` makes rounds over
//! many texts, `text` turns tokens into words, `api` speaks OpenAI's HTTP, `program` has the
//! arguments.

pub mod api;
pub mod backend;
pub mod engine;
pub mod llama_cpp;
pub mod model;
pub mod noise;
pub mod program;
pub mod replay;
pub mod sampler;
pub mod text;

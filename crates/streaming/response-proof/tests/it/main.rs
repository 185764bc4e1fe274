//! The bytes of signed statements, as a separate reference packs them.

mod answer_log;
mod statements;

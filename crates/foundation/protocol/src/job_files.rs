//! The sources of a job's inputs and the destinations of its outputs, as messages and REST bodies name them.

pub mod relative_path;
pub mod upload;
pub mod volume;

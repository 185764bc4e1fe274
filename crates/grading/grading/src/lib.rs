//! Grading: batches of hardware proofs over the whole subnet, as decisions without a clock, a socket or randomness.
//!
//! Reading order: [`plan`] (which executors are challenged, from a block's hash), [`grade_spec`] (the proofs of a
//! class) with [`thresholds`] (an operator's file of them), [`batch`] (the state machine of one batch),
//! [`fingerprints`] and [`trial_result`] (the result of each proof), [`judgement`] and [`settlement`] (the result of
//! each executor), [`evidence`] (the stored file) with [`seals`] (its signatures) and [`mod@replay`] (judging it
//! again). The proofs and their conversations are in `muster-hardware-proof`; `muster-grading-runner` runs the batches.

pub mod batch;
pub mod evidence;
pub mod fingerprints;
pub mod grade_spec;
pub mod judgement;
pub mod plan;
pub mod replay;
pub mod seals;
pub mod settlement;
pub mod thresholds;
pub mod trial_result;

pub use batch::{Batch, BatchAction, BatchEvent, BatchRules};
pub use evidence::BatchFile;
pub use grade_spec::{GradeSpec, Trial};
pub use judgement::{Judgement, Why};
pub use plan::{Announcement, BatchBounds, BatchPlan, Participant};
pub use replay::replay;

//! Grading: batches of hardware proofs over the whole subnet, as decisions without a clock, a socket or randomness.
//!
//! Reading order: [`batch_plan`] (which executors are challenged, from a block's hash) with [`probe_draw`] (which
//! validator probes unannounced) and [`full_course_draw`] (the sessions that end for a batch), [`grade_spec`] (the
//! proofs of a class) with [`thresholds`] (an operator's file of them), [`batch`] (the state machine of one batch),
//! [`fingerprints`] and [`trial_result`] (the result of each proof), [`judgement`] and [`batch_settlement`] (the result
//! of each executor), [`batch_file`] (the stored file) with [`evidence_signatures`] (its signatures) and
//! [`mod@replay`] (judging it again). The proofs and their conversations are in `muster-hardware-proof`;
//! `muster-grading-runner` runs the batches.

pub mod batch;
pub mod batch_file;
pub mod batch_plan;
pub mod batch_settlement;
pub mod evidence_signatures;
pub mod fingerprints;
pub mod full_course_draw;
pub mod grade_spec;
pub mod judgement;
pub mod probe_draw;
pub mod replay;
pub mod thresholds;
pub mod trial_result;

pub use batch::{Batch, BatchAction, BatchEvent, BatchRules};
pub use batch_file::BatchFile;
pub use batch_plan::{Announcement, BatchBounds, BatchPlan, Participant};
pub use grade_spec::{GradeSpec, Trial};
pub use judgement::{Judgement, Why};
pub use muster_scoring::ObservationKind;
pub use replay::replay;

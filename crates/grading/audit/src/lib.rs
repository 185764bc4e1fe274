//! Spot checks: did the named model really write this answer? Pure: no IO, no clock, no randomness but from seeds.

mod answer_draw;
mod answers_to_alarm;
mod audit_report;
mod audit_share;
mod bundle;
mod bundle_bounds;
mod calibration;
mod canaries;
mod checked_answer;
mod checked_log;
mod client_days;
mod committed_lists;
mod detection_curve;
mod e_process;
pub mod fixed_point;
mod honest_bound;
mod likelihood;
mod list_head;
mod margin_cells;
mod measured_request;
mod missing_answers;
mod nonce_keys;
mod one_answer;
mod opened_text;
mod own_prompt_key;
pub mod own_prompts;
mod own_run;
mod own_scores;
pub mod premise;
mod replay;
mod replay_error;
mod roc;
mod seeded_numbers;
mod test_evidence;
mod verdict;
mod wilson;

pub use answer_draw::{BucketDraw, DrawBlock};
pub use answers_to_alarm::{Detection, DetectionSettings, MedianRange, detect};
pub use audit_report::{AuditReport, report_bundle};
pub use audit_share::{AuditedMiner, DETECTION_ANSWERS, GAIN_PER_MILLE, unvested_answers};
pub use bundle::{
    AnswerEvidence, AuditBundle, AuditOutcome, BUNDLE_FORMAT, BucketEvidence, FalseIds, ListCommitment,
    LoggedClient, MAX_BUNDLE_BYTES, OpenedShare, OpenedText, Origin, ReferenceMachine, SessionEvidence,
    UnprovenAnswer, UnusableReason,
};
pub use calibration::{
    Alternative, CALIBRATION_FORMAT, Calibration, CalibrationError, CalibrationLevel, EngineSampler,
    ExceededPremise, KnownAnswer, MachineRun, REFERENCED_CALIBRATION_FORMAT, ReferenceBuild, SamplerEngine,
    Statistic,
};
pub use canaries::{Canary, CanaryList, OpenedCanary};
pub use client_days::ClientDays;
pub use detection_curve::{CurvePoint, CurveSettings, HonestDays, accuse_honest, draw_curve};
pub use e_process::{ALARM, CONFIRMATION, EProcess, LEAST_LOG2, Restart, SHARES};
pub use honest_bound::HonestBound;
pub use likelihood::{CAP_LOG2, LikelihoodTable};
pub use list_head::{CommittedList, ListHead, OpenedList, SealedList, root_of_lists};
pub use margin_cells::{
    CellCounts, ENTROPY_BINS, ENTROPY_EDGES, MARGIN_BINS, MARGIN_EDGES, MAX_TOKENS, Margin, TokenScore,
};
pub use missing_answers::{
    Delivery, HONEST_MISSING, MISSING_TEST, MissingCause, MissingOutcome, MissingTally, TESTED_MISSING,
};
pub use nonce_keys::{
    MAX_ORDINALS, NoncePeriod, RevealedNonceKey, check_nonce_key, is_derived_nonce, nonce_key,
};
pub use one_answer::{ANSWER_EVIDENCE, AnswerJudge, AnswerJudgement};
pub use opened_text::{AnswerFinding, RescorablePair, digest_of_ids, false_scores, is_signed_response};
pub use own_prompt_key::OwnPromptKey;
pub use own_run::LinkState;
pub use own_scores::{AdoptionForecast, MOST_OWN_SCORES, OWN_EVIDENCE, OwnJudgement, OwnTest, PositionTally};
pub use replay::{AnswerTally, NonceTally, ReplayedBundle, check_evidence, replay, replay_with_bundle};
pub use replay_error::ReplayError;
pub use roc::{RocCurve, RocPoint, RocSettings, draw_roc};
pub use seeded_numbers::SeededNumbers;
pub use test_evidence::{EvidenceCurve, EvidencePoint};
pub use verdict::{
    Publicity, ScoredAnswer, TestOutcome, TestOutcomes, UnprovenReason, Verdict, WHOLE_QUALITY,
};
pub use wilson::{BILLION, RateInterval};

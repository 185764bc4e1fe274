//! Verdicts travel between validators.
//!
//! A conviction that less than half of the stake applies changes nothing of a miner's pay. A validator therefore shows
//! its bundles of evidence on its pages, reads those of the others, and adopts a verdict once its evidence replays and
//! the scores of its own reference convict. Without a reference it follows two further validators that signed so.
//! `docs/audit-bundle.md` describes the signed statements, `docs/adr/0085` the reasons.
//!
//! Reading order: [`statements`], `shown_list` (the page of a validator), `offered_bundle`, `bundle_subject` and
//! `stated_blocks` (a bundle that was read), `header_witness` (who saw its headers in time), `own_judgement` (which
//! answers are scored again), `rescore_budget` (how often references are started), `adoption_rule` and
//! `conviction_life` (all decisions), `exchange` (the only part that waits for anything), `conviction_review` (once a
//! cycle), `pages` and `listing` (what is shown), `self_test` and `forgery` (what a test of the own pipeline shows).

mod adoption_rule;
mod bundle_subject;
mod conviction_life;
mod conviction_review;
mod exchange;
mod forgery;
mod header_witness;
mod listing;
mod offered_bundle;
mod own_judgement;
mod pages;
mod rescore_budget;
mod self_test;
mod shown_list;
mod stated_blocks;
pub mod statements;

pub use adoption_rule::{
    AdoptionRule, Decision, LEAST_ENDORSERS, OfferFacts, Rescoring, VerdictEffect, WaitReason,
    count_endorsers, deadline_of, effect_of,
};
pub use bundle_subject::{SubjectError, check_subject};
pub use conviction_life::{
    ConvictionEnd, ConvictionFacts, ConvictionGround, ConvictionStage, ConvictionStep, Supporters,
};
pub use conviction_review::{end_of_new, review_convictions};
pub use exchange::{ExchangeDeps, FindCalibration, Rescored, VerdictExchange};
pub use forgery::{Forgery, ForgeryTrial, try_forgeries};
pub use listing::{ExchangeView, OfferView, SelfTestView, view_exchange};
pub use offered_bundle::{MAX_OFFERED_BYTES, ReadBundle, last_bucket, read_bundle};
pub use pages::{ExchangePages, FindHeader, page_routes};
pub use self_test::{
    RecordError, SELF_TEST_VALID_DAYS, SelfTestOutcome, SelfTestState, record_self_test, standing_of,
};
pub use shown_list::{MAX_LIST_BYTES, ShownBundle, ShownList, plan_fetches};
pub use stated_blocks::{BlockFault, check_blocks};

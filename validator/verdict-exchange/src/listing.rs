//! The exchange on the status page: others' bundles with their states, and validators' self-tests.

use std::collections::BTreeMap;

use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::Envelope;
use muster_store::StoreError;
use muster_validator_store::{AuditOffer, SecondHeader, Store};
use serde::Serialize;

use crate::self_test::{SelfTestState, standing_of};
use crate::statements::SelfTestStatement;

/// Statements that are looked through for those about the shown bundles.
const MOST_STATEMENTS: u32 = 4_096;

/// The exchange as the status page shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExchangeView {
    /// Others' bundles, the newest first.
    pub offers: Vec<OfferView>,
    /// The newest self-test of each validator that shows one, and those of authors that show none.
    pub self_tests: Vec<SelfTestView>,
    /// Validators that signed two headers of one bucket, the newest first. Their accusations are refused.
    pub second_headers: Vec<SecondHeader>,
}

/// Another validator's bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfferView {
    /// The bundle with its state.
    #[serde(flatten)]
    pub offer: AuditOffer,
    /// The validators that signed that they scored pairs of it again and adopted it.
    pub endorsers: Vec<ValidatorKey>,
}

/// A validator's newest self-test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SelfTestView {
    /// The validator that tested itself.
    pub validator: ValidatorKey,
    /// The worth of the test now.
    pub standing: SelfTestState,
    /// The cheat that was planted; `None` without a test.
    pub kind: Option<String>,
    /// When the test ended.
    pub tested_at: Option<Timestamp>,
    /// The verdict by its name.
    pub verdict: Option<String>,
    /// The bundle from which the verdict follows.
    pub bundle: Option<Digest>,
}

/// Reads what the status page shows, at most `limit` bundles.
///
/// # Errors
/// The database fails.
pub async fn view_exchange(store: &Store, limit: u32, now: Timestamp) -> Result<ExchangeView, StoreError> {
    let offers = store.offers(limit).await?;
    let mut signers: BTreeMap<Digest, Vec<ValidatorKey>> = BTreeMap::new();
    for statement in store.endorsements(MOST_STATEMENTS).await? {
        signers
            .entry(statement.digest)
            .or_default()
            .push(statement.validator);
    }
    let mut tests: BTreeMap<ValidatorKey, Option<SelfTestStatement>> =
        offers.iter().map(|offer| (offer.author, None)).collect();
    for test in store.newest_self_tests().await? {
        // Its signature was checked before it was stored.
        let read = Envelope::from_text(&test.statement).and_then(|envelope| Ok(envelope.statement()?));
        tests.insert(test.validator, read.ok());
    }
    Ok(ExchangeView {
        offers: offers
            .into_iter()
            .map(|offer| OfferView {
                endorsers: signers.get(&offer.digest).cloned().unwrap_or_default(),
                offer,
            })
            .collect(),
        self_tests: tests
            .into_iter()
            .map(|(validator, test)| view_test(validator, test, now))
            .collect(),
        second_headers: store.second_headers(limit).await?,
    })
}

fn view_test(validator: ValidatorKey, test: Option<SelfTestStatement>, now: Timestamp) -> SelfTestView {
    SelfTestView {
        validator,
        standing: standing_of(test.as_ref(), now),
        kind: test.as_ref().map(|test| test.kind.to_string()),
        tested_at: test.as_ref().map(|test| test.tested_at),
        verdict: test.as_ref().map(|test| test.verdict.name().to_owned()),
        bundle: test.as_ref().map(|test| test.bundle),
    }
}

//! Tests of a validator's own pipeline: one that does not convict a cheat that it planted itself convicts nobody else.

use std::time::Duration;

use muster_audit::Verdict;
use muster_identity::Keypair;
use muster_process::SharedClock;
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::Text;
use muster_store::StoreError;
use muster_validator_store::{Store, StoredSelfTest};
use serde::Serialize;

use crate::statements::{MAX_KIND, SelfTestStatement, sign_text};

/// Days for which a self-test counts.
pub const SELF_TEST_VALID_DAYS: u64 = 14;
/// The least time between two self-tests of another validator that are kept.
const LEAST_PAUSE: Duration = Duration::from_secs(3_600);
/// The time by which another validator's clock may be ahead.
const CLOCK_SKEW: Duration = Duration::from_secs(3_600);

/// The result of a test, as the validator that made it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfTestOutcome {
    /// The cheat that was planted, such as `int4 in 10 %`: at most [`MAX_KIND`] bytes.
    pub kind: String,
    /// When the test ended.
    pub tested_at: Timestamp,
    /// The verdict of the pipeline.
    pub verdict: Verdict,
    /// The digest of the bundle from which the verdict follows.
    pub bundle: Digest,
}

/// The worth of a validator's newest self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SelfTestState {
    /// The validator shows none.
    Missing,
    /// It is older than fourteen days, or of a time to come.
    OutOfDate,
    /// The pipeline did not convict the planted cheat.
    NotConvicted,
    /// The pipeline convicted it.
    Convicted,
}

/// The reason why a self-test was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The name of the planted cheat is too long.
    #[error("the name of a planted cheat has at most {MAX_KIND} bytes")]
    Kind,
    /// No chain has answered yet, so the statement can name none.
    #[error("no chain has answered yet: the statement of a self-test names its genesis hash")]
    NoChain,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Signs and stores the statement about a test of this validator's pipeline. The validator's page shows the newest one.
///
/// # Errors
/// The name of the cheat is too long, no chain has answered yet, or the database fails.
pub async fn record_self_test(
    store: &Store,
    keypair: &Keypair,
    netuid: u16,
    test: SelfTestOutcome,
    clock: &SharedClock,
) -> Result<SelfTestStatement, RecordError> {
    let kind = match Text::new(test.kind) {
        Ok(kind) if kind.as_str().len() <= MAX_KIND => kind,
        Ok(_) | Err(_) => return Err(RecordError::Kind),
    };
    let genesis = store.genesis_digest().ok_or(RecordError::NoChain)?;
    let statement = SelfTestStatement {
        genesis,
        netuid,
        validator: ValidatorKey(keypair.hotkey()),
        kind,
        tested_at: test.tested_at,
        verdict: test.verdict,
        bundle: test.bundle,
    };
    let stored = StoredSelfTest {
        validator: statement.validator,
        tested_at: statement.tested_at,
        statement: sign_text(keypair, &statement),
        seen_at: clock.now(),
    };
    store.put_self_test(&stored).await?;
    Ok(statement)
}

/// Whether another validator's statement is kept beside the newest one that is known of it: not one that does not
/// count, and not one that follows another within an hour.
pub(crate) fn is_news(test: &SelfTestStatement, newest: Option<Timestamp>, now: Timestamp) -> bool {
    let is_later = newest.is_none_or(|newest| test.tested_at >= newest.plus(LEAST_PAUSE));
    is_later && standing_of(Some(test), now) != SelfTestState::OutOfDate
}

/// The worth of a validator's newest self-test at a time.
pub fn standing_of(newest: Option<&SelfTestStatement>, now: Timestamp) -> SelfTestState {
    let Some(test) = newest else {
        return SelfTestState::Missing;
    };
    let oldest = now.minus(Duration::from_secs(SELF_TEST_VALID_DAYS * 86_400));
    if test.tested_at < oldest || test.tested_at > now.plus(CLOCK_SKEW) {
        return SelfTestState::OutOfDate;
    }
    match test.verdict {
        Verdict::Convicted => SelfTestState::Convicted,
        Verdict::Suspect | Verdict::Weak | Verdict::Consistent | Verdict::Unproven(_) => {
            SelfTestState::NotConvicted
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;

    use super::*;

    #[test]
    fn a_self_test_counts_for_fourteen_days_if_it_convicted() {
        let now = Timestamp::from_secs(1_800_000_000);
        let test = |days: i64, verdict| SelfTestStatement {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            validator: ValidatorKey(Hotkey::from_bytes([1; 32])),
            kind: Text::new("int4").unwrap(),
            tested_at: Timestamp::from_secs(now.secs() - days * 86_400),
            verdict,
            bundle: Digest::of(b"bundle"),
        };
        let standing = |days, verdict| standing_of(Some(&test(days, verdict)), now);
        assert_eq!(standing_of(None, now), SelfTestState::Missing);
        assert_eq!(standing(14, Verdict::Convicted), SelfTestState::Convicted);
        assert_eq!(standing(15, Verdict::Convicted), SelfTestState::OutOfDate);
        assert_eq!(standing(-1, Verdict::Convicted), SelfTestState::OutOfDate);
        assert_eq!(standing(1, Verdict::Suspect), SelfTestState::NotConvicted);
        let later = test(1, Verdict::Suspect);
        let is_kept = |newest: Option<i64>| {
            let newest = newest.map(|secs| Timestamp::from_secs(later.tested_at.secs() + secs));
            is_news(&later, newest, now)
        };
        assert!(is_kept(None) && is_kept(Some(-3_600)));
        assert!(!is_kept(Some(-3_599)) && !is_kept(Some(0)) && !is_kept(Some(9)));
        assert!(!is_news(&test(15, Verdict::Convicted), None, now));
    }
}

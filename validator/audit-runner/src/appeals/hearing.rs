//! Appeals of miners against verdicts. An open appeal has the validator audit fresh answers of the coldkey and the
//! model: all of them, in sessions that are opened after the appeal, so that nothing of before counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_audit::Verdict;
use muster_identity::verify;
use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{AuditAppeal, Envelope};
use muster_store::columns::{
    parse_column, parse_column_option, read_column, time_column, time_column_option,
};
use muster_store::{During as _, StoreError};
use muster_validator_store::AdoptedAudit;
use serde::Serialize;
use sqlx::any::AnyRow;

use crate::RunnerState;
use crate::appeals::rule::AppealEnd;
use crate::audits::gathering::Subject;
use crate::evidence::assemble::AuditorFacts;
use crate::store::audit_store::{AuditStore, Result};

/// How long fresh answers are audited after an appeal.
pub(crate) const APPEAL_TIME: Duration = Duration::from_secs(86_400);
/// How long a suspect is audited in full and gets no sessions.
pub(crate) const SUSPECT_TIME: Duration = Duration::from_secs(86_400);
/// The time in which appeals about one coldkey and model are counted.
const COUNTED: Duration = Duration::from_secs(7 * 86_400);
/// Appeals about one coldkey and model within that time.
const MAX_APPEALS: usize = 3;
/// The oldest appeal that is heard, and the one whose clock is furthest ahead.
const OLDEST: Duration = Duration::from_secs(7 * 86_400);
const AHEAD: Duration = Duration::from_secs(300);

/// An appeal as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredAppeal {
    /// The digest of the bundle that it is about.
    pub bundle: Digest,
    /// When it was received.
    pub received_at: Timestamp,
    /// The miner that appeals.
    pub miner: MinerKey,
    /// The coldkey that was judged.
    pub coldkey: Hotkey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The reason in the miner's words.
    pub reason: String,
    /// Until when fresh answers are audited.
    pub open_until: Timestamp,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// How it ended: `lifted`, `upheld` or `expired`.
    pub ended: Option<String>,
    /// The bundle of the fresh answers.
    pub fresh_bundle: Option<Digest>,
}

/// Why an appeal is not heard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppealRefusal {
    /// The text is no signed appeal.
    #[error("it is no signed appeal")]
    Unreadable,
    /// It is signed by somebody else.
    #[error("the signature is not the miner's")]
    Unsigned,
    /// It is about another chain or subnet.
    #[error("it is about another chain or subnet")]
    OtherSubnet,
    /// No verdict of the bundle counts.
    #[error("no verdict of that bundle counts here now")]
    NotCounting,
    /// The verdict accuses nobody.
    #[error("the verdict accuses nobody")]
    NoAccusation,
    /// The miner is not one that the verdict is about.
    #[error("the verdict is not about this miner")]
    OtherMiner,
    /// Another validator made the bundle: only its own fresh answers lift its verdict.
    #[error("the verdict is that of validator {0}: appeal there, since only its own fresh answers lift it")]
    OtherAuthor(ValidatorKey),
    /// Its time is wrong.
    #[error("it was signed more than seven days ago, before the verdict, or in the future")]
    OutOfTime,
    /// An appeal about the coldkey and the model is open.
    #[error("an appeal about this owner and model is open until {0}")]
    Open(Timestamp),
    /// There were too many.
    #[error("there were {MAX_APPEALS} appeals about this owner and model within seven days")]
    TooMany,
    /// The validator cannot audit the model.
    #[error("this validator cannot audit the model now")]
    NoAudits,
    /// The chain has not answered yet.
    #[error("the chain has not answered yet: try again")]
    NoChain,
    /// The database fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StoredAppeal {
    /// The answer to the miner in words.
    pub(crate) fn words(&self) -> String {
        format!(
            "fresh answers are audited until {}: keep an executor free for a session of this validator",
            self.open_until
        )
    }

    /// Whether fresh answers are audited at this time.
    pub(crate) fn is_open(&self) -> bool {
        self.ended_at.is_none()
    }

    pub(crate) fn subject(&self) -> Subject {
        Subject {
            coldkey: self.coldkey,
            model: self.model.clone(),
        }
    }
}

/// The bundle that a text appeals against, whoever signed it.
pub(crate) fn bundle_of(text: &str) -> Option<Digest> {
    let envelope = Envelope::<AuditAppeal>::from_text(text).ok()?;
    envelope.statement().ok().map(|appeal| appeal.bundle)
}

/// Reads a signed appeal.
fn read_signed(text: &str) -> std::result::Result<AuditAppeal, AppealRefusal> {
    let envelope = Envelope::<AuditAppeal>::from_text(text).map_err(|_| AppealRefusal::Unreadable)?;
    let appeal = envelope.statement().map_err(|_| AppealRefusal::Unreadable)?;
    if appeal.reason.as_str().len() > muster_response_proof::audit_limits::MAX_APPEAL_REASON {
        return Err(AppealRefusal::Unreadable);
    }
    if !verify(&appeal.miner.0, envelope.signed_bytes(), envelope.signature()) {
        return Err(AppealRefusal::Unsigned);
    }
    Ok(appeal)
}

/// Whether a signed appeal is heard, by the verdicts that count and the appeals of the last days. Returns the verdict
/// that it is about.
fn judge<'a>(
    appeal: &AuditAppeal,
    auditor: &AuditorFacts,
    counting: &'a [AdoptedAudit],
    earlier: &[StoredAppeal],
    now: Timestamp,
) -> std::result::Result<&'a AdoptedAudit, AppealRefusal> {
    if appeal.genesis != auditor.genesis || appeal.netuid != auditor.netuid {
        return Err(AppealRefusal::OtherSubnet);
    }
    let verdict = counting.iter().find(|verdict| verdict.digest == appeal.bundle);
    let verdict = verdict.ok_or(AppealRefusal::NotCounting)?;
    if !Verdict::is_accusation(&verdict.verdict) {
        return Err(AppealRefusal::NoAccusation);
    }
    if !verdict.miners.contains(&appeal.miner) {
        return Err(AppealRefusal::OtherMiner);
    }
    if let Some(author) = verdict.author.filter(|author| *author != auditor.validator) {
        return Err(AppealRefusal::OtherAuthor(author));
    }
    let is_ahead = appeal.at > now.plus(AHEAD);
    // The two clocks may differ.
    let is_early = appeal.at.plus(AHEAD) < verdict.adopted_at;
    if is_ahead || is_early || now.since(appeal.at) > OLDEST {
        return Err(AppealRefusal::OutOfTime);
    }
    let of_subject = || {
        earlier
            .iter()
            .filter(|one| one.coldkey == verdict.coldkey && one.model == verdict.model)
    };
    if let Some(open) = of_subject().find(|one| one.is_open()) {
        return Err(AppealRefusal::Open(open.open_until));
    }
    let counted = of_subject().filter(|one| now.since(one.received_at) < COUNTED);
    if counted.count() >= MAX_APPEALS {
        return Err(AppealRefusal::TooMany);
    }
    Ok(verdict)
}

/// Hears an appeal: from now on fresh answers are audited.
pub(crate) async fn hear_appeal(
    state: &RunnerState,
    text: &str,
) -> std::result::Result<StoredAppeal, AppealRefusal> {
    let appeal = read_signed(text)?;
    let auditor = state.auditor().ok_or(AppealRefusal::NoChain)?;
    let counting = state.adopter.store.counting_audits().await?;
    let now = state.clock.now();
    // One appeal is heard after the other, or two could be open.
    let _turn = state.hearing.lock().await;
    let earlier = state.store.appeals(now.minus(COUNTED)).await?;
    let verdict = match judge(&appeal, &auditor, &counting, &earlier, now) {
        // The same appeal again: the answer was lost.
        Err(AppealRefusal::Open(until)) => {
            let mut open = earlier.into_iter().filter(StoredAppeal::is_open);
            let same = open.find(|one| one.bundle == appeal.bundle && one.miner == appeal.miner);
            return same.ok_or(AppealRefusal::Open(until));
        }
        judged => judged?,
    };
    if state.trusted.is_none() || !state.settings.calibrations.contains_key(&verdict.model) {
        return Err(AppealRefusal::NoAudits);
    }
    let stored = StoredAppeal {
        bundle: appeal.bundle,
        received_at: now,
        miner: appeal.miner,
        coldkey: verdict.coldkey,
        model: verdict.model.clone(),
        reason: appeal.reason.as_str().to_owned(),
        open_until: now.plus(APPEAL_TIME),
        ended_at: None,
        ended: None,
        fresh_bundle: None,
    };
    state.store.insert_appeal(&stored, text).await?;
    tracing::warn!(bundle = %stored.bundle, miner = %stored.miner, coldkey = %stored.coldkey, model = stored.model,
        reason = stored.reason, "a miner appeals: its fresh answers are audited");
    Ok(stored)
}

/// The coldkeys and models whose answers are all audited: those with an open appeal, and suspects of the last day.
pub(crate) fn watched(
    counting: &[AdoptedAudit],
    appeals: &[StoredAppeal],
    now: Timestamp,
) -> BTreeSet<Subject> {
    let suspects = counting
        .iter()
        .filter(|verdict| {
            Verdict::is_accusation(&verdict.verdict) && now.since(verdict.adopted_at) < SUSPECT_TIME
        })
        .map(|verdict| Subject {
            coldkey: verdict.coldkey,
            model: verdict.model.clone(),
        });
    let open = appeals
        .iter()
        .filter(|appeal| appeal.is_open())
        .map(StoredAppeal::subject);
    suspects.chain(open).collect()
}

/// The miners that get no sessions for clients, by model: those of convicted coldkeys, and of suspects for a day.
pub(crate) fn barred(
    counting: &[AdoptedAudit],
    owners: &BTreeMap<MinerKey, Hotkey>,
    now: Timestamp,
) -> BTreeMap<String, BTreeSet<MinerKey>> {
    let mut barred: BTreeMap<String, BTreeSet<MinerKey>> = BTreeMap::new();
    for verdict in counting {
        let is_suspect =
            Verdict::is_accusation(&verdict.verdict) && now.since(verdict.adopted_at) < SUSPECT_TIME;
        let is_convict = Verdict::of_name(&verdict.verdict) == Some(Verdict::Convicted);
        if !is_suspect && !is_convict {
            continue;
        }
        let of_owner = owners
            .iter()
            .filter(|(_, owner)| **owner == verdict.coldkey)
            .map(|(miner, _)| *miner);
        barred
            .entry(verdict.model.clone())
            .or_default()
            .extend(of_owner.chain(verdict.miners.iter().copied()));
    }
    barred
}

/// Since when the answers of a subject are judged: nothing from before an appeal that is open or has lifted a verdict
/// counts any more.
pub(crate) fn judged_since(subject: &Subject, appeals: &[StoredAppeal], window: Timestamp) -> Timestamp {
    let counts = |appeal: &&StoredAppeal| {
        let is_lifted = appeal.ended.as_deref() == Some(AppealEnd::Lifted.name());
        appeal.subject() == *subject && (appeal.is_open() || is_lifted)
    };
    let newest = appeals
        .iter()
        .filter(counts)
        .map(|appeal| appeal.received_at)
        .max();
    newest.map_or(window, |received| window.max(received))
}

impl AuditStore {
    /// Stores an appeal that is heard.
    async fn insert_appeal(&self, appeal: &StoredAppeal, text: &str) -> Result<()> {
        sqlx::query(
            "INSERT INTO audit_appeals (bundle, received_at, miner, coldkey, model, appeal, reason, open_until) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(appeal.bundle.to_string())
        .bind(appeal.received_at.micros())
        .bind(appeal.miner.to_string())
        .bind(appeal.coldkey.to_string())
        .bind(appeal.model.clone())
        .bind(text.to_owned())
        .bind(appeal.reason.clone())
        .bind(appeal.open_until.micros())
        .execute(&self.pool)
        .await
        .during("store an appeal")?;
        Ok(())
    }

    /// The appeals that were received since a time or are open, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn appeals(&self, since: Timestamp) -> Result<Vec<StoredAppeal>> {
        let rows = sqlx::query(
            "SELECT * FROM audit_appeals WHERE received_at >= $1 OR ended_at IS NULL ORDER BY received_at DESC, bundle",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list appeals")?;
        rows.iter().map(appeal_from).collect()
    }

    /// Ends an appeal.
    pub(crate) async fn end_appeal(
        &self,
        appeal: &StoredAppeal,
        end: AppealEnd,
        fresh: Option<Digest>,
        now: Timestamp,
    ) -> Result<()> {
        sqlx::query(
            "UPDATE audit_appeals SET ended_at = $1, ended = $2, fresh_bundle = $3 \
             WHERE bundle = $4 AND received_at = $5 AND ended_at IS NULL",
        )
        .bind(now.micros())
        .bind(end.name())
        .bind(fresh.map(|bundle| bundle.to_string()))
        .bind(appeal.bundle.to_string())
        .bind(appeal.received_at.micros())
        .execute(&self.pool)
        .await
        .during("end an appeal")?;
        tracing::warn!(bundle = %appeal.bundle, miner = %appeal.miner, end = end.name(), "an appeal has ended");
        Ok(())
    }
}

fn appeal_from(row: &AnyRow) -> Result<StoredAppeal> {
    Ok(StoredAppeal {
        bundle: parse_column(row, "bundle")?,
        received_at: time_column(row, "received_at")?,
        miner: parse_column(row, "miner")?,
        coldkey: parse_column(row, "coldkey")?,
        model: read_column(row, "model")?,
        reason: read_column(row, "reason")?,
        open_until: time_column(row, "open_until")?,
        ended_at: time_column_option(row, "ended_at")?,
        ended: read_column(row, "ended")?,
        fresh_bundle: parse_column_option(row, "fresh_bundle")?,
    })
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_response_proof::Text;

    use muster_validator_store::AuditOrigin;

    use super::*;
    use crate::testing::key;

    const NETUID: u16 = 3;

    fn now() -> Timestamp {
        Timestamp::from_secs(1_000_000)
    }

    fn ago(seconds: u64) -> Timestamp {
        now().minus(Duration::from_secs(seconds))
    }

    fn auditor() -> AuditorFacts {
        AuditorFacts {
            genesis: Digest::of(b"genesis"),
            netuid: NETUID,
            validator: ValidatorKey(key(9)),
        }
    }

    fn verdict(name: &str, adopted_at: Timestamp) -> AdoptedAudit {
        AdoptedAudit {
            digest: Digest::of(b"bundle"),
            coldkey: key(1),
            miners: vec![MinerKey(key(2)), MinerKey(key(3))],
            model: "tiny".to_owned(),
            verdict: name.to_owned(),
            quality_per_mille: 0,
            adopted_at,
            origin: AuditOrigin::Own,
            author: None,
            through_bucket: 0,
        }
    }

    fn appeal(at: Timestamp) -> AuditAppeal {
        AuditAppeal {
            genesis: Digest::of(b"genesis"),
            netuid: NETUID,
            bundle: Digest::of(b"bundle"),
            miner: MinerKey(key(2)),
            at,
            reason: Text::new("").unwrap(),
        }
    }

    fn stored(received_at: Timestamp, ended: Option<&str>) -> StoredAppeal {
        StoredAppeal {
            bundle: Digest::of(b"bundle"),
            received_at,
            miner: MinerKey(key(2)),
            coldkey: key(1),
            model: "tiny".to_owned(),
            reason: String::new(),
            open_until: received_at.plus(APPEAL_TIME),
            ended_at: ended.map(|_| received_at.plus(APPEAL_TIME)),
            ended: ended.map(str::to_owned),
            fresh_bundle: None,
        }
    }

    #[test]
    fn an_appeal_is_heard_from_a_miner_of_the_verdict_that_counts_while_none_is_open_and_few_were_made() {
        let counting = [verdict("convicted", ago(1_000))];
        let heard = |appeal: &AuditAppeal, counting: &[AdoptedAudit], earlier: &[StoredAppeal]| {
            let judged = judge(appeal, &auditor(), counting, earlier, now());
            judged.map(|_| ()).map_err(|refusal| refusal.to_string())
        };
        let fine = appeal(ago(10));
        assert_eq!(heard(&fine, &counting, &[]), Ok(()));
        let refused = |appeal: &AuditAppeal, counting: &[AdoptedAudit], earlier: &[StoredAppeal]| {
            heard(appeal, counting, earlier).unwrap_err()
        };
        let elsewhere = AuditAppeal {
            netuid: 4,
            ..fine.clone()
        };
        assert!(refused(&elsewhere, &counting, &[]).contains("another chain"));
        let stranger = AuditAppeal {
            miner: MinerKey(key(8)),
            ..fine.clone()
        };
        assert!(refused(&stranger, &counting, &[]).contains("not about this miner"));
        assert!(refused(&fine, &[], &[]).contains("no verdict of that bundle"));
        assert!(refused(&fine, &[verdict("consistent", ago(1_000))], &[]).contains("accuses nobody"));
        let before = appeal(ago(2_000));
        assert!(refused(&before, &counting, &[]).contains("before the verdict"));
        let ahead = appeal(now().plus(Duration::from_secs(400)));
        assert!(refused(&ahead, &counting, &[]).contains("in the future"));
        assert!(refused(&fine, &counting, &[stored(ago(500), None)]).contains("is open until"));
        let upheld = || stored(ago(90_000), Some("upheld"));
        assert_eq!(heard(&fine, &counting, &[upheld(), upheld()]), Ok(()));
        assert!(refused(&fine, &counting, &[upheld(), upheld(), upheld()]).contains("within seven days"));
    }

    #[test]
    fn an_appeal_against_another_validators_verdict_is_refused_with_its_author() {
        let of = |author: Option<ValidatorKey>| AdoptedAudit {
            author,
            origin: AuditOrigin::Rescored,
            ..verdict("convicted", ago(1_000))
        };
        let heard = |author| {
            judge(&appeal(ago(10)), &auditor(), &[of(author)], &[], now())
                .map(|_| ())
                .map_err(|refusal| refusal.to_string())
        };
        let other = ValidatorKey(key(8));
        let refusal = heard(Some(other)).unwrap_err();
        assert!(refusal.contains(&other.to_string()), "{refusal}");
        assert_eq!(heard(Some(ValidatorKey(key(9)))), Ok(()));
        assert_eq!(heard(None), Ok(()), "of an earlier release");
    }

    #[test]
    fn only_the_miners_own_signature_makes_an_appeal() {
        let signer = Keypair::from_uri("//Miner").unwrap();
        let own = AuditAppeal {
            miner: MinerKey(signer.hotkey()),
            ..appeal(now())
        };
        let signed = |statement: &AuditAppeal| Envelope::new(statement, |bytes| signer.sign(bytes)).to_text();
        assert_eq!(read_signed(&signed(&own)).unwrap(), own);
        assert!(matches!(
            read_signed(&signed(&appeal(now()))),
            Err(AppealRefusal::Unsigned)
        ));
        assert!(matches!(read_signed("?"), Err(AppealRefusal::Unreadable)));
        let long = AuditAppeal {
            reason: Text::new("x".repeat(1_001)).unwrap(),
            ..own
        };
        assert!(matches!(
            read_signed(&signed(&long)),
            Err(AppealRefusal::Unreadable)
        ));
    }

    #[test]
    fn suspects_are_watched_and_barred_for_a_day_and_convicts_barred_while_the_verdict_counts() {
        let owners = BTreeMap::from([
            (MinerKey(key(2)), key(1)),
            (MinerKey(key(5)), key(1)),
            (MinerKey(key(6)), key(7)),
        ]);
        let names = |counting: &[AdoptedAudit]| {
            let barred = barred(counting, &owners, now());
            barred.get("tiny").map_or(0, BTreeSet::len)
        };
        let watched_of =
            |counting: &[AdoptedAudit], appeals: &[StoredAppeal]| watched(counting, appeals, now()).len();
        // The hotkeys of the bundle and the owner's new one.
        assert_eq!(names(&[verdict("suspect", ago(60))]), 3);
        assert_eq!(names(&[verdict("suspect", ago(86_400))]), 0);
        assert_eq!(names(&[verdict("convicted", ago(10 * 86_400))]), 3);
        assert_eq!(names(&[verdict("consistent", ago(60))]), 0);
        assert_eq!(watched_of(&[verdict("suspect", ago(60))], &[]), 1);
        assert_eq!(watched_of(&[verdict("convicted", ago(86_400))], &[]), 0);
        assert_eq!(watched_of(&[], &[stored(ago(60), None)]), 1);
        assert_eq!(watched_of(&[], &[stored(ago(60), Some("lifted"))]), 0);
    }

    #[test]
    fn an_open_or_successful_appeal_ends_what_was_before_and_others_change_nothing() {
        let window = ago(7 * 86_400);
        let subject = stored(now(), None).subject();
        let since = |appeals: &[StoredAppeal]| judged_since(&subject, appeals, window);
        assert_eq!(since(&[]), window);
        assert_eq!(since(&[stored(ago(60), None)]), ago(60));
        assert_eq!(since(&[stored(ago(600), Some("lifted"))]), ago(600));
        assert_eq!(
            since(&[
                stored(ago(600), Some("upheld")),
                stored(ago(700), Some("expired"))
            ]),
            window
        );
        assert_eq!(since(&[stored(ago(8 * 86_400), Some("lifted"))]), window);
        let of_other = StoredAppeal {
            model: "other".to_owned(),
            ..stored(ago(60), None)
        };
        assert_eq!(since(&[of_other]), window);
    }
}

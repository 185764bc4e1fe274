//! Appeals of miners against verdicts. An open appeal has the validator audit fresh answers of the coldkey and the
//! model: all of them, in sessions that are opened after the appeal, so that nothing of before counts.

use std::time::Duration;

use muster_audit::Verdict;
use muster_identity::verify;
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::{AuditAppeal, Envelope};
use muster_store::StoreError;
use muster_validator_store::AdoptedAudit;

use crate::appeals::stored_appeal::StoredAppeal;
use crate::evidence::inputs::AuditorFacts;
use crate::runner_state::RunnerState;

/// How long fresh answers are audited after an appeal.
pub(crate) const APPEAL_TIME: Duration = Duration::from_secs(86_400);
/// The time in which appeals about one coldkey and model are counted.
const COUNTED: Duration = Duration::from_secs(7 * 86_400);
/// Appeals about one coldkey and model within that time.
const MAX_APPEALS: usize = 3;
/// The oldest appeal that is accepted, and the one whose clock is furthest ahead.
const OLDEST: Duration = Duration::from_secs(7 * 86_400);
const AHEAD: Duration = Duration::from_secs(300);

/// Why an appeal is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppealRefusal {
    /// The text is no signed appeal.
    #[error("the document is no signed appeal")]
    Unreadable,
    /// It is signed by somebody else.
    #[error("the signature is not the miner's")]
    Unsigned,
    /// It is about another chain or subnet.
    #[error("the appeal is about another chain or subnet")]
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
    #[error("the appeal was signed more than seven days ago, before the verdict, or in the future")]
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

/// The bundle that a text appeals against, whoever signed it.
pub(crate) fn bundle_of(text: &str) -> Option<Digest> {
    let envelope = Envelope::<AuditAppeal>::from_text(text).ok()?;
    envelope.statement().ok().map(|appeal| appeal.bundle)
}

/// Reads a signed appeal.
fn read_signed(text: &str) -> Result<AuditAppeal, AppealRefusal> {
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

/// Whether a signed appeal is accepted, by the verdicts that count and the appeals of the last days. Returns the
/// verdict that it is about.
fn judge<'a>(
    appeal: &AuditAppeal,
    auditor: &AuditorFacts,
    counting: &'a [AdoptedAudit],
    earlier: &[StoredAppeal],
    now: Timestamp,
) -> Result<&'a AdoptedAudit, AppealRefusal> {
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
pub(crate) async fn hear_appeal(state: &RunnerState, text: &str) -> Result<StoredAppeal, AppealRefusal> {
    let appeal = read_signed(text)?;
    let auditor = state.auditor().ok_or(AppealRefusal::NoChain)?;
    let counting = state.adopter.store.counting_audits().await?;
    let now = state.clock.now();
    // One appeal is judged after the other, or two could be open.
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

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_protocol::MinerKey;
    use muster_response_proof::{Text, seal};

    use muster_validator_store::AuditOrigin;

    use super::*;
    use crate::testing::{ago, key, now, stored_appeal as stored, verdict};

    const NETUID: u16 = 3;

    fn auditor() -> AuditorFacts {
        AuditorFacts {
            genesis: Digest::of(b"genesis"),
            netuid: NETUID,
            validator: ValidatorKey(key(9)),
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
        let signed = |statement: &AuditAppeal| seal(statement, &signer).to_text();
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
}

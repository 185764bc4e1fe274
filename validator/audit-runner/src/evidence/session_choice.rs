//! The sessions that a bundle shows, so that it stays below the length that other validators and miners read. Pure.
//!
//! A bundle shows a session from its first proof on, the audited answers and all others, so not all answers of a week
//! fit. Sessions with audited answers are shown, the newest first. The one with which the room ends is shown from its
//! first proof up to the last audited answer for which there is room.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::Calibration;
use muster_gateway::store::ListedSession;
use muster_response_proof::{Attestation, Envelope};
use muster_verdict_exchange::MAX_OFFERED_BYTES;

/// The fewest bytes that an answer takes in a bundle beside its proof: its place, its path, its origin.
const LEAST_BESIDE_PROOF: u64 = 128;

/// The most bytes of a bundle of this validator's: what other validators read. Miners read more.
pub(crate) fn max_own_bundle() -> usize {
    usize::try_from(MAX_OFFERED_BYTES).unwrap_or(usize::MAX)
}

/// Whether the miner of a session attested what this calibration was measured with. The replay refuses a bundle with
/// any other session.
pub(crate) fn is_of_calibration(attestation: &str, calibration: &Calibration) -> bool {
    let envelope = Envelope::<Attestation>::from_text(attestation).ok();
    let stated = envelope.and_then(|envelope| envelope.statement().ok());
    stated.is_some_and(|stated| {
        let model_fits = stated.model.is_none_or(|model| model == calibration.model);
        stated.image.0 == calibration.engine && model_fits
    })
}

/// The sessions that are read for a bundle: the newest ones with audited answers, then the newest of the `others`,
/// until they take more than a bundle has room for in any case. Both may be in any order.
pub(crate) fn readable_sessions(
    mut listed: Vec<ListedSession>,
    mut others: Vec<ListedSession>,
) -> Vec<ListedSession> {
    listed.sort_by_key(|session| std::cmp::Reverse((session.newest, session.session.0)));
    others.sort_by_key(|session| std::cmp::Reverse((session.newest, session.session.0)));
    listed.append(&mut others);
    let mut taken = 0_u64;
    let has_room = |session: &ListedSession| {
        let begins_within = taken < MAX_OFFERED_BYTES;
        let beside = session.answers.saturating_mul(LEAST_BESIDE_PROOF);
        taken = taken.saturating_add(session.proof_bytes).saturating_add(beside);
        begins_within
    };
    listed.into_iter().take_while(has_room).collect()
}

/// A session as it would stand in a bundle: its proofs in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SizedSession {
    /// Bytes of everything but the proofs.
    pub(crate) frame: usize,
    pub(crate) proofs: Vec<SizedProof>,
}

/// A proof as it would stand in a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizedProof {
    /// Bytes of the proof, with outcome and text if it is an audited answer's.
    pub(crate) bytes: usize,
    /// The bucket in which the answer stands; `None` if the proof is not in the log.
    pub(crate) bucket: Option<u64>,
    pub(crate) is_audited: bool,
}

/// The number of proofs that are shown of each session. The sessions are in the order in which they are shown;
/// `bucket_bytes` has the bytes that each bucket takes once.
pub(crate) fn fit(
    sessions: &[SizedSession],
    bucket_bytes: &BTreeMap<u64, usize>,
    budget: usize,
) -> Vec<usize> {
    let mut shown = vec![0; sessions.len()];
    let mut buckets = BTreeSet::new();
    let mut taken = 0_usize;
    for (session, shown) in sessions.iter().zip(&mut shown) {
        taken = taken.saturating_add(session.frame);
        for (number, proof) in (1_usize..).zip(&session.proofs) {
            let is_new = proof.bucket.filter(|bucket| buckets.insert(*bucket));
            let of_bucket = is_new.and_then(|bucket| bucket_bytes.get(&bucket));
            taken = taken
                .saturating_add(proof.bytes)
                .saturating_add(of_bucket.copied().unwrap_or(0));
            if taken <= budget && proof.is_audited {
                *shown = number;
            }
        }
        if taken > budget {
            break;
        }
        *shown = session.proofs.len();
    }
    shown
}

#[cfg(test)]
mod tests {
    use muster_identity::Keypair;
    use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
    use muster_response_proof::{HashScheme, Price, SessionId, Text, seal};
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn proof(bytes: usize, bucket: u64, is_audited: bool) -> SizedProof {
        SizedProof {
            bytes,
            bucket: Some(bucket),
            is_audited,
        }
    }

    #[test]
    fn the_last_session_with_room_ends_with_an_audited_answer() {
        let newest = SizedSession {
            frame: 10,
            proofs: vec![proof(5, 1, true), proof(5, 1, false)],
        };
        let older = SizedSession {
            frame: 10,
            proofs: vec![
                proof(5, 1, false),
                proof(5, 2, true),
                proof(5, 2, false),
                proof(5, 2, true),
            ],
        };
        let bucket_bytes = BTreeMap::from([(1, 7), (2, 8)]);
        let all = [newest.clone(), older.clone(), newest];
        let fits = |budget| fit(&all, &bucket_bytes, budget);
        assert_eq!(fits(1_000), [2, 4, 2]);
        // 27 for the newest, then 10 + 5 + 13 for the older one up to its first audited answer.
        assert_eq!(fits(27), [2, 0, 0]);
        assert_eq!(fits(54), [2, 0, 0]);
        assert_eq!(fits(55), [2, 2, 0]);
        assert_eq!(fits(64), [2, 2, 0]);
        assert_eq!(fits(65), [2, 4, 0]);
        assert_eq!(fits(0), [0, 0, 0]);
    }

    #[test]
    fn only_sessions_that_attest_the_image_and_the_model_of_the_calibration_are_shown() {
        let digest = |text: &str| Digest::of(text.as_bytes());
        let calibration: Calibration = serde_json::from_value(json!({
            "format": "muster/audit-calibration/1", "statistic": "margin", "model": digest("weights"),
            "engine": digest("image"), "arguments": digest(""), "machines": [], "alternatives": [],
        }))
        .unwrap();
        let keypair = Keypair::from_uri("//Miner").unwrap();
        let attested = |image: &str, model: Option<&str>| {
            let text = |text: &str| Text::new(text).unwrap();
            let attestation = Attestation {
                session: SessionId(Uuid::from_u128(1)),
                session_key: keypair.hotkey(),
                job: JobId::from_uuid(Uuid::from_u128(2)),
                attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
                miner: MinerKey(keypair.hotkey()),
                audience: ValidatorKey(keypair.hotkey()),
                server_certificate: digest("server"),
                client_certificate: digest("client"),
                executor: text("executor"),
                address: text("10.0.0.1:443"),
                image: ImageId(digest(image)),
                model: model.map(digest),
                scheme: HashScheme::RawHttp,
                price: Price { input: 1, output: 2 },
                not_before: Timestamp::from_secs(1),
                not_after: Timestamp::from_secs(2),
            };
            let envelope = seal(&attestation, &keypair);
            is_of_calibration(&envelope.to_text(), &calibration)
        };
        assert!(attested("image", None) && attested("image", Some("weights")));
        assert!(!attested("image", Some("other weights")));
        assert!(!attested("the image before", None));
        assert!(!is_of_calibration("no attestation", &calibration));
    }

    #[test]
    fn the_newest_sessions_are_read_until_no_bundle_has_room_for_more() {
        let listed = |newest: i64, proof_bytes| ListedSession {
            session: SessionId(Uuid::from_u128(u128::try_from(newest).unwrap())),
            attestation: String::new(),
            answers: 1,
            proof_bytes,
            newest: Timestamp::from_secs(newest),
        };
        let half = MAX_OFFERED_BYTES / 2;
        let read = readable_sessions(
            vec![listed(1, 1), listed(4, half), listed(2, half), listed(3, 9)],
            vec![listed(9, 1)],
        );
        let newest: Vec<_> = read.iter().map(|one| one.newest).collect();
        assert_eq!(newest, [4, 3, 2].map(Timestamp::from_secs));
        let huge = readable_sessions(vec![listed(1, 1), listed(2, 9 * half)], Vec::new());
        assert_eq!(huge.len(), 1, "one is read in any case");
        let both = readable_sessions(vec![listed(2, 1), listed(3, 1)], vec![listed(9, 1), listed(1, 1)]);
        let newest: Vec<_> = both.iter().map(|one| one.newest).collect();
        assert_eq!(
            newest,
            [3, 2, 9, 1].map(Timestamp::from_secs),
            "those with audited answers come first"
        );
    }

    proptest! {
        #[test]
        fn shown_answers_fit_the_budget_and_begin_each_session(
            sessions in proptest::collection::vec(
                (0_usize..20, proptest::collection::vec((1_usize..50, 0_u64..6, any::<bool>()), 0..12)),
                0..8,
            ),
            budget in 0_usize..1_500,
        ) {
            let bucket_bytes: BTreeMap<u64, usize> = (0..6).map(|bucket| (bucket, 11)).collect();
            let sessions: Vec<SizedSession> = sessions
                .into_iter()
                .map(|(frame, proofs)| SizedSession {
                    frame,
                    proofs: proofs
                        .into_iter()
                        .map(|(bytes, bucket, is_audited)| proof(bytes, bucket, is_audited))
                        .collect(),
                })
                .collect();
            let shown = fit(&sessions, &bucket_bytes, budget);
            let (mut bytes, mut buckets) = (0, BTreeSet::new());
            for (session, shown) in sessions.iter().zip(&shown).filter(|(_, shown)| **shown > 0) {
                bytes += session.frame;
                for proof in &session.proofs[..*shown] {
                    bytes += proof.bytes;
                    buckets.extend(proof.bucket);
                }
            }
            prop_assert!(bytes + 11 * buckets.len() <= budget);
            // A whole session is never behind one that is cut.
            let cut = shown.iter().zip(&sessions).position(|(shown, session)| *shown < session.proofs.len());
            if let Some(cut) = cut {
                prop_assert!(shown[cut + 1..].iter().all(|shown| *shown == 0));
            }
        }
    }
}

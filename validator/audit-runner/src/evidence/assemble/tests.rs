//! The evidence of a run and its bounds.

use muster_audit::{BucketDraw, Canary, CanaryList, Margin};
use muster_gateway::store::StoredBucket;
use muster_identity::Keypair;
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::{BucketHeader, BucketNumber, LeafTree};
use serde_json::json;

use super::*;
use crate::evidence::inputs::{AuditorFacts, DrawnBucket, MissingProof};
use crate::log::shares::StoredShare;
use crate::testing::{answer, key};

/// One bucket with a session of every miner, each with three others' proofs and `answers` answers, of which every
/// third is drawn and scored.
fn inputs(miners: u8, answers: u64) -> EvidenceInputs {
    let keypair = Keypair::from_uri("//Validator").unwrap();
    let header = BucketHeader {
        genesis: Digest::of(b"genesis"),
        netuid: 1,
        validator: ValidatorKey(keypair.hotkey()),
        bucket: BucketNumber(4),
        answers: u64::from(miners) * answers,
        root: Digest::of(b""),
        previous: Digest::of(b""),
        shares: u64::from(miners),
        share_root: Digest::of(b""),
        canaries: Digest::of(b""),
    };
    let (_, draw) = BucketDraw::prove(&keypair, &header, &Digest::of(b"block"));
    let sessions: Vec<WholeSession> = (1..=miners)
        .map(|miner| WholeSession {
            miner: MinerKey(key(miner)),
            attestation: answer(miner, 3).attestation,
            unproven: (0..=answers)
                .step_by(7)
                .map(|after| MissingProof {
                    bucket: 4,
                    client: Digest::of(&after.to_be_bytes()),
                    after,
                })
                .collect(),
            newest_unproven: None,
            behind_gap: Vec::new(),
            answers: (3..3 + answers)
                .map(|sequence| LoggedAnswer {
                    is_drawn: sequence % 3 == 0,
                    position: u64::from(miner - 1) * answers + sequence - 3,
                    ..answer(miner, sequence)
                })
                .collect(),
            others: vec!["other proof".to_owned(); 3],
        })
        .collect();
    let all = || sessions.iter().flat_map(|session| &session.answers);
    let token = TokenScore {
        margin: Margin::Micronats(7),
        entropy: 1_500,
    };
    let scored = || Some(ReferenceOutcome::Scored(vec![token; 40]));
    let share = |miner| StoredShare {
        miner: MinerKey(key(miner)),
        model: "tiny".to_owned(),
        ppm: 300_000,
    };
    let bucket = DrawnBucket {
        stored: StoredBucket {
            bucket: BucketNumber(4),
            answers: header.answers,
            header: "header".repeat(50),
            shares: String::new(),
            canary_list: Digest::of(b""),
            closed_at: Timestamp::from_secs(1),
            draw: None,
        },
        shares: (1..=miners).map(share).collect(),
        block_hash: Digest::of(b"block"),
        draw,
        tree: LeafTree::new(all().map(|answer| Digest::of(answer.id.as_bytes())).collect()),
    };
    let none = Digest::of(b"");
    let calibration = json!({
        "format": "muster/audit-calibration/1", "statistic": "margin", "model": none, "engine": none,
        "arguments": none, "machines": [], "alternatives": [],
    });
    EvidenceInputs {
        auditor: AuditorFacts {
            genesis: header.genesis,
            netuid: 1,
            validator: header.validator,
        },
        coldkey: key(9),
        model: "tiny".to_owned(),
        calibration: serde_json::from_value(calibration).unwrap(),
        unseeded: None,
        references: Vec::new(),
        outcomes: all()
            .filter(|answer| answer.is_drawn)
            .map(|answer| (answer.id.clone(), [scored(), scored()]))
            .collect(),
        sessions,
        buckets: BTreeMap::from([(4, bucket)]),
        canaries: BTreeMap::new(),
        commitments: Vec::new(),
        nonce_keys: Vec::new(),
        words: BTreeMap::new(),
    }
}

#[test]
fn a_bundle_is_never_longer_than_it_may_be_and_shows_the_first_sessions() {
    let inputs = inputs(3, 30);
    let whole = assemble(&inputs, usize::MAX).unwrap();
    let length = whole.to_text().len();
    assert_eq!(whole.sessions.len(), 3);
    assert_eq!(
        assemble(&inputs, length + 64).unwrap(),
        whole,
        "little room is lost"
    );
    let mut shown_before = 0;
    for most in (0..=length).step_by(997) {
        let cut = assemble(&inputs, most).unwrap();
        let text = cut.to_text();
        assert!(
            cut.sessions.is_empty() || text.len() <= most,
            "{} of {most}",
            text.len()
        );
        for (session, whole) in cut.sessions.iter().zip(&whole.sessions) {
            assert!(whole.answers.starts_with(&session.answers) && whole.others.starts_with(&session.others));
            // Missing answers are shown as far as one that ended later is, or with the whole session.
            let ended = u64::try_from(session.answers.len()).unwrap();
            let before = whole.unproven.iter().filter(|one| one.after < ended);
            assert!(session == whole || session.unproven.iter().eq(before));
        }
        // Each bundle ends with an audited answer, or whole sessions.
        if let Some(last) = cut.sessions.last().filter(|last| last.answers.len() < 30) {
            assert!(last.answers.last().unwrap().outcome.is_some());
        }
        let shown: usize = cut.sessions.iter().map(|session| session.answers.len()).sum();
        assert!(shown >= shown_before, "more room shows no less");
        let miners: BTreeSet<MinerKey> = inputs.sessions[..cut.sessions.len()]
            .iter()
            .map(|session| session.answers[0].miner)
            .collect();
        assert_eq!(cut.miners, miners.into_iter().collect::<Vec<_>>());
        shown_before = shown;
    }
    assert!(shown_before > 30, "{shown_before}");
}

#[test]
fn the_words_of_users_are_opened_to_nobody() {
    let words = |request: Option<&str>| OpenedText {
        prompt: vec![5],
        output: vec![7],
        request: request.map(str::to_owned),
        response: None,
    };
    let opened = CanaryList::new(vec![Canary {
        salt: [1; 32],
        request: b"{}".to_vec(),
    }]);
    let canary = Origin::Canary(opened.open(0).unwrap());
    assert_eq!(open_words(&Origin::User, &words(Some("e30="))), None);
    assert_eq!(open_words(&Origin::Consenting, &words(None)), None);
    assert_eq!(
        open_words(&Origin::Consenting, &words(Some("e30="))),
        Some(words(Some("e30=")))
    );
    assert_eq!(open_words(&canary, &words(Some("e30="))), Some(words(None)));
}

#[test]
fn the_keys_of_an_answers_own_period_and_of_the_one_before_are_shown() {
    let ended_in = |bucket| {
        let mut one = answer(1, 0);
        one.bucket.0 = bucket;
        one
    };
    let periods = |buckets: &[u64]| {
        let answers: Vec<LoggedAnswer> = buckets.iter().map(|bucket| ended_in(*bucket)).collect();
        let periods = nonce_periods(answers.iter());
        periods.into_iter().map(|period| period.0).collect::<Vec<u64>>()
    };
    assert_eq!(periods(&[0, 11]), [0]);
    assert_eq!(periods(&[12, 40, 41]), [0, 1, 2, 3]);
    assert_eq!(periods(&[]), [0_u64; 0]);
}

#[test]
fn a_response_is_shown_where_its_ids_are_false_and_as_long_as_there_is_room() {
    let words = |output: &[u32], response: Option<&str>| OpenedText {
        prompt: output.to_vec(),
        output: output.to_vec(),
        request: None,
        response: response.map(str::to_owned),
    };
    let false_ids = AuditOutcome::FalseIds(vec![Some(FalseIds::Text), None]);
    let scored = AuditOutcome::Scored(vec![Some(Vec::new()), None]);
    let mut room = 9;
    let response = Some(words(&[], Some("e30=")));
    assert_eq!(
        show_words(words(&[7], Some("e30=")), &false_ids, &mut room),
        response
    );
    assert_eq!(
        show_words(words(&[], Some("e30=")), &false_ids, &mut room),
        response
    );
    assert_eq!(room, 1);
    assert_eq!(show_words(words(&[7], Some("e30=")), &false_ids, &mut room), None);
    assert_eq!(show_words(words(&[7], None), &false_ids, &mut room), None);
    let ids = Some(words(&[7], None));
    assert_eq!(show_words(words(&[7], Some("e30=")), &scored, &mut room), ids);
    let unusable = AuditOutcome::Unusable(UnusableReason::TruncatedBody);
    assert_eq!(show_words(words(&[], None), &unusable, &mut room), None);
}

#[test]
fn an_outcome_has_the_scores_of_whoever_scored_or_one_reason() {
    let died = || Some(ReferenceOutcome::Unusable(UnusableReason::ReferenceDied));
    let scored = || Some(ReferenceOutcome::Scored(Vec::new()));
    let unusable = AuditOutcome::Unusable;
    assert_eq!(outcome_of(None), unusable(UnusableReason::NotAudited));
    assert_eq!(
        outcome_of(Some(&[None, None])),
        unusable(UnusableReason::NotAudited)
    );
    assert_eq!(
        outcome_of(Some(&[died(), None])),
        unusable(UnusableReason::ReferenceDied)
    );
    let one = AuditOutcome::Scored(vec![None, Some(Vec::new())]);
    assert_eq!(outcome_of(Some(&[died(), scored()])), one);
    // A reference that found the ids true goes before one that did not.
    let false_ids = || Some(ReferenceOutcome::FalseIds(FalseIds::Prompt));
    assert_eq!(outcome_of(Some(&[false_ids(), scored()])), one);
    let first = AuditOutcome::FalseIds(vec![Some(FalseIds::Prompt), None]);
    assert_eq!(outcome_of(Some(&[false_ids(), died()])), first);
}

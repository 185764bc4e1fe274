//! The tables of the audit check, on every engine.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::time::Duration;

use muster_audit_check::evidence::{BundleOpinion, ReadBundle};
use muster_audit_check::header_check::{CheckedHeader, CheckedLeaf};
use muster_audit_check::{AuditCheckStore, Finding, FindingKind};
use muster_protocol::wire::audits::{
    AppealAnswer, HeaderNotice, LeafOutcome, SessionProofs, SignedProof, VerdictNotice,
};
use muster_protocol::{AttemptId, Digest, Hotkey, Timestamp, ValidatorKey};
use muster_response_proof::{BucketHeader, BucketNumber, SessionId};
use muster_store::testing::{migrations_in, stores};
use uuid::Uuid;

const VALIDATOR: ValidatorKey = ValidatorKey(Hotkey::from_bytes([1; 32]));
const OTHER: ValidatorKey = ValidatorKey(Hotkey::from_bytes([2; 32]));

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(1_000_000 + seconds)
}

fn session() -> SessionId {
    SessionId(Uuid::from_u128(5))
}

fn checked(bucket: u64, numbers: &[u64]) -> (HeaderNotice, CheckedHeader) {
    let notice = HeaderNotice {
        header: format!("header {bucket}"),
        between: vec![],
        own: u64::try_from(numbers.len()).unwrap(),
        leaves: vec![],
    };
    let leaf = |(position, number): (u64, &u64)| CheckedLeaf {
        session: session(),
        sequence: *number,
        proof: Digest::of(&number.to_be_bytes()),
        model: "tiny".to_owned(),
        position,
    };
    let header = BucketHeader {
        genesis: Digest::of(b""),
        netuid: 1,
        validator: VALIDATOR,
        bucket: BucketNumber(bucket),
        answers: notice.own,
        root: Digest::of(b""),
        previous: Digest::of(b""),
        shares: 0,
        share_root: Digest::of(b""),
        canaries: Digest::of(b""),
    };
    let checked = CheckedHeader {
        header,
        digest: Digest::of(notice.header.as_bytes()),
        leaves: (0..).zip(numbers).map(leaf).collect(),
        findings: vec![],
    };
    (notice, checked)
}

fn verdict(bundle: u8, since: Timestamp) -> VerdictNotice {
    VerdictNotice {
        bundle: Digest::of(&[bundle]),
        bytes: 3,
        verdict: "suspect".to_owned(),
        model: "tiny".to_owned(),
        quality_per_mille: 500,
        since,
    }
}

async fn each(story: impl AsyncFn(AuditCheckStore)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    for test in stores(&migrations_in(folder)).await.unwrap() {
        story(AuditCheckStore::new(test.pool.clone())).await;
    }
}

#[tokio::test]
async fn answers_without_a_place_are_found_beside_the_later_ones_of_their_session() {
    each(async |store| {
        let proof = |number: u64| SignedProof {
            digest: Digest::of(&number.to_be_bytes()),
            is_answer: number != 2,
            at: at(i64::try_from(number).unwrap()),
        };
        let told = SessionProofs {
            job_uuid: AttemptId::from_uuid(Uuid::from_u128(1)),
            session: session().to_string(),
            validator: VALIDATOR,
            first: 0,
            proofs: (0..5).map(proof).collect(),
        };
        store.put_proofs(&told).await.unwrap();
        store.put_proofs(&told).await.unwrap();
        let (notice, header) = checked(7, &[0, 3]);
        store
            .put_header(VALIDATOR, &notice, &header, at(10))
            .await
            .unwrap();
        store
            .put_header(VALIDATOR, &notice, &header, at(11))
            .await
            .unwrap();
        let unlisted = store.unlisted(VALIDATOR, at(0)).await.unwrap();
        let rows: Vec<_> = unlisted.iter().map(|one| (one.sequence, one.later_in)).collect();
        assert_eq!(rows, [(1, Some(7)), (4, None)]);
        assert_eq!(store.unlisted(OTHER, at(0)).await.unwrap(), []);
        let last = store.last_header(VALIDATOR).await.unwrap().unwrap();
        assert_eq!((last.bucket, last.digest), (7, header.digest));
        assert_eq!(store.header(VALIDATOR, 7).await.unwrap().unwrap().1, "header 7");
        let (own, place) = store.known_of(VALIDATOR, &header.leaves[1]).await.unwrap();
        assert_eq!((own, place), (Some(header.leaves[1].proof), Some((7, 1))));
        assert!(!store.is_full(VALIDATOR).await.unwrap());
        assert_eq!(store.leaves(VALIDATOR, 7).await.unwrap().len(), 2);

        assert_eq!(store.unrevealed(VALIDATOR, at(11)).await.unwrap(), [7]);
        let outcome = (1, LeafOutcome::Scored { tokens: 8, off: 1 });
        store.put_outcomes(VALIDATOR, 7, [outcome], at(20)).await.unwrap();
        assert!(store.unrevealed(VALIDATOR, at(30)).await.unwrap().is_empty());
        let [log] = store.log_counts().await.unwrap().try_into().unwrap();
        assert_eq!((log.headers, log.revealed, log.newest), (1, 1, 7));
        assert_eq!((log.answers, log.audited), (2, 1));
    })
    .await;
}

#[tokio::test]
async fn findings_are_kept_once_and_go_when_their_answer_comes_and_beyond_a_bound() {
    each(async |store| {
        let missing = format!("answer 1 of session {}", session());
        let finding = |about: &str| Finding::new(FindingKind::Withheld, about, "words");
        let new = store
            .put_findings(VALIDATOR, vec![finding(&missing)], at(1))
            .await
            .unwrap();
        assert_eq!(new.len(), 1);
        let again = store
            .put_findings(VALIDATOR, vec![finding(&missing)], at(2))
            .await
            .unwrap();
        assert_eq!(again, []);
        let (notice, header) = checked(8, &[1]);
        store
            .put_header(VALIDATOR, &notice, &header, at(3))
            .await
            .unwrap();
        assert_eq!(store.findings().await.unwrap(), []);
        for number in 0..1_005 {
            let found = vec![finding(&format!("answer {number}"))];
            store.put_findings(VALIDATOR, found, at(number)).await.unwrap();
        }
        let findings = store.findings().await.unwrap();
        assert_eq!(findings[0].about, "answer 1004");
        let oldest = store
            .put_findings(VALIDATOR, vec![finding("answer 4")], at(0))
            .await
            .unwrap();
        assert_eq!(oldest.len(), 1, "it was dropped for its age");
    })
    .await;
}

#[tokio::test]
async fn verdicts_and_bundles_are_bounded_and_an_appeal_waits_for_its_answer() {
    each(async |store| {
        let read = ReadBundle {
            opinion: BundleOpinion::Agrees,
            subnet: Some((Digest::of(b"genesis"), 12)),
            headers: Vec::new(),
        };
        for bundle in 0..70 {
            let told = at(i64::from(bundle));
            let body = Some(format!("bundle {bundle}"));
            store
                .put_verdict(VALIDATOR, &verdict(bundle, told), &read, body, told)
                .await
                .unwrap();
        }
        let verdicts = store.verdicts().await.unwrap();
        assert_eq!(verdicts.len(), 64);
        assert_eq!(verdicts.iter().filter(|verdict| verdict.has_bundle).count(), 8);
        let newest = verdicts.first().unwrap();
        assert_eq!((newest.bundle, newest.subnet), (Digest::of(&[69]), read.subnet));
        assert_eq!(
            store.bundle(newest.bundle).await.unwrap().as_deref(),
            Some("bundle 69")
        );
        assert_eq!(store.bundle(Digest::of(&[10])).await.unwrap(), None);

        assert!(
            !store
                .put_appeal(OTHER, newest.bundle, "signed", at(80))
                .await
                .unwrap()
        );
        assert!(
            store
                .put_appeal(VALIDATOR, newest.bundle, "signed", at(80))
                .await
                .unwrap()
        );
        assert_eq!(store.unanswered_appeals(VALIDATOR).await.unwrap(), ["signed"]);
        assert_eq!(
            store.unanswered_appeals(OTHER).await.unwrap(),
            Vec::<String>::new()
        );
        let answer = AppealAnswer {
            bundle: newest.bundle,
            is_open: false,
            words: "no".to_owned(),
        };
        store.put_appeal_answer(VALIDATOR, &answer).await.unwrap();
        assert_eq!(
            store.unanswered_appeals(VALIDATOR).await.unwrap(),
            Vec::<String>::new()
        );
        let told = store.verdicts().await.unwrap();
        assert_eq!(told[0].answer.as_deref(), Some("no"));
        assert_eq!(told[0].appealed_at, Some(at(80)));
        // The verdict is sent once more: the appeal stays.
        let again = at(80).plus(Duration::from_secs(5));
        store
            .put_verdict(VALIDATOR, &verdict(69, at(69)), &read, None, again)
            .await
            .unwrap();
        assert_eq!(store.verdicts().await.unwrap()[0].answer.as_deref(), Some("no"));
    })
    .await;
}

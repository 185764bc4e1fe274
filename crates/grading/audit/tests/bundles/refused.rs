//! A bundle in which anything was altered has no verdict, and says why.

use muster_audit::{
    AuditBundle, AuditOutcome, Calibration, Origin, ReplayError, judge_by, replay, rescorable_pairs,
};
use muster_identity::Keypair;
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::{BucketHeader, Envelope};

use crate::support::{Prompt, World, canaries, given};

fn bundle() -> AuditBundle {
    World::new("int4", 1).bundle(&given(20, Prompt::Canary, |_| true))
}

fn refused(alter: impl Fn(&mut AuditBundle)) -> ReplayError {
    let mut bundle = bundle();
    alter(&mut bundle);
    replay(&bundle.to_text()).unwrap_err()
}

macro_rules! assert_refused {
    ($alter:expr, $pattern:pat) => {
        let error = refused($alter);
        assert!(matches!(error, $pattern), "{error:?}");
    };
}

#[test]
fn other_texts_formats_and_references_are_refused() {
    assert!(matches!(replay("{}").unwrap_err(), ReplayError::Text(_)));
    assert_refused!(|bundle| bundle.format.push('0'), ReplayError::Format);
    assert_refused!(|bundle| bundle.calibration.format.clear(), ReplayError::Format);
    assert_refused!(|bundle| bundle.references.truncate(1), ReplayError::References);
    let same = |bundle: &mut AuditBundle| bundle.references[1] = bundle.references[0].clone();
    assert_refused!(same, ReplayError::References);
    let other = |bundle: &mut AuditBundle| bundle.references[0].engine = Digest::of(b"another");
    assert_refused!(other, ReplayError::References);
}

#[test]
fn headers_draws_and_shares_are_the_validators() {
    let by_another = |bundle: &mut AuditBundle| {
        let envelope = Envelope::<BucketHeader>::from_text(&bundle.buckets[1].header).unwrap();
        let other = Keypair::from_seed([7; 32]);
        let header = envelope.statement().unwrap();
        bundle.buckets[1].header = Envelope::new(&header, |bytes| other.sign(bytes)).to_text();
    };
    assert_refused!(by_another, ReplayError::Header { bucket: 1 });
    assert_refused!(|bundle| bundle.netuid = 13, ReplayError::Header { bucket: 4_000 });
    assert_refused!(
        |bundle| bundle.buckets.swap(0, 1),
        ReplayError::Header { bucket: 4_000 }
    );
    let block = |bundle: &mut AuditBundle| bundle.buckets[2].block_hash = Digest::of(b"a luckier block");
    assert_refused!(block, ReplayError::Draw { bucket: 4_002 });
    let draw = |bundle: &mut AuditBundle| bundle.buckets[2].draw = bundle.buckets[1].draw;
    assert_refused!(draw, ReplayError::Draw { bucket: 4_002 });
    assert_refused!(
        |bundle| bundle.buckets[0].shares[0].ppm = 1,
        ReplayError::Share { bucket: 4_000 }
    );
    assert_refused!(
        |bundle| bundle.buckets[0].shares.clear(),
        ReplayError::Share { bucket: 4_000 }
    );
}

#[test]
fn sessions_are_whole_and_signed() {
    let miner = |bundle: &mut AuditBundle| bundle.miners = vec![MinerKey(bundle.validator.0)];
    assert_refused!(miner, ReplayError::Attestation { place: 0 });
    let model = |bundle: &mut AuditBundle| bundle.calibration.model = Digest::of(b"another");
    assert_refused!(model, ReplayError::Attestation { place: 0 });
    let gap = |bundle: &mut AuditBundle| drop(bundle.sessions[0].answers.remove(5));
    assert_refused!(gap, ReplayError::Proof { sequence: 5, .. });
    let late = |bundle: &mut AuditBundle| drop(bundle.sessions[0].answers.remove(0));
    assert_refused!(late, ReplayError::Proof { sequence: 0, .. });
    let again = |bundle: &mut AuditBundle| {
        let session = bundle.sessions[0].clone();
        bundle.sessions.push(session);
    };
    assert_refused!(again, ReplayError::Leaf { sequence: 0, .. });
}

#[test]
fn leaves_stand_where_the_bundle_says() {
    let rao = |bundle: &mut AuditBundle| bundle.sessions[0].answers[3].earned += 1;
    assert_refused!(rao, ReplayError::Leaf { sequence: 3, .. });
    let position = |bundle: &mut AuditBundle| bundle.sessions[0].answers[3].position += 1;
    assert_refused!(position, ReplayError::Leaf { sequence: 3, .. });
    let path = |bundle: &mut AuditBundle| bundle.sessions[0].answers[3].path.clear();
    assert_refused!(path, ReplayError::Leaf { sequence: 3, .. });
    assert_refused!(
        |bundle| drop(bundle.buckets.remove(0)),
        ReplayError::Leaf { sequence: 0, .. }
    );
}

#[test]
fn prompts_are_those_of_the_committed_list_each_once() {
    let other = |bundle: &mut AuditBundle| {
        let opened = canaries(20).open(9).unwrap();
        bundle.sessions[0].answers[3].origin = Origin::Canary(opened);
    };
    assert_refused!(other, ReplayError::Canary { sequence: 3, .. });
    let of_another_list = |bundle: &mut AuditBundle| {
        let opened = canaries(19).open(3).unwrap();
        bundle.sessions[0].answers[3].origin = Origin::Canary(opened);
    };
    assert_refused!(of_another_list, ReplayError::Canary { sequence: 3, .. });
}

#[test]
fn scores_are_of_the_tokens_that_the_proof_states() {
    let fewer = |bundle: &mut AuditBundle| {
        if let Some(AuditOutcome::Scored(scores)) = &mut bundle.sessions[0].answers[3].outcome {
            scores[0].as_mut().unwrap().pop();
        }
    };
    assert_refused!(fewer, ReplayError::TokenCount { sequence: 3, .. });
    let third = |bundle: &mut AuditBundle| {
        if let Some(AuditOutcome::Scored(scores)) = &mut bundle.sessions[0].answers[3].outcome {
            scores.push(None);
        }
    };
    assert_refused!(third, ReplayError::References);
}

#[test]
fn words_are_those_of_the_proof_and_of_answers_that_may_be_published() {
    let mut world = World::new("int4", 1);
    world.opens_words = true;
    let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let pairs = rescorable_pairs(&bundle).unwrap();
    assert_eq!(pairs.len(), 12);
    assert!(pairs.iter().filter(|pair| pair.speaks_against).count() >= 4);
    let alter = |alter: &dyn Fn(&mut AuditBundle)| {
        let mut changed = bundle.clone();
        alter(&mut changed);
        replay(&changed.to_text()).unwrap_err()
    };
    let other = alter(&|bundle| bundle.sessions[0].answers[3].words.as_mut().unwrap().output[0] = 9);
    assert!(
        matches!(other, ReplayError::Words { sequence: 3, .. }),
        "{other:?}"
    );
    let users = alter(&|bundle| bundle.sessions[0].answers[3].origin = Origin::User);
    assert!(
        matches!(users, ReplayError::Words { sequence: 3, .. }),
        "{users:?}"
    );
    let earlier = alter(&|bundle| bundle.format = "muster/audit-bundle/1".to_owned());
    assert!(matches!(earlier, ReplayError::Format), "{earlier:?}");
    // A bundle of the earlier format still has its verdict, and nothing that can be scored again.
    let mut earlier = world.bundle(&given(12, Prompt::User, |_| true));
    earlier.format = "muster/audit-bundle/1".to_owned();
    assert!(replay(&earlier.to_text()).is_ok());
    assert_eq!(rescorable_pairs(&earlier).unwrap(), []);
}

#[test]
fn another_calibration_gives_its_own_verdict() {
    let world = World::new("int4", 1);
    let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let by = |calibration: &Calibration| judge_by(&bundle, calibration).unwrap().verdict.name();
    assert_eq!(by(&bundle.calibration), "convicted");
    let mut none = bundle.calibration.clone();
    none.machines.truncate(1);
    assert_eq!(by(&none), "unproven(no calibration)");
    let mut other = bundle.calibration.clone();
    other.engine = Digest::of(b"another");
    assert!(judge_by(&bundle, &other).is_err());
}

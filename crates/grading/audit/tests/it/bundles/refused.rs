//! A bundle in which anything was altered has no verdict, and its error states why.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{
    AnswerFinding, AuditBundle, AuditOutcome, Calibration, CommittedList, FalseIds, KnownAnswer, LinkState,
    ListCommitment, ListHead, Origin, OwnTest, ReplayError, RescorablePair, replay, root_of_lists,
};
use muster_identity::Keypair;
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::{
    BucketHeader, Envelope, HashScheme, RequestNonce, ResponseProof, StreamEnd, Text, seal,
};

use crate::bundles::referenced;
use crate::bundles::support::{COMMITTED, Prompt, World, digest_of, given, make_false};

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

/// The answers of a bundle that another reference can score.
fn scorable(bundle: &AuditBundle) -> Vec<RescorablePair> {
    let (_, pairs) = own_test(bundle, &bundle.calibration, 0);
    pairs.into_values().collect()
}

/// The test of an adopter that saw every header in time.
fn own_test(
    bundle: &AuditBundle,
    calibration: &Calibration,
    oldest: u64,
) -> (OwnTest, BTreeMap<Digest, RescorablePair>) {
    let miners = bundle.miners.iter().copied().collect();
    OwnTest::new(bundle, calibration, oldest, &miners, &|_| LinkState::Joined).unwrap()
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
fn a_bundle_that_takes_hours_or_fills_a_store_is_refused() {
    macro_rules! assert_bounded {
        ($alter:expr) => {
            assert_refused!($alter, ReplayError::Bound(_));
        };
    }
    assert_bounded!(|bundle| bundle.model = "x".repeat(257));
    assert_bounded!(|bundle| bundle.miners = vec![bundle.miners[0]; 257]);
    assert_bounded!(|bundle| bundle.references[1].machine = "x".repeat(257));
    assert_bounded!(|bundle| bundle.calibration.machines[0].gpu = "x".repeat(257));
    assert_bounded!(|bundle| {
        let machine = bundle.calibration.machines[0].clone();
        bundle.calibration.machines = vec![machine; 65];
    });
    assert_bounded!(|bundle| {
        let alternative = bundle.calibration.alternatives[0].clone();
        bundle.calibration.alternatives = vec![alternative; 17];
    });
    assert_bounded!(|bundle| {
        let answer = bundle.calibration.machines[0].answers[0];
        bundle.calibration.machines[0].answers = vec![answer; 16_385];
    });
    let world = World::new("int4", 1);
    let with_length = |bundle: &mut AuditBundle, length: u64| {
        let head = ListHead {
            length,
            ..world.head(&world.canaries(20))
        };
        bundle.commitments = vec![world.commit(COMMITTED, &head).0];
    };
    assert_bounded!(|bundle| with_length(bundle, u64::MAX));
    assert_bounded!(|bundle| with_length(bundle, 65_537));
    // It fits, but answers name another list.
    assert_refused!(|bundle| with_length(bundle, 65_536), ReplayError::Canary { .. });
}

#[test]
fn both_calibrations_of_a_bundle_are_bounded() {
    let bundle = referenced::world(1).bundle(&given(12, Prompt::Canary, |_| true));
    assert!(replay(&bundle.to_text()).is_ok());
    let assert_bounded = |alter: &dyn Fn(&mut AuditBundle)| {
        let mut changed = bundle.clone();
        alter(&mut changed);
        let error = replay(&changed.to_text()).unwrap_err();
        assert!(matches!(error, ReplayError::Bound(_)), "{error:?}");
    };
    fn unseeded(bundle: &mut AuditBundle) -> &mut Calibration {
        bundle.unseeded.as_mut().unwrap()
    }
    assert_bounded(&|bundle| {
        let machine = unseeded(bundle).machines[0].clone();
        unseeded(bundle).machines = vec![machine; 65];
    });
    assert_bounded(&|bundle| {
        let alternative = unseeded(bundle).alternatives[0].clone();
        unseeded(bundle).alternatives = vec![alternative; 17];
    });
    assert_bounded(&|bundle| {
        let answer = unseeded(bundle).alternatives[0].answers[0];
        unseeded(bundle).alternatives[0].answers = vec![answer; 16_385];
    });
    assert_bounded(&|bundle| unseeded(bundle).machines[0].machine = "x".repeat(257));
    assert_bounded(&|bundle| {
        bundle.calibration.sampler.as_mut().unwrap().version = "x".repeat(257);
    });
    let known = |request: usize, ids: usize| KnownAnswer {
        request: "x".repeat(request),
        prompt: vec![1],
        output: vec![2; ids],
    };
    assert_bounded(&|bundle| bundle.calibration.known_answers = vec![known(65_537, 1)]);
    assert_bounded(&|bundle| bundle.calibration.known_answers = vec![known(2, 131_072)]);
    let mut fits = bundle.clone();
    fits.calibration.known_answers = vec![known(65_536, 131_071)];
    assert!(replay(&fits.to_text()).is_ok());
}

#[test]
fn headers_draws_and_shares_are_the_validators() {
    let by_another = |bundle: &mut AuditBundle| {
        let envelope = Envelope::<BucketHeader>::from_text(&bundle.buckets[1].header).unwrap();
        let other = Keypair::from_seed([7; 32]);
        let header = envelope.statement().unwrap();
        bundle.buckets[1].header = seal(&header, &other).to_text();
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
    assert_refused!(again, ReplayError::Repeated { sequence: 0, .. });
}

#[test]
fn the_miners_are_exactly_those_whose_answers_are_shown() {
    let other = MinerKey(Keypair::from_seed([8; 32]).hotkey());
    assert_refused!(|bundle| bundle.miners.push(other), ReplayError::Miners);
    assert_refused!(|bundle| bundle.miners.push(bundle.miners[0]), ReplayError::Miners);
    let none = |bundle: &mut AuditBundle| {
        bundle.sessions.clear();
        bundle.buckets.clear();
    };
    assert_refused!(none, ReplayError::Miners);
}

#[test]
fn a_proof_that_was_logged_in_two_buckets_counts_once_at_most() {
    // A dishonest validator logs the proofs of its one lucky session again in later buckets, and shows both.
    let world = World::new("int4", 1);
    let mut bundle = world.bundle(&given(4, Prompt::User, |_| true));
    let mut again = bundle.sessions[0].clone();
    for answer in &mut again.answers {
        answer.bucket += 100;
    }
    let last = digest_of(&bundle.buckets.last().unwrap().header);
    let later = world.log(&mut again.answers, last, &root_of_lists([]));
    bundle.buckets.extend(later);
    bundle.sessions.push(again);
    let error = replay(&bundle.to_text()).unwrap_err();
    assert!(
        matches!(error, ReplayError::Repeated { sequence: 0, .. }),
        "{error:?}"
    );
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
    let world = World::new("int4", 1);
    let list = world.head(&world.canaries(20)).digest();
    let other = |bundle: &mut AuditBundle| {
        let opened = world.canaries(20).open(9).unwrap().of_list(list);
        bundle.sessions[0].answers[3].origin = Origin::Canary(opened);
    };
    assert_refused!(other, ReplayError::Canary { sequence: 3, .. });
    let of_another_list = |bundle: &mut AuditBundle| {
        let opened = world.canaries(19).open(3).unwrap().of_list(list);
        bundle.sessions[0].answers[3].origin = Origin::Canary(opened);
    };
    assert_refused!(of_another_list, ReplayError::Canary { sequence: 3, .. });
    let of_no_list = |bundle: &mut AuditBundle| {
        let opened = world.canaries(20).open(3).unwrap();
        bundle.sessions[0].answers[3].origin = Origin::Canary(opened);
    };
    assert_refused!(of_no_list, ReplayError::Canary { sequence: 3, .. });
}

#[test]
fn an_own_prompt_is_of_a_list_that_was_committed_to_before_a_block_gave_its_seed() {
    let world = World::new("int4", 1);
    let head = world.head(&world.canaries(20));
    let commit = |bucket: u64| world.commit(bucket, &head).0;
    assert_refused!(
        |bundle| bundle.commitments.clear(),
        ReplayError::Canary { sequence: 0, .. }
    );
    let of_the_same_bucket = |bundle: &mut AuditBundle| bundle.commitments = vec![commit(4_000)];
    assert_refused!(of_the_same_bucket, ReplayError::Canary { sequence: 0, .. });
    let luckier = |bundle: &mut AuditBundle| bundle.commitments[0].block_hash = Some(Digest::of(b"luckier"));
    assert_refused!(luckier, ReplayError::Commitment { place: 0 });
    let of_another_bucket = |bundle: &mut AuditBundle| bundle.commitments = vec![commit(3_998)];
    assert_refused!(of_another_bucket, ReplayError::Canary { sequence: 0, .. });
    let second = |bundle: &mut AuditBundle| bundle.commitments.insert(0, commit(3_998));
    assert_refused!(second, ReplayError::Commitment { place: 1 });
    let late = |bundle: &mut AuditBundle| bundle.commitments.push(commit(3_998));
    assert_refused!(late, ReplayError::Commitment { place: 1 });
    let mut other = World::new("int4", 1);
    other.validator = Keypair::from_seed([7; 32]);
    let by_another = |bundle: &mut AuditBundle| bundle.commitments = vec![other.commit(3_999, &head).0];
    assert_refused!(by_another, ReplayError::Commitment { place: 0 });
    let without_key = |bundle: &mut AuditBundle| bundle.commitments[0].key = None;
    assert_refused!(without_key, ReplayError::Commitment { place: 0 });
    let without_lists = |bundle: &mut AuditBundle| bundle.commitments[0].lists.clear();
    assert_refused!(without_lists, ReplayError::Commitment { place: 0 });
    let longer = |bundle: &mut AuditBundle| {
        let lists = &mut bundle.commitments[0].lists;
        if let CommittedList::Opened(opened) = &mut lists[0] {
            opened.length += 1;
        }
    };
    assert_refused!(longer, ReplayError::Commitment { place: 0 });
    let unused = |bundle: &mut AuditBundle| {
        let header = world.header(3_998, Digest::of(b""), root_of_lists([]));
        let header = ListCommitment {
            header: seal(&header, &world.validator).to_text(),
            block_hash: None,
            key: None,
            lists: Vec::new(),
        };
        bundle.commitments.insert(0, header);
    };
    let mut fine = bundle();
    unused(&mut fine);
    assert!(replay(&fine.to_text()).is_ok());
}

#[test]
fn a_position_is_asked_once_in_the_session_that_its_head_names_with_the_nonce_of_its_block() {
    let refused = |alter_own: fn(usize, &mut ResponseProof)| {
        let mut world = World::new("int4", 1);
        world.alter_own = alter_own;
        let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
        matches!(
            replay(&bundle.to_text()),
            Err(ReplayError::Canary { sequence: 3, .. })
        )
    };
    let drawn = |place: usize, proof: &mut ResponseProof| {
        if place == 3 {
            proof.gateway_nonce = Some(RequestNonce::from_bytes([7; 32]));
        }
    };
    assert!(refused(drawn), "another nonce");
    let none = |place: usize, proof: &mut ResponseProof| {
        if place == 3 {
            proof.gateway_nonce = None;
        }
    };
    assert!(refused(none), "no nonce");
    // The head names another session: the one that answered was chosen.
    let world = World::new("int4", 1);
    let mut head = world.head(&world.canaries(12));
    head.session = Digest::of(b"another session");
    let mut elsewhere = world.bundle(&given(12, Prompt::Canary, |_| true));
    elsewhere.commitments = vec![world.commit(COMMITTED, &head).0];
    for answer in &mut elsewhere.sessions[0].answers {
        if let Origin::Canary(opened) = &mut answer.origin {
            opened.list = Some(head.digest());
        }
    }
    let found = replay(&elsewhere.to_text()).unwrap_err();
    assert!(
        matches!(found, ReplayError::Canary { sequence: 0, .. }),
        "{found:?}"
    );
    // The head names another miner of the coldkey.
    let mut head = world.head(&world.canaries(12));
    head.miner = MinerKey(world.coldkey.hotkey());
    let mut of_another = world.bundle(&given(12, Prompt::Canary, |_| true));
    of_another.commitments = vec![world.commit(COMMITTED, &head).0];
    for answer in &mut of_another.sessions[0].answers {
        if let Origin::Canary(opened) = &mut answer.origin {
            opened.list = Some(head.digest());
        }
    }
    let found = replay(&of_another.to_text()).unwrap_err();
    assert!(
        matches!(found, ReplayError::Canary { sequence: 0, .. }),
        "{found:?}"
    );
    // The session answered position 3 before, outside of the log.
    let mut again = World::new("int4", 1);
    again.has_others = true;
    again.asks_before = Some(3);
    let found = replay(&again.bundle(&given(12, Prompt::Canary, |_| true)).to_text()).unwrap_err();
    assert!(
        matches!(found, ReplayError::Canary { sequence: 11, .. }),
        "{found:?}"
    );
}

#[test]
fn every_position_counts_and_the_evidence_begins_anew_where_headers_are_missing() {
    let mut world = World::new("int4", 1);
    world.opens_words = true;
    let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let miners: BTreeSet<MinerKey> = bundle.miners.iter().copied().collect();
    let chosen = |bundle: &AuditBundle, miners: &BTreeSet<MinerKey>, state: LinkState| {
        let (test, pairs) = OwnTest::new(bundle, &bundle.calibration, 0, miners, &|_| state).unwrap();
        (test.choose().len(), pairs.len())
    };
    assert_eq!(chosen(&bundle, &miners, LinkState::Joined).1, 12);
    assert_eq!(chosen(&bundle, &miners, LinkState::Apart).1, 12);
    assert_eq!(chosen(&bundle, &miners, LinkState::Unseen), (0, 0));
    assert_eq!(
        chosen(&bundle, &BTreeSet::new(), LinkState::Joined),
        (0, 0),
        "another coldkey's"
    );
    // Answers that are left out are positions without a score.
    let adoption = |bundle: &AuditBundle| replay(&bundle.to_text()).unwrap().adoption.unwrap();
    assert!(adoption(&bundle).convicts);
    let mut closed = bundle.clone();
    for answer in &mut closed.sessions[0].answers[..10] {
        answer.words = None;
    }
    assert_eq!(adoption(&closed).positions, 12);
    assert!(!adoption(&closed).convicts);
    // The request bends the distribution as no measured one does.
    let mut bent = World::new("int4", 1);
    bent.opens_words = true;
    for (field, chosen) in [(r#","temperature":0.9"#, 4), (r#","top_p":0.9"#, 0)] {
        bent.more_fields = field;
        let found = adoption(&bent.bundle(&given(12, Prompt::Canary, |_| true)));
        assert_eq!(found.chosen >= 4, chosen >= 4, "{field}: {found:?}");
    }
    // It was asked at a path that an engine and a reference may read in two ways.
    let mut elsewhere = World::new("int4", 1);
    elsewhere.opens_words = true;
    elsewhere.alter_proof = |_, proof| proof.path = Text::new("/v1/completions?/chat/").unwrap();
    let found = adoption(&elsewhere.bundle(&given(12, Prompt::Canary, |_| true)));
    assert_eq!((found.positions, found.chosen), (12, 0));
    // Only the request's text is signed, so its author may name other fields afterwards.
    let mut of_text = World::new("int4", 1);
    of_text.opens_words = true;
    of_text.scheme = HashScheme::Text;
    let found = adoption(&of_text.bundle(&given(12, Prompt::Canary, |_| true)));
    assert_eq!((found.positions, found.chosen), (12, 0));
    // Its author left where it liked.
    let mut left = World::new("int4", 1);
    left.opens_words = true;
    left.alter_proof = |_, proof| proof.end = StreamEnd::ClientGone;
    let left = adoption(&left.bundle(&given(12, Prompt::Canary, |_| true)));
    assert_eq!((left.positions, left.chosen, left.convicts), (12, 0, false));
    // A sealed list of the same miner may have any number of them.
    let head = world.head(&world.canaries(12));
    let mut sealed = bundle;
    sealed.commitments[0].lists = vec![head.seal()];
    sealed.commitments[0].block_hash = None;
    sealed.commitments[0].key = None;
    let found = replay(&sealed.to_text()).unwrap_err();
    assert!(
        matches!(found, ReplayError::Canary { sequence: 0, .. }),
        "{found:?}"
    );
}

#[test]
fn bundles_without_commitments_are_of_earlier_formats_and_convict_nobody() {
    let mut world = World::new("int4", 1);
    world.is_third_format = true;
    let mut earlier = world.bundle(&given(12, Prompt::Canary, |_| true));
    earlier.format = "muster/audit-bundle/2".to_owned();
    assert!(matches!(
        replay(&earlier.to_text()).unwrap_err(),
        ReplayError::Format
    ));
    earlier.commitments.clear();
    assert_eq!(replay(&earlier.to_text()).unwrap().verdict.name(), "suspect");
    assert_eq!(scorable(&earlier), []);
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
    let pairs = scorable(&bundle);
    assert_eq!(pairs.len(), 12);
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
    world.is_third_format = true;
    let mut earlier = world.bundle(&given(12, Prompt::User, |_| true));
    earlier.format = "muster/audit-bundle/1".to_owned();
    earlier.commitments.clear();
    assert!(replay(&earlier.to_text()).is_ok());
    assert_eq!(scorable(&earlier), []);
}

#[test]
fn answers_that_are_too_old_to_convict_count_for_the_miner() {
    let mut world = World::new("int4", 1);
    world.opens_words = true;
    let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let buckets: Vec<u64> = scorable(&bundle).iter().map(|pair| pair.bucket).collect();
    let (oldest, newest) = (*buckets.iter().min().unwrap(), *buckets.iter().max().unwrap());
    let since = |oldest: u64| own_test(&bundle, &bundle.calibration, oldest);
    let (test, pairs) = since(oldest);
    assert_eq!((pairs.len(), test.choose().is_empty()), (buckets.len(), false));
    let (test, pairs) = since(newest + 1);
    assert_eq!((pairs.len(), test.choose().is_empty()), (0, true));
}

#[test]
fn another_calibration_gives_its_own_test() {
    let mut world = World::new("int4", 1);
    world.opens_words = true;
    let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let chosen = |calibration: &Calibration| own_test(&bundle, calibration, 0).0.choose().len();
    assert!((4..=12).contains(&chosen(&bundle.calibration)));
    let mut none = bundle.calibration.clone();
    none.machines.truncate(1);
    assert_eq!(chosen(&none), 0, "it knows too few machines");
}

#[test]
fn false_ids_are_shown_with_the_response_that_the_session_signed() {
    let mut world = World::new("int4", 1);
    world.opens_words = true;
    let mut bundle = world.bundle(&given(12, Prompt::Canary, |_| false));
    make_false(&mut bundle, 3, FalseIds::Text);
    assert!(replay(&bundle.to_text()).is_ok());
    let pairs = scorable(&bundle);
    assert_eq!(pairs.len(), 12);
    let false_one: Vec<_> = pairs.iter().filter(|pair| pair.response.is_some()).collect();
    assert_eq!(false_one.len(), 1);
    assert_eq!(false_one[0].response.as_deref(), Some(b"answer 3".as_slice()));
    assert_eq!(false_one[0].stated, AnswerFinding::FalseIds);
    let alter = |alter: &dyn Fn(&mut AuditBundle)| {
        let mut changed = bundle.clone();
        alter(&mut changed);
        replay(&changed.to_text()).unwrap_err()
    };
    let words = |bundle: &mut AuditBundle, at: usize, response: &str| {
        bundle.sessions[0].answers[at].words.as_mut().unwrap().response = Some(response.to_owned());
    };
    for error in [
        alter(&|bundle| words(bundle, 3, "YW5zd2VyIDQ=")),
        alter(&|bundle| words(bundle, 3, "no base64")),
        alter(&|bundle| {
            bundle.sessions[0].answers[3]
                .words
                .as_mut()
                .unwrap()
                .output
                .push(7)
        }),
        alter(&|bundle| bundle.sessions[0].answers[3].outcome = None),
        alter(&|bundle| bundle.sessions[0].answers[3].origin = Origin::User),
    ] {
        assert!(
            matches!(error, ReplayError::Words { sequence: 3, .. }),
            "{error:?}"
        );
    }
    let beside_ids = alter(&|bundle| words(bundle, 4, "YW5zd2VyIDQ="));
    assert!(
        matches!(beside_ids, ReplayError::Words { sequence: 4, .. }),
        "{beside_ids:?}"
    );
    for format in ["muster/audit-bundle/1", "muster/audit-bundle/2"] {
        let earlier = alter(&|bundle| bundle.format = format.to_owned());
        assert!(matches!(earlier, ReplayError::Format), "{earlier:?}");
    }
    let third = alter(&|bundle| {
        let answer = &mut bundle.sessions[0].answers[3];
        answer.outcome = Some(AuditOutcome::FalseIds(vec![Some(FalseIds::Text); 3]));
    });
    assert!(matches!(third, ReplayError::References), "{third:?}");
}

/// A world whose sessions sign no ids, so that its answers were scored by their texts.
fn world_of_texts() -> World {
    let mut world = World::new("int4", 1);
    world.opens_words = true;
    world.alter_proof = |_, proof| proof.tokens = None;
    world
}

#[test]
fn an_own_answer_without_ids_is_shown_with_its_response_and_convicts() {
    let bundle = world_of_texts().bundle(&given(12, Prompt::Canary, |_| true));
    let replayed = replay(&bundle.to_text()).unwrap();
    assert_eq!(replayed.verdict.name(), "convicted");
    let adoption = replayed.adoption.unwrap();
    assert!(adoption.convicts && adoption.positions == 12, "{adoption:?}");
    let pairs = scorable(&bundle);
    assert_eq!(pairs.len(), 12);
    let by_text = pairs
        .iter()
        .find(|pair| pair.response.as_deref() == Some(b"answer 3".as_slice()));
    assert!(by_text.is_some_and(|pair| pair.output.is_empty() && pair.stated != AnswerFinding::FalseIds));
    let alter = |alter: &dyn Fn(&mut AuditBundle)| {
        let mut changed = bundle.clone();
        alter(&mut changed);
        replay(&changed.to_text()).unwrap_err()
    };
    for error in [
        alter(&|bundle| {
            bundle.sessions[0].answers[3].words.as_mut().unwrap().response = Some("YW5zd2VyIDQ=".to_owned());
        }),
        alter(&|bundle| {
            bundle.sessions[0].answers[3]
                .words
                .as_mut()
                .unwrap()
                .output
                .push(7);
        }),
        alter(&|bundle| bundle.sessions[0].answers[3].words.as_mut().unwrap().response = None),
        alter(&|bundle| bundle.sessions[0].answers[3].origin = Origin::User),
        alter(&|bundle| bundle.sessions[0].answers[3].outcome = None),
    ] {
        assert!(
            matches!(error, ReplayError::Words { sequence: 3, .. }),
            "{error:?}"
        );
    }
    let earlier = alter(&|bundle| bundle.format = "muster/audit-bundle/2".to_owned());
    assert!(matches!(earlier, ReplayError::Format), "{earlier:?}");
}

#[test]
fn the_nonce_of_an_own_prompt_is_the_one_of_its_salt_or_none() {
    for (has_nonce, alter) in [
        (
            true,
            (|_, proof| proof.client_nonce = None) as fn(usize, &mut ResponseProof),
        ),
        (false, |_, proof| {
            proof.client_nonce = Some(RequestNonce::from_bytes([1; 32]))
        }),
    ] {
        let list = World::new("int4", 1).canaries(12);
        let place = (0..12).position(|place| list.next(place).unwrap().has_nonce() == has_nonce);
        let place = u64::try_from(place.unwrap()).unwrap();
        let mut world = World::new("int4", 1);
        world.alter_own = alter;
        let refused = replay(&world.bundle(&given(12, Prompt::Canary, |_| true)).to_text()).unwrap_err();
        assert!(
            matches!(refused, ReplayError::Canary { sequence, .. } if sequence <= place),
            "{refused:?}"
        );
    }
}

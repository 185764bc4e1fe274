//! The clients of answers in whole bundles: hidden in the log, shown where an answer is audited, and no more than four
//! users' answers of one a day are tested.

use std::collections::BTreeSet;

use muster_audit::{AnswerEvidence, AuditBundle, LoggedClient, Origin, ReplayError, Verdict, replay};
use muster_protocol::Digest;
use muster_response_proof::{BucketNumber, ClientKey, Envelope, ResponseProof};

use crate::bundles::support::{Given, Prompt, THIRD_FORMAT, World, given};

/// The bundles of the documentation, of formats 4 and 5.
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/vectors");

#[test]
fn the_documented_bundles_read_and_write_the_same_bytes_and_count_clients() {
    let file = |format: u8| format!("{VECTORS}/audit-bundle-{format}.json");
    if std::env::var_os("MUSTER_WRITE_GOLDEN").is_some() {
        let mut world = World::new("int4", 1);
        world.ppm = 500_000;
        world.opens_words = true;
        let both = [
            given(8, Prompt::Canary, |_| true),
            of_one_client(Prompt::User, 16),
        ];
        let mut bundle = world.with_more_headers(world.bundle(&both.concat()));
        for answer in &mut bundle.sessions[0].answers[12..] {
            answer.beyond = true;
        }
        std::fs::write(file(5), bundle.to_text()).unwrap();
    }
    for format in [4, 5] {
        let text = std::fs::read_to_string(file(format)).unwrap();
        let bundle: AuditBundle = serde_json::from_str(&text).unwrap();
        assert_eq!(bundle.to_text(), text, "its digest names these bytes");
        assert_eq!(bundle.format, format!("muster/audit-bundle/{format}"));
        let found = replay(&text).unwrap();
        assert_eq!(found.verdict, Verdict::Convicted, "{found:#?}");
        let users = found.counts.audited - 8;
        assert!((5..16).contains(&users), "{:?}", found.counts);
        assert_eq!(found.counts.beyond_client, users - 4);
        assert_eq!(found.missing.unwrap().answers, 12);
        let adopted = found.adoption.map(|one| (one.positions, one.convicts));
        // The fourth format fixes no positions; in the fifth 16 of the first list and 3 of the second were not asked.
        assert_eq!(adopted, (format == 5).then_some((27, true)));
    }
}

fn of_one_client(prompt: Prompt, answers: u64) -> Vec<Given> {
    let all = given(answers, prompt, |_| true).into_iter();
    all.map(|one| Given { client: 7, ..one }).collect()
}

fn proof_of(answer: &AnswerEvidence) -> Envelope<ResponseProof> {
    Envelope::from_text(&answer.proof).unwrap()
}

fn refused(bundle: &AuditBundle, alter: impl FnOnce(&mut AuditBundle)) -> ReplayError {
    let mut altered = bundle.clone();
    alter(&mut altered);
    replay(&altered.to_text()).unwrap_err()
}

#[test]
fn the_bound_of_four_counts_opened_clients_of_users_and_nothing_that_convicts() {
    let found = |prompt| {
        let bundle = World::new("int4", 1).bundle(&of_one_client(prompt, 40));
        let counts = replay(&bundle.to_text()).unwrap().counts;
        (counts.audited, counts.beyond_client)
    };
    assert_eq!(found(Prompt::User), (40, 36));
    assert_eq!(found(Prompt::Canary), (40, 0), "each own prompt is asked once");
}

#[test]
fn an_audited_answer_shows_its_client_and_another_one_hides_it() {
    let mut world = World::new("int4", 1);
    world.ppm = 400_000;
    let bundle = world.bundle(&given(40, Prompt::User, |_| false));
    assert!(replay(&bundle.to_text()).is_ok());
    let place = |is_opened: bool| {
        let mut answers = bundle.sessions[0].answers.iter();
        let found =
            answers.position(|answer| matches!(answer.client, Some(LoggedClient::Opened(_))) == is_opened);
        found.unwrap()
    };
    let (drawn, undrawn) = (place(true), place(false));
    let Some(LoggedClient::Opened(opening)) = bundle.sessions[0].answers[drawn].client else {
        panic!("an audited answer shows its client");
    };
    let hidden = refused(&bundle, |bundle| {
        bundle.sessions[0].answers[drawn].client = Some(LoggedClient::Sealed(opening.commitment()));
    });
    assert!(matches!(hidden, ReplayError::Client { .. }), "{hidden:?}");
    let other_label = refused(&bundle, |bundle| {
        let mut other = opening;
        other.label = Digest::of(b"another client");
        bundle.sessions[0].answers[drawn].client = Some(LoggedClient::Opened(other));
    });
    assert!(matches!(other_label, ReplayError::Leaf { .. }), "{other_label:?}");
    // The author knows the clients of all leaves, and shows no others.
    let answer = &bundle.sessions[0].answers[undrawn];
    let key = ClientKey::from_bytes(*Digest::of(&(undrawn as u64).to_be_bytes()).as_bytes());
    let opening = key.opening(&proof_of(answer).digest(), BucketNumber(answer.bucket).day());
    assert_eq!(answer.client, Some(LoggedClient::Sealed(opening.commitment())));
    let shown = refused(&bundle, |bundle| {
        bundle.sessions[0].answers[undrawn].client = Some(LoggedClient::Opened(opening));
    });
    assert!(matches!(shown, ReplayError::Client { .. }), "{shown:?}");
}

#[test]
fn a_miner_reads_nothing_from_a_bundle_that_two_hidden_answers_of_a_client_share() {
    let mut world = World::new("int4", 1);
    world.ppm = 0;
    let bundle = world.bundle(&of_one_client(Prompt::User, 20));
    let mut clients: Vec<String> = Vec::new();
    for answer in &bundle.sessions[0].answers {
        let Some(LoggedClient::Sealed(commitment)) = answer.client else {
            panic!("it was not drawn");
        };
        let pseudonym = proof_of(answer).statement().unwrap().client.unwrap();
        clients.extend([commitment.to_string(), pseudonym.to_string()]);
    }
    clients.sort_unstable();
    clients.dedup();
    assert_eq!(clients.len(), 40);
}

/// The answers of a miner that is honest to each pseudonym once and cheats it from the second request on.
fn of_returning_cheat(world: &World, asked: &[Given]) -> Vec<Given> {
    let honest = world.bundle(asked);
    let mut seen = BTreeSet::new();
    let mut is_new = |answer: &AnswerEvidence| seen.insert(proof_of(answer).statement().unwrap().client);
    let answers = honest.sessions[0].answers.iter();
    let choices = answers.map(|answer| !is_new(answer));
    asked
        .iter()
        .zip(choices)
        .map(|(one, cheats)| Given { cheats, ..*one })
        .collect()
}

#[test]
fn a_miner_that_cheats_returning_clients_finds_none_by_their_pseudonyms() {
    // Eight clients ask six times each, and between them the validator asks prompts of its own.
    let asked: Vec<Given> = (0..96)
        .map(|number| Given {
            prompt: if number % 2 == 0 {
                Prompt::User
            } else {
                Prompt::Canary
            },
            cheats: false,
            client: number % 16,
        })
        .collect();
    let mut earlier = World::new("int4", 1);
    earlier.is_third_format = true;
    let cheated = of_returning_cheat(&earlier, &asked);
    assert_eq!(
        cheated.iter().filter(|one| one.cheats).count(),
        40,
        "all but the first of each client"
    );
    let found = replay(&earlier.bundle(&cheated).to_text()).unwrap();
    assert_eq!(
        found.verdict,
        Verdict::Suspect,
        "own prompts were answered honestly"
    );
    let world = World::new("int4", 1);
    let cheated = of_returning_cheat(&world, &asked);
    assert!(cheated.iter().all(|one| !one.cheats), "nobody returns");
    let found = replay(&world.bundle(&cheated).to_text()).unwrap();
    assert_eq!(found.verdict, Verdict::Consistent);
}

#[test]
fn an_own_prompt_that_was_asked_twice_is_refused() {
    let mut world = World::new("int4", 1);
    world.repeats_salt = true;
    let bundle = world.bundle(&given(12, Prompt::Canary, |_| true));
    let twice = replay(&bundle.to_text()).unwrap_err();
    assert!(
        matches!(twice, ReplayError::Canary { sequence: 1, .. }),
        "{twice:?}"
    );
}

#[test]
fn bundles_of_the_third_format_count_pseudonyms_and_have_no_commitments_to_clients() {
    let mut world = World::new("int4", 1);
    world.is_third_format = true;
    let third = world.bundle(&of_one_client(Prompt::User, 12));
    assert_eq!(replay(&third.to_text()).unwrap().counts.beyond_client, 8);
    let newer = World::new("int4", 1).bundle(&of_one_client(Prompt::User, 12));
    let renamed = refused(&newer, |bundle| THIRD_FORMAT.clone_into(&mut bundle.format));
    assert!(matches!(renamed, ReplayError::Format), "{renamed:?}");
    // Answers that an earlier release logged stand beside newer ones.
    let mut mixed = third.clone();
    mixed.format = newer.format.clone();
    mixed.commitments.clear();
    assert_eq!(replay(&mixed.to_text()).unwrap().counts.beyond_client, 8);
    assert!(
        mixed.sessions[0]
            .answers
            .iter()
            .all(|answer| answer.origin == Origin::User)
    );
}

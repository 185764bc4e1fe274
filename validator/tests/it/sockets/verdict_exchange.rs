//! Verdicts travel: validators read one another's bundles over real HTTP, score them again, and adopt or refuse them.

use std::net::SocketAddr;
use std::time::Duration;

use muster_audit::{AuditBundle, Calibration, Verdict};
use muster_chain::BlockNumber;
use muster_identity::Keypair;
use muster_process::{SharedClock, SystemClock};
use muster_protocol::{Digest, Hotkey, Timestamp, ValidatorKey};
use muster_response_proof::{BucketHeader, BucketNumber, Envelope, Sealable as _, Text};
use muster_validator::Config;
use muster_validator::store::{HeaderReading, ReadHeader, Store};
use muster_verdict_exchange::statements::{AuditEndorsement, HeaderNote, SelfTestStatement, sign_text};
use muster_verdict_exchange::{SelfTestOutcome, ShownBundle, ShownList, record_self_test};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::sockets::audit_runs::Audited;
use crate::sockets::support::fleet::Fleet;
use crate::sockets::support::miner::Miner;
use crate::sockets::support::model::{
    accusing_reference, forging_reference, halting_reference, lying_reference, model, model_of_other_text,
    reference,
};
use crate::sockets::support::{World, within};

/// A conviction of //Cheat, which belongs to //CheatOwner, by //Auditor.
const BUNDLE: &str = include_str!("../../../../tests/vectors/audit-bundle.json");

/// Looks between two blocks, so that what happens in a block is over before two cycles are.
const LOOKS: u32 = 25;

fn key(uri: &str) -> Hotkey {
    Keypair::from_uri(uri).unwrap().hotkey()
}

fn genesis() -> Digest {
    Digest::from_bytes([0xab; 32])
}

fn now() -> Timestamp {
    let clock: SharedClock = std::sync::Arc::new(SystemClock::new());
    clock.now()
}

fn address() -> SocketAddr {
    muster_testbed::free_address().unwrap()
}

/// A statement that the pipeline of this validator convicted a planted cheat a while ago.
fn self_test(uri: &str, days: u64, verdict: Verdict) -> String {
    let keypair = Keypair::from_uri(uri).unwrap();
    let statement = SelfTestStatement {
        genesis: genesis(),
        netuid: 1,
        validator: ValidatorKey(keypair.hotkey()),
        kind: Text::new("int4 in 10 %").unwrap(),
        tested_at: now().minus(Duration::from_secs(days * 86_400)),
        verdict,
        bundle: Digest::of(b"the bundle of the test"),
    };
    sign_text(&keypair, &statement)
}

fn endorsement(uri: &str, bundle: Digest) -> String {
    let keypair = Keypair::from_uri(uri).unwrap();
    let statement = AuditEndorsement {
        genesis: genesis(),
        netuid: 1,
        bundle,
        validator: ValidatorKey(keypair.hotkey()),
        verdict: Verdict::Convicted,
        block: 3,
    };
    sign_text(&keypair, &statement)
}

/// The list of a validator that shows this bundle.
fn shown(text: &str) -> ShownBundle {
    ShownBundle {
        digest: Digest::of(text.as_bytes()),
        coldkey: key("//CheatOwner"),
        model: "tiny".to_owned(),
        through_bucket: 4_001,
        bytes: text.len() as u64,
    }
}

/// Seals a block now and again until the validator's list of audits is as wanted; returns the list.
async fn listed(world: &World, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let looking = async {
        loop {
            for _ in 0..LOOKS {
                let list = world.get("/v0/audits").await;
                if is(&list) {
                    return list;
                }
                crate::sockets::support::look_again().await;
            }
            world.chain.seal_to(world.chain.height() + 1);
        }
    };
    within(what, looking).await
}

/// Waits until the first offer is as wanted.
async fn offer(world: &World, state: &str, reason: &str) -> Value {
    let is = |list: &Value| {
        let offer = &list["offers"][0];
        // A list is read in several steps: an adopted bundle stands in it a moment after its offer states it.
        let is_told = state != "adopted" || list["audits"][0].is_object();
        let says = offer["reason"].as_str().unwrap_or_default();
        is_told && offer["state"] == state && says.contains(reason)
    };
    listed(world, state, is).await
}

/// A validator that reads the pages of others: scripted ones, and those at an address.
async fn reader(uri: &str, others: &[(&Miner, SocketAddr)], miners: &[&Miner]) -> World {
    let named: Vec<&Miner> = miners
        .iter()
        .copied()
        .chain(others.iter().map(|(named, _)| *named))
        .collect();
    let mut world = World::in_real_time_of(uri, &named).await;
    for (at, (named, pages)) in others.iter().enumerate() {
        world.chain.permit(u16::try_from(miners.len() + at + 1).unwrap());
        world.chain.state_pages(named.keypair.hotkey(), *pages);
    }
    world.chain.remember();
    world.chain.without_axons();
    world.config.receipts.gather = true;
    world.config.receipts.interval_s = 1;
    world.config.pages.bind = Some(address());
    world
}

/// The list that a validator's page shows.
async fn page(world: &World) -> ShownList {
    let at = world.config.pages.bind.unwrap();
    let text = reqwest::get(format!("http://{at}/audits")).await.unwrap();
    ShownList::parse(&text.text().await.unwrap()).unwrap()
}

/// A validator whose own prompts convict a miner, with its pages and its self-test.
struct Convicting {
    audited: Audited,
    /// The digest of its bundle.
    bundle: String,
}

/// Tells a story about a validator with a bundle about a miner of this program, scored by these references.
async fn convicting(
    program: axum::Router,
    scorer: axum::Router,
    pages: SocketAddr,
    story: impl AsyncFnOnce(&Convicting),
) {
    let (mut miner, mut trusted) = (Miner::open("//Miner").await, Miner::open("//Trusted").await);
    let mut world = World::in_real_time(&[&miner]).await;
    world.config.pages.bind = Some(pages);
    test_itself(&world).await;
    let audited = Audited::start_in(world, &trusted, false).await;
    let fleet = Fleet::of_program(&miner.keypair, program);
    let references = Fleet::of_program(&trusted.keypair, scorer);
    let told = async {
        audited.gather().await;
        let run = audited.audit().await;
        assert_eq!(run["verdict"], "convicted", "{run}");
        let bundle = run["bundle"].as_str().unwrap().to_owned();
        story(&Convicting { audited, bundle }).await;
    };
    tokio::select! {
        () = fleet.stand(&mut miner, 1) => panic!("it is there"),
        () = references.stand(&mut trusted, 4) => panic!("it is there"),
        () = told => {}
    }
}

/// Records a self-test that convicted before the validator starts.
async fn test_itself(world: &World) {
    let store = Store::open(&world.config.store).await.unwrap();
    let genesis = format!("0x{}", "ab".repeat(32));
    store.note_chain(&genesis, BlockNumber(1), now()).await.unwrap();
    let outcome = SelfTestOutcome {
        kind: "int4 in 10 %".to_owned(),
        tested_at: now(),
        verdict: Verdict::Convicted,
        bundle: Digest::of(b"the bundle of the test"),
    };
    let clock: SharedClock = std::sync::Arc::new(SystemClock::new());
    record_self_test(&store, &world.keypair, 1, outcome, &clock)
        .await
        .unwrap();
    store.close().await;
}

impl Convicting {
    /// The headers that its bundle shows, as somebody reads them that comes by in their time.
    async fn headers(&self) -> Vec<HeaderReading> {
        let at = self.audited.world.config.pages.bind.unwrap();
        let text = reqwest::get(format!("http://{at}/audits/{}", self.bundle))
            .await
            .unwrap();
        let bundle: AuditBundle = serde_json::from_str(&text.text().await.unwrap()).unwrap();
        let buckets = bundle.buckets.iter().map(|one| &one.header);
        let commitments = bundle.commitments.iter().map(|one| &one.header);
        let reading = |text: &String| {
            let envelope = Envelope::<BucketHeader>::from_text(text).unwrap();
            let header = envelope.statement().unwrap();
            HeaderReading {
                author: header.validator,
                bucket: header.bucket.0,
                header: Some(ReadHeader {
                    digest: envelope.digest(),
                    text: text.clone(),
                }),
                block: header.bucket.last_block() + 1,
                at: now(),
            }
        };
        buckets.chain(commitments).map(reading).collect()
    }
}

/// Tells a story about a second validator, with references of this program, that reads the pages of the first and has
/// read its headers in their time. Its chain has all blocks that the first's bundles name.
async fn following(
    (first, pages): (&Convicting, SocketAddr),
    scorer: axum::Router,
    is_mortal: bool,
    story: impl AsyncFnOnce(&mut Audited),
) {
    let readings = first.headers().await;
    following_after((first, pages), &[], &readings, (scorer, is_mortal), story).await;
}

/// Tells a story about a second validator with these readings of headers, in whose subnet there are further validators.
async fn following_after(
    (first, pages): (&Convicting, SocketAddr),
    further: &[&Miner],
    readings: &[HeaderReading],
    (scorer, is_mortal): (axum::Router, bool),
    story: impl AsyncFnOnce(&mut Audited),
) {
    let unchanged = |_: &mut Config| {};
    following_with(
        (first, pages),
        further,
        readings,
        (scorer, is_mortal, unchanged),
        story,
    )
    .await;
}

/// The same, with a change of the second validator's configuration.
async fn following_with(
    (first, pages): (&Convicting, SocketAddr),
    further: &[&Miner],
    readings: &[HeaderReading],
    (scorer, is_mortal, configure): (axum::Router, bool, impl FnOnce(&mut Config)),
    story: impl AsyncFnOnce(&mut Audited),
) {
    let (named, miner) = (Miner::open("//Validator").await, Miner::open("//Miner").await);
    let mut trusted = Miner::open("//TrustedOfB").await;
    let mut others = vec![(&named, pages)];
    others.extend(further.iter().map(|other| (*other, other.server.address)));
    let world = reader("//B", &others, &[&miner]).await;
    let store = Store::open(&world.config.store).await.unwrap();
    let genesis = format!("0x{}", "ab".repeat(32));
    store.note_chain(&genesis, BlockNumber(1), now()).await.unwrap();
    for reading in readings {
        store.note_header(reading).await.unwrap();
    }
    store.close().await;
    world.chain.seal_to(first.audited.world.chain.height());
    let mut audited = Audited::start_with(world, &trusted, is_mortal, configure).await;
    let references = Fleet::of_program(&trusted.keypair, scorer);
    tokio::select! {
        () = references.stand(&mut trusted, 4) => panic!("it is there"),
        () = story(&mut audited) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conviction_is_adopted_by_a_validator_whose_own_reference_agrees() {
    let pages = address();
    convicting(model(true, None), reference(), pages, async |first| {
        following((first, pages), reference(), false, async |second| {
            let list = offer(&second.world, "adopted", "own scores of").await;
            let adopted = &list["audits"][0];
            assert_eq!(adopted["digest"], first.bundle, "{list}");
            assert_eq!(
                (&adopted["verdict"], &adopted["origin"], &adopted["author"]),
                (
                    &json!("convicted"),
                    &json!("rescored"),
                    &json!(key("//Validator"))
                )
            );
            assert_eq!(list["offers"][0]["endorsers"], json!([key("//B")]));
            assert_eq!(list["self_tests"][0]["standing"], "convicted", "{list}");
            let of_first = page(&first.audited.world).await;
            assert_eq!(of_first.bundles[0].digest.to_string(), first.bundle);
            let of_second = page(&second.world).await;
            assert_eq!((of_second.endorsements.len(), of_second.bundles.len()), (1, 0));
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calibration_that_states_classes_follows_no_conviction_of_machines_that_were_not_proven() {
    let pages = address();
    convicting(model(true, None), reference(), pages, async |first| {
        let readings = first.headers().await;
        let configure = |config: &mut Config| {
            let file = &config.audit.calibrations["tiny"];
            let mut measured = Calibration::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
            measured.machines[0].class = Some("always_on.gpu-24gb".to_owned());
            std::fs::write(file, measured.to_text()).unwrap();
        };
        let changed = (reference(), false, configure);
        following_with((first, pages), &[], &readings, changed, async |second| {
            let reason = "has proven no executor of the accused miners";
            let list = offer(&second.world, "offered", reason).await;
            assert_eq!(list["audits"], json!([]), "{list}");
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conviction_with_forged_scores_is_refused() {
    let pages = address();
    convicting(model(false, None), lying_reference(), pages, async |first| {
        following((first, pages), reference(), false, async |second| {
            let list = offer(&second.world, "contradicted", "do not bear it out").await;
            assert_eq!(list["audits"], json!([]), "{list}");
            assert_eq!(page(&second.world).await.endorsements, Vec::<String>::new());
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conviction_by_a_forged_token_in_twenty_is_refused() {
    let pages = address();
    convicting(model(false, None), forging_reference(), pages, async |first| {
        following((first, pages), reference(), false, async |second| {
            let list = offer(&second.world, "contradicted", "do not bear it out").await;
            assert_eq!(list["audits"], json!([]), "{list}");
            assert_eq!(page(&second.world).await.endorsements, Vec::<String>::new());
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conviction_by_false_ids_is_adopted_by_a_validator_whose_own_reference_finds_them_too() {
    let pages = address();
    convicting(model_of_other_text(), reference(), pages, async |first| {
        following((first, pages), reference(), false, async |second| {
            let list = offer(&second.world, "adopted", "own scores of").await;
            assert_eq!(list["audits"][0]["digest"], first.bundle, "{list}");
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conviction_by_invented_false_ids_is_refused() {
    let pages = address();
    convicting(model(false, None), accusing_reference(), pages, async |first| {
        following((first, pages), reference(), false, async |second| {
            let list = offer(&second.world, "contradicted", "do not bear it out").await;
            assert_eq!(list["audits"], json!([]), "{list}");
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_validator_that_is_killed_while_it_scores_has_adopted_nothing_and_adopts_later() {
    let pages = address();
    convicting(model(true, None), reference(), pages, async |first| {
        let (asked, was_asked) = watch::channel(false);
        let (open, gate) = watch::channel(false);
        let scorer = halting_reference(asked, gate);
        following((first, pages), scorer, true, async |second| {
            let world = &mut second.world;
            listed(world, "a bundle that is scored", |_| *was_asked.borrow()).await;
            world.kill();
            world.start_mortal();
            world.facilitator.accept().await;
            let list = world.get("/v0/audits").await;
            assert_eq!(list["audits"], json!([]), "{list}");
            assert_eq!(list["offers"][0]["state"], "offered", "{list}");
            open.send_replace(true);
            let list = offer(world, "adopted", "own scores of").await;
            assert_eq!(list["audits"].as_array().unwrap().len(), 1, "{list}");
        })
        .await;
    })
    .await;
}

/// The pages of a validator that has read these headers in their time.
async fn witness(uri: &str, readings: &[HeaderReading]) -> Miner {
    let pages = Miner::open(uri).await;
    pages
        .server
        .write("/audits", ShownList::default().to_text().as_bytes());
    let keypair = Keypair::from_uri(uri).unwrap();
    for reading in readings {
        let note = HeaderNote {
            genesis: genesis(),
            netuid: 1,
            validator: ValidatorKey(keypair.hotkey()),
            author: reading.author,
            bucket: reading.bucket,
            header: reading.header.as_ref().unwrap().digest,
            block: reading.block,
        };
        let path = format!("/audits/notes/{}/{}", reading.author, reading.bucket);
        pages.server.replace(&path, sign_text(&keypair, &note).as_bytes());
    }
    pages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conviction_counts_only_by_lists_whose_headers_were_seen_before_their_draw_blocks() {
    let pages = address();
    convicting(model(true, None), reference(), pages, async |first| {
        let readings = first.headers().await;
        let (one, other) = (witness("//D", &readings).await, witness("//E", &readings).await);
        // It came later, and one other validator's word does not suffice.
        let scorer = || (reference(), false);
        following_after((first, pages), &[&one], &[], scorer(), async |second| {
            offer(&second.world, "offered", "were not read here in their time").await;
        })
        .await;
        following_after((first, pages), &[&one, &other], &[], scorer(), async |second| {
            offer(&second.world, "adopted", "own scores of").await;
        })
        .await;
        // It was reading and saw none: two others' word does not help.
        let unseen: Vec<_> = readings
            .iter()
            .map(|reading| HeaderReading {
                header: None,
                block: reading.block + 5,
                ..reading.clone()
            })
            .collect();
        following_after(
            (first, pages),
            &[&one, &other],
            &unseen,
            scorer(),
            async |second| {
                let list = offer(
                    &second.world,
                    "refused",
                    "were not shown before their draw blocks",
                )
                .await;
                assert_eq!(list["audits"], json!([]), "{list}");
            },
        )
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_validator_that_signs_two_headers_of_a_bucket_convicts_nobody_and_everybody_is_shown_both() {
    let pages = address();
    convicting(model(true, None), reference(), pages, async |first| {
        let mut readings = first.headers().await;
        let second_text = readings[0].header.as_ref().unwrap().text.clone();
        let keypair = Keypair::from_uri("//Validator").unwrap();
        let envelope = Envelope::<BucketHeader>::from_text(&second_text).unwrap();
        let changed = BucketHeader {
            canaries: Digest::of(b"luckier prompts"),
            ..envelope.statement().unwrap()
        };
        let text = sign_text(&keypair, &changed);
        readings[0].header = Some(ReadHeader {
            digest: Envelope::<BucketHeader>::from_text(&text).unwrap().digest(),
            text: text.clone(),
        });
        let bucket = readings[0].bucket;
        following_after(
            (first, pages),
            &[],
            &readings,
            (reference(), false),
            async |second| {
                let reason = format!("its author signed two headers of bucket {bucket}");
                let list = offer(&second.world, "refused", &reason).await;
                assert_eq!(list["audits"], json!([]), "{list}");
                let shown = page(&second.world).await.second_headers;
                assert_eq!(shown, [(text.clone(), second_text.clone())]);
            },
        )
        .await;
        // Somebody who holds the other header shows it to a validator that has read the first one only.
        following((first, pages), reference(), false, async |second| {
            let at = second.world.config.pages.bind.unwrap();
            let objected = async |body: &str| {
                let request = reqwest::Client::new().post(format!("http://{at}/audits/headers"));
                request
                    .body(body.to_owned())
                    .send()
                    .await
                    .unwrap()
                    .status()
                    .as_u16()
            };
            assert_eq!(objected("no header").await, 400);
            assert_eq!(objected(&second_text).await, 404, "it is the one that was read");
            assert_eq!(objected(&text).await, 204);
            let shown = page(&second.world).await.second_headers;
            assert_eq!(shown, [(second_text.clone(), text.clone())]);
            offer(&second.world, "refused", "signed two headers").await;
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_header_is_noted_before_its_draw_block_and_its_note_is_signed() {
    let author = Miner::open("//Auditor").await;
    let keypair = Keypair::from_uri("//Auditor").unwrap();
    let header = |bucket, list: &[u8]| BucketHeader {
        genesis: genesis(),
        netuid: 1,
        validator: ValidatorKey(keypair.hotkey()),
        bucket: BucketNumber(bucket),
        answers: 0,
        root: Digest::of(b""),
        previous: Digest::of(b""),
        shares: 0,
        share_root: Digest::of(b""),
        canaries: Digest::of(list),
    };
    // A pair by a key that nobody has registered is passed on by nobody.
    let stranger = Keypair::from_uri("//Stranger").unwrap();
    let made_up = |list: &[u8]| {
        let header = BucketHeader {
            validator: ValidatorKey(stranger.hotkey()),
            ..header(1, list)
        };
        sign_text(&stranger, &header)
    };
    let show = |header: &BucketHeader| {
        let list = ShownList {
            header: Some(sign_text(&keypair, header)),
            second_headers: vec![(made_up(b"one"), made_up(b"other"))],
            ..ShownList::default()
        };
        author.server.replace("/audits", list.to_text().as_bytes());
    };
    let mut world = without_references(&[&author]).await;
    let at = world.config.pages.bind.unwrap();
    let note = async |bucket: u64| {
        let path = format!("http://{at}/audits/notes/{}/{bucket}", keypair.hotkey());
        let answer = reqwest::get(path).await.unwrap();
        let is_found = answer.status() == 200;
        let text = answer.text().await.unwrap();
        is_found.then(|| {
            Envelope::<HeaderNote>::from_text(&text)
                .unwrap()
                .statement()
                .unwrap()
        })
    };
    // Block by block from the end of a bucket, until the validator comes by in time; on a slow machine in a later one.
    let seen = async {
        for bucket in world.chain.height() / 25 + 2.. {
            show(&header(bucket, b"list"));
            for block in bucket * 25 + 25..bucket * 25 + 31 {
                world.chain.seal_to(block);
                world.seen(block).await;
                for _ in 0..2 * LOOKS {
                    if let Some(note) = note(bucket).await {
                        return note;
                    }
                    crate::sockets::support::look_again().await;
                }
            }
        }
        panic!("there is always another bucket")
    };
    let noted = within("a note", seen).await;
    let first = noted.bucket;
    let digest = Digest::of(&header(first, b"list").signed_bytes());
    assert_eq!(noted.header, digest);
    assert!(noted.block < BucketNumber(first).draw_block(), "{noted:?}");
    assert_eq!(noted.validator, ValidatorKey(key("//C")));
    // Of the next bucket none is shown before its draw block, and another one of the first comes after it.
    show(&header(first, b"luckier prompts"));
    let later = (first + 1) * 25 + 40;
    for block in world.chain.height() + 1..=later {
        world.chain.seal_to(block);
        world.seen(block).await;
    }
    let list = listed(&world, "the second header", |list| {
        list["second_headers"][0].is_object()
    })
    .await;
    assert_eq!(list["second_headers"][0]["bucket"], first, "{list}");
    assert_eq!(page(&world).await.second_headers.len(), 1, "others read it");
    assert_eq!(
        note(first).await.map(|note| note.header),
        Some(digest),
        "the first one stays"
    );
    assert_eq!(note(first + 1).await, None);
    world.stop().await;
}

/// The pages of //Auditor, which shows the bundle of the documentation.
async fn auditor(self_test: Option<String>) -> Miner {
    let pages = Miner::open("//Auditor").await;
    let list = ShownList {
        bundles: vec![shown(BUNDLE)],
        self_test,
        ..ShownList::default()
    };
    pages.server.write("/audits", list.to_text().as_bytes());
    let path = format!("/audits/{}", Digest::of(BUNDLE.as_bytes()));
    pages.server.write(&path, BUNDLE.as_bytes());
    pages
}

/// The pages of a validator that has signed the bundle of the documentation.
async fn endorser(uri: &str) -> Miner {
    let pages = Miner::open(uri).await;
    let list = ShownList {
        endorsements: vec![endorsement(uri, Digest::of(BUNDLE.as_bytes()))],
        ..ShownList::default()
    };
    pages.server.write("/audits", list.to_text().as_bytes());
    pages
}

/// A validator without references in the subnet of //Cheat that reads these pages.
async fn without_references(others: &[&Miner]) -> World {
    let cheat = Miner::open("//Cheat").await;
    let others: Vec<_> = others
        .iter()
        .map(|named| (*named, named.server.address))
        .collect();
    let mut world = reader("//C", &others, &[&cheat]).await;
    world.chain.own(1, key("//CheatOwner"));
    world.start();
    world.facilitator.accept().await;
    world
}

#[tokio::test]
async fn two_further_validators_suffice_and_one_does_not() {
    let auditor = auditor(Some(self_test("//Auditor", 3, Verdict::Convicted))).await;
    let (one, other) = (endorser("//D").await, endorser("//E").await);
    let mut world = without_references(&[&auditor, &one]).await;
    let list = offer(&world, "offered", "1 of 2 further validators").await;
    assert_eq!(list["audits"], json!([]), "{list}");
    world.stop().await;
    let mut world = without_references(&[&auditor, &one, &other]).await;
    let list = offer(&world, "adopted", "signed by").await;
    assert_eq!(list["audits"][0]["origin"], "endorsed", "{list}");
    assert_eq!(list["offers"][0]["endorsers"].as_array().unwrap().len(), 2);
    let endorsements = world.get("/v0/audits/endorsements").await;
    assert_eq!(endorsements["endorsements"].as_array().unwrap().len(), 2);
    assert_eq!(
        page(&world).await.endorsements,
        Vec::<String>::new(),
        "it scored nothing itself"
    );
    world.stop().await;
}

#[tokio::test]
async fn nothing_is_adopted_from_a_pipeline_that_does_not_convict_its_own_cheat() {
    let tests = [
        (None, "shows no self-test"),
        (
            Some(self_test("//Auditor", 3, Verdict::Suspect)),
            "does not convict",
        ),
    ];
    for (test, reason) in tests {
        let auditor = auditor(test).await;
        let (one, other) = (endorser("//D").await, endorser("//E").await);
        let mut world = without_references(&[&auditor, &one, &other]).await;
        let list = offer(&world, "not_adopted_in_time", reason).await;
        assert_eq!(list["audits"], json!([]), "{list}");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_hostile_page_costs_eight_bundles_a_day_and_each_is_refused_once() {
    let pages = Miner::open("//Auditor").await;
    let forged: Vec<String> = (0..20)
        .map(|at| BUNDLE.replace("\"netuid\":1", &format!("\"netuid\":{}", at + 2)))
        .collect();
    let bundles = forged.iter().enumerate().map(|(at, text)| ShownBundle {
        coldkey: Hotkey::from_bytes([u8::try_from(at).unwrap(); 32]),
        ..shown(text)
    });
    let list = ShownList {
        bundles: bundles.collect(),
        endorsements: vec!["AAAA".to_owned(); 9],
        self_test: Some("AAAA".to_owned()),
        header: Some("AAAA".to_owned()),
        second_headers: vec![("AAAA".to_owned(), "BBBB".to_owned())],
    };
    pages.server.write("/audits", list.to_text().as_bytes());
    for text in &forged {
        let path = format!("/audits/{}", Digest::of(text.as_bytes()));
        pages.server.write(&path, text.as_bytes());
    }
    let mut world = without_references(&[&pages]).await;
    let refused = |list: &Value| {
        let offers = list["offers"].as_array().cloned().unwrap_or_default();
        offers.iter().filter(|offer| offer["state"] == "refused").count()
    };
    let list = listed(&world, "eight refusals", |list| refused(list) >= 8).await;
    assert!(
        list["offers"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("another chain or subnet"),
        "{list}"
    );
    // Two more readings of the list bring nothing.
    let block = world.chain.height();
    for later in [block + 6, block + 12] {
        world.chain.seal_to(later);
        world.seen(later).await;
    }
    let list = within("the list", world.get("/v0/audits")).await;
    assert_eq!(refused(&list), 8, "{list}");
    let digest = list["offers"][0]["digest"].as_str().unwrap();
    let kept = reqwest::get(world.status_url(&format!("/v0/audits/{digest}")).await).await;
    assert_eq!(
        kept.unwrap().status(),
        404,
        "the text of a refused bundle is not kept"
    );
    world.stop().await;
}

//! A job's image from a registry of the test's own: by tag, by digest, with a password, and without a good one.

use muster_containers::credentials::RegistryLogin;
use muster_executor::{ContainerEngine, ImageArchive, ImageFile};
use muster_protocol::ImageId;
use serde_json::{Value, json};

use crate::persistent::EnrolledExecutor;
use crate::support::lease::{Job, Lease};
use crate::support::registry::{PASSWORD, Registry, USER, forget, publish};
use crate::support::{engine, image, require, until};

/// Puts the demo program into an image for this test alone, in the registry and not in the engine. Returns its name
/// there.
async fn published(
    engine: &ContainerEngine,
    registry: &Registry,
    password: Option<&str>,
) -> (String, ImageArchive) {
    let mark = uuid::Uuid::new_v4().to_string();
    let local = format!("muster/executor-registry-test:{mark}");
    // Large enough for the progress of a pull to be seen.
    let filler = (0..1 << 18)
        .flat_map(|_| uuid::Uuid::new_v4().into_bytes())
        .collect();
    let file = ImageFile {
        path: "/mark".into(),
        mode: 0o644,
        contents: filler,
    };
    let tag = local.clone();
    let archive = tokio::task::spawn_blocking(move || image::archive(&tag, vec![file]))
        .await
        .unwrap();
    engine.load(archive.bytes.clone()).await.unwrap();
    let name = format!("{}/muster/hello:{mark}", registry.address());
    publish(engine, archive.id, &local, &name, password.map(login))
        .await
        .unwrap();
    (name, archive)
}

/// Runs the job for a Muster miner and returns all messages.
async fn run_job(lease: &Lease, image: &str) -> Vec<Value> {
    let job = Job {
        image: image.into(),
        ..Job::new(&["probe", "print", "0"])
    };
    lease.run_offered(&lease.offer(&job), &job).await
}

fn of<'a>(messages: &'a [Value], kind: &str) -> Option<&'a Value> {
    messages.iter().find(|message| message["message_type"] == kind)
}

#[tokio::test]
async fn job_runs_from_a_registry_by_tag_and_by_digest_and_reports_its_image() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let (name, archive) = published(&engine, &registry, None).await;
    let lease = Lease::new();
    let messages = run_job(&lease, &name).await;
    let finished = of(&messages, "V0JobFinishedRequest").unwrap_or_else(|| panic!("{messages:#?}"));
    assert_eq!(finished["docker_process_stdout"], "end\n");
    let pulled = messages
        .iter()
        .rfind(|message| message["message_type"] == "MusterJobProgress" && message["of"] == "image_pull");
    let pulled = pulled.unwrap_or_else(|| panic!("its progress was not sent: {messages:#?}"));
    assert!(pulled["done"].as_u64().unwrap() > 0, "{pulled}");
    assert_eq!(pulled["layers"], json!({"done": 1, "total": 1}), "{pulled}");
    let image = &of(&messages, "V0JobFinishedRequest").unwrap()["image"];
    assert_eq!(
        (&image["name"], &image["id"]),
        (&json!(name), &json!(archive.id)),
        "a tag means what it meant when the job ran"
    );
    let manifest = image["manifest"].as_str().unwrap().to_owned();
    assert!(manifest.starts_with("sha256:"), "{image}");
    lease.assert_clean(&engine).await;
    forget(&engine, archive.id).await.unwrap();

    let pinned = format!("{}@{manifest}", name.rsplit_once(':').unwrap().0);
    let lease = Lease::new();
    let messages = run_job(&lease, &pinned).await;
    assert!(of(&messages, "V0JobFinishedRequest").is_some(), "{messages:#?}");
    let image = &of(&messages, "V0JobFinishedRequest").unwrap()["image"];
    assert_eq!(
        (&image["id"], &image["manifest"]),
        (&json!(archive.id), &json!(manifest))
    );

    // No job uses it now: as there is no room for it, it is removed after the next job.
    let mut lease = Lease::new();
    lease.config.images.keep_mib = 0;
    let messages = run_job(&lease, &pinned).await;
    assert!(of(&messages, "V0JobFinishedRequest").is_some(), "{messages:#?}");
    let left = engine.find_image(&archive.id.to_string()).await.unwrap();
    assert_eq!(left, None, "an unused image makes room");
}

#[tokio::test]
async fn a_whitelisted_image_is_fetched_from_its_registry_when_it_is_published_and_serves_when_that_is_gone()
{
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let (name, archive) = published(&engine, &registry, None).await;
    let of_place = Lease::new();
    let mut enrolled = EnrolledExecutor::open(&of_place, 1).await;
    let mut connection = enrolled.next_connection().await;
    let listed = |image: ImageId| json!({"image": image, "reference": name, "class": "always_on.test", "model": "tiny"});
    let notice = json!({"message_type": "MusterWhitelist", "images": [listed(archive.id)]});
    connection.send(&notice).await;
    until("the image is kept", || async {
        let used = muster_containers::image_leases::list_uses(&of_place.config.images.cache_dir).unwrap();
        used.iter().any(|used| used.image == archive.id)
    })
    .await;
    assert!(
        engine
            .find_image(&archive.id.to_string())
            .await
            .unwrap()
            .is_some()
    );
    // No job has to wait for the image or for its lock.
    drop(registry);
    let lease = Lease::new();
    let job = Job {
        image: archive.id.to_string(),
        ..Job::new(&["probe", "print", "0"])
    };
    connection.lease_job(&lease, &job).await;
    let finished = connection.until("V0JobFinishedRequest").await.pop().unwrap();
    assert_eq!(finished["docker_process_stdout"], "end\n", "{finished}");
    enrolled.stop().await;
    forget(&engine, archive.id).await.unwrap();
}

#[tokio::test]
async fn a_validators_list_gets_no_more_images_than_have_room_and_takes_none_from_another_validators() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let mut images = Vec::new();
    for share in [0, 0, 1] {
        let (name, archive) = published(&engine, &registry, None).await;
        images.push((share, name, archive));
    }
    let mut of_place = Lease::new();
    // Room for one of them, and not for two.
    let mib = images.iter().map(|(.., archive)| archive.bytes.len() >> 20).max();
    of_place.config.images.listed_mib = u64::try_from(mib.unwrap() * 3 / 2).unwrap();
    let mut enrolled = EnrolledExecutor::open(&of_place, 1).await;
    let mut connection = enrolled.next_connection().await;
    let listed: Vec<_> = images
        .iter()
        .map(|(share, name, archive)| {
            json!({
                "image": archive.id, "reference": name, "class": "always_on.test", "model": "tiny", "share": share,
            })
        })
        .collect();
    let notice = json!({"message_type": "MusterWhitelist", "images": listed});
    connection.send(&notice).await;
    let kept = || {
        let used = muster_containers::image_leases::list_uses(&of_place.config.images.cache_dir).unwrap();
        used.into_iter().map(|used| used.image).collect::<Vec<_>>()
    };
    // The list is read in its order.
    let last = images[2].2.id;
    until("the other validator's image is kept", || async {
        kept().contains(&last)
    })
    .await;
    assert!(kept().contains(&images[0].2.id));
    let second = images[1].2.id;
    assert!(!kept().contains(&second));
    assert_eq!(engine.find_image(&second.to_string()).await.unwrap(), None);
    enrolled.stop().await;
    for (_, _, archive) in [&images[0], &images[2]] {
        forget(&engine, archive.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_registry_that_wants_a_password_gets_the_operators_or_is_named() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(true).await.unwrap();
    let (name, archive) = published(&engine, &registry, Some(PASSWORD)).await;
    for wrong in [None, Some("not it")] {
        let mut lease = Lease::new();
        if let Some(password) = wrong {
            lease.config.images.registries = [(registry.address(), login(password))].into();
        }
        let messages = run_job(&lease, &name).await;
        let failed = of(&messages, "V0HordeFailedRequest").unwrap_or_else(|| panic!("{messages:#?}"));
        assert_eq!(of(&messages, "V0ExecutorReadyRequest"), None);
        assert_eq!(
            (
                &failed["context"]["code"],
                &failed["context"]["stage"],
                &failed["context"]["fault"]
            ),
            (&json!("E0008"), &json!("executor_startup"), &json!("user")),
            "{failed:#}"
        );
        let message = failed["message"].as_str().unwrap();
        assert!(
            message.contains("credentials") && message.contains(&name),
            "{message}"
        );
        lease.assert_clean(&engine).await;
    }
    let mut lease = Lease::new();
    lease.config.images.registries = [(registry.address(), login(PASSWORD))].into();
    let messages = run_job(&lease, &name).await;
    assert!(of(&messages, "V0JobFinishedRequest").is_some(), "{messages:#?}");
    forget(&engine, archive.id).await.unwrap();
}

fn login(password: &str) -> RegistryLogin {
    RegistryLogin {
        username: USER.to_owned(),
        password: password.to_owned(),
    }
}

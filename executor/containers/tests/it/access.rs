//! The images and registries that a job may name: the engine's own images are not for jobs, and no registry leads the
//! engine inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_containers::ImageArchive;
use muster_containers::image_error::ImageError;
use muster_containers::image_folders::UNSEEN;
use muster_containers::image_settings::ImageSettings;
use muster_containers::images::{FoundImage, ensure, find, preload};
use muster_containers::private_pull::pull_private;
use muster_containers::pull_error::PullError;
use muster_process::Tasks;
use muster_protocol::Digest;
use muster_protocol::job::{Fault, RegistryCredentials};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::registry::{PASSWORD, Registry, USER, Wire, forget, publish};
use crate::support::{clock, engine, host_files, image, require, settings, unwatched};

/// The defaults of an operator: nothing is listed.
fn strict(folder: &std::path::Path) -> ImageSettings {
    ImageSettings {
        cache_dir: folder.join("images"),
        ..ImageSettings::default()
    }
}

#[tokio::test]
async fn an_operators_own_image_is_no_jobs_by_name_or_by_id() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let (tag, archive) = image::unique(100).unwrap();
    engine.load(archive.bytes.clone()).await.unwrap();
    let closed = ImageSettings {
        pull: false,
        ..strict(folder.path())
    };
    let id = archive.id.to_string();
    for name in [&tag, &id] {
        let error = ensure(&engine, &closed, name, &unwatched(), &clock())
            .await
            .unwrap_err();
        assert!(matches!(error, ImageError::Missing(_)), "{name}: {error:?}");
        let error = find(&engine, &closed, name, &clock()).await.unwrap_err();
        assert!(matches!(error, ImageError::Missing(_)), "{name}: {error:?}");
    }
    // The operator lists it, fetches it by name, or lists its id: each is a permission.
    for listed in [&tag, &id] {
        let open = ImageSettings {
            local: vec![listed.clone()],
            cache_dir: folder.path().join(Digest::of(listed.as_bytes()).hex()),
            ..closed.clone()
        };
        let found = find(&engine, &open, listed, &clock()).await.unwrap();
        assert!(matches!(found, FoundImage::Here(_)), "{found:?}");
    }
    let fetched = ImageSettings {
        prefetch: vec![tag.clone()],
        ..closed.clone()
    };
    assert_eq!(preload(&engine, &fetched, &clock()).await.unwrap().len(), 1);
    for name in [&tag, &id] {
        ensure(&engine, &closed, name, &unwatched(), &clock())
            .await
            .unwrap();
    }
    forget(&engine, archive.id).await.unwrap();
}

#[tokio::test]
async fn a_registry_inside_is_never_asked() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let wire = Wire::to(&registry).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let settings = strict(folder.path());
    let port = wire.address().rsplit_once(':').unwrap().1.to_owned();
    let login = RegistryCredentials {
        username: USER.to_owned(),
        password: PASSWORD.to_owned(),
    };
    for host in [
        wire.address(),
        format!("localhost:{port}"),
        format!("0.0.0.0:{port}"),
    ] {
        let name = format!("{host}/muster/x:1");
        let by_job = ensure(&engine, &settings, &name, &unwatched(), &clock())
            .await
            .err();
        let looked = find(&engine, &settings, &name, &clock()).await.err();
        let by_login = pull_private(&engine, &settings, &name, &login, &unwatched(), &clock())
            .await
            .err();
        for error in [by_job, looked, by_login].map(Option::unwrap) {
            assert!(
                matches!(error, ImageError::Pull(PullError::NotPublic { .. })),
                "{name}: {error:?}"
            );
            assert_eq!(error.fault(), Fault::User);
        }
    }
    assert_eq!(wire.connections(), 0);
}

/// A server that gives every request this answer and counts them.
async fn serve(
    host: &str,
    tasks: &Tasks,
    answer: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((host, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    tasks.spawn("server", async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = vec![0; 8_192];
            let read = socket.read(&mut request).await.unwrap_or_default();
            let text = String::from_utf8_lossy(request.get(..read).unwrap_or_default()).into_owned();
            if text.contains("HTTP/1.1") {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = socket.write_all(answer(&text).as_bytes()).await;
            }
        }
    });
    (address, seen)
}

#[tokio::test]
async fn a_registry_that_leads_inside_does_not_lead_the_engine_there() {
    let engine = engine().await;
    let tasks = Tasks::new();
    let empty = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let (inside, asked) = serve("127.0.0.2", &tasks, move |_| empty.to_owned()).await;
    let realm = format!(
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"http://{inside}/token\",service=\"x\"\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let elsewhere = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{inside}/blob\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    let digest = Digest::of(b"layer");
    let manifest = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.docker.distribution.manifest.v2+json\",\
         \"config\":{{\"digest\":\"{digest}\",\"size\":5}},\"layers\":[{{\"digest\":\"{digest}\",\"size\":5}}]}}"
    );
    let whole = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.distribution.manifest.v2+json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{manifest}",
        manifest.len()
    );
    let blobs = elsewhere.clone();
    let by_realm = serve("127.0.0.1", &tasks, move |_| realm.clone()).await;
    let by_manifest = serve("127.0.0.1", &tasks, move |_| elsewhere.clone()).await;
    let by_blob = serve("127.0.0.1", &tasks, move |request| {
        if request.contains("/blobs/") {
            blobs.clone()
        } else {
            whole.clone()
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    for (address, requests) in [by_realm, by_manifest, by_blob] {
        let settings = ImageSettings {
            allow: vec![address.clone()],
            ..strict(folder.path())
        };
        let name = format!("{address}/x/y:1");
        let error = ensure(&engine, &settings, &name, &unwatched(), &clock())
            .await
            .unwrap_err();
        assert!(
            matches!(error, ImageError::Pull(PullError::NotPublic { .. })),
            "{name}: {error:?}"
        );
        assert!(
            error.to_string().contains(&inside) || error.to_string().contains("redirect"),
            "{error}"
        );
        assert!(
            requests.load(Ordering::SeqCst) <= 2,
            "the engine was not sent there"
        );
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    tasks.shutdown();
}

#[tokio::test]
async fn a_pull_takes_no_name_away_from_an_image_of_the_operators() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let (theirs_tag, theirs) = image::unique(100).unwrap();
    let (own_tag, own) = image::unique(100).unwrap();
    let name = format!("{}/muster/x:1", registry.address());
    for archive in [&theirs, &own] {
        engine.load(archive.bytes.clone()).await.unwrap();
    }
    engine
        .push(&theirs_tag, &name.parse().unwrap(), None)
        .await
        .unwrap();
    engine.remove_tag(&name).await.unwrap();
    engine.remove_tag(&theirs_tag).await.unwrap();
    // The operator built an image of his own under the name that the registry gives another meaning.
    let docker = bollard::Docker::connect_with_defaults().unwrap();
    let (repo, tag) = name.rsplit_once(':').unwrap();
    let named = bollard::query_parameters::TagImageOptions {
        repo: Some(repo.to_owned()),
        tag: Some(tag.to_owned()),
    };
    docker.tag_image(&own_tag, Some(named)).await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let open = ImageSettings {
        local: vec![],
        ..settings(folder.path())
    };
    let error = ensure(&engine, &open, &name, &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(
        matches!(error, ImageError::Pull(PullError::OtherImage { .. })),
        "{error:?}"
    );
    let kept = async || engine.find_image(&name).await.unwrap().map(|image| image.id);
    assert_eq!(kept().await, Some(own.id));
    let login = RegistryCredentials {
        username: USER.to_owned(),
        password: PASSWORD.to_owned(),
    };
    let leased = pull_private(&engine, &open, &name, &login, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!((leased.image.id, kept().await), (theirs.id, Some(own.id)));
    let manifest = leased.manifest.unwrap();
    drop(leased);
    forget(&engine, theirs.id).await.unwrap();

    // Under its digest the registry's image is the job's, and the name stays.
    let pinned = format!("{repo}@{manifest}");
    let leased = ensure(&engine, &open, &pinned, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!((leased.image.id, kept().await), (theirs.id, Some(own.id)));
    drop(leased);
    forget(&engine, theirs.id).await.unwrap();

    // An operator who pulled the same image by hand: the registry confirms it, and nothing is fetched again.
    engine.load(theirs.bytes.clone()).await.unwrap();
    engine
        .push(&theirs_tag, &name.parse().unwrap(), None)
        .await
        .unwrap();
    let leased = ensure(&engine, &open, &name, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!(leased.image.id, theirs.id);
    drop(leased);
    forget(&engine, theirs.id).await.unwrap();
    forget(&engine, own.id).await.unwrap();
}

#[tokio::test]
async fn an_operators_login_serves_the_repositories_of_his_list_and_his_own_list_of_images() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(true).await.unwrap();
    let (tag, archive) = image::unique(100).unwrap();
    let name = format!("{}/muster/secret:1", registry.address());
    engine.load(archive.bytes.clone()).await.unwrap();
    let login = muster_containers::credentials::RegistryLogin {
        username: USER.into(),
        password: PASSWORD.into(),
    };
    publish(&engine, archive.id, &tag, &name, Some(login.clone()))
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let listing = |repositories: &[&str]| ImageSettings {
        registries: [(registry.address(), login.clone())].into_iter().collect(),
        login_repositories: repositories
            .iter()
            .map(|&entry| entry.replace("HOST", &registry.address()))
            .collect(),
        local: vec![],
        ..settings(folder.path())
    };
    for others in [
        &[][..],
        &["HOST/muster/public"],
        &["HOST/mus/*"],
        &["ghcr.io/muster/*"],
    ] {
        let error = ensure(&engine, &listing(others), &name, &unwatched(), &clock())
            .await
            .unwrap_err();
        assert!(
            matches!(error, ImageError::Pull(PullError::Unauthorised { .. })),
            "{others:?}: {error:?}"
        );
        assert!(error.to_string().contains("login_repositories"), "{error}");
    }
    for ours in ["HOST/muster/secret", "HOST/muster/*"] {
        let leased = ensure(&engine, &listing(&[ours]), &name, &unwatched(), &clock())
            .await
            .unwrap();
        assert_eq!(leased.image.id, archive.id);
        drop(leased);
        forget(&engine, archive.id).await.unwrap();
        std::fs::remove_dir_all(folder.path().join("images")).unwrap_or_default();
    }
    let prefetching = ImageSettings {
        prefetch: vec![name.clone()],
        ..listing(&[])
    };
    assert_eq!(preload(&engine, &prefetching, &clock()).await.unwrap().len(), 1);
    forget(&engine, archive.id).await.unwrap();
}

/// An image whose layer of zeros is transferred in a thousandth of its size.
fn bomb(mib: usize) -> (String, ImageArchive) {
    let tag = format!("muster/bomb:{}", uuid::Uuid::new_v4());
    let content = muster_containers::ImageContent {
        tag: tag.clone(),
        files: vec![
            muster_containers::ImageFile {
                path: "/mark".to_owned(),
                mode: 0o644,
                contents: tag.clone().into_bytes(),
            },
            muster_containers::ImageFile {
                path: "/zeros".to_owned(),
                mode: 0o644,
                contents: vec![0; mib << 20],
            },
        ],
        ..Default::default()
    };
    (tag, ImageArchive::new(&content).unwrap())
}

#[tokio::test]
async fn an_image_that_is_too_large_packed_or_unpacked_is_its_users_fault_and_does_not_stay() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let wire = Wire::to(&registry).await.unwrap();
    let (tag, large) = bomb(96);
    let name = format!("{}/muster/bomb:1", registry.address());
    engine.load(large.bytes.clone()).await.unwrap();
    engine.push(&tag, &name.parse().unwrap(), None).await.unwrap();
    forget(&engine, large.id).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let open = ImageSettings {
        local: vec![],
        ..settings(folder.path())
    };
    let through = name.replace(&registry.address(), &wire.address());
    let pull = async |settings: &ImageSettings| {
        ensure(&engine, settings, &through, &unwatched(), &clock())
            .await
            .unwrap_err()
    };
    let unpacked = pull(&ImageSettings {
        max_unpacked_mib: 32,
        ..open.clone()
    })
    .await;
    assert!(
        matches!(unpacked, ImageError::Pull(PullError::TooLarge { .. })),
        "{unpacked:?}"
    );
    assert_eq!(unpacked.fault(), Fault::User);
    assert_eq!(engine.find_image(&large.id.to_string()).await.unwrap(), None);

    // The sum of the manifest is known before the engine is asked: two requests for it, and two for places of blobs.
    let (tag, random) = image::unique(4 << 20).unwrap();
    let name = format!("{}/muster/random:1", registry.address());
    engine.load(random.bytes.clone()).await.unwrap();
    engine.push(&tag, &name.parse().unwrap(), None).await.unwrap();
    forget(&engine, random.id).await.unwrap();
    let through = name.replace(&registry.address(), &wire.address());
    let small = ImageSettings {
        max_mib: 2,
        ..open.clone()
    };
    let before = wire.connections();
    let packed = ensure(&engine, &small, &through, &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(
        matches!(packed, ImageError::Pull(PullError::TooLarge { .. })),
        "{packed:?}"
    );
    assert!(wire.connections() - before <= 3, "the engine was not asked");

    let full = ImageSettings {
        reserve_mib: 1 << 40,
        ..open
    };
    let refused = ensure(&engine, &full, &through, &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(
        matches!(refused, ImageError::Pull(PullError::DiskFull { .. })),
        "{refused:?}"
    );
    assert_eq!(refused.fault(), Fault::Executor);
    assert_eq!(engine.find_image(&random.id.to_string()).await.unwrap(), None);
}

#[tokio::test]
async fn a_volume_of_an_image_is_no_unbounded_folder_however_its_path_is_written() {
    use muster_containers::sandbox::{Gpus, ResourceLimits, Root, RunAs, Sandbox};
    let engine = engine().await;
    let (tag, archive) = image::unique(100).unwrap();
    engine.load(archive.bytes.clone()).await.unwrap();
    let mut local = engine.find_image(&tag).await.unwrap().unwrap();
    let docker = bollard::Docker::connect_with_defaults().unwrap();
    for written in ["/data/.", "/data/", "/x/../data"] {
        // The engine reads the image's volumes like those of the request.
        local.volumes = vec![written.to_owned()];
        let sandbox = Sandbox {
            image: &local,
            command: None,
            environment: vec![],
            binds: vec![],
            host_files: host_files(),
            labels: std::collections::HashMap::from([(crate::support::LABEL.to_owned(), String::new())]),
            image_folders: &UNSEEN,
            image_files: std::path::Path::new("/"),
            allowance: ResourceLimits {
                nano_cpus: 100_000_000,
                memory: 64 << 20,
                shm: 1 << 20,
                tmpfs: 1 << 20,
                pids: 16,
                disk: 1 << 20,
            },
            runtime: "",
            gpus: Gpus::None,
            run_as: RunAs::Image,
            root: Root::ReadOnly,
        };
        let mut body = sandbox.container().unwrap();
        body.volumes = Some(vec![written.to_owned()]);
        let name = format!("muster-volume-{}", uuid::Uuid::new_v4());
        engine.create(&name, body).await.unwrap();
        let found = docker.inspect_container(&name, None).await.unwrap();
        engine.remove(&name).await.unwrap();
        let mut volumes = found.mounts.unwrap_or_default();
        volumes.retain(|mount| mount.typ.as_deref() != Some("bind"));
        assert!(volumes.is_empty(), "{written}: {volumes:?}");
    }
    forget(&engine, archive.id).await.unwrap();
}

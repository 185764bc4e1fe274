//! Images from a real registry: by tag and digest, with and without a password, over a connection that breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_containers::credentials::RegistryLogin;
use muster_containers::image_error::ImageError;
use muster_containers::image_pull::PullState;
use muster_containers::image_settings::ImageSettings;
use muster_containers::images::ensure;
use muster_containers::private_pull::pull_private;
use muster_containers::pull_error::PullError;
use muster_containers::{ContainerEngine, ImageArchive};
use muster_process::Coded;
use muster_protocol::job::{Fault, RegistryCredentials};
use muster_protocol::{Digest, ErrorCode, ImageId};

use crate::support::registry::{PASSWORD, Registry, USER, Wire, forget, publish};
use crate::support::{self, clock, engine, image, require, unwatched};

/// Settings for images that only a registry has: none of the engine's own counts.
fn settings(folder: &std::path::Path) -> ImageSettings {
    ImageSettings {
        local: vec![],
        ..support::settings(folder)
    }
}

fn login(password: &str) -> RegistryLogin {
    RegistryLogin {
        username: USER.into(),
        password: password.into(),
    }
}

/// Pushes an image to a registry and removes it from the engine. Returns its name there.
async fn published(
    engine: &ContainerEngine,
    address: &str,
    bytes: usize,
    who: Option<RegistryLogin>,
) -> (String, ImageArchive) {
    let (tag, archive) = image::unique(bytes).unwrap();
    engine.load(archive.bytes.clone()).await.unwrap();
    let name = format!("{address}/muster/x:{}", tag.rsplit_once(':').unwrap().1);
    publish(engine, archive.id, &tag, &name, who).await.unwrap();
    (name, archive)
}

#[tokio::test]
async fn an_image_comes_by_tag_and_by_digest_and_is_what_we_computed() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let (name, archive) = published(&engine, &registry.address(), 3 << 20, None).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());

    let seen = Arc::new(AtomicU64::new(0));
    let progress = {
        let seen = Arc::clone(&seen);
        Arc::new(move |state: PullState| {
            seen.fetch_max(state.done, Ordering::SeqCst);
        })
    };
    let resolved = ensure(&engine, &settings, &name, &(progress as _), &clock())
        .await
        .unwrap();
    assert_eq!(
        resolved.image.id, archive.id,
        "the id is the digest of the config, wherever it comes from"
    );
    // The layer is sent compressed, a little smaller.
    assert!(seen.load(Ordering::SeqCst) > 2 << 20, "{seen:?}");
    let manifest = resolved.manifest.expect("the registry's digest");
    drop(resolved);
    forget(&engine, archive.id).await.unwrap();

    let place = name.rsplit_once(':').unwrap().0;
    let pinned = format!("{place}@{manifest}");
    let resolved = ensure(&engine, &settings, &pinned, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!(
        (resolved.image.id, resolved.manifest),
        (archive.id, Some(manifest))
    );
    drop(registry);
    // The engine has the image now: the registry is not asked again.
    ensure(&engine, &settings, &pinned, &unwatched(), &clock())
        .await
        .unwrap();
    forget(&engine, archive.id).await.unwrap();
}

#[tokio::test]
async fn image_unknown_to_its_registry_is_the_users_fault_and_not_retried() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let wire = Wire::to(&registry).await.unwrap();
    let (name, _) = published(&engine, &registry.address(), 10, None).await;
    let folder = tempfile::tempdir().unwrap();
    let place = name
        .rsplit_once(':')
        .unwrap()
        .0
        .replace(&registry.address(), &wire.address());
    let before = wire.connections();
    for missing in [
        format!("{place}:none"),
        format!("{place}@{}", Digest::of(b"none")),
        format!("{}/none/none:1", wire.address()),
    ] {
        let error = ensure(
            &engine,
            &settings(folder.path()),
            &missing,
            &unwatched(),
            &clock(),
        )
        .await
        .unwrap_err();
        assert!(
            matches!(error, ImageError::Pull(PullError::NotFound { .. })),
            "{missing}: {error:?}"
        );
        assert_eq!(
            (error.fault(), error.code()),
            (Fault::User, Some(ErrorCode::ImageMissing))
        );
    }
    assert!(
        wire.connections() - before < 20,
        "asked once each, on few connections"
    );
    let refused = ImageSettings {
        pull: false,
        ..settings(folder.path())
    };
    let error = ensure(&engine, &refused, &name, &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(matches!(error, ImageError::Missing(_)), "{error:?}");
    let id = ImageId(Digest::of(b"none")).to_string();
    let error = ensure(&engine, &settings(folder.path()), &id, &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(matches!(error, ImageError::Missing(_)), "{error:?}");
    let error = ensure(&engine, &settings(folder.path()), "../x", &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(matches!(error, ImageError::Name(_)), "{error:?}");
}

#[tokio::test]
async fn a_password_opens_a_registry_and_a_wrong_one_is_named() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(true).await.unwrap();
    let (name, archive) = published(&engine, &registry.address(), 10, Some(login(PASSWORD))).await;
    let folder = tempfile::tempdir().unwrap();
    let open = settings(folder.path());
    for registries in [vec![], vec![(registry.address(), login("wrong"))]] {
        let closed = ImageSettings {
            registries: registries.into_iter().collect(),
            ..open.clone()
        };
        let error = ensure(&engine, &closed, &name, &unwatched(), &clock())
            .await
            .unwrap_err();
        assert!(
            matches!(error, ImageError::Pull(PullError::Unauthorised { .. })),
            "{error:?}"
        );
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let by_table = ImageSettings {
        registries: [(registry.address(), login(PASSWORD))].into_iter().collect(),
        ..open.clone()
    };
    ensure(&engine, &by_table, &name, &unwatched(), &clock())
        .await
        .unwrap();
    forget(&engine, archive.id).await.unwrap();

    // As `docker login` writes it: base64 of name and password.
    let docker_config = folder.path().join("config.json");
    let pair = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        format!("{USER}:{PASSWORD}"),
    );
    let document = serde_json::json!({"auths": {registry.address(): {"auth": pair}}});
    std::fs::write(&docker_config, document.to_string()).unwrap();
    let by_file = ImageSettings {
        docker_config,
        ..open
    };
    let resolved = ensure(&engine, &by_file, &name, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!(resolved.image.id, archive.id);
    forget(&engine, archive.id).await.unwrap();
}

#[tokio::test]
async fn a_registry_that_is_gone_for_a_moment_is_tried_again() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let wire = Wire::to(&registry).await.unwrap();
    let (name, archive) = published(&engine, &registry.address(), 10, None).await;
    let name = name.replace(&registry.address(), &wire.address());
    let folder = tempfile::tempdir().unwrap();
    // The engine tries two schemes, https and http, before it gives up.
    wire.refuse_next(3);
    let resolved = ensure(&engine, &settings(folder.path()), &name, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!(resolved.image.id, archive.id);
    forget(&engine, archive.id).await.unwrap();
}

#[tokio::test]
async fn a_pull_that_is_cut_in_the_middle_of_a_layer_goes_on() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(false).await.unwrap();
    let wire = Wire::to(&registry).await.unwrap();
    let (name, archive) = published(&engine, &registry.address(), 6 << 20, None).await;
    let name = name.replace(&registry.address(), &wire.address());
    let folder = tempfile::tempdir().unwrap();
    wire.cut_after(2 << 20);
    let resolved = ensure(&engine, &settings(folder.path()), &name, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!(resolved.image.id, archive.id);
    assert_eq!(wire.cuts(), 1, "the layer was on its way when the wire was cut");
    forget(&engine, archive.id).await.unwrap();
}

#[tokio::test]
async fn a_users_login_gets_an_image_that_no_other_job_can_name() {
    let engine = engine().await;
    require("docker-registry");
    let registry = Registry::start(true).await.unwrap();
    let (name, archive) = published(&engine, &registry.address(), 10, Some(login(PASSWORD))).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    let with = |password: &str| RegistryCredentials {
        username: USER.to_owned(),
        password: password.to_owned(),
    };
    let pull = async |name: &str, password: &str| {
        pull_private(&engine, &settings, name, &with(password), &unwatched(), &clock()).await
    };
    let error = pull(&name, "wrong").await.unwrap_err();
    assert!(
        matches!(error, ImageError::Pull(PullError::Unauthorised { .. })),
        "{error:?}"
    );
    assert_eq!(error.fault(), Fault::User);
    assert!(!error.to_string().contains("wrong"), "{error}");

    let leased = pull(&name, PASSWORD).await.unwrap();
    assert_eq!(leased.image.id, archive.id);
    let manifest = leased.manifest.expect("the registry's digest");
    let place = name.rsplit_once(':').unwrap().0;
    let pinned = format!("{place}@{manifest}");
    for known in [&name, &pinned] {
        assert_eq!(engine.find_image(known).await.unwrap(), None, "{known}");
    }
    // The engine has the image, but a job without the login asks the registry and is refused. (A digest is a key to
    // the content: an engine that has it need not ask.)
    let error = ensure(&engine, &settings, &name, &unwatched(), &clock())
        .await
        .unwrap_err();
    assert!(
        matches!(error, ImageError::Pull(PullError::Unauthorised { .. })),
        "{error:?}"
    );
    let error = pull(&name, "wrong").await.unwrap_err();
    assert!(
        matches!(error, ImageError::Pull(PullError::Unauthorised { .. })),
        "the registry is asked although the image is here: {error:?}"
    );

    // Once more, by tag and by digest: the image keeps its one random name.
    drop(pull(&name, PASSWORD).await.unwrap());
    drop(pull(&pinned, PASSWORD).await.unwrap());
    assert_eq!(engine.list_tags(archive.id).await.unwrap().len(), 1);
    drop(leased);
    forget(&engine, archive.id).await.unwrap();
}

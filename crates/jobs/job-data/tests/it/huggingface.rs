//! Snapshots from a server that speaks the hub's API, checked with the hub's own Python client.

use std::collections::BTreeMap;

use muster_process::Coded;
use muster_protocol::ErrorCode;
use muster_protocol::job::Fault;
use serde_json::{Value, json};

use crate::hub_server::{Hub, Repository, TOKEN};
use crate::server::{Server, answer};
use crate::support::{Room, files};

fn volume(more: Value) -> Value {
    let mut volume = json!({"volume_type": "huggingface_volume", "repo_id": "owner/name-1.5", "repo_type": null,
        "revision": null, "relative_path": null, "allow_patterns": null, "token": null});
    for (key, value) in more.as_object().unwrap() {
        volume[key] = value.clone();
    }
    volume
}

fn room(hub: &Hub) -> Room {
    let mut room = Room::new();
    room.settings.hub = hub.api.url("");
    room
}

fn expected(repository: &Repository) -> BTreeMap<String, Vec<u8>> {
    let files = repository.files.iter();
    files
        .map(|(path, file)| ((*path).to_owned(), file.content.clone()))
        .collect()
}

#[tokio::test]
async fn a_whole_repository_arrives_checked_by_its_digests() {
    let repository = Repository::sample();
    let hub = Hub::start(repository.clone()).await;
    assert!(room(&hub).place(volume(json!({}))).await.unwrap() == expected(&repository));
    let placed = room(&hub)
        .place(volume(
            json!({"revision": "refs/pr/1", "relative_path": "models/m", "allow_patterns": "*.json"}),
        ))
        .await
        .unwrap();
    let names: Vec<_> = placed.keys().map(String::as_str).collect();
    assert_eq!(names, ["models/m/config.json", "models/m/data/sub/x.json"]);
}

#[tokio::test]
async fn data_sets_and_spaces_have_places_of_their_own() {
    for (kind, repo_type) in [("datasets", "dataset"), ("spaces", "space")] {
        let repository = Repository {
            kind,
            ..Repository::sample()
        };
        let hub = Hub::start(repository.clone()).await;
        let placed = room(&hub)
            .place(volume(json!({"repo_type": repo_type})))
            .await
            .unwrap();
        assert!(placed == expected(&repository), "{kind}");
        let error = room(&hub).place(volume(json!({}))).await.unwrap_err();
        assert_eq!(
            (error.code(), error.fault()),
            (Some(ErrorCode::InputDenied), Fault::User)
        );
    }
}

#[tokio::test]
async fn a_token_goes_to_the_hub_and_nowhere_else() {
    let gated = Repository {
        gated: true,
        ..Repository::sample()
    };
    let hub = Hub::start(gated.clone()).await;
    let error = room(&hub).place(volume(json!({}))).await.unwrap_err();
    let text = muster_process::error::Causes(&error).to_string();
    assert_eq!(error.code(), Some(ErrorCode::InputDenied));
    assert!(text.contains("401 Unauthorized (GatedRepo)"), "{text}");
    // The volume's own token, inside a multi_volume too, or the operator's.
    let own = json!({"volume_type": "multi_volume", "volumes": [volume(json!({"token": TOKEN}))]});
    assert!(room(&hub).place(own).await.unwrap() == expected(&gated));
    let mut with_token = room(&hub);
    with_token.settings.hub_token = TOKEN.to_owned();
    let error = with_token.place(volume(json!({}))).await.unwrap_err();
    assert_eq!(
        error.code(),
        Some(ErrorCode::InputDenied),
        "the operator lists no repository"
    );
    with_token.settings.hub_repositories = vec!["*".to_owned()];
    assert!(with_token.place(volume(json!({}))).await.unwrap() == expected(&gated));
    assert!(hub.store.seen().len() >= 2);
    assert!(
        hub.store
            .seen()
            .iter()
            .all(|request| request.header("authorization").is_none())
    );
    let wrong = room(&hub)
        .place(volume(json!({"token": "wrong"})))
        .await
        .unwrap_err();
    assert!(!format!("{wrong:?}").contains("Bearer"), "{wrong:?}");
}

#[tokio::test]
async fn large_files_are_kept_by_their_digest() {
    let hub = Hub::start(Repository::sample()).await;
    let room = room(&hub).keeping(64);
    for _ in 0..3 {
        assert!(room.place(volume(json!({}))).await.unwrap() == expected(&Repository::sample()));
    }
    assert_eq!(hub.store.seen().len(), 1);
}

#[tokio::test]
async fn other_bytes_than_the_hub_promised_are_refused() {
    for path in ["config.json", "model.safetensors"] {
        let mut repository = Repository::sample();
        let file = repository.files.get_mut(path).unwrap();
        let mut changed = file.content.clone();
        changed[0] ^= 1;
        file.instead = Some(changed);
        let hub = Hub::start(repository).await;
        let error = room(&hub)
            .place(volume(json!({"allow_patterns": path})))
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::InputMismatch), "{path}: {error:?}");
        let kept = room(&hub).keeping(64);
        kept.place(volume(json!({"allow_patterns": path})))
            .await
            .unwrap_err();
        assert_eq!(
            std::fs::read_dir(kept.path("kept/blobs")).unwrap().count(),
            0,
            "it is not kept"
        );
    }
}

#[tokio::test]
async fn malformed_repository_names_are_never_requested() {
    let hub = Hub::start(Repository::sample()).await;
    for more in [
        json!({"repo_id": "../../etc"}),
        json!({"repo_id": "a/b/c"}),
        json!({"repo_type": "kernel"}),
        json!({"revision": "../main"}),
        json!({"token": "a\nb"}),
        json!({"relative_path": "../x"}),
    ] {
        let error = room(&hub).place(volume(more.clone())).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::VolumeRefused), "{more}: {error:?}");
    }
    assert!(hub.api.seen().is_empty());
    let error = room(&hub)
        .place(volume(json!({"allow_patterns": ["*.nothing"]})))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::VolumeRefused), "{error:?}");
    let error = room(&hub)
        .place(volume(json!({"revision": "v9"})))
        .await
        .unwrap_err();
    assert!(
        muster_process::error::Causes(&error)
            .to_string()
            .contains("RevisionNotFound"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_listing_that_means_harm_is_refused() {
    let file =
        |path: &str, size: u64| json!({"type": "file", "path": path, "size": size, "oid": "1".repeat(40)});
    for (page, code) in [
        (json!([file("../x", 1)]), ErrorCode::VolumeRefused),
        (json!([file("/etc/x", 1)]), ErrorCode::VolumeRefused),
        (json!([file("a", u64::MAX)]), ErrorCode::VolumeRefused),
        (json!([file("a", 1), file("a", 1)]), ErrorCode::InputUnreachable),
        (
            json!((0..2_000).map(|n| file(&n.to_string(), 0)).collect::<Vec<_>>()),
            ErrorCode::VolumeRefused,
        ),
        (json!({"error": "x"}), ErrorCode::InputUnreachable),
    ] {
        let text = page.to_string();
        let server = Server::start(move |request, _| {
            if request.path.contains("/revision/") {
                answer(
                    "200 OK",
                    &[],
                    json!({"sha": "0".repeat(40)}).to_string().as_bytes(),
                )
            } else if request.path.contains("/tree/") {
                answer("200 OK", &[], text.as_bytes())
            } else {
                answer("200 OK", &[], b"x")
            }
        })
        .await;
        let mut room = Room::new();
        room.settings.hub = server.url("");
        let error = room.place(volume(json!({}))).await.unwrap_err();
        // A file of one byte is fetched before its name is checked; its content does not have the git name.
        let refused = [Some(code), Some(ErrorCode::InputMismatch)];
        assert!(refused.contains(&error.code()), "{error:?}");
    }
    // A next page on another server would get the token, and an endless list of pages must stop.
    for link in [
        "<http://169.254.169.254/>; rel=\"next\"",
        "</api/x/tree/again>; rel=\"next\"",
    ] {
        let server = Server::start(move |request, _| {
            if request.path.contains("/revision/") {
                answer(
                    "200 OK",
                    &[],
                    json!({"sha": "0".repeat(40)}).to_string().as_bytes(),
                )
            } else {
                answer("200 OK", &[("Link", link)], b"[]")
            }
        })
        .await;
        let mut room = Room::new();
        room.settings.hub = server.url("");
        let error = room.place(volume(json!({}))).await.unwrap_err();
        assert_eq!(
            error.code(),
            Some(ErrorCode::InputUnreachable),
            "{link}: {error:?}"
        );
    }
}

/// The hub's own client finds the same files at this server as our client: the server speaks the hub's API.
#[tokio::test]
async fn the_hubs_python_client_downloads_the_same() {
    let python = std::env::var("MUSTER_TEST_HUB_PYTHON")
        .expect("this test needs MUSTER_TEST_HUB_PYTHON, which `cargo xtask test` sets");
    let repository = Repository {
        gated: true,
        ..Repository::sample()
    };
    let hub = Hub::start(repository.clone()).await;
    let home = tempfile::tempdir().unwrap();
    let script = "import sys; from huggingface_hub import snapshot_download; snapshot_download('owner/name-1.5', \
                  local_dir=sys.argv[1], token=sys.argv[2], allow_patterns=sys.argv[3] or None)";
    for (patterns, ours) in [
        ("", Value::Null),
        ("data/", json!("data/")),
        ("*.json", json!(["*.json"])),
    ] {
        let folder = home.path().join(format!("out-{}", patterns.len()));
        let output = tokio::process::Command::new(&python)
            .args(["-c", script])
            .arg(&folder)
            .args([TOKEN, patterns])
            .env("HF_ENDPOINT", hub.api.url(""))
            .env("HF_HOME", home.path().join("hf"))
            .env("HF_HUB_DISABLE_TELEMETRY", "1")
            .env("HF_HUB_DISABLE_XET", "1")
            .output()
            .await
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::remove_dir_all(folder.join(".cache")).unwrap();
        let theirs = files(&folder);
        let volume = volume(json!({"token": TOKEN, "allow_patterns": ours}));
        assert!(room(&hub).place(volume).await.unwrap() == theirs, "{patterns}");
        assert!(!theirs.is_empty(), "{patterns}");
    }
}

//! The engine itself: our archives have the ids we computed, and bring no names.

use std::path::PathBuf;

use muster_containers::image_cache::{ImageCollectionCounts, collect};
use muster_containers::image_leases::Lease;
use muster_containers::image_settings::ImageSettings;
use muster_containers::images::{load_from, preload};

use crate::support::{clock, engine, image};

fn saved(folder: &std::path::Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("image.tar");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[tokio::test]
async fn a_loaded_archive_has_the_id_we_computed_and_no_name() {
    let engine = engine().await;
    let (tag, archive) = image::unique(100).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path(), &archive.bytes);
    let found = load_from(&engine, &tag, std::slice::from_ref(&path))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.id, archive.id);
    assert_eq!(engine.list_tags(archive.id).await.unwrap(), Vec::<String>::new());
    assert_eq!(
        engine.find_image(&tag).await.unwrap(),
        None,
        "its name stays with the archive"
    );
    assert!(
        engine
            .find_image(&archive.id.to_string())
            .await
            .unwrap()
            .is_some()
    );
    // The image is found by its archive's name without a second load, although the engine does not know the name.
    load_from(&engine, &tag, &[path]).await.unwrap().unwrap();
    engine.remove_tag(&archive.id.to_string()).await.unwrap();
}

#[tokio::test]
async fn an_archive_cannot_take_the_name_of_an_image_that_others_use() {
    let engine = engine().await;
    let (helper, theirs) = image::unique(100).unwrap();
    engine.load(theirs.bytes.clone()).await.unwrap();
    let content = muster_containers::ImageContent {
        tag: helper.clone(),
        // An image of its own, and one that takes room: an image without content need not be removed to make some.
        files: vec![muster_containers::ImageFile {
            path: "/name".to_owned(),
            mode: 0o644,
            contents: helper.clone().into_bytes(),
        }],
        ..Default::default()
    };
    let evil = muster_containers::ImageArchive::new(&content).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let settings = ImageSettings {
        preload: vec![
            folder.path().join("absent.tar"),
            saved(folder.path(), &evil.bytes),
        ],
        prefetch: vec![theirs.id.to_string(), "sha256:not an image".into()],
        cache_dir: folder.path().join("images"),
        keep_mib: 0,
        ..ImageSettings::default()
    };
    let held = preload(&engine, &settings, &clock()).await.unwrap();
    let ids: Vec<_> = held.iter().map(Lease::image).collect();
    assert_eq!(ids, [evil.id, theirs.id]);
    let collected = collect(&engine, &settings, &clock()).await.unwrap();
    assert_eq!(
        collected,
        ImageCollectionCounts { removed: 0, kept: 2 },
        "preloaded images are leased"
    );
    let named = engine.find_image(&helper).await.unwrap().unwrap();
    assert_eq!(named.id, theirs.id, "the name still means what it meant");
    for name in [helper, evil.id.to_string()] {
        engine.remove_tag(&name).await.unwrap();
    }
}

#[tokio::test]
async fn file_that_is_no_archive_is_refused_by_name() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path(), b"this is not a tar archive");
    let error = engine.load_untagged(&path).await.unwrap_err().to_string();
    assert!(error.contains("image.tar"), "{error}");
    let error = engine
        .load_untagged(&folder.path().join("none"))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("none"), "{error}");
}

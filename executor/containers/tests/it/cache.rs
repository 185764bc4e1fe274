//! Unused images go from a real engine; used ones and other people's stay.

use std::path::Path;

use muster_containers::ContainerEngine;
use muster_containers::image_cache::{ImageCollectionCounts, collect};
use muster_containers::image_settings::ImageSettings;
use muster_containers::images::{LeasedImage, ensure};
use muster_protocol::ImageId;

use crate::support::{clock, engine, image, settings, unwatched};

/// The settings of a cache in which no unused image may stay.
fn greedy(folder: &Path, archive: Option<&Path>) -> ImageSettings {
    ImageSettings {
        cache_dir: folder.join("images"),
        preload: archive.map(Path::to_owned).into_iter().collect(),
        keep_mib: 0,
        ..settings(folder)
    }
}

async fn used(engine: &ContainerEngine, folder: &Path, number: usize) -> (LeasedImage, ImageId) {
    let (tag, archive) = image::unique(100).unwrap();
    let path = folder.join(format!("{number}.tar"));
    std::fs::write(&path, &archive.bytes).unwrap();
    let settings = greedy(folder, Some(&path));
    let resolved = ensure(engine, &settings, &tag, &unwatched(), &clock())
        .await
        .unwrap();
    assert_eq!(resolved.image.id, archive.id);
    (resolved, archive.id)
}

async fn there(engine: &ContainerEngine, id: ImageId) -> bool {
    engine.find_image(&id.to_string()).await.unwrap().is_some()
}

#[tokio::test]
async fn unused_images_go_and_leased_ones_stay() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let (leased, leased_id) = used(&engine, folder.path(), 1).await;
    let (unused, unused_id) = used(&engine, folder.path(), 2).await;
    let (strange_name, strange) = image::unique(100).unwrap();
    engine.load(strange.bytes).await.unwrap();
    drop(unused);
    let settings = greedy(folder.path(), None);
    let collected = collect(&engine, &settings, &clock()).await.unwrap();
    assert_eq!(collected, ImageCollectionCounts { removed: 1, kept: 1 });
    assert!(there(&engine, leased_id).await && !there(&engine, unused_id).await);
    assert!(
        there(&engine, strange.id).await,
        "never used by an executor: not ours"
    );
    drop(leased);
    assert_eq!(
        collect(&engine, &settings, &clock()).await.unwrap(),
        ImageCollectionCounts { removed: 1, kept: 0 }
    );
    assert!(!there(&engine, leased_id).await);
    assert_eq!(
        collect(&engine, &settings, &clock()).await.unwrap(),
        ImageCollectionCounts::default()
    );
    engine.remove_tag(&strange_name).await.unwrap();
}

#[tokio::test]
async fn an_image_that_somebody_else_has_a_name_for_stays() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let (tag, archive) = image::unique(100).unwrap();
    // The image was here under its owner's name before an executor used it by its id.
    engine.load(archive.bytes).await.unwrap();
    let settings = greedy(folder.path(), None);
    let id = archive.id.to_string();
    drop(
        ensure(&engine, &settings, &id, &unwatched(), &clock())
            .await
            .unwrap(),
    );
    let kept = ImageCollectionCounts { removed: 0, kept: 1 };
    assert_eq!(collect(&engine, &settings, &clock()).await.unwrap(), kept);
    assert!(there(&engine, archive.id).await);
    engine.remove_tag(&tag).await.unwrap();
    // The image was removed by other means, so the next collection removes its record.
    assert_eq!(
        collect(&engine, &settings, &clock()).await.unwrap(),
        ImageCollectionCounts::default()
    );
    assert_eq!(std::fs::read_dir(&settings.cache_dir).unwrap().count(), 0);
}

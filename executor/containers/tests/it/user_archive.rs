//! Users' own archives in a real engine: the image that was promised is loaded without its names, nothing else is.

use muster_containers::ImageArchive;
use muster_containers::image_error::{ImageError, UserArchiveError};
use muster_containers::image_settings::ImageSettings;
use muster_containers::user_archive::load_user_image;
use muster_protocol::job::Fault;
use muster_protocol::{Digest, ImageId};

use crate::support::{clock, engine, image};

fn merged(one: &ImageArchive, other: &ImageArchive) -> Vec<u8> {
    let mut manifests = Vec::<serde_json::Value>::new();
    let mut tar = tar::Builder::new(Vec::new());
    for archive in [one, other] {
        let mut whole = tar::Archive::new(&archive.bytes[..]);
        for entry in whole.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (mut header, path) = (entry.header().clone(), entry.path().unwrap().into_owned());
            if path.as_os_str() == "manifest.json" {
                let read: Vec<serde_json::Value> = serde_json::from_reader(entry).unwrap();
                manifests.extend(read);
            } else {
                tar.append_data(&mut header, path, &mut entry).unwrap();
            }
        }
    }
    let text = serde_json::to_vec(&manifests).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "manifest.json", &text[..]).unwrap();
    tar.into_inner().unwrap()
}

#[tokio::test]
async fn a_users_image_is_loaded_by_its_id_and_gets_no_name() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let settings = ImageSettings {
        cache_dir: folder.path().join("cache"),
        ..ImageSettings::default()
    };
    let (tag, archive) = image::unique(1_000).unwrap();
    let path = folder.path().join("image.tar");
    std::fs::write(&path, &archive.bytes).unwrap();
    let leased = load_user_image(&engine, &settings, archive.id, &path, &clock())
        .await
        .unwrap();
    assert_eq!((leased.image.id, leased.manifest), (archive.id, None));
    assert_eq!(
        engine.find_image(&tag).await.unwrap(),
        None,
        "the archive's name is not taken"
    );
    let recorded = std::fs::read_dir(&settings.cache_dir).unwrap().count();
    assert!(
        recorded > 0,
        "the image is known to the collection of unused images"
    );
    drop(leased);
    engine.remove_tag(&archive.id.to_string()).await.unwrap();
}

#[tokio::test]
async fn archive_of_another_image_is_the_users_fault_and_is_not_loaded() {
    let engine = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let settings = ImageSettings {
        cache_dir: folder.path().join("cache"),
        ..ImageSettings::default()
    };
    let (_, wanted) = image::unique(500).unwrap();
    let (_, other) = image::unique(500).unwrap();
    for (bytes, words) in [
        (other.bytes.clone(), "instead of"),
        (merged(&wanted, &other), "holds 2 images"),
        (b"hello".to_vec(), "docker save"),
        (wanted.bytes[..wanted.bytes.len() / 2].to_vec(), "docker save"),
        (vec![], "docker save"),
    ] {
        let path = folder.path().join("image.tar");
        std::fs::write(&path, bytes).unwrap();
        let error = load_user_image(&engine, &settings, wanted.id, &path, &clock())
            .await
            .unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert_eq!(error.fault(), Fault::User, "{error}");
        assert!(!error.is_recoverable());
        assert!(
            matches!(
                error,
                ImageError::UserArchive(
                    UserArchiveError::Unreadable(_)
                        | UserArchiveError::OtherImage { .. }
                        | UserArchiveError::SeveralImages(2)
                )
            ),
            "{error:?}"
        );
    }
    for id in [wanted.id, other.id, ImageId(Digest::of(b""))] {
        assert_eq!(engine.find_image(&id.to_string()).await.unwrap(), None);
    }
}

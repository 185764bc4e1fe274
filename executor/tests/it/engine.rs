//! The engine itself: an image loaded from our archive has the content of the archive.

use muster_executor::{ImageArchive, ImageContent, ImageFile};

#[tokio::test]
async fn the_engine_gives_an_archive_exactly_the_id_that_was_computed() {
    let engine = crate::support::engine().await;
    engine.ping().await.unwrap();
    let note = ImageFile {
        path: "/etc/note".into(),
        mode: 0o600,
        // An image for this test alone, which no other run removes.
        contents: uuid::Uuid::new_v4().to_string().into_bytes(),
    };
    let content = ImageContent {
        tag: format!("muster/executor-archive-test:{}", uuid::Uuid::new_v4()),
        files: vec![note],
        entrypoint: vec!["/nothing".into()],
        environment: vec!["A=b".into()],
        user: "1000:1000".into(),
        ..ImageContent::default()
    };
    let archive = ImageArchive::new(&content).unwrap();
    engine.load(archive.bytes.clone()).await.unwrap();
    for name in [archive.id.to_string(), content.tag.clone()] {
        let found = engine.find_image(&name).await.unwrap().unwrap();
        assert_eq!(found.id, archive.id, "{name}");
        assert_eq!(
            (found.user.as_str(), found.environment.as_slice()),
            ("1000:1000", &["A=b".to_owned()][..])
        );
    }
    assert_eq!(
        engine
            .find_image("muster/executor-archive-test:none")
            .await
            .unwrap(),
        None
    );
    crate::support::image::forget(&content.tag).await;
    assert_eq!(engine.find_image("../version?x=").await.unwrap(), None);
}

#[tokio::test]
async fn file_that_is_no_archive_is_refused_by_name() {
    let engine = crate::support::engine().await;
    let error = engine.load(&b"this is not a tar archive"[..]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the docker engine could not load an image archive"
    );
    engine.remove("muster-no-such-container").await.unwrap();
    engine
        .stop("muster-no-such-container", std::time::Duration::from_secs(1))
        .await
        .unwrap();
}

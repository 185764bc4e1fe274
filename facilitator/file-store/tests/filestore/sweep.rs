//! Sweeps delete expired files and unused objects, and nothing else.

use std::time::Duration;

use muster_file_store::FileError;
use muster_file_store::catalogue::Segment;
use uuid::Uuid;

use crate::support::{MIB, each, small};

const HOUR: Duration = Duration::from_secs(3_600);

fn segment(object: &str, start: u64, len: u64) -> Segment {
    let object = object.to_owned();
    Segment { object, start, len }
}

#[tokio::test]
async fn files_go_when_their_time_is_over_and_so_do_their_bytes() {
    for store in each().await {
        let old = store.announce(9 * MIB, None).await;
        assert_eq!(store.put(&old, vec![1; 9 << 20]).await.status(), 201);
        assert_eq!(store.objects(), 2);
        store.clock.advance(HOUR * 6);
        let young = store.announce(3, None).await;
        assert_eq!(store.put(&young, b"abc".to_vec()).await.status(), 201);
        assert_eq!(store.service.sweep().await.unwrap(), (0, 0));
        store.clock.advance(HOUR * 4);
        assert_eq!(store.service.sweep().await.unwrap(), (1, 2), "{}", store.engine);
        assert_eq!(store.objects(), 1);
        assert!(matches!(
            store.service.show("alice", old.id).await,
            Err(FileError::NotFound)
        ));
        assert_eq!(store.content(&young).await, b"abc");
        let list = store.service.list("alice", 10, 0).await.unwrap();
        assert_eq!((list.count, list.files.len()), (1, 1));
    }
}

#[tokio::test]
async fn a_deleted_and_a_replaced_content_go_after_a_while() {
    for store in each().await {
        let file = store.output().await;
        assert_eq!(store.put(&file, b"first".to_vec()).await.status(), 201);
        assert_eq!(store.put(&file, b"second".to_vec()).await.status(), 201);
        assert_eq!(store.objects(), 2, "somebody may be reading the first");
        store.clock.advance(HOUR + Duration::from_secs(1));
        assert_eq!(store.service.sweep().await.unwrap(), (0, 1));
        assert_eq!(store.content(&file).await, b"second");
        let strange = store.service.remove("bob", file.id).await;
        assert!(matches!(strange, Err(FileError::NotFound)), "{strange:?}");
        store.service.remove("alice", file.id).await.unwrap();
        assert_eq!(store.get(&file, &[]).await.status(), 404);
        assert_eq!(store.service.sweep().await.unwrap(), (0, 1));
        assert_eq!(store.objects(), 0);
    }
}

/// A process that crashed between writing an object and marking it as durable leaves a row, by which a sweep finds the
/// object.
#[tokio::test]
async fn an_object_that_nobody_acknowledged_is_found_and_removed() {
    for store in each().await {
        let file = store.announce(10, None).await;
        assert_eq!(store.part(&file, b"01234", 0, "10").await.status(), 202);
        let catalogue = muster_file_store::FileCatalogue::new(store.tables.pool.clone());
        let upload = catalogue
            .file(file.id)
            .await
            .unwrap()
            .unwrap()
            .uploading
            .unwrap()
            .0;
        let object = format!("{upload}/dead");
        let now = file.created_at;
        let dead = segment(&object, 5, 2);
        let bounds = small().bounds();
        assert!(
            catalogue
                .record_object("alice", upload, &dead, bounds, now)
                .await
                .unwrap()
        );
        let folder = store.folder.path().join("files").join(upload.to_string());
        std::fs::write(folder.join("dead"), "56").unwrap();
        let never = segment("never made", 0, 1);
        assert!(
            catalogue
                .record_object("alice", Uuid::new_v4(), &never, bounds, now)
                .await
                .unwrap()
        );
        store.clock.advance(HOUR + Duration::from_secs(1));
        assert_eq!(store.service.sweep().await.unwrap(), (0, 2));
        assert_eq!(store.objects(), 1);
        assert_eq!(store.offset(&file).await, 5, "acknowledged bytes stay");
        assert_eq!(store.part(&file, b"56789", 5, "10").await.status(), 201);
        assert_eq!(store.content(&file).await, b"0123456789");
    }
}

//! Clients that upload again and again, announce without end, or use their URLs too often.

use std::time::Duration;

use muster_file_store::catalogue::{FileBounds, Segment};
use muster_file_store::{FileCatalogue, FileError, NewFile, Settings};
use uuid::Uuid;

use crate::support::{MIB, each, each_with, offset_of, small};

const KIB: u64 = 1024;

#[tokio::test]
async fn an_upload_that_begins_again_leaves_nothing_of_itself_behind() {
    for store in each().await {
        let file = store.announce(20 * MIB, None).await;
        let first = vec![7; 9 << 20];
        for _ in 0..10 {
            let answer = store.part(&file, &first, 0, &(20 * MIB).to_string()).await;
            assert_eq!(
                (answer.status().as_u16(), offset_of(&answer)),
                (202, 9 * MIB),
                "{}",
                store.engine
            );
            assert_eq!(store.objects(), 2, "{}", store.engine);
        }
        let rest = vec![8; 11 << 20];
        let answer = store.part(&file, &rest, 9 * MIB, &(20 * MIB).to_string()).await;
        assert_eq!(answer.status(), 201);
        assert_eq!(store.content(&file).await, [first, rest].concat());
    }
}

#[tokio::test]
async fn a_discarded_upload_leaves_nothing_behind() {
    for store in each().await {
        let promised = muster_protocol::Digest::of(b"something else");
        let file = store.announce(9 * MIB, Some(promised)).await;
        let answer = store.put(&file, vec![1; 9 << 20]).await;
        assert_eq!(answer.status(), 422, "{}", store.engine);
        assert_eq!(store.objects(), 0, "{}", store.engine);
    }
}

#[tokio::test]
async fn replaced_contents_count_until_they_are_deleted() {
    for store in each().await {
        let file = store.announce(20 * MIB, None).await;
        // Twice the quota of 60 MiB.
        for round in 0..6 {
            let answer = store.put(&file, vec![round; 20 << 20]).await;
            assert_eq!(answer.status(), 201, "{} {round}", store.engine);
        }
        let answer = store.put(&file, vec![9; 20 << 20]).await;
        assert_eq!(answer.status(), 429, "{}", store.engine);
        assert_eq!(answer.headers()["retry-after"], "600");
        assert_eq!(store.content(&file).await, vec![5; 20 << 20]);
        store.clock.advance(Duration::from_secs(3_601));
        store.service.sweep().await.unwrap();
        assert_eq!(store.objects(), 3);
        assert_eq!(store.put(&file, vec![9; 20 << 20]).await.status(), 201);
    }
}

#[tokio::test]
async fn small_objects_count_their_rows() {
    for store in each().await {
        let catalogue = FileCatalogue::new(store.tables.pool.clone());
        let bounds = FileBounds {
            account: 128 * KIB,
            all: 192 * KIB,
            files: 1,
        };
        let now = store.output().await.created_at;
        let segment = |name: &str| Segment {
            object: name.to_owned(),
            start: 0,
            len: 1,
        };
        let record = async |account: &str, name: &str| {
            let segment = segment(name);
            let recorded = catalogue.record_object(account, Uuid::new_v4(), &segment, bounds, now);
            recorded.await.unwrap()
        };
        for name in ["a", "b", "c", "d"] {
            assert!(record("alice", name).await, "{}", store.engine);
        }
        assert!(!record("alice", "e").await, "{}", store.engine);
        assert!(record("bob", "f").await && record("bob", "g").await);
        assert!(!record("bob", "h").await, "the bound on all accounts");
        catalogue.delete_object_row("a").await.unwrap();
        catalogue.delete_object_row("a").await.unwrap();
        assert!(record("alice", "i").await);
        assert!(!record("alice", "j").await);
    }
}

#[tokio::test]
async fn announcements_of_an_account_are_bounded() {
    let settings = Settings {
        max_files: 3,
        ..small()
    };
    for store in each_with(settings).await {
        let mut files = Vec::new();
        for _ in 0..3 {
            files.push(store.output().await);
        }
        let one_more = || NewFile {
            name: "out.bin".to_owned(),
            ..NewFile::default()
        };
        let refused = store.service.create("alice", one_more()).await;
        assert!(
            matches!(refused, Err(FileError::TooManyFiles { limit: 3 })),
            "{refused:?}"
        );
        store.service.create("bob", one_more()).await.unwrap();
        store.service.remove("alice", files[0].id).await.unwrap();
        store.service.create("alice", one_more()).await.unwrap();
    }
}

#[tokio::test]
async fn signed_urls_are_paced_by_account() {
    let settings = Settings {
        requests_per_minute: 3,
        ..small()
    };
    for store in each_with(settings).await {
        let (file, other) = (store.output().await, store.output().await);
        for _ in 0..3 {
            assert_eq!(store.offset(&file).await, 0);
        }
        let answer = store.put(&other, b"x".to_vec()).await;
        assert_eq!(answer.status(), 429, "{}", store.engine);
        assert_eq!(answer.headers()["retry-after"], "21");
        store.clock.advance(Duration::from_secs(20));
        assert_eq!(store.put(&other, b"x".to_vec()).await.status(), 201);
    }
}

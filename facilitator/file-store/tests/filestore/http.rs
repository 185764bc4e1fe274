//! The requests to signed URLs: uploads, downloads, and rejected requests.

use std::time::Duration;

use muster_file_store::{FileAccess, FileError, NewFile};
use muster_protocol::Digest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{MIB, each, noise, offset_of};

#[tokio::test]
async fn a_whole_upload_comes_back_whole_and_in_ranges() {
    for store in each().await {
        let content = noise(20 * MIB + 7);
        let file = store
            .announce(content.len() as u64, Some(Digest::of(&content)))
            .await;
        assert_eq!(store.get(&file, &[]).await.status(), 404, "nothing has come yet");
        let answer = store.put(&file, content.clone()).await;
        assert_eq!(answer.status(), 201, "{}", store.engine);
        assert_eq!(offset_of(&answer), content.len() as u64);
        assert_eq!(store.content(&file).await, content);

        let tag = format!("\"{}\"", Digest::of(&content).hex());
        // A range across the border of two segments.
        let part = store.get(&file, &[("range", "bytes=8388600-8388619")]).await;
        assert_eq!(part.status(), 206);
        assert_eq!(
            part.headers()["content-range"],
            format!("bytes 8388600-8388619/{}", content.len()).as_str()
        );
        assert_eq!(part.headers()["etag"], tag.as_str());
        assert_eq!(part.bytes().await.unwrap(), content[8_388_600..8_388_620]);
        let last = store.get(&file, &[("range", "bytes=-3")]).await;
        assert_eq!(last.bytes().await.unwrap(), content[content.len() - 3..]);
        let beyond = store.get(&file, &[("range", "bytes=99999999-")]).await;
        assert_eq!(beyond.status(), 416);
        assert_eq!(
            beyond.headers()["content-range"],
            format!("bytes */{}", content.len()).as_str()
        );
        let known = store.get(&file, &[("if-none-match", &tag)]).await;
        assert_eq!(known.status(), 304);
        let other = store
            .get(&file, &[("range", "bytes=0-1"), ("if-range", "\"other\"")])
            .await;
        assert_eq!(other.status(), 200, "of another content no part is of use");
        let head = store
            .http
            .head(store.url(FileAccess::Read, &file))
            .send()
            .await
            .unwrap();
        assert_eq!(
            head.headers()["content-length"],
            content.len().to_string().as_str()
        );
    }
}

#[tokio::test]
async fn parts_come_in_order_and_whoever_is_lost_is_told_where_to_go_on() {
    for store in each().await {
        let content = noise(3_000);
        let file = store.announce(3_000, None).await;
        let first = store.part(&file, &content[..1_000], 0, "3000").await;
        assert_eq!((first.status().as_u16(), offset_of(&first)), (202, 1_000));
        let skipped = store.part(&file, &content[2_000..], 2_000, "3000").await;
        assert_eq!((skipped.status().as_u16(), offset_of(&skipped)), (409, 1_000));
        assert_eq!(store.offset(&file).await, 1_000);
        let second = store.part(&file, &content[1_000..2_000], 1_000, "*").await;
        assert_eq!(second.status(), 202);
        let last = store.part(&file, &content[2_000..], 2_000, "3000").await;
        assert_eq!(last.status(), 201);
        assert_eq!(store.content(&file).await, content);
        assert_eq!(store.offset(&file).await, 3_000);
    }
}

#[tokio::test]
async fn bytes_that_came_before_a_connection_broke_need_not_be_sent_again() {
    for store in each().await {
        let content = noise(20 * MIB);
        let file = store.announce(20 * MIB, Some(Digest::of(&content))).await;
        let url = store.url(FileAccess::Write, &file);
        let (_, path) = url.split_once(&store.base).unwrap();
        let mut socket = TcpStream::connect(store.base.trim_start_matches("http://"))
            .await
            .unwrap();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
            content.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(&content[..17 << 20]).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut said = Vec::new();
        // The client gets the answer or a reset; both are fine.
        let _ = socket.read_to_end(&mut said).await;
        let durable = async || Some(store.offset(&file).await).filter(|offset| *offset > 16 * MIB);
        let offset = muster_testbed::until("the bytes that came are durable", durable).await;
        assert_eq!(offset, 17 * MIB, "not even the last piece is lost");
        let rest = &content[17 << 20..];
        let answer = store.part(&file, rest, offset, &(20 * MIB).to_string()).await;
        assert_eq!(answer.status(), 201);
        assert_eq!(store.content(&file).await, content);
    }
}

#[tokio::test]
async fn another_content_than_promised_is_refused_and_may_be_sent_again() {
    for store in each().await {
        let content = noise(100);
        let file = store.announce(100, Some(Digest::of(&content))).await;
        let wrong = store.put(&file, vec![0; 100]).await;
        assert_eq!(wrong.status(), 422);
        let text = wrong.text().await.unwrap();
        assert!(text.contains("sha256"), "{text}");
        assert_eq!(store.get(&file, &[]).await.status(), 404);
        assert_eq!(store.offset(&file).await, 0);
        assert_eq!(store.put(&file, content.clone()).await.status(), 201);
        // The digest is also checked for an upload in parts, whose beginning is hashed again.
        assert_eq!(store.part(&file, &content[..50], 0, "100").await.status(), 202);
        assert_eq!(store.part(&file, &[0; 50], 50, "100").await.status(), 422);
        assert_eq!(store.content(&file).await, content, "the complete content stays");
    }
}

#[tokio::test]
async fn readers_get_the_old_content_until_the_new_one_is_whole() {
    for store in each().await {
        let file = store.output().await;
        assert_eq!(store.put(&file, b"first".to_vec()).await.status(), 201);
        assert_eq!(store.part(&file, b"sec", 0, "6").await.status(), 202);
        assert_eq!(store.content(&file).await, b"first");
        assert_eq!(store.offset(&file).await, 3);
        assert_eq!(store.part(&file, b"ond", 3, "6").await.status(), 201);
        assert_eq!(store.content(&file).await, b"second");
        assert_eq!(store.put(&file, Vec::new()).await.status(), 201);
        assert_eq!(store.content(&file).await, b"");
    }
}

#[tokio::test]
async fn sizes_are_bounded_one_by_one_and_together() {
    for store in each().await {
        let new = |size| NewFile {
            name: "x".to_owned(),
            size: Some(size),
            ..NewFile::default()
        };
        let large = store.service.create("alice", new(41 * MIB)).await;
        assert!(matches!(large, Err(FileError::TooLarge { .. })), "{large:?}");
        for name in ["", "a\nb", &"x".repeat(256)] {
            let named = NewFile {
                name: name.to_owned(),
                ..NewFile::default()
            };
            assert!(matches!(
                store.service.create("alice", named).await,
                Err(FileError::Name)
            ));
        }
        store.announce(30 * MIB, None).await;
        store.announce(20 * MIB, None).await;
        let full = store.service.create("alice", new(11 * MIB)).await;
        assert!(matches!(full, Err(FileError::Quota { .. })), "{full:?}");
        assert!(store.service.create("bob", new(11 * MIB)).await.is_ok());

        // Ten MiB of the quota are left for an output of unknown size.
        let output = store.output().await;
        let answer = store.put(&output, vec![7; 12 << 20]).await;
        assert_eq!(answer.status(), 413);
        assert_eq!(
            store.offset(&output).await,
            0,
            "an upload that failed holds nothing"
        );
        assert_eq!(store.put(&output, vec![7; 9 << 20]).await.status(), 201);

        let file = store.announce(10, None).await;
        assert_eq!(store.put(&file, vec![0; 11]).await.status(), 400);
        assert_eq!(store.put(&file, vec![0; 9]).await.status(), 400);
        assert_eq!(store.part(&file, &[0; 5], 0, "11").await.status(), 400);
    }
}

#[tokio::test]
async fn the_files_of_all_accounts_are_bounded_together() {
    for store in each().await {
        let new = |size| NewFile {
            name: "x".to_owned(),
            size: Some(size),
            ..NewFile::default()
        };
        // Of the hundred MiB, ninety are held by two accounts.
        for (account, size) in [("bob", 40), ("bob", 10), ("carol", 40)] {
            store.service.create(account, new(size * MIB)).await.unwrap();
        }
        let full = store.service.create("dave", new(11 * MIB)).await;
        assert!(matches!(full, Err(FileError::Full)), "{full:?}");
        let quota = store.service.create("bob", new(11 * MIB)).await;
        assert!(matches!(quota, Err(FileError::Quota { .. })), "{quota:?}");
        let output = store.output().await;
        let answer = store.put(&output, vec![7; 12 << 20]).await;
        assert_eq!(answer.status(), 413);
        assert!(answer.text().await.unwrap().contains("store is full"));
        assert_eq!(store.put(&output, vec![7; 9 << 20]).await.status(), 201);
    }
}

#[tokio::test]
async fn a_url_permits_one_thing_with_one_file_for_a_while() {
    for store in each().await {
        let file = store.announce(3, None).await;
        let other = store.announce(3, None).await;
        assert_eq!(store.put(&file, b"abc".to_vec()).await.status(), 201);
        let read = store.url(FileAccess::Read, &file);
        let write = store.url(FileAccess::Write, &file);
        let (_, query) = read.split_once('?').unwrap();
        let refused = [
            // A signature of another use.
            format!("{}/files/{}/upload?{query}", store.base, file.id),
            format!("{}/files/{}/content?{query}", store.base, other.id),
            format!("{}/files/{}/content", store.base, file.id),
            read.replace("Signature=", "Signature=00"),
            read.replace("Expires=", "Expires=9"),
        ];
        for url in &refused {
            let method = if url.contains("upload") {
                reqwest::Method::PUT
            } else {
                reqwest::Method::GET
            };
            let answer = store.http.request(method, url).send().await.unwrap();
            assert_eq!(answer.status(), 403, "{url}");
        }
        let nothing = format!("{}/files/nonsense/content?{query}", store.base);
        assert_eq!(store.http.get(nothing).send().await.unwrap().status(), 404);

        store.clock.advance(Duration::from_secs(2 * 3_600));
        for (url, method) in [(&read, reqwest::Method::GET), (&write, reqwest::Method::PUT)] {
            let answer = store.http.request(method, url).send().await.unwrap();
            assert_eq!(answer.status(), 403);
            assert!(answer.text().await.unwrap().contains("expired"));
        }
        assert_eq!(store.get(&file, &[]).await.status(), 200, "a fresh one is good");
    }
}

#[tokio::test]
async fn an_upload_overtaken_by_another_is_refused_with_409() {
    for store in each().await {
        let file = store.announce(2_000, None).await;
        assert_eq!(store.part(&file, &[1; 1_000], 0, "2000").await.status(), 202);
        // Another client starts the upload again.
        assert_eq!(store.part(&file, &[2; 500], 0, "2000").await.status(), 202);
        let late = store.part(&file, &[1; 1_000], 1_000, "2000").await;
        assert_eq!((late.status().as_u16(), offset_of(&late)), (409, 500));
        assert_eq!(store.part(&file, &[2; 1_500], 500, "2000").await.status(), 201);
        assert_eq!(store.content(&file).await, vec![2; 2_000]);
    }
}

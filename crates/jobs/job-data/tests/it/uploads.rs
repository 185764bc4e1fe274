//! Uploads to servers that accept them, refuse them, break off and redirect.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read};

use muster_job_data::Uploader;
use muster_process::Coded;
use muster_protocol::job::Fault;
use muster_protocol::{ErrorCode, OutputUpload};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use zip::ZipArchive;

use crate::server::{Request, Server, Step, answer, head};
use crate::support::{Room, noise};

fn put(url: &str) -> Value {
    json!({"output_upload_type": "single_file_put", "url": url, "relative_path": "o.bin", "signed_headers": null})
}

fn unzipped(bytes: &[u8]) -> BTreeMap<String, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).unwrap();
    (0..archive.len())
        .map(|position| {
            let mut entry = archive.by_index(position).unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (entry.name().unwrap().into_owned(), text)
        })
        .collect()
}

/// The parts of a form: the head and the content of each.
fn parts(request: &Request) -> Vec<(String, Vec<u8>)> {
    let kind = request.header("content-type").unwrap();
    let boundary = format!(
        "--{}",
        kind.strip_prefix("multipart/form-data; boundary=").unwrap()
    );
    let mut rest = request
        .body
        .strip_prefix(format!("{boundary}\r\n").as_bytes())
        .unwrap();
    let mut found = Vec::new();
    loop {
        let end_of_head = rest.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let end = format!("\r\n{boundary}").into_bytes();
        let end_of_part = rest.windows(end.len()).position(|window| window == end).unwrap();
        found.push((
            String::from_utf8(rest[..end_of_head].to_vec()).unwrap(),
            rest[end_of_head + 4..end_of_part].to_vec(),
        ));
        rest = &rest[end_of_part + end.len()..];
        if rest == b"--\r\n" {
            return found;
        }
        rest = rest.strip_prefix(b"\r\n").unwrap();
    }
}

#[tokio::test]
async fn every_type_of_upload_in_one_as_python_writes_it() {
    let server = Server::start(|request, _| {
        let name = request.path.clone();
        answer("200 OK", &[("ETag", "\"e\"")], name.as_bytes())
    })
    .await;
    let frame = format!(
        r#"{{"output_upload_type":"multi_upload","uploads":[{{"output_upload_type":"single_file_put","url":"{}","relative_path":"sub/a.bin","signed_headers":{{"X-B":"1","X-A":"2"}}}},{{"output_upload_type":"single_file_post","url":"{}","form_fields":{{"key":"k","policy":"p"}},"relative_path":"b.txt","signed_headers":null}}],"system_output":{{"output_upload_type":"zip_and_http_post","url":"{}","form_fields":null}}}}"#,
        server.url("/put?sig=1"),
        server.url("/post"),
        server.url("/system"),
    );
    let outputs = [
        ("sub/a.bin", &b"A"[..]),
        ("b.txt", b"B"),
        ("stdout.txt", b"out"),
        ("c/d.txt", b"D"),
    ];
    let uploaded = Room::new()
        .upload(serde_json::from_str(&frame).unwrap(), &outputs)
        .await
        .unwrap();
    let keys: Vec<_> = uploaded.results.keys().map(String::as_str).collect();
    assert_eq!(keys, ["sub/a.bin", "b.txt", "system_output"]);
    let result: Value = serde_json::from_str(&uploaded.results["sub/a.bin"]).unwrap();
    assert_eq!(result["body"], "/put?sig=1");
    assert_eq!(result["headers"]["etag"], "\"e\"");

    let seen = server.seen();
    let by_path = |path: &str| seen.iter().find(|request| request.path == path).unwrap();
    let sent = by_path("/put?sig=1");
    assert_eq!((sent.method.as_str(), sent.body.as_slice()), ("PUT", &b"A"[..]));
    assert_eq!(sent.header("content-length"), Some("1"));
    assert_eq!(sent.header("transfer-encoding"), None);
    let own: Vec<_> = sent
        .headers
        .iter()
        .filter(|(name, _)| name.starts_with("x-"))
        .collect();
    assert_eq!(
        own,
        [
            &("x-b".to_owned(), "1".to_owned()),
            &("x-a".to_owned(), "2".to_owned())
        ]
    );

    let form = parts(by_path("/post"));
    assert_eq!(
        form[0],
        (
            "Content-Disposition: form-data; name=\"key\"".to_owned(),
            b"k".to_vec()
        )
    );
    assert_eq!(form[1].1, b"p");
    assert!(
        form[2].0.contains("name=\"file\"; filename=\"b.txt\""),
        "{form:?}"
    );
    assert_eq!(form[2].1, b"B");

    let form = parts(by_path("/system"));
    assert!(
        form[0].0.contains("name=\"file\"; filename=\"output.zip\""),
        "{form:?}"
    );
    let zip = unzipped(&form[0].1);
    assert_eq!(
        zip,
        BTreeMap::from([
            ("stdout.txt".into(), "out".into()),
            ("c/d.txt".into(), "D".into())
        ])
    );
}

#[tokio::test]
async fn a_whole_folder_goes_as_output_zip() {
    let server = Server::start(|_, _| answer("201 Created", &[], b"")).await;
    for (kind, method) in [("zip_and_http_put", "PUT"), ("zip_and_http_post", "POST")] {
        let upload = json!({"output_upload_type": kind, "url": server.url("/z"), "form_fields": {"a": "b"}});
        let uploaded = Room::new()
            .upload(upload, &[("x/y", b"1"), ("z", b"2")])
            .await
            .unwrap();
        assert_eq!(uploaded.results.keys().collect::<Vec<_>>(), ["output.zip"]);
        let request = server.seen().pop().unwrap();
        assert_eq!(request.method, method);
        let bytes = if method == "PUT" {
            request.body.clone()
        } else {
            parts(&request).pop().unwrap().1
        };
        assert_eq!(
            unzipped(&bytes),
            BTreeMap::from([("x/y".into(), "1".into()), ("z".into(), "2".into())])
        );
    }
}

#[tokio::test]
async fn an_upload_that_breaks_is_sent_again_from_its_beginning() {
    let content = noise(3_000_000);
    let server = Server::start(|_, before| match before {
        0 => vec![],
        1 => answer("503 Slow Down", &[], b""),
        2 => answer("500 Internal Server Error", &[], b""),
        _ => answer("200 OK", &[], b"done"),
    })
    .await;
    Room::new()
        .upload(put(&server.url("/o")), &[("o.bin", &content)])
        .await
        .unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|request| request.body == content));
}

#[tokio::test]
async fn a_server_that_does_not_listen_is_given_up() {
    // The server closes the connection before it has read anything, so the upload fails with a reset.
    let server = Server::rude(|_, _| vec![]).await;
    let content = noise(8_000_000);
    let error = Room::new()
        .upload(put(&server.url("/o")), &[("o.bin", &content)])
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.fault()),
        (Some(ErrorCode::UploadUnreachable), Fault::Network)
    );
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test]
async fn a_refusal_is_final_and_named() {
    let xml = b"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code></Error>";
    let server = Server::start(|_, _| answer("403 Forbidden", &[], xml)).await;
    let error = Room::new()
        .upload(put(&server.url("/o?X-Amz-Signature=secret")), &[("o.bin", b"x")])
        .await
        .unwrap_err();
    let text = muster_process::error::Causes(&error).to_string();
    assert_eq!(
        (error.code(), error.fault()),
        (Some(ErrorCode::UploadRefused), Fault::User)
    );
    assert!(
        text.contains("403") && text.contains("SignatureDoesNotMatch") && !text.contains("secret"),
        "{text}"
    );
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn an_upload_follows_only_redirects_that_keep_it_whole_and_at_home() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/moved" => answer("307 Temporary Redirect", &[("Location", "/o")], b""),
        "/see" => answer("303 See Other", &[("Location", "/o")], b""),
        "/inside" => answer(
            "307 Temporary Redirect",
            &[("Location", "http://169.254.169.254/")],
            b"",
        ),
        "/away" => answer(
            "308 Permanent Redirect",
            &[("Location", "http://127.0.0.2:8080/")],
            b"",
        ),
        _ => answer("200 OK", &[], b""),
    })
    .await;
    let room = Room::new();
    room.upload(put(&server.url("/moved")), &[("o.bin", b"x")])
        .await
        .unwrap();
    assert_eq!(server.seen().pop().unwrap().body, b"x");
    for (path, code) in [
        ("/see", ErrorCode::UploadRefused),
        ("/inside", ErrorCode::AddressRefused),
        ("/away", ErrorCode::UploadRefused),
    ] {
        let error = room
            .upload(put(&server.url(path)), &[("o.bin", b"x")])
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(code), "{path}: {error:?}");
    }
}

#[tokio::test]
async fn a_process_that_takes_a_job_over_does_not_repeat_its_uploads() {
    let server = Server::start(|request, number| match (request.path.as_str(), number) {
        // The second upload fails in the first process.
        ("/b", 0..2) => answer("403 Forbidden", &[], b""),
        _ => answer("200 OK", &[("ETag", "\"e\"")], b"taken"),
    })
    .await;
    let room = Room::new();
    let output = room.path("output");
    fs::create_dir(&output).unwrap();
    for name in ["a", "b"] {
        fs::write(output.join(name), name).unwrap();
    }
    let upload = |name: &str| json!({"output_upload_type": "single_file_put", "url": server.url(&format!("/{name}")), "relative_path": name});
    let both: OutputUpload = serde_json::from_value(
        json!({"output_upload_type": "multi_upload", "uploads": [upload("a"), upload("b")]}),
    )
    .unwrap();
    let mut results = Vec::new();
    for _ in 0..2 {
        let uploader = Uploader::new(&room.settings).unwrap().with_pace(room.pace);
        let uploader = uploader.with_record(&room.path("record"));
        let (uploaded, _) = uploader.upload(&both, &output, &CancellationToken::new()).await;
        results.push(uploaded.results);
    }
    let keys = |index: usize| results[index].keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((keys(0), keys(1)), (vec!["a"], vec!["a", "b"]));
    assert_eq!(results[0]["a"], results[1]["a"]);
    let mut paths: Vec<_> = server.seen().into_iter().map(|request| request.path).collect();
    paths.sort();
    assert_eq!(paths, ["/a", "/b", "/b"]);
}

#[tokio::test]
async fn a_metadata_service_is_not_asked_with_a_jobs_headers() {
    for url in [
        "http://169.254.169.254/latest/api/token",
        "http://[::ffff:a9fe:a9fe]/",
        "http://metadata@127.0.0.1/",
    ] {
        let mut room = Room::new();
        room.settings.allow.clear();
        let mut upload = put(url);
        upload["signed_headers"] = json!({"X-aws-ec2-metadata-token-ttl-seconds": "21600"});
        let error = room.upload(upload, &[("o.bin", b"x")]).await.unwrap_err();
        assert_eq!(
            (error.code(), error.fault()),
            (Some(ErrorCode::AddressRefused), Fault::User),
            "{url}"
        );
    }
}

#[tokio::test]
async fn links_and_pipes_among_outputs_are_not_sent() {
    let server = Server::start(|_, _| answer("200 OK", &[], b"")).await;
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("output");
    fs::create_dir_all(output.join("sub")).unwrap();
    fs::write(root.path().join("secret"), "S").unwrap();
    std::os::unix::fs::symlink(root.path().join("secret"), output.join("o.bin")).unwrap();
    std::os::unix::fs::symlink(root.path(), output.join("up")).unwrap();
    nix::unistd::mkfifo(&output.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let room = Room::new();
    for path in [
        "o.bin",
        "up/secret",
        "pipe",
        "sub",
        "none",
        "../secret",
        "/etc/hostname",
        "a\\b",
        "",
        "sub/.",
    ] {
        let mut upload = put(&server.url("/o"));
        upload["relative_path"] = json!(path);
        let error = room.upload_from(upload, &output).await.unwrap_err();
        assert_eq!(
            (error.code(), error.fault()),
            (Some(ErrorCode::UploadRefused), Fault::User),
            "{path}: {error}"
        );
    }
    assert!(server.seen().is_empty());
    let zip = json!({"output_upload_type": "zip_and_http_put", "url": server.url("/z")});
    let uploaded = room.upload_from(zip, &output).await.unwrap();
    assert!(
        uploaded.notices[0].contains("o.bin, pipe, up"),
        "{:?}",
        uploaded.notices
    );
    assert!(unzipped(&server.seen()[0].body).is_empty());
    assert_eq!(
        fs::read_dir(root.path()).unwrap().count(),
        2,
        "no archive is left"
    );
}

#[tokio::test]
async fn too_much_is_refused_before_it_is_sent() {
    let server = Server::start(|_, _| answer("200 OK", &[], b"")).await;
    let mut room = Room::new();
    room.settings.max_upload_mib = 1;
    let content = noise(1_100_000);
    let zip = json!({"output_upload_type": "zip_and_http_put", "url": server.url("/z")});
    for upload in [put(&server.url("/o")), zip] {
        let error = room.upload(upload, &[("o.bin", &content)]).await.unwrap_err();
        assert_eq!(
            (error.code(), error.fault()),
            (Some(ErrorCode::UploadRefused), Fault::User)
        );
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn outputs_are_uploaded_though_another_upload_fails() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/bad" => answer("404 Not Found", &[], b""),
        _ => answer("200 OK", &[], b""),
    })
    .await;
    let upload = |path: &str, name: &str| json!({"output_upload_type": "single_file_put", "url": server.url(path), "relative_path": name});
    let multi = json!({"output_upload_type": "multi_upload", "uploads": [upload("/bad", "a"), upload("/good", "b"), upload("/fine", "c")], "system_output": null});
    let output = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(output.path().join(name), name).unwrap();
    }
    let (uploaded, sent) = Room::new().upload_partly(multi, output.path()).await;
    let error = sent.unwrap_err();
    assert!(error.to_string().contains("\"a\""), "{error}");
    let answered: Vec<_> = uploaded.results.keys().collect();
    assert_eq!(
        answered,
        ["b", "c"],
        "the answers of those that succeeded are kept"
    );
    let mut paths: Vec<_> = server.seen().into_iter().map(|request| request.path).collect();
    paths.sort();
    assert_eq!(paths, ["/bad", "/fine", "/good"]);
}

#[tokio::test]
async fn answers_without_end_are_cut() {
    let block = vec![b'x'; 64 << 10];
    let server =
        Server::start(move |_, _| vec![Step::Bytes(head("200 OK", &[])), Step::Endless(block.clone())]).await;
    let uploaded = Room::new()
        .upload(put(&server.url("/o")), &[("o.bin", b"x")])
        .await
        .unwrap();
    let result: Value = serde_json::from_str(&uploaded.results["o.bin"]).unwrap();
    assert_eq!(result["body"].as_str().unwrap().len(), 256 << 10);
}

/// The paths in a tar archive with the contents of files and the targets of links.
fn untarred(bytes: &[u8]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(bytes).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let target = entry
            .link_name()
            .unwrap()
            .map(|target| format!("-> {}", target.display()));
        let mut text = target.unwrap_or_default();
        entry.read_to_string(&mut text).unwrap();
        found.insert(path, text);
    }
    found
}

#[tokio::test]
async fn of_a_file_and_a_folder_of_one_path_the_one_that_is_there_is_uploaded() {
    let server = Server::start(|_, _| answer("200 OK", &[], b"")).await;
    let room = Room::new();
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("output");
    fs::create_dir_all(output.join("results/empty")).unwrap();
    fs::write(output.join("results/3.ckpt"), "three").unwrap();
    fs::write(output.join("a\\b"), "any name").unwrap();
    std::os::unix::fs::symlink("3.ckpt", output.join("results/best")).unwrap();
    std::os::unix::fs::symlink("/output/results/3.ckpt", output.join("last")).unwrap();
    let upload = |path: &str, kind: &str| {
        let url = server.url(&format!("/{kind}/{}", path.replace('.', "all")));
        json!({"output_upload_type": "single_file_put", "url": url, "relative_path": path, "kind": kind})
    };
    let uploads = [
        upload("results", "file"),
        upload("results", "folder"),
        upload("last", "file"),
        upload("last", "folder"),
        upload(".", "folder"),
        upload("results/best", "folder"),
    ];
    let multi = json!({"output_upload_type": "multi_upload", "uploads": uploads, "system_output": null});
    let uploaded = room.upload_from(multi, &output).await.unwrap();
    assert_eq!(uploaded.notices, Vec::<String>::new());
    let seen: BTreeMap<_, _> = server
        .seen()
        .into_iter()
        .map(|seen| (seen.path, seen.body))
        .collect();
    let paths: Vec<_> = seen.keys().map(String::as_str).collect();
    assert_eq!(
        paths,
        [
            "/file/last",
            "/folder/all",
            "/folder/results",
            "/folder/results/best"
        ]
    );
    assert_eq!(seen["/file/last"], b"three");
    let results = untarred(&seen["/folder/results"]);
    assert_eq!(results["3.ckpt"], "three");
    assert_eq!(results["best"], "-> 3.ckpt");
    assert!(results.contains_key("empty"), "{results:?}");
    let all = untarred(&seen["/folder/all"]);
    assert_eq!(
        (all["a\\b"].as_str(), all["last"].as_str()),
        ("any name", "-> results/3.ckpt")
    );
    assert_eq!(
        untarred(&seen["/folder/results/best"])
            .into_iter()
            .collect::<Vec<_>>(),
        [("best".to_owned(), "three".to_owned())],
        "a file where a folder was asked for is not lost"
    );
}

#[tokio::test]
async fn the_files_that_match_a_pattern_come_in_one_archive() {
    let server = Server::start(|_, _| answer("200 OK", &[], b"")).await;
    let room = Room::new();
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("output");
    fs::create_dir_all(output.join("run1")).unwrap();
    for name in ["a.csv", "run1/b.csv", "run1/model"] {
        fs::write(output.join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("/output/run1/model", output.join("last.csv")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", output.join("host.csv")).unwrap();
    let upload = |pattern: &str| json!({"output_upload_type": "single_file_put", "url": server.url("/o"), "relative_path": pattern, "kind": "matching"});
    room.upload_from(upload("*.csv"), &output).await.unwrap();
    room.upload_from(upload("run?/*"), &output).await.unwrap();
    let seen = server.seen();
    let held = |index: usize| {
        let found = untarred(&seen[index].body).into_iter();
        found
            .map(|(path, text)| format!("{path}={text}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(held(0), ["a.csv=a.csv", "last.csv=run1/model"]);
    assert_eq!(held(1), ["run1/b.csv=run1/b.csv", "run1/model=run1/model"]);
    let none = room.upload_from(upload("*.bin"), &output).await.unwrap_err();
    assert!(
        none.to_string()
            .contains("there are: a.csv, run1/b.csv, run1/model"),
        "{none}"
    );
    for number in 0..=1_000 {
        fs::write(output.join(format!("n{number}.bin")), "").unwrap();
    }
    let many = room.upload_from(upload("*.bin"), &output).await.unwrap_err();
    assert!(many.to_string().contains("more than 1000 files match"), "{many}");
}

#[tokio::test]
async fn an_output_of_either_kind_that_is_missing_or_leads_out_is_the_users_fault() {
    let server = Server::start(|_, _| answer("200 OK", &[], b"")).await;
    let room = Room::new();
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("output");
    fs::create_dir(&output).unwrap();
    std::os::unix::fs::symlink("/etc", output.join("etc")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", output.join("host")).unwrap();
    for path in ["none", "etc", "host"] {
        let upload = |kind: &str| json!({"output_upload_type": "single_file_put", "url": server.url("/o"), "relative_path": path, "kind": kind});
        for uploads in [vec![upload("file"), upload("folder")], vec![upload("folder")]] {
            let multi =
                json!({"output_upload_type": "multi_upload", "uploads": uploads, "system_output": null});
            let error = room.upload_from(multi, &output).await.unwrap_err();
            assert_eq!(
                (error.code(), error.fault()),
                (Some(ErrorCode::UploadRefused), Fault::User),
                "{path}: {error}"
            );
        }
    }
    assert!(server.seen().is_empty());
}

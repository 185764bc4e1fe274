//! Whole jobs through the real engine, driven by a miner that speaks as ComputeHorde's does.

use std::collections::BTreeSet;

use crate::support::lease::{Job, Lease, inline_volume};
use crate::support::miner::{FakeMiner, Wire};
use crate::support::{engine, image};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_executor::{Engine, Error};
use muster_process::Coded;
use muster_protocol::ErrorCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Runs a job to its end and returns its last message.
async fn last_message(engine: &Engine, lease: &Lease, job: &Job) -> Value {
    let miner = FakeMiner::start().await;
    let (executor, mut wire) = lease.start(&miner).await;
    lease.to_running(&mut wire, job).await;
    let mut last = Value::Null;
    while let Some(message) = wire.recv().await {
        last = message;
    }
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(engine).await;
    last
}

async fn finished(engine: &Engine, lease: &Lease, job: &Job) -> Value {
    let last = last_message(engine, lease, job).await;
    assert_eq!(last["message_type"], "V0JobFinishedRequest", "{last:#}");
    last
}

#[tokio::test]
async fn the_demo_job_goes_through_every_frame_in_order() {
    let Some(engine) = engine().await else { return };
    let archive = image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job {
        image: archive.id.to_string(),
        volume: inline_volume(&[("a.txt", "to be or not to be"), ("sub/b.txt", "be")]),
        artifacts_dir: json!("/artifacts"),
        ..Job::new(&["words"])
    };
    let uuid = json!(lease.token.attempt());

    wire.send(&lease.offer(&job)).await;
    let ready = wire.expect("V0ExecutorReadyRequest").await;
    assert_eq!(
        ready,
        json!({"message_type": "V0ExecutorReadyRequest", "job_uuid": uuid, "executor_token": null})
    );
    wire.send(&lease.request(&job)).await;
    for kind in ["V0VolumesReadyRequest", "V0ExecutionDoneRequest"] {
        assert_eq!(
            wire.expect(kind).await,
            json!({"message_type": kind, "job_uuid": uuid})
        );
    }
    let specs = wire.expect("V0MachineSpecsRequest").await;
    assert!(
        specs["specs"]["specs"]["cpu"]["count"].as_u64().unwrap() > 0,
        "{specs}"
    );
    let finished = wire.expect("V0JobFinishedRequest").await;
    assert_eq!(
        finished.get("image"),
        None,
        "nothing of ours goes to a peer that is not Muster"
    );
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;

    let keys: Vec<_> = finished.as_object().unwrap().keys().map(String::as_str).collect();
    let order = [
        "message_type",
        "job_uuid",
        "docker_process_stdout",
        "docker_process_stderr",
        "artifacts",
        "upload_results",
    ];
    assert_eq!(keys, order);
    assert!(
        finished["docker_process_stdout"]
            .as_str()
            .unwrap()
            .starts_with("7 words (4 distinct) in 2 files\n")
    );
    assert_eq!(
        (&finished["docker_process_stderr"], &finished["upload_results"]),
        (&json!(""), &json!({}))
    );
    let words = STANDARD
        .decode(finished["artifacts"]["/artifacts/words.json"].as_str().unwrap())
        .unwrap();
    let words: Value = serde_json::from_slice(&words).unwrap();
    assert_eq!(words["top"][0], json!({"word": "be", "count": 3}));
}

#[tokio::test]
async fn a_program_that_fails_is_reported_with_its_code_and_output() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let failed = last_message(&engine, &Lease::new(), &Job::new(&["probe", "exit", "3"])).await;
    assert_eq!(failed["message_type"], "V0JobFailedRequest");
    assert_eq!(
        (&failed["reason"], &failed["stage"]),
        (&json!("nonzero_return_code"), &json!("execution"))
    );
    assert_eq!(failed["docker_process_exit_status"], 3);
    assert_eq!(failed["docker_process_stdout"], "about to exit with 3\n");
    assert_eq!(failed["docker_process_stderr"], "as I was told\n");
    assert_eq!(failed["context"]["code"], "E0009");
    assert_eq!(failed["context"]["fault"], "user");
}

#[tokio::test]
async fn a_program_that_runs_too_long_is_stopped_and_its_output_kept() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let job = Job {
        execution_secs: 1,
        ..Job::new(&["probe", "sleep", "3600"])
    };
    let failed = last_message(&engine, &Lease::new(), &job).await;
    assert_eq!(failed["message_type"], "V0JobFailedRequest", "{failed:#}");
    assert_eq!(
        (&failed["reason"], &failed["stage"]),
        (&json!("timeout"), &json!("execution"))
    );
    assert_eq!(failed["docker_process_stdout"], "sleeping for 3600 s\n");
    assert_eq!(failed["context"]["code"], "E0010");
}

#[tokio::test]
async fn a_missing_image_is_named_before_the_executor_is_ready() {
    let Some(engine) = engine().await else { return };
    for name in [
        "muster/no-such-image:1",
        "../containers/json",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ] {
        let (mut lease, miner) = (Lease::new(), FakeMiner::start().await);
        lease.config.images.pull = false;
        let (executor, mut wire) = lease.start(&miner).await;
        wire.send(&lease.offer(&Job {
            image: name.into(),
            ..Job::new(&[])
        }))
        .await;
        let failed = wire.expect("V0HordeFailedRequest").await;
        let context = json!({"code": "E0008", "stage": "executor_startup", "image": name, "fault": "user"});
        assert_eq!(
            (&failed["context"], &failed["reported_by"]),
            (&context, &json!("executor"))
        );
        wire.expect_end().await;
        executor.join().await.unwrap().unwrap();
        lease.assert_clean(&engine).await;
    }
}

#[tokio::test]
async fn an_image_is_loaded_from_an_archive_that_the_operator_named() {
    let Some(engine) = engine().await else { return };
    // An image of its own, which no other test or run has loaded.
    let mark = muster_executor::ImageFile {
        path: "/mark".into(),
        mode: 0o644,
        contents: uuid::Uuid::new_v4().to_string().into_bytes(),
    };
    let archive = image::archive("muster/executor-preload-test:latest", vec![mark]);
    let folder = tempfile::tempdir().unwrap();
    let (broken, good) = (folder.path().join("broken.tar"), folder.path().join("good.tar"));
    std::fs::write(&broken, "no tar").unwrap();
    std::fs::write(&good, &archive.bytes).unwrap();
    let mut lease = Lease::new();
    lease.config.images.preload = vec![folder.path().join("absent.tar"), broken, good];
    let job = Job {
        image: archive.id.to_string(),
        ..Job::new(&["probe", "print", "0"])
    };
    let last = finished(&engine, &lease, &job).await;
    assert_eq!(last["docker_process_stdout"], "end\n");
    image::forget(&archive.id.to_string()).await;
}

#[tokio::test]
async fn an_executor_without_an_engine_says_so_to_its_miner_and_its_operator() {
    let (mut lease, miner) = (Lease::new(), FakeMiner::start().await);
    lease.config.engine = "unix:///nonexistent/docker.sock".into();
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&lease.offer(&Job::new(&[]))).await;
    let failed = wire.expect("V0HordeFailedRequest").await;
    assert_eq!(
        (&failed["reason"], &failed["context"]["code"]),
        (&json!("executor_spinup_failed"), &json!("E0001"))
    );
    wire.expect_end().await;
    let error = executor.join().await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::EngineUnreachable));
    assert!(error.to_string().contains("apt-get install"), "{error}");
}

#[tokio::test]
async fn a_volume_that_leaves_its_folder_is_refused_as_its_users_fault() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    let volumes = [
        (inline_volume(&[("../../evil", "x")]), "../../evil", "E0015"),
        (
            json!({"volume_type": "zip_url", "contents": "http://127.0.0.1/x.zip", "relative_path": null}),
            "not on the public Internet",
            "E0021",
        ),
    ];
    let (volume, word, code) = volumes[0].clone();
    let job = Job {
        volume,
        ..Job::new(&["words"])
    };
    wire.send(&lease.offer(&job)).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    assert_refused(&mut wire, word, code).await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;

    let (volume, word, code) = volumes[1].clone();
    let lease = Lease::new();
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job {
        volume,
        ..Job::new(&["words"])
    };
    wire.send(&lease.offer(&job)).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    assert_refused(&mut wire, word, code).await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

async fn assert_refused(wire: &mut Wire, word: &str, code: &str) {
    let failed = wire.expect("V0JobFailedRequest").await;
    assert_eq!(
        (&failed["reason"], &failed["stage"]),
        (&json!("download_failed"), &json!("volume_download"))
    );
    assert_eq!(
        (&failed["context"]["code"], &failed["context"]["fault"]),
        (&json!(code), &json!("user"))
    );
    assert!(failed["message"].as_str().unwrap().contains(word), "{failed:#}");
    wire.expect_end().await;
}

#[tokio::test]
async fn an_upload_inside_is_refused_before_the_job_costs_anything() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job::new(&["words"]);
    wire.send(&lease.offer(&job)).await;
    wire.expect("V0ExecutorReadyRequest").await;
    let mut request = lease.request(&job);
    request["output_upload"] = json!({"output_upload_type": "zip_and_http_put", "url": "http://127.0.0.1/x"});
    wire.send(&request).await;
    let failed = wire.expect("V0JobFailedRequest").await;
    assert_eq!(
        (&failed["reason"], &failed["stage"]),
        (&json!("upload_failed"), &json!("result_upload"))
    );
    assert_eq!(failed["context"]["code"], "E0021");
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn inputs_are_fetched_and_outputs_are_uploaded() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let (mut lease, miner) = (Lease::new(), FakeMiner::start().await);
    lease.config.transfer.allow = vec!["127.0.0.1".to_owned()];
    lease.config.transfer.cache_mib = 0;
    let store = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = |path: &str| format!("http://{}{path}", store.local_addr().unwrap());
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job {
        volume: json!({"volume_type": "single_file", "url": url("/in"), "relative_path": "a.txt"}),
        artifacts_dir: json!("/artifacts"),
        ..Job::new(&["words"])
    };
    let mut request = lease.request(&job);
    request["output_upload"] = json!({"output_upload_type": "zip_and_http_put", "url": url("/out")});
    let mut offer = lease.offer(&job);
    offer["executor_timing"]["download_time_limit"] = json!(60);
    wire.send(&offer).await;
    wire.expect("V0ExecutorReadyRequest").await;
    wire.send(&request).await;
    let head = served(
        &store,
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nto be",
    )
    .await
    .0;
    assert!(head.starts_with("GET /in "), "{head}");
    wire.expect("V0VolumesReadyRequest").await;
    wire.expect("V0ExecutionDoneRequest").await;
    let (head, sent) = served(
        &store,
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone",
    )
    .await;
    assert!(head.starts_with("PUT /out "), "{head}");
    assert!(sent >= 22, "the shortest archive has 22 bytes, not {sent}");
    wire.expect("V0MachineSpecsRequest").await;
    let finished = wire.expect("V0JobFinishedRequest").await;
    assert!(
        finished["docker_process_stdout"]
            .as_str()
            .unwrap()
            .starts_with("2 words"),
        "{finished:#}"
    );
    let answer: Value =
        serde_json::from_str(finished["upload_results"]["output.zip"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&answer["body"], &answer["headers"]["content-length"]),
        (&json!("done"), &json!("4"))
    );
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

/// Takes one request and answers it: its head, and how long its body was.
async fn served(store: &TcpListener, answer: &str) -> (String, usize) {
    let (mut stream, _) = store.accept().await.unwrap();
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let len = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let len: usize = len.map_or(0, |len| len.parse().unwrap());
            if bytes.len() - end - 4 >= len {
                stream.write_all(answer.as_bytes()).await.unwrap();
                return (head, bytes.len() - end - 4);
            }
        }
        assert_ne!(
            stream.read_buf(&mut bytes).await.unwrap(),
            0,
            "closed in the middle"
        );
    }
}

#[tokio::test]
async fn a_job_sees_nothing_of_the_machine() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let seen = finished(&engine, &Lease::new(), &Job::new(&["probe", "surroundings"])).await;
    let seen: Value = serde_json::from_str(seen["docker_process_stdout"].as_str().unwrap()).unwrap();
    assert_eq!(seen["interfaces"], json!(["lo"]));
    assert!(
        seen["connect"].as_str().unwrap().contains("unreachable"),
        "{seen:#}"
    );
    for capabilities in ["effective_capabilities", "bounding_capabilities"] {
        assert_eq!(seen[capabilities], "0000000000000000", "{seen:#}");
    }
    assert_eq!(
        (&seen["no_new_privileges"], &seen["seccomp"]),
        (&json!("1"), &json!("2"))
    );
    for root in ["write_root", "write_etc"] {
        assert!(seen[root].as_str().unwrap().contains("Read-only"), "{seen:#}");
    }
    for scratch in ["write_tmp", "write_home", "write_volume", "write_output"] {
        assert_eq!(seen[scratch], Value::Null, "{seen:#}");
    }
    assert_eq!(
        (&seen["docker_socket"], &seen["threads"]),
        (&json!(false), &json!(true))
    );
    let names: BTreeSet<_> = seen["environment"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(names, BTreeSet::from(["GREETING", "HOME", "HOSTNAME"]));
}

#[tokio::test]
async fn what_an_image_keeps_at_home_is_there() {
    let Some(engine) = engine().await else { return };
    // Shell files are covered by scratch space, anything else keeps it away.
    for (kept, covered) in [(".bashrc", true), (".cache/model", false)] {
        let file = muster_executor::ImageFile {
            path: format!("/root/{kept}"),
            mode: 0o644,
            contents: uuid::Uuid::new_v4().to_string().into_bytes(),
        };
        let name = format!("muster/executor-home-test:{}", uuid::Uuid::new_v4());
        let archive = tokio::task::spawn_blocking(move || image::archive(&name, vec![file])).await;
        let archive = archive.unwrap();
        engine.load(archive.bytes).await.unwrap();
        let job = Job {
            image: archive.id.to_string(),
            ..Job::new(&["probe", "surroundings"])
        };
        let seen = finished(&engine, &Lease::new(), &job).await;
        let seen: Value = serde_json::from_str(seen["docker_process_stdout"].as_str().unwrap()).unwrap();
        let (home, write) = (&seen["home"], &seen["write_home"]);
        if covered {
            assert_eq!((home, write), (&json!(["probe"]), &Value::Null), "{kept}");
        } else {
            assert_eq!(home, &json!([".cache"]));
            assert!(write.as_str().unwrap().contains("Read-only"), "{write}");
        }
        image::forget(&archive.id.to_string()).await;
    }
}

#[tokio::test]
async fn memory_and_disk_end_where_the_limits_are() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let mut lease = Lease::new();
    lease.config.limits.memory_mib = 64;
    let failed = last_message(&engine, &lease, &Job::new(&["probe", "allocate", "256"])).await;
    assert_eq!(failed["docker_process_exit_status"], 137, "{failed:#}");
    assert!(
        failed["message"].as_str().unwrap().contains("memory"),
        "{failed:#}"
    );

    let mut lease = Lease::new();
    lease.config.limits.disk_mib = 8;
    let failed = last_message(&engine, &lease, &Job::new(&["probe", "fill", "64"])).await;
    assert!(
        failed["message"]
            .as_str()
            .unwrap()
            .contains("wrote more than 8388608 bytes"),
        "{failed:#}"
    );
}

#[tokio::test]
async fn a_request_that_comes_early_is_not_forgotten_and_a_second_one_changes_nothing() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job::new(&["probe", "print", "80"]);
    wire.send(&lease.offer(&job)).await;
    wire.send(&lease.request(&job)).await;
    wire.send(&lease.offer(&job)).await;
    wire.send(&lease.request(&Job::new(&["probe", "exit", "1"])))
        .await;
    wire.send(&json!({"message_type": "GenericError", "details": "never mind"}))
        .await;
    for kind in [
        "V0ExecutorReadyRequest",
        "V0VolumesReadyRequest",
        "V0ExecutionDoneRequest",
        "V0MachineSpecsRequest",
        "V0JobFinishedRequest",
    ] {
        wire.expect(kind).await;
    }
    wire.expect_end().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_flood_of_output_is_cut_in_the_middle() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let last = finished(&engine, &Lease::new(), &Job::new(&["probe", "print", "20000000"])).await;
    let stdout = last["docker_process_stdout"].as_str().unwrap();
    assert_eq!(stdout.len(), 1_000_005);
    assert!(stdout.starts_with("xxx") && stdout.contains(" ... ") && stdout.ends_with("x\nend\n"));
}

#[tokio::test]
async fn a_command_that_the_image_lacks_is_its_users_mistake() {
    let Some(engine) = engine().await else { return };
    let content = muster_executor::ImageContent {
        tag: format!("muster/executor-no-program:{}", uuid::Uuid::new_v4()),
        entrypoint: vec!["/no/such/program".into()],
        files: vec![muster_executor::ImageFile {
            path: "/x".into(),
            mode: 0o644,
            contents: uuid::Uuid::new_v4().to_string().into_bytes(),
        }],
        ..Default::default()
    };
    let archive = muster_executor::ImageArchive::new(&content).unwrap();
    engine.load(archive.bytes).await.unwrap();
    let failed = last_message(
        &engine,
        &Lease::new(),
        &Job {
            image: content.tag.clone(),
            ..Job::new(&[])
        },
    )
    .await;
    assert_eq!(failed["docker_process_exit_status"], 127, "{failed:#}");
    assert!(
        failed["message"].as_str().unwrap().contains("no such file"),
        "{failed:#}"
    );
    image::forget(&content.tag).await;
}

#[tokio::test]
async fn a_miner_that_leaves_takes_the_container_with_it() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    lease
        .to_running(&mut wire, &Job::new(&["probe", "sleep", "3600"]))
        .await;
    lease.container_appears(&engine).await;
    wire.close().await;
    let error = executor.join().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::MinerLost(_)), "{error}");
    assert_eq!(error.code(), Some(ErrorCode::MinerLost));
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn a_cancelled_job_is_removed_wherever_it_stands() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    // Right after the container is asked for, and once it is there.
    for wait in [false, true] {
        let (lease, miner) = (Lease::new(), FakeMiner::start().await);
        let (executor, mut wire) = lease.start(&miner).await;
        lease
            .to_running(&mut wire, &Job::new(&["probe", "sleep", "3600"]))
            .await;
        if wait {
            lease.container_appears(&engine).await;
        }
        let other = uuid::Uuid::new_v4().to_string();
        wire.send(&json!({"message_type": "MusterCancelJob", "job_uuid": other, "reason": "not this one"}))
            .await;
        let uuid = lease.token.attempt();
        wire.send(&json!({"message_type": "MusterCancelJob", "job_uuid": uuid, "reason": "enough"}))
            .await;
        wire.expect_end().await;
        let error = executor.join().await.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Cancelled(reason) if reason == "enough"),
            "{error}"
        );
        lease.assert_clean(&engine).await;
    }
}

#[tokio::test]
async fn an_executor_that_is_told_to_stop_leaves_nothing() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::start().await);
    let (executor, mut wire) = lease.start(&miner).await;
    lease
        .to_running(&mut wire, &Job::new(&["probe", "sleep", "3600"]))
        .await;
    lease.container_appears(&engine).await;
    lease.tasks.shutdown();
    wire.expect_end().await;
    assert!(matches!(executor.join().await.unwrap(), Err(Error::ShutDown)));
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn two_executors_work_side_by_side() {
    let Some(engine) = engine().await else { return };
    image::load(&engine).await;
    let (one, two) = (Lease::new(), Lease::new());
    let job = |code: &str| Job::new(&["probe", "exit", code]);
    let (first, second) = (job("1"), job("2"));
    let (first, second) = tokio::join!(
        last_message(&engine, &one, &first),
        last_message(&engine, &two, &second)
    );
    assert_eq!(
        (
            &first["docker_process_exit_status"],
            &second["docker_process_exit_status"]
        ),
        (&json!(1), &json!(2))
    );
}

#[tokio::test]
async fn a_lease_that_the_miner_does_not_know_is_given_up() {
    let miner = FakeMiner::start().await;
    let foreign = Lease::new();
    for (message, word) in [
        (
            json!({"message_type": "GenericError", "details": "No job waiting for token x"}),
            "No job waiting",
        ),
        (foreign.offer(&Job::new(&[])), "offers attempt"),
    ] {
        let lease = Lease::new();
        let (executor, mut wire) = lease.start(&miner).await;
        wire.send(&message).await;
        wire.expect_end().await;
        let error = executor.join().await.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Refused(reason) if reason.contains(word)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_read_fails_by_name() {
    let miner = FakeMiner::start().await;
    for text in [
        "",
        "{",
        "[]",
        "{\"message_type\":\"V9\"}",
        "{\"message_type\":\"V0InitialJobRequest\"}",
        &"[".repeat(10_000),
    ] {
        let lease = Lease::new();
        let (executor, mut wire) = lease.start(&miner).await;
        wire.send_text(text).await;
        let failed = wire.expect("V0HordeFailedRequest").await;
        assert!(
            failed["message"]
                .as_str()
                .unwrap()
                .contains("cannot read the job"),
            "{failed:#}"
        );
        wire.expect_end().await;
        executor.join().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_of_its_own() {
    let lease = Lease::new();
    let invocation = muster_executor::Invocation {
        miner_address: "ws://127.0.0.1:1".into(),
        token: lease.token.clone(),
    };
    let clock = std::sync::Arc::new(muster_process::SystemClock::new());
    let error = muster_executor::run(lease.config.clone(), invocation, lease.tasks.clone(), clock)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
}

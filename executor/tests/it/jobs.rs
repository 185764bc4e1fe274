//! Whole jobs through the real engine, driven by a miner that speaks as ComputeHorde's does.

use std::collections::BTreeSet;

use crate::support::lease::{Job, Lease, inline_volume};
use crate::support::miner::FakeMiner;
use crate::support::{engine, image};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_executor::ContainerEngine;
use muster_process::Coded;
use muster_protocol::ErrorCode;
use serde_json::{Value, json};

/// Runs a job to its end and returns its last message.
async fn last_message(engine: &ContainerEngine, lease: &Lease, job: &Job) -> Value {
    let miner = FakeMiner::start().await;
    let (executor, mut wire) = lease.start(&miner).await;
    lease.to_running(&mut wire, job).await;
    let last = wire.last().await;
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(engine).await;
    last
}

async fn finished(engine: &ContainerEngine, lease: &Lease, job: &Job) -> Value {
    let last = last_message(engine, lease, job).await;
    assert_eq!(last["message_type"], "V0JobFinishedRequest", "{last:#}");
    last
}

#[tokio::test]
async fn the_demo_job_goes_through_every_frame_in_order() {
    let engine = engine().await;
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
    let engine = engine().await;
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
    let engine = engine().await;
    image::load(&engine).await;
    let job = Job {
        // The program prints its line before, even on a busy machine.
        execution_secs: 5,
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
    let engine = engine().await;
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
        let mut context =
            json!({"code": "E0008", "stage": "executor_startup", "image": name, "fault": "user"});
        if !name.starts_with("..") {
            context["image_fetch"] = json!("no_such_image");
        }
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
    let engine = engine().await;
    // An image for this test alone, which no other test or run has loaded.
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
async fn executor_without_an_engine_reports_it_to_miner_and_operator() {
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
async fn a_job_sees_nothing_of_the_machine() {
    let engine = engine().await;
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
    assert_eq!(
        names,
        BTreeSet::from(["GREETING", "HOME", "HOSTNAME", "MUSTER_PROGRESS"])
    );
}

#[tokio::test]
async fn a_programs_own_report_and_the_metrics_in_its_output_come_while_it_runs() {
    let engine = engine().await;
    image::load(&engine).await;
    let (lease, miner) = (Lease::new(), FakeMiner::with_features("metrics").await);
    let (executor, mut wire) = lease.start(&miner).await;
    let job = Job::new(&["probe", "train", "20"]);
    let mut offer = lease.offer(&job);
    offer["muster"] = json!({"metrics": [{"name": "accuracy", "pattern": "accuracy=([0-9.]+)"}]});
    wire.send(&offer).await;
    wire.until("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&job)).await;
    let messages = wire.until("V0JobFinishedRequest").await;
    let of = |kind: &str| {
        messages
            .iter()
            .filter(|message| message["message_type"] == kind)
            .count()
    };
    let reports: Vec<_> = messages
        .iter()
        .filter(|message| message["message_type"] == "MusterJobMetrics")
        .map(|message| &message["report"])
        .collect();
    assert!(reports.len() >= 2 && of("MusterJobLog") > 0, "{messages:#?}");
    let (first, last) = (reports[0], reports[reports.len() - 1]);
    assert!(first["step"].as_u64().unwrap() < 20, "while it runs: {first}");
    assert_eq!((&last["step"], &last["steps"]), (&json!(20), &json!(20)));
    assert_eq!(last["metrics"]["accuracy"], json!(1.0), "found in its output");
    assert!(last["metrics"]["loss"].as_f64().unwrap() < 1e-5, "{last}");
    assert_eq!(last["eta_s"], json!(0));
    let completion = &messages[messages.len() - 1]["completion"];
    let (own, sent) = (&completion["metrics"], &last["metrics"]);
    assert!(
        own["loss"] == sent["loss"] && own["machine/memory_mib"].is_null(),
        "{own}"
    );
    assert!(sent["machine/memory_mib"].as_f64() > Some(0.0), "{last}");
    assert!(completion["compute_ms"].as_u64().unwrap() > 1_000, "{completion}");
    assert!(completion["memory_peak"].as_u64().unwrap() > 0, "{completion}");
    assert!(completion["cpu_ms"].as_u64().is_some(), "{completion}");
    executor.join().await.unwrap().unwrap();
    lease.assert_clean(&engine).await;

    // A miner that does not know the message gets none.
    let (lease, miner) = (Lease::new(), FakeMiner::muster().await);
    let (executor, mut wire) = lease.start(&miner).await;
    wire.send(&lease.offer(&Job::new(&["probe", "train", "6"]))).await;
    wire.until("V0ExecutorReadyRequest").await;
    wire.send(&lease.request(&Job::new(&["probe", "train", "6"])))
        .await;
    let messages = wire.until("V0JobFinishedRequest").await;
    assert!(
        messages
            .iter()
            .all(|message| message["message_type"] != "MusterJobMetrics")
    );
    executor.join().await.unwrap().unwrap();
}

#[tokio::test]
async fn muster_miner_gets_the_list_of_output_files_of_good_and_failed_programs() {
    let engine = engine().await;
    image::load(&engine).await;
    let left = json!([{
        "path": "left.txt",
        "sha256": muster_protocol::Digest::of(b"half an output"),
        "bytes": 14,
        "mode": 0o644,
    }]);
    for (code, kind) in [("0", "V0JobFinishedRequest"), ("3", "V0JobFailedRequest")] {
        let (lease, miner) = (Lease::new(), FakeMiner::muster().await);
        let (executor, mut wire) = lease.start(&miner).await;
        let job = Job {
            artifacts_dir: json!("/artifacts"),
            ..Job::new(&["probe", "leave", code])
        };
        wire.send(&lease.offer(&job)).await;
        wire.until("V0ExecutorReadyRequest").await;
        wire.send(&lease.request(&job)).await;
        let messages = wire.until(kind).await;
        let last = &messages[messages.len() - 1];
        let completion = match code {
            "0" => &last["completion"],
            _ => &last["context"]["completion"],
        };
        assert_eq!(completion["outputs"], left, "{last:#}");
        assert_eq!(completion["gpu_ms"], Value::Null, "{completion}");
        executor.join().await.unwrap().unwrap();
        lease.assert_clean(&engine).await;
    }
}

#[tokio::test]
async fn files_in_an_images_home_are_there() {
    let engine = engine().await;
    for (kept, listed) in [(".bashrc", ".bashrc"), (".cache/model", ".cache")] {
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
        // The job has written `probe` beside it.
        assert_eq!((home, write), (&json!([listed, "probe"]), &Value::Null));
        image::forget(&archive.id.to_string()).await;
    }
}

#[tokio::test]
async fn job_is_ended_at_its_memory_and_disk_limits() {
    let engine = engine().await;
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
    let engine = engine().await;
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
    let engine = engine().await;
    image::load(&engine).await;
    let last = finished(&engine, &Lease::new(), &Job::new(&["probe", "print", "20000000"])).await;
    let stdout = last["docker_process_stdout"].as_str().unwrap();
    assert_eq!(stdout.len(), 1_000_005);
    assert!(stdout.starts_with("xxx") && stdout.contains(" ... ") && stdout.ends_with("x\nend\n"));
}

#[tokio::test]
async fn a_command_that_the_image_lacks_is_its_users_mistake() {
    let engine = engine().await;
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
async fn a_broken_image_is_its_users_fault_and_named_without_a_folder_of_the_machine() {
    let engine = engine().await;
    let file = |path: &str, mode| muster_executor::ImageFile {
        path: path.to_owned(),
        mode,
        contents: uuid::Uuid::new_v4().to_string().into_bytes(),
    };
    let base = || muster_executor::ImageContent {
        tag: format!("muster/executor-broken:{}", uuid::Uuid::new_v4()),
        entrypoint: vec!["/program".into()],
        files: vec![file("/program", 0o755)],
        ..Default::default()
    };
    let with_file = |path| muster_executor::ImageContent {
        files: vec![file("/program", 0o755), file(path, 0o644)],
        ..base()
    };
    let no_program = muster_executor::ImageContent {
        entrypoint: vec![],
        ..base()
    };
    let unknown_user = muster_executor::ImageContent {
        user: "nosuchuser".to_owned(),
        ..base()
    };
    for (content, named) in [
        (no_program, "names a program"),
        (unknown_user, "nosuchuser"),
        (with_file("/output"), "/output"),
    ] {
        let archive = muster_executor::ImageArchive::new(&content).unwrap();
        engine.load(archive.bytes).await.unwrap();
        let (lease, miner) = (Lease::new(), FakeMiner::start().await);
        let (executor, mut wire) = lease.start(&miner).await;
        let job = Job {
            image: content.tag.clone(),
            ..Job::new(&[])
        };
        wire.send(&lease.offer(&job)).await;
        wire.expect("V0ExecutorReadyRequest").await;
        wire.send(&lease.request(&job)).await;
        // An image without a program is refused before its inputs are fetched.
        if !content.entrypoint.is_empty() {
            wire.expect("V0VolumesReadyRequest").await;
        }
        let failed = wire.expect("V0JobFailedRequest").await;
        wire.expect_end().await;
        executor.join().await.unwrap().unwrap();
        lease.assert_clean(&engine).await;
        let context = &failed["context"];
        assert_eq!(
            (&context["code"], &context["fault"], &context["broken_image"]),
            (&json!("E0036"), &json!("user"), &json!(true)),
            "{failed:#}"
        );
        let message = failed["message"].as_str().unwrap();
        let work_dir = lease.config.work_dir.display().to_string();
        assert!(message.contains(named), "{message}");
        assert!(
            !message.contains(&work_dir) && !message.contains("/var/lib"),
            "{message}"
        );
        image::forget(&content.tag).await;
    }
}

#[tokio::test]
async fn two_executors_work_side_by_side() {
    let engine = engine().await;
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

//! Rights that a sandbox gives a job and denies it, read from the request to the engine.

use std::collections::BTreeSet;

use muster_containers::image_folders::UNSEEN;
use muster_containers::sandbox::{ResourceLimits, Root, RunAs};
use muster_protocol::Digest;
use muster_protocol::job::SaveSignal;

use indexmap::IndexMap;

use super::*;
use crate::config::{Limits, MachineSize};

const UUID: &str = "11111111-2222-4333-8444-555555555555";

fn job() -> JobRequest {
    JobRequest {
        job_uuid: UUID.parse().unwrap(),
        executor_class: ExecutorClass::AlwaysOnTest,
        docker_image: "muster/hello".into(),
        raw_script: None,
        docker_run_options_preset: OptionsPreset::None,
        docker_run_cmd: vec!["words".into()],
        env: IndexMap::from([("A".to_owned(), "b=c".to_owned())]),
        volume: None,
        output_upload: None,
        artifacts_dir: Some("/artifacts/".into()),
        muster: None,
    }
}

fn image() -> LocalImage {
    LocalImage::default_for(ImageId(Digest::of(b"config")))
}

fn policy(allowance: ResourceLimits) -> Policy {
    Policy {
        allowance,
        run_as: RunAs::Image,
        root: Root::ReadOnly,
        output: 1,
    }
}

fn container_in(
    job: &JobRequest,
    image: &LocalImage,
    class: ExecutorClass,
) -> Result<ContainerCreateBody, SandboxError> {
    let allowance = Limits {
        cpus: 1.5,
        memory_mib: 256,
        ..Limits::default()
    }
    .on(MachineSize {
        cpus: 8,
        memory: 16 << 30,
    });
    let gpus = if wants_gpu(job, class) {
        vec!["GPU-a".to_owned()]
    } else {
        vec![]
    };
    let folders = JobFolders::under(Path::new("/work/job"));
    JobContainer {
        resumed: None,
        start: None,
        job,
        image,
        image_folders: &UNSEEN,
        policy: policy(allowance),
        gpus: &gpus,
        folders: &folders,
        runtime: "",
        streaming: false,
    }
    .body()
}

fn container(job: &JobRequest) -> ContainerCreateBody {
    container_in(job, &image(), ExecutorClass::AlwaysOnTest).unwrap()
}

#[test]
fn an_ordinary_job_is_sealed() {
    let body = container(&job());
    assert_eq!(body.network_disabled, Some(true));
    assert_eq!(body.image.as_deref(), Some(image().id.to_string().as_str()));
    assert_eq!(body.cmd, Some(vec!["words".to_owned()]));
    assert_eq!(
        body.env,
        Some(vec![
            "A=b=c".to_owned(),
            "MUSTER_PROGRESS=/muster/progress.jsonl".to_owned()
        ])
    );
    assert_eq!(body.labels.unwrap()[LABEL_ATTEMPT], UUID);
    let host = body.host_config.unwrap();
    assert_eq!(host.network_mode.as_deref(), Some("none"));
    assert_eq!(host.ipc_mode.as_deref(), Some("private"));
    assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
    assert_eq!(host.cap_add, None);
    assert_eq!(host.privileged, Some(false));
    assert_eq!(host.readonly_rootfs, Some(true));
    assert_eq!(host.devices, None);
    assert_eq!(host.device_requests, None);
    assert_eq!(host.runtime, None);
    assert_eq!(host.binds, None);
    assert_eq!(
        (host.memory, host.memory_swap),
        (Some(256 << 20), Some(256 << 20))
    );
    assert_eq!(host.nano_cpus, Some(1_500_000_000));
    assert_eq!(host.pids_limit, Some(4_096));
    assert_eq!(
        host.shm_size,
        Some(256 << 20),
        "never more than the memory itself"
    );
    let security = host.security_opt.unwrap();
    assert_eq!(security[0], "no-new-privileges:true");
    assert!(
        security[1].starts_with("seccomp={"),
        "the profile itself, not a path on the engine's machine"
    );
    let log = host.log_config.unwrap();
    assert_eq!(log.typ.as_deref(), Some("local"));
    assert_eq!(log.config.unwrap()["max-size"], "32m");
}

#[test]
fn only_its_own_folders_are_mounted() {
    let mounts = container(&job()).host_config.unwrap().mounts.unwrap();
    let seen: Vec<_> = mounts
        .iter()
        .map(|mount| (mount.source.as_deref().unwrap(), mount.target.as_deref().unwrap()))
        .collect();
    let expected = [
        ("/work/job/volume", "/volume"),
        ("/work/job/output", "/output"),
        ("/work/job/specs", "/specs"),
        ("/work/job/artifacts", "/artifacts"),
        ("/work/job/report", "/muster"),
        ("/work/job/hosts", "/etc/hosts"),
        ("/work/job/hostname", "/etc/hostname"),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn scratch_is_a_bounded_tmpfs_without_devices_or_setuid() {
    let tmpfs = container(&job()).host_config.unwrap().tmpfs.unwrap();
    let paths: BTreeSet<_> = tmpfs.keys().map(String::as_str).collect();
    assert_eq!(paths, BTreeSet::from(["/tmp", "/var/tmp", "/run"]));
    for options in tmpfs.values() {
        for word in ["nosuid", "nodev", "size=1073741824"] {
            assert!(options.contains(word), "{options}");
        }
    }
}

#[test]
fn scratch_follows_the_image_and_gives_way_to_artifacts() {
    let image = LocalImage {
        volumes: vec!["/data".into()],
        ..image()
    };
    let body = container_in(&job(), &image, ExecutorClass::AlwaysOnTest).unwrap();
    let tmpfs = body.host_config.unwrap().tmpfs.unwrap();
    assert!(tmpfs.contains_key("/data"), "{tmpfs:?}");
    let mut job = job();
    job.artifacts_dir = Some("/tmp".into());
    let host = container(&job).host_config.unwrap();
    assert!(!host.tmpfs.unwrap().contains_key("/tmp"));
}

#[test]
fn an_image_whose_volumes_cannot_be_mounted_is_refused() {
    let with = |volumes: Vec<String>| {
        let image = LocalImage { volumes, ..image() };
        container_in(&job(), &image, ExecutorClass::AlwaysOnTest)
    };
    for root in ["/", "/.", "//", "/x/.."] {
        assert_eq!(
            with(vec![root.to_owned()]),
            Err(SandboxError::RootVolume),
            "{root}"
        );
    }
    let many = |count: usize| (0..count).map(|number| format!("/v{number}")).collect();
    assert!(with(many(128)).is_ok());
    assert_eq!(with(many(129)), Err(SandboxError::Volumes(129)));
    let named = |length| with(vec![format!("/{}", "x".repeat(length))]);
    assert!(named(255).is_ok());
    for long in [named(256), with(vec!["/xy".repeat(1_366)])] {
        assert!(matches!(long, Err(SandboxError::LongVolume(_))), "{long:?}");
    }
}

#[test]
fn artifacts_may_lie_in_a_folder_that_is_mounted_already() {
    let mut job = job();
    job.artifacts_dir = Some("/output".into());
    assert_eq!(container(&job).host_config.unwrap().mounts.unwrap().len(), 6);
    let folders = JobFolders::under(Path::new("/w"));
    assert_eq!(artifacts_folder(&folders, "/output"), folders.output);
    for none in [None, Some(String::new())] {
        job.artifacts_dir = none;
        assert_eq!(artifacts_dir(&job), Ok(None));
    }
}

#[test]
fn artifacts_must_not_cover_the_system() {
    for bad in [
        "/",
        "relative",
        "/a/../etc",
        "/proc",
        "/proc/self",
        "/dev/shm",
        "/usr/lib",
        "/etc",
        "/a//b",
        "/a\0",
        "/./a",
    ] {
        let mut job = job();
        job.artifacts_dir = Some(bad.into());
        let error = container_in(&job, &image(), ExecutorClass::AlwaysOnTest).unwrap_err();
        assert!(matches!(error, SandboxError::ArtifactsDir(_)), "{bad}");
    }
    let mut job = job();
    job.artifacts_dir = Some("/etcetera".into());
    container(&job);
}

#[test]
fn a_folder_of_checkpoints_covers_no_other_mount_of_the_job() {
    let mut job = job();
    let order = |folder: &str| CheckpointOrder {
        folder: folder.to_owned(),
        every: 5,
        signal: SaveSignal::Term,
        metric: None,
        attempt: 1,
        halvings: 0,
        stall_s: None,
        blocks: String::new(),
        resume: None,
    };
    for covering in ["/volume", "/output/x", "/etc", "/muster"] {
        assert!(!is_mountable(&job, &order(covering)), "{covering}");
    }
    job.artifacts_dir = None;
    job.raw_script = None;
    for free in ["/checkpoint", "/results", "/results/c", "/script.py"] {
        assert!(is_mountable(&job, &order(free)), "{free}");
    }
    job.artifacts_dir = Some("/results/".into());
    job.raw_script = Some("print(1)".into());
    for taken in ["/results", "/results/c", "/script.py", "/script.py/c"] {
        assert!(!is_mountable(&job, &order(taken)), "{taken}");
    }
    job.artifacts_dir = Some("/checkpoint/artifacts".into());
    assert!(!is_mountable(&job, &order("/checkpoint")));
    assert!(is_mountable(&job, &order("/checkpoints")));
}

#[test]
fn odd_environments_are_refused() {
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
        let mut job = job();
        job.env = IndexMap::from([(name.to_owned(), value.to_owned())]);
        let error = container_in(&job, &image(), ExecutorClass::AlwaysOnTest).unwrap_err();
        assert!(matches!(error, SandboxError::Environment(_)), "{name:?}");
    }
}

#[test]
fn a_gpu_is_given_to_gpu_classes_only() {
    let mut job = job();
    job.docker_run_options_preset = OptionsPreset::NvidiaAll;
    for class in ExecutorClass::ALL {
        let host = container_in(&job, &image(), class).unwrap().host_config.unwrap();
        assert_eq!(host.device_requests.is_some(), class.has_gpu(), "{class}");
        for request in host.device_requests.into_iter().flatten() {
            assert_eq!(
                request.device_ids,
                Some(vec!["GPU-a".to_owned()]),
                "the claimed GPUs, and no others"
            );
        }
    }
    job.docker_run_options_preset = OptionsPreset::None;
    let host = container_in(&job, &image(), ExecutorClass::AlwaysOnLlmA6000)
        .unwrap()
        .host_config
        .unwrap();
    assert_eq!(host.device_requests, None);
}

#[test]
fn a_script_is_mounted_read_only_and_run_unless_there_is_a_command() {
    let mut job = job();
    job.raw_script = Some("print(1)".into());
    let body = container(&job);
    assert_eq!(body.cmd, Some(vec!["words".to_owned()]));
    let mounts = body.host_config.unwrap().mounts.unwrap();
    let script = mounts
        .iter()
        .find(|mount| mount.target.as_deref() == Some("/script.py"))
        .unwrap();
    assert_eq!(script.read_only, Some(true));
    job.docker_run_cmd.clear();
    assert_eq!(
        container(&job).cmd,
        Some(vec!["python".to_owned(), "/script.py".to_owned()])
    );
    job.raw_script = None;
    assert_eq!(container(&job).cmd, None);
}

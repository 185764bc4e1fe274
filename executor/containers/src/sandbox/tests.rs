//! Checks the permissions of a job in the request that the engine gets, and the system calls of the shipped profile.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use muster_protocol::{Digest, ImageId};
use serde_json::Value;

use super::*;
use crate::image_folders::UNSEEN;

#[test]
fn the_profile_lets_programs_live_and_keeps_the_kernel_closed() {
    let profile: Value = serde_json::from_str(SECCOMP).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().unwrap();
    let names = |rule: &Value| -> Vec<String> {
        rule["names"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    };
    let unconditional: BTreeSet<_> = rules
        .iter()
        .filter(|rule| rule["action"] == "SCMP_ACT_ALLOW" && rule["args"].as_array().unwrap().is_empty())
        .flat_map(names)
        .collect();
    for needed in [
        "read",
        "execve",
        "mmap",
        "futex",
        "clock_gettime",
        "rt_sigreturn",
        "vfork",
        "arch_prctl",
        "rseq",
        "getrandom",
    ] {
        assert!(unconditional.contains(needed), "{needed}");
    }
    let forbidden = [
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "mount",
        "umount2",
        "unshare",
        "setns",
        "pivot_root",
        "ptrace",
        "bpf",
        "keyctl",
        "add_key",
        "request_key",
        "kexec_load",
        "init_module",
        "finit_module",
        "reboot",
        "swapon",
        "open_by_handle_at",
        "perf_event_open",
        "userfaultfd",
        "fanotify_init",
        "chroot",
        "quotactl",
        "clock_settime",
        "settimeofday",
        "move_mount",
        "fsopen",
        "open_tree",
        "socket",
        "socketcall",
        "clone",
        "clone3",
        "personality",
        "iopl",
        "ioperm",
        "syslog",
        "acct",
        "vhangup",
        "mbind",
        "pidfd_getfd",
        "process_madvise",
        "kcmp",
        "vm86",
        "lookup_dcookie",
        "nfsservctl",
        "create_module",
        "uselib",
        "ustat",
    ];
    for name in forbidden {
        assert!(!unconditional.contains(name), "{name}");
    }
    let every: BTreeSet<_> = rules.iter().flat_map(names).collect();
    assert!(!every.iter().any(|name| name.starts_with("io_uring")));
}

#[test]
fn sandbox_allows_sockets_of_four_families() {
    let profile: Value = serde_json::from_str(SECCOMP).unwrap();
    let rules = profile["syscalls"].as_array().unwrap();
    let about = |name: &str| -> Vec<&Value> {
        let names = |rule: &&Value| {
            rule["names"]
                .as_array()
                .unwrap()
                .iter()
                .any(|known| known == name)
        };
        rules.iter().filter(names).collect()
    };
    let families: BTreeSet<_> = about("socket")
        .iter()
        .map(|rule| {
            assert_eq!(
                (&rule["args"][0]["index"], &rule["args"][0]["op"]),
                (&0.into(), &"SCMP_CMP_EQ".into())
            );
            rule["args"][0]["value"].as_u64().unwrap()
        })
        .collect();
    // AF_UNIX, AF_INET, AF_INET6, AF_NETLINK; so not AF_ALG (38), AF_VSOCK (40), AF_PACKET (17).
    assert_eq!(families, BTreeSet::from([1, 2, 10, 16]));
    // `socketcall`, the one call of 32-bit programs for all socket operations, cannot be filtered by family.
    assert!(about("socketcall").is_empty());
}

fn image() -> LocalImage {
    LocalImage {
        environment: ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "LD_PRELOAD=/x.so"]
            .map(str::to_owned)
            .to_vec(),
        ..LocalImage::default_for(ImageId(Digest::of(b"config")))
    }
}

fn host_files() -> &'static HostFiles {
    static FILES: LazyLock<HostFiles> = LazyLock::new(|| HostFiles::under(Path::new("/work")));
    &FILES
}

fn sandbox(image: &LocalImage) -> Sandbox<'_> {
    Sandbox {
        image,
        command: None,
        environment: vec![
            ("A", "b"),
            ("NVIDIA_DRIVER_CAPABILITIES", "all"),
            ("LD_AUDIT", "/y.so"),
        ],
        binds: vec![],
        host_files: host_files(),
        labels: HashMap::new(),
        image_folders: &UNSEEN,
        image_files: Path::new("/"),
        allowance: ResourceLimits {
            nano_cpus: 1,
            memory: 2,
            shm: 3,
            tmpfs: 4,
            pids: 5,
            disk: 6,
        },
        runtime: "",
        gpus: Gpus::None,
        run_as: RunAs::Image,
        root: Root::ReadOnly,
    }
}

#[test]
fn beside_a_gpu_nobody_steers_the_toolkit_or_the_loader() {
    let image = image();
    let uuids = ["GPU-8f6d4c1e-0000-4000-8000-000000000001".to_owned()];
    for gpus in [Gpus::All, Gpus::Selected(&uuids)] {
        let body = Sandbox {
            gpus,
            ..sandbox(&image)
        }
        .container()
        .unwrap();
        // A name without a value makes the engine unset the image's variable.
        assert_eq!(body.env.unwrap(), ["A=b", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"]);
    }
    let body = sandbox(&image).container().unwrap();
    assert_eq!(body.env.unwrap().len(), 3, "without a GPU they steer nothing");
}

#[test]
fn gpus_are_given_by_uuid_without_devices_or_a_runtime_of_their_own() {
    let image = image();
    let uuids = ["GPU-1".to_owned(), "GPU-2".to_owned()];
    let gpus = Gpus::Selected(&uuids);
    let host = Sandbox {
        gpus,
        ..sandbox(&image)
    }
    .container()
    .unwrap()
    .host_config
    .unwrap();
    let requests = host.device_requests.unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].count, requests[0].device_ids.as_deref()),
        (None, Some(&uuids[..]))
    );
    assert_eq!(
        (host.devices, host.runtime, host.privileged),
        (None, None, Some(false))
    );
    assert_eq!(
        host.ipc_mode.as_deref(),
        Some("private"),
        "no MPS server is reached through shared memory"
    );
    let host = sandbox(&image).container().unwrap().host_config.unwrap();
    assert_eq!(host.device_requests, None);
}

#[test]
fn whitelisted_images_run_as_nobody_and_classes_may_give_a_root_to_write() {
    let image = image();
    let body = sandbox(&image).container().unwrap();
    assert_eq!(
        (body.user, body.host_config.unwrap().readonly_rootfs),
        (None, Some(true))
    );
    let body = Sandbox {
        run_as: RunAs::Nobody,
        root: Root::Writable,
        runtime: "runsc",
        ..sandbox(&image)
    };
    let body = body.container().unwrap();
    assert_eq!(body.user.as_deref(), Some("65532:65532"));
    assert!(body.env.unwrap().contains(&"HOME=/tmp".to_owned()));
    let host = body.host_config.unwrap();
    assert_eq!(
        (host.readonly_rootfs, host.runtime.as_deref()),
        (Some(false), Some("runsc"))
    );
    assert_eq!(
        host.cap_drop,
        Some(vec!["ALL".to_owned()]),
        "a root to write changes nothing else"
    );
}

#[test]
fn a_library_path_stays_where_it_names_the_systems_own_folders_only() {
    let kept = |value: &str| {
        let image = LocalImage {
            environment: vec![format!("LD_LIBRARY_PATH={value}")],
            ..image()
        };
        let sandbox = Sandbox {
            gpus: Gpus::All,
            environment: vec![("LD_LIBRARY_PATH", value)],
            ..sandbox(&image)
        };
        let lines = sandbox.container().unwrap().env.unwrap();
        let set = lines.contains(&format!("LD_LIBRARY_PATH={value}"));
        let unset = lines.contains(&"LD_LIBRARY_PATH".to_owned());
        assert_ne!(set, unset, "{value}: {lines:?}");
        set
    };
    for usual in [
        "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        "/opt/conda/lib",
        "/lib64",
    ] {
        assert!(kept(usual), "{usual}");
    }
    for hostile in [
        "",
        ".",
        "./proc/self/cwd",
        "/proc/self/cwd",
        "/usr/lib:",
        ":/usr/lib",
        "/usr/lib:/tmp/x",
        "/usr/lib;/tmp",
        "/usr/../tmp",
        "/usrx/lib",
        "/usr/$ORIGIN",
    ] {
        assert!(!kept(hostile), "{hostile}");
    }
    for name in [
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_DEBUG_OUTPUT",
        "GLIBC_TUNABLES",
        "NVIDIA_IMEX_CHANNELS",
    ] {
        assert!(steers_gpus(name, "/usr/lib"), "{name}");
    }
}

#[test]
fn every_way_to_write_a_volume_leads_to_a_bounded_tmpfs_at_the_path_that_the_engine_uses() {
    let paths = |volumes: &[&str]| {
        let image = LocalImage {
            volumes: volumes.iter().map(|&path| path.to_owned()).collect(),
            ..image()
        };
        let bound = Bind {
            source: "/work/volume".into(),
            target: "/volume".to_owned(),
            writable: true,
        };
        let sandbox = Sandbox {
            binds: vec![bound],
            ..sandbox(&image)
        };
        let host = sandbox.container().unwrap().host_config.unwrap();
        let mut paths: Vec<_> = host.tmpfs.unwrap().into_keys().collect();
        paths.retain(|path| !["/tmp", "/var/tmp", "/run"].contains(&path.as_str()));
        paths
    };
    for written in [
        "/data",
        "/data/",
        "/data/.",
        "//data",
        "/./data",
        "/x/../data",
        "/../data",
    ] {
        assert_eq!(paths(&[written]), ["/data"], "{written}");
    }
    for none in ["data", "", "/volume/.", "/tmp/", "/etc/hosts"] {
        assert_eq!(paths(&[none]), [""; 0], "{none}");
    }
}

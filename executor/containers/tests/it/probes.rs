//! Each forbidden action is tried inside the sandbox, where it must fail, and outside, where it must work: a probe
//! that fails everywhere shows nothing. The table in docs/security.md is the output of [`write_the_report`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bollard::models::{ContainerCreateBody, DeviceMapping, HostConfig, Mount, MountType};
use futures_util::StreamExt;
use muster_containers::image_folders::UNSEEN;
use muster_containers::sandbox::{Gpus, ResourceLimits, Root, RunAs, Sandbox};
use muster_containers::{ContainerEngine, LocalImage};
use muster_process::Tasks;
use serde::Deserialize;
use tokio::net::{TcpListener, UdpSocket};
use uuid::Uuid;

use crate::support::{LABEL, engine, host_files, image, until};

const MIB: i64 = 1 << 20;
/// The capabilities that a program needs outside to do what the probes try.
const CAPABILITIES: [&str; 7] = [
    "SYS_ADMIN",
    "SYS_PTRACE",
    "NET_ADMIN",
    "NET_RAW",
    "MKNOD",
    "SYSLOG",
    "SYS_MODULE",
];
/// Processor time for the probe that asks for more of it, in billionths of a processor: so little that a busy machine
/// has three times as much.
const SLOW: i64 = 20_000_000;
const BEGIN: &str = "<!-- probes -->\n";
const END: &str = "<!-- end of probes -->";

/// The resource limits of a job of this test; the probes ask for more.
const ALLOWANCE: ResourceLimits = ResourceLimits {
    nano_cpus: 1_000_000_000,
    memory: 64 * MIB,
    shm: 8 * MIB,
    tmpfs: 8 << 20,
    pids: 40,
    disk: 8 << 20,
};

#[derive(Clone, Debug, Deserialize)]
struct Listed {
    name: String,
    tries: String,
}

/// The output of a probe, or how it ended without any.
#[derive(Clone, Debug, Deserialize)]
struct Said {
    worked: bool,
    words: String,
}

struct Seen {
    probe: Listed,
    sealed: Said,
    open: Said,
}

/// The objects outside the sandbox that the probes try to reach.
struct Targets {
    port: u16,
    dns: u16,
    gateway: String,
    neighbour: String,
    neighbour_address: String,
    tasks: Tasks,
}

fn list(program: &Path) -> Vec<Listed> {
    let output = Command::new(program).arg("list").output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The kernel's reason for which a probe may fail outside, too, on some machines.
fn may_be_absent(name: &str, words: &str) -> Option<&'static str> {
    let has = |text: &str| words.contains(text);
    match name {
        "vsock" if has("not supported") => Some("this machine's kernel has no vsock"),
        "af-alg" if has("not supported") => Some("this machine's kernel has no AF_ALG"),
        "io-uring" if has("not implemented") || has("not permitted") => {
            Some("this machine's kernel has io_uring switched off")
        }
        "metadata" if has("unreachable") => Some("this machine has no default route"),
        _ => None,
    }
}

fn argument(name: &str, targets: &Targets, mark: &str) -> String {
    match name {
        "host-loopback" => format!("127.0.0.1:{}", targets.port),
        "gateway" => format!("{}:{}", targets.gateway, targets.port),
        "dns" => format!("{}:{}", targets.gateway, targets.dns),
        "other-container" => format!("{}:7000", targets.neighbour_address),
        "memory" => (2 * ALLOWANCE.memory / MIB).to_string(),
        // Thousandths of a processor.
        "cpu" => (3 * SLOW / 1_000_000).to_string(),
        "pids" => (2 * ALLOWANCE.pids).to_string(),
        "disk" => ((2 * ALLOWANCE.tmpfs) >> 20).to_string(),
        "outlive" => mark.to_owned(),
        _ => String::new(),
    }
}

impl Targets {
    async fn new(engine: &ContainerEngine, image: &LocalImage) -> Self {
        let tasks = Tasks::new();
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tasks.spawn(
            "listener",
            async move { while listener.accept().await.is_ok() {} },
        );
        let server = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        let dns = server.local_addr().unwrap().port();
        tasks.spawn("name server", async move {
            let mut question = [0; 512];
            while let Ok((bytes, from)) = server.recv_from(&mut question).await {
                let _ = server.send_to(&question[..bytes], from).await;
            }
        });
        let docker = bollard::Docker::connect_with_defaults().unwrap();
        let neighbour = format!("muster-neighbour-{}", Uuid::new_v4());
        let body = ContainerCreateBody {
            image: Some(image.id.to_string()),
            cmd: Some(["listen", "7000"].map(str::to_owned).to_vec()),
            labels: Some(HashMap::from([(LABEL.to_owned(), String::new())])),
            ..ContainerCreateBody::default()
        };
        engine.create(&neighbour, body).await.unwrap();
        engine.start(&neighbour).await.unwrap();
        let found = docker.inspect_container(&neighbour, None).await.unwrap();
        let networks = found.network_settings.unwrap().networks.unwrap();
        let bridge = &networks["bridge"];
        let (gateway, neighbour_address) = (
            bridge.gateway.clone().unwrap(),
            bridge.ip_address.clone().unwrap(),
        );
        Self {
            port,
            dns,
            gateway,
            neighbour,
            neighbour_address,
            tasks,
        }
    }

    async fn gone(self, engine: &ContainerEngine) {
        engine.remove(&self.neighbour).await.unwrap();
        self.tasks.shutdown();
    }
}

fn sealed_body(image: &LocalImage, name: &str, command: Vec<String>) -> ContainerCreateBody {
    let nano_cpus = if name == "cpu" { SLOW } else { ALLOWANCE.nano_cpus };
    let sandbox = Sandbox {
        image,
        command: Some(command),
        environment: vec![],
        binds: vec![],
        host_files: host_files(),
        labels: HashMap::from([(LABEL.to_owned(), String::new())]),
        image_folders: &UNSEEN,
        image_files: Path::new("/"),
        allowance: ResourceLimits {
            nano_cpus,
            ..ALLOWANCE
        },
        runtime: "",
        gpus: Gpus::None,
        run_as: RunAs::Image,
        root: Root::ReadOnly,
    };
    sandbox.container().unwrap()
}

/// The same program without any restriction: with capabilities, every system call, in the machine's network, with the
/// engine's socket mounted. The neighbour is reached from a bridge.
fn open_body(image: &LocalImage, name: &str, command: Vec<String>) -> ContainerCreateBody {
    let network = if name == "other-container" {
        "bridge"
    } else {
        "host"
    };
    let socket = Mount {
        typ: Some(MountType::BIND),
        source: Some("/var/run/docker.sock".into()),
        target: Some("/var/run/docker.sock".into()),
        ..Mount::default()
    };
    ContainerCreateBody {
        image: Some(image.id.to_string()),
        cmd: Some(command),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        labels: Some(HashMap::from([(LABEL.to_owned(), String::new())])),
        host_config: Some(HostConfig {
            // Not `privileged`: an engine that lacks any capability itself cannot grant that.
            cap_add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
            security_opt: Some(vec![
                "seccomp=unconfined".to_owned(),
                "apparmor=unconfined".to_owned(),
            ]),
            devices: Some(vec![DeviceMapping {
                path_on_host: Some("/dev/kmsg".into()),
                path_in_container: Some("/dev/kmsg".into()),
                cgroup_permissions: Some("r".into()),
            }]),
            network_mode: Some(network.to_owned()),
            mounts: Some(vec![socket]),
            tmpfs: Some(HashMap::from([("/tmp".to_owned(), "rw".to_owned())])),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// Runs a container to its end and removes it; returns its output.
async fn run(engine: &ContainerEngine, body: ContainerCreateBody) -> Said {
    let name = format!("muster-probe-{}", Uuid::new_v4());
    engine.create(&name, body).await.unwrap();
    let mut output = engine.attach(&name).await.unwrap();
    engine.start(&name).await.unwrap();
    let mut text = Vec::new();
    while let Some(Ok(piece)) = output.next().await {
        text.extend_from_slice(&piece.into_bytes());
    }
    let code = engine.wait(&name).await.unwrap();
    let ended = engine.inspect_exit(&name).await.unwrap();
    engine.remove(&name).await.unwrap();
    serde_json::from_slice(&text).unwrap_or_else(|_| Said {
        worked: false,
        words: if ended.oom_killed {
            "killed by the kernel for its memory".to_owned()
        } else {
            format!("ended with {code}: {}", String::from_utf8_lossy(&text).trim())
        },
    })
}

/// The ids of processes of this machine with `mark` on their command line.
fn marked(mark: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| {
            let command = std::fs::read(entry.path().join("cmdline")).ok()?;
            let lingers = command.split(|byte| *byte == 0).any(|word| word == b"linger")
                && command
                    .split(|byte| *byte == 0)
                    .any(|word| word == mark.as_bytes());
            lingers
                .then(|| entry.file_name().to_str()?.parse().ok())
                .flatten()
        })
        .collect()
}

/// A probe that leaves a process behind. No process may stay inside the sandbox. Outside, on the machine itself, it
/// lives on until the test kills it.
async fn outlive(engine: &ContainerEngine, image: &LocalImage, program: &Path, probe: Listed) -> Seen {
    let mark = Uuid::new_v4().to_string();
    let command = |mark: &str| ["run", "outlive", mark].map(str::to_owned).to_vec();
    let said = run(engine, sealed_body(image, &probe.name, command(&mark))).await;
    assert!(said.worked, "it must at least be left behind: {}", said.words);
    let left = marked(&mark);
    let sealed = Said {
        worked: !left.is_empty(),
        words: if left.is_empty() {
            "left behind, and ended with its job".to_owned()
        } else {
            format!("lives on as {left:?}")
        },
    };
    let mark = Uuid::new_v4().to_string();
    let status = Command::new(program)
        .args(command(&mark))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    until("the process is there", || async { !marked(&mark).is_empty() }).await;
    for pid in marked(&mark) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    let open = Said {
        worked: true,
        words: "lives on".to_owned(),
    };
    Seen { probe, sealed, open }
}

async fn observe(engine: &ContainerEngine) -> Vec<Seen> {
    let archive = image::load_probe(engine).await.unwrap();
    let image = engine.find_image(&archive.id.to_string()).await.unwrap().unwrap();
    let program = tokio::task::spawn_blocking(image::probe_program)
        .await
        .unwrap()
        .unwrap();
    let targets = Targets::new(engine, &image).await;
    let mut seen = Vec::new();
    for probe in list(&program) {
        if probe.name == "outlive" {
            seen.push(outlive(engine, &image, &program, probe).await);
            continue;
        }
        let argument = argument(&probe.name, &targets, "");
        let command = vec!["run".to_owned(), probe.name.clone(), argument];
        let sealed = run(engine, sealed_body(&image, &probe.name, command.clone())).await;
        let mut open = run(engine, open_body(&image, &probe.name, command.clone())).await;
        for _ in 0..4 {
            if open.worked || probe.name != "cpu" {
                break;
            }
            // All processors may have been busy, so the probe runs once more.
            open = run(engine, open_body(&image, &probe.name, command.clone())).await;
        }
        seen.push(Seen { probe, sealed, open });
    }
    targets.gone(engine).await;
    seen
}

#[tokio::test]
async fn nothing_works_inside_that_works_outside() {
    let engine = engine().await;
    let seen = observe(&engine).await;
    let mut wrong = Vec::new();
    for Seen { probe, sealed, open } in &seen {
        let files = ["/tmp/", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];
        if probe.name == "disk" && !files.iter().all(|file| open.words.contains(file)) {
            wrong.push(format!("disk shows nothing of some files: {}", open.words));
        }
        if sealed.worked {
            wrong.push(format!("{} works in the sandbox: {}", probe.name, sealed.words));
        }
        if !open.worked && may_be_absent(&probe.name, &open.words).is_none() {
            wrong.push(format!(
                "{} shows nothing, it fails outside: {}",
                probe.name, open.words
            ));
        }
    }
    assert!(wrong.is_empty() && seen.len() > 20, "{wrong:#?}");
}

#[tokio::test]
async fn the_report_names_every_probe() {
    let program = tokio::task::spawn_blocking(image::probe_program)
        .await
        .unwrap()
        .unwrap();
    let text = std::fs::read_to_string(page()).unwrap();
    let table = text.split_once(BEGIN).unwrap().1.split_once(END).unwrap().0;
    let named: Vec<_> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    let all: Vec<_> = list(&program).into_iter().map(|probe| probe.name).collect();
    assert_eq!(
        named, all,
        "write it anew: cargo test -p muster-containers --test it -- --ignored write_the_report"
    );
}

#[tokio::test]
#[ignore = "rewrites the table in docs/security.md"]
async fn write_the_report() {
    let engine = engine().await;
    let seen = observe(&engine).await;
    let mut table = String::from("| probe | tries | in the sandbox | without it |\n|---|---|---|---|\n");
    for Seen { probe, sealed, open } in &seen {
        let open = match may_be_absent(&probe.name, &open.words) {
            Some(reason) if !open.worked => format!("not shown: {reason}"),
            Some(_) | None => verdict(open),
        };
        table.push_str(&format!(
            "| `{}` | {} | {} | {open} |\n",
            probe.name,
            probe.tries,
            verdict(sealed)
        ));
    }
    let text = std::fs::read_to_string(page()).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    std::fs::write(page(), format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
}

fn verdict(said: &Said) -> String {
    let words = said.words.replace('|', "/");
    if said.worked {
        format!("works: {words}")
    } else {
        format!("fails: {words}")
    }
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md")
}

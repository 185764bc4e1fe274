//! Ordinary images run in the sandbox: root users, Python with an installed package, shell scripts, programs that write
//! to their home and to /tmp.

use std::collections::HashMap;

use futures_util::StreamExt;
use muster_containers::image_folders::{UNSEEN, look};
use muster_containers::laid_files::{LayPlace, give_folders, lay};
use muster_containers::sandbox::{Bind, Gpus, ResourceLimits, Root, RunAs, Sandbox};
use muster_containers::{ContainerEngine, ImageArchive, ImageContent, ImageFile, LocalImage, OwnerIds};
use uuid::Uuid;

use crate::support::{LABEL, clock, engine, host_files, image, require};

const ALLOWANCE: ResourceLimits = ResourceLimits {
    nano_cpus: 2_000_000_000,
    memory: 256 << 20,
    shm: 8 << 20,
    tmpfs: 32 << 20,
    pids: 100,
    disk: 8 << 20,
};

pub(crate) fn labels() -> HashMap<String, String> {
    HashMap::from([(LABEL.to_owned(), String::new())])
}

/// Runs one command in the sandbox, as an executor lays it out; returns its exit code and output.
pub(crate) async fn run(
    engine: &ContainerEngine,
    image: &LocalImage,
    command: &[&str],
    run_as: RunAs,
    root: Root,
) -> (i64, String) {
    let name = format!("muster-compatible-{}", Uuid::new_v4());
    let found = look(engine, image, &name, labels()).await.unwrap();
    let job = tempfile::tempdir().unwrap();
    let place = LayPlace {
        folder: job.path().join("image"),
        bytes: ALLOWANCE.disk,
    };
    let laid = lay(engine, image, &found, (root, run_as), &place, (&name, labels())).await;
    assert_eq!(laid.unwrap(), [""; 0]);
    let own = ["/volume", "/output"].map(|target| {
        let source = job.path().join(&target[1..]);
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("given"), "x").unwrap();
        Bind {
            source,
            target: target.to_owned(),
            writable: true,
        }
    });
    let user = match run_as {
        RunAs::Image => found.user(),
        RunAs::Nobody => Some(OwnerIds::NOBODY),
    };
    let given = own.iter().map(|bind| bind.source.clone()).collect();
    give_folders(engine, user.unwrap(), given).await.unwrap();
    let sandbox = Sandbox {
        image,
        command: Some(command.iter().map(|&word| word.to_owned()).collect()),
        environment: vec![],
        binds: own.to_vec(),
        host_files: host_files(),
        labels: labels(),
        image_folders: &found,
        image_files: &place.folder,
        allowance: ALLOWANCE,
        runtime: "",
        gpus: Gpus::None,
        run_as,
        root,
    };
    engine.create(&name, sandbox.container().unwrap()).await.unwrap();
    let mut output = engine.attach(&name).await.unwrap();
    engine.start(&name).await.unwrap();
    let mut text = Vec::new();
    while let Some(Ok(piece)) = output.next().await {
        text.extend_from_slice(&piece.into_bytes());
    }
    let code = engine.wait(&name).await.unwrap();
    engine.remove(&name).await.unwrap();
    (code, String::from_utf8_lossy(&text).into_owned())
}

/// An image with Debian's static shell alone.
async fn shell(engine: &ContainerEngine, user: &str) -> (String, LocalImage) {
    require("busybox");
    let busybox = std::fs::read("/bin/busybox")
        .or_else(|_| std::fs::read("/usr/bin/busybox"))
        .unwrap();
    let tag = format!("muster/engine-test:{}", Uuid::new_v4());
    let file = |path: &str, contents: &[u8]| ImageFile {
        path: path.into(),
        mode: 0o755,
        contents: contents.to_vec(),
    };
    let content = ImageContent {
        tag: tag.clone(),
        files: vec![
            file("/bin/sh", &busybox),
            file(
                "/etc/passwd",
                b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n",
            ),
            file("/mark", tag.as_bytes()),
        ],
        environment: vec!["PATH=/bin".into()],
        user: user.into(),
        ..ImageContent::default()
    };
    let archive = ImageArchive::new(&content).unwrap();
    engine.load(archive.bytes).await.unwrap();
    let image = engine.find_image(&tag).await.unwrap().unwrap();
    (tag, image)
}

const SCRIPT: &str = "set -e; for folder in /tmp /var/tmp /run \"$HOME\"; do echo x > \"$folder/file\"; \
    [ \"$(cat $folder/file)\" = x ]; done; (sleep 0; echo child) | cat; echo done";

#[tokio::test]
async fn shell_scripts_of_any_user_write_where_scripts_write() {
    let engine = engine().await;
    for (user, run_as) in [("", RunAs::Image), ("app", RunAs::Image), ("", RunAs::Nobody)] {
        let (tag, image) = shell(&engine, user).await;
        let (code, text) = run(
            &engine,
            &image,
            &["/bin/sh", "-c", SCRIPT],
            run_as,
            Root::ReadOnly,
        )
        .await;
        assert_eq!((code, text.as_str()), (0, "child\ndone\n"), "{user:?} {run_as:?}");
        let (code, text) = run(
            &engine,
            &image,
            &["/bin/sh", "-c", "echo x > /file"],
            run_as,
            Root::ReadOnly,
        )
        .await;
        assert!(code != 0 && text.contains("Read-only"), "{text}");
        engine.remove_tag(&tag).await.unwrap();
    }
}

#[tokio::test]
async fn localhost_and_the_host_name_lead_to_the_jobs_loopback_and_their_files_take_no_byte() {
    let engine = engine().await;
    let script = "exec 2>&1; hostname; cat /etc/hosts /proc/net/if_inet6; for name in localhost job; do \
        wget -q -O- http://$name:1/; done; for name in hosts hostname; do echo x >> /etc/$name; done";
    for (user, root) in [
        ("", Root::ReadOnly),
        ("app", Root::ReadOnly),
        ("", Root::Writable),
    ] {
        let (tag, image) = shell(&engine, user).await;
        let (_, text) = run(&engine, &image, &["/bin/sh", "-c", script], RunAs::Image, root).await;
        assert!(
            text.starts_with("job\n127.0.0.1\tlocalhost\n127.0.0.1\tjob\n"),
            "{root:?}: {text}"
        );
        assert_eq!(text.matches("Connection refused").count(), 2, "{root:?}: {text}");
        let refused = if user.is_empty() {
            "Read-only"
        } else {
            "Permission denied"
        };
        assert_eq!(text.matches(refused).count(), 2, "{root:?}: {text}");
        let has_ipv6 = text.contains("00000000000000000000000000000001 01");
        assert_eq!(text.contains("\n::1\tlocalhost"), has_ipv6, "{root:?}: {text}");
        engine.remove_tag(&tag).await.unwrap();
    }
}

#[tokio::test]
async fn a_root_to_write_goes_with_the_container_and_its_size_is_watched() {
    let engine = engine().await;
    let (tag, image) = shell(&engine, "").await;
    let (code, text) = run(
        &engine,
        &image,
        &["/bin/sh", "-c", "echo x > /file; cat /file"],
        RunAs::Image,
        Root::Writable,
    )
    .await;
    assert_eq!((code, text.as_str()), (0, "x\n"));
    let name = format!("muster-root-{}", Uuid::new_v4());
    let command = [
        "/bin/sh",
        "-c",
        "dd if=/dev/zero of=/filler bs=1048576 count=4; sleep 600",
    ];
    let sandbox = Sandbox {
        image: &image,
        command: Some(command.map(str::to_owned).to_vec()),
        environment: vec![],
        binds: vec![],
        host_files: host_files(),
        labels: labels(),
        image_folders: &UNSEEN,
        image_files: std::path::Path::new("/"),
        allowance: ALLOWANCE,
        runtime: "",
        gpus: Gpus::None,
        run_as: RunAs::Image,
        root: Root::Writable,
    };
    engine.create(&name, sandbox.container().unwrap()).await.unwrap();
    engine.start(&name).await.unwrap();
    let watch = muster_containers::disk::watch_root(engine.clone(), name.clone(), 3 << 20, clock());
    muster_testbed::within("4 MiB are more than 3", watch).await;
    engine.remove(&name).await.unwrap();
    engine.remove_tag(&tag).await.unwrap();
}

#[tokio::test]
async fn python_with_an_installed_package_runs() {
    let engine = engine().await;
    let image = image::python(&engine).await.unwrap();
    let script = "import json, os, six, tempfile, threading, subprocess, sys\n\
        open(os.path.expanduser('~/x'), 'w').write('home')\n\
        tempfile.NamedTemporaryFile().write(b'x')\n\
        t = threading.Thread(target=lambda: None); t.start(); t.join()\n\
        print(json.dumps([six.__name__, os.getuid(), subprocess.check_output([sys.executable, '-c', 'print(6*7)']).decode()]))";
    let (code, text) = run(
        &engine,
        &image,
        &["python3", "-c", script],
        RunAs::Image,
        Root::ReadOnly,
    )
    .await;
    assert_eq!((code, text.as_str()), (0, "[\"six\", 0, \"42\\n\"]\n"));
    let (code, text) = run(
        &engine,
        &image,
        &["python3", "-c", script],
        RunAs::Nobody,
        Root::ReadOnly,
    )
    .await;
    assert_eq!((code, text.as_str()), (0, "[\"six\", 65532, \"42\\n\"]\n"));
}

//! Images keep their files in the sandbox, and their users may write where they may under `docker run`.

use std::time::Duration;

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::CreateImageOptions;
use futures_util::StreamExt;
use muster_containers::image_folders::look;
use muster_containers::laid_files::{LayPlace, lay};
use muster_containers::owned_folders::ClaimedFolder;
use muster_containers::sandbox::{Root, RunAs};
use muster_containers::{ContainerEngine, LocalImage};
use muster_protocol::AttemptId;
use tar::{Builder, EntryType, Header};
use uuid::Uuid;

use crate::compatibility::{labels, run};
use crate::support::{clock, engine, require};

const PASSWD: &[u8] = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/srv/app:/bin/sh\n";

/// The files of an image under construction.
struct RootFiles(Builder<Vec<u8>>);

impl RootFiles {
    fn new() -> Self {
        require("busybox");
        let busybox = std::fs::read("/bin/busybox")
            .or_else(|_| std::fs::read("/usr/bin/busybox"))
            .unwrap();
        let files = Self(Builder::new(Vec::new()));
        let unique = Uuid::new_v4().to_string();
        files
            .file("bin/sh", 0, 0o755, &busybox)
            .file("etc/passwd", 0, 0o644, PASSWD)
            .file("etc/group", 0, 0o644, b"staff:x:50:\n")
            .file("mark", 0, 0o644, unique.as_bytes())
            .folder("tmp", 0, 0o1777)
            .folder("root", 0, 0o700)
            .folder("srv/app", 1000, 0o755)
    }

    fn add(mut self, path: &str, kind: EntryType, (owner, mode): (u64, u32), content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        self.0.append_data(&mut header, path, content).unwrap();
        self
    }

    fn folder(self, path: &str, owner: u64, mode: u32) -> Self {
        self.add(path, EntryType::Directory, (owner, mode), b"")
    }

    fn file(self, path: &str, owner: u64, mode: u32, content: &[u8]) -> Self {
        self.add(path, EntryType::Regular, (owner, mode), content)
    }

    fn link(mut self, path: &str, kind: EntryType, to: &str) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o777);
        header.set_size(0);
        self.0.append_link(&mut header, path, to).unwrap();
        self
    }

    /// The image with these lines of a recipe.
    async fn image(self, engine: &ContainerEngine, recipe: &[&str]) -> (String, LocalImage) {
        let name = format!("muster/engine-test:{}", Uuid::new_v4());
        let (repo, tag) = name.split_once(':').unwrap();
        let docker = bollard::Docker::connect_with_defaults().unwrap();
        let lines = recipe.iter().copied().chain(["ENV PATH=/bin"]);
        let options = CreateImageOptions {
            from_src: Some("-".into()),
            repo: Some(repo.to_owned()),
            tag: Some(tag.to_owned()),
            changes: lines.map(str::to_owned).collect(),
            ..Default::default()
        };
        let body = bollard::body_full(self.0.into_inner().unwrap().into());
        let mut answers = Box::pin(docker.create_image(Some(options), Some(body), None));
        while let Some(answer) = answers.next().await {
            answer.unwrap();
        }
        let image = engine.find_image(&name).await.unwrap().unwrap();
        (name, image)
    }
}

/// Runs a script of the shell that must succeed; returns its output.
async fn sh(engine: &ContainerEngine, image: &LocalImage, script: &str, root: Root) -> String {
    let script = format!("set -e; {script}");
    let (code, text) = run(engine, image, &["/bin/sh", "-c", &script], RunAs::Image, root).await;
    assert_eq!(code, 0, "{root:?}: {text}");
    text
}

#[tokio::test]
async fn files_of_an_image_stay_in_its_volumes_and_scratch_folders() {
    let engine = engine().await;
    let (name, image) = RootFiles::new()
        .folder("data", 0, 0o755)
        .file("data/models/w.bin", 0, 0o640, b"weights\n")
        .link("data/last", EntryType::Symlink, "models/w.bin")
        .file("tmp/mine", 0, 0o600, b"temporary\n")
        .folder("run/app", 1000, 0o2775)
        .file("var/tmp/deep/er", 0, 0o644, b"deeper\n")
        .image(&engine, &["VOLUME /data /data/models /etc"])
        .await;
    for root in [Root::ReadOnly, Root::Writable] {
        let read = "cat /data/models/w.bin /data/last /tmp/mine /var/tmp/deep/er; stat -c '%a %u %Y' /data/models/w.bin";
        let text = sh(&engine, &image, read, root).await;
        let expected = "weights\nweights\ntemporary\ndeeper\n640 0 1000000000\n";
        assert_eq!(
            text, expected,
            "{root:?}: of the file itself, also in a volume in a volume"
        );
        let write = "stat -c '%a %u' /run/app; for folder in /data /tmp /var/tmp/deep /run; do echo x > $folder/new; done; \
            grep -c app /etc/passwd; (echo x > /etc/new) 2>/dev/null || echo read-only";
        let text = sh(&engine, &image, write, root).await;
        assert!(
            text.starts_with("2775 1000\n1\n") && text.ends_with("read-only\n"),
            "{root:?}: {text}"
        );
    }
    engine.remove_tag(&name).await.unwrap();
}

#[tokio::test]
async fn a_home_with_files_is_kept_and_written_by_its_user() {
    let engine = engine().await;
    for (user, home) in [
        ("", "/root"),
        ("app", "/srv/app"),
        ("1000", "/srv/app"),
        ("1000:50", "/srv/app"),
    ] {
        let owner = if user.is_empty() { 0 } else { 1000 };
        let path = format!("{}/.gitconfig", &home[1..]);
        let files = RootFiles::new().file(&path, owner, 0o600, b"[user]\n");
        let recipe = format!("USER {user}");
        let recipe = if user.is_empty() {
            vec![]
        } else {
            vec![recipe.as_str()]
        };
        let (name, image) = files.image(&engine, &recipe).await;
        let roots = [Root::ReadOnly, Root::Writable];
        for root in roots.into_iter().take(if user == "app" { 2 } else { 1 }) {
            let script = "cat ~/.gitconfig; mkdir -p ~/.cache/hub; echo ok > ~/.cache/hub/f; cat ~/.cache/hub/f; echo $HOME";
            let text = sh(&engine, &image, script, root).await;
            assert_eq!(text, format!("[user]\nok\n{home}\n"), "{user:?} {root:?}");
        }
        engine.remove_tag(&name).await.unwrap();
    }
}

#[tokio::test]
async fn empty_volumes_and_a_jobs_own_folders_belong_to_the_images_user() {
    let engine = engine().await;
    for user in ["app", "1000:1001", "4242"] {
        let owner = if user == "4242" { 4242 } else { 1000 };
        let (name, image) = RootFiles::new()
            .folder("var/lib/store", owner, 0o700)
            .image(
                &engine,
                &[&format!("USER {user}"), "VOLUME /var/lib/store /absent"],
            )
            .await;
        let script = "stat -c %a /var/lib/store; for folder in /var/lib/store /absent /volume /output /tmp; do \
            echo x > $folder/new; done; echo y >> /volume/given; chmod 700 /output; cat /volume/given; echo";
        let text = sh(&engine, &image, script, Root::ReadOnly).await;
        assert_eq!(text, "700\nxy\n\n", "{user}");
        engine.remove_tag(&name).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "soak: measures the copy of 100 MB beside the engine's own"]
async fn a_volume_of_100_mb_is_laid_out_within_a_second() {
    let engine = engine().await;
    let weights: Vec<u8> = (0..100_000_000_u32).map(|number| (number >> 3) as u8).collect();
    let (tag, image) = RootFiles::new()
        .file("data/w.bin", 0, 0o644, &weights)
        .image(&engine, &["VOLUME /data"])
        .await;
    let found = look(&engine, &image, "muster-look-of-copy", labels())
        .await
        .unwrap();
    let (work, clock) = (tempfile::tempdir().unwrap(), clock());
    let (mut ours, mut engines) = (Duration::MAX, Duration::MAX);
    for _ in 0..5 {
        let job = ClaimedFolder::new(work.path(), AttemptId::from_uuid(Uuid::new_v4())).unwrap();
        muster_containers::sized_disk::make(job.path(), 400 << 20).unwrap();
        let place = LayPlace {
            folder: job.path().join("d/image"),
            bytes: 1 << 30,
        };
        let rights = (Root::ReadOnly, RunAs::Image);
        let began = clock.now();
        lay(&engine, &image, &found, rights, &place, ("muster-copy", labels()))
            .await
            .unwrap();
        ours = ours.min(clock.now().since(began));
        job.remove().unwrap();
        let body = ContainerCreateBody {
            image: Some(image.id.to_string()),
            cmd: Some(vec!["/bin/sh".to_owned()]),
            labels: Some(labels()),
            ..ContainerCreateBody::default()
        };
        let began = clock.now();
        engine.create("muster-engines-copy", body).await.unwrap();
        engines = engines.min(clock.now().since(began));
        engine.remove("muster-engines-copy").await.unwrap();
    }
    engine.remove_tag(&tag).await.unwrap();
    println!("100 MB: {ours:?}; the engine's own copy: {engines:?}");
    assert!(ours <= Duration::from_secs(1), "{ours:?} against {engines:?}");
}

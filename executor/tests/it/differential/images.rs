//! The images of the corpus, made of what Debian serves: once a machine, since the engine keeps them.

use std::fs::File;
use std::process::{Command, Stdio};

use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use muster_protocol::Digest;
use nix::fcntl::{Flock, FlockArg};
use proptest::prelude::*;
use tokio::task::spawn_blocking;

use crate::support::{engine, require};

const SUITE: &str = "bookworm";
const MIRROR: &str = "http://deb.debian.org/debian";
/// The programs of the corpus beside a shell's.
const PACKAGES: &str =
    "python3,sqlite3,git,rsync,zip,unzip,gawk,perl,make,procps,xz-utils,zstd,netcat-openbsd";
/// Folders of the system that no command reads.
const LEFT_OUT: [&str; 6] = [
    "./proc/*",
    "./sys/*",
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
];
/// Adds the user and the files that commands look for.
const FURNISH: &str = "set -e; useradd --uid 1000 --create-home --shell /bin/bash app; \
    mkdir -p /home/app/work /data; chmod 700 /home/app/work; chmod 750 /data; \
    for d in /home/app /home/app/work /data /tmp /var/tmp; do echo 'of the image' > $d/of-the-image; done; \
    chown -R app:app /home/app /data";
/// The settings of the image `app`.
const APP_SETTINGS: [&str; 5] = [
    "USER app",
    "WORKDIR /home/app/work",
    "VOLUME /data",
    "ENV OF_IMAGE=\"two words\"",
    "ENTRYPOINT [\"env\",\"OF_ENTRYPOINT=yes\"]",
];

/// The images that the corpus names.
pub(super) struct TestImages {
    tools: String,
    app: String,
    busybox: String,
}

/// An image that ends with this value.
pub(super) struct VariedImage(String);

/// Settings of an image.
#[derive(Clone, Debug)]
pub(super) struct ImageVariant {
    changes: Vec<String>,
}

// === impl TestImages ===

impl TestImages {
    pub(super) const NAMES: [&str; 3] = ["tools", "app", "busybox"];

    /// Makes the images that the engine does not have.
    pub(super) async fn load() -> Self {
        let engine = engine().await;
        let mark = |recipe: &str| Digest::of(recipe.as_bytes()).hex()[..12].to_owned();
        let debian = mark(&format!("{SUITE} {MIRROR} {PACKAGES} {}", LEFT_OUT.join(" ")));
        let furnished = mark(&format!("{debian} {FURNISH} {}", APP_SETTINGS.join(" ")));
        let base = format!("muster/differential-base:{debian}");
        let images = Self {
            tools: format!("muster/differential-tools:{furnished}"),
            app: format!("muster/differential-app:{furnished}"),
            busybox: format!("muster/differential-busybox:{furnished}"),
        };
        // Only one process of this machine makes them.
        let lock = spawn_blocking(|| {
            let path = std::env::temp_dir().join("muster-differential-images.lock");
            let file = File::options().create(true).append(true).open(path).unwrap();
            Flock::lock(file, FlockArg::LockExclusive).unwrap()
        });
        let _lock = lock.await.unwrap();
        if engine.find_image(&base).await.unwrap().is_none() {
            let name = base.clone();
            spawn_blocking(move || import_debian(&name)).await.unwrap();
        }
        if engine.find_image(&images.tools).await.unwrap().is_none() {
            commit(&base, &images.tools, FURNISH, Vec::new()).await;
        }
        if engine.find_image(&images.app).await.unwrap().is_none() {
            let settings = APP_SETTINGS.map(str::to_owned).to_vec();
            commit(&images.tools, &images.app, "true", settings).await;
        }
        images.load_busybox(&engine).await;
        images
    }

    /// The name of an image in the engine.
    pub(super) fn name_of(&self, image: &str) -> &str {
        match image {
            "tools" => &self.tools,
            "app" => &self.app,
            "busybox" => &self.busybox,
            other => panic!("the corpus has no image {other}"),
        }
    }

    /// An image with these settings.
    pub(super) async fn vary(&self, variant: &ImageVariant) -> VariedImage {
        let name = format!("muster/differential-variant:{}", uuid::Uuid::new_v4());
        commit(&self.tools, &name, "true", variant.changes.clone()).await;
        VariedImage(name)
    }

    async fn load_busybox(&self, engine: &ContainerEngine) {
        let busybox = std::fs::read("/bin/busybox").or_else(|_| std::fs::read("/usr/bin/busybox"));
        let archive = ImageArchive::new(&ImageContent {
            tag: self.busybox.clone(),
            files: vec![ImageFile {
                path: "/bin/busybox".to_owned(),
                mode: 0o755,
                contents: busybox.expect("busybox-static is installed by `cargo xtask test`"),
            }],
            ..ImageContent::default()
        });
        engine.load(archive.unwrap().bytes).await.unwrap();
    }
}

// === impl VariedImage ===

impl VariedImage {
    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for VariedImage {
    fn drop(&mut self) {
        // Another run's leftovers fail nothing.
        let _ = Command::new("docker")
            .args(["image", "rm", "--force", &self.0])
            .output();
    }
}

// === impl ImageVariant ===

impl ImageVariant {
    /// Variants of USER, WORKDIR, VOLUME, ENV and ENTRYPOINT, each of which may be absent.
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let user = [
            "",
            "root",
            "app",
            "app:app",
            "1000",
            "1000:1000",
            "www-data",
            "33",
            "4242",
            "4242:33",
        ];
        let folder = [
            "",
            "/",
            "/tmp",
            "/home/app/work",
            "/data",
            "/new/folder",
            "/srv/v/below",
            "relative",
        ];
        let volumes = [
            "/data",
            "/srv/v",
            "/tmp/v",
            "/home/app",
            "/var/lib/v/",
            "/data/below",
            "/home/app/work",
        ];
        let home = [
            "",
            "HOME=/data",
            "HOME=/tmp/home",
            "HOME=/",
            "A=1",
            "A=two words",
            "HOME=/home/app",
        ];
        let volumes = prop::sample::subsequence(volumes.to_vec(), 0..=3);
        let choice = (
            prop::sample::select(user.to_vec()),
            prop::sample::select(folder.to_vec()),
            volumes,
            prop::sample::select(home.to_vec()),
            any::<bool>(),
        );
        choice.prop_map(|(user, folder, volumes, variable, entrypoint)| {
            let mut changes: Vec<_> = volumes.iter().map(|volume| format!("VOLUME {volume}")).collect();
            if !folder.is_empty() {
                changes.push(format!("WORKDIR {folder}"));
            }
            if !user.is_empty() {
                changes.push(format!("USER {user}"));
            }
            if let Some((name, value)) = variable.split_once('=') {
                changes.push(format!("ENV {name}=\"{value}\""));
            }
            if entrypoint {
                changes.push("ENTRYPOINT [\"bash\"]".to_owned());
            }
            Self { changes }
        })
    }

    pub(super) fn has_entrypoint(&self) -> bool {
        self.changes.iter().any(|change| change.starts_with("ENTRYPOINT"))
    }
}

/// Makes an image of another one by what a script does in it, and by settings.
async fn commit(from: &str, to: &str, script: &'static str, changes: Vec<String>) {
    let (from, to) = (from.to_owned(), to.to_owned());
    spawn_blocking(move || {
        let created = docker(&["create", "--network", "none", &from, "sh", "-c", script]);
        let container = created.trim();
        docker(&["start", "--attach", container]);
        // Otherwise the script would be the image's command.
        let mut commit = vec!["commit", "--change", "CMD [\"bash\"]"];
        commit.extend(changes.iter().flat_map(|change| ["--change", change]));
        commit.extend([container, &to]);
        docker(&commit);
        docker(&["rm", container]);
    })
    .await
    .unwrap();
}

/// Runs `docker ARGS`, and returns its output.
fn docker(args: &[&str]) -> String {
    let ran = Command::new("docker").args(args).output().unwrap();
    assert!(
        ran.status.success(),
        "docker {args:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    String::from_utf8(ran.stdout).unwrap()
}

/// Makes a small Debian and imports it.
fn import_debian(name: &str) {
    require("debootstrap");
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let made = Command::new("debootstrap")
        .args(["--variant=minbase", &format!("--include={PACKAGES}"), SUITE])
        .arg(&root)
        .arg(MIRROR)
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&made.stdout);
    assert!(made.status.success(), "debootstrap: {words}");
    // Otherwise the folder could not be removed.
    let _ = Command::new("umount").arg(root.join("proc")).output();
    let _ = Command::new("umount").arg(root.join("sys")).output();
    let mut tar = Command::new("tar");
    tar.args(LEFT_OUT.map(|path| format!("--exclude={path}")));
    let mut packed = tar
        .args(["--one-file-system", "--numeric-owner", "-C"])
        .arg(&root)
        .args(["-c", "."])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let imported = Command::new("docker")
        .args(["import", "--change", "CMD [\"bash\"]", "-", name])
        .stdin(packed.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(packed.wait().unwrap().success());
    let words = String::from_utf8_lossy(&imported.stderr);
    assert!(imported.status.success(), "docker import: {words}");
}

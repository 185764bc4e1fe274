//! The images of the corpus, made of what Debian serves: once a machine, since the engine keeps them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
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

/// The packages of the image `languages`, beside those of `tools`.
const LANGUAGES: &str =
    "nodejs r-base-core octave openjdk-17-jdk-headless gcc libc6-dev python3-numpy python3-pandas";
/// The packages of the image `services`.
const SERVICES: &str = "postgresql-15 redis-server ffmpeg imagemagick locales tzdata cpio file bc xxd";
/// The settings of the image `databases`.
const DATABASES_SETTINGS: &[&str] = &["USER app", "WORKDIR /home/app"];
/// The interpreter of an environment with PyTorch, which `cargo xtask soak` prepares.
const TRAINING_PYTHON: &str = "MUSTER_TEST_TRAINING_PYTHON";

/// The images of some commands, which this machine's engine has.
pub(super) struct TestImages {
    /// By the name in the corpus.
    names: BTreeMap<&'static str, String>,
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
    /// The images of the commands that every run of the tests has.
    pub(super) const SUITE: [&str; 3] = ["tools", "app", "busybox"];
    /// Those of the commands that only a soak has.
    pub(super) const SOAK: [&str; 4] = ["languages", "services", "databases", "torch"];

    /// Makes the images of the suite that the engine does not have.
    pub(super) async fn load() -> Self {
        let engine = engine().await;
        let debian = mark(&format!("{SUITE} {MIRROR} {PACKAGES} {}", LEFT_OUT.join(" ")));
        let furnished = mark(&format!("{debian} {FURNISH} {}", APP_SETTINGS.join(" ")));
        let base = format!("muster/differential-base:{debian}");
        let named = |name| (name, format!("muster/differential-{name}:{furnished}"));
        let images = Self {
            names: Self::SUITE.map(named).into(),
        };
        let _lock = only_one().await;
        if engine.find_image(&base).await.unwrap().is_none() {
            let name = base.clone();
            spawn_blocking(move || import_debian(&name)).await.unwrap();
        }
        images
            .make(&engine, "tools", &Recipe::script(&base, FURNISH))
            .await;
        let app = Recipe::settings(images.name_of("tools"), &APP_SETTINGS);
        images.make(&engine, "app", &app).await;
        images.load_busybox(&engine).await;
        images
    }

    /// Makes the images of the suite and of the soak that the engine does not have.
    pub(super) async fn load_soak() -> Self {
        let (engine, mut images) = (engine().await, Self::load().await);
        let tools = images.name_of("tools").to_owned();
        let (languages, services) = (install(LANGUAGES), install(SERVICES));
        let mark = mark(&format!(
            "{tools} {languages} {services} {}",
            DATABASES_SETTINGS.join(" ")
        ));
        let named = |name| (name, format!("muster/differential-{name}:{mark}"));
        images.names.extend(Self::SOAK.map(named));
        let _lock = only_one().await;
        for (name, script) in [("languages", &languages), ("services", &services)] {
            let recipe = Recipe {
                network: "host",
                ..Recipe::script(&tools, script)
            };
            images.make(&engine, name, &recipe).await;
        }
        let databases = Recipe::settings(images.name_of("services"), DATABASES_SETTINGS);
        images.make(&engine, "databases", &databases).await;
        let torch = images.name_of("torch").to_owned();
        if engine.find_image(&torch).await.unwrap().is_none() {
            spawn_blocking(move || load_torch(&torch)).await.unwrap();
        }
        images
    }

    /// The name of an image in the engine.
    pub(super) fn name_of(&self, image: &str) -> &str {
        let name = self.names.get(image);
        name.unwrap_or_else(|| panic!("the corpus has no image {image}"))
    }

    async fn make(&self, engine: &ContainerEngine, image: &str, recipe: &Recipe) {
        let name = self.name_of(image);
        if engine.find_image(name).await.unwrap().is_none() {
            recipe.commit(name).await;
        }
    }

    /// An image with these settings.
    pub(super) async fn vary(&self, variant: &ImageVariant) -> VariedImage {
        let name = format!("muster/differential-variant:{}", uuid::Uuid::new_v4());
        let changes: Vec<_> = variant.changes.iter().map(String::as_str).collect();
        Recipe::settings(self.name_of("tools"), &changes)
            .commit(&name)
            .await;
        VariedImage(name)
    }

    async fn load_busybox(&self, engine: &ContainerEngine) {
        let busybox = std::fs::read("/bin/busybox").or_else(|_| std::fs::read("/usr/bin/busybox"));
        let archive = ImageArchive::new(&ImageContent {
            tag: self.name_of("busybox").to_owned(),
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

    /// The volumes that the image `tools` does not have.
    pub(super) fn new_volumes(&self) -> Vec<&str> {
        let volumes = self
            .changes
            .iter()
            .filter_map(|change| change.strip_prefix("VOLUME "));
        let volumes = volumes.map(|volume| volume.trim_end_matches('/'));
        volumes
            .filter(|volume| !volume.starts_with("/home") && *volume != "/data")
            .collect()
    }

    pub(super) fn has_entrypoint(&self) -> bool {
        self.changes.iter().any(|change| change.starts_with("ENTRYPOINT"))
    }
}

/// How an image is made of another one: by a script that runs in it, and by settings.
#[derive(Clone)]
struct Recipe {
    from: String,
    /// None for an image with the same files.
    script: Option<String>,
    network: &'static str,
    settings: Vec<String>,
}

// === impl Recipe ===

impl Recipe {
    fn script(from: &str, script: &str) -> Self {
        Self {
            from: from.to_owned(),
            script: Some(script.to_owned()),
            network: "none",
            settings: Vec::new(),
        }
    }

    fn settings(from: &str, settings: &[&str]) -> Self {
        Self {
            from: from.to_owned(),
            script: None,
            network: "none",
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
        }
    }

    async fn commit(&self, to: &str) {
        let (recipe, to) = (self.clone(), to.to_owned());
        spawn_blocking(move || {
            let Self {
                from,
                script,
                network,
                settings,
            } = &recipe;
            let program = script.as_deref().unwrap_or("true");
            let created = docker(&["create", "--network", network, from, "sh", "-c", program]);
            let container = created.trim();
            if script.is_some() {
                docker(&["start", "--attach", container]);
            }
            // Otherwise the script would be the image's command.
            let mut commit = vec!["commit", "--change", "CMD [\"bash\"]"];
            commit.extend(settings.iter().flat_map(|change| ["--change", change]));
            commit.extend([container, &to]);
            docker(&commit);
            docker(&["rm", container]);
        })
        .await
        .unwrap();
    }
}

/// A tag that follows from how an image is made.
fn mark(recipe: &str) -> String {
    Digest::of(recipe.as_bytes()).hex()[..12].to_owned()
}

/// Only one process of this machine makes images.
async fn only_one() -> Flock<File> {
    let lock = spawn_blocking(|| {
        let path = std::env::temp_dir().join("muster-differential-images.lock");
        let file = File::options().create(true).append(true).open(path).unwrap();
        Flock::lock(file, FlockArg::LockExclusive).unwrap()
    });
    lock.await.unwrap()
}

/// A script that installs packages. It starts no services. Some packages want folders for pages of the manual, which
/// `tools` lacks.
fn install(packages: &str) -> String {
    format!(
        "set -e; export DEBIAN_FRONTEND=noninteractive; mkdir -p /usr/share/man/man1 /usr/share/man/man7; \
         printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; \
         printf 'path-exclude=/usr/share/doc/*\\n' > /etc/dpkg/dpkg.cfg.d/small; apt-get --quiet update; \
         apt-get --quiet install --yes --no-install-recommends {packages}; \
         rm -rf /var/lib/apt/lists/* /var/cache/apt/*"
    )
}

/// Loads the image of images/train.
fn load_torch(name: &str) {
    let Ok(python) = std::env::var(TRAINING_PYTHON) else {
        panic!("{TRAINING_PYTHON} names the Python with PyTorch, which `cargo xtask soak` prepares");
    };
    let environment = Path::new(&python).ancestors().nth(2).unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let made = Command::new("python3")
        .arg(format!("{root}/images/train/training_image.py"))
        .arg(environment)
        .args([root, "--load", name])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{words}");
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

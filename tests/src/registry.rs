//! Debian's `docker-registry` for tests of whole subnets, and three ways in which a registry is slow: a connection of a
//! few kilobytes a second, a connection that stands still until it is released, and a tarpit that never answers.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bollard::auth::DockerCredentials;
use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use muster_process::Tasks;
use muster_protocol::ImageId;
use muster_testbed::{free_address, wait_for};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use uuid::Uuid;

use crate::image::BUSYBOX;

/// The user of a registry that wants a login.
pub const REGISTRY_USER: &str = "muster";
/// The password of that user, which is nowhere else in this repository.
pub const REGISTRY_PASSWORD: &str = "only-in-the-users-hands-5e1f";
/// The bcrypt hash of the password, as `htpasswd -nbB -C 5` makes one: the registry takes no other.
const HTPASSWD: &str = "muster:$2b$05$abcdefghijklmnopqrstuu8y8fYFYd/OlFvlG4MQzey5xVOjjdjG6\n";

/// How often a slow connection passes its next bytes on.
const BEAT: Duration = Duration::from_millis(100);

/// A registry that ends when this value is dropped.
#[derive(Debug)]
pub struct Registry {
    process: Child,
    address: SocketAddr,
    wants_login: bool,
    _folder: tempfile::TempDir,
}

/// An image that lies in a registry only.
#[derive(Debug)]
pub struct PublishedImage {
    /// The rest of its name, after the registry's address.
    pub place: String,
    /// The digest of its configuration.
    pub id: ImageId,
}

impl Registry {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// `docker-registry` is not installed, or does not come up.
    pub fn start() -> Result<Self> {
        Self::start_with(false)
    }

    /// Starts one that wants the login of [`REGISTRY_USER`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_login() -> Result<Self> {
        Self::start_with(true)
    }

    fn start_with(wants_login: bool) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address()?;
        let root = folder.path().join("data");
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: \"{address}\"}}\n",
            root.display()
        );
        if wants_login {
            let users = folder.path().join("htpasswd");
            std::fs::write(&users, HTPASSWD)?;
            config.push_str(&format!(
                "auth: {{htpasswd: {{realm: muster, path: {}}}}}\n",
                users.display()
            ));
        }
        let path = folder.path().join("config.yml");
        std::fs::write(&path, config)?;
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("docker-registry does not start")?;
        let registry = Self {
            process,
            address,
            wants_login,
            _folder: folder,
        };
        wait_for("the registry", || {
            anyhow::Ok(std::net::TcpStream::connect(address).ok())
        })?;
        Ok(registry)
    }

    /// The host and port at the beginning of its images' names.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Pushes an image that has a shell and about `bytes` bytes which cannot be compressed, and removes it from this
    /// machine's engine.
    ///
    /// # Errors
    /// The engine or the registry fails.
    pub async fn publish(&self, bytes: usize) -> Result<PublishedImage> {
        let engine = ContainerEngine::connect("").await?;
        let shell = std::fs::read(BUSYBOX).or_else(|_| std::fs::read("/usr/bin/busybox"))?;
        let mut filler = Vec::with_capacity(bytes);
        while filler.len() < bytes {
            filler.extend_from_slice(Uuid::new_v4().as_bytes());
        }
        let file = |path: &str, mode, contents| ImageFile {
            path: path.to_owned(),
            mode,
            contents,
        };
        let tag = Uuid::new_v4().to_string();
        let local = format!("muster/slow-test:{tag}");
        let archive = ImageArchive::new(&ImageContent {
            tag: local.clone(),
            files: vec![file(BUSYBOX, 0o755, shell), file("/filler", 0o644, filler)],
            entrypoint: vec![BUSYBOX.to_owned(), "sh".to_owned()],
            ..ImageContent::default()
        })?;
        engine.load(archive.bytes).await?;
        let place = format!("muster/slow:{tag}");
        let name = format!("{}/{place}", self.address);
        let login = self.wants_login.then(|| DockerCredentials {
            username: Some(REGISTRY_USER.to_owned()),
            password: Some(REGISTRY_PASSWORD.to_owned()),
            serveraddress: Some(self.address.to_string()),
            ..DockerCredentials::default()
        });
        engine
            .push(&archive.id.to_string(), &name.parse()?, login)
            .await?;
        for name in [&local, &name] {
            engine.remove_tag(name).await?;
        }
        Ok(PublishedImage {
            place,
            id: archive.id,
        })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An address at which a registry is slow, until this value is dropped.
#[derive(Debug)]
pub struct SlowRelay {
    address: SocketAddr,
    tasks: Tasks,
}

impl SlowRelay {
    /// Passes connections on to `to`; all answers together come at `rate` bytes a second.
    ///
    /// # Errors
    /// There is no port.
    pub async fn relay(to: SocketAddr, rate: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, tasks) = (listener.local_addr()?, Tasks::new());
        let spawner = tasks.clone();
        // One permit is a byte that may pass.
        let line = Arc::new(tokio::sync::Semaphore::new(0));
        let filled = Arc::clone(&line);
        let per_beat = rate / 10;
        tasks.spawn("slow line", async move {
            let mut beats = tokio::time::interval(BEAT);
            loop {
                beats.tick().await;
                // Bytes that nobody used in one beat are lost.
                filled.forget_permits(usize::MAX);
                filled.add_permits(per_beat);
            }
        });
        tasks.spawn("slow relay", async move {
            while let Ok((near, _)) = listener.accept().await {
                let line = Arc::clone(&line);
                spawner.spawn("slow connection", async move {
                    // Either side may close the connection at any time.
                    let _ = carry(near, to, &line, per_beat).await;
                });
            }
        });
        Ok(Self { address, tasks })
    }

    /// Accepts connections and never answers.
    ///
    /// # Errors
    /// There is no port.
    pub async fn tarpit() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, tasks) = (listener.local_addr()?, Tasks::new());
        tasks.spawn("tarpit", async move {
            let mut held = Vec::new();
            while let Ok((near, _)) = listener.accept().await {
                held.push(near);
            }
        });
        Ok(Self { address, tasks })
    }

    /// The host and port at the beginning of images' names.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SlowRelay {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

/// Bytes of an answer that pass a held relay: enough for a manifest, too few for an image.
const FREE_BYTES: usize = 64 * 1024;

/// An address at which a registry answers small requests and keeps the rest of larger answers back until it is
/// released, or until this value is dropped.
#[derive(Debug)]
pub struct HeldRelay {
    address: SocketAddr,
    to: SocketAddr,
    released: watch::Sender<bool>,
    held: Arc<AtomicUsize>,
    tasks: Tasks,
}

impl HeldRelay {
    /// Passes connections that come to `listener` on to `to`.
    ///
    /// # Errors
    /// The listener cannot be used.
    pub fn relay(listener: std::net::TcpListener, to: SocketAddr) -> Result<Self> {
        let relay = Self {
            address: listener.local_addr()?,
            to,
            released: watch::Sender::new(false),
            held: Arc::new(AtomicUsize::new(0)),
            tasks: Tasks::new(),
        };
        relay.open_again(listener)?;
        Ok(relay)
    }

    /// Passes on the connections that come to another listener at the relay's address, in another network.
    ///
    /// # Errors
    /// The listener cannot be used.
    pub fn open_again(&self, listener: std::net::TcpListener) -> Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (to, gate) = (self.to, self.released.subscribe());
        let (spawner, counter) = (self.tasks.clone(), Arc::clone(&self.held));
        self.tasks.spawn("held relay", async move {
            while let Ok((near, _)) = listener.accept().await {
                let (gate, counter) = (gate.clone(), Arc::clone(&counter));
                spawner.spawn("held connection", async move {
                    // Either side may close the connection at any time.
                    let _ = hold_answers(near, to, gate, &counter).await;
                });
            }
        });
        Ok(())
    }

    /// The host and port at the beginning of images' names.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers that were held so far.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Lets all answers pass from now on.
    pub fn release(&self) {
        self.released.send_replace(true);
    }
}

impl Drop for HeldRelay {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

async fn hold_answers(
    near: TcpStream,
    to: SocketAddr,
    mut gate: watch::Receiver<bool>,
    held: &AtomicUsize,
) -> std::io::Result<()> {
    let far = TcpStream::connect(to).await?;
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
        (near.into_split(), far.into_split());
    let answers = async {
        let mut buffer = vec![0; 4096];
        let mut passed: usize = 0;
        let mut is_held = false;
        loop {
            let count = far_read.read(&mut buffer).await?;
            if count == 0 {
                return std::io::Result::Ok(());
            }
            passed = passed.saturating_add(count);
            if passed > FREE_BYTES && !is_held {
                is_held = true;
                held.fetch_add(1, Ordering::SeqCst);
                // The sender is gone only with the relay.
                let _ = gate.wait_for(|released| *released).await;
            }
            near_write
                .write_all(buffer.get(..count).unwrap_or_default())
                .await?;
        }
    };
    tokio::select! {
        done = answers => done,
        done = tokio::io::copy(&mut near_read, &mut far_write) => done.map(|_| ()),
    }
}

async fn carry(
    near: TcpStream,
    to: SocketAddr,
    line: &tokio::sync::Semaphore,
    per_beat: usize,
) -> std::io::Result<()> {
    let far = TcpStream::connect(to).await?;
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
        (near.into_split(), far.into_split());
    let answers = async {
        let mut buffer = vec![0; per_beat.clamp(1, 4096)];
        loop {
            let count = far_read.read(&mut buffer).await?;
            if count == 0 {
                return std::io::Result::Ok(());
            }
            if let Ok(permits) = line.acquire_many(u32::try_from(count).unwrap_or(u32::MAX)).await {
                permits.forget();
            }
            near_write
                .write_all(buffer.get(..count).unwrap_or_default())
                .await?;
        }
    };
    tokio::select! {
        done = answers => done,
        done = tokio::io::copy(&mut near_read, &mut far_write) => done.map(|_| ()),
    }
}

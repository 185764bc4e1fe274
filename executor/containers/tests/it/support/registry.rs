//! Debian's `docker-registry` on a free port of this machine, and a relay to it that can be cut.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use bollard::auth::DockerCredentials;
use muster_containers::ContainerEngine;
use muster_containers::credentials::RegistryLogin;
use muster_process::Tasks;
use muster_protocol::ImageId;
use muster_protocol::image_reference::ImageReference;
use muster_testbed::free_address;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::until;

pub(crate) const USER: &str = "muster";
/// A password whose encodings differ between the two alphabets of base64.
pub(crate) const PASSWORD: &str = "a?b~c>d";
/// `htpasswd -nbB -C 5 muster 'a?b~c>d'`: the registry takes no other hash than bcrypt.
const HTPASSWD: &str = "muster:$2y$05$Ji6fQNGtRa2c9FdY.Zb3kONIDn5n/WxoWIIKjZGV3KBELPFmbkO0K\n";

/// Pushes an image of the engine to a registry under `name`, and takes `local` and `name` away from the engine.
pub(crate) async fn publish(
    engine: &ContainerEngine,
    image: ImageId,
    local: &str,
    name: &str,
    login: Option<RegistryLogin>,
) -> anyhow::Result<()> {
    let target: ImageReference = name.parse()?;
    let credentials = login.map(|login| DockerCredentials {
        username: Some(login.username),
        password: Some(login.password),
        serveraddress: Some(target.registry.clone()),
        ..DockerCredentials::default()
    });
    engine.push(&image.to_string(), &target, credentials).await?;
    for name in [local, name] {
        engine.remove_tag(name).await?;
    }
    let left = engine.find_image(&image.to_string()).await?;
    ensure!(left.is_none(), "the engine still has the image {image}");
    Ok(())
}

/// Removes an image with all its names from the engine.
pub(crate) async fn forget(engine: &ContainerEngine, image: ImageId) -> anyhow::Result<()> {
    for name in engine.list_tags(image).await? {
        engine.remove_tag(&name).await?;
    }
    engine.remove_tag(&image.to_string()).await?;
    Ok(())
}

/// A registry that ends when this value is dropped.
pub(crate) struct Registry {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Registry {
    /// Starts one and waits until it answers.
    pub(crate) async fn start(with_password: bool) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (port, root) = (free_address()?.port(), folder.path().display());
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {root}/data}}}}\n\
             http: {{addr: \"127.0.0.1:{port}\"}}\n"
        );
        if with_password {
            std::fs::write(folder.path().join("htpasswd"), HTPASSWD)?;
            config.push_str(&format!(
                "auth: {{htpasswd: {{realm: muster, path: {root}/htpasswd}}}}\n"
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
            port,
            folder,
        };
        let address = registry.address();
        until("the registry answers", || async {
            TcpStream::connect(&address).await.is_ok()
        })
        .await;
        Ok(registry)
    }

    /// Starts the registry again in the network namespace of process `pid`, which cannot reach it otherwise. This
    /// process cannot check that it answers there.
    pub(crate) fn move_to(&mut self, pid: u32) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.process = Command::new("nsenter")
            .args(["--net", "--target", &pid.to_string(), "docker-registry", "serve"])
            .arg(self.folder.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("docker-registry does not start")?;
        Ok(())
    }

    /// The host and port at the beginning of its images' names.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A relay to a registry.
pub(crate) struct Wire {
    address: SocketAddr,
    state: Arc<State>,
    tasks: Tasks,
}

#[derive(Default)]
struct State {
    /// Number of connections that are still refused.
    refuse: AtomicUsize,
    /// Number of bytes of answers after which all connections are cut, once.
    cut_after: AtomicI64,
    cuts: AtomicUsize,
    connections: AtomicUsize,
}

impl Wire {
    /// A relay that works until a test has it refuse or cut.
    pub(crate) async fn to(registry: &Registry) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (target, tasks) = (registry.address(), Tasks::new());
        let state = Arc::new(State::default());
        state.cut_after.store(i64::MAX, Ordering::SeqCst);
        let (shared, spawner) = (Arc::clone(&state), tasks.clone());
        tasks.spawn("wire", async move {
            while let Ok((near, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let refuse = shared
                    .refuse
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                if refuse.is_ok() {
                    continue;
                }
                let (target, shared) = (target.clone(), Arc::clone(&shared));
                spawner.spawn("connection", async move {
                    // Either side may close the connection at any time.
                    let _ = carry(near, &target, &shared).await;
                });
            }
        });
        Ok(Self {
            address,
            state,
            tasks,
        })
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn refuse_next(&self, connections: usize) {
        self.state.refuse.store(connections, Ordering::SeqCst);
    }

    pub(crate) fn cut_after(&self, bytes: i64) {
        self.state.cut_after.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn cuts(&self) -> usize {
        self.state.cuts.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

async fn carry(near: TcpStream, target: &str, state: &State) -> anyhow::Result<()> {
    let far = TcpStream::connect(target).await?;
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
        (near.into_split(), far.into_split());
    let there = async { tokio::io::copy(&mut near_read, &mut far_write).await.map(|_| ()) };
    let back = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let read = far_read.read(&mut buffer).await?;
            let left = state
                .cut_after
                .fetch_sub(i64::try_from(read).unwrap_or(i64::MAX), Ordering::SeqCst);
            if read == 0 {
                return Ok(());
            }
            if left < i64::try_from(read).unwrap_or(i64::MAX) {
                state.cuts.fetch_add(1, Ordering::SeqCst);
                state.cut_after.store(i64::MAX, Ordering::SeqCst);
                return Err(std::io::Error::other("cut"));
            }
            near_write
                .write_all(buffer.get(..read).unwrap_or_default())
                .await?;
        }
    };
    tokio::select! {
        done = there => done?,
        done = back => done?,
    }
    Ok(())
}

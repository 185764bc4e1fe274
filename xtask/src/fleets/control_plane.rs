//! A control plane of Kubernetes on this machine: etcd, the API server, the controllers and the scheduler.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};

use super::process::{Background, within, words};
use crate::tool::quietly;

/// The address of this machine towards the nodes.
pub(super) const OUR_ADDRESS: &str = "10.231.0.254";
/// The time in which the API must be ready.
const READY: Duration = Duration::from_secs(60);
/// The administrator's token, in a cluster that lives for a test.
const TOKEN: &str = "of-the-tests-administrator";

/// The programs of a cluster that runs.
pub(super) struct ControlPlane {
    _programs: Vec<Background>,
    /// The administrator's kubeconfig for programs on this machine.
    pub(super) kubeconfig: PathBuf,
    /// The kubeconfig of the nodes.
    pub(super) node_kubeconfig: PathBuf,
}

impl ControlPlane {
    /// Starts a cluster without nodes, with everything that it keeps in `folder`.
    pub(super) fn start(programs: &Path, folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        make_keys(folder)?;
        let users = format!("{TOKEN},admin,admin,system:masters\n");
        fs::write(folder.join("tokens.csv"), users)?;
        let [client, peer, api] = free_ports()?;
        let kubeconfig = write_kubeconfig(folder, "admin", &format!("127.0.0.1:{api}"))?;
        let node_kubeconfig = write_kubeconfig(folder, "node", &format!("{OUR_ADDRESS}:{api}"))?;
        let mut running = vec![start_etcd(folder, client, peer)?];
        running.push(start_api(programs, folder, client, api)?);
        let mut ended = Ok(());
        let ready = within(READY, || {
            ended = running.iter_mut().try_for_each(Background::check);
            ended.is_err() || kubectl(&kubeconfig, &["get", "--raw", "/readyz"]).is_ok()
        });
        ended?;
        ensure!(ready, "the API server was not ready within {} s", READY.as_secs());
        for (name, arguments) in controllers(folder, &kubeconfig) {
            let mut command = vec![programs.join(name).display().to_string()];
            command.extend(arguments);
            running.push(Background::start(name, folder, &command)?);
        }
        Ok(Self {
            _programs: running,
            kubeconfig,
            node_kubeconfig,
        })
    }

    /// Runs kubectl as the administrator.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        kubectl(&self.kubeconfig, arguments)
    }
}

fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    quietly(
        Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--request-timeout=10s")
            .args(arguments),
    )
}

/// An authority, the API server's certificate, and the key of service accounts.
fn make_keys(folder: &Path) -> anyhow::Result<()> {
    let names = format!("subjectAltName=IP:127.0.0.1,IP:{OUR_ADDRESS},IP:10.232.0.1,DNS:localhost\n");
    fs::write(folder.join("names"), names)?;
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        command.args(line.split_whitespace()).current_dir(folder);
        quietly(&mut command).with_context(|| format!("openssl {line}"))
    };
    for line in [
        "genrsa -out accounts.key 2048",
        "rsa -in accounts.key -pubout -out accounts.pub",
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=muster-tests -days 2",
        "req -newkey rsa:2048 -nodes -keyout api.key -out api.csr -subj /CN=kube-apiserver",
        "x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out api.crt -days 2 -extfile names",
    ] {
        openssl(line)?;
    }
    Ok(())
}

/// Ports that are free now. Nothing reserves them, so a start may fail; the next one takes others.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let listeners = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("0.0.0.0:0")?,
    ];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

fn write_kubeconfig(folder: &Path, name: &str, server: &str) -> anyhow::Result<PathBuf> {
    let authority = folder.join("ca.crt").display().to_string();
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": {
            "server": format!("https://{server}"), "certificate-authority": authority
        }}],
        "users": [{"name": "tests", "user": {"token": TOKEN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}]
    });
    let path = folder.join(format!("{name}.kubeconfig"));
    fs::write(&path, config.to_string())?;
    Ok(path)
}

fn start_etcd(folder: &Path, client: u16, peer: u16) -> anyhow::Result<Background> {
    let (client, peer) = (
        format!("http://127.0.0.1:{client}"),
        format!("http://127.0.0.1:{peer}"),
    );
    let mut command = words(&["etcd", "--unsafe-no-fsync", "--data-dir"]);
    command.push(folder.join("etcd").display().to_string());
    for (option, value) in [
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("default={peer}")),
    ] {
        command.push(format!("--{option}={value}"));
    }
    Background::start("etcd", folder, &command)
}

fn start_api(programs: &Path, folder: &Path, etcd: u16, port: u16) -> anyhow::Result<Background> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = vec![programs.join("kube-apiserver").display().to_string()];
    for (option, value) in [
        ("etcd-servers", format!("http://127.0.0.1:{etcd}")),
        ("secure-port", port.to_string()),
        ("bind-address", "0.0.0.0".to_owned()),
        ("advertise-address", OUR_ADDRESS.to_owned()),
        ("service-cluster-ip-range", "10.232.0.0/24".to_owned()),
        ("tls-cert-file", file("api.crt")),
        ("tls-private-key-file", file("api.key")),
        ("token-auth-file", file("tokens.csv")),
        ("authorization-mode", "RBAC".to_owned()),
        ("service-account-issuer", "https://tests.invalid".to_owned()),
        ("service-account-key-file", file("accounts.pub")),
        ("service-account-signing-key-file", file("accounts.key")),
        ("allow-privileged", "true".to_owned()),
        ("cert-dir", file("generated")),
        // No name service knows the nodes, whose kubelets have the logs of pods.
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
    ] {
        command.push(format!("--{option}={value}"));
    }
    Background::start("kube-apiserver", folder, &command)
}

/// The controllers call a node lost after seconds, so that a test need not wait for minutes.
fn controllers(folder: &Path, kubeconfig: &Path) -> [(&'static str, Vec<String>); 2] {
    let file = |name: &str| folder.join(name).display().to_string();
    let access = format!("--kubeconfig={}", kubeconfig.display());
    let mut manager = vec![
        access.clone(),
        format!("--service-account-private-key-file={}", file("accounts.key")),
        format!("--root-ca-file={}", file("ca.crt")),
        format!("--cert-dir={}", file("generated")),
    ];
    manager.extend(words(&[
        "--leader-elect=false",
        "--port=0",
        "--secure-port=0",
        "--node-monitor-grace-period=10s",
    ]));
    let mut scheduler = vec![access];
    scheduler.extend(words(&["--leader-elect=false", "--port=0", "--secure-port=0"]));
    [
        ("kube-controller-manager", manager),
        ("kube-scheduler", scheduler),
    ]
}

//! Processes under test, each on a core, and what they cost; and nginx, the peer of everything that passes streams on.
//!
//! A bench that has servers starts itself again with a word and a folder: [`Process::own`]. They report where they
//! listen by [`write_address`].

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_process::certificate;
use muster_process::tls::TlsIdentity;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::streams::now_us;

/// The core of whatever is measured.
pub const CORE_OF_PROXY: &str = "0";
/// The core of everything else.
pub const CORE_OF_OTHERS: &str = "1";
/// The socket of the engine, in the folder that all share.
pub const ENGINE: &str = "engine.sock";
/// A process of Python takes its time on a machine that others use.
const READY: Duration = Duration::from_secs(240);
const OPEN_FILES: u32 = 16_384;
const RAISED: &str = "MUSTER_BENCH_RAISED";

fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("bench"))
}

/// Starts this program again, with many files and on the others' core, unless that has been done.
///
/// # Errors
/// It cannot be started.
pub fn raise() -> Result<()> {
    if std::env::var_os(RAISED).is_some() {
        return Ok(());
    }
    let line = format!("ulimit -n {OPEN_FILES}; exec taskset -c {CORE_OF_OTHERS} \"$0\"");
    let failed = Command::new("sh")
        .args(["-c", &line])
        .arg(program())
        .env(RAISED, "1")
        .exec();
    Err(failed.into())
}

/// Reports to the process that started this one where it listens.
///
/// # Errors
/// The folder is gone.
pub fn write_address(folder: &Path, name: &str, text: &str) -> Result<()> {
    let draft = folder.join(format!("{name}.draft"));
    fs::write(&draft, text)?;
    Ok(fs::rename(draft, folder.join(format!("{name}.address")))?)
}

/// Waits for a condition that another process brings about.
///
/// # Errors
/// It does not come.
pub fn soon<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    let end = now_us() + i64::try_from(READY.as_micros()).unwrap_or(i64::MAX);
    loop {
        if let Some(met) = condition() {
            return Ok(met);
        }
        if now_us() > end {
            bail!("{what} did not come up");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A process that ends with this.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl Process {
    /// This program again, with a word and a folder.
    ///
    /// # Errors
    /// It does not come up.
    pub fn own(folder: &Path, name: &str, core: &str) -> Result<Self> {
        let child = on(core, &program()).arg(name).arg(folder).spawn()?;
        let file = folder.join(format!("{name}.address"));
        let address = soon(name, || fs::read_to_string(&file).ok())?;
        Ok(Self { child, address })
    }

    /// nginx in front of the folder's engine, with its server's certificate. `MUSTER_BENCH_NGINX` names it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn nginx(folder: &Path) -> Result<Self> {
        let program = std::env::var("MUSTER_BENCH_NGINX").unwrap_or_else(|_| "nginx".to_owned());
        let (port, at) = (free_port()?, folder.display());
        let config = folder.join("nginx.conf");
        let text = format!(
            "daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/nginx.log;\n\
             events {{ worker_connections 8192; }}\n\
             http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
             upstream engine {{ server unix:{at}/{ENGINE}; keepalive 64; }}\n\
             server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {at}/server.pem; ssl_certificate_key {at}/server.key.pem; ssl_protocols TLSv1.3;\n\
             keepalive_timeout 300; keepalive_requests 1000000;\n\
             location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; proxy_read_timeout 600s; }} }} }}\n"
        );
        fs::write(&config, text)?;
        let child = on(CORE_OF_PROXY, Path::new(&program))
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{program} does not start: apt-get install nginx-light"))?;
        let address = format!("127.0.0.1:{port}");
        Ok(Self { child, address })
    }

    /// envoy in front of the folder's engine, with its server's certificate and one thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn envoy(folder: &Path, program: &str) -> Result<Self> {
        let (port, at) = (free_port()?, folder.display());
        let types = "type.googleapis.com/envoy.extensions";
        let text = format!(
            r#"
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": {types}.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [http/1.1]
            tls_params: {{ tls_minimum_protocol_version: TLSv1_3 }}
            tls_certificates:
            - {{ certificate_chain: {{ filename: {at}/server.pem }}, private_key: {{ filename: {at}/server.key.pem }} }}
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          codec_type: HTTP1
          stream_idle_timeout: 600s
          route_config:
            virtual_hosts:
            - {{ name: all, domains: ["*"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: engine, timeout: 0s }} }}] }}
          http_filters:
          - {{ name: envoy.filters.http.router, typed_config: {{ "@type": {types}.filters.http.router.v3.Router }} }}
  clusters:
  - name: engine
    type: STATIC
    circuit_breakers: {{ thresholds: [{{ max_connections: 99999, max_pending_requests: 99999, max_requests: 99999 }}] }}
    load_assignment:
      cluster_name: engine
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ pipe: {{ path: {at}/{ENGINE} }} }} }} }}] }}]
"#
        );
        let config = folder.join("envoy.yaml");
        fs::write(&config, text)?;
        let child = on(CORE_OF_PROXY, Path::new(program))
            .args([
                "--concurrency",
                "1",
                "--use-dynamic-base-id",
                "--log-level",
                "error",
                "-c",
            ])
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{program} does not start"))?;
        let address = format!("127.0.0.1:{port}");
        Ok(Self { child, address })
    }

    /// LiteLLM in front of an engine that answers at this address.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn litellm(folder: &Path, program: &str, engine: &str) -> Result<Self> {
        let port = free_port()?;
        let config = folder.join("litellm.yaml");
        let text = format!(
            "model_list:\n  - model_name: bench\n    litellm_params:\n      model: openai/bench\n      api_base: http://{engine}/v1\n      api_key: none\n"
        );
        fs::write(&config, text)?;
        let child = on(CORE_OF_PROXY, Path::new(program))
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--config"])
            .arg(&config)
            // It wants a key of those who ask; on loopback nobody else does.
            .env("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{program} does not start"))?;
        let address = format!("127.0.0.1:{port}");
        Ok(Self { child, address })
    }

    /// Seconds of processor time so far, of all threads that it has.
    ///
    /// # Errors
    /// It has ended.
    pub fn processor(&self) -> Result<f64> {
        let mut spent_ns = 0.0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let counted = fs::read_to_string(thread?.path().join("schedstat"))?;
            let running = counted.split_whitespace().next();
            spent_ns += running.context("an empty schedstat")?.parse::<f64>()?;
        }
        Ok(spent_ns / 1e9)
    }

    /// KiB of memory.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.context("no VmRSS")?.parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn on(core: &str, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core]).arg(program);
    command
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Makes a key and a certificate, in the forms that all of us read.
///
/// # Errors
/// The folder is gone.
pub fn write_identity(folder: &Path, name: &str) -> Result<()> {
    let made = certificate::make_self_signed(&["localhost".to_owned()])?;
    let key = made.identity.key.secret_der();
    fs::write(folder.join(format!("{name}.der")), &made.identity.certificate)?;
    fs::write(folder.join(format!("{name}.key.der")), key)?;
    fs::write(folder.join(format!("{name}.pem")), &made.pem)?;
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        STANDARD.encode(key)
    );
    Ok(fs::write(folder.join(format!("{name}.key.pem")), pem)?)
}

/// Reads a certificate and its key from a folder.
///
/// # Errors
/// There are none.
pub fn read_identity(folder: &Path, name: &str) -> Result<TlsIdentity> {
    let certificate = fs::read(folder.join(format!("{name}.der")))?;
    let key = fs::read(folder.join(format!("{name}.key.der")))?;
    Ok(TlsIdentity {
        certificate: CertificateDer::from(certificate),
        key: PrivateKeyDer::Pkcs8(key.into()),
    })
}

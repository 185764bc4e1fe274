//! A facilitator in a process of its own, with a user and a validator, for benches of its API. A bench starts itself
//! again as that process.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use muster_facilitator::Config;
use muster_identity::{Keypair, answer_challenge, sign_facilitator_auth, sign_job, sign_login};
use muster_process::{SharedClock, SystemClock, Tasks, ready};
use muster_protocol::ValidatorKey;
use muster_protocol::account_api::{LoginRequest, Token};
use muster_protocol::rest::{CreateJob, headers};
use muster_protocol::wire::facilitator::{FromFacilitator, ToFacilitator};
use muster_protocol::wire::muster::ChallengeResponse;
use muster_protocol::wire::{decode, encode};
use muster_websocket::{Limits, Socket};
use serde_json::{Value, json};

/// Raised for a thousand connections.
const OPEN_FILES: u32 = 8_192;
/// Set in a process whose limit of open files was raised.
const RAISED: &str = "MUSTER_BENCH_FACILITATOR_RAISED";

/// The `main` of a bench of the facilitator: the facilitator itself in a child process, and the measurement in a
/// process that may open many files.
///
/// # Errors
/// The measurement or the facilitator fails, or the arguments are none of a bench.
pub fn run<F: Future<Output = anyhow::Result<()>>>(measure: impl FnOnce() -> F) -> anyhow::Result<()> {
    muster_process::tls::install_provider();
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("serve"), Some(config)) => serve(Path::new(&config)),
        (None, _) if std::env::var_os(RAISED).is_none() => Err(raise().into()),
        (None, _) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(measure())
        }
        (Some(other), _) => bail!("unknown word {other:?}"),
    }
}

/// Starts itself again with a higher limit of open files. Comes back only if that fails.
fn raise() -> std::io::Error {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("bench"));
    Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -n {OPEN_FILES}; exec \"$0\""))
        .arg(own)
        .env(RAISED, "1")
        .exec()
}

/// The facilitator itself, in its own process.
fn serve(config: &Path) -> anyhow::Result<()> {
    let config: Config = muster_process::config::parse(&std::fs::read_to_string(config)?, "bench")?;
    let clock: SharedClock = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(muster_facilitator::run(config, Tasks::new(), clock))?)
}

/// A process that is killed with its owner.
#[derive(Debug)]
pub struct Server {
    /// The server's process, killed with this.
    pub child: Child,
    /// Its address, `http://…`.
    pub base: String,
}

impl Server {
    /// Resident memory in MiB.
    ///
    /// # Errors
    /// The process has ended.
    pub fn memory(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = line.context("no VmRSS")?.trim().trim_end_matches(" kB").parse()?;
        Ok(kib / 1024.0)
    }

    /// MiB by which the process grows with `watchers` open streams.
    ///
    /// # Errors
    /// A stream ends before its first event.
    pub async fn watched(
        &self,
        request: impl Fn() -> reqwest::RequestBuilder,
        watchers: usize,
    ) -> anyhow::Result<f64> {
        let before = self.memory()?;
        let mut open = Vec::new();
        for _ in 0..watchers {
            let mut answer = request().send().await?.error_for_status()?;
            // The first event is there: the watcher waits from now on.
            answer.chunk().await?.context("no event")?;
            open.push(answer);
        }
        Ok(self.memory()? - before)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A facilitator with a user and a validator.
#[derive(Debug)]
pub struct FacilitatorServer {
    /// The facilitator's process and address.
    pub server: Server,
    store: String,
    /// The user that is logged in.
    pub user: Keypair,
    token: String,
    /// The validator that is connected.
    pub validator: ValidatorKey,
    _reading: tokio::task::JoinHandle<()>,
}

impl FacilitatorServer {
    /// Starts one on a store of this URL, with its files in `folder`.
    ///
    /// # Errors
    /// It does not come up, or refuses the user or the validator.
    pub async fn start(folder: &Path, name: &str, store: &str) -> anyhow::Result<Self> {
        let (user, keys) = (Keypair::from_uri("//User")?, Keypair::from_uri("//Validator")?);
        let validator = ValidatorKey(keys.hotkey());
        let ready = folder.join(format!("{name}.ready"));
        let config = folder.join(format!("{name}.toml"));
        let files = format!("file:{}", folder.join(format!("{name}.files")).display());
        let text = format!(
            "bind = \"127.0.0.1:0\"\nready_file = {ready:?}\nstore = {store:?}\nvalidators = [\"{validator}\"]\n\
             [http]\nconnections = 65536\nconnections_per_address = 65536\n\
             [limits]\nrequests_per_minute = 0\nstrangers_per_minute = 0\nopen_jobs = 0\nwatchers = 0\n\
             [auth]\nsignature_max_age_s = 3600\n[files]\nstore = {files:?}\n"
        );
        std::fs::write(&config, text)?;
        let child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .spawn()?;
        let address = soon(async || Ok(ready::read(&ready)?)).await?;
        let base = format!("http://{address}");
        let server = Server { child, base };
        let http = reqwest::Client::new();
        let answer: Value = http
            .get(format!("{}/auth/nonce", server.base))
            .send()
            .await?
            .json()
            .await?;
        let nonce = answer
            .get("nonce")
            .and_then(Value::as_str)
            .context("no nonce")?
            .parse()?;
        let login = LoginRequest::new(user.hotkey(), sign_login(&user, &nonce, None), &nonce);
        let answer = http
            .post(format!("{}/auth/login", server.base))
            .json(&login)
            .send()
            .await?;
        let Token { token } = answer.error_for_status()?.json().await?;
        let mut socket = connect(&format!("ws://{address}/ws/v0/"), &keys).await?;
        #[expect(clippy::disallowed_methods, reason = "a bench has no shutdown to wait for")]
        let reading = tokio::spawn(async move { while let Ok(Some(_)) = socket.recv().await {} });
        Ok(Self {
            server,
            store: store.to_owned(),
            user,
            token,
            validator,
            _reading: reading,
        })
    }

    /// A URL of the server.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.base)
    }

    /// A request in the user's name.
    pub fn asked(
        &self,
        http: &reqwest::Client,
        method: reqwest::Method,
        path: &str,
    ) -> reqwest::RequestBuilder {
        http.request(method, self.url(path)).bearer_auth(&self.token)
    }

    /// The request for a job that the user has signed at this time, which no other job of the user has.
    ///
    /// # Errors
    /// A body that is no job.
    pub fn job_request(
        &self,
        http: &reqwest::Client,
        timestamp_ns: i64,
    ) -> anyhow::Result<reqwest::RequestBuilder> {
        let body = job_body(self.validator);
        let job: CreateJob = serde_json::from_value(body.clone())?;
        let signature = sign_job(&self.user, &job.signed_fields(), timestamp_ns);
        Ok(self
            .asked(http, reqwest::Method::POST, "/api/v1/job-docker/")
            .header(headers::SIGNATURE_TYPE, "bittensor")
            .header(headers::SIGNATORY, signature.signatory.to_string())
            .header(headers::TIMESTAMP_NS, signature.timestamp_ns)
            .header(headers::SIGNATURE, signature.signature.to_base64())
            .header(headers::SIGNATURE_SCOPE, "SignedFields")
            .json(&body))
    }

    /// Fills the list of the user with `count` jobs, straight in the store.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn seed(&self, count: u64) -> anyhow::Result<()> {
        let account = self.user.hotkey();
        let pool = muster_store::open(&self.store).await?;
        let numbers =
            format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})");
        let uuid = "'00000000-0000-4000-8000-' || CAST(100000000000 + i AS TEXT)";
        let request = json!({
            "signature": {
                "signature_type": "bittensor", "signatory": account, "timestamp_ns": 1,
                "signature": format!("{}Q==", "A".repeat(85)), "signature_scope": "SignedFields",
            },
            "uuid": "UUID", "executor_class": "always_on.test", "docker_image": "alpine", "args": [],
            "env": {"B": "1", "A": "2"}, "use_gpu": true, "download_time_limit": 1, "execution_time_limit": 2,
            "upload_time_limit": 3, "streaming_start_time_limit": 4,
        });
        let request = request.to_string();
        let (head, tail) = request.split_once("UUID").context("no place for the uuid")?;
        let validator = self.validator;
        for statement in [
            format!(
                "INSERT INTO jobs (uuid, user_key, validator, timestamp_ns, signature, request, created_at, answered, account, ended_at) \
                 {numbers} SELECT {uuid}, '{account}', '{validator}', i, 's', '{head}' || {uuid} || '{tail}', i, 1, '{account}', 1 FROM n"
            ),
            format!(
                "INSERT INTO statuses (job, position, status, metadata, created_at) \
                 {numbers} SELECT {uuid}, 0, 'sent', 'null', i FROM n"
            ),
        ] {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await?;
        }
        pool.close().await;
        Ok(())
    }

    /// The id of the newest job.
    ///
    /// # Errors
    /// The user has no job.
    pub async fn newest_job(&self) -> anyhow::Result<String> {
        let http = reqwest::Client::new();
        let list = self.asked(&http, reqwest::Method::GET, "/api/v1/jobs/?page_size=1");
        let list: Value = list.send().await?.error_for_status()?.json().await?;
        let job = list.pointer("/results/0/uuid").and_then(Value::as_str);
        Ok(job.context("no job")?.to_owned())
    }

    /// MiB by which the server grows with `watchers` watchers of the newest job's events.
    ///
    /// # Errors
    /// A watcher gets no event.
    pub async fn watch(&self, watchers: usize) -> anyhow::Result<f64> {
        let path = format!("/api/v1/jobs/{}/events/", self.newest_job().await?);
        let request = || self.asked(&reqwest::Client::new(), reqwest::Method::GET, &path);
        self.server.watched(request, watchers).await
    }

    /// MiB by which the server grows with `watchers` clients that read the newest job and then watch its events, each
    /// on one connection.
    ///
    /// # Errors
    /// A client gets no job or no event.
    pub async fn read_and_watch(&self, watchers: usize) -> anyhow::Result<f64> {
        let job = format!("/api/v1/jobs/{}/", self.newest_job().await?);
        let events = format!("{job}events/");
        let before = self.server.memory()?;
        let mut open = Vec::new();
        for _ in 0..watchers {
            let http = reqwest::Client::new();
            let answer = self.asked(&http, reqwest::Method::GET, &job).send().await?;
            answer.error_for_status()?.bytes().await?;
            let events = self.asked(&http, reqwest::Method::GET, &events);
            let mut answer = events.send().await?.error_for_status()?;
            answer.chunk().await?.context("no event")?;
            open.push(answer);
        }
        Ok(self.server.memory()? - before)
    }
}

/// A job as the benches post it.
pub fn job_body(validator: ValidatorKey) -> Value {
    json!({
        "target_validator_hotkey": validator, "executor_class": "always_on.test", "docker_image": "alpine",
        "args": ["sh", "-c", "true"], "env": {"B": "1", "A": "2"}, "use_gpu": true, "artifacts_dir": "/artifacts",
        "on_trusted_miner": false, "download_time_limit": 5, "execution_time_limit": 5, "streaming_start_time_limit": 5,
        "upload_time_limit": 5,
    })
}

/// Connects as a Muster validator.
async fn connect(url: &str, keys: &Keypair) -> anyhow::Result<Socket> {
    let mut socket = muster_websocket::connect(url, &Limits::facilitator()).await?;
    socket
        .send(encode(&ToFacilitator::V0AuthenticationRequest(
            sign_facilitator_auth(keys),
        )))
        .await?;
    let frame = socket.recv().await?.context("closed")?;
    let FromFacilitator::Challenge(challenge) = decode(&frame)? else {
        bail!("no challenge: {frame}")
    };
    let signature = answer_challenge(keys, &challenge.nonce);
    socket
        .send(encode(&ToFacilitator::MusterChallengeResponse(
            ChallengeResponse { signature },
        )))
        .await?;
    let accepted = socket.recv().await?.context("closed")?;
    ensure!(accepted.contains("success"), "{accepted}");
    Ok(socket)
}

/// The result of some work and its time in milliseconds.
///
/// # Errors
/// Those of the work.
pub async fn clocked<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, f64)> {
    let clock = SystemClock::new();
    let began = muster_process::Clock::now(&clock);
    let done = work.await?;
    let spent = muster_process::Clock::now(&clock).since(began).as_secs_f64() * 1e3;
    Ok((done, spent))
}

/// Asks until there is an answer.
///
/// # Errors
/// There is none within a minute, or asking fails.
pub async fn soon<T>(ask: impl AsyncFn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let asking = async {
        loop {
            if let Some(answer) = ask().await? {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // polls until the server answers
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking).await?
}

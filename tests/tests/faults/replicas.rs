//! Two facilitators on one PostgreSQL, as real processes: one user and one validator notice nothing when either is
//! killed. And one whose database loses the answers to its commits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail, ensure};
use muster_identity::{Keypair, answer_challenge, sign_facilitator_auth, sign_job, sign_login};
use muster_process::{ready, tls};
use muster_protocol::account_api::{LoginRequest, Token};
use muster_protocol::rest::{CreateJob, JobPage, JobView, events, headers};
use muster_protocol::wire::facilitator::{
    FromFacilitator, JobStatusUpdate, ResponseStatus, ToFacilitator, UserSignature,
};
use muster_protocol::wire::muster::ChallengeResponse;
use muster_protocol::wire::{decode, encode};
use muster_protocol::{JobId, JobStatus, ValidatorKey};
use muster_testbed::{Cut, DatabaseRelay, until, wait_for, within};
use muster_tests::muster;
use muster_websocket::{Limits, Socket};
use serde_json::{Value, json};

static MIGRATIONS: LazyLock<sqlx::migrate::Migrator> =
    LazyLock::new(|| muster_store::testing::migrations_in("../facilitator/store/migrations"));

/// A facilitator's process; killed without warning when dropped.
struct Replica {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Replica {
    fn start(store: &str, validator: ValidatorKey) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| -> PathBuf { folder.path().join(name) };
        let config = format!(
            "bind = \"127.0.0.1:0\"\nready_file = {:?}\nstore = {store:?}\nvalidators = [\"{validator}\"]\n\
             [files]\nstore = \"file:{}\"\n",
            path("ready.json"),
            path("files").display(),
        );
        std::fs::write(path("facilitator.toml"), config)?;
        let log = std::fs::File::create(path("log"))?;
        let mut child = Command::new(muster()?)
            .arg("facilitator")
            .arg("--config")
            .arg(path("facilitator.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start a facilitator")?;
        let found = wait_for("a facilitator", || {
            if let Some(status) = child.try_wait()? {
                bail!("it ended ({status}): {}", std::fs::read_to_string(path("log"))?);
            }
            Ok(ready::read(&path("ready.json")).ok().flatten())
        });
        match found {
            Ok(address) => Ok(Self {
                child,
                address,
                folder,
            }),
            Err(error) => {
                child.kill()?;
                Err(error)
            }
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// `kill -9`.
    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct User {
    keys: Keypair,
    http: reqwest::Client,
    token: String,
}

impl User {
    async fn login(replica: &Replica) -> Result<Self> {
        let (keys, http) = (Keypair::from_uri("//User")?, reqwest::Client::new());
        let answer: Value = http.get(replica.url("/auth/nonce")).send().await?.json().await?;
        let nonce = answer.get("nonce").and_then(Value::as_str).context("no nonce")?;
        let nonce = nonce.parse()?;
        let body = LoginRequest::new(keys.hotkey(), sign_login(&keys, &nonce, None), &nonce);
        let login = http.post(replica.url("/auth/login")).json(&body).send().await?;
        let Token { token } = login.error_for_status()?.json().await?;
        Ok(Self { keys, http, token })
    }

    /// Posts a job, as soon as the validator can be selected.
    async fn create(&self, replica: &Replica, body: &Value, signature: &UserSignature) -> Result<JobView> {
        let posted = until("a facilitator that takes the job", async || {
            self.post(replica, body, signature).await.ok()
        });
        Ok(posted.await)
    }

    /// A job and its signature, which is another one each time it is made.
    fn job(&self, validator: ValidatorKey) -> Result<(Value, UserSignature)> {
        let body = json!({
            "target_validator_hotkey": validator, "executor_class": "always_on.test", "docker_image": "alpine",
            "args": [], "env": {"B": "1", "A": "2"}, "use_gpu": true, "download_time_limit": 5, "execution_time_limit": 5,
            "streaming_start_time_limit": 5, "upload_time_limit": 5,
        });
        let job: CreateJob = serde_json::from_value(body.clone())?;
        let signature = sign_job(&self.keys, &job.signed_fields(), now_ns()?);
        Ok((body, signature))
    }

    /// Posts a job; the same signature is the same request.
    async fn post(&self, replica: &Replica, body: &Value, signature: &UserSignature) -> Result<JobView> {
        let answer = self.send_job(replica, body, signature).await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    async fn send_job(
        &self,
        replica: &Replica,
        body: &Value,
        signature: &UserSignature,
    ) -> Result<reqwest::Response> {
        let sent = self
            .http
            .post(replica.url("/api/v1/job-docker/"))
            .bearer_auth(&self.token)
            .header(headers::SIGNATURE_TYPE, "bittensor")
            .header(headers::SIGNATORY, signature.signatory.to_string())
            .header(headers::TIMESTAMP_NS, signature.timestamp_ns)
            .header(headers::SIGNATURE, signature.signature.to_base64())
            .header(headers::SIGNATURE_SCOPE, "SignedFields")
            .json(body)
            .send();
        Ok(sent.await?)
    }

    /// Sends a request; its status and the text of the answer.
    async fn ask(
        &self,
        replica: &Replica,
        (method, path): (reqwest::Method, &str),
        body: Option<Value>,
    ) -> Result<(u16, String)> {
        let mut request = self
            .http
            .request(method, replica.url(path))
            .bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// The number of entries of a list.
    async fn count(&self, replica: &Replica, path: &str) -> Result<u64> {
        let (_, text) = self.ask(replica, (reqwest::Method::GET, path), None).await?;
        let list: Value = serde_json::from_str(&text)?;
        let entries = list
            .get("results")
            .and_then(Value::as_array)
            .with_context(|| text)?;
        Ok(u64::try_from(entries.len())?)
    }

    async fn jobs(&self, replica: &Replica) -> Result<JobPage> {
        let answer = self
            .http
            .get(replica.url("/api/v1/jobs/"))
            .bearer_auth(&self.token)
            .send()
            .await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    async fn follow(&self, replica: &Replica, job: JobId, last: Option<&str>) -> Result<Events> {
        let mut request = self
            .http
            .get(replica.url(&format!("/api/v1/jobs/{job}/events/")))
            .bearer_auth(&self.token);
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        Ok(Events {
            answer: request.send().await?.error_for_status()?,
            text: String::new(),
            last: String::new(),
        })
    }
}

struct Events {
    answer: reqwest::Response,
    text: String,
    last: String,
}

impl Events {
    /// The data of the next event of this name.
    async fn next(&mut self, name: &str) -> Result<Value> {
        let find = async {
            loop {
                while let Some((event, rest)) = self.text.split_once("\n\n") {
                    let field = |name: &str| {
                        let line = event.lines().find_map(|line| line.strip_prefix(name));
                        line.map(|line| line.trim_start_matches(':').trim().to_owned())
                    };
                    let (kind, id, data) = (field("event"), field("id"), field("data"));
                    self.text = rest.to_owned();
                    self.last = id.unwrap_or_else(|| self.last.clone());
                    if kind.as_deref() == Some(name) {
                        return Ok(serde_json::from_str(&data.unwrap_or_default())?);
                    }
                }
                let piece = self.answer.chunk().await?.context("the stream ended")?;
                self.text.push_str(std::str::from_utf8(&piece)?);
            }
        };
        within(&format!("an event {name}"), find).await
    }

    async fn text(&mut self) -> Result<String> {
        let entry = self.next(events::LOG).await?;
        Ok(entry
            .get("text")
            .and_then(Value::as_str)
            .context("no text")?
            .to_owned())
    }

    async fn status(&mut self) -> Result<String> {
        let entry = self.next(events::STATUS).await?;
        Ok(entry
            .get("status")
            .and_then(Value::as_str)
            .context("no status")?
            .to_owned())
    }
}

struct Validator {
    socket: Socket,
}

impl Validator {
    async fn connect(replica: &Replica) -> Result<Self> {
        let keys = Keypair::from_uri("//Validator")?;
        let url = format!("ws://{}/ws/v0/", replica.address);
        let socket = muster_websocket::connect(&url, &Limits::facilitator()).await?;
        let mut validator = Self { socket };
        validator
            .send_message(&ToFacilitator::V0AuthenticationRequest(sign_facilitator_auth(
                &keys,
            )))
            .await?;
        let FromFacilitator::Challenge(challenge) = validator.receive().await? else {
            bail!("no challenge came")
        };
        let signature = answer_challenge(&keys, &challenge.nonce);
        validator
            .send_message(&ToFacilitator::MusterChallengeResponse(ChallengeResponse {
                signature,
            }))
            .await?;
        validator.success().await?;
        Ok(validator)
    }

    async fn send_message(&mut self, message: &ToFacilitator) -> Result<()> {
        Ok(self.socket.send(encode(message)).await?)
    }

    async fn receive(&mut self) -> Result<FromFacilitator> {
        let frame = within("a message of the facilitator", self.socket.recv()).await?;
        Ok(decode(&frame.context("the facilitator closed")?)?)
    }

    async fn success(&mut self) -> Result<()> {
        let message = self.receive().await?;
        let taken =
            matches!(&message, FromFacilitator::Response(answer) if answer.status == ResponseStatus::Success);
        ensure!(taken, "{message:?}");
        Ok(())
    }

    async fn job(&mut self) -> Result<JobId> {
        let message = self.receive().await?;
        let FromFacilitator::Job(job) = message else {
            bail!("{message:?}")
        };
        Ok(job.uuid)
    }

    async fn report(&mut self, uuid: JobId, status: JobStatus) -> Result<()> {
        let update = JobStatusUpdate {
            uuid,
            status,
            metadata: None,
        };
        self.send_message(&ToFacilitator::V0JobStatusUpdate(Box::new(update)))
            .await?;
        self.success().await
    }

    async fn print(&mut self, uuid: JobId, offset: u64, base64: &str) -> Result<()> {
        let log = json!({"message_type": "MusterJobLog", "uuid": uuid, "stream": "stdout", "offset": offset, "data": base64});
        Ok(self.socket.send(log.to_string()).await?)
    }
}

fn now_ns() -> Result<i64> {
    use muster_process::Clock as _;
    Ok(muster_process::SystemClock::new().now().micros() * 1000)
}

async fn story(store: &str) -> Result<()> {
    tls::install_provider();
    let key = ValidatorKey(Keypair::from_uri("//Validator")?.hotkey());
    let a = Replica::start(store, key)?;
    let b = Replica::start(store, key)?;
    let mut validator = Validator::connect(&b).await?;
    let user = User::login(&a).await?;

    // Made at A, delivered by B, watched at A.
    let (body, signature) = user.job(key)?;
    let job = user.create(&a, &body, &signature).await?.uuid;
    ensure!(validator.job().await? == job, "{}", b.log());
    let mut watcher = user.follow(&a, job, None).await?;
    ensure!(watcher.status().await? == "sent");
    validator.report(job, JobStatus::Accepted).await?;
    ensure!(watcher.status().await? == "accepted", "{}", a.log());
    validator.print(job, 0, "aGk=").await?;
    ensure!(watcher.text().await? == "hi");

    // A dies: the same user goes on at B with the same token, and sees what they had not seen.
    let last = watcher.last.clone();
    a.kill()?;
    validator.print(job, 2, "IQ==").await?;
    let mut watcher = user.follow(&b, job, Some(&last)).await?;
    ensure!(watcher.text().await? == "!");
    let again = user.create(&b, &body, &signature).await?.uuid;
    ensure!(again == job, "a repetition at another replica is the same job");
    validator.report(job, JobStatus::Completed).await?;
    ensure!(watcher.status().await? == "completed");

    // B dies with the validator's connection: a job made at once at A waits for the validator, who comes to A.
    let a = Replica::start(store, key)?;
    b.kill()?;
    let (body, signature) = user.job(key)?;
    let waiting = user.create(&a, &body, &signature).await?.uuid;
    let mut validator = Validator::connect(&a).await?;
    ensure!(validator.job().await? == waiting, "{}", a.log());
    let b = Replica::start(store, key)?;
    let mut watcher = user.follow(&b, waiting, None).await?;
    ensure!(watcher.status().await? == "sent");
    validator.report(waiting, JobStatus::Failed).await?;
    ensure!(watcher.status().await? == "failed", "{}", b.log());
    for replica in [&a, &b] {
        let page = user.jobs(replica).await?;
        ensure!(
            page.count == 2 && page.results.first().is_some_and(|job| job.uuid == waiting),
            "{page:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn either_of_two_facilitators_may_be_killed() {
    let stores = muster_store::testing::stores(&MIGRATIONS).await.unwrap();
    let postgres = stores.iter().find(|store| store.engine == "postgres").unwrap();
    story(&postgres.url).await.unwrap();
}

/// Whether an answer says that the outcome is not known, and asks no program to repeat the request.
fn says_unknown(status: u16, text: &str) -> Result<()> {
    ensure!(status == 503 && text.contains("E0056"), "{status}: {text}");
    Ok(())
}

/// A facilitator behind a relay that loses the answers to its commits. Each writer's user is told that the outcome is
/// not known, and reads what was made; the facilitator repeats nothing.
async fn story_of_lost_answers(store: &str) -> Result<()> {
    use reqwest::Method;
    tls::install_provider();
    let key = ValidatorKey(Keypair::from_uri("//Validator")?.hotkey());
    let (relay, store) = DatabaseRelay::start(store)?;
    let replica = Replica::start(&store, key)?;
    let mut validator = Validator::connect(&replica).await?;

    // A login whose answer is lost has used its nonce up; another one works.
    relay.cut_statement(Cut::AfterCommit, "INSERT INTO used_nonces");
    let lost = User::login(&replica)
        .await
        .err()
        .context("a login that is lost")?;
    ensure!(
        relay.cuts() == 1 && format!("{lost:#}").contains("503"),
        "{lost:#}"
    );
    let user = User::login(&replica).await?;

    // A job is there once, and its validator gets it once, however often it is sent.
    let (body, signature) = user.job(key)?;
    relay.cut_statement(Cut::AfterCommit, "INSERT INTO jobs");
    let lost = user.send_job(&replica, &body, &signature).await?;
    ensure!(lost.headers().get("retry-after").is_none());
    says_unknown(lost.status().as_u16(), &lost.text().await?)?;
    ensure!(user.jobs(&replica).await?.count == 1, "{}", replica.log());
    let job = user.create(&replica, &body, &signature).await?.uuid;
    ensure!(validator.job().await? == job);
    // A job that was never stored is not there, and is taken when it is sent again.
    let (body, signature) = user.job(key)?;
    relay.cut_statement(Cut::BeforeCommit, "INSERT INTO jobs");
    let lost = user.send_job(&replica, &body, &signature).await?;
    says_unknown(lost.status().as_u16(), &lost.text().await?)?;
    ensure!(user.jobs(&replica).await?.count == 1);
    let second = user.create(&replica, &body, &signature).await?.uuid;
    ensure!(validator.job().await? == second && user.jobs(&replica).await?.count == 2);

    // A status is not acknowledged, so the validator sends it again; it is in the history once.
    relay.cut_statement(Cut::AfterCommit, "INSERT INTO statuses");
    ensure!(
        validator.report(job, JobStatus::Accepted).await.is_err(),
        "{}",
        replica.log()
    );
    // The second job has no report yet, so the next connection gets it once more.
    let mut validator = Validator::connect(&replica).await?;
    ensure!(validator.job().await? == second);
    let repeated = validator.report(job, JobStatus::Accepted).await.err();
    let told = repeated.map(|told| told.to_string()).unwrap_or_default();
    ensure!(told.contains("already has the status accepted"), "{told}");
    let path = format!("/api/v1/jobs/{job}/");
    let (_, text) = user.ask(&replica, (Method::GET, &path), None).await?;
    let view: JobView = serde_json::from_str(&text)?;
    let accepted = view
        .status_history
        .iter()
        .filter(|entry| entry.status == JobStatus::Accepted);
    ensure!(accepted.count() == 1, "{text}");

    // A key, a webhook and a file are there once; a cancellation is stored.
    let cancel = format!("/api/v1/jobs/{second}/cancel/");
    let file = json!({"name": "data", "size": 3});
    let hook = json!({"url": "https://example.com/hook"});
    for (method, path, body, statement) in [
        (
            Method::POST,
            "/api/v1/keys/",
            Some(json!({"name": "k"})),
            "INSERT INTO api_keys",
        ),
        (
            Method::PUT,
            "/api/v1/webhook/",
            Some(hook),
            "INSERT INTO webhook_accounts",
        ),
        (Method::POST, "/api/v1/files/", Some(file), "INSERT INTO files"),
        (Method::POST, &cancel, None, "UPDATE jobs SET cancelled_at"),
    ] {
        let before = relay.cuts();
        relay.cut_statement(Cut::AfterCommit, statement);
        let (status, text) = user.ask(&replica, (method, path), body).await?;
        ensure!(relay.cuts() == before + 1, "{path} was not cut: {status}: {text}");
        says_unknown(status, &text).with_context(|| path.to_owned())?;
    }
    ensure!(user.count(&replica, "/api/v1/keys/").await? == 1);
    ensure!(user.count(&replica, "/api/v1/files/").await? == 1);
    let (status, text) = user
        .ask(&replica, (Method::GET, "/api/v1/webhook/"), None)
        .await?;
    ensure!(status == 200 && text.contains("example.com"), "{text}");
    let path = format!("/api/v1/jobs/{second}/");
    let (_, text) = user.ask(&replica, (Method::GET, &path), None).await?;
    ensure!(text.contains("cancel"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_change_whose_commit_is_not_answered_is_told_so_and_found_by_reading() {
    let stores = muster_store::testing::stores(&MIGRATIONS).await.unwrap();
    let postgres = stores.iter().find(|store| store.engine == "postgres").unwrap();
    story_of_lost_answers(&postgres.url).await.unwrap();
}

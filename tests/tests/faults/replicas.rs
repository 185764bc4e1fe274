//! Two facilitators on one PostgreSQL, as real processes: one user and one validator notice nothing when either is
//! killed.

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
use muster_testbed::{until, wait_for, within};
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
        let answer = self
            .http
            .post(replica.url("/api/v1/job-docker/"))
            .bearer_auth(&self.token)
            .header(headers::SIGNATURE_TYPE, "bittensor")
            .header(headers::SIGNATORY, signature.signatory.to_string())
            .header(headers::TIMESTAMP_NS, signature.timestamp_ns)
            .header(headers::SIGNATURE, signature.signature.to_base64())
            .header(headers::SIGNATURE_SCOPE, "SignedFields")
            .json(body)
            .send()
            .await?;
        Ok(answer.error_for_status()?.json().await?)
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

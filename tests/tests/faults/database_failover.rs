//! Users of two facilitators and two validators on PostgreSQL that fails over: the primary is killed under fifty jobs,
//! whose events are followed, and twenty streamed answers. No job is lost, none runs twice, and an answer that did not
//! come is looked up. A stream comes whole, with a proof that is kept, or its client learns that it was cut, by an
//! event or by its connection.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_client::{Client, Credential};
use muster_process::task::Task;
use muster_process::{Clock as _, SystemClock, Tasks, tls};
use muster_protocol::rest::{CreateJob, JobView};
use muster_protocol::{JobId, JobStatus, Timestamp};
use muster_testbed::wait_for;
use muster_tests::{
    BUSYBOX, FailoverDatabase, Layout, Parts, Role, RunningSubnet, free_address, muster, run, shell_image,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const JOBS: usize = 50;
const STREAMS: usize = 20;
/// The tokens of an answer, and the milliseconds between two of them: it outlasts the loss of the database.
const TOKENS: u32 = 1_200;
const PACE_MS: &str = "20";
const MODEL: &str = "parrot";
/// The image of the model that repeats what it is asked; every local subnet loads it.
const IMAGE: &str = "muster/hello:latest";
/// The pause before a user tries again.
const PAUSE: Duration = Duration::from_millis(500);

fn now() -> Timestamp {
    SystemClock::default().now()
}

/// A role's process, started again whenever it has ended, as its unit would.
struct Unit {
    role: &'static str,
    config: PathBuf,
    child: Option<Child>,
    starts: u32,
}

impl Unit {
    /// Starts a role with a copy of its configuration that has `more` in it.
    fn start(parts: &Parts, role: Role, name: &str, bind: SocketAddr, more: &Value) -> Self {
        let text = std::fs::read_to_string(parts.config_file(role)).unwrap();
        let mut table: toml::Table = text.parse().unwrap();
        table.extend(toml::Table::try_from(more).unwrap());
        let file = |extension: &str| parts.folder().join(name).with_extension(extension);
        let mut set = |key: &str, value: String| table.insert(key.to_owned(), toml::Value::String(value));
        set("bind", bind.to_string());
        set("ready_file", file("ready").display().to_string());
        if role == Role::Validator {
            set("operator_token", file("token").display().to_string());
        }
        std::fs::write(file("toml"), table.to_string()).unwrap();
        let mut unit = Self {
            role: role.name(),
            config: file("toml"),
            child: None,
            starts: 0,
        };
        unit.keep_running();
        unit
    }

    fn keep_running(&mut self) {
        let runs = self
            .child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if runs {
            return;
        }
        let log = self.config.with_extension("log");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut command = Command::new(muster().unwrap());
        command
            .args([self.role, "--lifeline", "--config"])
            .arg(&self.config);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        self.starts += 1;
    }
}

/// The logs of the units and of the database.
fn logs(units: &[Unit], database: &FailoverDatabase) -> String {
    let read = |unit: &Unit| {
        let log = unit.config.with_extension("log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        format!("== {}\n{text}\n", log.display())
    };
    units.iter().map(read).collect::<String>() + &database.logs()
}

impl Drop for Unit {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A user's job: the number in its output, and its id once it is known.
struct Order {
    number: usize,
    job: CreateJob,
    id: Option<JobId>,
}

/// Submits every job, and looks before it repeats one whose answer did not say whether it was taken.
async fn submit(client: &Client, orders: &mut [Order], taken: &AtomicUsize) -> usize {
    let mut unknown = 0;
    for order in orders {
        while order.id.is_none() {
            match client.create(&order.job).await {
                Ok(view) => order.id = Some(view.uuid),
                Err(_) => {
                    unknown += 1;
                    order.id = find(client, order.number).await;
                }
            }
        }
        taken.fetch_add(1, Ordering::SeqCst);
    }
    unknown
}

/// The job with this number, once the list of jobs can be read.
async fn find(client: &Client, number: usize) -> Option<JobId> {
    let mark = format!("echo job {number};");
    loop {
        if let Ok(page) = client.jobs(1, 100).await {
            let has_mark = |job: &&JobView| job.args.iter().any(|arg| arg.contains(&mark));
            return page.results.iter().find(has_mark).map(|job| job.uuid);
        }
        tokio::time::sleep(PAUSE).await; // polls until the facilitators answer again
    }
}

/// Follows the events of a job to its end.
async fn follow(client: &Client, id: JobId) -> JobView {
    let deadline = now().plus(Duration::from_secs(600));
    loop {
        // The client gives up after some tries; a user follows again.
        if let Ok(view) = client.follow(id, deadline, |_| {}).await {
            return view;
        }
        tokio::time::sleep(PAUSE).await; // polls until the job has ended
    }
}

/// How a streamed answer ended.
#[derive(Debug)]
enum StreamedAnswer {
    /// With its last event. The id is that of its proof.
    Whole { id: String },
    /// In its middle, with the reason in an event.
    Told,
    /// In its middle, with its connection, as a proxy ends it.
    Broken,
    /// In its middle, without a word; the end of what came.
    Silent(String),
}

/// Asks the model, and reads the answer to its end. `begun` counts the answers of which something has come.
async fn ask(client: &Client, begun: &AtomicUsize) -> StreamedAnswer {
    let body = json!({
        "model": MODEL, "messages": [{"role": "user", "content": "one two three"}], "max_tokens": TOKENS, "stream": true,
    });
    let nonce = "07".repeat(32);
    let asked = client.ask_model("/v1/chat/completions", body.to_string().into_bytes(), &nonce);
    let mut answer = asked.await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let (mut text, mut has_begun) = (String::new(), false);
    loop {
        let piece = match answer.chunk().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(_) => return StreamedAnswer::Broken,
        };
        text.push_str(&String::from_utf8_lossy(&piece));
        if !has_begun && text.contains("\"content\":\"one") {
            has_begun = true;
            begun.fetch_add(1, Ordering::SeqCst);
        }
    }
    if text.contains("data: {\"error\"") {
        return StreamedAnswer::Told;
    }
    if text.contains("data: [DONE]") {
        return StreamedAnswer::Whole { id };
    }
    StreamedAnswer::Silent(
        text.chars()
            .rev()
            .take(300)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect(),
    )
}

/// The gateway of a validator, for clients of this facilitator.
fn gateway(facilitator: &Value) -> Value {
    let inspected = run(Command::new("docker").args(["inspect", "--format", "{{.Id}}", IMAGE])).unwrap();
    json!({
        "bind": free_address().unwrap(),
        "facilitators": [facilitator],
        "max_sessions": 1,
        "per_session": STREAMS,
        "services": [{
            "model": MODEL,
            "image": inspected.stdout.trim(),
            "engine": "other",
            "listen": {"socket": "http.sock"},
            "class": "always_on.test",
            "args": ["parrot", "/muster/http.sock", PACE_MS],
            "input_tokens_per_s": 1_000,
            "output_tokens_per_s": 1_000,
        }],
    })
}

/// Waits until `url` answers with success.
fn wait_for_success(
    runtime: &Runtime,
    http: &reqwest::Client,
    what: &str,
    url: &str,
    mut meanwhile: impl FnMut(),
) {
    wait_for(what, || {
        meanwhile();
        let answered = runtime.block_on(http.get(url).send());
        anyhow::Ok(
            answered
                .is_ok_and(|answer| answer.status().is_success())
                .then_some(()),
        )
    })
    .unwrap();
}

#[test]
#[ignore = "soak: two minutes of a database that fails over"]
fn users_lose_nothing_when_the_database_fails_over() {
    tls::install_provider();
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let http = reqwest::Client::new();
    // It loads the image of the model.
    drop(RunningSubnet::start().unwrap());
    let image = runtime.block_on(shell_image("")).unwrap();
    let mut database = FailoverDatabase::start(&["facilitator", "validator", "miner"]).unwrap();
    let roles = database.roles();
    let layout = Layout {
        executors: 4,
        store: Some(database.stores()),
        facilitator_port: Some(roles.facilitator[0]),
        facilitator_through: Some(roles.facilitators),
        public_url: Some(format!("http://{}", roles.facilitators)),
        ..Layout::default()
    };
    let mut parts = Parts::start(&layout).unwrap();
    let health = format!("http://{}/health", roles.facilitators);
    let told = runtime.block_on(async { http.get(&health).send().await?.json::<Value>().await });
    let signer = told.unwrap()["hotkey"].clone();
    for role in parts.roles().to_vec() {
        parts.kill(role).unwrap();
    }
    // The gateways are on this machine.
    let dials = json!({"gateways": {"allow": ["127.0.0.0/8"]}});
    let serves = || json!({"gateway": gateway(&signer)});
    let ([one, two], [first, second]) = (roles.facilitator, roles.validator_status);
    let mut units = [
        Unit::start(&parts, Role::Facilitator, "facilitator1", one, &dials),
        Unit::start(&parts, Role::Facilitator, "facilitator2", two, &dials),
        Unit::start(
            &parts,
            Role::Miner,
            "miner1",
            parts.address(Role::Miner),
            &json!({}),
        ),
        Unit::start(&parts, Role::Validator, "validator1", first, &serves()),
        Unit::start(&parts, Role::Validator, "validator2", second, &serves()),
    ];
    let leader = format!("http://{}/v0/leader", roles.validator);
    wait_for_success(&runtime, &http, "a validator that leads", &leader, || {});

    let clock = Arc::new(SystemClock::default());
    let base = format!("http://{}", roles.facilitators);
    let key = parts.keys().user.clone();
    let login = Client::connect(&base, Credential::hotkey(key), clock);
    let client = Arc::new(runtime.block_on(login).unwrap());
    let order = |number: usize| {
        let script = format!("echo job {number}; {BUSYBOX} sleep 2; echo over {number}");
        let job = parts.shell_job(image, &script, 120).unwrap();
        Order {
            number,
            job,
            id: None,
        }
    };
    let mut orders: Vec<_> = (0..JOBS).map(order).collect();
    let (taken, known) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let submitting = {
        let (client, taken, known) = (Arc::clone(&client), Arc::clone(&taken), Arc::clone(&known));
        Tasks::new().spawn("submit", async move {
            let unknown = submit(&client, &mut orders, &taken).await;
            known
                .lock()
                .unwrap()
                .extend(orders.into_iter().map(|order| (order.number, order.id.unwrap())));
            unknown
        })
    };
    let begun = Arc::new(AtomicUsize::new(0));
    let answers: Vec<_> = (0..STREAMS)
        .map(|_| {
            let (client, begun) = (Arc::clone(&client), Arc::clone(&begun));
            Tasks::new().spawn("ask", async move { ask(&client, &begun).await })
        })
        .collect();
    wait_for("the first fifteen jobs, and words of every answer", || {
        let are_there = taken.load(Ordering::SeqCst) >= 15 && begun.load(Ordering::SeqCst) >= STREAMS;
        anyhow::Ok(are_there.then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", logs(&units, &database)));

    let lost = database.kill_primary().unwrap();
    let since = now();
    let mut keep = || units.iter_mut().for_each(Unit::keep_running);
    // HAProxy sees the loss after two checks; the answers before that are of the primary that is gone.
    wait_for("an outage", || {
        keep();
        let answered = runtime.block_on(http.get(&health).send());
        anyhow::Ok((!answered.is_ok_and(|answer| answer.status().is_success())).then_some(()))
    })
    .unwrap();
    wait_for_success(&runtime, &http, "the facilitators", &health, &mut keep);
    eprintln!(
        "facilitators answer {:.1} s after the primary was killed",
        now().since(since).as_secs_f64()
    );
    wait_for_success(&runtime, &http, "a validator that leads", &leader, &mut keep);
    eprintln!(
        "a validator leads {:.1} s after the primary was killed",
        now().since(since).as_secs_f64()
    );
    database.begin(lost).unwrap();

    let unknown = wait_for("the submission of all jobs", || {
        units.iter_mut().for_each(Unit::keep_running);
        anyhow::Ok(submitting.is_finished().then_some(()))
    })
    .map(|()| runtime.block_on(submitting.join()).unwrap())
    .unwrap();
    eprintln!("{unknown} submissions were not answered, and were looked up");
    let known = known.lock().unwrap().clone();
    let ends: Vec<_> = known
        .iter()
        .map(|(number, id)| {
            let (client, id, number) = (Arc::clone(&client), *id, *number);
            Tasks::new().spawn("follow", async move { (number, follow(&client, id).await) })
        })
        .collect();
    wait_for("the end of all jobs", || {
        units.iter_mut().for_each(Unit::keep_running);
        anyhow::Ok(ends.iter().all(Task::is_finished).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", logs(&units, &database)));
    for end in ends {
        let (number, view) = runtime.block_on(end.join()).unwrap();
        assert_eq!(view.last_status(), JobStatus::Completed, "job {number}: {view:?}");
        let text = serde_json::to_string(&view).unwrap();
        assert!(text.contains(&format!("over {number}")), "job {number}: {text}");
    }
    wait_for("the end of all answers", || {
        units.iter_mut().for_each(Unit::keep_running);
        anyhow::Ok(answers.iter().all(Task::is_finished).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", logs(&units, &database)));
    let ended: Vec<_> = answers
        .into_iter()
        .map(|answer| runtime.block_on(answer.join()).unwrap())
        .collect();
    let (mut whole, mut told, mut broken) = (0, 0, 0);
    for answer in &ended {
        match answer {
            StreamedAnswer::Whole { id } => {
                let proof: Value = runtime.block_on(client.proof(id)).unwrap();
                assert_eq!(proof["verdict"], "proven", "{proof}");
                whole += 1;
            }
            StreamedAnswer::Told => told += 1,
            StreamedAnswer::Broken => broken += 1,
            StreamedAnswer::Silent(end) => {
                panic!(
                    "an answer ended without a word: …{end}\n{}",
                    logs(&units, &database)
                )
            }
        }
    }
    eprintln!(
        "of {STREAMS} streamed answers {whole} came whole and are proven, {told} say that they were cut, {broken} ended \
         with their connection"
    );
    let page = runtime.block_on(client.jobs(1, 100)).unwrap();
    assert_eq!(page.count, u64::try_from(JOBS).unwrap(), "each job is there once");
    database.wait_for_both().unwrap();
    let starts: Vec<_> = units.iter().map(|unit| (unit.role, unit.starts)).collect();
    eprintln!("all {JOBS} jobs completed, each once; the units' starts: {starts:?}");
}

//! The client against a scripted facilitator: streams and connections that break, tokens that expire, servers without
//! events.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use futures_util::{StreamExt as _, stream};
use muster_client::find_job::{JobCandidate, JobCandidates};
use muster_client::{Client, ClientError, Credential, News};
use muster_process::{Coded as _, SystemClock, Tasks};
use muster_protocol::rest::{CreateJob, FileView};
use muster_protocol::{Digest, ErrorCode, JobId, JobStatus, Timestamp};
use serde_json::{Value, json};

const JOB: &str = "11111111-2222-4333-8444-555555555555";
const FILE: &str = "22222222-2222-4333-8444-555555555555";

/// The facilitator's script: its past and its next answers.
#[derive(Default)]
struct Script {
    base: Mutex<String>,
    /// Statuses of the job, by the number of times it was asked for.
    asked: AtomicUsize,
    streams: AtomicUsize,
    /// The text that a login is asked to sign; a nonce if it is absent.
    asks_to_sign: Option<&'static str>,
    logins: AtomicUsize,
    resumed_from: Mutex<Vec<String>>,
    events: bool,
    /// The received bytes of an upload.
    taken: Mutex<Vec<u8>>,
    puts: AtomicUsize,
    content: Vec<u8>,
    gets: AtomicUsize,
    /// The features in `/health`, of which an older facilitator has none.
    features: &'static [&'static str],
    created: Mutex<Vec<Value>>,
    /// The account's jobs by id and name, newest first.
    jobs: Vec<(&'static str, &'static str)>,
    /// The facilitator lists every job, whatever it is asked for.
    ignores_filters: bool,
}

type Shared = State<Arc<Script>>;

async fn start(script: Script) -> (Arc<Script>, Tasks) {
    muster_process::tls::install_provider();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let script = Arc::new(script);
    *script.base.lock().unwrap() = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new()
        .route("/auth/nonce", get(nonce))
        .route("/auth/login", axum::routing::post(login))
        .route("/health", get(health))
        .route("/api/v1/job-docker/", axum::routing::post(create))
        .route("/api/v1/jobs/", get(jobs))
        .route("/api/v1/jobs/{id}/", get(job))
        .route("/api/v1/jobs/{id}/events/", get(events))
        .route("/api/v1/files/", get(files).post(announce))
        .route("/api/v1/files/{id}/", get(file))
        .route("/files/{id}/upload", put(take).head(taken))
        .route("/files/{id}/content", get(give))
        .with_state(Arc::clone(&script));
    let tasks = Tasks::new();
    tasks.spawn("serve", async move { axum::serve(listener, app).await });
    (script, tasks)
}

async fn connect(script: &Script) -> Result<Client, ClientError> {
    let base = script.base.lock().unwrap().clone();
    let clock = Arc::new(SystemClock::new());
    let user = muster_identity::Keypair::from_uri("//User").unwrap();
    Client::connect(&base, Credential::hotkey(user), clock).await
}

async fn client(script: &Script) -> Client {
    connect(script).await.unwrap()
}

async fn nonce(State(script): Shared) -> Json<Value> {
    let nonce = "0123456789abcdef0123456789abcdef:1vC5kq:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNO-_";
    Json(json!({"nonce": script.asks_to_sign.unwrap_or(nonce)}))
}

async fn health(State(script): Shared) -> Json<Value> {
    Json(json!({"status": "ok", "features": script.features}))
}

async fn create(State(script): Shared, Json(body): Json<Value>) -> Response {
    script.created.lock().unwrap().push(body);
    (StatusCode::CREATED, Json(view(1))).into_response()
}

async fn login(State(script): Shared) -> Json<Value> {
    let number = script.logins.fetch_add(1, Ordering::SeqCst);
    Json(json!({"token": format!("token{number}")}))
}

fn entry(status: &str, second: i64) -> Value {
    json!({"status": status, "metadata": {}, "created_at": Timestamp::from_secs(1_769_000_000 + second)})
}

/// The job after the given number of steps.
fn view(steps: usize) -> Value {
    let all = ["sent", "received", "accepted", "completed"];
    let history: Vec<_> = (0..)
        .zip(&all[..steps.min(4)])
        .map(|(second, status)| entry(status, second))
        .collect();
    let key = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    json!({
        "uuid": JOB, "executor_class": "always_on.test", "created_at": Timestamp::from_secs(1_769_000_000),
        "last_update": Timestamp::from_secs(1_769_000_000), "status": "Sent", "docker_image": "alpine", "args": [],
        "env": {}, "use_gpu": false, "target_validator_hotkey": key, "download_time_limit": 1,
        "execution_time_limit": 1, "streaming_start_time_limit": 1, "upload_time_limit": 1, "status_history": history,
    })
}

async fn jobs(State(script): Shared, Query(query): Query<Vec<(String, String)>>) -> Json<Value> {
    let asked = |key: &str| {
        let found = query.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    };
    let fits = |(id, name): &&(&str, &str)| {
        script.ignores_filters
            || (asked("tag").is_none_or(|tag| tag == *name)
                && asked("id_prefix").is_none_or(|prefix| id.starts_with(prefix)))
    };
    let size: usize = asked("page_size").unwrap().parse().unwrap();
    let found: Vec<_> = script.jobs.iter().filter(fits).collect();
    let shown = |(id, name): &&(&str, &str)| {
        let mut view = view(1);
        view["uuid"] = json!(id);
        view["tag"] = json!(name);
        view
    };
    let results: Vec<_> = found.iter().take(size).map(shown).collect();
    Json(json!({"count": found.len(), "next": null, "previous": null, "results": results}))
}

async fn job(State(script): Shared, headers: HeaderMap, Path(id): Path<String>) -> Response {
    if id != JOB {
        return (StatusCode::NOT_FOUND, Json(json!({"detail": "Not found."}))).into_response();
    }
    // The first token has expired by the time it is used.
    if headers[header::AUTHORIZATION] == "Bearer token0" {
        return (
            StatusCode::UNAUTHORIZED,
            Json(json!({"detail": "Token expired."})),
        )
            .into_response();
    }
    let asked = script.asked.fetch_add(1, Ordering::SeqCst);
    let steps = if script.events {
        // As far as the streams have reported.
        if script.streams.load(Ordering::SeqCst) >= 2 {
            4
        } else {
            2
        }
    } else {
        asked + 1
    };
    Json(view(steps)).into_response()
}

/// The first stream breaks off in the middle, the second ends it.
async fn events(State(script): Shared, headers: HeaderMap) -> Response {
    if !script.events {
        return StatusCode::NOT_FOUND.into_response();
    }
    let stream = script.streams.fetch_add(1, Ordering::SeqCst);
    let last = headers
        .get("last-event-id")
        .map(|id| id.to_str().unwrap().to_owned());
    script.resumed_from.lock().unwrap().push(last.unwrap_or_default());
    let event = |kind: &str, id: usize, data: &Value| format!("event: {kind}\nid: {id}\ndata: {data}\n\n");
    let log = json!({"stream": "stdout", "text": "half", "at": Timestamp::from_secs(0), "offset": 0});
    let progress = json!({"stage": "download", "done": 1, "total": 2});
    let text = if stream == 0 {
        [
            event("status", 1, &entry("sent", 0)),
            event("log", 2, &log),
            ": still here\n\n".to_owned(),
            event("status", 3, &entry("received", 1)),
            "event: status\ndata: {\"sta".to_owned(),
        ]
        .concat()
    } else {
        [
            event("unheard-of", 4, &json!({})),
            event("progress", 5, &progress),
            event("status", 6, &entry("accepted", 2)),
            event("status", 7, &entry("completed", 3)),
        ]
        .concat()
    };
    ([(header::CONTENT_TYPE, "text/event-stream")], text).into_response()
}

fn place(script: &Script) -> Value {
    let base = script.base.lock().unwrap().clone();
    let whole = script.taken.lock().unwrap().len() == script.content.len() && !script.content.is_empty();
    json!({
        "id": FILE, "name": "data.bin", "size": script.content.len(), "received": 0, "complete": whole,
        "sha256": Digest::of(&script.content).hex(), "upload_url": format!("{base}/files/{FILE}/upload"),
        "download_url": format!("{base}/files/{FILE}/content"), "expires_at": Timestamp::from_secs(0),
        "created_at": Timestamp::from_secs(0),
    })
}

async fn files(State(script): Shared) -> Json<Value> {
    let whole = script.taken.lock().unwrap().len() == script.content.len();
    let results: Vec<Value> = whole.then(|| place(&script)).into_iter().collect();
    Json(json!({"count": results.len(), "next": null, "previous": null, "results": results}))
}

async fn announce(State(script): Shared, Json(new): Json<Value>) -> Response {
    assert_eq!(new["sha256"], Digest::of(&script.content).hex());
    (StatusCode::CREATED, Json(place(&script))).into_response()
}

async fn file(State(script): Shared) -> Json<Value> {
    Json(place(&script))
}

async fn taken(State(script): Shared) -> Response {
    let len = script.taken.lock().unwrap().len();
    [("upload-offset", len.to_string())].into_response()
}

/// Takes half of what the first request brings and then is not well.
async fn take(State(script): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let put = script.puts.fetch_add(1, Ordering::SeqCst);
    let mut taken = script.taken.lock().unwrap();
    let range = headers[header::CONTENT_RANGE].to_str().unwrap().to_owned();
    assert!(range.starts_with(&format!("bytes {}-", taken.len())), "{range}");
    if put == 0 {
        taken.extend_from_slice(&body[..body.len() / 2]);
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    taken.extend_from_slice(&body);
    StatusCode::CREATED.into_response()
}

/// Breaks off in the middle the first time.
async fn give(State(script): Shared, headers: HeaderMap) -> Response {
    let number = script.gets.fetch_add(1, Ordering::SeqCst);
    let content = script.content.clone();
    if number == 0 {
        let half = Bytes::copy_from_slice(&content[..content.len() / 2]);
        let broke = async {
            // A waiting client lets the first half out.
            tokio::task::yield_now().await;
            Err(std::io::Error::other("broke"))
        };
        let pieces = stream::once(async { Ok(half) }).chain(stream::once(broke));
        return Body::from_stream(pieces).into_response();
    }
    if headers[header::IF_RANGE] != format!("\"{}\"", Digest::of(&content).hex()) {
        return content.into_response();
    }
    let range = headers[header::RANGE].to_str().unwrap();
    let from: usize = range
        .trim_start_matches("bytes=")
        .trim_end_matches('-')
        .parse()
        .unwrap();
    (StatusCode::PARTIAL_CONTENT, content[from..].to_vec()).into_response()
}

fn far() -> Timestamp {
    Timestamp::from_secs(4_000_000_000)
}

/// The statuses that were reported, and the number of other news.
async fn follow(client: &Client) -> (Vec<JobStatus>, usize) {
    let id: JobId = JOB.parse().unwrap();
    let (mut statuses, mut others) = (Vec::new(), 0);
    let followed = client.follow(id, far(), |news| match news {
        News::Status(entry) => statuses.push(entry.status),
        News::Log(_) | News::Progress(_) | News::Queued(_) | News::Metrics(_) => others += 1,
    });
    let view = muster_testbed::within("the end of the job", followed)
        .await
        .unwrap();
    assert_eq!(view.last_status(), JobStatus::Completed);
    (statuses, others)
}

const ALL: [JobStatus; 4] = [
    JobStatus::Sent,
    JobStatus::Received,
    JobStatus::Accepted,
    JobStatus::Completed,
];

#[tokio::test]
async fn a_facilitator_that_asks_for_a_signature_over_a_receipt_gets_none() {
    let (script, _tasks) = start(Script {
        asks_to_sign: Some(r#"{"receipt_type": "JobFinishedReceipt", "score_str": "9.000000"}"#),
        ..Script::default()
    })
    .await;
    let refused = connect(&script).await.map(drop).unwrap_err();
    assert!(matches!(refused, ClientError::NoNonce { .. }), "{refused}");
    assert_eq!(script.logins.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_stream_that_breaks_is_resumed_and_every_status_is_told_once() {
    let (script, _tasks) = start(Script {
        events: true,
        ..Script::default()
    })
    .await;
    let client = client(&script).await;
    assert_eq!(follow(&client).await, (ALL.to_vec(), 2));
    assert_eq!(*script.resumed_from.lock().unwrap(), ["", "3"]);
}

#[tokio::test]
async fn a_facilitator_without_events_is_asked_and_a_token_that_expired_is_renewed() {
    let (script, _tasks) = start(Script::default()).await;
    let client = client(&script).await;
    assert_eq!(follow(&client).await, (ALL.to_vec(), 0));
    assert_eq!(script.logins.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_job_that_nobody_knows_and_one_that_takes_too_long_are_told_apart() {
    let (script, _tasks) = start(Script::default()).await;
    let client = client(&script).await;
    let unknown: JobId = "99999999-2222-4333-8444-555555555555".parse().unwrap();
    let refused = client.follow(unknown, far(), |_| {}).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::JobUnknown), "{refused}");
    let id: JobId = JOB.parse().unwrap();
    let late = client
        .follow(id, Timestamp::from_secs(0), |_| {})
        .await
        .unwrap_err();
    assert!(matches!(late, ClientError::TooLate { .. }), "{late}");
}

#[tokio::test]
async fn job_is_found_by_id_prefix_name_and_as_the_newest_one() {
    const OTHER: &str = "11111119-2222-4333-8444-555555555555";
    let jobs = vec![
        (OTHER, "1111"),
        (JOB, "train"),
        ("3f0c0000-2222-4333-8444-555555555555", "train"),
    ];
    let (script, _tasks) = start(Script {
        jobs: jobs.clone(),
        ..Script::default()
    })
    .await;
    let knows = client(&script).await;
    let find = async |client: &Client, text: &str| {
        let found = client.find_job(&text.parse().unwrap()).await;
        found.map(|id| id.to_string())
    };
    for (text, id) in [
        ("@last", OTHER),
        ("train", JOB),
        ("1111", OTHER),
        ("11111111", JOB),
        ("3F0C", jobs[2].0),
        (JOB, JOB),
    ] {
        assert_eq!(find(&knows, text).await.unwrap(), id, "{text}");
    }
    let unknown = find(&knows, "4").await.unwrap_err();
    assert_eq!(unknown.code(), Some(ErrorCode::JobUnknown));
    let ambiguous = find(&knows, "11111").await.unwrap_err();
    assert_eq!(ambiguous.code(), Some(ErrorCode::JobAmbiguous));
    let text = ambiguous.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[0].starts_with("the ids of 2 jobs begin with 11111;"),
        "{text}"
    );
    assert_eq!(lines[1], format!("  {OTHER}  2026-01-21T12:53:20Z  alpine"));

    let (script, _tasks) = start(Script {
        jobs,
        ignores_filters: true,
        ..Script::default()
    })
    .await;
    let older = client(&script).await;
    assert!(matches!(
        find(&older, "3f0c").await,
        Err(ClientError::NeedsWholeId { .. })
    ));
    assert_eq!(find(&older, "@last").await.unwrap(), OTHER);
}

#[test]
fn five_jobs_are_listed_and_the_others_are_counted() {
    let job = JobCandidate {
        id: JOB.parse().unwrap(),
        created_at: Timestamp::from_secs(0),
        image: "alpine".to_owned(),
    };
    let candidates = JobCandidates {
        jobs: vec![job; 5],
        count: 12,
    };
    let text = candidates.to_string();
    assert!(text.ends_with("alpine\n  and 7 more"), "{text}");
}

#[tokio::test]
async fn an_upload_goes_on_where_it_broke_off_and_is_not_repeated() {
    let (script, _tasks) = start(Script {
        content: (0..100_000_u32).flat_map(u32::to_le_bytes).collect(),
        ..Script::default()
    })
    .await;
    let client = client(&script).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, &script.content).unwrap();
    let mut last = None;
    let sent = client
        .send_file(&path, "data.bin", |told| last = Some(told.done))
        .await
        .unwrap();
    assert_eq!((sent.known, last), (0, Some(400_000)));
    assert!(*script.taken.lock().unwrap() == script.content);
    assert_eq!(script.puts.load(Ordering::SeqCst), 2);
    let again = client.send_file(&path, "data.bin", |_| {}).await.unwrap();
    assert_eq!(again.known, 400_000);
    assert_eq!(script.puts.load(Ordering::SeqCst), 2, "nothing was sent");
    let missing = client.send_file(&folder.path().join("x"), "x", |_| {}).await;
    assert!(matches!(missing, Err(ClientError::Io { .. })));
}

#[tokio::test]
async fn a_download_goes_on_where_it_broke_off_and_is_checked() {
    let (script, _tasks) = start(Script {
        content: (0..100_000_u32).flat_map(u32::to_le_bytes).collect(),
        ..Script::default()
    })
    .await;
    let client = client(&script).await;
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("new/data.bin");
    let mut file: FileView = serde_json::from_value(place(&script)).unwrap();
    let bytes = client.fetch_file(&file, &to, |_| {}).await.unwrap();
    assert_eq!(bytes, 400_000);
    assert!(std::fs::read(&to).unwrap() == script.content);
    assert_eq!(script.gets.load(Ordering::SeqCst), 2);

    // Another content than was promised replaces nothing.
    script.gets.store(0, Ordering::SeqCst);
    file.sha256 = Some("0".repeat(64));
    let damaged = client.fetch_file(&file, &to, |_| {}).await;
    assert!(matches!(damaged, Err(ClientError::Damaged { .. })), "{damaged:?}");
    assert!(std::fs::read(&to).unwrap() == script.content);
    assert_eq!(std::fs::read_dir(to.parent().unwrap()).unwrap().count(), 1);
}

/// The future of a download is dropped, as a signal would end its process.
#[tokio::test]
async fn a_download_that_was_interrupted_goes_on_in_the_next_process() {
    let (script, _tasks) = start(Script {
        content: (0..100_000_u32).flat_map(u32::to_le_bytes).collect(),
        ..Script::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("data.bin");
    let file: FileView = serde_json::from_value(place(&script)).unwrap();
    let came = tokio::sync::Notify::new();
    let interrupted = client(&script).await;
    tokio::select! {
        biased;
        () = came.notified() => {}
        whole = interrupted.fetch_file(&file, &to, |_| came.notify_one()) => drop(whole.unwrap()),
    }
    let part = part_of(folder.path()).unwrap();
    assert!(part.to_str().unwrap().contains("/data.bin.") && !to.exists());
    let kept = part.metadata().unwrap().len();
    assert!((1..=200_000).contains(&kept), "{kept}");

    let mut first = None;
    let next = client(&script).await;
    let told = |progress: muster_client::TransferProgress| {
        first.get_or_insert(progress.done);
    };
    assert_eq!(next.fetch_file(&file, &to, told).await.unwrap(), 400_000);
    assert!(first.unwrap() > kept, "it began anew");
    assert!(std::fs::read(&to).unwrap() == script.content);
    assert_eq!(part_of(folder.path()), None);
}

/// The file of a download that is not whole.
fn part_of(folder: &std::path::Path) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|ending| ending == "part"))
}

fn urgent_job() -> CreateJob {
    serde_json::from_value(json!({
        "target_validator_hotkey": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
        "executor_class": "always_on.test", "docker_image": "alpine", "download_time_limit": 1,
        "execution_time_limit": 1, "streaming_start_time_limit": 0, "upload_time_limit": 1,
        "muster": {"terms": {"priority": 9}},
    }))
    .unwrap()
}

#[tokio::test]
async fn terms_are_signed_and_sent_to_a_facilitator_that_knows_them() {
    let (script, _tasks) = start(Script {
        features: &["later", "terms"],
        ..Script::default()
    })
    .await;
    client(&script).await.create(&urgent_job()).await.unwrap();
    let sent = script.created.lock().unwrap()[0].clone();
    assert_eq!(sent["muster"]["terms"], json!({"priority": 9}));
    assert!(sent["muster"]["signature"].as_str().unwrap().starts_with("0x"));
}

#[tokio::test]
async fn no_terms_are_sent_to_a_facilitator_that_does_not_know_them() {
    let (script, _tasks) = start(Script::default()).await;
    let client = client(&script).await;
    let error = client.create(&urgent_job()).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Lacks { feature: "terms", .. }),
        "{error}"
    );
    assert!(script.created.lock().unwrap().is_empty());
    let plain = CreateJob {
        muster: None,
        ..urgent_job()
    };
    client.create(&plain).await.unwrap();
    assert!(
        !script.created.lock().unwrap()[0]
            .as_object()
            .unwrap()
            .contains_key("muster")
    );
}

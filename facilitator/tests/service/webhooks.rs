//! Webhooks from outside: a receiver on this machine gets signed messages, again after failures and restarts.

use std::sync::Arc;
use std::time::Duration;

use muster_facilitator::Config;
use muster_process::TestClock;
use muster_protocol::rest::JobView;
use muster_protocol::{FeatureSet, JobId, JobStatus, MUSTER_FEATURES_HEADER, Timestamp};
use muster_testbed::within;
use muster_webhooks::message::{MAX_ATTEMPTS, WebhookSecret};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::facilitator::{Facilitator, until, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

/// The step of the clock while an attempt is awaited: a hundredth of the time that an attempt has.
const STEP: Duration = Duration::from_millis(100);

/// A message as the receiver got it.
#[derive(Debug)]
struct Received {
    head: String,
    body: String,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        let line = self
            .head
            .lines()
            .find(|line| line.to_ascii_lowercase().starts_with(name));
        line.and_then(|line| line.split_once(": ")).unwrap().1
    }

    /// Checks the signature as a receiver does.
    fn check(&self, secret: &WebhookSecret) {
        let sent = Timestamp::from_secs(self.header("webhook-timestamp:").parse().unwrap());
        let expected = secret.sign(self.header("webhook-id:"), sent, &self.body);
        assert_eq!(self.header("webhook-signature:"), expected);
    }
}

/// A receiver of messages.
struct Receiver {
    listener: TcpListener,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener }
    }

    fn url(&self) -> String {
        format!("http://{}/ended?token=mine", self.listener.local_addr().unwrap())
    }

    /// Takes the message that this attempt sends, answers it with this status line and headers, and waits until the
    /// facilitator has stored the answer.
    async fn receive(
        &self,
        clock: &TestClock,
        user: &User,
        job: JobId,
        attempt: u32,
        answer: &str,
    ) -> Received {
        let begun = begin_attempt(clock, user, job, attempt).await;
        let received = within("a message", self.take(answer)).await;
        until(async || (json!(show(user, job).await.webhook) != begun).then_some(())).await;
        received
    }

    async fn take(&self, answer: &str) -> Received {
        let (mut socket, _) = self.listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        loop {
            let mut piece = [0; 4_096];
            let read = socket.read(&mut piece).await.unwrap();
            bytes.extend_from_slice(&piece[..read]);
            let text = String::from_utf8(bytes.clone()).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().parse::<usize>().unwrap() {
                let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                socket.write_all(answer.as_bytes()).await.unwrap();
                return Received {
                    head: head.to_owned(),
                    body: body.to_owned(),
                };
            }
        }
    }
}

/// A facilitator whose operator lets webhooks reach this machine.
async fn start(clock: &TestClock) -> Facilitator {
    let change = |config: &mut Config| config.webhooks.allow = vec!["127.0.0.1".to_owned()];
    Facilitator::start_with(Arc::new(clock.clone()), change).await
}

async fn draw_secret(user: &User, url: Option<&str>) -> WebhookSecret {
    let body = json!({ "url": url });
    let (status, set) = read_json(user.send(Method::PUT, "/api/v1/webhook/", Some(&body)).await).await;
    assert_eq!(status, 200, "{set}");
    set["secret"].as_str().unwrap().parse().unwrap()
}

async fn show(user: &User, job: JobId) -> JobView {
    let features = FeatureSet::ours().to_string();
    let request = user
        .get(&format!("/api/v1/jobs/{job}/"))
        .header(MUSTER_FEATURES_HEADER, features);
    request.send().await.unwrap().json().await.unwrap()
}

/// Moves the clock on until this attempt to send the job's message has begun, and returns where the message stands
/// then. The clock stands from there on, because the limits of the attempt are the clock's.
async fn begin_attempt(clock: &TestClock, user: &User, job: JobId, attempt: u32) -> Value {
    until(async || {
        let webhook = show(user, job).await.webhook.unwrap();
        if webhook.attempts == attempt {
            return Some(json!(webhook));
        }
        if let Some(next_at) = webhook.next_at {
            clock.advance_to(next_at);
            // The sender looks for due messages once a second.
            clock.advance(STEP);
        }
        None
    })
    .await
}

/// Where the message stands once the job shows it.
async fn state(user: &User, job: JobId, wanted: &str) -> Value {
    until(async || {
        let told = json!(show(user, job).await.webhook);
        (told["state"] == wanted && told["attempts"] != 0).then_some(told)
    })
    .await
}

async fn submit(
    facilitator: &Facilitator,
    validator: &mut Validator,
    user: &User,
    url: Option<&str>,
) -> JobId {
    let mut body = job_for(validator_key("Validator"));
    if let Some(url) = url {
        body["webhook"] = json!(url);
    }
    let job = user.create(&body, facilitator.now_ns()).await.uuid;
    let sent = validator.job().await;
    let frame = serde_json::to_string(&sent).unwrap();
    assert!(!frame.contains("webhook"), "the URL stays at the facilitator");
    job
}

#[tokio::test]
async fn the_end_of_a_job_is_told_signed_and_again_until_it_is_taken() {
    let clock = TestClock::default();
    let facilitator = start(&clock).await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let receiver = Receiver::start().await;
    let secret = draw_secret(&user, None).await;
    let job = submit(&facilitator, &mut validator, &user, Some(&receiver.url())).await;
    assert_eq!(json!(show(&user, job).await.webhook)["state"], "waiting");
    assert!(
        user.job(job).await.webhook.is_none(),
        "ComputeHorde's SDK sees what it always saw"
    );
    let metadata = json!({"job_failure_details": {
        "reason": "nonzero_return_code", "stage": "execution", "message": "exit 3", "docker_process_exit_status": 3,
        "docker_process_stdout": "a secret of the job",
    }});
    let metadata = serde_json::from_value(metadata).unwrap();
    validator
        .report_with(job, JobStatus::Failed, Some(metadata))
        .await
        .unwrap();
    let first = receiver
        .receive(&clock, &user, job, 1, "500 Internal Server Error")
        .await;
    first.check(&secret);
    assert!(
        first.head.starts_with("POST /ended?token=mine HTTP/1.1"),
        "{first:?}"
    );
    let body: Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!(body["type"], "job.ended");
    let data = &body["data"];
    assert_eq!(
        (&data["job"], &data["status"], &data["exit_code"], &data["fault"]),
        (&json!(job), &json!("failed"), &json!(3), &json!("user"))
    );
    assert!(!first.body.contains("a secret of the job"));
    let told = state(&user, job, "due").await;
    assert_eq!(told["error"], "the receiver answered 500");
    // A restart in between loses nothing.
    drop(validator);
    let facilitator = facilitator.restart().await;
    let user = user.at(&facilitator);
    // A redirect is not followed.
    let answer = "302 Found\r\nlocation: http://127.0.0.1:1/";
    let second = receiver.receive(&clock, &user, job, 2, answer).await;
    assert_eq!(second.header("webhook-id:"), first.header("webhook-id:"));
    assert_eq!(second.body, first.body);
    second.check(&secret);
    assert_ne!(
        second.header("webhook-timestamp:"),
        first.header("webhook-timestamp:")
    );
    let told = json!(show(&user, job).await.webhook);
    assert!(told["error"].as_str().unwrap().contains("redirects"), "{told}");
    receiver.receive(&clock, &user, job, 3, "204 No Content").await;
    assert_eq!(state(&user, job, "delivered").await["attempts"], 3);
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_keeps_no_other_accounts_message_back() {
    let clock = TestClock::default();
    let facilitator = start(&clock).await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let (slow, quick) = (Receiver::start().await, Receiver::start().await);
    let (waiting, other) = (
        User::login(&facilitator, "User").await,
        User::login(&facilitator, "Other").await,
    );
    for user in [&waiting, &other] {
        draw_secret(user, None).await;
    }
    let first = submit(&facilitator, &mut validator, &waiting, Some(&slow.url())).await;
    validator.report(first, JobStatus::Failed).await.unwrap();
    begin_attempt(&clock, &waiting, first, 1).await;
    let held = within("a message", slow.listener.accept()).await.unwrap();
    let second = submit(&facilitator, &mut validator, &other, Some(&quick.url())).await;
    validator.report(second, JobStatus::Failed).await.unwrap();
    quick.receive(&clock, &other, second, 1, "204 No Content").await;
    let unanswered = json!(show(&waiting, first).await.webhook);
    assert_eq!(
        unanswered["error"],
        Value::Null,
        "its attempt still goes on: {unanswered}"
    );
    drop(held);
}

#[tokio::test]
async fn a_receiver_that_never_answers_well_is_given_up() {
    let clock = TestClock::default();
    let facilitator = start(&clock).await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let receiver = Receiver::start().await;
    let url = receiver.url();
    draw_secret(&user, Some(&url)).await;
    // The account's URL is notified of a job that names none.
    let gone = submit(&facilitator, &mut validator, &user, None).await;
    let job = submit(&facilitator, &mut validator, &user, None).await;
    validator.report(gone, JobStatus::Rejected).await.unwrap();
    receiver.receive(&clock, &user, gone, 1, "410 Gone").await;
    assert_eq!(state(&user, gone, "failed").await["attempts"], 1);
    // A token would expire meanwhile.
    let key = user
        .send(Method::POST, "/api/v1/keys/", Some(&json!({ "name": "late" })))
        .await;
    let key = read_json(key).await.1["key"].clone();
    let user = user.with_token(key.as_str().unwrap());
    validator.report(job, JobStatus::Rejected).await.unwrap();
    for attempt in 1..=MAX_ATTEMPTS {
        receiver
            .receive(&clock, &user, job, attempt, "503 Service Unavailable")
            .await;
    }
    let told = state(&user, job, "failed").await;
    assert_eq!(
        (&told["attempts"], &told["next_at"]),
        (&json!(MAX_ATTEMPTS), &Value::Null)
    );
}

#[tokio::test]
async fn addresses_inside_are_refused_and_so_is_a_job_without_a_secret() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let mut body = job_for(validator_key("Validator"));
    body["webhook"] = json!("https://hooks.example/ended");
    let (status, refused) = read_json(user.submit(&body, facilitator.now_ns()).await).await;
    assert_eq!(status, 400);
    assert!(
        refused["webhook"][0].as_str().unwrap().contains("secret"),
        "{refused}"
    );
    draw_secret(&user, None).await;
    for inside in [
        "http://127.0.0.1:8080/",
        "http://169.254.169.254/latest/",
        "http://[::1]/",
        "http://2130706433/",
        "ftp://hooks.example/",
        "https://user:password@hooks.example/",
        "https://hooks.example:22/",
        "no url",
    ] {
        body["webhook"] = json!(inside);
        let (status, refused) = read_json(user.submit(&body, facilitator.now_ns()).await).await;
        assert_eq!(
            (status, refused["webhook"].is_array()),
            (400, true),
            "{inside}: {refused}"
        );
        let put = user
            .send(Method::PUT, "/api/v1/webhook/", Some(&json!({ "url": inside })))
            .await;
        assert_eq!(put.status().as_u16(), 400, "{inside}");
    }
    // A name that leads inside is refused when it is resolved.
    let job = submit(
        &facilitator,
        &mut validator,
        &user,
        Some("http://localhost:8080/"),
    )
    .await;
    validator.report(job, JobStatus::Rejected).await.unwrap();
    begin_attempt(&clock, &user, job, 1).await;
    let told = state(&user, job, "failed").await;
    assert!(
        told["error"].as_str().unwrap().contains("public Internet"),
        "{told}"
    );
}

#[tokio::test]
async fn a_secret_is_shown_once_and_belongs_to_its_account() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let other = User::login(&facilitator, "Other").await;
    let get = async |user: &User| read_json(user.get("/api/v1/webhook/").send().await.unwrap()).await;
    assert_eq!(get(&user).await.0, 404);
    let secret = draw_secret(&user, Some("https://hooks.example/")).await;
    let (status, shown) = get(&user).await;
    assert_eq!((status, &shown["url"]), (200, &json!("https://hooks.example/")));
    assert!(!shown.to_string().contains(&secret.reveal()));
    let put = async |body: Value| {
        read_json(user.send(Method::PUT, "/api/v1/webhook/", Some(&body)).await)
            .await
            .1
    };
    assert!(
        put(json!({})).await.get("secret").is_none(),
        "the first one is kept"
    );
    let second = put(json!({ "new_secret": true })).await["secret"].clone();
    assert_ne!(second, json!(secret.reveal()));
    assert_eq!(get(&other).await.0, 404);
    let removed = user.send(Method::DELETE, "/api/v1/webhook/", None).await;
    assert_eq!(removed.status().as_u16(), 204);
    assert_eq!(get(&user).await.0, 404);
}

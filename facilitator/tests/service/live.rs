//! Following a job while it runs, and stopping it.

use futures_util::StreamExt as _;
use muster_protocol::rest::{LogEvent, ProgressEvent, StatusEntry};
use muster_protocol::wire::facilitator::FromFacilitator;
use muster_protocol::wire::facilitator::ResponseStatus;
use muster_protocol::wire::{decode, encode};
use muster_protocol::{JobId, JobStatus};
use muster_testbed::within;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, until, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

/// One event of a stream.
#[derive(Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// A client that follows a job.
pub(crate) struct Events {
    answer: futures_util::stream::BoxStream<'static, reqwest::Result<Vec<u8>>>,
    text: String,
}

impl Events {
    pub(crate) async fn follow(user: &User, job: JobId, last: Option<&str>) -> Self {
        let mut request = user.get(&format!("/api/v1/jobs/{job}/events/"));
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let answer = answer
            .bytes_stream()
            .map(|piece| piece.map(|bytes| bytes.to_vec()));
        Self {
            answer: answer.boxed(),
            text: String::new(),
        }
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find(|line| line.starts_with(name));
                    line.map(|line| line[name.len()..].trim_start().to_owned())
                };
                let event = field("event:").map(|name| Event {
                    id: field("id:").unwrap(),
                    name,
                    data: decode(&field("data:").unwrap()).unwrap(),
                });
                self.text = rest.to_owned();
                match event {
                    Some(event) => return Some(event),
                    // A comment that keeps the connection alive.
                    None => continue,
                }
            }
            let piece = within("an event", self.answer.next()).await?;
            self.text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
    }

    async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

fn status(event: &Event) -> JobStatus {
    assert_eq!(event.name, "status", "{event:?}");
    serde_json::from_value::<StatusEntry>(event.data.clone())
        .unwrap()
        .status
}

async fn log(validator: &mut Validator, job: JobId, offset: u64, data: &str) {
    let frame = json!({"message_type": "MusterJobLog", "uuid": job, "stream": "stdout", "offset": offset, "data": data});
    validator.socket.send(frame.to_string()).await.unwrap();
}

#[tokio::test]
async fn a_watcher_of_a_waiting_job_sees_its_place_until_the_job_starts() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    validator.job().await;
    validator.report(job, JobStatus::Received).await.unwrap();
    let place = |ahead: u64, estimate: Option<u64>| {
        json!({
            "class": "always_on.test", "ahead": ahead, "waiting": 12, "estimate_s": estimate,
            "why": "all 2 executors are at work",
        })
    };
    let told = |place: &serde_json::Value| {
        let mut message = place.clone();
        message["message_type"] = json!("MusterJobQueued");
        message["uuid"] = json!(job);
        message.to_string()
    };
    let mut events = Events::follow(&user, job, None).await;
    for expected in [JobStatus::Sent, JobStatus::Received] {
        assert_eq!(status(&events.next().await.unwrap()), expected);
    }
    for place in [place(2, Some(240)), place(0, None)] {
        validator.socket.send(told(&place)).await.unwrap();
        let event = events.next().await.unwrap();
        assert_eq!((event.name.as_str(), event.data), ("queued", place));
    }
    validator.report(job, JobStatus::Accepted).await.unwrap();
    assert_eq!(status(&events.next().await.unwrap()), JobStatus::Accepted);
    drop(events);
    validator.report(job, JobStatus::Completed).await.unwrap();
    let whole = Events::follow(&user, job, None).await.rest().await;
    assert!(
        whole.iter().all(|event| event.name == "status"),
        "its place is of the past"
    );
}

#[tokio::test]
async fn a_watcher_sees_statuses_output_and_progress_and_resumes_where_it_left() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    validator.job().await;
    let mut events = Events::follow(&user, job, None).await;
    let first = events.next().await.unwrap();
    assert_eq!((status(&first), first.id.as_str()), (JobStatus::Sent, "1-0"));

    validator.report(job, JobStatus::Accepted).await.unwrap();
    let accepted = events.next().await.unwrap();
    assert_eq!(status(&accepted), JobStatus::Accepted);
    // A character that is split between two pieces ("ż" is c5 bc) arrives whole.
    log(&mut validator, job, 0, "acU=").await;
    let event = events.next().await.unwrap();
    let piece: LogEvent = serde_json::from_value(event.data).unwrap();
    assert_eq!(
        (piece.text.as_str(), piece.offset, event.id.as_str()),
        ("i", 0, "2-1")
    );
    log(&mut validator, job, 2, "vHg=").await;
    let piece: LogEvent = serde_json::from_value(events.next().await.unwrap().data).unwrap();
    assert_eq!((piece.text.as_str(), piece.offset), ("żx", 1));
    let progress =
        json!({"message_type": "MusterJobProgress", "uuid": job, "of": "download", "done": 3, "total": 4});
    validator.socket.send(progress.to_string()).await.unwrap();
    let event = events.next().await.unwrap();
    let progress: ProgressEvent = serde_json::from_value(event.data).unwrap();
    assert_eq!(
        (event.name.as_str(), progress.done, progress.total),
        ("progress", 3, Some(4))
    );
    drop(events);

    // Output that arrives without a client is stored, and the last output comes before the end.
    log(&mut validator, job, 4, "eWVz").await;
    validator.report(job, JobStatus::Completed).await.unwrap();
    let resumed = Events::follow(&user, job, Some("2-2")).await.rest().await;
    let names: Vec<_> = resumed.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["log", "progress", "status"]);
    assert_eq!(resumed[0].data["text"], "yes");
    assert_eq!(status(&resumed[2]), JobStatus::Completed);
    let whole = Events::follow(&user, job, None).await.rest().await;
    assert_eq!(whole.len(), 3 + 1 + 3);

    // A client that has seen the end is asked not to reconnect.
    let path = format!("/api/v1/jobs/{job}/events/");
    let done = user
        .get(&path)
        .header("Last-Event-ID", &resumed[2].id)
        .send()
        .await
        .unwrap();
    assert_eq!(done.status(), StatusCode::NO_CONTENT);
    for odd in ["x", "1", "1-", "-1", "1-2-3", "é"] {
        let answer = user.get(&path).header("Last-Event-ID", odd).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{odd}");
    }
    let stranger = User::login(&facilitator, "Other").await;
    assert_eq!(
        stranger.get(&path).send().await.unwrap().status(),
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn live_output_for_another_validators_job_is_ignored() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let mut other = Validator::connect(&facilitator, "Other").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    validator.job().await;
    log(&mut other, job, 0, "bGll").await;
    // The messages of both validators are stored in order by the same task.
    other.is_idle().await;
    log(&mut validator, job, 0, "eWVz").await;
    validator.report(job, JobStatus::Failed).await.unwrap();
    let events = Events::follow(&user, job, None).await.rest().await;
    let logs: Vec<_> = events.iter().filter(|event| event.name == "log").collect();
    assert_eq!((logs.len(), &logs[0].data["text"]), (1, &json!("yes")));
}

#[tokio::test]
async fn a_watcher_goes_when_the_facilitator_stops_and_an_account_has_so_many() {
    let facilitator = Facilitator::start_with(
        std::sync::Arc::new(muster_process::SystemClock::new()),
        |config| {
            config.limits.watchers = 1;
        },
    )
    .await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    let mut events = Events::follow(&user, job, None).await;
    events.next().await.unwrap();
    let path = format!("/api/v1/jobs/{job}/events/");
    assert_eq!(read_json(user.get(&path).send().await.unwrap()).await.0, 429);
    drop(events);
    until(async || (user.get(&path).send().await.unwrap().status() == StatusCode::OK).then_some(())).await;
    let events = until(async || {
        let answer = user.get(&path).send().await.unwrap();
        (answer.status() == StatusCode::OK).then_some(answer)
    })
    .await;
    let (stopped, ended) = tokio::join!(facilitator.stop(), events.bytes());
    drop(stopped);
    assert!(ended.is_ok_and(|text| text.starts_with(b"event: status")));
}

async fn cancel(user: &User, job: JobId) -> (u16, Value) {
    let path = format!("/api/v1/jobs/{job}/cancel/");
    read_json(user.send(reqwest::Method::POST, &path, None).await).await
}

#[tokio::test]
async fn a_job_that_nobody_has_taken_ends_at_once_and_its_validator_is_told() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    let stranger = User::login(&facilitator, "Other").await;
    assert_eq!(cancel(&stranger, job).await.0, 404);
    let (status, view) = cancel(&user, job).await;
    assert_eq!((status, &view["status"]), (202, &json!("Rejected")));
    assert_eq!(cancel(&user, job).await.0, 202, "again is the same");
    assert_eq!(validator.job().await.uuid, job);
    assert_eq!(validator.cancelled().await, job);
    assert_eq!(
        validator.report(job, JobStatus::Received).await,
        Err("job.integrity_error".to_owned())
    );
    assert_eq!(
        validator.cancelled().await,
        job,
        "a validator that works on it is told again"
    );
    assert_eq!(user.job(job).await.last_status(), JobStatus::Rejected);
}

#[tokio::test]
async fn a_running_job_is_stopped_by_its_validator_also_after_it_was_away() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    validator.job().await;
    validator.report(job, JobStatus::Accepted).await.unwrap();
    let (status, view) = cancel(&user, job).await;
    assert_eq!((status, &view["status"]), (202, &json!("Accepted")));
    assert_eq!(validator.cancelled().await, job);
    drop(validator);
    let mut validator = Validator::dial(&facilitator).await;
    validator.authenticate("Validator").await;
    assert_eq!(validator.cancelled().await, job);
    validator.report(job, JobStatus::Failed).await.unwrap();
    assert_eq!(user.job(job).await.last_status(), JobStatus::Failed);
    assert_eq!(
        cancel(&user, job).await.0,
        202,
        "it was cancelled before it ended"
    );
    let other = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    validator.job().await;
    validator.report(other, JobStatus::Completed).await.unwrap();
    let (status, answer) = cancel(&user, other).await;
    assert_eq!(status, 409);
    assert!(
        answer["detail"].as_str().unwrap().contains("completed"),
        "{answer}"
    );
}

/// A ComputeHorde validator: it does not send Muster's header in the upgrade request.
#[tokio::test]
async fn nothing_of_ours_reaches_a_computehorde_validator_and_its_jobs_cannot_be_stopped() {
    use futures_util::SinkExt as _;
    use tokio_tungstenite::tungstenite::Message;

    let facilitator = Facilitator::start().await;
    let (mut socket, _) = tokio_tungstenite::connect_async(facilitator.socket_url())
        .await
        .unwrap();
    let auth = muster_identity::sign_facilitator_auth(&crate::facilitator::key("Validator"));
    let auth = encode(&muster_protocol::wire::facilitator::ToFacilitator::V0AuthenticationRequest(auth));
    socket.send(Message::text(auth)).await.unwrap();
    let answer = socket.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(answer.contains("success"), "{answer}");
    let user = User::login(&facilitator, "User").await;
    let job = until(async || {
        let answer = user
            .submit(&job_for(validator_key("Validator")), facilitator.now_ns())
            .await;
        (answer.status() == StatusCode::CREATED).then_some(answer)
    })
    .await;
    let job: muster_protocol::rest::JobView = job.json().await.unwrap();
    let frame = socket.next().await.unwrap().unwrap().into_text().unwrap();
    let FromFacilitator::Job(request) = decode(&frame).unwrap() else {
        panic!("{frame}")
    };
    assert_eq!(request.uuid, job.uuid);
    let update = json!({"message_type": "V0JobStatusUpdate", "uuid": job.uuid, "status": "accepted", "metadata": null});
    socket.send(Message::text(update.to_string())).await.unwrap();
    let answer = socket.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(answer.contains("success"), "{answer}");
    let (status, answer) = cancel(&user, job.uuid).await;
    assert_eq!(status, 409);
    assert!(
        answer["detail"].as_str().unwrap().contains("time limits"),
        "{answer}"
    );
    // The next frame answers the next update, so no other frame came in between.
    let update = update.to_string().replace("accepted", "completed");
    socket.send(Message::text(update)).await.unwrap();
    let answer = socket.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(answer.contains("success"), "{answer}");
}

#[tokio::test]
async fn a_programs_report_is_an_event_and_its_metrics_are_the_owners_to_read() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    validator.job().await;
    let mut events = Events::follow(&user, job, None).await;
    assert_eq!(status(&events.next().await.unwrap()), JobStatus::Sent);
    let path = format!("/api/v1/jobs/{job}/metrics/");
    let empty = user.get(&path).send().await.unwrap();
    assert_eq!(
        empty.json::<serde_json::Value>().await.unwrap(),
        json!({"newest": null, "series": []})
    );

    let report =
        json!({"epoch": 1, "epochs": 4, "step": 10, "metrics": {"loss": 0.5}, "elapsed_s": 30, "eta_s": 90});
    let message = json!({"message_type": "MusterJobMetrics", "uuid": job, "at": "2026-01-21T12:34:56Z", "report": report});
    validator.socket.send(message.to_string()).await.unwrap();
    let event = events.next().await.unwrap();
    assert_eq!((event.name.as_str(), &event.data["report"]), ("metrics", &report));
    let view: serde_json::Value = user.get(&path).send().await.unwrap().json().await.unwrap();
    assert_eq!(view["newest"]["report"], report);
    let series = &view["series"][0];
    assert_eq!(
        (
            &series["name"],
            &series["points"][0]["step"],
            &series["points"][0]["value"]
        ),
        (&json!("loss"), &json!(10), &json!(0.5))
    );
    let other = User::login(&facilitator, "Other").await;
    assert_eq!(
        other.get(&path).send().await.unwrap().status(),
        StatusCode::NOT_FOUND
    );

    let diverged = json!({"epoch": 2, "step": 20, "metrics": {"acc": 0.25}, "non_finite": {"loss": "NaN"}, "elapsed_s": 60});
    let message = json!({"message_type": "MusterJobMetrics", "uuid": job, "at": "2026-01-21T12:35:56Z", "report": diverged});
    validator.socket.send(message.to_string()).await.unwrap();
    let event = events.next().await.unwrap();
    let mut known = diverged.clone();
    known.as_object_mut().unwrap().remove("non_finite");
    assert_eq!(
        event.data["report"], known,
        "a client that shows no features would refuse the rest"
    );
    let view: serde_json::Value = user.get(&path).send().await.unwrap().json().await.unwrap();
    assert_eq!(view["newest"]["report"], known);
    let loss = &view["series"][1];
    assert_eq!(
        (&loss["name"], loss["points"].as_array().unwrap().len()),
        (&json!("loss"), 1)
    );
    let gap = &loss["non_finite"][0];
    assert_eq!((&gap["step"], &gap["value"]), (&json!(20), &json!("NaN")));
    let ours = user.get(&path).header("muster-features", "non-finite-metrics");
    let view: serde_json::Value = ours.send().await.unwrap().json().await.unwrap();
    assert_eq!(view["newest"]["report"], diverged);

    // A message that is none ends nothing.
    let broken = message.to_string().replace("0.25", "null");
    validator.socket.send(broken).await.unwrap();
    let refused = validator.response().await;
    assert_eq!(refused.status, ResponseStatus::Error, "{refused:?}");
}

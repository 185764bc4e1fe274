//! Users are notified of waiting jobs and of the subnet's offers; ComputeHorde's clients receive what they always have.

use std::sync::Arc;
use std::time::Duration;

use muster_process::TestClock;
use muster_protocol::{FeatureSet, JobId, JobStatus, MUSTER_FEATURES_HEADER};
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, until, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

/// Gets a page as a client that knows Muster's features.
async fn get(user: &User, path: &str) -> (u16, Value) {
    let shown = FeatureSet::ours().to_string();
    let request = user.get(path).header(MUSTER_FEATURES_HEADER, shown);
    read_json(request.send().await.unwrap()).await
}

async fn submit(facilitator: &Facilitator, validator: &mut Validator, user: &User) -> JobId {
    let body = job_for(validator_key("Validator"));
    let job = user.create(&body, facilitator.now_ns()).await.uuid;
    validator.job().await;
    validator.report(job, JobStatus::Received).await.unwrap();
    job
}

/// Reports the place of a job, and waits until the facilitator shows it.
async fn send_place_of(validator: &mut Validator, user: &User, job: JobId, ahead: u64) {
    let place = json!({
        "message_type": "MusterJobQueued", "uuid": job, "class": "always_on.test", "ahead": ahead, "waiting": 12,
        "estimate_s": 240, "why": "all 2 executors are at work",
    });
    validator.socket.send(place.to_string()).await.unwrap();
    until(async || {
        let (_, view) = get(user, &format!("/api/v1/jobs/{job}/")).await;
        (view["queue"]["position"] == ahead + 1).then_some(())
    })
    .await;
}

fn capacity(free: u64, waiting: u64) -> String {
    json!({
        "message_type": "MusterCapacity",
        "classes": [{
            "class": "always_on.test", "hardware": "8 cores, 16 GiB", "miners": 1, "executors": 2, "free": free,
            "running": 2 - free, "private_images": 1, "waiting": waiting,
            "next": [{"ahead": 1, "estimate_s": 60}, {"ahead": 3, "estimate_s": 120}],
            "why": "all 2 executors are at work",
        }],
        "limits": {"job_s": 5, "image_s": 4, "image_default_s": 3, "queue_s": 2, "queue_default_s": 1},
    })
    .to_string()
}

/// The offers once there are `count` of them.
async fn offers(user: &User, count: usize) -> Vec<Value> {
    until(async || {
        let (status, answer) = get(user, "/api/v1/subnet/").await;
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().unwrap().clone();
        (results.len() == count).then_some(results)
    })
    .await
}

#[tokio::test]
async fn a_waiting_job_has_its_place_for_clients_that_know_it_until_it_starts() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = submit(&facilitator, &mut validator, &user).await;
    let page = format!("/api/v1/jobs/{job}/");
    assert!(
        get(&user, &page).await.1.get("queue").is_none(),
        "no place was told"
    );
    send_place_of(&mut validator, &user, job, 2).await;
    let queue = get(&user, &page).await.1["queue"].clone();
    assert_eq!(
        (&queue["class"], &queue["waiting"], &queue["why"]),
        (
            &json!("always_on.test"),
            &json!(12),
            &json!("all 2 executors are at work")
        )
    );
    let view = user.job(job).await;
    assert_eq!(view.queue, None, "ComputeHorde's SDK sees what it always saw");
    let (_, plain) = read_json(user.get("/api/v1/jobs/").send().await.unwrap()).await;
    assert!(plain["results"][0].get("queue").is_none());
    let (_, listed) = get(&user, "/api/v1/jobs/").await;
    assert_eq!(listed["results"][0]["queue"], queue);
    let parsed: muster_protocol::rest::JobView = serde_json::from_value(get(&user, &page).await.1).unwrap();
    let parsed = parsed.queue.unwrap();
    let wait = parsed.estimated_start.unwrap().since(parsed.told_at);
    assert_eq!(wait, Duration::from_secs(240));

    // It starts, so its place is of the past.
    validator.report(job, JobStatus::Accepted).await.unwrap();
    assert!(get(&user, &page).await.1.get("queue").is_none());
    // The attempt fails and the job waits again; the next attempt repeats a status that the user has seen.
    send_place_of(&mut validator, &user, job, 0).await;
    let repeated = validator.report(job, JobStatus::Accepted).await;
    assert_eq!(repeated, Err("job.integrity_error".to_owned()));
    assert!(get(&user, &page).await.1.get("queue").is_none());
}

#[tokio::test]
async fn jobs_are_listed_by_status_and_by_whether_they_wait() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(submit(&facilitator, &mut validator, &user).await);
    }
    let [waiting, taken, done, lost] = jobs[..] else {
        panic!("four jobs")
    };
    send_place_of(&mut validator, &user, waiting, 0).await;
    for (job, status) in [
        (taken, JobStatus::Accepted),
        (done, JobStatus::Completed),
        (lost, JobStatus::HordeFailed),
    ] {
        validator.report(job, status).await.unwrap();
    }
    for (query, expected) in [
        ("status=queued", vec![waiting]),
        ("status=received", vec![waiting]),
        ("status=completed&status=horde_failed", vec![lost, done]),
        ("status=queued&status=accepted", vec![taken, waiting]),
        ("status=rejected", vec![]),
        ("", vec![lost, done, taken, waiting]),
    ] {
        let (status, page) = get(&user, &format!("/api/v1/jobs/?{query}")).await;
        let listed = page["results"].as_array().unwrap().iter();
        let listed: Vec<_> = listed.map(|job| job["uuid"].clone()).collect();
        let expected: Vec<_> = expected.iter().map(|job| json!(job)).collect();
        assert_eq!((status, &listed), (200, &expected), "{query}");
        assert_eq!(page["count"], expected.len(), "{query}");
    }
    // The filter travels in the links.
    let (_, first) = get(
        &user,
        "/api/v1/jobs/?status=completed&status=accepted&page_size=1",
    )
    .await;
    assert_eq!(
        first["next"],
        "/api/v1/jobs/?page=2&page_size=1&status=accepted&status=completed"
    );
    let (status, refused) = get(&user, "/api/v1/jobs/?status=finished").await;
    assert_eq!(status, 400);
    assert!(
        refused["status"][0].as_str().unwrap().contains("completed"),
        "{refused}"
    );
}

#[tokio::test]
async fn users_are_told_what_the_subnet_offers_and_the_place_that_they_would_get() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let (user, other) = (
        User::login(&facilitator, "User").await,
        User::login(&facilitator, "Other").await,
    );
    assert_eq!(offers(&user, 0).await, Vec::<Value>::new());
    let job = submit(&facilitator, &mut validator, &user).await;
    send_place_of(&mut validator, &user, job, 0).await;
    validator.socket.send(capacity(0, 3)).await.unwrap();
    let told = offers(&user, 1).await.remove(0);
    assert_eq!(told["validator"], json!(validator_key("Validator")));
    assert_eq!(told["limits"]["job_s"], 5);
    let class = &told["classes"][0];
    assert_eq!(
        (
            &class["executors"],
            &class["free"],
            &class["running"],
            &class["hardware"]
        ),
        (&json!(2), &json!(0), &json!(2), &json!("8 cores, 16 GiB"))
    );
    // The user has a job in the line, the other user has none.
    assert_eq!((&class["ahead"], &class["estimate_s"]), (&json!(3), &json!(120)));
    let class = offers(&other, 1).await[0]["classes"][0].clone();
    assert_eq!((&class["ahead"], &class["estimate_s"]), (&json!(1), &json!(60)));

    // A flood is held to one a second.
    validator.socket.send(capacity(1, 0)).await.unwrap();
    validator.report(job, JobStatus::Accepted).await.unwrap();
    assert_eq!(offers(&user, 1).await[0]["classes"][0]["free"], 0);
    clock.advance(Duration::from_secs(1));
    validator.socket.send(capacity(1, 0)).await.unwrap();
    validator.report(job, JobStatus::ExecutorReady).await.unwrap();
    assert_eq!(offers(&user, 1).await[0]["classes"][0]["free"], 1);

    // An old capacity is left out, and so is a validator that takes no jobs.
    clock.advance(Duration::from_secs(149));
    assert_eq!(offers(&user, 1).await.len(), 1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(offers(&user, 0).await.len(), 0);
}

#[tokio::test]
async fn only_the_connection_that_holds_the_jobs_tells_the_capacity() {
    let facilitator = Facilitator::start().await;
    let mut old = Validator::connect(&facilitator, "Validator").await;
    let mut new = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    old.socket.send(capacity(2, 0)).await.unwrap();
    let job = submit(&facilitator, &mut new, &user).await;
    // The answer to this shows that the old connection's frame before it was read.
    let refused = old.report(job, JobStatus::Accepted).await;
    assert_eq!(refused, Err("auth.another_connection".to_owned()));
    assert_eq!(offers(&user, 0).await.len(), 0);
    new.socket.send(capacity(1, 0)).await.unwrap();
    assert_eq!(offers(&user, 1).await[0]["classes"][0]["free"], 1);
}

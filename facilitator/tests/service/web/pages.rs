//! The pages and what they do: jobs from the form, live statuses, chats, files, and what browsers load.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use muster_protocol::JobStatus;
use muster_testbed::within;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::browser::Browser;
use crate::facilitator::{Facilitator, validator_key};
use crate::models::{Gateway, announced, notice};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

/// The most bytes that the first load of a page may have.
const MOST_WEIGHT: usize = 150 * 1024;

fn target() -> String {
    format!("{}/always_on.test", validator_key("Validator"))
}

/// The next event of a stream that contains `wanted`.
async fn event_with(answer: reqwest::Response, wanted: &str) -> String {
    let reading = async {
        let (mut stream, mut text) = (answer.bytes_stream(), String::new());
        while let Some(piece) = stream.next().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
            if text.contains(wanted) {
                return text;
            }
        }
        panic!("the stream ended with {text}");
    };
    within("an event of the stream", reading).await
}

#[tokio::test]
async fn every_page_is_closed_to_strangers_and_loads_nothing_foreign() {
    let facilitator = Facilitator::start().await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let mut stranger = Browser::open(&facilitator);
    let job = format!("/jobs/{job}");
    let (mut heaviest, mut assets) = (0, BTreeSet::new());
    for path in [
        "/",
        "/jobs",
        job.as_str(),
        "/jobs/new",
        "/chat",
        "/files",
        "/usage",
        "/keys",
    ] {
        assert!(
            stranger.get(path).await.leads_to().starts_with("/sign-in"),
            "{path}"
        );
        let answer = browser.get(path).await;
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        // The conversation's page checks proofs by a module; no page runs text as code.
        let scripts = if path == "/chat" {
            "script-src 'self' 'wasm-unsafe-eval'; style-src 'self';"
        } else {
            "script-src 'self'; style-src 'self';"
        };
        assert!(
            policy.starts_with(&format!("default-src 'none'; {scripts}")),
            "{path}: {policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("'unsafe"));
        assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
        let page = answer.html();
        assert_eq!(
            (page.one("html").get("lang"), page.all("main").count()),
            ("en", 1),
            "{path}"
        );
        assert_eq!(page.all("h1").count(), 1, "{path}");
        assert_eq!(
            page.all("a")
                .find(|link| link.get("class") == "skip")
                .unwrap()
                .get("href"),
            "#main"
        );
        for field in page
            .all("input")
            .chain(page.all("textarea"))
            .chain(page.all("select"))
        {
            let id = field.get("id");
            let labelled = page.all("label").any(|label| label.get("for") == id);
            let inside = ["hidden", "checkbox"].contains(&field.get("type"));
            assert!(
                inside || (!id.is_empty() && labelled),
                "{path}: {field:?} has a label"
            );
        }
        assets.extend(page.all("link").map(|link| link.get("href").to_owned()));
        assets.extend(page.all("script").map(|script| script.get("src").to_owned()));
        heaviest = heaviest.max(answer.text.len());
    }
    assert_eq!(assets.len(), 3, "{assets:?}");
    for path in &assets {
        let answer = stranger.get(path).await;
        assert_eq!(
            answer.headers["cache-control"],
            "public, max-age=31536000, immutable"
        );
        heaviest += answer.text.len();
    }
    assert!(heaviest <= MOST_WEIGHT, "{heaviest} bytes");
    assert_eq!(
        stranger.get("/assets/other.js").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_job_of_the_form_runs_once_and_can_be_run_again_and_cancelled() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let empty = browser.page("/jobs/new").await;
    let (name, target) = (empty.field("request_name").to_owned(), target());
    let fields = [
        ("request_name", name.as_str()),
        ("image", " alpine:latest "),
        ("command", "sh -c 'echo \"a  b\"'"),
        ("target", target.as_str()),
        ("minutes", "3"),
        ("env", "A=1\r\n\r\nB=x=y"),
        ("inputs", "data/a.txt=https://host.example/a"),
        ("outputs", "model.bin"),
    ];
    let first = browser.submit("/jobs", &fields).await;
    let path = first.leads_to().to_owned();
    let request = validator.job().await;
    assert!(
        muster_identity::verify_job(&request).is_ok(),
        "the facilitator has signed it"
    );
    assert_eq!(request.docker_image, "alpine:latest");
    assert_eq!(request.args, ["sh", "-c", "echo \"a  b\""]);
    assert_eq!(request.env.get_index(1).unwrap().1, "x=y");
    assert_eq!(
        (request.execution_time_limit, request.download_time_limit),
        (180, 300)
    );
    assert_eq!(
        browser.submit("/jobs", &fields).await.leads_to(),
        path,
        "one form, one job"
    );

    let again = browser
        .page(&format!("/jobs/new?from={}", path.rsplit_once('/').unwrap().1))
        .await;
    let value = |id: &str| again.by_id(id).get("value").to_owned();
    assert_eq!(value("image"), "alpine:latest");
    assert_eq!(
        shlex::split(&again.by_id("command").text).unwrap(),
        ["sh", "-c", "echo \"a  b\""]
    );
    assert_eq!(again.by_id("inputs").text, "data/a.txt=https://host.example/a");
    assert_eq!(again.by_id("outputs").text, "model.bin");
    assert_eq!(again.by_id("env").text, "A=1\nB=x=y");

    for (name, wrong, words) in [
        ("command", "'open", "quote that does not end"),
        ("minutes", "soon", "number of minutes"),
        ("env", "A", "NAME=VALUE"),
        ("inputs", "../a=https://h/a", "has a component"),
        ("inputs", "a=ftp://h/a", "URL or from file:ID"),
        ("target", "nobody", "class of executor"),
    ] {
        let mut with: Vec<_> = fields.into_iter().filter(|(field, _)| *field != name).collect();
        with.push((name, wrong));
        let refused = browser.submit("/jobs", &with).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{name}={wrong}");
        let page = refused.html();
        assert!(page.text().contains(words), "{words}: {}", page.text());
        assert_eq!(
            page.by_id("image").get("value"),
            "alpine:latest",
            "nothing has to be typed again"
        );
    }

    assert_eq!(
        browser.submit(&format!("{path}/cancel"), &[]).await.leads_to(),
        path
    );
    let ended = browser.page(&path).await;
    assert!(
        ended.by_id("head").text.contains("cancelled"),
        "{}",
        ended.by_id("head").text
    );
    let late = browser.submit(&format!("{path}/cancel"), &[]).await;
    assert!(
        late.status == StatusCode::CONFLICT || late.status == StatusCode::SEE_OTHER,
        "{late:?}"
    );
}

#[tokio::test]
async fn a_specification_is_taken_as_the_api_takes_it() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let spec = job_for(validator_key("Validator")).to_string();
    let made = browser.submit("/jobs/spec", &[("spec", spec.as_str())]).await;
    assert!(made.leads_to().starts_with("/jobs/"));
    assert_eq!(validator.job().await.docker_image, "alpine:latest");
    let wrong = browser
        .submit("/jobs/spec", &[("spec", "{\"docker_image\": 7}")])
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.html().text().contains("docker_image:"));
}

#[tokio::test]
async fn statuses_and_output_come_live() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let one = user.create(&body, facilitator.now_ns()).await.uuid;
    let two = user.create(&body, facilitator.now_ns()).await.uuid;
    validator.job().await;
    validator.job().await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let list = browser.page("/jobs").await;
    let open: Vec<_> = list
        .all("tr")
        .filter(|row| row.attributes.contains_key("data-open"))
        .collect();
    assert_eq!(open.len(), 2);

    let path = format!("/jobs/events?uuid={one}&uuid={two}");
    let follow = |browser: &Browser, path: &str| browser.request(Method::GET, path).send();
    let stream = follow(&browser, &path).await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    validator.report(two, JobStatus::Accepted).await.unwrap();
    let text = event_with(stream, "preparing").await;
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let news: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let last = news.last().unwrap();
    assert_eq!(
        (&last["uuid"], &last["kind"]),
        (&json!(two.to_string()), &json!("running"))
    );

    let stream = follow(&browser, &format!("/jobs/{two}/events")).await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    validator.report(two, JobStatus::ExecutorReady).await.unwrap();
    event_with(stream, "executor_ready").await;

    assert_eq!(browser.get("/jobs/events").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        browser.get("/jobs/events?uuid=x").await.status,
        StatusCode::NOT_FOUND
    );
    // Only the list of open jobs is left when one of them ends.
    validator.report(two, JobStatus::Rejected).await.unwrap();
    let stream = follow(&browser, &path).await.unwrap();
    event_with(stream, "\"ended\":true").await;
}

#[tokio::test]
async fn the_list_has_filters_and_pages() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    let mut jobs = Vec::new();
    for _ in 0..27 {
        jobs.push(user.create(&body, facilitator.now_ns()).await.uuid);
        validator.job().await;
    }
    validator.report(jobs[0], JobStatus::Rejected).await.unwrap();
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let rows = |page: &super::html::Html| {
        let rows = page
            .all("tr")
            .filter(|row| row.attributes.contains_key("data-job"));
        rows.map(|row| row.get("data-job").to_owned()).collect::<Vec<_>>()
    };
    let first = browser.page("/jobs").await;
    assert_eq!(rows(&first).len(), 25);
    let next = first
        .all("a")
        .find(|link| link.get("rel") == "next")
        .unwrap()
        .get("href");
    let second = browser.page(next).await;
    assert_eq!(rows(&second), [jobs[1].to_string(), jobs[0].to_string()]);
    assert_eq!(browser.get("/jobs?page=3").await.status, StatusCode::NOT_FOUND);
    let failed = browser.page("/jobs?status=failed").await;
    assert_eq!(rows(&failed), [jobs[0].to_string()]);
    assert!(failed.text().contains("1 jobs, page 1 of 1"));
    assert_eq!(
        rows(&browser.page("/jobs?status=open&page=2").await),
        [jobs[1].to_string()]
    );
    assert!(rows(&browser.page("/jobs?status=completed").await).is_empty());
}

#[tokio::test]
async fn keys_are_made_shown_once_and_revoked() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let fields = [("name", "laptop"), ("right", "read"), ("right", "jobs")];
    let made = browser.submit("/keys", &fields).await;
    assert_eq!(made.status, StatusCode::OK);
    let page = made.html();
    let secret = page.by_id("made-key").text.clone();
    let holder = user.with_token(&secret);
    assert_eq!(
        holder.get("/api/v1/jobs/").send().await.unwrap().status(),
        StatusCode::OK
    );
    assert_eq!(
        holder.get("/v1/models").send().await.unwrap().status(),
        StatusCode::FORBIDDEN
    );
    let later = browser.page("/keys").await;
    assert!(!later.text().contains(&secret) && later.text().contains("jobs, read"));
    let form = later
        .all("form")
        .find(|form| form.get("action").ends_with("/revoke"))
        .unwrap();
    assert_eq!(browser.submit(form.get("action"), &[]).await.leads_to(), "/keys");
    assert_eq!(
        holder.get("/api/v1/jobs/").send().await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );
    let nameless = browser.submit("/keys", &[("name", " "), ("right", "read")]).await;
    assert_eq!(nameless.status, StatusCode::BAD_REQUEST);
    assert!(nameless.html().text().contains("name:"));
}

#[tokio::test]
async fn a_file_goes_up_comes_down_and_goes() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let token = browser.token().await;
    let announce = browser
        .request(Method::POST, "/files")
        .header("muster-form-token", &token)
        .json(&json!({"name": "page.html", "size": 3}));
    let announced: Value = serde_json::from_str(&browser.send(announce).await.text).unwrap();
    let upload = announced["upload"].as_str().unwrap();
    assert!(upload.starts_with("/files/"), "{upload}");
    let put = browser.request(Method::PUT, upload).body("<b>");
    assert!(browser.send(put).await.status.is_success());
    let page = browser.page("/files").await;
    let link = page
        .all("a")
        .find(|link| link.get("href").ends_with("/download"))
        .unwrap();
    let content = browser.get(link.get("href")).await.leads_to().to_owned();
    let content = browser.get(&content).await;
    assert_eq!(content.text, "<b>");
    assert_eq!(content.headers["content-type"], "application/octet-stream");
    assert!(
        content.headers["content-disposition"]
            .to_str()
            .unwrap()
            .starts_with("attachment")
    );
    let form = page
        .all("form")
        .find(|form| form.get("action").ends_with("/delete"))
        .unwrap();
    assert_eq!(browser.submit(form.get("action"), &[]).await.leads_to(), "/files");
    assert!(browser.page("/files").await.text().contains("No files."));
    assert_eq!(browser.get(link.get("href")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_chat_goes_to_the_gateway_and_to_no_other_site() {
    let facilitator = Facilitator::start().await;
    let (gateway, url) = Gateway::open().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    validator.send_message(&notice(&url)).await;
    announced(&user).await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let page = browser.page("/chat").await;
    assert_eq!(page.one("option").get("value"), "org/tiny");
    let element = page
        .all("div")
        .find(|div| div.attributes.contains_key("data-chat"))
        .unwrap();
    let token = element.get("data-form-token").to_owned();
    let ask = json!({"model": "org/tiny", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let request = browser
        .request(Method::POST, "/chat/completions")
        .header("muster-form-token", token)
        .json(&ask);
    let answer = browser.send(request).await;
    assert_eq!(
        (answer.status, &answer.headers["x-request-id"]),
        (StatusCode::OK, &"a1".parse().unwrap())
    );
    assert!(answer.text.contains("hello"));
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    let heard = gateway.heard();
    assert!(
        heard[0]
            .0
            .keys()
            .all(|name| name != "cookie" && name != "muster-form-token")
    );
    assert_eq!(browser.get("/chat/proofs/a1").await.status, StatusCode::NOT_FOUND);
    let usage = read_json(user.get("/api/v1/usage/").send().await.unwrap())
        .await
        .1;
    assert_eq!(
        usage["results"][0]["requests"], 1,
        "it counts as a request of the account"
    );
    assert!(browser.page("/usage").await.text().contains("org/tiny"));
}

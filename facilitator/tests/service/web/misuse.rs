//! Forms of other sites, other accounts, and text that would like to be more than text.

use indexmap::IndexMap;
use muster_protocol::JobStatus;
use muster_protocol::wire::facilitator::{MinerResponse, StatusMetadata};
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::browser::Browser;
use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

const HOSTILE: &str =
    "</pre></textarea><script>alert(1)</script><img src=x onerror=alert(2)>\u{1b}[2J\u{202e}'\"&amp;";

#[tokio::test]
async fn a_form_without_its_token_changes_nothing() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let other = User::login(&facilitator, "Other").await;
    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let mut stranger = Browser::signed_in(&facilitator, &other).await;
    let (own, foreign) = (browser.token().await, stranger.token().await);
    assert_ne!(own, foreign);
    let id = "11111111-2222-4333-8444-555555555555";
    let forms = [
        "/jobs".to_owned(),
        "/jobs/spec".to_owned(),
        format!("/jobs/{id}/cancel"),
        "/keys".to_owned(),
        format!("/keys/key_{}/revoke", "0".repeat(32)),
        format!("/files/{id}/delete"),
        "/sign-out".to_owned(),
        "/sign-out/everywhere".to_owned(),
    ];
    let fields = [("name", "stolen"), ("right", "keys"), ("days", "9")];
    for path in &forms {
        for token in ["", "00", foreign.as_str()] {
            let mut with = vec![("form_token", token)];
            with.extend_from_slice(&fields);
            let answer = browser.post(path, &with).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
        }
        assert_eq!(
            browser.post(path, &fields).await.status,
            StatusCode::FORBIDDEN,
            "{path}"
        );
        // The right token in a request that another site has caused.
        let mut with = vec![("form_token", own.as_str())];
        with.extend_from_slice(&fields);
        let caused = browser.form(path, &with).header("sec-fetch-site", "cross-site");
        assert_eq!(browser.send(caused).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    for path in ["/chat/completions", "/files"] {
        let request = browser.request(Method::POST, path).json(&json!({"name": "x"}));
        assert_eq!(
            browser.send(request).await.status,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    let keys = read_json(user.get("/api/v1/keys/").send().await.unwrap()).await.1;
    assert_eq!(keys["results"], json!([]));
    assert_eq!(
        browser.get("/").await.status,
        StatusCode::OK,
        "it is still signed in"
    );

    // The sign-in too belongs to the browser that its form was made for.
    let mut visitor = Browser::open(&facilitator);
    let link = visitor.link_of(&user).await;
    let (secret, foreign) = (link.rsplit_once('=').unwrap().1, "0".repeat(64));
    for token in ["", foreign.as_str(), own.as_str()] {
        let fields = [("form_token", token), ("link", secret), ("key", "msk_")];
        for path in ["/sign-in/link", "/sign-in"] {
            assert_eq!(visitor.post(path, &fields).await.status, StatusCode::FORBIDDEN);
        }
    }
    assert_eq!(
        visitor.use_link(&link).await.leads_to(),
        "/",
        "no try has used the link"
    );
}

#[tokio::test]
async fn nothing_of_another_account_is_found() {
    let facilitator = Facilitator::start().await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = user
        .create(&job_for(validator_key("Validator")), facilitator.now_ns())
        .await
        .uuid;
    let made = user
        .send(Method::POST, "/api/v1/keys/", Some(&json!({"name": "own"})))
        .await;
    let key = read_json(made).await.1["id"].as_str().unwrap().to_owned();
    let made = user
        .send(
            Method::POST,
            "/api/v1/files/",
            Some(&json!({"name": "secret.txt"})),
        )
        .await;
    let file = read_json(made).await.1["id"].as_str().unwrap().to_owned();

    let hostile = User::login(&facilitator, "Hostile").await;
    let mut browser = Browser::signed_in(&facilitator, &hostile).await;
    let pages = [
        format!("/jobs/{job}"),
        format!("/jobs/{job}/events"),
        format!("/jobs/{job}/output/stdout"),
        format!("/jobs/{job}/artifacts/0"),
        format!("/jobs/events?uuid={job}"),
        format!("/jobs/new?from={job}"),
        format!("/files/{file}/download"),
        "/jobs/..%2F..%2Fkeys".to_owned(),
        "/jobs/x".to_owned(),
        "/files/..%2Fx/download".to_owned(),
        "/chat/proofs/..%2F..%2Fmodels".to_owned(),
    ];
    for path in &pages {
        let answer = browser.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {answer:?}");
        assert!(!answer.text.contains("alpine"), "{path}");
    }
    let forms = [
        format!("/jobs/{job}/cancel"),
        format!("/keys/{key}/revoke"),
        format!("/files/{file}/delete"),
    ];
    for path in &forms {
        assert_eq!(
            browser.submit(path, &[]).await.status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
    // A job of one's own that would take over another's inputs, or a file of another's.
    let target = format!("{}/always_on.test", validator_key("Validator"));
    let input = format!("a=file:{file}");
    for (name, value) in [("from", job.to_string()), ("inputs", input)] {
        let fields = [
            ("image", "i"),
            ("target", target.as_str()),
            ("minutes", "1"),
            (name, value.as_str()),
        ];
        let answer = browser.submit("/jobs", &fields).await;
        assert!(answer.status.is_client_error(), "{name}: {answer:?}");
    }
    for path in ["/", "/jobs", "/files", "/keys", "/usage"] {
        let page = browser.page(path).await;
        for foreign in [
            job.to_string(),
            key.clone(),
            file.clone(),
            "secret.txt".to_owned(),
        ] {
            assert!(!page.text().contains(&foreign), "{path}");
        }
    }
    assert_eq!(
        read_json(user.get("/api/v1/keys/").send().await.unwrap()).await.1["results"][0]["id"],
        json!(key)
    );
    assert_eq!(user.job(job).await.status, "Sent");
}

#[tokio::test]
async fn text_of_users_and_jobs_stays_text() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let mut body = job_for(validator_key("Validator"));
    body["args"] = json!([HOSTILE]);
    body["env"] = json!({"A<i>": HOSTILE});
    let job = user.create(&body, facilitator.now_ns()).await.uuid;
    validator.job().await;
    let result = MinerResponse {
        docker_process_stdout: format!("{HOSTILE}\r\n\u{1b}[31mred\u{1b}[0m"),
        docker_process_stderr: HOSTILE.to_owned(),
        artifacts: Some(IndexMap::from([(
            format!("/artifacts/{HOSTILE}.html"),
            "PGI+".to_owned(),
        )])),
        ..MinerResponse::default()
    };
    let metadata = StatusMetadata {
        miner_response: Some(result),
        ..StatusMetadata::default()
    };
    validator
        .report_with(job, JobStatus::Completed, Some(metadata))
        .await
        .unwrap();
    let key = json!({"name": HOSTILE.replace(['\u{1b}', '\u{202e}'], "")});
    assert_eq!(
        user.send(Method::POST, "/api/v1/keys/", Some(&key))
            .await
            .status(),
        StatusCode::CREATED
    );
    let file = json!({"name": "<b>file</b>.html"});
    assert_eq!(
        user.send(Method::POST, "/api/v1/files/", Some(&file))
            .await
            .status(),
        StatusCode::CREATED
    );

    let mut browser = Browser::signed_in(&facilitator, &user).await;
    let shown = HOSTILE.replace('\u{1b}', "␛").replace('\u{202e}', "\u{fffd}");
    let refused = browser.get(&format!("/jobs/new?from={job}")).await;
    assert_eq!(
        refused.status,
        StatusCode::CONFLICT,
        "no form holds an escape sequence"
    );
    body["args"] = json!(["sh", "-c", "echo '<b>'\nexit"]);
    body["env"] = json!({"A<i>": "</textarea><script>alert(1)</script>"});
    let plain = user.create(&body, facilitator.now_ns()).await.uuid;
    let again = format!("/jobs/new?from={plain}");
    for path in [
        "/",
        "/jobs",
        "/keys",
        "/files",
        &format!("/jobs/{job}"),
        again.as_str(),
    ] {
        // Reading checks that no element, attribute or script came from the text.
        let page = browser.page(path).await;
        assert_eq!(page.all("script").count(), 1, "{path}");
        assert_eq!(
            page.all("img").count() + page.all("b").count() + page.all("i").count(),
            0,
            "{path}"
        );
    }
    let page = browser.page(&format!("/jobs/{job}")).await;
    let streams: Vec<_> = page.all("pre").map(|pre| pre.text.as_str()).collect();
    assert_eq!(streams, [format!("{shown}\nred"), shown.clone()]);
    assert!(
        page.text().contains("<script>alert(1)</script>"),
        "{}",
        page.text()
    );
    // The form of another run has the text as it was.
    let form = browser.page(&again).await;
    assert_eq!(
        form.by_id("env").text,
        "A<i>=</textarea><script>alert(1)</script>"
    );
    let words = shlex::split(&form.by_id("command").text).unwrap();
    assert_eq!(words, ["sh", "-c", "echo '<b>'\nexit"]);

    // The raw bytes are never a page of this server.
    let raw = browser.get(&format!("/jobs/{job}/output/stdout")).await;
    assert_eq!(raw.headers["content-type"], "text/plain; charset=utf-8");
    let artifact = browser.get(&format!("/jobs/{job}/artifacts/0")).await;
    assert_eq!((artifact.status, artifact.text.as_str()), (StatusCode::OK, "<b>"));
    assert_eq!(artifact.headers["content-type"], "application/octet-stream");
    let disposition = artifact.headers["content-disposition"].to_str().unwrap();
    assert!(
        disposition.starts_with("attachment; filename*=UTF-8''") && !disposition.contains('<'),
        "{disposition}"
    );
    for answer in [raw, artifact] {
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert!(answer.headers.contains_key("content-security-policy"));
    }
}

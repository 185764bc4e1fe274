//! Deleting an account: with its name, without open jobs, and with all that it held.

use muster_protocol::JobStatus;
use muster_protocol::account_api::{AccountDeleted, AccountView};
use reqwest::Method;
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

const ACCOUNT: &str = "/api/v1/account/";

async fn delete(user: &User, confirm: &str) -> (u16, Value) {
    let path = format!("{ACCOUNT}?confirm={confirm}");
    read_json(user.send(Method::DELETE, &path, None).await).await
}

async fn shown(user: &User) -> AccountView {
    user.get(ACCOUNT).send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn a_login_after_the_deletion_of_its_account_starts_empty() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let other = User::login(&facilitator, "Other").await;
    let body = job_for(validator_key("Validator"));
    let name = user.keys.hotkey().to_string();
    let made = user
        .send(Method::POST, "/api/v1/keys/", Some(&json!({"name": "laptop"})))
        .await;
    let secret = read_json(made).await.1["key"].as_str().unwrap().to_owned();
    let file = json!({"name": "a.txt", "size": 7});
    let file = user.send(Method::POST, "/api/v1/files/", Some(&file)).await;
    let file = read_json(file).await.1;
    for owner in [&user, &other] {
        let job = owner.create(&body, facilitator.now_ns()).await;
        assert_eq!(validator.job().await.uuid, job.uuid);
        assert_eq!(validator.report(job.uuid, JobStatus::Received).await, Ok(()));
    }
    let view = shown(&user).await;
    assert_eq!(
        (
            view.account.as_str(),
            view.jobs,
            view.open_jobs,
            view.files,
            view.keys
        ),
        (name.as_str(), 1, 1, 1, 1)
    );

    let (status, answer) = delete(&user, "somebody").await;
    assert_eq!(status, 400);
    assert!(answer["detail"].as_str().unwrap().contains(&name), "{answer}");
    let holder = user.with_token(&secret);
    assert_eq!(
        delete(&holder, &name).await.0,
        403,
        "a key may not delete its owner"
    );
    let (status, answer) = delete(&user, &name).await;
    assert_eq!(status, 409);
    assert!(
        answer["detail"].as_str().unwrap().starts_with("1 jobs"),
        "{answer}"
    );

    let listed = read_json(user.get("/api/v1/jobs/").send().await.unwrap()).await.1;
    let job = listed["results"][0]["uuid"].as_str().unwrap().parse().unwrap();
    assert_eq!(validator.report(job, JobStatus::Failed).await, Ok(()));
    let (status, answer) = delete(&user, &name).await;
    assert_eq!(status, 200, "{answer}");
    let deleted: AccountDeleted = serde_json::from_value(answer).unwrap();
    assert_eq!(deleted.account, name);
    for table in ["jobs", "files", "api_keys"] {
        assert_eq!(deleted.deleted.get(table), Some(&1), "{table} in {deleted:?}");
    }
    assert!(deleted.stays.iter().any(|stays| stays.contains("receipts")));
    assert_eq!(holder.get(ACCOUNT).send().await.unwrap().status(), 401);

    let again = User::login(&facilitator, "User").await;
    let view = shown(&again).await;
    assert_eq!((view.jobs, view.files, view.keys), (0, 0, 0));
    for path in ["/api/v1/jobs/", "/api/v1/files/"] {
        let listed = read_json(again.get(path).send().await.unwrap()).await.1;
        assert_eq!(listed["count"], 0, "{path}");
    }
    let gone = reqwest::get(file["download_url"].as_str().unwrap())
        .await
        .unwrap();
    assert_eq!(gone.status(), 404, "signed URLs stop working");
    assert_eq!(
        again
            .get(&format!("/api/v1/jobs/{job}/"))
            .send()
            .await
            .unwrap()
            .status(),
        404
    );
    let kept = shown(&other).await;
    assert_eq!((kept.jobs, kept.open_jobs), (1, 1));
    assert_eq!(delete(&again, &name).await.0, 409, "once a day");
}

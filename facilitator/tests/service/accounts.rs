//! API keys, administrators, limits, and the audit log.

use std::sync::Arc;
use std::time::Duration;

use muster_process::{SystemClock, TestClock};
use muster_protocol::rest::JobView;
use muster_protocol::{JobStatus, UserKey};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::facilitator::{Facilitator, key, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

async fn make_key(user: &User, body: &Value) -> (u16, Value) {
    read_json(user.send(Method::POST, "/api/v1/keys/", Some(body)).await).await
}

#[tokio::test]
async fn a_key_does_what_a_token_does_until_it_is_revoked() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let (status, made) = make_key(&user, &json!({"name": " laptop "})).await;
    assert_eq!((status, &made["name"]), (201, &json!("laptop")));
    assert_eq!(made["account"], json!(user.keys.hotkey()));
    let secret = made["key"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("msk_") && secret.len() == 68);
    let listed = read_json(user.get("/api/v1/keys/").send().await.unwrap()).await.1;
    assert_eq!(listed["results"][0]["id"], made["id"]);
    assert!(!listed.to_string().contains(&secret), "a key is shown once");

    // A job submitted with an API key needs no signature: the facilitator signs, and the validator can check that.
    let holder = user.with_token(&secret);
    let body = job_for(validator_key("Validator"));
    let answer = holder
        .send(Method::POST, "/api/v1/job-docker/", Some(&body))
        .await;
    assert_eq!(answer.status(), StatusCode::CREATED);
    let job: JobView = answer.json().await.unwrap();
    let delivered = validator.job().await;
    assert!(muster_identity::verify_job(&delivered).is_ok());
    let health: Value = reqwest::get(facilitator.url("/health"))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(json!(delivered.signature.signatory), health["hotkey"]);
    assert_eq!(user.job(job.uuid).await.uuid, job.uuid, "it is the owner's job");
    // A signature sent with an API key must be the owner's.
    assert_eq!(
        holder.submit(&body, facilitator.now_ns()).await.status(),
        StatusCode::CREATED
    );
    let mut thief = User::login(&facilitator, "Other").await;
    thief.token.clone_from(&secret);
    assert_eq!(
        thief.submit(&body, facilitator.now_ns()).await.status(),
        StatusCode::UNAUTHORIZED
    );

    let path = format!("/api/v1/keys/{}/", made["id"].as_str().unwrap());
    let other = User::login(&facilitator, "Other").await;
    assert_eq!(
        other.send(Method::DELETE, &path, None).await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        user.send(Method::DELETE, &path, None).await.status(),
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        user.send(Method::DELETE, &path, None).await.status(),
        StatusCode::NOT_FOUND
    );
    let (status, answer) = read_json(holder.get("/api/v1/jobs/").send().await.unwrap()).await;
    assert_eq!(
        (
            status,
            answer["detail"].as_str().unwrap().starts_with("Invalid API key")
        ),
        (401, true)
    );
    for odd in ["msk_", "msk_zz", &format!("msk_{}", "0".repeat(64)), "key_1"] {
        let answer = user.with_token(odd).get("/api/v1/jobs/").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{odd}");
    }
}

#[tokio::test]
async fn an_administrator_lets_people_without_a_hotkey_in() {
    let admin_key = UserKey(key("Admin").hotkey());
    let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
        config.users = Some(Vec::new());
        config.administrators = vec![admin_key];
    })
    .await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let admin = User::login(&facilitator, "Admin").await;
    let (status, made) = make_key(&admin, &json!({"name": "phone", "account": "alice"})).await;
    assert_eq!((status, &made["account"]), (201, &json!("alice")));
    let alice = admin.with_token(made["key"].as_str().unwrap());
    let answer = alice
        .send(
            Method::POST,
            "/api/v1/job-docker/",
            Some(&job_for(validator_key("Validator"))),
        )
        .await;
    let job: JobView = answer.json().await.unwrap();
    validator.job().await;
    validator.report(job.uuid, JobStatus::Received).await.unwrap();
    assert_eq!(alice.job(job.uuid).await.last_status(), JobStatus::Received);
    let hidden = admin
        .get(&format!("/api/v1/jobs/{}/", job.uuid))
        .send()
        .await
        .unwrap();
    assert_eq!(hidden.status(), StatusCode::NOT_FOUND);

    // No API key administers, not even one of an administrator's account.
    let every = json!(["jobs", "chat", "files", "read", "keys"]);
    let (_, own) = make_key(&admin, &json!({"name": "own", "rights": every})).await;
    let by_key = admin.with_token(own["key"].as_str().unwrap());
    assert_eq!(
        make_key(&by_key, &json!({"name": "x", "account": "bob"})).await.0,
        403
    );
    assert_eq!(
        make_key(&alice, &json!({"name": "x", "account": "bob"})).await.0,
        403
    );
    assert_eq!(
        make_key(&admin, &json!({"name": "x", "account": "No Name"}))
            .await
            .0,
        400
    );
    assert_eq!(make_key(&admin, &json!({"name": ""})).await.0, 400);

    let log = read_json(admin.get("/api/v1/audit/").send().await.unwrap())
        .await
        .1;
    let lines: Vec<_> = log["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            (
                line["action"].as_str().unwrap(),
                line["account"].as_str().unwrap(),
            )
        })
        .collect();
    let admin_name = admin_key.to_string();
    assert_eq!(
        lines,
        [
            ("key.created", admin_name.as_str()),
            ("job.created", "alice"),
            ("key.created", &admin_name),
            ("login", &admin_name),
        ]
    );
    let own_log = read_json(alice.get("/api/v1/audit/?page_size=1").send().await.unwrap())
        .await
        .1;
    assert_eq!(
        (&own_log["count"], &own_log["results"][0]["subject"]),
        (&json!(1), &json!(job.uuid))
    );
    assert_eq!(own_log["results"][0]["credential"], made["id"]);
}

#[tokio::test]
async fn a_key_makes_no_keys_unless_it_may_and_takes_them_along_when_it_goes() {
    let facilitator = Facilitator::start().await;
    let user = User::login(&facilitator, "User").await;
    let (_, usual) = make_key(&user, &json!({"name": "usual"})).await;
    assert_eq!(usual["rights"], json!(["jobs", "chat", "files", "read"]));
    let holder = user.with_token(usual["key"].as_str().unwrap());
    // A stolen key can neither make another, nor revoke one, nor notify the thief of every job for ever.
    assert_eq!(make_key(&holder, &json!({"name": "mine"})).await.0, 403);
    let path = |key: &Value| format!("/api/v1/keys/{}/", key["id"].as_str().unwrap());
    let refused = holder.send(Method::DELETE, &path(&usual), None).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let hook = json!({"url": "https://thief.example/"});
    let refused = holder.send(Method::PUT, "/api/v1/webhook/", Some(&hook)).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    assert_eq!(holder.get("/api/v1/keys/").send().await.unwrap().status(), 200);

    let (_, maker) = make_key(
        &user,
        &json!({"name": "maker", "rights": ["keys", "jobs", "read"], "days": 2}),
    )
    .await;
    let by_maker = user.with_token(maker["key"].as_str().unwrap());
    let (status, beyond) = make_key(&by_maker, &json!({"name": "x", "rights": ["files"]})).await;
    assert_eq!(status, 400);
    assert!(
        beyond["rights"][0].as_str().unwrap().contains("files"),
        "{beyond}"
    );
    let (status, child) = make_key(&by_maker, &json!({"name": "child", "days": 3000})).await;
    assert_eq!((status, &child["rights"]), (201, &json!(["jobs", "read"])));
    assert_eq!(
        child["expires_at"], maker["expires_at"],
        "no day beyond its maker's"
    );
    let by_child = user.with_token(child["key"].as_str().unwrap());
    assert_eq!(by_child.get("/api/v1/jobs/").send().await.unwrap().status(), 200);
    let revoked = user.send(Method::DELETE, &path(&maker), None).await;
    assert_eq!(revoked.status(), StatusCode::NO_CONTENT);
    assert_eq!(by_child.get("/api/v1/jobs/").send().await.unwrap().status(), 401);
    assert_eq!(holder.get("/api/v1/jobs/").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_key_does_what_its_rights_say_and_nothing_else() {
    let facilitator = Facilitator::start().await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let job = job_for(validator_key("Validator"));
    let file = json!({"name": "a", "size": 1});
    let ask = json!({"model": "tiny", "messages": []});
    let calls: [(&str, Method, &str, Option<&Value>); 8] = [
        ("jobs", Method::POST, "/api/v1/job-docker/", Some(&job)),
        (
            "jobs",
            Method::POST,
            "/api/v1/jobs/11111111-2222-4333-8444-555555555555/cancel/",
            None,
        ),
        ("chat", Method::POST, "/v1/chat/completions", Some(&ask)),
        ("chat", Method::GET, "/v1/models", None),
        ("files", Method::POST, "/api/v1/files/", Some(&file)),
        ("files", Method::GET, "/api/v1/files/", None),
        ("read", Method::GET, "/api/v1/jobs/", None),
        ("read", Method::GET, "/api/v1/audit/", None),
    ];
    for right in ["jobs", "chat", "files", "read"] {
        let (_, made) = make_key(&user, &json!({"name": right, "rights": [right]})).await;
        let holder = user.with_token(made["key"].as_str().unwrap());
        for (needed, method, path, body) in &calls {
            let status = holder.send(method.clone(), path, *body).await.status();
            assert_eq!(
                status == StatusCode::FORBIDDEN,
                *needed != right,
                "{right}: {path} {status}"
            );
        }
        // Every key may see its account.
        assert_eq!(holder.get("/api/v1/account/").send().await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn a_key_ends_when_its_days_are_over() {
    let clock = TestClock::default();
    let facilitator = Facilitator::start_with(Arc::new(clock.clone()), |_| {}).await;
    let user = User::login(&facilitator, "User").await;
    let (_, made) = make_key(&user, &json!({"name": "short", "days": 1})).await;
    let holder = user.with_token(made["key"].as_str().unwrap());
    assert_eq!(holder.get("/api/v1/jobs/").send().await.unwrap().status(), 200);
    clock.advance(Duration::from_secs(86_400));
    let (status, answer) = read_json(holder.get("/api/v1/jobs/").send().await.unwrap()).await;
    assert_eq!(status, 401);
    assert!(
        answer["detail"].as_str().unwrap().contains("has ended"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_user_over_a_limit_is_refused_with_the_time_to_come_back() {
    let facilitator = Facilitator::start_with(Arc::new(SystemClock::new()), |config| {
        config.limits.requests_per_minute = 30;
        config.limits.strangers_per_minute = 6;
        config.limits.open_jobs = 2;
    })
    .await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let other = User::login(&facilitator, "Other").await;
    let body = job_for(validator_key("Validator"));
    for _ in 0..2 {
        user.create(&body, facilitator.now_ns()).await;
    }
    let over = user.submit(&body, facilitator.now_ns()).await;
    assert_eq!(over.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(over.headers().contains_key("retry-after"));
    other.create(&body, facilitator.now_ns()).await;

    let mut refused = None;
    for _ in 0..40 {
        let answer = user.get("/api/v1/keys/").send().await.unwrap();
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("forty requests in no time were all let through");
    let wait: u64 = refused.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    assert_eq!(
        other.get("/api/v1/keys/").send().await.unwrap().status(),
        StatusCode::OK
    );
    let mut nonces = Vec::new();
    for _ in 0..7 {
        nonces.push(
            reqwest::get(facilitator.url("/auth/nonce"))
                .await
                .unwrap()
                .status(),
        );
    }
    assert_eq!(nonces.last(), Some(&StatusCode::TOO_MANY_REQUESTS));
}

/// Asks with an API key for the client of a proxy.
async fn ask_through_proxy(user: &User, key: &str, client: &str) -> u16 {
    let request = user.with_token(key).get("/api/v1/keys/");
    let answer = request.header("x-forwarded-for", client).send().await.unwrap();
    answer.status().as_u16()
}

#[tokio::test]
async fn wrong_keys_are_paced_by_network_and_right_ones_are_not() {
    let facilitator = Facilitator::start_with(Arc::new(TestClock::default()), |config| {
        config.limits.failures_per_minute = 4;
        config.http.trusted_proxies = vec!["127.0.0.1".to_owned()];
    })
    .await;
    let user = User::login(&facilitator, "User").await;
    let (_, made) = make_key(&user, &json!({"name": "laptop"})).await;
    let (_, unused) = make_key(&user, &json!({"name": "phone"})).await;
    let [right, unused] = [made, unused].map(|key| key["key"].as_str().unwrap().to_owned());
    assert_eq!(ask_through_proxy(&user, &right, "2001:db8::1").await, 200);
    for attempt in 0..4 {
        let wrong = format!("msk_{}", format!("{attempt:02}").repeat(32));
        let status = ask_through_proxy(&user, &wrong, &format!("2001:db8::{attempt}")).await;
        assert_eq!(status, 401);
    }
    let wrong = format!("msk_{}", "ff".repeat(32));
    assert_eq!(ask_through_proxy(&user, &wrong, "2001:db8::77").await, 429);
    assert_eq!(
        ask_through_proxy(&user, "no token at all", "2001:db8::77").await,
        429
    );
    assert_eq!(ask_through_proxy(&user, &unused, "2001:db8::77").await, 429);
    // A key that was right and a login's token are served from the same network, everything from another one.
    assert_eq!(ask_through_proxy(&user, &right, "2001:db8::77").await, 200);
    assert_eq!(ask_through_proxy(&user, &user.token, "2001:db8::77").await, 200);
    assert_eq!(ask_through_proxy(&user, &wrong, "2001:db8:0:1::77").await, 401);
    assert_eq!(ask_through_proxy(&user, &unused, "192.0.2.7").await, 200);
}

#[tokio::test]
async fn strangers_behind_a_proxy_are_paced_each_by_itself() {
    let facilitator = Facilitator::start_with(Arc::new(TestClock::default()), |config| {
        config.limits.strangers_per_minute = 1;
        config.http.trusted_proxies = vec!["127.0.0.0/8".to_owned()];
    })
    .await;
    let http = reqwest::Client::new();
    let ask = async |clients: &str| {
        let request = http.get(facilitator.url("/auth/nonce"));
        let answer = request.header("x-forwarded-for", clients).send().await.unwrap();
        answer.status().as_u16()
    };
    assert_eq!(ask("192.0.2.1").await, 200);
    assert_eq!(ask("192.0.2.2").await, 200);
    // The client itself wrote the first address.
    assert_eq!(ask("192.0.2.9, 192.0.2.1").await, 429);
    assert_eq!(ask("2001:db8::1").await, 200);
    assert_eq!(ask("2001:db8::2").await, 429);
}

#[tokio::test]
async fn a_client_may_name_its_requests() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let (_, made) = make_key(&user, &json!({"name": "a"})).await;
    let holder = user.with_token(made["key"].as_str().unwrap());
    let body = job_for(validator_key("Validator"));
    let post = async |name: &str| {
        let request = holder.request(Method::POST, "/api/v1/job-docker/", Some(&body));
        read_json(request.header("Idempotency-Key", name).send().await.unwrap()).await
    };
    let first = post("one").await;
    let delivered = validator.job().await;
    assert_eq!((first.0, &first.1["uuid"]), (201, &json!(delivered.uuid)));
    assert_eq!(post("one").await.1["uuid"], first.1["uuid"]);
    assert_ne!(post("two").await.1["uuid"], first.1["uuid"]);
    assert_eq!(post(&"x".repeat(256)).await.0, 400);
}

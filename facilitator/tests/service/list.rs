//! Pages of jobs.

use serde_json::{Value, json};

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, read_json};
use crate::validator::Validator;

async fn page(user: &User, query: &str) -> (u16, Value) {
    read_json(user.get(&format!("/api/v1/jobs/{query}")).send().await.unwrap()).await
}

#[tokio::test]
async fn pages_follow_one_another_newest_first_and_end_in_404() {
    let facilitator = Facilitator::start().await;
    let _validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let other = User::login(&facilitator, "Other").await;
    let empty = page(&user, "").await;
    assert_eq!(
        empty,
        (
            200,
            json!({"count": 0, "next": null, "previous": null, "results": []})
        )
    );

    let body = job_for(validator_key("Validator"));
    let mut made = Vec::new();
    for _ in 0..23 {
        made.push(user.create(&body, facilitator.now_ns()).await.uuid.to_string());
    }
    other.create(&body, facilitator.now_ns()).await;
    made.reverse();

    let mut seen = Vec::new();
    let mut number = 1;
    loop {
        let (status, answer) = page(&user, &format!("?page={number}&page_size=10")).await;
        assert_eq!((status, &answer["count"]), (200, &json!(23)));
        assert_eq!(answer["previous"].is_null(), number == 1);
        for job in answer["results"].as_array().unwrap() {
            seen.push(job["uuid"].as_str().unwrap().to_owned());
            assert_eq!(job["status_history"][0]["status"], "sent");
        }
        if answer["next"].is_null() {
            break;
        }
        number += 1;
    }
    assert_eq!((number, &seen), (3, &made));
    let past = page(&user, "?page=4&page_size=10").await;
    assert_eq!(past, (404, json!({"detail": "Invalid page."})));
    for odd in ["?page=0", "?page=x", "?page=18446744073709551615", "?page=-1"] {
        assert_eq!(page(&user, odd).await.0, 404, "{odd}");
    }
    assert_eq!(
        page(&user, "?page_size=256").await.1["results"]
            .as_array()
            .unwrap()
            .len(),
        23
    );
    assert_eq!(
        page(&user, "?page_size=0").await.1["results"]
            .as_array()
            .unwrap()
            .len(),
        10
    );
    assert_eq!(page(&other, "").await.1["count"], json!(1));
}

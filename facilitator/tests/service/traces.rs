//! The context of a trace: from a request's header to the validator.

use muster_protocol::TraceParent;
use muster_protocol::trace::{TRACEPARENT_HEADER, context_for_validator};

use crate::facilitator::{Facilitator, validator_key};
use crate::user::{User, job_for, signature_headers};
use crate::validator::Validator;

const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

#[tokio::test]
async fn a_users_context_reaches_the_validator_and_a_hostile_one_is_none() {
    let facilitator = Facilitator::start().await;
    let mut validator = Validator::connect(&facilitator, "Validator").await;
    let user = User::login(&facilitator, "User").await;
    let body = job_for(validator_key("Validator"));
    for (number, sent) in [Some(EXAMPLE), None, Some("<script>alert(1)</script>")]
        .into_iter()
        .enumerate()
    {
        let now = facilitator.now_ns() + i64::try_from(number).unwrap();
        let mut headers = signature_headers(&user.sign(&body, now));
        headers.extend(sent.map(|sent| (TRACEPARENT_HEADER, sent.to_owned())));
        let answer = user.post(serde_json::to_vec(&body).unwrap(), &headers).await;
        assert_eq!(answer.status(), 201, "{sent:?}");
        let delivered = validator.job().await;
        let told = delivered.muster.as_ref().unwrap().traceparent.unwrap();
        let read: Option<TraceParent> = sent.and_then(|sent| sent.parse().ok());
        assert_eq!(told, context_for_validator(read, delivered.uuid));
        assert_eq!(read.is_some(), number == 0, "{sent:?}");
    }
}

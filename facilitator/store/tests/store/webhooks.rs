//! Webhooks in the store: one message a job, durable, claimed by one facilitator.

use std::time::Duration;

use muster_protocol::rest::WebhookState;
use muster_webhooks::message::{NextStep, WebhookSecret};

use super::*;

fn secret(seed: u8) -> WebhookSecret {
    WebhookSecret::from_bytes([seed; 32])
}

#[tokio::test]
async fn a_message_is_due_with_the_end_of_its_job_and_sent_by_one_facilitator() {
    for (test, store) in engines().await {
        let (validator, webhooks) = (validator_key("Validator"), store.webhooks());
        let (first, second, unnamed) = (job("User", 1), job("User", 2), job("User", 3));
        let owner = actor(&first);
        create(&store, validator, &unnamed, at(0)).await;
        let set = store
            .set_account_webhook(&owner, Some("https://h/account"), &secret(1), false, at(0))
            .await
            .unwrap();
        assert_eq!(set, Some(secret(1)), "{}", test.engine);
        create(&store, validator, &first, at(1)).await;
        let submission = JobSubmission {
            actor: &owner,
            validator,
            request: &second,
            idempotency: None,
            quota: JobQuota::NONE,
            webhook: Some("https://h/own"),
            tag: "",
        };
        assert_eq!(store.create(submission, at(2)).await.unwrap(), JobCreation::New);
        let waiting = webhooks.webhook_delivery(first.uuid).await.unwrap().unwrap();
        assert_eq!(
            (waiting.state, waiting.attempts, waiting.next_at),
            (WebhookState::Waiting, 0, None)
        );
        assert_eq!(webhooks.webhook_delivery(unnamed.uuid).await.unwrap(), None);
        assert!(webhooks.due_messages(4, at(9)).await.unwrap().is_empty());

        for (job, second) in [(&second, 10), (&first, 11), (&unnamed, 12)] {
            let ended = update(job.uuid, JobStatus::Completed);
            assert_eq!(
                store.record(validator, &ended, at(second)).await.unwrap(),
                UpdateOutcome::Recorded
            );
        }
        let due = webhooks.due_messages(4, at(20)).await.unwrap();
        let urls: Vec<_> = due.iter().map(|message| message.url.as_str()).collect();
        assert_eq!(urls, ["https://h/own", "https://h/account"]);
        assert_eq!(webhooks.due_messages(1, at(20)).await.unwrap().len(), 1);
        // Of two facilitators one sends it, and the other tries only after a minute.
        assert!(webhooks.claim_message(&due[0], at(20)).await.unwrap());
        assert!(!webhooks.claim_message(&due[0], at(20)).await.unwrap());
        assert_eq!(webhooks.due_messages(4, at(79)).await.unwrap(), due[1..]);
        let again = webhooks.due_messages(4, at(80)).await.unwrap();
        assert_eq!(
            again
                .iter()
                .find(|message| message.job == second.uuid)
                .unwrap()
                .attempts,
            1
        );

        let later = NextStep::Retry(Duration::from_secs(30), "the receiver answered 500".to_owned());
        webhooks.note_attempt(second.uuid, &later, at(21)).await.unwrap();
        let told = webhooks.webhook_delivery(second.uuid).await.unwrap().unwrap();
        assert_eq!(
            (told.state, told.attempts, told.next_at),
            (WebhookState::Due, 1, Some(at(51)))
        );
        assert_eq!(told.error.as_deref(), Some("the receiver answered 500"));
        webhooks
            .note_attempt(second.uuid, &NextStep::Delivered, at(52))
            .await
            .unwrap();
        // A delivered message stays so.
        webhooks.note_attempt(second.uuid, &later, at(53)).await.unwrap();
        let told = webhooks.webhook_delivery(second.uuid).await.unwrap().unwrap();
        assert_eq!((told.state, told.error), (WebhookState::Delivered, None));

        assert!(store.remove_account_webhook(&owner, at(60)).await.unwrap());
        assert!(!store.remove_account_webhook(&owner, at(61)).await.unwrap());
        let told = webhooks.webhook_delivery(first.uuid).await.unwrap().unwrap();
        assert_eq!(told.state, WebhookState::Failed);
        assert!(webhooks.due_messages(4, at(1_000)).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_secret_is_replaced_only_on_request() {
    for (test, store) in engines().await {
        let owner = actor(&job("User", 1));
        let set = async |url, drawn: &WebhookSecret, replace| {
            store
                .set_account_webhook(&owner, url, drawn, replace, at(0))
                .await
                .unwrap()
        };
        assert_eq!(
            set(None, &secret(1), false).await,
            Some(secret(1)),
            "{}",
            test.engine
        );
        assert_eq!(set(Some("https://h/"), &secret(2), false).await, None);
        let kept = store
            .webhooks()
            .account_webhook(&owner.account.to_string())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (kept.secret, kept.url.as_deref()),
            (secret(1), Some("https://h/"))
        );
        assert_eq!(set(None, &secret(3), true).await, Some(secret(3)));
        let kept = store
            .webhooks()
            .account_webhook(&owner.account.to_string())
            .await
            .unwrap()
            .unwrap();
        assert_eq!((kept.secret, kept.url), (secret(3), None));
    }
}

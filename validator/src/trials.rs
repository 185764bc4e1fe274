//! Trials: after a failure that a user's job may have provoked, the validator runs its own small known image at that
//! miner. [`TrialSchedule`](muster_routing::trials::TrialSchedule) decides when, and the mark of the attempt what the
//! end is worth; this part orders the jobs.

use std::sync::Arc;

use muster_identity::{Keypair, sign_job, sign_terms};
use muster_own_jobs::{OwnJobs, TRIAL_NAMESPACE};
use muster_protocol::job::JobTerms;
use muster_protocol::wire::facilitator::{
    BittensorSignature, JobNew, JobRequestTag, SignatureScope, UserJobRequest, UserSignature,
};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{Digest, ExecutorClass, Hotkey, JobId, Signature, Timestamp, UserKey};
use muster_store::StoreError;
use uuid::Uuid;

use crate::config::TrialConfig;
use crate::driver::MinerRecords;
use crate::validator_state::ValidatorState;

/// The limits of a trial in seconds: for fetching the image, and for each stage of the job.
const IMAGE_SECS: u64 = 60;
const STAGE_SECS: u64 = 20;

/// Runs the trials that are due, until the validator stops. Without a known image there are none.
///
/// # Errors
/// None: a trial that does not begin shows nothing.
pub(crate) async fn run(
    state: Arc<ValidatorState>,
    records: Arc<MinerRecords>,
    own_jobs: OwnJobs,
) -> Result<(), StoreError> {
    let trial = &state.config.routing.trial;
    let Some(image) = &trial.image else {
        tracing::info!(
            "no image for trials (routing.trial.image): what an executor reports of a user's job keeps no miner from jobs"
        );
        return Ok(());
    };
    let stop = state.tasks.token();
    loop {
        let now = state.clock.now();
        for (miner, class) in records.begin_trials() {
            let request = trial_job(trial, image, class, &state.keypair, now);
            let (records, own_jobs) = (Arc::clone(&records), own_jobs.clone());
            state.spawn("trial", async move {
                let job = request.uuid;
                if let Err(reason) = own_jobs.run(request, Some(miner)).await {
                    tracing::debug!(%job, %miner, reason, "a trial did not begin");
                }
                records.end_trial(miner);
                Ok(())
            });
        }
        let due = async {
            match records.next_trial() {
                Some(at) => state.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = records.trials_changed() => {}
            () = due => {}
        }
    }
}

/// The job of a trial, in the form of a user's. The account that the miner is shown is drawn for each.
fn trial_job(
    trial: &TrialConfig,
    image: &str,
    class: ExecutorClass,
    validator: &Keypair,
    now: Timestamp,
) -> UserJobRequest {
    let id = Uuid::new_v4();
    let mut job = UserJobRequest {
        signature: UserSignature {
            signature_type: BittensorSignature,
            signatory: UserKey(validator.hotkey()),
            timestamp_ns: 0,
            signature: Signature::from_bytes([0; 64]),
            signature_scope: SignatureScope::SignedFields,
        },
        r#type: JobNew,
        message_type: JobRequestTag,
        uuid: JobId::from_uuid(id),
        job_namespace: Some(TRIAL_NAMESPACE.to_owned()),
        executor_class: class,
        docker_image: image.to_owned(),
        args: trial.args.clone(),
        env: Default::default(),
        use_gpu: class.has_gpu(),
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        on_trusted_miner: false,
        download_time_limit: STAGE_SECS,
        execution_time_limit: STAGE_SECS,
        upload_time_limit: STAGE_SECS,
        streaming_start_time_limit: 0,
        streaming_details: None,
        muster: None,
    };
    job.signature = sign_job(
        validator,
        &job.signed_fields(),
        now.micros().saturating_mul(1_000),
    );
    let terms = JobTerms {
        image_time_limit: Some(IMAGE_SECS),
        ..JobTerms::default()
    };
    let account = Hotkey::from_bytes(*Digest::of(Uuid::new_v4().as_bytes()).as_bytes());
    job.muster = Some(Box::new(JobExtension {
        account: Some(account.to_string()),
        signature: Some(sign_terms(validator, &terms, &job.signed_digest())),
        terms: Some(terms),
        ..JobExtension::default()
    }));
    job.begin_trace();
    job
}

#[cfg(test)]
mod tests {
    use muster_identity::verify_job;

    use super::*;

    #[test]
    fn the_job_of_a_trial_is_the_validators_and_shows_another_account_each_time() {
        let validator = Keypair::from_uri("//Validator").unwrap();
        let trial = TrialConfig {
            image: Some("hello".to_owned()),
            args: vec!["words".to_owned()],
        };
        let job = || {
            let now = Timestamp::from_secs(1_769_000_000);
            trial_job(&trial, "hello", ExecutorClass::AlwaysOnTest, &validator, now)
        };
        let (one, two) = (job(), job());
        assert!(verify_job(&one).is_ok());
        assert_eq!(one.signature.signatory.0, validator.hotkey());
        assert_ne!(one.account(), two.account());
        assert_ne!(one.account(), validator.hotkey().to_string());
        assert_ne!(one.uuid, two.uuid);
        assert_eq!((&one.docker_image, &one.args), (&two.docker_image, &two.args));
    }
}

//! The job by which a user's job is run again: the validator's own, on its own miner, and without destinations.

use muster_identity::{Keypair, sign_job, sign_terms};
use muster_protocol::job::JobTerms;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{JobId, Timestamp};

/// The namespace of jobs that are run again. They are the validator's own, so nobody is billed for them.
pub const CROSS_CHECK_NAMESPACE: &str = "muster.cross-check";

/// Writes and signs the job that runs `original` again on the validator's own miner. It uploads nothing: the user's
/// outputs stay as they are.
pub fn rerun_job(
    original: &UserJobRequest,
    id: JobId,
    validator: &Keypair,
    now: Timestamp,
) -> UserJobRequest {
    let mut job = UserJobRequest {
        uuid: id,
        job_namespace: Some(CROSS_CHECK_NAMESPACE.to_owned()),
        on_trusted_miner: true,
        output_upload: None,
        muster: None,
        ..original.clone()
    };
    let now_ns = now.micros().saturating_mul(1_000);
    job.signature = sign_job(validator, &job.signed_fields(), now_ns);
    job.muster = image_terms(original).map(|(terms, registry)| {
        Box::new(JobExtension {
            signature: Some(sign_terms(validator, &terms, &job.signed_digest())),
            terms: Some(terms),
            registry,
            ..JobExtension::default()
        })
    });
    job
}

/// The part of the user's terms that the image and the program need.
fn image_terms(
    original: &UserJobRequest,
) -> Option<(JobTerms, Option<muster_protocol::job::SealedCredentials>)> {
    original.muster.as_ref()?;
    let terms = original.terms();
    let kept = JobTerms {
        image_time_limit: terms.image_time_limit,
        image_archive: terms.image_archive,
        start: terms.start,
        ..JobTerms::default()
    };
    Some((kept, original.sealed_credentials().cloned()))
}

#[cfg(test)]
mod tests {
    use muster_identity::verify_job;
    use muster_protocol::Signature;
    use muster_protocol::job::{MetricRule, ProgramStart};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_job_is_run_again_as_the_validators_own_without_its_destinations_and_its_declaration() {
        let (user, validator) = (
            Keypair::from_uri("//User").unwrap(),
            Keypair::from_uri("//Validator").unwrap(),
        );
        let value = json!({
            "signature": {
                "signature_type": "bittensor", "signatory": user.hotkey(), "timestamp_ns": 1,
                "signature": Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
            },
            "uuid": Uuid::from_u128(1), "executor_class": "always_on.test", "docker_image": "alpine",
            "args": ["x"], "env": {"A": "b"}, "use_gpu": false, "artifacts_dir": "/artifacts",
            "output_upload": {"output_upload_type": "zip_and_http_put", "url": "http://127.0.0.1/out"},
            "download_time_limit": 1, "execution_time_limit": 2, "upload_time_limit": 3,
            "streaming_start_time_limit": 0,
        });
        let mut original: UserJobRequest = serde_json::from_value(value).unwrap();
        original.muster = Some(Box::new(JobExtension {
            account: Some("somebody".to_owned()),
            terms: Some(JobTerms {
                deterministic: true,
                image_time_limit: Some(7),
                start: Some(ProgramStart {
                    entrypoint: Some("sh".to_owned()),
                    ..ProgramStart::default()
                }),
                metrics: vec![MetricRule {
                    name: "loss".parse().unwrap(),
                    pattern: "x".to_owned(),
                }],
                ..JobTerms::default()
            }),
            ..JobExtension::default()
        }));
        let id = JobId::from_uuid(Uuid::from_u128(2));
        let job = rerun_job(&original, id, &validator, Timestamp::from_secs(1_769_000_000));
        assert!(verify_job(&job).is_ok());
        assert_eq!(job.signature.signatory.0, validator.hotkey());
        assert_eq!((job.uuid, job.on_trusted_miner), (id, true));
        assert_eq!(job.output_upload, None);
        assert_eq!((&job.args, &job.env), (&original.args, &original.env));
        assert_eq!(job.artifacts_dir.as_deref(), Some("/artifacts"));
        let terms = job.terms();
        assert_eq!((terms.deterministic, terms.image_time_limit), (false, Some(7)));
        assert!(terms.metrics.is_empty());
        assert_eq!(terms.start, original.terms().start, "the same program");
        assert_eq!(job.account(), validator.hotkey().to_string());
    }
}

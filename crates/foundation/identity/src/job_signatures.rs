//! Signatures of jobs: those of their users, and those that validators and miners make while a job runs.

use muster_protocol::job::JobTerms;
use muster_protocol::wire::facilitator::{
    BittensorSignature, CheatReport, SignatureScope, UserJobRequest, UserSignature,
};
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::wire::signing::{
    SignedFrame, SignedJobFields, full_request_digest, full_request_object_digest, streaming_ready,
    with_validator_signature,
};
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{AttemptId, MinerKey, Signature, UserKey, ValidatorKey};
use serde_json::{Value, json};

use crate::key::Keypair;
use crate::signing_message::SigningMessage;
use crate::verified::Verified;
use crate::verify::{Party, VerifyError, require, verify};

/// Signs a job as its user. `timestamp_ns` is in unix nanoseconds by the user's clock.
pub fn sign_job(user: &Keypair, fields: &SignedJobFields, timestamp_ns: i64) -> UserSignature {
    UserSignature {
        signature_type: BittensorSignature,
        signatory: UserKey(user.hotkey()),
        timestamp_ns,
        signature: user.sign(&SigningMessage::built(fields.digest(timestamp_ns))),
        signature_scope: SignatureScope::SignedFields,
    }
}

/// Signs the terms of a job as its user. `job` is the job's signed digest (`SignedJobFields::digest`), so the terms are
/// good for this one job.
pub fn sign_terms(user: &Keypair, terms: &JobTerms, job: &[u8; 64]) -> Signature {
    user.sign(&SigningMessage::built(terms.digest(job)))
}

/// Checks the user's signatures of a job over the fields and the terms as they arrived.
///
/// The signature has no age. The caller ensures that the same signature does not run twice, and that this user may run
/// jobs. The account in [`UserJobRequest::muster`] is not signed.
///
/// # Errors
/// The signature has another scope, a field was changed on the way, or the terms were not signed by the same user for
/// this job.
pub fn verify_job(job: &UserJobRequest) -> Result<Verified<UserJobRequest>, VerifyError> {
    verify_job_fields(&job.signature, &job.signed_fields())?;
    if let Some(extension) = &job.muster {
        verify_terms(job, extension)?;
    }
    Ok(Verified::new(job.clone()))
}

/// Checks that the terms of a job, if it has any, are signed by the signatory of the job.
fn verify_terms(job: &UserJobRequest, extension: &JobExtension) -> Result<(), VerifyError> {
    let key = job.signature.signatory.0;
    let holds = match (&extension.terms, &extension.signature) {
        (None, None) => true,
        (Some(terms), Some(signature)) => verify(&key, &terms.digest(&job.signed_digest()), signature),
        (Some(_), None) | (None, Some(_)) => false,
    };
    if holds {
        Ok(())
    } else {
        Err(VerifyError::Terms { key })
    }
}

/// Checks a user's signature over the fields of a job, whatever message they came in: the facilitator reads them from
/// headers and a body.
///
/// # Errors
/// As [`verify_job`].
pub fn verify_job_fields(
    signature: &UserSignature,
    fields: &SignedJobFields,
) -> Result<Verified<UserKey>, VerifyError> {
    match signature.signature_scope {
        SignatureScope::SignedFields => {}
        SignatureScope::FullRequest => return Err(VerifyError::Scope),
    }
    let digest = fields.digest(signature.timestamp_ns);
    require(Party::User, signature.signatory.0, &digest, &signature.signature)?;
    Ok(Verified::new(signature.signatory))
}

/// Signs a whole request as its user.
pub fn sign_request(user: &Keypair, body: &Value, timestamp_ns: i64) -> UserSignature {
    UserSignature {
        signature_type: BittensorSignature,
        signatory: UserKey(user.hotkey()),
        timestamp_ns,
        signature: user.sign(&SigningMessage::built(full_request_digest(timestamp_ns, body))),
        signature_scope: SignatureScope::FullRequest,
    }
}

/// Checks a user's signature over a whole body, as it arrived.
///
/// ComputeHorde's SDK signs the body's text as a JSON text; its validator expects a signature over the body itself, so
/// no report of cheating ever verified there. This function accepts both forms.
///
/// # Errors
/// The signature has another scope, or covers neither form.
pub fn verify_request(signature: &UserSignature, body: &Value) -> Result<Verified<UserKey>, VerifyError> {
    match signature.signature_scope {
        SignatureScope::FullRequest => {}
        SignatureScope::SignedFields => return Err(VerifyError::Scope),
    }
    let (key, time) = (signature.signatory.0, signature.timestamp_ns);
    let text = full_request_digest(time, body);
    if verify(&key, &text, &signature.signature) {
        return Ok(Verified::new(signature.signatory));
    }
    let object = full_request_object_digest(time, body);
    require(Party::User, key, &object, &signature.signature)?;
    Ok(Verified::new(signature.signatory))
}

/// Checks a user's report of cheating as its facilitator passed it on.
///
/// ComputeHorde's facilitator leaves out details that are null, although the signed body may have had them.
///
/// # Errors
/// As [`verify_request`].
pub fn verify_cheat_report(report: &CheatReport) -> Result<Verified<CheatReport>, VerifyError> {
    let mut body = json!({"job_uuid": report.job_uuid, "trusted_job_uuid": report.trusted_job_uuid});
    let short = match &report.details {
        None => verify_request(&report.signature, &body).ok(),
        Some(_) => None,
    };
    if short.is_none() {
        if let Some(fields) = body.as_object_mut() {
            fields.insert(
                "details".to_owned(),
                report.details.clone().unwrap_or(Value::Null),
            );
        }
        verify_request(&report.signature, &body)?;
    }
    Ok(Verified::new(report.clone()))
}

/// Whether a validator's frame is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameSignature {
    /// The frame carries no signature, as validators before compute-horde 0.0.27 send it.
    Absent,
    /// The validator signed exactly this frame.
    Valid,
}

/// The frame of a job request for a miner, with the `validator_signature` of compute-horde 0.0.27 over the whole
/// object.
pub fn sign_frame(validator: &Keypair, message: &ValidatorToMiner) -> String {
    with_validator_signature(message, |bytes| validator.sign(&SigningMessage::built(bytes)))
}

/// Checks the `validator_signature` of a frame, if it carries one.
///
/// # Errors
/// The frame carries a signature that is not this validator's over this frame.
pub fn verify_frame(frame: &SignedFrame, validator: ValidatorKey) -> Result<FrameSignature, VerifyError> {
    let Some((signature, message)) = &frame.signature else {
        return Ok(FrameSignature::Absent);
    };
    require(Party::Validator, validator.0, message, signature)?;
    Ok(FrameSignature::Valid)
}

/// Signs, as its miner, the address at which a streaming job accepts requests.
pub fn sign_streaming_ready(
    miner: &Keypair,
    attempt: AttemptId,
    ip: &str,
    port: u16,
    certificate: &str,
) -> Signature {
    miner.sign(&SigningMessage::built(streaming_ready(
        attempt,
        ip,
        port,
        certificate,
    )))
}

/// Checks a miner's signature over the address of a streaming job.
///
/// # Errors
/// The address or the signature is missing, or the miner did not sign exactly this.
pub fn verify_streaming_ready(
    ready: StreamingJobReady,
    miner: MinerKey,
) -> Result<Verified<StreamingJobReady>, VerifyError> {
    let (Some(ip), Some(signature)) = (&ready.ip, &ready.miner_signature) else {
        return Err(VerifyError::Missing);
    };
    let message = streaming_ready(ready.job_uuid, ip, ready.port, &ready.public_key);
    require(Party::Miner, miner.0, &message, signature)?;
    Ok(Verified::new(ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(details: Option<Value>, signature: UserSignature) -> CheatReport {
        CheatReport {
            signature,
            r#type: muster_protocol::wire::facilitator::JobCheatedTag,
            message_type: muster_protocol::wire::facilitator::CheatReportTag,
            job_uuid: "a".to_owned(),
            trusted_job_uuid: "b".to_owned(),
            details,
        }
    }

    #[test]
    fn a_report_of_cheating_verifies_however_it_was_signed_and_passed_on() {
        let user = Keypair::from_seed([1; 32]);
        let details = json!({"why": "ż"});
        for body in [
            json!({"job_uuid": "a", "trusted_job_uuid": "b", "details": details}),
            json!({"details": null, "trusted_job_uuid": "b", "job_uuid": "a"}),
            json!({"job_uuid": "a", "trusted_job_uuid": "b"}),
        ] {
            let details = body.get("details").filter(|value| !value.is_null()).cloned();
            let text = sign_request(&user, &body, 7);
            let object = UserSignature {
                signature: user.sign(&SigningMessage::built(full_request_object_digest(7, &body))),
                ..text.clone()
            };
            for signature in [text, object] {
                assert!(verify_request(&signature, &body).is_ok());
                assert!(verify_cheat_report(&report(details.clone(), signature.clone())).is_ok());
                let later = UserSignature {
                    timestamp_ns: 8,
                    ..signature.clone()
                };
                assert!(verify_cheat_report(&report(details.clone(), later)).is_err());
                assert!(verify_cheat_report(&report(Some(json!(1)), signature)).is_err());
            }
        }
    }
}

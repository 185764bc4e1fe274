//! Jobs: what their user signs, and what validators and miners sign while they run.

use muster_protocol::wire::facilitator::{BittensorSignature, JobRequest, SignatureScope, UserSignature};
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::wire::signing::{SignedFrame, SignedJobFields, streaming_ready};
use muster_protocol::{AttemptId, MinerKey, Signature, UserKey, ValidatorKey};

use crate::key::Keypair;
use crate::signed::Verified;
use crate::verify::{Party, VerifyError, require};

/// Signs a job as its user. `timestamp_ns`: unix nanoseconds by the user's clock.
pub fn sign_job(user: &Keypair, fields: &SignedJobFields, timestamp_ns: i64) -> UserSignature {
    UserSignature {
        signature_type: BittensorSignature,
        signatory: UserKey(user.hotkey()),
        timestamp_ns,
        signature: user.sign(&fields.digest(timestamp_ns)),
        signature_scope: SignatureScope::SignedFields,
    }
}

/// Checks the user's signature of a job over the fields as they arrived.
///
/// It has no age: that the same signature does not run twice, and that this user may run jobs, is the caller's to know.
///
/// # Errors
/// Another scope, or a field that was changed on the way.
pub fn verify_job(job: &JobRequest) -> Result<Verified<JobRequest>, VerifyError> {
    verify_job_fields(&job.signature, &job.signed_fields())?;
    Ok(Verified::new(job.clone()))
}

/// Checks a user's signature over the fields of a job, wherever both came from: the facilitator has them in headers
/// and a body.
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

/// Whether a validator's frame is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameSignature {
    /// It carries no signature, as validators before compute-horde 0.0.27 send it.
    Absent,
    /// The validator signed exactly this frame.
    Valid,
}

/// Checks the `validator_signature` of a frame, if it carries one.
///
/// # Errors
/// It carries one that is not this validator's over this frame.
pub fn verify_frame(frame: &SignedFrame, validator: ValidatorKey) -> Result<FrameSignature, VerifyError> {
    let Some((signature, message)) = &frame.signature else {
        return Ok(FrameSignature::Absent);
    };
    require(Party::Validator, validator.0, message, signature)?;
    Ok(FrameSignature::Valid)
}

/// Signs, as its miner, where a streaming job answers.
pub fn sign_streaming_ready(
    miner: &Keypair,
    attempt: AttemptId,
    ip: &str,
    port: u16,
    certificate: &str,
) -> Signature {
    miner.sign(&streaming_ready(attempt, ip, port, certificate))
}

/// Checks a miner's word on where a streaming job answers.
///
/// # Errors
/// A part is missing, or the miner did not sign exactly this.
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

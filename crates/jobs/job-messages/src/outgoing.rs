//! What a validator writes to a miner about one attempt: offers, jobs, receipts. Pure but for the signatures.

use std::time::Duration;

use muster_identity::Keypair;
use muster_protocol::job::{MAX_JOB_SECS, Plan};
use muster_protocol::receipt::{
    AcceptedReceipt, AcceptedTag, FinishedReceipt, FinishedTag, OfferedReceipt, StartedReceipt, StartedTag,
};
use muster_protocol::wire::facilitator::JobRequest as UserJob;
use muster_protocol::wire::miner::{
    AcceptedReceiptRequest, FinishedReceiptRequest, InitialJobRequest, JobRequest, OptionsPreset, SealTerms,
    StreamingDetails, ToMiner,
};
use muster_protocol::wire::muster::CancelJob;
use muster_protocol::wire::signing::with_validator_signature;
use muster_protocol::{AttemptId, MinerKey, ReceiptPayload, Signature, Timestamp, ValidatorKey};

use crate::store::OwnReceipt;

/// What ComputeHorde's validator puts into a field that nobody reads any more.
const DEPRECATED_TIMEOUT: u64 = 300;

/// What a validator's own tests count towards: they are nobody's organic jobs.
pub(crate) const GRADING: &str = "muster.grading";

/// Writes the papers of one attempt.
pub(super) struct Papers<'a> {
    pub(super) keypair: &'a Keypair,
    pub(super) attempt: AttemptId,
    pub(super) miner: MinerKey,
    pub(super) request: &'a UserJob,
    pub(super) plan: &'a Plan,
}

impl Papers<'_> {
    /// The reservation.
    pub(super) fn started(&self, now: Timestamp) -> OwnReceipt {
        self.own(ReceiptPayload::Started(StartedReceipt {
            job_uuid: self.attempt,
            miner_hotkey: self.miner,
            validator_hotkey: self.me(),
            timestamp: now,
            receipt_type: StartedTag,
            executor_class: self.plan.class,
            is_organic: self.request.job_namespace.as_deref() != Some(GRADING),
            ttl: self.plan.reservation.as_secs(),
        }))
    }

    /// The confirmation that the acceptance arrived.
    pub(super) fn accepted(&self, now: Timestamp) -> OwnReceipt {
        self.own(ReceiptPayload::Accepted(AcceptedReceipt {
            job_uuid: self.attempt,
            miner_hotkey: self.miner,
            validator_hotkey: self.me(),
            timestamp: now,
            receipt_type: AcceptedTag,
            time_accepted: now,
            // A job of the longest kind outlives the longest receipt by its slack; the receipt holds as long as it may.
            ttl: self.plan.accepted_ttl().as_secs().min(MAX_JOB_SECS),
        }))
    }

    /// The pay slip. `started` is when the attempt began.
    pub(super) fn finished(&self, paid: bool, started: Timestamp, now: Timestamp) -> OwnReceipt {
        let took: Duration = now.since(started);
        let planned = self.plan.executor_seconds().saturating_mul(1_000_000);
        let sealed = self
            .request
            .streaming_details
            .as_ref()
            .is_some_and(|details| details.muster.is_some());
        let micros = match (paid, sealed) {
            (false, _) => 0,
            (true, false) => planned,
            // A session ends when nobody needs it any more, and is paid for as long as it was there.
            (true, true) => planned.min(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
        };
        finished(self.keypair, self.attempt, self.miner, micros, started, now)
    }

    /// The offer, with the reservation. The inputs travel here, as ComputeHorde's validator sends them.
    pub(super) fn offer(&self, payload: &StartedReceipt, receipt: &OfferedReceipt) -> String {
        self.frame(&ToMiner::V0InitialJobRequest(Box::new(InitialJobRequest {
            job_uuid: self.attempt,
            executor_class: self.plan.class,
            docker_image: Some(self.request.docker_image.clone()),
            timeout_seconds: Some(DEPRECATED_TIMEOUT),
            volume: self.request.volume.clone(),
            job_started_receipt_payload: payload.clone(),
            job_started_receipt_signature: receipt.validator_signature,
            streaming_details: self.streaming(),
            executor_timing: Some(self.plan.timing),
        })))
    }

    /// The job itself.
    pub(super) fn job(&self) -> String {
        let preset = if self.plan.class.has_gpu() {
            OptionsPreset::NvidiaAll
        } else {
            OptionsPreset::None
        };
        self.frame(&ToMiner::V0JobRequest(Box::new(JobRequest {
            job_uuid: self.attempt,
            executor_class: self.plan.class,
            docker_image: self.request.docker_image.clone(),
            raw_script: None,
            docker_run_options_preset: preset,
            docker_run_cmd: self.request.args.clone(),
            env: self.request.env.clone(),
            volume: None,
            output_upload: self.request.output_upload.clone(),
            artifacts_dir: self.request.artifacts_dir.clone(),
        })))
    }

    /// Nobody waits for the attempt any longer.
    pub(super) fn cancel(&self, reason: &str) -> String {
        self.frame(&ToMiner::MusterCancelJob(CancelJob {
            job_uuid: self.attempt,
            reason: reason.to_owned(),
        }))
    }

    /// A receipt on its way to the miner; a started receipt travels with its offer instead.
    pub(super) fn deliver(&self, receipt: &OfferedReceipt) -> String {
        let signature = receipt.validator_signature;
        match &receipt.payload {
            ReceiptPayload::Started(payload) => self.offer(payload, receipt),
            ReceiptPayload::Accepted(payload) => {
                self.frame(&ToMiner::V0JobAcceptedReceiptRequest(AcceptedReceiptRequest {
                    payload: payload.clone(),
                    signature,
                }))
            }
            ReceiptPayload::Finished(payload) => {
                muster_protocol::wire::encode(&finished_message(payload, signature))
            }
        }
    }

    fn me(&self) -> ValidatorKey {
        ValidatorKey(self.keypair.hotkey())
    }

    fn streaming(&self) -> Option<StreamingDetails> {
        self.request
            .streaming_details
            .clone()
            .map(|details| StreamingDetails {
                executor_ip: None,
                muster: details.muster.map(|terms| SealTerms {
                    job: Some(self.request.uuid),
                    ..terms
                }),
                ..details
            })
    }

    fn own(&self, payload: ReceiptPayload) -> OwnReceipt {
        own(self.keypair, payload)
    }

    /// Since compute-horde 0.0.27 the two job requests are signed as a whole; the other messages carry their own.
    fn frame(&self, message: &ToMiner) -> String {
        match message {
            ToMiner::V0InitialJobRequest(_) | ToMiner::V0JobRequest(_) => {
                with_validator_signature(message, |bytes| self.keypair.sign(bytes))
            }
            ToMiner::ValidatorAuthForMiner(_)
            | ToMiner::V0MainHotkeyMessage(_)
            | ToMiner::V0JobAcceptedReceiptRequest(_)
            | ToMiner::V0JobFinishedReceiptRequest(_)
            | ToMiner::GenericError(_)
            | ToMiner::MusterCancelJob(_)
            | ToMiner::MusterExecutorEnrolled(_)
            | ToMiner::MusterSessionSealed(_)
            | ToMiner::MusterWhitelist(_) => muster_protocol::wire::encode(message),
        }
    }
}

fn own(keypair: &Keypair, payload: ReceiptPayload) -> OwnReceipt {
    let validator_signature = keypair.sign(&payload.signed_bytes());
    OwnReceipt {
        offered: OfferedReceipt {
            payload,
            validator_signature,
        },
        miner_signature: None,
    }
}

/// The pay slip over so many microseconds of an executor; none for an attempt that is not paid.
pub(super) fn finished(
    keypair: &Keypair,
    attempt: AttemptId,
    miner: MinerKey,
    micros: u64,
    started: Timestamp,
    now: Timestamp,
) -> OwnReceipt {
    let payload = ReceiptPayload::Finished(FinishedReceipt {
        job_uuid: attempt,
        miner_hotkey: miner,
        validator_hotkey: ValidatorKey(keypair.hotkey()),
        timestamp: now,
        receipt_type: FinishedTag,
        time_started: started,
        time_took_us: u64::try_from(now.since(started).as_micros()).unwrap_or(u64::MAX),
        score_str: FinishedReceipt::score_text(micros),
        // Allowance is not reckoned in blocks yet; an empty list is what ComputeHorde's own unpaid receipts carry.
        block_numbers: vec![],
    });
    own(keypair, payload)
}

/// A pay slip on its way to the miner; `None` for any other receipt.
pub(super) fn finished_frame(receipt: &OfferedReceipt) -> Option<String> {
    match &receipt.payload {
        ReceiptPayload::Finished(payload) => {
            let message = finished_message(payload, receipt.validator_signature);
            Some(muster_protocol::wire::encode(&message))
        }
        ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => None,
    }
}

fn finished_message(payload: &FinishedReceipt, signature: Signature) -> ToMiner {
    ToMiner::V0JobFinishedReceiptRequest(FinishedReceiptRequest {
        payload: payload.clone(),
        signature,
    })
}

#[cfg(test)]
mod tests {
    use muster_protocol::ExecutorClass;
    use muster_protocol::wire::miner::ExecutorTiming;

    use super::*;
    use crate::testing::{job, miner, request};

    #[test]
    fn the_receipts_of_the_longest_job_are_within_their_limits() {
        let keypair = Keypair::from_uri("//Validator").unwrap();
        for class in ExecutorClass::ALL {
            let second = Duration::from_secs(1);
            let plan = Plan {
                class,
                streaming: true,
                timing: ExecutorTiming {
                    allowed_leeway: 5,
                    download_time_limit: 1,
                    execution_time_limit: MAX_JOB_SECS - 3,
                    upload_time_limit: 1,
                    streaming_start_time_limit: 1,
                },
                dial: second,
                reservation: second,
                startup: second * 10,
                reconnect: second,
            };
            let papers = Papers {
                keypair: &keypair,
                attempt: AttemptId::first_of(job(1)),
                miner: miner(1),
                request: &request(),
                plan: &plan,
            };
            let now = Timestamp::from_secs(1_769_000_000);
            let then = now.plus(plan.accepted_ttl());
            assert!(
                plan.accepted_ttl().as_secs() > MAX_JOB_SECS,
                "the slack comes on top"
            );
            for receipt in [
                papers.started(now),
                papers.accepted(now),
                papers.finished(true, now, then),
            ] {
                assert_eq!(receipt.offered.payload.check(), Ok(()), "{class}");
            }
            let score = |request: &UserJob, secs: u64| {
                let papers = Papers { request, ..papers };
                match papers
                    .finished(true, now, now.plus(second * u32::try_from(secs).unwrap()))
                    .offered
                    .payload
                {
                    ReceiptPayload::Finished(receipt) => receipt.score_str,
                    ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => {
                        panic!("not a finished receipt")
                    }
                }
            };
            let mut session = request();
            let terms = serde_json::json!({"public_key": "", "muster": {
                "model": "m", "image": muster_protocol::Digest::of(b""), "scheme": "text", "health": "/",
                "input_price": 0, "output_price": 0,
            }});
            session.streaming_details = Some(serde_json::from_value(terms).unwrap());
            assert_eq!(score(&session, 60), "60.000000", "as long as it was there");
            assert_eq!(
                score(&session, u64::from(u32::MAX)),
                score(&request(), 60),
                "and no longer than was planned"
            );
        }
    }
}

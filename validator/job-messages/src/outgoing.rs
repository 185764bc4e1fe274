//! The messages that a validator sends to a miner about one attempt: offer, job, cancellation and receipts.

use std::time::Duration;

use muster_identity::{Keypair, open_credentials, seal_credentials, sign_frame, sign_receipt};
use muster_protocol::job::{AttemptPlan, MAX_JOB_SECS};
use muster_protocol::receipt::{
    AcceptedReceipt, AcceptedTag, FinishedReceipt, FinishedTag, OfferedReceipt, StartedReceipt, StartedTag,
};
use muster_protocol::wire::checkpoints::{CheckpointKept, CheckpointOrder, OutputOrder, RequestExtension};
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::miner::{
    AcceptedReceiptRequest, FinishedReceiptRequest, InitialJobRequest, JobRequest, OptionsPreset, SealTerms,
    StreamingDetails,
};
use muster_protocol::wire::muster::{CancelJob, OfferExtension};
use muster_protocol::wire::validator_socket::ValidatorToMiner;
use muster_protocol::{
    AttemptId, Feature, FeatureSet, MinerKey, OutputUpload, ParticipantType, Receipt, ReceiptKind,
    ReceiptPayload, Signature, Timestamp, TraceParent, TraceStage, ValidatorKey, context_below,
};

use crate::pay::MeasuredWork;

/// The value that ComputeHorde's validator puts into a field that no peer reads any more.
const DEPRECATED_TIMEOUT: u64 = 300;

/// The namespace of a validator's own grading jobs, which are not organic.
pub const GRADING_NAMESPACE: &str = "muster.grading";

/// A receipt that a validator has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedReceipt {
    /// The payload with the validator's signature.
    pub offered: OfferedReceipt,
    /// The miner's signature over the same payload, checked; `None` until it has come.
    pub miner_signature: Option<Signature>,
}

impl IssuedReceipt {
    fn sign(keypair: &Keypair, payload: ReceiptPayload) -> Self {
        let validator_signature = sign_receipt(keypair, &payload);
        Self {
            offered: OfferedReceipt {
                payload,
                validator_signature,
            },
            miner_signature: None,
        }
    }

    /// The kind of the receipt.
    pub fn kind(&self) -> ReceiptKind {
        self.offered.payload.kind()
    }

    /// The receipt with both signatures; `None` while the miner's is missing.
    pub fn complete(&self) -> Option<Receipt> {
        self.miner_signature
            .map(|signature| self.offered.clone().with_countersignature(signature))
    }
}

/// Builds the messages of one attempt.
pub struct OutgoingMessages<'a> {
    /// The validator's key, which signs offers, jobs and receipts.
    pub keypair: &'a Keypair,
    /// The attempt that the messages are about.
    pub attempt: AttemptId,
    /// The miner that runs the attempt.
    pub miner: MinerKey,
    /// The user's request.
    pub request: &'a UserJobRequest,
    /// The limits of the attempt, fixed when it began.
    pub plan: &'a AttemptPlan,
    /// The features that the miner showed. The offer gives the image a time limit to a miner that reports when it
    /// begins to fetch one.
    pub features: FeatureSet,
    /// The executor's order about the job's checkpoints; `None` for a job without.
    pub checkpoints: Option<&'a CheckpointOrder>,
    /// The executor's order about the streams that the program prints; `None` where the facilitator granted no place.
    pub output: Option<&'a OutputOrder>,
}

impl OutgoingMessages<'_> {
    /// The started receipt, which reserves an executor.
    pub fn started_receipt(&self, now: Timestamp) -> IssuedReceipt {
        self.sign(ReceiptPayload::Started(StartedReceipt {
            job_uuid: self.attempt,
            miner_hotkey: self.miner,
            validator_hotkey: self.validator(),
            timestamp: now,
            receipt_type: StartedTag,
            executor_class: self.plan.class,
            is_organic: self.request.job_namespace.as_deref() != Some(GRADING_NAMESPACE),
            ttl: self.plan.reservation.as_secs(),
        }))
    }

    /// The accepted receipt, which confirms that the miner's acceptance arrived.
    pub fn accepted_receipt(&self, now: Timestamp) -> IssuedReceipt {
        self.sign(ReceiptPayload::Accepted(AcceptedReceipt {
            job_uuid: self.attempt,
            miner_hotkey: self.miner,
            validator_hotkey: self.validator(),
            timestamp: now,
            receipt_type: AcceptedTag,
            time_accepted: now,
            // The longest job may outlast the longest receipt by its leeway; the receipt then holds as long as one may.
            ttl: self.plan.accepted_ttl().as_secs().min(MAX_JOB_SECS),
        }))
    }

    /// The work of an attempt that took `took` since its executor was ready. `usual_us` is the median of the same work,
    /// and `rated_us` the worth of a session's proven answers, both in microseconds.
    pub fn measured_work(
        &self,
        took: Duration,
        usual_us: Option<u64>,
        rated_us: Option<u64>,
    ) -> MeasuredWork {
        let details = self.request.streaming_details.as_ref();
        MeasuredWork {
            reserved_us: self.plan.executor_seconds().saturating_mul(1_000_000),
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            usual_us,
            sealed: details.is_some_and(|details| details.muster.is_some()),
            rated_us,
        }
    }

    /// The finished receipt of an attempt that began at `started`.
    pub fn finished_receipt(&self, pay: AttemptPay, started: Timestamp, now: Timestamp) -> IssuedReceipt {
        sign_finished_receipt(self.keypair, self.attempt, self.miner, pay, started, now)
    }

    /// The offer, which carries the started receipt. The inputs go with the offer, as ComputeHorde's validator sends
    /// them.
    fn offer(&self, payload: &StartedReceipt, receipt: &OfferedReceipt) -> String {
        self.frame(&ValidatorToMiner::V0InitialJobRequest(Box::new(
            InitialJobRequest {
                job_uuid: self.attempt,
                executor_class: self.plan.class,
                docker_image: Some(self.request.docker_image.clone()),
                timeout_seconds: Some(DEPRECATED_TIMEOUT),
                volume: self.request.volume.clone(),
                job_started_receipt_payload: payload.clone(),
                job_started_receipt_signature: receipt.validator_signature,
                streaming_details: self.streaming(),
                executor_timing: Some(self.plan.timing),
                muster: self.extension().map(Box::new),
            },
        )))
    }

    /// The part of the offer beyond ComputeHorde's fields. The user's login at a registry, which only this validator
    /// can open, is sealed anew for the miner.
    fn extension(&self) -> Option<OfferExtension> {
        let clock = self.plan.image.filter(|_| self.features.has(Feature::Fetching));
        let image = &self.request.docker_image;
        let registry = self.request.sealed_credentials().and_then(|sealed| {
            let login = open_credentials(self.keypair, image, sealed).ok()?;
            seal_credentials(self.miner.0, image, &login).ok()
        });
        let extension = OfferExtension {
            image_time_limit: clock.map(|clock| clock.limit.as_secs()),
            account: clock.map(|_| self.request.account()),
            image_archive: self.request.terms().image_archive,
            registry,
            credentials: None,
            resumable: self.checkpoints.is_some() && self.features.has(Feature::Checkpoints),
            metrics: match self.features.has(Feature::Metrics) {
                true => self.request.terms().metrics,
                false => Vec::new(),
            },
            start: match self.features.has(Feature::ProgramStart) {
                true => self.request.terms().start,
                false => None,
            },
            traceparent: self.traceparent().filter(|_| self.features.has(Feature::Trace)),
        };
        Some(extension).filter(|extension| *extension != OfferExtension::default())
    }

    /// The context under which the miner works: the validator's span of the attempt.
    fn traceparent(&self) -> Option<TraceParent> {
        let (context, attempt) = (self.request.traceparent()?, self.attempt.as_uuid());
        Some(context_below(
            context,
            attempt,
            ParticipantType::Validator,
            TraceStage::Attempt,
        ))
    }

    /// The job itself, for an executor that is ready.
    pub fn job(&self) -> String {
        let preset = if self.plan.class.has_gpu() {
            OptionsPreset::NvidiaAll
        } else {
            OptionsPreset::None
        };
        self.frame(&ValidatorToMiner::V0JobRequest(Box::new(JobRequest {
            job_uuid: self.attempt,
            executor_class: self.plan.class,
            docker_image: self.request.docker_image.clone(),
            raw_script: None,
            docker_run_options_preset: preset,
            docker_run_cmd: self.request.args.clone(),
            env: self.request.env.clone(),
            volume: None,
            output_upload: self.output_upload(),
            artifacts_dir: self.request.artifacts_dir.clone(),
            muster: self.request_extension().map(Box::new),
        })))
    }

    /// The part of the job beyond ComputeHorde's fields, as far as the miner knows it.
    fn request_extension(&self) -> Option<RequestExtension> {
        let checkpoints = self
            .checkpoints
            .filter(|_| self.features.has(Feature::Checkpoints));
        let output = self.output.filter(|_| self.features.has(Feature::Output));
        let extension = RequestExtension {
            checkpoints: checkpoints.cloned(),
            output: output.cloned(),
        };
        Some(extension).filter(|extension| *extension != RequestExtension::default())
    }

    /// The uploads of the job, in ComputeHorde's form for a miner that knows no other.
    fn output_upload(&self) -> Option<OutputUpload> {
        let mut upload = self.request.output_upload.clone()?;
        if !self.features.has(Feature::Folders) {
            upload.forget_kinds();
        }
        Some(upload)
    }

    /// The answer to a checkpoint that is stored.
    pub fn checkpoint_kept(&self, number: u32, ordinal: u32) -> String {
        self.frame(&ValidatorToMiner::MusterCheckpointKept(CheckpointKept {
            job_uuid: self.attempt,
            number,
            ordinal,
        }))
    }

    /// The cancellation of the attempt. Only Muster's miners know it.
    pub fn cancellation(&self, reason: &str) -> String {
        self.frame(&ValidatorToMiner::MusterCancelJob(CancelJob {
            job_uuid: self.attempt,
            reason: reason.to_owned(),
        }))
    }

    /// The message that carries a receipt: for a started receipt, the offer.
    pub fn receipt_message(&self, receipt: &OfferedReceipt) -> String {
        let signature = receipt.validator_signature;
        match &receipt.payload {
            ReceiptPayload::Started(payload) => self.offer(payload, receipt),
            ReceiptPayload::Accepted(payload) => self.frame(&ValidatorToMiner::V0JobAcceptedReceiptRequest(
                AcceptedReceiptRequest {
                    payload: payload.clone(),
                    signature,
                },
            )),
            ReceiptPayload::Finished(payload) => encode(&finished_message(payload, signature)),
        }
    }

    fn validator(&self) -> ValidatorKey {
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

    fn sign(&self, payload: ReceiptPayload) -> IssuedReceipt {
        IssuedReceipt::sign(self.keypair, payload)
    }

    /// Encodes a message. Since compute-horde 0.0.27 the two job requests are signed as a whole; the other messages
    /// carry their own signatures.
    fn frame(&self, message: &ValidatorToMiner) -> String {
        if matches!(
            message,
            ValidatorToMiner::V0InitialJobRequest(_) | ValidatorToMiner::V0JobRequest(_)
        ) {
            sign_frame(self.keypair, message)
        } else {
            encode(message)
        }
    }
}

/// The pay for an attempt. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptPay {
    /// The amount in executor-microseconds.
    pub micros: u64,
    /// The blocks by whose worth other validators accept the amount.
    pub blocks: Vec<u64>,
}

/// Signs a finished receipt.
pub fn sign_finished_receipt(
    keypair: &Keypair,
    attempt: AttemptId,
    miner: MinerKey,
    pay: AttemptPay,
    started: Timestamp,
    now: Timestamp,
) -> IssuedReceipt {
    let payload = ReceiptPayload::Finished(FinishedReceipt {
        job_uuid: attempt,
        miner_hotkey: miner,
        validator_hotkey: ValidatorKey(keypair.hotkey()),
        timestamp: now,
        receipt_type: FinishedTag,
        time_started: started,
        time_took_us: u64::try_from(now.since(started).as_micros()).unwrap_or(u64::MAX),
        score_str: FinishedReceipt::score_text(pay.micros),
        block_numbers: pay.blocks,
    });
    IssuedReceipt::sign(keypair, payload)
}

/// The message that carries a finished receipt; `None` for a receipt of another kind.
pub fn finished_receipt_message(receipt: &OfferedReceipt) -> Option<String> {
    match &receipt.payload {
        ReceiptPayload::Finished(payload) => {
            let message = finished_message(payload, receipt.validator_signature);
            Some(encode(&message))
        }
        ReceiptPayload::Started(_) | ReceiptPayload::Accepted(_) => None,
    }
}

fn finished_message(payload: &FinishedReceipt, signature: Signature) -> ValidatorToMiner {
    ValidatorToMiner::V0JobFinishedReceiptRequest(FinishedReceiptRequest {
        payload: payload.clone(),
        signature,
    })
}

#[cfg(test)]
mod tests {
    use muster_protocol::ExecutorClass;
    use muster_protocol::job::{ImageClock, RegistryCredentials};
    use muster_protocol::wire::miner::ExecutorTiming;
    use muster_protocol::wire::muster::JobExtension;

    use super::*;
    use crate::testing::{job, miner, request};

    fn plan() -> AttemptPlan {
        let second = Duration::from_secs(1);
        AttemptPlan {
            class: ExecutorClass::AlwaysOnTest,
            streaming: false,
            timing: ExecutorTiming {
                allowed_leeway: 1,
                download_time_limit: 1,
                execution_time_limit: 1,
                upload_time_limit: 1,
                streaming_start_time_limit: 1,
            },
            dial: second,
            reservation: second,
            startup: second,
            reconnect: second,
            image: Some(ImageClock {
                limit: second * 1_800,
                silence: second,
            }),
        }
    }

    #[test]
    fn only_a_miner_that_tells_of_fetches_gets_the_terms_of_the_image() {
        let keypair = Keypair::from_uri("//Validator").unwrap();
        let plan = plan();
        let now = Timestamp::from_secs(1_769_000_000);
        let request = request();
        for features in [FeatureSet::NONE, [Feature::Fetching].into_iter().collect()] {
            let messages = OutgoingMessages {
                keypair: &keypair,
                attempt: AttemptId::first_of(job(1)),
                miner: miner(1),
                request: &request,
                plan: &plan,
                features,
                checkpoints: None,
                output: None,
            };
            let offer = messages.receipt_message(&messages.started_receipt(now).offered);
            let offer: serde_json::Value = serde_json::from_str(&offer).unwrap();
            let account = request.signature.signatory.to_string();
            let terms = serde_json::json!({"image_time_limit": 1_800, "account": account});
            assert_eq!(
                offer.get("muster"),
                features.has(Feature::Fetching).then_some(&terms)
            );
        }
    }

    #[test]
    fn the_start_of_the_program_goes_with_the_offer_byte_for_byte() {
        let keypair = Keypair::from_uri("//Validator").unwrap();
        let plan = plan();
        let now = Timestamp::from_secs(1_769_000_000);
        let start = r#"{"workdir":"/w","entrypoint":"","stdin":"stdin"}"#;
        let mut request = request();
        request.muster = Some(Box::new(JobExtension {
            terms: Some(serde_json::from_str(&format!(r#"{{"start":{start}}}"#)).unwrap()),
            ..JobExtension::default()
        }));
        for features in [FeatureSet::NONE, [Feature::ProgramStart].into_iter().collect()] {
            let messages = OutgoingMessages {
                keypair: &keypair,
                attempt: AttemptId::first_of(job(1)),
                miner: miner(1),
                request: &request,
                plan: &plan,
                features,
                checkpoints: None,
                output: None,
            };
            let extension = messages
                .extension()
                .map(|extension| serde_json::to_string(&extension).unwrap());
            let golden = format!(r#"{{"start":{start}}}"#);
            assert_eq!(extension, features.has(Feature::ProgramStart).then_some(golden));
            let offer = messages.receipt_message(&messages.started_receipt(now).offered);
            assert_eq!(
                offer.contains("entrypoint"),
                features.has(Feature::ProgramStart),
                "{offer}"
            );
        }
    }

    #[test]
    fn a_miner_without_folders_gets_the_outputs_in_computehordes_form() {
        let keypair = Keypair::from_uri("//Validator").unwrap();
        let upload = |kind: &str| {
            serde_json::json!({
                "output_upload_type": "single_file_put", "url": "http://h/", "relative_path": "a", "kind": kind,
            })
        };
        let uploads = serde_json::json!({
            "output_upload_type": "multi_upload", "uploads": [upload("file"), upload("folder")],
        });
        let request = UserJobRequest {
            output_upload: Some(serde_json::from_value(uploads).unwrap()),
            ..request()
        };
        let plan = plan();
        let kinds = |features: FeatureSet| {
            let messages = OutgoingMessages {
                keypair: &keypair,
                attempt: AttemptId::first_of(job(1)),
                miner: miner(1),
                request: &request,
                plan: &plan,
                features,
                checkpoints: None,
                output: None,
            };
            let job: serde_json::Value = serde_json::from_str(&messages.job()).unwrap();
            let uploads = job["output_upload"]["uploads"].as_array().unwrap().clone();
            uploads
                .iter()
                .map(|upload| upload["kind"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(FeatureSet::ours()), ["file", "folder"]);
        assert_eq!(kinds(FeatureSet::NONE), [serde_json::Value::Null]);
    }

    #[test]
    fn only_a_miner_with_the_feature_gets_the_place_of_the_output() {
        let keypair = Keypair::from_uri("//Validator").unwrap();
        let plan = plan();
        let (request, order) = (
            request(),
            OutputOrder {
                blocks: "http://f/blocks/J".to_owned(),
            },
        );
        for features in [FeatureSet::NONE, [Feature::Output].into_iter().collect()] {
            let messages = OutgoingMessages {
                keypair: &keypair,
                attempt: AttemptId::first_of(job(1)),
                miner: miner(1),
                request: &request,
                plan: &plan,
                features,
                checkpoints: None,
                output: Some(&order),
            };
            let sent: serde_json::Value = serde_json::from_str(&messages.job()).unwrap();
            let told = serde_json::json!({"output": {"blocks": "http://f/blocks/J"}});
            assert_eq!(sent.get("muster"), features.has(Feature::Output).then_some(&told));
        }
    }

    #[test]
    fn the_receipts_of_the_longest_job_are_within_their_limits() {
        let keypair = Keypair::from_uri("//Validator").unwrap();
        for class in ExecutorClass::ALL {
            let second = Duration::from_secs(1);
            let plan = AttemptPlan {
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
                image: None,
            };
            let messages = OutgoingMessages {
                keypair: &keypair,
                attempt: AttemptId::first_of(job(1)),
                miner: miner(1),
                request: &request(),
                plan: &plan,
                features: FeatureSet::ours(),
                checkpoints: None,
                output: None,
            };
            let now = Timestamp::from_secs(1_769_000_000);
            let then = now.plus(plan.accepted_ttl());
            let pay = |micros| AttemptPay {
                micros,
                blocks: (1..=10_000).collect(),
            };
            assert!(
                plan.accepted_ttl().as_secs() > MAX_JOB_SECS,
                "the slack comes on top"
            );
            for receipt in [
                messages.started_receipt(now),
                messages.accepted_receipt(now),
                messages.finished_receipt(
                    pay(messages.measured_work(then.since(now), None, None).pay_us()),
                    now,
                    then,
                ),
            ] {
                assert_eq!(receipt.offered.payload.check(), Ok(()), "{class}");
            }
            let score = |request: &UserJobRequest, secs: u64| {
                let messages = OutgoingMessages { request, ..messages };
                let end = now.plus(second * u32::try_from(secs).unwrap());
                let pay = pay(messages.measured_work(end.since(now), None, None).pay_us());
                match messages.finished_receipt(pay, now, end).offered.payload {
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
                score(&request(), u64::from(u32::MAX)),
                "and no longer than was planned"
            );
        }
    }

    #[test]
    fn an_offer_seals_the_users_login_for_its_miner_alone() {
        let (validator, worker) = (
            Keypair::from_uri("//Validator").unwrap(),
            Keypair::from_seed([9; 32]),
        );
        let mut request = request();
        let image = request.docker_image.clone();
        let login = RegistryCredentials {
            username: "somebody".to_owned(),
            password: "hunter2".to_owned(),
        };
        let sealed = seal_credentials(validator.hotkey(), &image, &login).unwrap();
        request.muster = Some(Box::new(JobExtension {
            registry: Some(sealed.clone()),
            ..JobExtension::default()
        }));
        let second = Duration::from_secs(1);
        let plan = AttemptPlan {
            class: ExecutorClass::AlwaysOnTest,
            streaming: false,
            timing: ExecutorTiming {
                allowed_leeway: 5,
                download_time_limit: 1,
                execution_time_limit: 1,
                upload_time_limit: 1,
                streaming_start_time_limit: 1,
            },
            dial: second,
            reservation: second,
            startup: second,
            reconnect: second,
            image: None,
        };
        let messages = OutgoingMessages {
            keypair: &validator,
            attempt: AttemptId::first_of(job(1)),
            miner: MinerKey(worker.hotkey()),
            request: &request,
            plan: &plan,
            features: FeatureSet::NONE,
            checkpoints: None,
            output: None,
        };
        let started = messages.started_receipt(Timestamp::from_secs(1_769_000_000));
        let frame = messages.receipt_message(&started.offered);
        assert!(
            !frame.contains("hunter2") && !frame.contains("somebody"),
            "{frame}"
        );
        let ValidatorToMiner::V0InitialJobRequest(offer) = muster_protocol::wire::decode(&frame).unwrap()
        else {
            panic!("an offer")
        };
        let extension = offer.muster.unwrap();
        assert_eq!(extension.credentials, None);
        let resealed = extension.registry.unwrap();
        assert_ne!(resealed, sealed);
        assert_eq!(open_credentials(&worker, &image, &resealed), Ok(login));
        assert!(open_credentials(&validator, &image, &resealed).is_err());
        assert!(!messages.job().contains("hunter2"));
    }
}

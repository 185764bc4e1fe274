//! Jobs come in: a facilitator hands them over, and the validator's own gateway wants sessions. Each is taken, repeated or refused,
//! durably, before anything else happens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use indexmap::IndexMap;
use muster_gateway::backend::{StreamingJobOrder, ValidatorBackend};
use muster_gateway::sealed::Line;
use muster_gateway::{Gateway, GatewayDeps};
use muster_grading::Announced;
use muster_grading::judgement::said;
use muster_grading::plan::Silent;
use muster_grading_runner::{Roll, RollCall};
use muster_identity::{sign_job, verify_job};
use muster_process::store::StoreError;
use muster_protocol::job::Outcome;
use muster_protocol::status::{JobRejectionReason, ParticipantType};
use muster_protocol::wire::facilitator::{
    BittensorSignature, CheatReport, JobNew, JobRequest, JobRequestTag, RejectionDetails, SignatureScope,
    UserSignature,
};
use muster_protocol::wire::miner::{GraderTerms, SealTerms, StreamingDetails, ToMiner};
use muster_protocol::wire::muster::CancelRequest;
use muster_protocol::wire::{WireError, decode, encode};
use muster_protocol::{
    AttemptId, ExecutorClass, JobId, MinerKey, Signature, Timestamp, UserKey, ValidatorKey,
};
use muster_routing::admission::{Admission, Seen, decide};
use muster_session_pool::whitelist::whitelist_notice;
use muster_websocket::lines::Heard;
use serde_json::Value;
use tokio::time::timeout;
use uuid::Uuid;

use crate::Error;
use crate::config::Config;
use crate::driver;
use crate::gather;
use crate::shared::Shared;
use crate::store::Taken;

/// How much of a user's reason for calling a job off is kept.
const MAX_REASON_CHARS: usize = 500;
/// What the jobs of sessions count towards.
const NAMESPACE: &str = "muster.gateway";
/// Seconds for inputs and outputs, of which a session has none.
const NO_DATA: u64 = 5;
/// Miners that are asked at a time what they have.
const ASKED: usize = 64;
/// Between two looks for miners that have not heard what may serve.
const ROUND: Duration = Duration::from_secs(30);
/// How long it is before a miner is told again, and one that could not be reached.
const TOLD: Duration = Duration::from_secs(3_600);
const MISSED: Duration = Duration::from_secs(120);
/// Miners that are told at a time.
const AT_ONCE: usize = 16;
/// How long a session that has said its last word may take to end by itself, and so as a job that was done.
const GRACE: Duration = Duration::from_secs(20);

/// Takes one job, as `frame` brought it. A new one costs one write and no question: the store says itself what it knew.
///
/// What the facilitator answered before it sent the frame is in the store once `answers_are_written` ends; only a job that is
/// repeated waits for that.
pub(crate) async fn job(
    shared: &Arc<Shared>,
    request: JobRequest,
    frame: &str,
    answers_are_written: impl Future<Output = ()> + Send,
) -> Result<(), StoreError> {
    let id = request.uuid;
    let holds = verify_job(&request).is_ok();
    let now = shared.clock.now();
    let (users, me) = (shared.config.users.rule(), shared.keypair.hotkey());
    let seen = match decide(&request, holds, Seen::Never, &users, me) {
        Admission::Admit => {
            // A job that is only repeated takes nobody's place; one that has ended gives it back below.
            let first = if shared.is_driven(id) {
                None
            } else {
                driver::first(shared, &request)
            };
            // While the job is being written down its miner is dialled, and told nothing of it.
            let line = first.as_ref().map(|first| {
                let mut line = driver::line(shared, &first.attempt);
                line.dial();
                line
            });
            match shared.store.admit(&request, frame, now, first.as_deref()).await? {
                Taken::New => {
                    tracing::info!(job = %id, user = %request.signature.signatory, class = %request.executor_class, "job taken");
                    driver::start(shared, request, first, line);
                    return Ok(());
                }
                Taken::Before(seen) => {
                    if let Some(first) = &first {
                        driver::withdraw(shared, &first.attempt);
                    }
                    seen
                }
            }
        }
        Admission::Refuse(_) | Admission::Repeat => shared.store.seen(id, &request.signature).await?,
    };
    match decide(&request, holds, seen, &users, me) {
        // What the store knows is never admitted again.
        Admission::Repeat | Admission::Admit => {
            tracing::debug!(job = %id, "the facilitator repeats a job");
            answers_are_written.await;
            let end = driver::last_word(shared, id).await?;
            shared.store.repeat(id, end.as_ref()).await
        }
        Admission::Refuse(details) => refuse(shared, id, frame, details).await,
    }
}

/// A frame that names a job but cannot be read as one is refused by that name, so that its user is not left waiting.
pub(crate) async fn malformed(shared: &Shared, frame: &str, error: &WireError) -> Result<(), StoreError> {
    tracing::warn!(%error, "the facilitator sent a malformed frame");
    let value: Value = decode(frame).unwrap_or_default();
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let job = text("uuid").and_then(|uuid| uuid.parse::<JobId>().ok());
    match (text("message_type"), job) {
        (Some("V2JobRequest"), Some(job)) => {
            let details = RejectionDetails {
                rejected_by: ParticipantType::Validator,
                reason: JobRejectionReason::NoMinerForJob,
                message: format!("the request cannot be read: {}", error.reason),
                context: None,
            };
            refuse(shared, job, frame, details).await
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// A user calls a job off. It is durable before its driver hears of it, so that no attempt begins after a restart either.
/// Nothing is answered but the job's last status, which is said again if the job is over already.
pub(crate) async fn cancel(shared: &Arc<Shared>, request: &CancelRequest) -> Result<(), StoreError> {
    let job = request.uuid;
    let reason: String = request.reason.chars().take(MAX_REASON_CHARS).collect();
    if shared.store.cancel(job, &reason).await? {
        tracing::info!(%job, reason, "a user calls a job off");
        shared.call_off(job, &reason);
        return Ok(());
    }
    match driver::last_word(shared, job).await? {
        Some(end) => shared.store.repeat(job, Some(&end)).await,
        None => {
            tracing::debug!(%job, "a job that is unknown, or being called off, was called off");
            Ok(())
        }
    }
}

/// Keeps a user's report of cheating. What follows from it is decided elsewhere, by people and later by audits.
pub(crate) async fn cheated(shared: &Shared, report: &CheatReport) -> Result<(), StoreError> {
    tracing::info!(job = report.job_uuid, user = %report.signature.signatory, "a user reports cheating");
    shared.store.keep_cheat_report(report, shared.clock.now()).await
}

async fn refuse(
    shared: &Shared,
    job: JobId,
    frame: &str,
    details: RejectionDetails,
) -> Result<(), StoreError> {
    tracing::info!(%job, reason = %details.reason, message = details.message, "job refused");
    shared
        .store
        .refuse(job, frame, &Outcome::Rejected(details), shared.clock.now())
        .await
}

// What the gateway wants.

/// The sessions of an earlier process are over: nobody else has the keys that they let in. Their jobs are called off before
/// anything is resumed.
pub(crate) async fn forget_sessions(shared: &Shared) -> Result<(), StoreError> {
    for job in shared.store.open_own().await? {
        shared.store.cancel(job, "the gateway was started anew").await?;
    }
    Ok(())
}

/// Opens the gateway, if there is to be one.
pub(crate) async fn open_gateway(shared: &Arc<Shared>) -> Result<(), Error> {
    let Some(bind) = shared.config.gateway.bind else {
        return Ok(());
    };
    let failing = Arc::clone(shared);
    let parts = GatewayDeps {
        backend: Arc::new(Jobs(Arc::clone(shared))),
        pool: shared.store.pool(),
        clock: Arc::clone(&shared.clock),
        tasks: shared.tasks.clone(),
        on_store_failure: Box::new(move |error| failing.fail(error)),
    };
    let gateway = Gateway::open(bind, shared.config.gateway.clone(), parts).await?;
    // Only this function sets it, and it runs once.
    let _ = shared.gateway.set(gateway);
    Ok(())
}

/// The frame by which miners hear what this validator runs in sealed sessions: what challenges their executors, and what may
/// serve behind its gateway. None if it opens no such sessions.
pub(crate) fn whitelist(config: &Config) -> Option<String> {
    let served = config.gateway.bind.map(|_| config.gateway.services.clone());
    if served.is_none() && config.grading.images.is_empty() {
        return None;
    }
    // The graders come first: however much is served, executors that are challenged may run them.
    let all = config.grading.services().chain(served.into_iter().flatten());
    Some(encode(&ToMiner::MusterWhitelist(whitelist_notice(all))))
}

/// Has every miner of the subnet hear what may serve, so that its executors have the images before the first session is wanted: each
/// session with a miner begins with it, so that it is enough to open one once it is known where the miner is, and again after a while,
/// since a miner forgets it with its process.
pub(crate) async fn publish(shared: Arc<Shared>) -> Result<(), StoreError> {
    if whitelist(&shared.config).is_none() {
        return Ok(());
    }
    let stop = shared.tasks.token();
    tokio::select! {
        () = stop.cancelled() => {}
        () = rounds(&shared) => {}
    }
    Ok(())
}

async fn rounds(shared: &Arc<Shared>) {
    let mut due = BTreeMap::<(MinerKey, SocketAddr), Timestamp>::new();
    loop {
        let metagraph = shared.outlook.metagraph().await;
        let now = shared.clock.now();
        let miners: BTreeSet<_> = gather::miners(shared, &metagraph).into_iter().collect();
        due.retain(|miner, _| miners.contains(miner));
        let wanting: Vec<_> = miners
            .into_iter()
            .filter(|miner| due.get(miner).is_none_or(|due| *due <= now))
            .collect();
        let told = wanting.into_iter().map(|(miner, address)| async move {
            let heard = reach(shared, miner, address).await;
            ((miner, address), now.plus(if heard { TOLD } else { MISSED }))
        });
        let told: Vec<_> = futures_util::stream::iter(told)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        due.extend(told);
        shared.clock.sleep(ROUND).await;
    }
}

/// Opens a session with a miner, for no attempt; whether that went well.
async fn reach(shared: &Shared, miner: MinerKey, address: SocketAddr) -> bool {
    let nobody = AttemptId::from_uuid(Uuid::new_v4());
    let mut line = shared.lines.line(nobody, miner, address);
    line.dial();
    let too_late = shared
        .clock
        .sleep(Duration::from_secs(shared.config.timing.dial_s));
    tokio::select! {
        heard = line.next() => matches!(heard, Heard::Up),
        () = too_late => false,
    }
}

/// The validator's own jobs.
struct Jobs(Arc<Shared>);

impl Jobs {
    /// Hands a job of the validator's own to the subnet.
    async fn order(&self, order: StreamingJobOrder) -> Result<(), String> {
        let shared = &self.0;
        let request = session_job(shared, &order);
        let now = shared.clock.now();
        if let Some(miner) = order.miner {
            let mut pins = shared.pins.lock();
            pins.insert(order.job, miner);
        }
        shared.news.send_modify(|listeners| {
            listeners.insert(order.job, order.news.clone());
        });
        match shared.store.admit_own(&request, &encode(&request), now).await {
            Ok(true) => {
                driver::start(shared, request, None, None);
                Ok(())
            }
            Ok(false) => Err("its job has an id that was used before".to_owned()),
            Err(error) => {
                let said = error.to_string();
                shared.fail(error);
                Err(said)
            }
        }
    }

    async fn call_off(&self, job: JobId, why: &'static str) {
        let shared = &self.0;
        match shared.store.cancel(job, why).await {
            Ok(true) => shared.call_off(job, why),
            Ok(false) => {}
            Err(error) => shared.fail(error),
        }
    }
}

impl ValidatorBackend for Jobs {
    fn validator(&self) -> ValidatorKey {
        self.0.me()
    }

    fn start_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.order(order))
    }

    fn end_job(&self, job: JobId, why: &'static str, is_closed: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let shared = &self.0;
            if is_closed {
                let over = shared.own_job_over(job);
                let _ = tokio::time::timeout(GRACE, over).await;
            }
            self.call_off(job, why).await;
        })
    }
}

// What grading wants.

/// Begins to wait for blocks that begin a batch, and for the operator's word.
pub(crate) async fn open_roll_call(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let failing = Arc::clone(shared);
    let parts = muster_grading_runner::Parts {
        host: Arc::new(Jobs(Arc::clone(shared))),
        pool: shared.store.pool(),
        clock: Arc::clone(&shared.clock),
        tasks: shared.tasks.clone(),
        failed: Box::new(move |error| failing.fail(error)),
    };
    let roll_call = RollCall::open(shared.config.grading.clone(), parts).await?;
    // Only this function sets it, and it runs once.
    let _ = shared.roll_call.set(roll_call);
    Ok(())
}

impl muster_grading_runner::Host for Jobs {
    fn me(&self) -> ValidatorKey {
        self.0.me()
    }

    fn block_after(&self, block: u64) -> BoxFuture<'_, (u64, [u8; 32])> {
        Box::pin(self.0.outlook.block_after(block))
    }

    fn announced(&self) -> BoxFuture<'_, Roll> {
        Box::pin(announced(&self.0))
    }

    fn serving(&self) -> BoxFuture<'_, Vec<Arc<Line>>> {
        Box::pin(async move {
            match self.0.gateway.get() {
                Some(gateway) => gateway.list_live_sessions().await,
                None => Vec::new(),
            }
        })
    }

    fn begin(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.order(order))
    }

    fn end(&self, job: JobId, why: &'static str) -> BoxFuture<'_, ()> {
        Box::pin(self.call_off(job, why))
    }

    fn backed(&self, job: JobId) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            match self.0.store.refusal_is_backed(job).await {
                Ok(backed) => backed,
                Err(error) => {
                    self.0.fail(error);
                    false
                }
            }
        })
    }
}

/// Dials every miner of the subnet and hears what it has. Who does not answer in time is named.
async fn announced(shared: &Arc<Shared>) -> Roll {
    let metagraph = shared.outlook.metagraph().await;
    let me = shared.keypair.hotkey();
    let blacklist = &shared.config.routing.blacklist;
    let mut miners = Vec::new();
    for neuron in &metagraph.neurons {
        let miner = MinerKey(neuron.hotkey);
        if let Some(address) = neuron.axon
            && neuron.hotkey != me
            && !blacklist.contains(&miner)
        {
            miners.push((miner, address));
        }
    }
    let patience = Duration::from_secs(shared.config.timing.dial_s);
    let asking = stream::iter(miners).map(|(miner, address)| {
        let shared = Arc::clone(shared);
        async move {
            let heard = timeout(
                patience,
                driver::fetch_manifest(&shared.keypair, &shared.clock, miner, address),
            )
            .await;
            let seconds = patience.as_secs();
            let heard = match heard {
                Ok(heard) => heard.map_err(|why| said(&format!("at {address}: {why}"))),
                Err(_) => Err(format!("no manifest came from {address} within {seconds} s")),
            };
            (miner, heard)
        }
    });
    let heard: Vec<_> = asking.buffer_unordered(ASKED).collect().await;
    let now = shared.clock.now();
    let (mut announced, mut silent) = (Vec::new(), Vec::new());
    for (miner, manifest) in heard {
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(said) => {
                silent.push(Silent { miner, said });
                continue;
            }
        };
        announced.extend(
            manifest
                .iter()
                .map(|(class, count)| Announced { miner, class, count }),
        );
        shared.ledger().announced(miner, manifest, now);
    }
    announced.sort_unstable();
    Roll { announced, silent }
}

/// What challenges an executor of this class while it serves, if the class is graded.
fn grader(shared: &Shared, class: ExecutorClass) -> Option<GraderTerms> {
    let service = shared.config.grading.service(class)?;
    let terms = service.terms();
    Some(GraderTerms {
        image: service.image,
        docker_image: service.pull_by(),
        args: service.args,
        socket: terms.socket?,
        health: service.health,
    })
}

/// The job that a session is, signed by the validator as its user.
fn session_job(shared: &Shared, order: &StreamingJobOrder) -> JobRequest {
    let service = &order.service;
    let unsigned = UserSignature {
        signature_type: BittensorSignature,
        signatory: UserKey(shared.keypair.hotkey()),
        timestamp_ns: 0,
        signature: Signature::from_bytes([0; 64]),
        signature_scope: SignatureScope::SignedFields,
    };
    let mut job = JobRequest {
        signature: unsigned,
        r#type: JobNew,
        message_type: JobRequestTag,
        uuid: order.job,
        job_namespace: Some(order.miner.map_or(NAMESPACE, |_| driver::GRADING).to_owned()),
        executor_class: service.class,
        docker_image: service.pull_by(),
        args: service.args.clone(),
        env: IndexMap::clone(&service.env),
        use_gpu: service.class.has_gpu(),
        volume: None,
        output_upload: None,
        artifacts_dir: None,
        on_trusted_miner: false,
        download_time_limit: NO_DATA,
        execution_time_limit: order.lifetime.as_secs(),
        upload_time_limit: NO_DATA,
        streaming_start_time_limit: order.start_limit.as_secs(),
        streaming_details: Some(StreamingDetails {
            public_key: order.certificate.clone(),
            executor_ip: None,
            muster: Some(SealTerms {
                grader: order
                    .miner
                    .is_none()
                    .then(|| grader(shared, service.class))
                    .flatten(),
                ..service.terms()
            }),
        }),
    };
    let now_ns = shared.clock.now().micros().saturating_mul(1_000);
    job.signature = sign_job(&shared.keypair, &job.signed_fields(), now_ns);
    job
}

#[cfg(test)]
mod tests {
    use muster_grading_runner::Grader;
    use muster_protocol::{Digest, ExecutorClass, ImageId};

    use super::*;

    #[test]
    fn what_challenges_executors_is_listed_with_and_without_a_gateway() {
        let mut config = Config::default();
        assert_eq!(whitelist(&config), None);
        let image = ImageId(Digest::of(b"grader"));
        let (class, args) = (ExecutorClass::AlwaysOnTest, vec![]);
        let grader = Grader {
            image,
            reference: None,
            args,
        };
        config.grading.images.insert(class, grader);
        let alone = whitelist(&config).unwrap();
        assert!(alone.contains(&image.to_string()), "{alone}");
        config.gateway.bind = Some(config.bind);
        assert_eq!(whitelist(&config), Some(alone), "nothing is served");
    }
}

//! The validator's own jobs: sessions that its gateway, its grading or its checks order, jobs that run again, and
//! trials of miners under suspicion. Each runs as a job whose user is the validator. An order that names the trusted
//! miner becomes a job for that miner.
//!
//! [`OwnJobs`] signs and stores a job, and hands it over as an [`OwnJobStep`] to the validator, which drives it. The
//! [`OwnJobRegistry`] knows the jobs that have not ended: the driver sends their news through it.

mod gateway_backend;
mod registry;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_gateway::backend::{JobNews, StreamingJobOrder};
use muster_gateway::session_job::{SessionJobParts, sign_session_job};
use muster_http::addresses::AddressRules;
use muster_identity::Keypair;
use muster_job_messages::outgoing::GRADING_NAMESPACE;
use muster_process::SharedClock;
use muster_protocol::wire::encode;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::wire::miner::GraderTerms;
use muster_protocol::{ExecutorClass, Hotkey, JobId, MinerKey, Timestamp};
use muster_store::StoreError;
use muster_validator_store::{OwnJobRestart, Store};
use tokio::sync::mpsc;

pub use registry::OwnJobRegistry;

/// The namespace of the jobs that run the gateway's sessions.
const GATEWAY_NAMESPACE: &str = "muster.gateway";
/// The namespace of the sessions on the trusted miner.
const CHECK_NAMESPACE: &str = "muster.check";
/// The namespace of checks that a miner must not distinguish from users' jobs. No miner is sent a namespace. They are
/// paid as users' jobs are, and a restart does not call them off.
pub const DISGUISED_NAMESPACE: &str = "muster.own-check";

/// The namespace of trials, which look to a miner like users' jobs until they end without pay.
pub const TRIAL_NAMESPACE: &str = "muster.trial";

/// Steps that may wait for the validator.
const STEPS_WAITING: usize = 64;

/// A step of a job of the validator's own, which the store has already.
#[derive(Debug)]
pub enum OwnJobStep {
    /// The job begins.
    Start {
        /// The signed job.
        request: Box<UserJobRequest>,
        /// The time at which it was stored.
        since: Timestamp,
    },
    /// The job is called off.
    Cancel {
        /// The id of the job, which may have ended meanwhile.
        job: JobId,
        /// The reason, as text for the miner and the log.
        reason: &'static str,
    },
}

/// The dependencies of [`OwnJobs`].
pub struct OwnJobDeps {
    /// The validator's key, which signs the jobs.
    pub keypair: Keypair,
    /// The clock of the validator.
    pub clock: SharedClock,
    /// The validator's store.
    pub store: Arc<Store>,
    /// The addresses at which a session may be dialled.
    pub rules: Arc<AddressRules>,
    /// The coldkey of a miner; its hotkey if the chain has not named its owner yet.
    pub owner_of: Box<dyn Fn(MinerKey) -> Hotkey + Send + Sync>,
    /// The trusted miner; `None` if the validator has none.
    pub trusted_miner: Option<MinerKey>,
    /// The grader that challenges an executor while it serves, by the executor's class. An absent class is not graded.
    pub graders: BTreeMap<ExecutorClass, GraderTerms>,
    /// The jobs that have not ended.
    pub registry: Arc<OwnJobRegistry>,
    /// Called when the store fails. The validator cannot go on then.
    pub on_store_failure: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Begins and ends the validator's own jobs. Clones share one.
#[derive(Clone)]
pub struct OwnJobs {
    deps: Arc<OwnJobDeps>,
    steps: mpsc::Sender<OwnJobStep>,
}

impl std::fmt::Debug for OwnJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnJobs")
    }
}

impl OwnJobs {
    /// The validator's own jobs, and the steps that the validator takes with them, in their order.
    pub fn new(deps: OwnJobDeps) -> (Self, mpsc::Receiver<OwnJobStep>) {
        let (steps, taken) = mpsc::channel(STEPS_WAITING);
        let deps = Arc::new(deps);
        (Self { deps, steps }, taken)
    }

    /// Begins the job of a session. Its first news may come before this returns.
    ///
    /// # Errors
    /// The job cannot be stored, or the validator is stopping; the reason as text for the log.
    pub async fn begin(&self, order: StreamingJobOrder) -> Result<(), String> {
        let parts = self.session_parts(&order);
        let request = sign_session_job(&order, parts, self.deps.clock.now());
        let restart = OwnJobRestart::CalledOff;
        self.start(request, order.miner, order.news, restart).await
    }

    /// Begins a signed job that this miner alone may run, and that looks to it like a user's. The job has no news: its
    /// end is in the store.
    ///
    /// # Errors
    /// The job cannot be stored, its id is known, or the validator is stopping; the reason as text for the log.
    pub async fn begin_disguised(&self, request: UserJobRequest, miner: MinerKey) -> Result<(), String> {
        let news = mpsc::channel(1).0;
        self.start(request, Some(miner), news, OwnJobRestart::GoesOn)
            .await
    }

    /// Runs a signed job, and returns once it is over. Only `miner` may run it, if not `None`.
    ///
    /// # Errors
    /// The job cannot be stored, or the validator is stopping; the reason as text for the log.
    pub async fn run(&self, request: UserJobRequest, miner: Option<MinerKey>) -> Result<(), String> {
        let job = request.uuid;
        // A job without a session has no news but its end.
        let (news, restart) = (mpsc::channel(1).0, OwnJobRestart::CalledOff);
        self.start(request, miner, news, restart).await?;
        self.deps.registry.wait_for_end(job).await;
        Ok(())
    }

    /// Ends a job that has not ended yet, as called off.
    pub async fn end(&self, job: JobId, reason: &'static str) {
        // A validator that stops takes no further step; the store has the cancellation then.
        let place = self.steps.reserve().await.ok();
        match (self.deps.store.cancel(job, reason).await, place) {
            (Ok(true), Some(place)) => place.send(OwnJobStep::Cancel { job, reason }),
            (Ok(_), _) => {}
            (Err(error), _) => (self.deps.on_store_failure)(error),
        }
    }

    /// Stores and starts a signed job. Only `miner` may run it, if not `None`. The step has its place before the job is
    /// stored, so that a caller who gives up while none is free leaves no stored job.
    async fn start(
        &self,
        request: UserJobRequest,
        miner: Option<MinerKey>,
        news: mpsc::Sender<JobNews>,
        restart: OwnJobRestart,
    ) -> Result<(), String> {
        let Ok(place) = self.steps.reserve().await else {
            return Err("the validator is stopping".to_owned());
        };
        let (deps, since) = (&self.deps, self.deps.clock.now());
        let frame = encode(&request);
        match deps.store.admit_own(&request, &frame, restart, since).await {
            Ok(true) => {
                deps.registry.add(request.uuid, miner, news);
                let request = Box::new(request);
                place.send(OwnJobStep::Start { request, since });
                Ok(())
            }
            Ok(false) => Err("its job has an id that was used before".to_owned()),
            Err(error) => {
                let text = error.to_string();
                (self.deps.on_store_failure)(error);
                Err(text)
            }
        }
    }

    /// The validator's part of the job that runs a session.
    fn session_parts(&self, order: &StreamingJobOrder) -> SessionJobParts<'_> {
        let on_trusted_miner = order.miner.is_some() && order.miner == self.deps.trusted_miner;
        let (namespace, grader) = match order.miner {
            None => (
                GATEWAY_NAMESPACE,
                self.deps.graders.get(&order.service.class).cloned(),
            ),
            Some(_) if on_trusted_miner => (CHECK_NAMESPACE, None),
            Some(_) => (GRADING_NAMESPACE, None),
        };
        SessionJobParts {
            keypair: &self.deps.keypair,
            namespace,
            on_trusted_miner,
            grader,
        }
    }
}

/// Calls off the session jobs of an earlier process, before any job is resumed: only that process had the keys that
/// their endpoints let in.
///
/// # Errors
/// The store fails.
pub async fn cancel_earlier_sessions(store: &Store) -> Result<(), StoreError> {
    for job in store.open_own_jobs().await? {
        store.cancel(job, "the gateway was started anew").await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_process::clock::SystemClock;
    use muster_store::testing::sqlite;
    use muster_validator_store::MIGRATIONS;
    use uuid::Uuid;

    use super::*;

    const SERVICE: &str = r#"{
        "model": "tiny",
        "image": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "class": "always_on.test"
    }"#;

    fn trusted() -> MinerKey {
        MinerKey(Keypair::from_seed([2; 32]).hotkey())
    }

    fn own_jobs(store: Arc<Store>) -> (OwnJobs, mpsc::Receiver<OwnJobStep>) {
        OwnJobs::new(OwnJobDeps {
            keypair: Keypair::from_seed([1; 32]),
            clock: Arc::new(SystemClock::new()),
            store,
            rules: Arc::new(AddressRules::parse(&[]).unwrap()),
            owner_of: Box::new(|miner| miner.0),
            trusted_miner: Some(trusted()),
            graders: BTreeMap::new(),
            registry: Arc::default(),
            on_store_failure: Box::new(|error| panic!("{error}")),
        })
    }

    fn order(job: JobId, miner: Option<MinerKey>) -> StreamingJobOrder {
        StreamingJobOrder {
            job,
            service: serde_json::from_str(SERVICE).unwrap(),
            certificate: "a certificate".to_owned(),
            lifetime: Duration::from_secs(60),
            start_limit: Duration::from_secs(30),
            miner,
            news: mpsc::channel(1).0,
        }
    }

    #[tokio::test]
    async fn a_step_follows_what_is_stored_and_a_cancellation_follows_the_start() {
        let test = sqlite(&MIGRATIONS).await.unwrap();
        let store = Arc::new(Store::with_pool(test.pool.clone()).await.unwrap());
        let (own_jobs, mut steps) = own_jobs(Arc::clone(&store));
        let job = JobId::from_uuid(Uuid::from_u128(1));
        own_jobs.begin(order(job, Some(trusted()))).await.unwrap();
        assert_eq!(store.open_own_jobs().await.unwrap(), [job]);
        own_jobs.end(job, "no longer needed").await;
        // Neither has a step: the one is unknown, the other is called off already.
        own_jobs
            .end(JobId::from_uuid(Uuid::from_u128(2)), "no such job")
            .await;
        own_jobs.end(job, "again").await;
        let Some(OwnJobStep::Start { request, .. }) = steps.recv().await else {
            panic!("the job has not begun");
        };
        assert!(request.on_trusted_miner);
        assert_eq!(
            (request.uuid, request.job_namespace.as_deref()),
            (job, Some(CHECK_NAMESPACE))
        );
        let Some(OwnJobStep::Cancel {
            job: cancelled,
            reason,
        }) = steps.recv().await
        else {
            panic!("the job was not called off");
        };
        assert_eq!((cancelled, reason), (job, "no longer needed"));
        assert!(steps.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_job_whose_step_has_no_place_is_not_stored() {
        let test = sqlite(&MIGRATIONS).await.unwrap();
        let store = Arc::new(Store::with_pool(test.pool.clone()).await.unwrap());
        let (own_jobs, mut steps) = own_jobs(Arc::clone(&store));
        let job = |number: usize| JobId::from_uuid(Uuid::from_u128(number as u128));
        for number in 0..STEPS_WAITING {
            own_jobs.begin(order(job(number), None)).await.unwrap();
        }
        let mut late = std::pin::pin!(own_jobs.begin(order(job(STEPS_WAITING), None)));
        assert!(futures_util::poll!(&mut late).is_pending());
        assert_eq!(store.open_own_jobs().await.unwrap().len(), STEPS_WAITING);
        // A stop refuses the job before it is stored.
        steps.close();
        assert_eq!(late.await, Err("the validator is stopping".to_owned()));
        assert_eq!(store.open_own_jobs().await.unwrap().len(), STEPS_WAITING);
    }

    #[tokio::test]
    async fn a_disguised_job_is_pinned_and_goes_on_after_a_restart() {
        let test = sqlite(&MIGRATIONS).await.unwrap();
        let store = Arc::new(Store::with_pool(test.pool.clone()).await.unwrap());
        let (own_jobs, mut steps) = own_jobs(Arc::clone(&store));
        let (job, miner) = (JobId::from_uuid(Uuid::from_u128(1)), trusted());
        let order = order(job, None);
        let request = sign_session_job(&order, own_jobs.session_parts(&order), own_jobs.deps.clock.now());
        own_jobs.begin_disguised(request, miner).await.unwrap();
        assert!(matches!(steps.recv().await, Some(OwnJobStep::Start { .. })));
        assert_eq!(own_jobs.deps.registry.pinned_miner(job), Some(miner));
        cancel_earlier_sessions(&store).await.unwrap();
        assert_eq!(
            store.open_jobs().await.unwrap(),
            [job],
            "a cancellation would tell the miner what it was"
        );
        assert_eq!(store.open_own_jobs().await.unwrap(), []);
        assert!(store.cancel(job, "not called off before").await.unwrap());
    }

    #[tokio::test]
    async fn a_job_that_runs_returns_at_its_end_and_its_id_is_used_once() {
        let test = sqlite(&MIGRATIONS).await.unwrap();
        let store = Arc::new(Store::with_pool(test.pool.clone()).await.unwrap());
        let (own_jobs, mut steps) = own_jobs(store);
        let job = JobId::from_uuid(Uuid::from_u128(1));
        let order = order(job, None);
        let request = sign_session_job(&order, own_jobs.session_parts(&order), own_jobs.deps.clock.now());
        let again = request.clone();
        let running = own_jobs.run(request, None);
        let driving = async {
            steps.recv().await;
            own_jobs.deps.registry.end(job, "completed".to_owned());
        };
        let (ended, ()) = tokio::join!(running, driving);
        assert_eq!(ended, Ok(()));
        let refused = own_jobs.run(again, None).await;
        assert_eq!(refused, Err("its job has an id that was used before".to_owned()));
    }
}

//! Persistent executors: how they come in, who does not, and what happens when one of the two vanishes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_enrollment::{ExecutorRegistry, Invitation, InvitationTerms, StoredIdentity};
use muster_miner::Config;
use muster_process::Clock as _;
use muster_process::tls::{self, TlsIdentity};
use muster_protocol::wire::encode;
use muster_protocol::wire::executor::{
    EnrolExecutor, ExecutorHello, JobLog, JobProgress, LeaseOver, LogBytes, LogStream, OneTimeSecret,
    ProgressOf, Reattach,
};
use muster_protocol::wire::executor_socket::{ExecutorToMiner, MinerToExecutor};
use muster_protocol::wire::miner::StreamingDetails;
use muster_protocol::wire::muster::{ListedImage, WhitelistNotice};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{Digest, ExecutorClass, HordeFailureReason, ImageId};
use muster_testbed::free_address;
use muster_websocket::tls::connect_known;
use muster_websocket::{CloseCode, ConnectError, Limits, Socket};

use crate::harness::{CLASS, Executor, Miner, Party, Validator, initial, job, new_attempt, soon};

const HOUR: Duration = Duration::from_secs(3600);
/// The miner's interval between two checks that a connected executor is still registered.
const REGISTRY_CHECK: Duration = Duration::from_secs(5);

/// A miner that listens for persistent executors and none of its own.
struct Place {
    miner: Miner,
    roll: ExecutorRegistry,
    address: SocketAddr,
}

fn with_listener(address: SocketAddr) -> impl FnOnce(&mut Config) {
    move |config| {
        config.executor.count = 0;
        config.persistent.bind = Some(address);
        config.persistent.roll = config.receipts_dir.with_file_name("standing");
    }
}

impl Place {
    async fn open() -> Self {
        let address = free_address().unwrap();
        let miner = Miner::start_with(with_listener(address)).await;
        let roll = ExecutorRegistry::new(miner.folder.path().join("standing"));
        Self { miner, roll, address }
    }

    fn invite(&self) -> Invitation {
        let (address, now) = (self.address.to_string(), self.miner.clock.now());
        let terms = InvitationTerms {
            class: CLASS,
            capacity: 2,
            lives: HOUR,
            uses: 1,
        };
        self.roll.invite(address, terms, now).unwrap()
    }

    fn miner_certificate(&self) -> Digest {
        self.roll.identity().unwrap().fingerprint()
    }

    async fn dial(&self, identity: &TlsIdentity) -> Result<Party, ConnectError> {
        self.dial_expecting(identity, self.miner_certificate()).await
    }

    async fn dial_expecting(&self, identity: &TlsIdentity, miner: Digest) -> Result<Party, ConnectError> {
        let config = tls::client(identity, miner).unwrap();
        let address = self.address.to_string();
        let socket: Socket =
            connect_known(&address, "/v0/standing", Arc::new(config), &Limits::miner()).await?;
        Ok(Party { socket })
    }

    /// Shows a token; the answer as text.
    async fn enrol(&self, identity: &TlsIdentity, invitation: &Invitation) -> Result<ExecutorClass, String> {
        let mut party = self.dial(identity).await.map_err(|error| error.to_string())?;
        let request = EnrolExecutor {
            secret: invitation.secret.clone(),
            name: "box".to_owned(),
        };
        party
            .send(encode(&ExecutorToMiner::MusterEnrolExecutor(request)))
            .await;
        let answer = party.recv().await;
        if let MinerToExecutor::MusterExecutorEnrolled(enrolled) = answer {
            return Ok(enrolled.class);
        }
        let MinerToExecutor::GenericError(error) = answer else {
            panic!("{answer:?}")
        };
        Err(error.details.unwrap())
    }

    async fn enrolled(&self) -> TlsIdentity {
        let identity = identity();
        assert_eq!(self.enrol(&identity, &self.invite()).await, Ok(CLASS));
        identity
    }

    /// Comes to work.
    async fn hello(&self, identity: &TlsIdentity, class: ExecutorClass, capacity: u32) -> Executor {
        self.hello_busy(identity, class, capacity, 0).await
    }

    /// Comes to work with this many jobs of an earlier connection.
    async fn hello_busy(
        &self,
        identity: &TlsIdentity,
        class: ExecutorClass,
        capacity: u32,
        busy: u32,
    ) -> Executor {
        let mut party = self.dial(identity).await.unwrap();
        let hello = ExecutorHello {
            class,
            capacity,
            version: "test".to_owned(),
            busy,
        };
        party
            .send(encode(&ExecutorToMiner::MusterExecutorHello(hello)))
            .await;
        Executor {
            party,
            attempt: new_attempt(),
        }
    }

    /// A validator that sees this many executors: the miner is notified of them in its own time.
    async fn validator_sees(&self, count: u32) -> Validator {
        soon(async {
            loop {
                let mut validator = Validator::dial(&self.miner).await;
                // Greetings are taken once each.
                self.miner.clock.advance(Duration::from_secs(1));
                validator.now = self.miner.clock.now();
                validator.greet().await;
                let MinerToValidator::V0ExecutorManifestRequest(manifest) = validator.receive().await else {
                    panic!("the manifest comes first")
                };
                if manifest.manifest.count(CLASS) == count {
                    return validator;
                }
            }
        })
        .await
    }
}

fn identity() -> TlsIdentity {
    StoredIdentity::generate("box").unwrap().open("memory").unwrap()
}

/// The lease that comes next on a standing connection.
async fn takes_lease(executor: &mut Executor) {
    let MinerToExecutor::V0InitialJobRequest(offer) = executor.receive().await else {
        panic!("the offer comes first")
    };
    executor.attempt = offer.job_uuid;
}

async fn over(executor: &mut Executor) {
    let job_uuid = executor.attempt;
    executor
        .send_message(&ExecutorToMiner::MusterLeaseOver(LeaseOver { job_uuid }))
        .await;
}

/// The next message that is about a job.
async fn hears(validator: &mut Validator) -> MinerToValidator {
    loop {
        let message = validator.receive().await;
        let of_the_session = matches!(
            message,
            MinerToValidator::V0ExecutorManifestRequest(_) | MinerToValidator::MusterReceiptCountersigned(_)
        );
        if !of_the_session {
            return message;
        }
    }
}

fn horde_reason(message: MinerToValidator) -> HordeFailureReason {
    let MinerToValidator::V0HordeFailedRequest(failed) = message else {
        panic!("{message:?}")
    };
    failed.reason
}

#[tokio::test]
async fn a_token_enrols_one_executor_once() {
    let place = Place::open().await;
    let (first, second, third) = (identity(), identity(), identity());
    let (token, other, old) = (place.invite(), place.invite(), place.invite());
    assert_eq!(place.enrol(&first, &token).await, Ok(CLASS));
    let refused = place.enrol(&second, &token).await.unwrap_err();
    assert!(refused.contains("was used"), "{refused}");
    assert_eq!(place.enrol(&second, &other).await, Ok(CLASS));
    place.miner.clock.advance(HOUR);
    // Somebody is expected, so that this one comes as far as its token.
    place.invite();
    let refused = place.enrol(&third, &old).await.unwrap_err();
    assert!(refused.contains("expired"), "{refused}");
    place.miner.stop().await;
}

#[tokio::test]
async fn strangers_do_not_come_in() {
    let place = Place::open().await;
    let enrolled = place.enrolled().await;
    // No token is open now.
    let stranger = place.dial(&identity()).await;
    assert!(
        matches!(stranger, Err(ConnectError::Tls { .. })),
        "no known certificate"
    );
    let elsewhere = place
        .dial_expecting(&enrolled, Digest::of(b"another miner"))
        .await;
    assert!(
        matches!(elsewhere, Err(ConnectError::Tls { .. })),
        "another miner"
    );
    let plain = format!("ws://{}/v0/standing", place.address);
    let plain = soon(muster_websocket::connect(&plain, &Limits::miner())).await;
    assert!(plain.is_err(), "no TLS");
    let nobody = Place::open().await;
    let nobody = nobody.dial(&enrolled).await;
    assert!(nobody.is_err(), "a miner that has never heard of it");
    place.miner.stop().await;
}

#[tokio::test]
async fn an_executor_is_what_it_was_enrolled_as() {
    let place = Place::open().await;
    let enrolled = place.enrolled().await;
    for (class, capacity, word) in [
        (ExecutorClass::AlwaysOnLlmA6000, 1, "class"),
        (CLASS, 3, "1 to 2 jobs"),
        (CLASS, 0, "1 to 2 jobs"),
    ] {
        let mut executor = place.hello(&enrolled, class, capacity).await;
        let refused = executor.receive_error().await;
        assert!(refused.contains(word), "{refused}");
        assert_eq!(executor.party.closed().await.code, 1008);
    }
    place.miner.stop().await;
}

#[tokio::test]
async fn lease_after_lease_goes_over_one_connection_and_its_output_is_heard_live() {
    let place = Place::open().await;
    let enrolled = place.enrolled().await;
    place.validator_sees(0).await;
    let mut executor = place.hello(&enrolled, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    for _ in 0..3 {
        let attempt = new_attempt();
        validator.offer(attempt).await;
        takes_lease(&mut executor).await;
        assert_eq!(executor.attempt, attempt);
        let progress = JobProgress {
            layers: None,
            job_uuid: attempt,
            of: ProgressOf::ImagePull,
            done: 1,
            total: Some(2),
        };
        executor
            .send_message(&ExecutorToMiner::MusterJobProgress(progress))
            .await;
        executor.ready().await;
        assert_eq!(
            hears(&mut validator).await,
            MinerToValidator::MusterJobProgress(progress)
        );
        assert!(matches!(
            hears(&mut validator).await,
            MinerToValidator::V0ExecutorReadyRequest(_)
        ));
        validator
            .send_message(&ValidatorToMiner::V0JobRequest(Box::new(job(attempt))))
            .await;
        let log = JobLog {
            job_uuid: attempt,
            stream: LogStream::Stdout,
            offset: 0,
            data: LogBytes::new(b"hello".to_vec()).unwrap(),
        };
        executor
            .send_message(&ExecutorToMiner::MusterJobLog(Box::new(log.clone())))
            .await;
        assert_eq!(
            hears(&mut validator).await,
            MinerToValidator::MusterJobLog(Box::new(log))
        );
        executor.run().await;
        for _ in 0..3 {
            hears(&mut validator).await;
        }
        assert!(matches!(
            hears(&mut validator).await,
            MinerToValidator::V0JobFinishedRequest(_)
        ));
        over(&mut executor).await;
    }
    place.miner.stop().await;
}

#[tokio::test]
async fn an_executor_that_vanishes_ends_its_lease_and_is_no_capacity_any_more() {
    let place = Place::open().await;
    let enrolled = place.enrolled().await;
    let mut executor = place.hello(&enrolled, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    validator.offer(new_attempt()).await;
    takes_lease(&mut executor).await;
    drop(executor);
    let lost = hears(&mut validator).await;
    assert_eq!(horde_reason(lost), HordeFailureReason::ExecutorDisconnected);
    place.validator_sees(0).await;
    // It comes back and works on.
    let mut executor = place.hello(&enrolled, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    assert_eq!(
        horde_reason(skip_to_horde_failure(&mut validator).await),
        HordeFailureReason::ExecutorDisconnected,
        "told again until it is acknowledged"
    );
    validator.offer(new_attempt()).await;
    takes_lease(&mut executor).await;
    place.miner.stop().await;
}

async fn skip_to_horde_failure(validator: &mut Validator) -> MinerToValidator {
    loop {
        let message = hears(validator).await;
        if matches!(message, MinerToValidator::V0HordeFailedRequest(_)) {
            return message;
        }
    }
}

#[tokio::test]
async fn one_that_is_struck_off_is_let_go_and_does_not_come_back() {
    let place = Place::open().await;
    let enrolled = place.enrolled().await;
    let mut executor = place.hello(&enrolled, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    validator.offer(new_attempt()).await;
    takes_lease(&mut executor).await;
    place.roll.revoke(&enrolled.fingerprint().hex()).unwrap();
    // One interval and no more: after many of them the lease's own time to become ready would be over.
    place.miner.clock.advance(REGISTRY_CHECK);
    let closed = soon(executor.party.closed()).await;
    assert_eq!(
        (closed.code, closed.reason.contains("removed it")),
        (CloseCode::Policy, true)
    );
    let lost = hears(&mut validator).await;
    assert_eq!(horde_reason(lost), HordeFailureReason::ExecutorDisconnected);
    assert!(place.dial(&enrolled).await.is_err());
    place.miner.stop().await;
}

#[tokio::test]
async fn a_miner_that_restarts_reports_the_lease_lost_and_takes_its_executor_back() {
    let place = Place::open().await;
    let enrolled = place.enrolled().await;
    let mut executor = place.hello(&enrolled, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    takes_lease(&mut executor).await;
    executor.ready().await;
    let Place { miner, roll, address } = place;
    let miner = miner.killed_and_restarted_with(with_listener(address)).await;
    drop(executor);
    let place = Place { miner, roll, address };
    let mut executor = place.hello(&enrolled, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    let lost = skip_to_horde_failure(&mut validator).await;
    assert_eq!(horde_reason(lost), HordeFailureReason::ExecutorDisconnected);
    validator.offer(new_attempt()).await;
    takes_lease(&mut executor).await;
    place.miner.stop().await;
}

#[tokio::test]
async fn messages_about_another_executors_lease_are_ignored() {
    let place = Place::open().await;
    let (one, two) = (place.enrolled().await, place.enrolled().await);
    let mut first = place.hello(&one, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    let attempt = new_attempt();
    validator.offer(attempt).await;
    takes_lease(&mut first).await;
    let mut second = place.hello(&two, CLASS, 1).await;
    second.attempt = attempt;
    second.ready().await;
    assert!(
        second
            .receive_error()
            .await
            .contains("not served on this connection")
    );
    over(&mut second).await;
    assert!(
        second
            .receive_error()
            .await
            .contains("not served on this connection")
    );
    first.ready().await;
    assert!(matches!(
        hears(&mut validator).await,
        MinerToValidator::V0ExecutorReadyRequest(_)
    ));
    place.miner.stop().await;
}

#[tokio::test]
async fn an_executor_comes_back_to_no_more_jobs_than_it_stated() {
    let place = Place::open().await;
    let enrolled = place.enrolled().await;
    let mut executor = place.hello_busy(&enrolled, CLASS, 1, 1).await;
    let back = |attempt| {
        ExecutorToMiner::MusterReattach(Reattach {
            job_uuid: attempt,
            epoch: 1,
            secret: OneTimeSecret::from_bytes([0; 32]),
            job_ms: None,
        })
    };
    let unknown = new_attempt();
    executor.send_message(&back(unknown)).await;
    let MinerToExecutor::MusterCancelJob(cancel) = executor.receive().await else {
        panic!("a lease that is not known is over")
    };
    assert_eq!(cancel.job_uuid, unknown);
    for attempt in [unknown, new_attempt()] {
        executor.send_message(&back(attempt)).await;
        let MinerToExecutor::MusterCancelJob(cancel) = executor.receive().await else {
            panic!("it is not sent away")
        };
        assert!(
            cancel.reason.contains("stated no further job"),
            "{}",
            cancel.reason
        );
    }
    place.miner.stop().await;
}

/// A session of this image, offered under terms.
pub(crate) fn session_of(image: ImageId, validator: &Validator) -> ValidatorToMiner {
    let terms = serde_json::json!({
        "model": "tiny", "image": image, "scheme": "text", "health": "/health", "socket": "http.sock", "input_price": 1,
        "output_price": 2,
    });
    let mut offer = initial(new_attempt(), validator.now);
    offer.streaming_details = Some(StreamingDetails {
        public_key: String::new(),
        executor_ip: None,
        muster: Some(serde_json::from_value(terms).unwrap()),
    });
    ValidatorToMiner::V0InitialJobRequest(Box::new(offer))
}

#[tokio::test]
async fn listed_images_reach_persistent_executors_and_unlisted_ones_may_not_serve() {
    let place = Place::open().await;
    let first = place.enrolled().await;
    let mut executor = place.hello(&first, CLASS, 1).await;
    let mut validator = place.validator_sees(1).await;
    let listed = |model: &str, class| ListedImage {
        image: ImageId(Digest::of(model.as_bytes())),
        reference: None,
        class,
        model: model.to_owned(),
        share: None,
    };
    let tiny = listed("tiny", CLASS);
    let notice = WhitelistNotice {
        images: vec![tiny.clone(), listed("huge", ExecutorClass::AlwaysOnGpu24Gb)],
    };
    validator
        .send_message(&ValidatorToMiner::MusterWhitelist(notice))
        .await;
    let told = |heard: MinerToExecutor| {
        let MinerToExecutor::MusterWhitelist(notice) = heard else {
            panic!("{heard:?}");
        };
        notice.images
    };
    let of_its_class = vec![ListedImage {
        share: Some(0),
        ..tiny.clone()
    }];
    assert_eq!(
        told(executor.receive().await),
        of_its_class,
        "the images of its class"
    );
    let second = place.enrolled().await;
    let mut later = place.hello(&second, CLASS, 1).await;
    assert_eq!(
        told(later.receive().await),
        of_its_class,
        "an executor that connects later gets it, too"
    );

    let another = ImageId(Digest::of(b"another"));
    validator.send_message(&session_of(another, &validator)).await;
    let declined = loop {
        if let MinerToValidator::V0DeclineJobRequest(declined) = validator.receive().await {
            break declined.message;
        }
    };
    let why = format!("the image {another} is not on the whitelist");
    assert!(declined.starts_with(&why), "{declined}");
    validator.send_message(&session_of(tiny.image, &validator)).await;
    // It may be notified of the second executor meanwhile.
    while !matches!(validator.receive().await, MinerToValidator::V0AcceptJobRequest(_)) {}
}

//! The subnet as a gateway sees it: jobs that become sealed sessions in front of the test's own engine.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use muster_gateway::backend::{JobNews, NoRoom, StreamingJobOrder, ValidatorBackend};
use muster_identity::{Keypair, sign_streaming_ready};
use muster_process::{SharedClock, Tasks, certificate};
use muster_protocol::wire::miner::StreamingJobReady;
use muster_protocol::{
    AttemptId, Digest, ExecutorClass, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey,
};
use muster_response_proof::{Attestation, SessionId, Text, seal};
use muster_sealing_proxy::socket::{JobSocket, SocketOwner};
use muster_sealing_proxy::{Endpoint, EngineAddress, Limits, ProofSigner, SealingProxy, Upstream};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::engine::{Engine, PADDING};
use crate::failed_requests::{self, FirstRequest};
use crate::hidden_proofs;

/// The course of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobFate {
    /// A sealed session.
    Seals,
    /// An endpoint without a seal: every path reaches the engine.
    CannotSeal,
    /// An attestation with another key's signature.
    Forged,
    /// An executor whose clock is this many seconds ahead.
    ClockAhead(i64),
    /// Another image than the whitelisted one.
    OtherImage,
    /// The miner did not sign where the job answers.
    Unsigned,
    /// A session that signs its answers, keeps the proofs to itself, and answers the search for them without an end.
    HidesProofs,
    /// A session that gives no answer to its first request.
    FailsFirst(FirstRequest),
    /// The job ends before it is up.
    Fails,
    /// No executor is free; one is for a job that is this many seconds shorter, if not 0.
    NoRoom(u64),
}

pub(crate) struct Subnet {
    pub(crate) fates: Mutex<Vec<JobFate>>,
    /// TestBackend start only while this is true.
    pub(crate) open: watch::Sender<bool>,
    pub(crate) begun: AtomicUsize,
    /// The times of the jobs that were ordered.
    pub(crate) lifetimes: Mutex<Vec<Duration>>,
    /// Changes when an executor may have become free.
    pub(crate) room: watch::Sender<()>,
    /// The classes for whose executors jobs wait.
    pub(crate) waiting: watch::Sender<BTreeSet<ExecutorClass>>,
    pub(crate) ended: Mutex<Vec<(JobId, &'static str)>>,
    running: Mutex<HashMap<JobId, RunningJob>>,
    pub(crate) engine: Engine,
    clock: SharedClock,
    tasks: Tasks,
}

struct RunningJob {
    news: mpsc::Sender<JobNews>,
    /// Dropped when the job dies, which cuts all answers under way.
    endpoint: Option<Endpoint>,
    tasks: Tasks,
}

pub(crate) fn validator() -> Keypair {
    Keypair::from_seed([3; 32])
}

pub(crate) fn miner() -> Keypair {
    Keypair::from_seed([4; 32])
}

/// The miner that serves a model.
fn miner_of(model: &str) -> Keypair {
    match model {
        PADDING => Keypair::from_seed([9; 32]),
        _ => miner(),
    }
}

pub(crate) struct TestBackend(pub(crate) Arc<Subnet>);

impl ValidatorBackend for TestBackend {
    fn validator(&self) -> ValidatorKey {
        ValidatorKey(validator().hotkey())
    }

    fn permits_address(&self, host: &str, address: SocketAddr) -> bool {
        address.ip().is_loopback() && host != "localhost"
    }

    fn owner_of(&self, miner: MinerKey) -> Hotkey {
        miner.0
    }

    fn start_job(&self, order: StreamingJobOrder) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.0.begun.fetch_add(1, Ordering::SeqCst);
            let subnet = Arc::clone(&self.0);
            self.0.tasks.spawn("job", async move { subnet.run(order).await });
            Ok(())
        })
    }

    fn room_changes(&self) -> watch::Receiver<()> {
        self.0.room.subscribe()
    }

    fn waiting_jobs(&self) -> watch::Receiver<BTreeSet<ExecutorClass>> {
        self.0.waiting.subscribe()
    }

    fn end_job(&self, job: JobId, why: &'static str, _is_closed: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.ended.lock().unwrap().push((job, why));
            let running = self.0.running.lock().unwrap().remove(&job);
            drop(running);
        })
    }
}

impl Subnet {
    pub(crate) fn new(clock: &SharedClock, tasks: &Tasks) -> Self {
        Self {
            fates: Mutex::default(),
            open: watch::Sender::new(true),
            begun: AtomicUsize::new(0),
            lifetimes: Mutex::default(),
            room: watch::Sender::default(),
            waiting: watch::Sender::default(),
            ended: Mutex::default(),
            running: Mutex::default(),
            engine: Engine::new(tasks),
            clock: Arc::clone(clock),
            tasks: tasks.clone(),
        }
    }

    async fn run(&self, order: StreamingJobOrder) {
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        let fate = {
            let mut fates = self.fates.lock().unwrap();
            if fates.is_empty() {
                JobFate::Seals
            } else {
                fates.remove(0)
            }
        };
        self.lifetimes.lock().unwrap().push(order.lifetime);
        if let JobFate::NoRoom(shorter_by) = fate {
            let shorter_by = (shorter_by > 0).then(|| Duration::from_secs(shorter_by));
            let news = JobNews::Ended {
                why: "all executors are at work".to_owned(),
                at_work: Vec::new(),
                no_room: Some(NoRoom {
                    shorter_by,
                    expected: None,
                }),
            };
            order.news.send(news).await.unwrap();
            return;
        }
        if fate == JobFate::Fails {
            order.news.send(ended("no miner took it")).await.unwrap();
            return;
        }
        let tasks = Tasks::new();
        let (ready, endpoint) = self.endpoint(&order, fate, &tasks).await;
        let miner = MinerKey(miner_of(&order.service.model).hotkey());
        let running = RunningJob {
            news: order.news.clone(),
            endpoint,
            tasks,
        };
        self.running.lock().unwrap().insert(order.job, running);
        let ready = Box::new(ready);
        order.news.send(JobNews::Ready { miner, ready }).await.unwrap();
    }

    async fn endpoint(
        &self,
        order: &StreamingJobOrder,
        fate: JobFate,
        tasks: &Tasks,
    ) -> (StreamingJobReady, Option<Endpoint>) {
        let ahead = match fate {
            JobFate::ClockAhead(secs) => secs,
            JobFate::Seals
            | JobFate::CannotSeal
            | JobFate::Forged
            | JobFate::OtherImage
            | JobFate::Unsigned
            | JobFate::HidesProofs
            | JobFate::FailsFirst(_)
            | JobFate::NoRoom(_)
            | JobFate::Fails => 0,
        };
        let clock: SharedClock = Arc::new(SkewedClock(Arc::clone(&self.clock), ahead));
        let server = certificate::make_self_signed(&["localhost".to_owned()]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let attempt = AttemptId::first_of(order.job);
        let client = certificate::digest_of_pem(&order.certificate).unwrap();
        let session = Keypair::generate();
        let miner = miner_of(&order.service.model);
        let now = clock.now();
        let attestation = Attestation {
            session: SessionId(Uuid::new_v4()),
            session_key: session.hotkey(),
            job: order.job,
            attempt,
            miner: MinerKey(miner.hotkey()),
            audience: ValidatorKey(validator().hotkey()),
            server_certificate: server.identity.fingerprint(),
            client_certificate: client,
            executor: Text::new("executor").unwrap(),
            address: Text::new(address.to_string()).unwrap(),
            image: if fate == JobFate::OtherImage {
                ImageId(Digest::of(b"another"))
            } else {
                order.service.image
            },
            model: None,
            scheme: order.service.scheme,
            price: order.service.price(),
            not_before: now,
            not_after: now.plus(order.lifetime),
        };
        let envelope = if fate == JobFate::Forged {
            seal(&attestation, &Keypair::generate())
        } else {
            seal(&attestation, &miner)
        };
        let socket = JobSocket::new(self.engine.folder(), "http.sock", SocketOwner::Trusted).unwrap();
        let limits = Limits::default();
        let endpoint = if fate == JobFate::CannotSeal {
            let tls = muster_process::tls::server(&server.identity).unwrap();
            tasks.spawn("plain proxy", serve_unsealed(listener, Arc::new(tls)));
            None
        } else {
            let sealer = ProofSigner::new(session, envelope, Arc::clone(&clock)).unwrap();
            let upstream = Upstream::new(EngineAddress::Socket(socket), &limits, tasks);
            let proxy = SealingProxy::new(sealer, upstream, limits, tasks.clone());
            if fate == JobFate::HidesProofs {
                let tls = Arc::new(muster_process::tls::server(&server.identity).unwrap());
                let hiding = hidden_proofs::serve(listener, tls, proxy, clock, tasks.clone());
                tasks.spawn("hiding proxy", hiding);
                return (Self::ready(&miner, fate, attempt, address, server.pem), None);
            }
            if let JobFate::FailsFirst(first) = fate {
                let tls = Arc::new(muster_process::tls::server(&server.identity).unwrap());
                let failing = failed_requests::serve(listener, tls, proxy, first, tasks.clone());
                tasks.spawn("failing proxy", failing);
                return (Self::ready(&miner, fate, attempt, address, server.pem), None);
            }
            Some(Endpoint::open(listener, &server.identity, client, proxy, clock).unwrap())
        };
        (Self::ready(&miner, fate, attempt, address, server.pem), endpoint)
    }

    /// The place where a job answers, in its miner's words.
    fn ready(
        miner: &Keypair,
        fate: JobFate,
        attempt: AttemptId,
        address: SocketAddr,
        pem: String,
    ) -> StreamingJobReady {
        let unsigned = Keypair::generate();
        let by = if fate == JobFate::Unsigned {
            &unsigned
        } else {
            miner
        };
        let ip = address.ip().to_string();
        let signature = sign_streaming_ready(by, attempt, &ip, address.port(), &pem);
        StreamingJobReady {
            job_uuid: attempt,
            executor_token: None,
            public_key: pem,
            ip: Some(ip),
            port: address.port(),
            miner_signature: Some(signature),
        }
    }

    /// Every running session signs an answer that never reaches the gateway, as if the gateway had stopped waiting.
    pub(crate) async fn answer_nobody(&self) {
        let seals: Vec<_> = {
            let running = self.running.lock().unwrap();
            let endpoints = running.values().filter_map(|running| running.endpoint.as_ref());
            endpoints.map(|endpoint| Arc::clone(endpoint.proxy())).collect()
        };
        for seal in seals {
            let request = http::Request::get("/health").body(http_body_util::Full::<Bytes>::default());
            let answered = seal.answer(request.unwrap()).await;
            assert_eq!((answered.status().as_u16(), seal.signer().under_way()), (200, 0));
        }
    }

    /// Every session closes by itself and is gone. Its miner forwards the close statement after `change` was applied.
    pub(crate) async fn close_all(&self, change: impl Fn(String) -> String) {
        let running: Vec<_> = self.running.lock().unwrap().drain().collect();
        for (_, mut running) in running {
            let endpoint = running.endpoint.take().unwrap();
            let sealer = Arc::clone(endpoint.proxy().signer());
            endpoint.close(Duration::from_secs(1)).await;
            running.tasks.shutdown();
            let close = change(sealer.close().to_text());
            running.news.send(JobNews::Closed(close)).await.unwrap();
            let over = ended("the job is done");
            running.news.send(over).await.unwrap();
        }
    }

    /// The number of proofs that the running sessions have signed.
    pub(crate) fn signed(&self) -> u64 {
        let running = self.running.lock().unwrap();
        let endpoints = running.values().filter_map(|running| running.endpoint.as_ref());
        endpoints.map(|endpoint| endpoint.proxy().signer().signed()).sum()
    }

    /// Falsely reports that every session's machine is gone.
    pub(crate) fn declare_dead(&self) {
        for running in self.running.lock().unwrap().values() {
            let over = ended("the machine is gone");
            running.news.try_send(over).unwrap();
        }
    }

    /// Destroys every session's machine.
    pub(crate) fn kill_all(&self) {
        let running: Vec<_> = self.running.lock().unwrap().drain().collect();
        for (_, running) in running {
            running.tasks.shutdown();
            running.news.try_send(ended("the machine is gone")).unwrap();
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

/// An endpoint like ComputeHorde's proxy: TLS in front of an engine, without a seal.
async fn serve_unsealed(listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let acceptor = tokio_rustls::TlsAcceptor::from(tls);
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(mut stream) = acceptor.accept(stream).await else {
            continue;
        };
        let mut head = [0; 4096];
        let _ = stream.read(&mut head).await;
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        let _ = stream.shutdown().await;
    }
}

/// A clock that is this many seconds ahead.
#[derive(Debug)]
struct SkewedClock(SharedClock, i64);

impl muster_process::Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        let now = self.0.now();
        Timestamp::from_micros(now.micros() + self.1 * 1_000_000)
    }

    fn sleep_until(&self, deadline: Timestamp) -> muster_process::clock::Sleep {
        self.0
            .sleep_until(Timestamp::from_micros(deadline.micros() - self.1 * 1_000_000))
    }
}

fn ended(why: &str) -> JobNews {
    JobNews::Ended {
        why: why.to_owned(),
        at_work: Vec::new(),
        no_room: None,
    }
}

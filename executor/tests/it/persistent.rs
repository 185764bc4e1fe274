//! A persistent executor and a miner that leases it one job after another over TLS.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use muster_enrollment::{ExecutorCredentials, StoredIdentity};
use muster_executor::Error;
use muster_executor::persistent::serve;
use muster_process::task::Task;
use muster_process::{Coded as _, SystemClock, Tasks, tls};
use muster_protocol::{Digest, ErrorCode};
use muster_testbed::{until, within};
use muster_websocket::tls::{Callers, listen};
use muster_websocket::{CloseCode, Limits, Socket};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::support::lease::{Job, Lease};
use crate::support::{engine, image};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Passes every connection on to the test.
struct ConnectionQueue(mpsc::UnboundedSender<Socket>);

impl Callers for ConnectionQueue {
    async fn admits(&self, _certificate: Digest) -> bool {
        true
    }

    async fn serve(&self, socket: Socket, _certificate: Digest) {
        let _ = self.0.send(socket);
    }
}

pub(crate) struct EnrolledExecutor {
    sockets: mpsc::UnboundedReceiver<Socket>,
    tasks: Tasks,
    executor: Task<Result<(), Error>>,
    _folder: tempfile::TempDir,
}

impl EnrolledExecutor {
    /// An enrolled executor with the settings of `lease`, and its miner.
    pub(crate) async fn open(lease: &Lease, capacity: u32) -> Self {
        Self::open_program(lease, capacity, None).await
    }

    /// The same of an executor that ends once the program that the link leads to was replaced.
    async fn open_program(lease: &Lease, capacity: u32, program: Option<PathBuf>) -> Self {
        tls::install_provider();
        let (tasks, clock) = (Tasks::new(), Arc::new(SystemClock::new()));
        let identity = StoredIdentity::generate("miner").unwrap().open("memory").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let membership = ExecutorCredentials {
            address: listener.local_addr().unwrap().to_string(),
            miner: identity.fingerprint(),
            own: StoredIdentity::generate("executor").unwrap(),
        };
        let mut config = lease.config.clone();
        let folder = tempfile::tempdir().unwrap();
        config.persistent.membership = folder.path().join("membership.json");
        config.persistent.capacity = capacity;
        membership.store(&config.persistent.membership).unwrap();
        let (queue, sockets) = mpsc::unbounded_channel();
        let server = tls::server(&identity).unwrap();
        let queue = Arc::new(ConnectionQueue(queue));
        let listening = listen(
            listener,
            server,
            Limits::miner(),
            queue,
            tasks.clone(),
            clock.clone(),
            tasks.token(),
        );
        tasks.spawn("miner", listening);
        let executor = tasks.spawn("executor", serve(config, program, tasks.clone(), clock));
        Self {
            sockets,
            tasks,
            executor,
            _folder: folder,
        }
    }

    /// The next connection, after its first message.
    pub(crate) async fn next_connection(&mut self) -> ExecutorConnection {
        let socket = within("an executor", self.sockets.recv()).await.unwrap();
        let mut connection = ExecutorConnection(socket);
        assert_eq!(connection.recv().await["message_type"], "MusterExecutorHello");
        connection
    }

    pub(crate) async fn stop(self) {
        self.tasks.shutdown();
        self.executor.join().await.unwrap().unwrap();
    }
}

pub(crate) struct ExecutorConnection(Socket);

impl ExecutorConnection {
    pub(crate) async fn send(&mut self, message: &Value) {
        self.0.send(message.to_string()).await.unwrap();
    }

    async fn recv(&mut self) -> Value {
        let frame = within("a frame", self.0.recv()).await.unwrap();
        serde_json::from_str(&frame.expect("the executor left")).unwrap()
    }

    /// All messages up to one of this kind, without the metrics of the machine.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.recv().await;
            if message["message_type"] == "MusterExecutorMetrics" {
                assert!(message["memory_total"].as_u64().unwrap() > 0, "{message}");
                continue;
            }
            let last = message["message_type"] == kind;
            messages.push(message);
            if last {
                return messages;
            }
        }
    }

    /// Leases it a job, up to the moment when the program runs.
    pub(crate) async fn lease_job(&mut self, lease: &Lease, job: &Job) {
        self.send(&lease.offer(job)).await;
        self.until("V0ExecutorReadyRequest").await;
        self.send(&lease.request(job)).await;
        self.until("V0VolumesReadyRequest").await;
    }
}

#[tokio::test]
async fn leases_run_one_after_another_and_their_output_is_sent_live() {
    let engine = engine().await;
    image::load(&engine).await;
    let lease = Lease::new();
    let mut enrolled = EnrolledExecutor::open(&lease, 1).await;
    let mut connection = enrolled.next_connection().await;
    for _ in 0..2 {
        let lease = Lease::new();
        connection
            .lease_job(&lease, &Job::new(&["probe", "print", "100000"]))
            .await;
        let messages = connection.until("MusterLeaseOver").await;
        let of = |kind: &'static str| {
            messages
                .iter()
                .filter(move |message| message["message_type"] == kind)
        };
        let finished = of("V0JobFinishedRequest").next().unwrap();
        let stdout = finished["docker_process_stdout"].as_str().unwrap();
        let mut sent = 0;
        for log in of("MusterJobLog") {
            let data = STANDARD.decode(log["data"].as_str().unwrap()).unwrap();
            assert_eq!((&log["offset"], &log["stream"]), (&json!(sent), &json!("stdout")));
            assert!(stdout.as_bytes()[sent..].starts_with(&data));
            sent += data.len();
        }
        assert!(sent > 0, "{messages:?}");
        lease.assert_clean(&engine).await;
    }
    enrolled.stop().await;
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn several_leases_run_at_once_and_one_is_cancelled() {
    let engine = engine().await;
    image::load(&engine).await;
    let lease = Lease::new();
    let mut enrolled = EnrolledExecutor::open(&lease, 2).await;
    let mut connection = enrolled.next_connection().await;
    let (long, short) = (Lease::new(), Lease::new());
    connection
        .lease_job(&long, &Job::new(&["probe", "sleep", "3600"]))
        .await;
    connection
        .lease_job(&short, &Job::new(&["probe", "exit", "3"]))
        .await;
    let messages = connection.until("MusterLeaseOver").await;
    let failed = messages
        .iter()
        .find(|message| message["message_type"] == "V0JobFailedRequest")
        .unwrap();
    assert_eq!(failed["docker_process_exit_status"], 3);
    assert_eq!(failed["job_uuid"], json!(short.token.attempt()));
    let job_uuid = json!(long.token.attempt());
    connection
        .send(&json!({"message_type": "MusterCancelJob", "job_uuid": job_uuid, "reason": "enough"}))
        .await;
    let over = connection.until("MusterLeaseOver").await.pop().unwrap();
    assert_eq!(over["job_uuid"], job_uuid);
    long.assert_clean(&engine).await;
    enrolled.stop().await;
}

#[tokio::test]
async fn a_lost_miner_loses_its_job_and_is_dialled_again() {
    let engine = engine().await;
    image::load(&engine).await;
    let lease = Lease::new();
    let mut enrolled = EnrolledExecutor::open(&lease, 1).await;
    let mut connection = enrolled.next_connection().await;
    let lease = Lease::new();
    connection
        .lease_job(&lease, &Job::new(&["probe", "sleep", "3600"]))
        .await;
    lease.container_appears(&engine).await;
    drop(connection);
    let mut connection = enrolled.next_connection().await;
    // It connects again only after everything of the old connection was removed.
    lease.assert_clean(&engine).await;
    let lease = Lease::new();
    connection
        .lease_job(&lease, &Job::new(&["probe", "print", "0"]))
        .await;
    connection.until("V0JobFinishedRequest").await;
    enrolled.stop().await;
}

#[tokio::test]
async fn executor_whose_program_was_replaced_ends_after_the_lease_that_nobody_could_take_over() {
    let engine = engine().await;
    image::load(&engine).await;
    let folder = tempfile::tempdir().unwrap();
    let (link, new_link) = (folder.path().join("exe"), folder.path().join("new"));
    symlink("/usr/bin/muster", &link).unwrap();
    let lease = Lease::new();
    let mut enrolled = EnrolledExecutor::open_program(&lease, 1, Some(link.clone())).await;
    let mut connection = enrolled.next_connection().await;
    // The miner does not keep this lease, so the executor writes no journal of it.
    let lease = Lease::new();
    let job = Job::new(&["probe", "print", "1000"]);
    connection.lease_job(&lease, &job).await;
    symlink("/usr/bin/muster (deleted)", &new_link).unwrap();
    std::fs::rename(&new_link, &link).unwrap();
    connection.until("V0JobFinishedRequest").await;
    within("the executor's end", enrolled.executor.join())
        .await
        .unwrap()
        .unwrap();
    lease.assert_clean(&engine).await;
}

#[tokio::test]
async fn executor_that_is_turned_away_reports_it_and_stops() {
    let lease = Lease::new();
    let mut enrolled = EnrolledExecutor::open(&lease, 1).await;
    let connection = enrolled.next_connection().await;
    connection
        .0
        .close(CloseCode::Policy, "the operator removed it from the registry")
        .await;
    let error = within("the executor's end", enrolled.executor.join())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotEnrolled), "{error}");
}

#[tokio::test]
async fn listed_image_is_kept_before_its_first_job_unless_its_name_leads_elsewhere() {
    let engine = engine().await;
    let id = image::load(&engine).await.id;
    let lease = Lease::new();
    let mut enrolled = EnrolledExecutor::open(&lease, 1).await;
    let mut connection = enrolled.next_connection().await;
    let used = || muster_containers::image_leases::list_uses(&lease.config.images.cache_dir).unwrap();
    assert_eq!(used().len(), 0);
    let listed = |image: Digest, reference: Option<&str>| json!({"image": image, "reference": reference, "class": "always_on.test", "model": "tiny"});
    let forged = listed(Digest::of(b"another"), Some("127.0.0.1:9/muster/no-such-image:1"));
    let notice = json!({"message_type": "MusterWhitelist", "images": [forged, listed(id.0, None)]});
    connection.send(&notice).await;
    until("the image is kept", async || (!used().is_empty()).then_some(())).await;
    assert_eq!(used()[0].image, id);
    assert_eq!(used().len(), 1);
    enrolled.stop().await;
}

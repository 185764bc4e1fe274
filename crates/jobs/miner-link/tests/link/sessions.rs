//! A miner that says what the test says, and the attempts of one validator.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::Response;
use muster_identity::Keypair;
use muster_process::{SharedClock, Tasks, TestClock};
use muster_protocol::wire::encode;
use muster_protocol::wire::executor::{JobProgress, ProgressOf};
use muster_protocol::wire::miner::{
    AttemptNotice, ExecutorManifest, FromMiner, GenericError, JobFinished, ToMiner,
};
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::{AttemptId, MUSTER_PROTOCOL_HEADER, Manifest, MinerKey};
use muster_websocket::lines::{Heard, Line, Lines, Setup, Strays};
use muster_websocket::{Limits, Socket, server};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use uuid::Uuid;

const LINGER: Duration = Duration::from_secs(60);

/// Where sockets come in, and whether it shows that it is Muster.
#[derive(Clone)]
struct Bell(mpsc::UnboundedSender<Socket>, Tasks, bool);

struct Miner {
    key: MinerKey,
    address: SocketAddr,
    sockets: mpsc::UnboundedReceiver<Socket>,
}

async fn ring(
    State(bell): State<Bell>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let Bell(sockets, tasks, muster) = bell;
    let hand_over = move |socket| async move { drop(sockets.send(socket)) };
    let mut answer = server::upgrade(request, peer, &Limits::miner(), &tasks, hand_over).map(Body::new);
    if !muster {
        answer.headers_mut().remove(MUSTER_PROTOCOL_HEADER);
    }
    answer
}

/// A deadline for what must happen; nothing is measured by it.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(done) = tokio::time::timeout(Duration::from_secs(60), future).await else {
        panic!("waited in vain for {what}")
    };
    done
}

impl Miner {
    async fn open(muster: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, sockets) = mpsc::unbounded_channel();
        let tasks = Tasks::new();
        let service = Router::new()
            .fallback(ring)
            .with_state(Bell(sender, tasks.clone(), muster))
            .into_make_service_with_connect_info::<SocketAddr>();
        drop(tasks.spawn("door", async move { axum::serve(listener, service).await }));
        let key = MinerKey(Keypair::from_uri("//Miner").unwrap().hotkey());
        Self {
            key,
            address,
            sockets,
        }
    }

    /// The next connection, greeted.
    async fn accept(&mut self) -> Socket {
        let mut socket = within("a connection", self.sockets.recv()).await.unwrap();
        let first = hear(&mut socket).await;
        assert!(matches!(first, ToMiner::ValidatorAuthForMiner(_)), "{first:?}");
        socket
    }

    fn nobody_else_dials(&mut self) {
        assert!(self.sockets.try_recv().is_err(), "one more connection");
    }
}

async fn hear(socket: &mut Socket) -> ToMiner {
    let frame = within("a frame", socket.recv()).await.unwrap().unwrap();
    decode_from_validator(&frame).unwrap().message
}

async fn say(socket: &mut Socket, message: FromMiner) {
    socket.send(encode(&message)).await.unwrap();
}

fn attempt(n: u128) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(n))
}

fn accepted(n: u128) -> FromMiner {
    FromMiner::V0AcceptJobRequest(AttemptNotice { job_uuid: attempt(n) })
}

fn finished(n: u128, bytes: usize) -> FromMiner {
    FromMiner::V0JobFinishedRequest(JobFinished {
        job_uuid: attempt(n),
        docker_process_stdout: "x".repeat(bytes),
        docker_process_stderr: String::new(),
        artifacts: None,
        upload_results: None,
        image: None,
    })
}

fn complaint(words: String) -> FromMiner {
    FromMiner::GenericError(GenericError { details: Some(words) })
}

struct Validator {
    lines: Lines,
    strays: Strays,
    clock: TestClock,
    tasks: Tasks,
}

impl Validator {
    fn new(linger: Duration) -> Self {
        let clock = TestClock::default();
        let shared: SharedClock = Arc::new(clock.clone());
        let tasks = Tasks::new();
        let (lines, strays) = Lines::new(Setup {
            keypair: Keypair::from_uri("//Validator").unwrap(),
            clock: shared,
            tasks: tasks.clone(),
            linger,
            first: None,
        });
        Self {
            lines,
            strays,
            clock,
            tasks,
        }
    }

    fn line(&self, n: u128, miner: &Miner) -> Line {
        self.lines.line(attempt(n), miner.key, miner.address)
    }

    async fn until_held(&self, count: usize) {
        within("sessions to be let go", async {
            while self.lines.sessions_held() != count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

impl Drop for Validator {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

async fn up(line: &mut Line) {
    line.dial();
    let heard = within("a connection", line.next()).await;
    assert!(matches!(heard, Heard::Up), "{heard:?}");
    assert!(line.is_up());
}

async fn message(line: &mut Line) -> FromMiner {
    match within("a message", line.next()).await {
        Heard::Message(message) => *message,
        other @ (Heard::Up | Heard::Down(_) | Heard::Malformed(_)) => panic!("{other:?}"),
    }
}

async fn down(line: &mut Line) {
    let heard = within("the end", line.next()).await;
    assert!(matches!(heard, Heard::Down(_)), "{heard:?}");
    assert!(!line.is_up());
}

/// Both of a miner's attempts, and the one connection they share.
async fn pair(validator: &Validator, miner: &mut Miner) -> (Line, Line, Socket) {
    let (mut one, mut two) = (validator.line(1, miner), validator.line(2, miner));
    one.dial();
    two.dial();
    let socket = miner.accept().await;
    up(&mut one).await;
    up(&mut two).await;
    miner.nobody_else_dials();
    (one, two, socket)
}

#[tokio::test]
async fn attempts_of_a_muster_miner_share_a_session_and_each_hears_its_own() {
    let (mut miner, mut validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (mut one, mut two, mut socket) = pair(&validator, &mut miner).await;
    assert!(one.is_muster());
    let manifest = FromMiner::V0ExecutorManifestRequest(ExecutorManifest {
        manifest: Manifest::default(),
    });
    for said in [manifest.clone(), accepted(2), accepted(1), accepted(3)] {
        say(&mut socket, said).await;
    }
    assert_eq!(message(&mut one).await, accepted(1));
    assert_eq!(message(&mut two).await, accepted(2));
    for due in [manifest, accepted(3)] {
        let stray = within("a stray", validator.strays.recv()).await.unwrap();
        assert_eq!((stray.miner, stray.message), (miner.key, due));
        stray.reply.send("answered".to_owned()).await;
        assert_eq!(
            within("an answer", socket.recv()).await.unwrap().unwrap(),
            "answered"
        );
    }
    one.send("from one".to_owned()).await;
    two.send("from two".to_owned()).await;
    for due in ["from one", "from two"] {
        assert_eq!(within("a frame", socket.recv()).await.unwrap().unwrap(), due);
    }
}

#[tokio::test]
async fn attempts_of_any_other_miner_have_a_connection_each() {
    let (mut miner, validator) = (Miner::open(false).await, Validator::new(LINGER));
    let (mut one, mut two) = (validator.line(1, &miner), validator.line(2, &miner));
    one.dial();
    two.dial();
    let mut sockets = VecDeque::new();
    for line in [&mut one, &mut two] {
        let (socket, ()) = tokio::join!(miner.accept(), up(line));
        sockets.push_back(socket);
        assert!(!line.is_muster());
    }
    // Whoever comes later dials at once.
    let mut three = validator.line(3, &miner);
    let (socket, ()) = tokio::join!(miner.accept(), up(&mut three));
    sockets.push_back(socket);
    for (socket, n) in sockets.iter_mut().zip(1..) {
        say(socket, accepted(n)).await;
        // About another attempt: its own line is elsewhere.
        say(socket, accepted(9)).await;
    }
    let mut heard = Vec::new();
    for line in [&mut one, &mut two, &mut three] {
        heard.push(message(line).await.attempt().unwrap());
        assert_eq!(message(line).await, accepted(9));
    }
    heard.sort_unstable();
    assert_eq!(heard, [1, 2, 3].map(attempt), "each from a connection of its own");
    for line in [one, two, three] {
        line.close().await;
    }
    for mut socket in sockets {
        assert_eq!(within("the end", socket.recv()).await.unwrap(), None);
    }
    validator.until_held(0).await;
}

#[tokio::test]
async fn what_is_said_before_an_attempt_asks_is_kept_for_it() {
    let (mut miner, validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (mut early, mut late) = (validator.line(1, &miner), validator.line(2, &miner));
    early.dial();
    let mut socket = miner.accept().await;
    say(&mut socket, accepted(2)).await;
    say(&mut socket, accepted(1)).await;
    up(&mut early).await;
    assert_eq!(message(&mut early).await, accepted(1));
    up(&mut late).await;
    assert_eq!(message(&mut late).await, accepted(2));
}

#[tokio::test]
async fn a_lost_session_is_made_once_for_all_who_ask_again() {
    let (mut miner, validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (mut one, mut two, socket) = pair(&validator, &mut miner).await;
    drop(socket);
    down(&mut one).await;
    down(&mut two).await;
    one.dial();
    two.dial();
    let mut socket = {
        let accept = miner.accept();
        tokio::pin!(accept);
        loop {
            tokio::select! {
                biased;
                socket = &mut accept => break socket,
                () = tokio::task::yield_now() => validator.clock.advance(Duration::from_millis(10)),
            }
        }
    };
    up(&mut one).await;
    up(&mut two).await;
    say(&mut socket, accepted(2)).await;
    assert_eq!(message(&mut two).await, accepted(2));
    miner.nobody_else_dials();
}

#[tokio::test]
async fn a_miner_that_is_not_there_is_told_to_whoever_asked() {
    let validator = Validator::new(LINGER);
    let miner = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_, sockets) = mpsc::unbounded_channel();
        let key = MinerKey(Keypair::from_uri("//Miner").unwrap().hotkey());
        Miner {
            key,
            address: listener.local_addr().unwrap(),
            sockets,
        }
    };
    let mut line = validator.line(1, &miner);
    line.dial();
    down(&mut line).await;
    drop(line);
    validator.until_held(0).await;
}

#[tokio::test]
async fn an_attempt_that_does_not_listen_holds_nobody_up() {
    let (mut miner, mut validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (slow, mut quick, mut socket) = pair(&validator, &mut miner).await;
    for _ in 0..3 {
        say(&mut socket, finished(1, 1 << 20)).await;
    }
    let progress = |done| {
        let of = ProgressOf::Execution;
        FromMiner::MusterJobProgress(JobProgress {
            job_uuid: attempt(1),
            of,
            done,
            total: None,
        })
    };
    for done in 0..100 {
        say(&mut socket, progress(done)).await;
    }
    say(&mut socket, accepted(2)).await;
    assert_eq!(message(&mut quick).await, accepted(2));
    let missed = within("what is missed", validator.strays.recv()).await.unwrap();
    assert!(
        matches!(missed.message, FromMiner::MusterJobProgress(_)),
        "{missed:?}"
    );
    drop(slow);
}

#[tokio::test]
async fn a_miner_that_floods_an_attempt_is_cut_off() {
    let (mut miner, validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (flooded, mut other, mut socket) = pair(&validator, &mut miner).await;
    let flood = async { while socket.send(encode(&accepted(1))).await.is_ok() {} };
    tokio::join!(within("the end of the flood", flood), down(&mut other));
    drop(flooded);
}

#[tokio::test]
async fn a_complaint_is_heard_by_whom_it_names_or_by_all() {
    let (mut miner, mut validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (mut one, mut two, mut socket) = pair(&validator, &mut miner).await;
    say(
        &mut socket,
        complaint(format!("JobRequest {} refused: why", attempt(2))),
    )
    .await;
    say(
        &mut socket,
        complaint(format!(
            "Received JobRequest for unknown job_uuid: {}",
            attempt(3)
        )),
    )
    .await;
    say(&mut socket, complaint("Unknown validator".to_owned())).await;
    assert_eq!(message(&mut one).await, complaint("Unknown validator".to_owned()));
    assert!(
        matches!(message(&mut two).await, FromMiner::GenericError(error) if error.details.as_ref().unwrap().contains("refused"))
    );
    assert_eq!(message(&mut two).await, complaint("Unknown validator".to_owned()));
    let stray = within("a stray", validator.strays.recv()).await.unwrap();
    assert!(matches!(stray.message, FromMiner::GenericError(_)));
}

#[tokio::test]
async fn a_session_outlives_its_attempts_for_a_while() {
    let (mut miner, validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (one, two, mut socket) = pair(&validator, &mut miner).await;
    drop(one);
    let mut last = two;
    last.send("the last word".to_owned()).await;
    drop(last);
    assert_eq!(
        within("a frame", socket.recv()).await.unwrap().unwrap(),
        "the last word"
    );
    let mut next = validator.line(3, &miner);
    up(&mut next).await;
    miner.nobody_else_dials();
    drop(next);
    let closed = async {
        loop {
            tokio::select! {
                biased;
                end = socket.recv() => break end.unwrap(),
                () = tokio::task::yield_now() => validator.clock.advance(Duration::from_secs(1)),
            }
        }
    };
    assert_eq!(within("the end", closed).await, None);
    validator.until_held(0).await;
}

#[tokio::test]
async fn without_lingering_a_session_ends_with_its_last_attempt_and_its_words_arrive() {
    let (mut miner, validator) = (Miner::open(true).await, Validator::new(Duration::ZERO));
    let (one, mut two, mut socket) = pair(&validator, &mut miner).await;
    two.send("the last word".to_owned()).await;
    drop((one, two));
    assert_eq!(
        within("a frame", socket.recv()).await.unwrap().unwrap(),
        "the last word"
    );
    assert_eq!(within("the end", socket.recv()).await.unwrap(), None);
    assert_eq!(validator.lines.sessions_held(), 0);
    let mut next = validator.line(3, &miner);
    let (_socket, ()) = tokio::join!(miner.accept(), up(&mut next));
}

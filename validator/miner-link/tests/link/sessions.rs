//! A miner that sends what the test states, and the attempts of one validator.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::Response;
use muster_identity::Keypair;
use muster_miner_link::{ChannelEvent, LinkSetup, MinerChannel, MinerEndpoint, MinerLink, UnmatchedMessages};
use muster_process::{SharedClock, Tasks, TestClock};
use muster_protocol::wire::encode;
use muster_protocol::wire::executor::{JobProgress, ProgressOf};
use muster_protocol::wire::miner::{AttemptNotice, ExecutorManifest, GenericError, JobFinished};
use muster_protocol::wire::signing::decode_from_validator;
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::{AttemptId, MUSTER_PROTOCOL_HEADER, Manifest, MinerKey};
use muster_testbed::within;
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
        drop(tasks.spawn("listener", async move { axum::serve(listener, service).await }));
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
        let first = receive(&mut socket).await;
        assert!(
            matches!(first, ValidatorToMiner::ValidatorAuthForMiner(_)),
            "{first:?}"
        );
        socket
    }

    fn nobody_else_dials(&mut self) {
        assert!(self.sockets.try_recv().is_err(), "one more connection");
    }
}

async fn receive(socket: &mut Socket) -> ValidatorToMiner {
    let frame = within("a frame", socket.recv()).await.unwrap().unwrap();
    decode_from_validator(&frame).unwrap().message
}

async fn send_message(socket: &mut Socket, message: MinerToValidator) {
    socket.send(encode(&message)).await.unwrap();
}

fn attempt(n: u128) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(n))
}

fn accepted(n: u128) -> MinerToValidator {
    MinerToValidator::V0AcceptJobRequest(AttemptNotice { job_uuid: attempt(n) })
}

fn finished(n: u128, bytes: usize) -> MinerToValidator {
    MinerToValidator::V0JobFinishedRequest(JobFinished {
        job_uuid: attempt(n),
        docker_process_stdout: "x".repeat(bytes),
        docker_process_stderr: String::new(),
        artifacts: None,
        upload_results: None,
        image: None,
        trace: None,
        completion: None,
    })
}

fn complaint(words: &str, about: Option<AttemptId>) -> MinerToValidator {
    MinerToValidator::GenericError(GenericError {
        details: Some(words.to_owned()),
        job_uuid: about,
    })
}

struct Validator {
    link: MinerLink,
    unmatched: UnmatchedMessages,
    clock: TestClock,
    tasks: Tasks,
}

impl Validator {
    fn new(linger: Duration) -> Self {
        let clock = TestClock::default();
        let shared: SharedClock = Arc::new(clock.clone());
        let tasks = Tasks::new();
        let (link, unmatched) = MinerLink::new(LinkSetup {
            keypair: Keypair::from_uri("//Validator").unwrap(),
            clock: shared,
            tasks: tasks.clone(),
            linger,
            first_frame: None,
        });
        Self {
            link,
            unmatched,
            clock,
            tasks,
        }
    }

    fn open_channel(&self, n: u128, miner: &Miner) -> MinerChannel {
        let endpoint = MinerEndpoint::new(miner.key, miner.address, None);
        self.link.open_channel(attempt(n), endpoint)
    }

    async fn until_held(&self, count: usize) {
        within("sessions to be let go", async {
            while self.link.session_count() != count {
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

async fn up(channel: &mut MinerChannel) {
    channel.dial();
    let heard = within("a connection", channel.next()).await;
    assert!(matches!(heard, ChannelEvent::Up), "{heard:?}");
    assert!(channel.is_up());
}

async fn message(channel: &mut MinerChannel) -> MinerToValidator {
    match within("a message", channel.next()).await {
        ChannelEvent::Message(message) => *message,
        other @ (ChannelEvent::Up | ChannelEvent::Down(_) | ChannelEvent::Malformed(_)) => {
            panic!("{other:?}")
        }
    }
}

async fn down(channel: &mut MinerChannel) {
    let heard = within("the end", channel.next()).await;
    assert!(matches!(heard, ChannelEvent::Down(_)), "{heard:?}");
    assert!(!channel.is_up());
}

/// Both of a miner's attempts, and the one connection they share.
async fn pair(validator: &Validator, miner: &mut Miner) -> (MinerChannel, MinerChannel, Socket) {
    let (mut one, mut two) = (validator.open_channel(1, miner), validator.open_channel(2, miner));
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
    let manifest = MinerToValidator::V0ExecutorManifestRequest(ExecutorManifest {
        manifest: Manifest::default(),
        private_images: None,
    });
    for said in [manifest.clone(), accepted(2), accepted(1), accepted(3)] {
        send_message(&mut socket, said).await;
    }
    assert_eq!(message(&mut one).await, accepted(1));
    assert_eq!(message(&mut two).await, accepted(2));
    for due in [manifest, accepted(3)] {
        let found = within("an unmatched message", validator.unmatched.recv())
            .await
            .unwrap();
        assert_eq!((found.miner, found.message), (miner.key, due));
        found.reply.send("answered".to_owned()).await;
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
    let (mut one, mut two) = (
        validator.open_channel(1, &miner),
        validator.open_channel(2, &miner),
    );
    one.dial();
    two.dial();
    let mut sockets = VecDeque::new();
    for channel in [&mut one, &mut two] {
        let (socket, ()) = tokio::join!(miner.accept(), up(channel));
        sockets.push_back(socket);
        assert!(!channel.is_muster());
    }
    // A later attempt dials at once.
    let mut three = validator.open_channel(3, &miner);
    let (socket, ()) = tokio::join!(miner.accept(), up(&mut three));
    sockets.push_back(socket);
    for (socket, n) in sockets.iter_mut().zip(1..) {
        send_message(socket, accepted(n)).await;
        // About another attempt: its own channel is another.
        send_message(socket, accepted(9)).await;
    }
    let mut heard = Vec::new();
    for channel in [&mut one, &mut two, &mut three] {
        heard.push(message(channel).await.attempt().unwrap());
        assert_eq!(message(channel).await, accepted(9));
    }
    heard.sort_unstable();
    assert_eq!(heard, [1, 2, 3].map(attempt), "each from a connection of its own");
    for channel in [one, two, three] {
        channel.close().await;
    }
    for mut socket in sockets {
        assert_eq!(within("the end", socket.recv()).await.unwrap(), None);
    }
    validator.until_held(0).await;
}

#[tokio::test]
async fn messages_that_come_before_an_attempt_asks_are_kept_for_it() {
    let (mut miner, validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (mut early, mut late) = (
        validator.open_channel(1, &miner),
        validator.open_channel(2, &miner),
    );
    early.dial();
    let mut socket = miner.accept().await;
    send_message(&mut socket, accepted(2)).await;
    send_message(&mut socket, accepted(1)).await;
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
    send_message(&mut socket, accepted(2)).await;
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
    let mut channel = validator.open_channel(1, &miner);
    channel.dial();
    down(&mut channel).await;
    drop(channel);
    validator.until_held(0).await;
}

#[tokio::test]
async fn an_attempt_that_does_not_listen_holds_nobody_up() {
    let (mut miner, mut validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (slow, mut quick, mut socket) = pair(&validator, &mut miner).await;
    for _ in 0..3 {
        send_message(&mut socket, finished(1, 1 << 20)).await;
    }
    let progress = |done| {
        let of = ProgressOf::Execution;
        MinerToValidator::MusterJobProgress(JobProgress {
            job_uuid: attempt(1),
            of,
            done,
            total: None,
            layers: None,
        })
    };
    for done in 0..100 {
        send_message(&mut socket, progress(done)).await;
    }
    send_message(&mut socket, accepted(2)).await;
    assert_eq!(message(&mut quick).await, accepted(2));
    let missed = within("a missed message", validator.unmatched.recv())
        .await
        .unwrap();
    assert!(
        matches!(missed.message, MinerToValidator::MusterJobProgress(_)),
        "{missed:?}"
    );
    drop(slow);
}

#[tokio::test]
async fn a_miner_that_floods_an_attempt_is_cut_off() {
    let (mut miner, validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (flooded, mut other, mut socket) = pair(&validator, &mut miner).await;
    // Many times what an attempt may have waiting, and less than what the machine's sockets buffer.
    let flood = async {
        for _ in 0..500 {
            if socket.send(encode(&accepted(1))).await.is_err() {
                break;
            }
        }
        while let Ok(Some(_)) = socket.recv().await {}
    };
    tokio::join!(within("the end of the flood", flood), down(&mut other));
    drop(flooded);
}

#[tokio::test]
async fn a_complaint_is_heard_by_whom_it_names_or_by_all() {
    let (mut miner, mut validator) = (Miner::open(true).await, Validator::new(LINGER));
    let (mut one, mut two, mut socket) = pair(&validator, &mut miner).await;
    let to_two = complaint("refused", Some(attempt(2)));
    send_message(&mut socket, to_two.clone()).await;
    send_message(&mut socket, complaint("unknown job_uuid", Some(attempt(3)))).await;
    // Only the field names an attempt: a uuid in the text does not.
    let to_all = complaint(&format!("Unknown validator, see {}", attempt(2)), None);
    send_message(&mut socket, to_all.clone()).await;
    assert_eq!(message(&mut one).await, to_all);
    assert_eq!(message(&mut two).await, to_two);
    assert_eq!(message(&mut two).await, to_all);
    let found = within("an unmatched message", validator.unmatched.recv())
        .await
        .unwrap();
    assert!(matches!(found.message, MinerToValidator::GenericError(_)));
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
    let mut next = validator.open_channel(3, &miner);
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
    assert_eq!(validator.link.session_count(), 0);
    let mut next = validator.open_channel(3, &miner);
    let (_socket, ()) = tokio::join!(miner.accept(), up(&mut next));
}

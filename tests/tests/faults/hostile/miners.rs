//! A miner's listener: validators that want every executor, and readers of its receipts.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result, bail};
use muster_identity::{Keypair, offer_receipt, sign_validator_auth};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::receipt::{StartedReceipt, StartedTag, page_of};
use muster_protocol::wire::miner::{ExecutorTiming, InitialJobRequest};
use muster_protocol::wire::validator_socket::{MinerToValidator, ValidatorToMiner};
use muster_protocol::wire::{decode, encode};
use muster_protocol::{AttemptId, ExecutorClass, MinerKey, ReceiptPayload, ValidatorKey};
use muster_testbed::{patience, wait_for};
use muster_tests::{Layout, Parts, Role};
use muster_websocket::{Limits, Socket};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::support::reconfigure;

const THIRTY_DAYS: u64 = 30 * 86_400;

/// A validator's connection to a miner.
pub(super) struct Validator {
    keys: Keypair,
    miner: MinerKey,
    socket: Socket,
}

impl Validator {
    /// Connects and takes the manifest.
    pub(super) async fn connect(address: SocketAddr, miner: MinerKey, keys: &Keypair) -> Result<Self> {
        let url = format!("ws://{address}/v0.1/validator_interface/{}", keys.hotkey());
        let mut socket = muster_websocket::connect(&url, &Limits::miner()).await?;
        let greeting = sign_validator_auth(keys, miner, SystemClock::new().now());
        socket
            .send(encode(&ValidatorToMiner::ValidatorAuthForMiner(greeting)))
            .await?;
        let frame = socket.recv().await?.context("the miner closed")?;
        let MinerToValidator::V0ExecutorManifestRequest(_) = decode(&frame)? else {
            bail!("not a manifest: {frame}");
        };
        Ok(Self {
            keys: keys.clone(),
            miner,
            socket,
        })
    }

    /// Offers a job that may run for `seconds`; the reason if the miner declines it.
    pub(super) async fn offer(&mut self, seconds: u64) -> Option<String> {
        let attempt = AttemptId::from_uuid(Uuid::new_v4());
        let offer = ValidatorToMiner::V0InitialJobRequest(Box::new(self.initial(attempt, seconds)));
        self.socket.send(encode(&offer)).await.unwrap();
        loop {
            let frame = self.socket.recv().await.unwrap().unwrap();
            let message = decode(&frame).unwrap();
            assert!(
                !matches!(message, MinerToValidator::GenericError(_)),
                "{message:?}"
            );
            if let MinerToValidator::V0AcceptJobRequest(answer) = &message
                && answer.job_uuid == attempt
            {
                return None;
            }
            if let MinerToValidator::V0DeclineJobRequest(answer) = message
                && answer.job_uuid == attempt
            {
                return Some(answer.message);
            }
        }
    }

    fn initial(&self, attempt: AttemptId, seconds: u64) -> InitialJobRequest {
        let payload = StartedReceipt {
            job_uuid: attempt,
            miner_hotkey: self.miner,
            validator_hotkey: ValidatorKey(self.keys.hotkey()),
            timestamp: SystemClock::new().now(),
            receipt_type: StartedTag,
            executor_class: ExecutorClass::AlwaysOnTest,
            is_organic: true,
            ttl: 60,
        };
        let offered = offer_receipt(&self.keys, ReceiptPayload::Started(payload.clone())).unwrap();
        InitialJobRequest {
            job_uuid: attempt,
            executor_class: ExecutorClass::AlwaysOnTest,
            docker_image: Some("hello:latest".to_owned()),
            timeout_seconds: Some(seconds),
            volume: None,
            job_started_receipt_payload: payload,
            job_started_receipt_signature: offered.validator_signature,
            streaming_details: None,
            executor_timing: Some(ExecutorTiming {
                allowed_leeway: 1,
                download_time_limit: 1,
                execution_time_limit: seconds,
                upload_time_limit: 1,
                streaming_start_time_limit: 0,
            }),
            muster: None,
        }
    }
}

#[test]
fn one_validator_cannot_lease_every_executor_of_a_miner() {
    let other = Keypair::generate();
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout {
        executors: 4,
        // No executor starts, so a lease lasts.
        gate: Some(folder.path().join("closed")),
        validators: vec![other.hotkey().to_string()],
        ..Layout::default()
    };
    let mut parts = Parts::start(&layout).unwrap();
    parts.kill(Role::Validator).unwrap();
    // The validators of this test do not sign their frames.
    reconfigure(&mut parts, Role::Miner, |settings| {
        settings.insert("require_validator_signature".to_owned(), false.into());
    })
    .unwrap();
    let runtime = Runtime::new().unwrap();
    let (address, miner) = (parts.address(Role::Miner), MinerKey(parts.keys().miner.hotkey()));
    let connect = |keys: &Keypair| {
        wait_for("the miner's service", || {
            anyhow::Ok(runtime.block_on(Validator::connect(address, miner, keys)).ok())
        })
        .unwrap()
    };
    let (mut rich, mut poor) = (connect(&parts.keys().validator), connect(&other));
    runtime.block_on(async {
        // All stake of the subnet is the first one's, and still one executor is left for the other.
        for _ in 0..3 {
            assert_eq!(rich.offer(THIRTY_DAYS).await, None, "{}", parts.log(Role::Miner));
        }
        let declined = rich.offer(THIRTY_DAYS).await.unwrap();
        assert!(declined.contains("share is 3 executors"), "{declined}");
        assert_eq!(poor.offer(THIRTY_DAYS).await, None);
        let full = poor.offer(THIRTY_DAYS).await.unwrap();
        assert!(full.contains("all 4 executors"), "{full}");
    });
}

/// The memory of a role's process in KiB: resident now, and at its peak.
fn memory(parts: &Parts, role: Role) -> Result<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", parts.pid(role)?))?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Ok((
        field("VmRSS:").context("no VmRSS")?,
        field("VmHWM:").context("no VmHWM")?,
    ))
}

/// Asks for a part of a page and leaves the answer to be read.
fn ask_for_page(address: SocketAddr, page: i64, range: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(patience()))?;
    let head = format!(
        "GET /receipts/{page}.jsonl HTTP/1.1\r\nHost: x\r\nConnection: close\r\nRange: bytes={range}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    Ok(stream)
}

#[test]
fn a_part_of_a_huge_receipt_page_costs_what_is_sent_of_it() {
    const SIZE: u64 = 1 << 40;
    const PLACE: u64 = SIZE / 2;
    let layout = Layout {
        executors: 1,
        ..Layout::default()
    };
    let parts = Parts::start(&layout).unwrap();
    let address = parts.address(Role::Miner);
    // A page that the miner does not write to yet.
    let page = page_of(SystemClock::new().now()) + 1;
    let mut file =
        std::fs::File::create(parts.folder().join(format!("miner-receipts/{page}.jsonl"))).unwrap();
    file.set_len(SIZE).unwrap();
    file.seek(SeekFrom::Start(PLACE)).unwrap();
    file.write_all(b"needle").unwrap();
    let (before, _) = memory(&parts, Role::Miner).unwrap();

    // Readers of everything who read only the beginning of it.
    let greedy: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = ask_for_page(address, page, "0-").unwrap();
            stream.read_exact(&mut [0; 4_096]).unwrap();
            stream
        })
        .collect();
    let range = format!("{PLACE}-{}", PLACE + 5);
    let mut answer = String::new();
    ask_for_page(address, page, &range)
        .unwrap()
        .read_to_string(&mut answer)
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 206"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nneedle"), "{answer}");
    assert!(
        answer
            .to_lowercase()
            .contains(&format!("content-range: bytes {range}/{SIZE}")),
        "{answer}"
    );
    let (_, peak) = memory(&parts, Role::Miner).unwrap();
    let grown = peak.saturating_sub(before);
    assert!(grown < 128 * 1024, "{grown} KiB for 32 readers");
    drop(greedy);
}

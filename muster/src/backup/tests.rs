//! Each role is backed up while it works, restored into fresh folders, and goes on from there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_client::{Client, Credential};
use muster_enrollment::ExecutorRegistry;
use muster_identity::wallet::{ColdkeyStorage, WalletPath, create};
use muster_identity::{Keypair, sign_job};
use muster_process::{SharedClock, SystemClock, Tasks};
use muster_protocol::account_api::CreateKey;
use muster_protocol::rest::CreateFile;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{ExecutorClass, JobId, Signature};
use muster_routing::admission::PriorRequest;
use muster_validator::store::JobAdmission;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use super::copied_parts::{of_executor, of_facilitator, of_miner, of_validator};
use super::*;

fn clock() -> SharedClock {
    Arc::new(SystemClock::new())
}

fn url_of(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

/// A role that runs in this process.
struct Running {
    tasks: Tasks,
    address: String,
}

impl Running {
    /// Waits for the file that the role writes once it is up.
    async fn start<E: std::fmt::Debug + Send + 'static>(
        ready: &Path,
        run: impl FnOnce(Tasks) -> futures_util::future::BoxFuture<'static, std::result::Result<(), E>>,
    ) -> Self {
        let tasks = Tasks::new();
        let running = run(tasks.clone());
        drop(Tasks::new().spawn("role", async move { running.await.unwrap() }));
        let written = async || {
            let text = std::fs::read(ready).ok()?;
            let value = serde_json::from_slice::<serde_json::Value>(&text).ok()?;
            value["address"].as_str().map(str::to_owned)
        };
        let address = muster_testbed::until("the role is up", written).await;
        Self { tasks, address }
    }

    async fn stop(self) {
        self.tasks.shutdown();
        self.tasks.wait(muster_testbed::patience()).await.unwrap();
    }
}

fn facilitator_in(folder: &Path) -> muster_facilitator::Config {
    let mut config = muster_facilitator::Config {
        bind: ([127, 0, 0, 1], 0).into(),
        ready_file: Some(folder.join("ready.json")),
        store: url_of(&folder.join("facilitator.db")),
        ..muster_facilitator::Config::default()
    };
    config.files.store = format!("file:{}", folder.join("files").display());
    config
}

async fn run_facilitator(config: muster_facilitator::Config) -> Running {
    let ready = config.ready_file.clone().unwrap();
    Running::start(&ready, |tasks| {
        Box::pin(muster_facilitator::run(config, tasks, clock()))
    })
    .await
}

async fn log_in(facilitator: &Running) -> Client {
    let user = Credential::hotkey(Keypair::from_uri("//User").unwrap());
    let base = format!("http://{}", facilitator.address);
    Client::connect(&base, user, clock()).await.unwrap()
}

/// Announces a file, uploads it and makes a key, again and again.
async fn use_facilitator(client: Client) {
    let http = reqwest::Client::new();
    for n in 0_u32.. {
        let name = format!("file {n}");
        let new = CreateFile {
            name: name.clone(),
            size: Some(u64::try_from(name.len()).unwrap()),
            max_size: None,
            sha256: None,
        };
        let file = client.create_file(&new).await.unwrap();
        http.put(&file.upload_url)
            .body(name.clone())
            .send()
            .await
            .unwrap();
        client
            .create_key(&CreateKey {
                name,
                ..CreateKey::default()
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_facilitator_is_backed_up_at_work_and_goes_on_from_the_backup() {
    muster_process::tls::install_provider();
    let (old, new, backups) = (
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
    );
    let config = facilitator_in(old.path());
    let facilitator = run_facilitator(config.clone()).await;
    let client = log_in(&facilitator).await;
    let to = backups.path().join("one");
    let parts = of_facilitator(&config);
    let backing_up = async {
        while client.account().await.unwrap().files < 10 {
            tokio::task::yield_now().await;
        }
        make_backup(&parts, &to, false, &clock()).await.unwrap()
    };
    let manifest = tokio::select! {
        manifest = backing_up => manifest,
        () = use_facilitator(log_in(&facilitator).await) => unreachable!("it does not end"),
    };
    // Nine files have arrived when the tenth is announced, and the store is one more.
    assert!(manifest.files.len() >= 10, "{manifest:?}");
    let again = make_backup(&parts, &to, false, &clock()).await.unwrap_err();
    assert!(again.to_string().contains("not empty"), "{again:#}");
    facilitator.stop().await;

    let config = facilitator_in(new.path());
    restore_backup(&of_facilitator(&config), &to, &clock())
        .await
        .unwrap();
    let again = restore_backup(&of_facilitator(&config), &to, &clock())
        .await
        .unwrap_err();
    assert!(again.to_string().contains("exists"), "{again:#}");
    let facilitator = run_facilitator(config).await;
    let client = log_in(&facilitator).await;
    let files = client.files(1, 256).await.unwrap();
    assert!(files.count >= 10);
    let http = reqwest::Client::new();
    for file in files.results.iter().filter(|file| file.complete) {
        let read = http.get(&file.download_url).send().await.unwrap();
        assert_eq!(
            read.text().await.unwrap(),
            file.name,
            "every byte that the store speaks of is there"
        );
    }
    let keys = client.keys().await.unwrap();
    assert!(keys.len() >= 8, "{}", keys.len());
    let made = CreateKey {
        name: "later".to_owned(),
        ..CreateKey::default()
    };
    client.create_key(&made).await.unwrap();
    facilitator.stop().await;
}

fn job(n: u128, timestamp_ns: i64) -> (UserJobRequest, String) {
    let user = Keypair::from_uri("//User").unwrap();
    let mut request: UserJobRequest = serde_json::from_value(json!({
        "signature": {
            "signature_type": "bittensor", "signatory": user.hotkey(), "timestamp_ns": 0,
            "signature": Signature::from_bytes([1; 64]).to_base64(), "signature_scope": "SignedFields",
        },
        "uuid": JobId::from_uuid(Uuid::from_u128(n)), "executor_class": "always_on.test", "docker_image": "x",
        "args": [], "env": {}, "use_gpu": false,
        "download_time_limit": 1, "execution_time_limit": 1, "upload_time_limit": 1, "streaming_start_time_limit": 1,
    }))
    .unwrap();
    request.signature = sign_job(&user, &request.signed_fields(), timestamp_ns);
    let frame = serde_json::to_string(&request).unwrap();
    (request, frame)
}

fn wallet_in(folder: &Path) -> WalletPath {
    let wallet = WalletPath::new(folder.join("wallets"), "default", "default");
    create(&wallet, ColdkeyStorage::PhraseOnly).unwrap();
    wallet
}

fn validator_in(folder: &Path, wallet: &WalletPath) -> muster_validator::Config {
    let mut config = muster_validator::Config {
        bind: ([127, 0, 0, 1], 0).into(),
        ready_file: Some(folder.join("ready.json")),
        operator_token: folder.join("operator.token"),
        store: url_of(&folder.join("validator.db")),
        wallet: wallet.clone(),
        ..muster_validator::Config::default()
    };
    // Nobody listens there: the validator waits for both.
    config.chain.url = "ws://127.0.0.1:1".to_owned();
    config.facilitator.url = "ws://127.0.0.1:1/ws/v0/".to_owned();
    config
}

#[tokio::test]
async fn a_validator_is_backed_up_at_work_and_takes_no_signature_from_before_its_restoration() {
    muster_process::tls::install_provider();
    let (old, new, backups) = (
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
    );
    let wallet = wallet_in(old.path());
    let config = validator_in(old.path(), &wallet);
    let store = ValidatorStore::open(&config.store).await.unwrap();
    let now_ns = || clock().now().micros() * 1_000;
    let working = async {
        for n in 1.. {
            let (request, frame) = job(n, now_ns() + i64::try_from(n).unwrap());
            let admitted = store.admit(&request, &frame, clock().now(), None).await.unwrap();
            assert_eq!(admitted, JobAdmission::New);
        }
    };
    let to = backups.path().join("one");
    let parts = of_validator(&config);
    let backing_up = async {
        while store.open_jobs().await.unwrap().len() < 20 {
            tokio::task::yield_now().await;
        }
        make_backup(&parts, &to, false, &clock()).await.unwrap()
    };
    tokio::select! {
        _ = backing_up => {}
        () = working => unreachable!("it does not end"),
    }
    // A job that only the old store knows: its signature must not admit it once more.
    let (lost, frame) = job(1 << 64, now_ns());
    store.admit(&lost, &frame, clock().now(), None).await.unwrap();
    store.close().await;

    let config = validator_in(new.path(), &wallet);
    restore_backup(&of_validator(&config), &to, &clock())
        .await
        .unwrap();
    let store = ValidatorStore::open(&config.store).await.unwrap();
    let jobs = store.open_jobs().await.unwrap();
    assert!(jobs.len() >= 20, "{}", jobs.len());
    assert_eq!(
        store.updates_waiting().await.unwrap(),
        u64::try_from(jobs.len()).unwrap()
    );
    assert_eq!(
        store.admit(&lost, &frame, clock().now(), None).await.unwrap(),
        JobAdmission::Known(PriorRequest::Forgotten)
    );
    let (later, frame) = job((1 << 64) + 1, now_ns() + 1);
    assert_eq!(
        store.admit(&later, &frame, clock().now(), None).await.unwrap(),
        JobAdmission::New
    );
    store.close().await;
    let ready = config.ready_file.clone().unwrap();
    let validator = Running::start(&ready, |tasks| {
        Box::pin(muster_validator::run(config, tasks, clock()))
    })
    .await;
    let health = reqwest::get(format!("http://{}/health", validator.address))
        .await
        .unwrap();
    assert!(health.status().is_success(), "{}", health.status());
    validator.stop().await;
}

fn miner_in(folder: &Path, wallet: &WalletPath) -> muster_miner::Config {
    let mut config = muster_miner::Config {
        bind: ([127, 0, 0, 1], 0).into(),
        ready_file: Some(folder.join("ready.json")),
        store: url_of(&folder.join("miner.db")),
        receipts_dir: folder.join("receipts"),
        wallet: wallet.clone(),
        ..muster_miner::Config::default()
    };
    config.chain.url = String::new();
    config.executor.provisioned = folder.join("provisioned");
    config.persistent.roll = folder.join("standing");
    config.tls.certificate = folder.join("tls/port.pem");
    config
}

#[tokio::test]
async fn a_miner_and_an_executor_know_each_other_after_a_restoration() {
    muster_process::tls::install_provider();
    let (old, new, backups) = (
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
        TempDir::new().unwrap(),
    );
    let wallet = wallet_in(old.path());
    let config = miner_in(old.path(), &wallet);
    let roll = ExecutorRegistry::new(&config.persistent.roll);
    let identity = roll.identity().unwrap().fingerprint();
    let now = clock().now();
    let hour = Duration::from_secs(3_600);
    let terms = muster_enrollment::InvitationTerms {
        class: ExecutorClass::AlwaysOnTest,
        capacity: 1,
        lives: hour,
        uses: 1,
    };
    roll.invite("miner:1".to_owned(), terms, now).unwrap();
    let ready = config.ready_file.clone().unwrap();
    let running = config.clone();
    let miner = Running::start(&ready, |tasks| {
        Box::pin(muster_miner::run(running, tasks, clock()))
    })
    .await;
    let to = backups.path().join("miner");
    let manifest = make_backup(&of_miner(&config), &to, false, &clock())
        .await
        .unwrap();
    assert!(manifest.files.contains_key(STORE), "{manifest:?}");
    miner.stop().await;

    let config = miner_in(new.path(), &wallet);
    restore_backup(&of_miner(&config), &to, &clock()).await.unwrap();
    let roll = ExecutorRegistry::new(&config.persistent.roll);
    assert_eq!(
        roll.identity().unwrap().fingerprint(),
        identity,
        "executors know the miner by it"
    );
    assert!(roll.has_valid_token(now).unwrap(), "the open token holds");
    let ready = config.ready_file.clone().unwrap();
    let miner = Running::start(&ready, |tasks| {
        Box::pin(muster_miner::run(config, tasks, clock()))
    })
    .await;
    miner.stop().await;

    let mut config = muster_executor::config::Config::default();
    config.persistent.membership = old.path().join("membership.json");
    std::fs::write(&config.persistent.membership, "a key").unwrap();
    let to = backups.path().join("executor");
    make_backup(&of_executor(&config), &to, false, &clock())
        .await
        .unwrap();
    config.persistent.membership = new.path().join("deep/membership.json");
    restore_backup(&of_executor(&config), &to, &clock())
        .await
        .unwrap();
    assert_eq!(
        std::fs::read_to_string(&config.persistent.membership).unwrap(),
        "a key"
    );
}

#[tokio::test]
async fn a_backup_that_is_damaged_incomplete_or_of_another_role_is_refused() {
    let folder = TempDir::new().unwrap();
    let config = validator_in(folder.path(), &WalletPath::default());
    ValidatorStore::open(&config.store).await.unwrap().close().await;
    let to = folder.path().join("backup");
    make_backup(&of_validator(&config), &to, false, &clock())
        .await
        .unwrap();
    let mode = |path: PathBuf| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(
        (mode(to.clone()), mode(to.join(STORE))),
        (0o700, 0o600),
        "it holds secrets"
    );
    let refused = async |parts: &RoleParts| {
        let refused = restore_backup(parts, &to, &clock()).await.unwrap_err();
        format!("{refused:#}")
    };
    let fresh = validator_in(&folder.path().join("fresh"), &WalletPath::default());
    let wallet = WalletPath::default();
    let other = of_miner(&miner_in(&folder.path().join("fresh"), &wallet));
    assert!(refused(&other).await.contains("of a validator, not of a miner"));
    let mut bytes = std::fs::read(to.join(STORE)).unwrap();
    bytes[4_000] ^= 1;
    std::fs::write(to.join(STORE), bytes).unwrap();
    assert!(refused(&of_validator(&fresh)).await.contains("damaged"));
    std::fs::remove_file(to.join("backup.json")).unwrap();
    assert!(refused(&of_validator(&fresh)).await.contains("interrupted"));
    assert!(!folder.path().join("fresh").exists(), "nothing was written");

    let postgres = muster_validator::Config {
        store: "postgres://db/muster".to_owned(),
        ..fresh
    };
    let elsewhere = folder.path().join("elsewhere");
    let refused = make_backup(&of_validator(&postgres), &elsewhere, false, &clock()).await;
    assert!(refused.unwrap_err().to_string().contains("pg_dump"));
    make_backup(&of_validator(&postgres), &elsewhere, true, &clock())
        .await
        .unwrap();
}

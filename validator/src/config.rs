//! The validator's configuration file.

mod placed_paths;
mod trial;
mod trusted_miner;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_audit_runner::Settings as AuditSettings;
use muster_chain::Netuid;
use muster_cross_checks::CrossCheckSettings;
use muster_gateway::Settings as GatewaySettings;
use muster_grading_runner::Settings as GradingSettings;
use muster_http::addresses::AddressRules;
use muster_http::server::HttpSettings;
use muster_identity::wallet::WalletPath;
use muster_process::config::{ConfigFolder, Problem, RoleConfig};
use muster_protocol::job::MAX_QUEUE_SECS;
use muster_protocol::{ExecutorClass, Hotkey, MinerKey, UserKey};
use muster_routing::admission::{AllowedUsers, SignatureAge, UserRules};
use muster_routing::budget::AccountBudget;
use muster_routing::{LedgerWindows, RoutingPolicy};
use muster_scoring::ObservationKind;
use muster_validator_store::retention::{RetentionBounds, ValidatorRetentionConfig};
use serde::Deserialize;

pub use trial::TrialConfig;
pub use trusted_miner::{TrustedMiner, TrustedMinerConfig};

use crate::collateral::CollateralConfig;

/// Grading batches count in a cycle if they lie at most this many batch intervals before it. The last eight count
/// (`docs/adr/0064`), and the intervals are drawn at random.
const BATCHES_BACK: u64 = 16;

/// Probe intervals before a cycle within which unannounced probes count: an eighth of the stake makes sixteen in them.
const PROBES_BACK: u64 = 128;

/// How long a manifest is believed. It must expire: a miner that gets no jobs because of its manifest is not dialled,
/// so it could never correct the manifest.
const MANIFEST_AGE: Duration = Duration::from_secs(300);

/// The configuration of a validator. [`RoleConfig::COMMENTED_DEFAULT`] explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The folder from which relative paths count; empty for the folder of the configuration file.
    pub state_dir: PathBuf,
    /// The address of the status page; port 0 takes a free port.
    pub bind: SocketAddr,
    /// The file to which the bound address is written once the validator is up.
    pub ready_file: Option<PathBuf>,
    /// The file with the token that the operator's commands show; the validator draws it.
    pub operator_token: PathBuf,
    /// The database: `sqlite:PATH` or `postgres://…`.
    pub store: String,
    /// The connections of the status page and of the gateway.
    pub http: HttpSettings,
    /// The wallet with the validator's hotkey.
    pub wallet: WalletPath,
    /// The chain and the subnet.
    pub chain: ChainConfig,
    /// The addresses of miners and of their sessions that are dialled.
    pub dial: DialConfig,
    /// The facilitator that sends jobs.
    pub facilitator: FacilitatorConfig,
    /// The users whose jobs are taken.
    pub users: UsersConfig,
    /// How miners are chosen.
    pub routing: RoutingConfig,
    /// The trusted miner, which is not in the subnet.
    pub trusted_miner: TrustedMinerConfig,
    /// The collateral that miners need to get jobs.
    pub collateral: CollateralConfig,
    /// The queue of jobs that wait for an executor.
    pub queue: QueueConfig,
    /// The gathering of receipts of all validators.
    pub receipts: ReceiptsConfig,
    /// The pages that this validator serves to others.
    pub pages: PagesConfig,
    /// The operator's pages.
    pub operator: OperatorConfig,
    /// The value of work.
    pub scoring: ScoringConfig,
    /// The OpenAI-compatible gateway to streaming sessions.
    pub gateway: GatewaySettings,
    /// Spot checks of the gateway's answers.
    pub audit: AuditSettings,
    /// Deterministic jobs that run again on the trusted miner.
    pub cross_checks: CrossCheckSettings,
    /// Batches of known-answer proofs.
    pub grading: GradingSettings,
    /// Time limits of jobs and connections.
    pub timing: TimingConfig,
    /// How long rows stay.
    pub retention: ValidatorRetentionConfig,
}

/// The chain and the subnet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChainConfig {
    /// The preferred endpoint.
    pub url: String,
    /// More endpoints of the same chain, tried in this order when the one before fails.
    pub urls: Vec<String>,
    /// The id of the subnet.
    pub netuid: Netuid,
    /// Seconds after which the metagraph is read again before a job is routed.
    pub refresh_s: u64,
    /// Seconds that a job waits for a chain that has not answered since the start.
    pub wait_s: u64,
}

/// The addresses of miners and of their sessions that are dialled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DialConfig {
    /// Hosts, addresses, addresses with a port, and networks that are dialled although they are not public.
    pub allow: Vec<String>,
}

/// The connection to the facilitator.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FacilitatorConfig {
    /// The URL of the facilitator's websocket.
    pub url: String,
    /// Seconds between two heartbeats.
    pub heartbeat_s: u64,
    /// Seconds within which the facilitator must answer a greeting or a status update.
    pub answer_s: u64,
}

/// The users whose jobs are taken.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UsersConfig {
    /// Whether every user's jobs are taken.
    pub allow_any: bool,
    /// The hotkeys of users whose jobs are taken. The validator's own jobs always are.
    pub allow: BTreeSet<UserKey>,
    /// The hotkeys of facilitators that sign jobs for their accounts.
    pub facilitators: BTreeSet<UserKey>,
    /// The jobs that are taken of accounts that a facilitator signs for.
    pub budget: BudgetConfig,
    /// The largest age of a job's signature, in seconds.
    pub signature_max_age_s: u64,
    /// The largest lead of a signature's time over this machine's clock, in seconds.
    pub signature_max_ahead_s: u64,
}

/// The jobs that are taken of accounts that a facilitator signs for; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetConfig {
    /// Jobs of one account that have not ended.
    pub account_open_jobs: u64,
    /// Jobs of one account that were taken within 24 hours.
    pub account_daily_jobs: u64,
    /// Jobs of all accounts of one facilitator that have not ended.
    pub facilitator_open_jobs: u64,
}

/// How miners are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoutingConfig {
    /// Miners that a job is offered to, one after the other, before its user sees a failure.
    pub max_attempts: u32,
    /// Recent incidents at which a miner gets no more jobs.
    pub max_incidents: u32,
    /// Seconds after which an incident is forgotten.
    pub incident_s: u64,
    /// Seconds over which routing evens out the number of jobs for each executor.
    pub fairness_s: u64,
    /// Seconds for which a miner that was busy is not asked for the same class again.
    pub full_s: u64,
    /// Seconds for which an image or input that a miner once had is assumed to be still there.
    pub warm_s: u64,
    /// Whether a miner of a graded class gets no more jobs at a time than it has proven executors.
    pub proven_only: bool,
    /// Miners that get no jobs.
    pub blacklist: BTreeSet<MinerKey>,
    /// The known image that is run at miners after failures of users' jobs.
    pub trial: TrialConfig,
}

/// The queue of jobs that wait for an executor.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// Jobs of all accounts that may wait.
    pub max_jobs: usize,
    /// Jobs of one account that may wait.
    pub max_per_account: usize,
    /// Seconds that a job may wait whose terms state no limit.
    pub default_s: u64,
}

/// The gathering of receipts of all validators.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReceiptsConfig {
    /// Whether miners' receipt pages are read; if not, only this validator's own receipts count.
    pub gather: bool,
    /// Seconds between two readings of the pages.
    pub interval_s: u64,
    /// The age in seconds up to which pages are read that were missed during a pause.
    pub catch_up_s: u64,
}

/// The pages that this validator serves to others: its receipts, its statements of capacity, its scoring snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PagesConfig {
    /// The address to serve them at; absent, none are served.
    pub bind: Option<SocketAddr>,
    /// The address at which others reach them, which this validator states on the chain; absent, none is stated.
    pub announce: Option<SocketAddr>,
}

/// The operator's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperatorConfig {
    /// The address to serve them at; absent, none are served.
    pub bind: Option<SocketAddr>,
    /// Whether `/subnet` there, the subnet in numbers, needs no token.
    pub public: bool,
}

/// The value of work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScoringConfig {
    /// The weight of each class's work, relative to the others. A class that is not named has weight 0.
    pub class_weights: BTreeMap<ExecutorClass, u32>,
    /// The percentage of a graded class's weight that proven executors always get. The rest is the premium of worked
    /// time; what nobody worked for falls to proven executors, too.
    pub capacity_percent: u8,
    /// Rao that a validator must have burned for each second of its jobs that counts; 0 asks for none.
    pub burn_per_second: u64,
    /// The account into which validators burn these rao, by transfers of their hotkeys or coldkeys.
    pub burn_account: Option<Hotkey>,
    /// The hotkey whose weight is burned.
    pub burn_hotkey: Option<Hotkey>,
    /// Whether miners are asked once in a cycle for the main hotkey of their owner, which gets the main share.
    pub ask_main_hotkeys: bool,
    /// The bonus in percent for a coldkey whose main hotkey changed since the last cycle.
    pub bonus_percent: u8,
}

/// Time limits of jobs and connections.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimingConfig {
    /// Seconds of leeway for the whole job.
    pub leeway_s: u64,
    /// Seconds to reach a miner for the first time, before another one is tried.
    pub dial_s: u64,
    /// Seconds for a miner to accept or decline.
    pub reservation_s: u64,
    /// Seconds for an executor to start, in addition to its class's spin-up time.
    pub startup_s: u64,
    /// Seconds without a message after which a miner that fetches an image counts as lost.
    pub image_silence_s: u64,
    /// Seconds for which the connection to a miner may stay lost before the attempt fails.
    pub reconnect_s: u64,
    /// The same for a miner that keeps its leases while it is restarted, in seconds.
    pub reattach_s: u64,
    /// Milliseconds that the end of a job waits for the miner's signature on the finished receipt.
    pub receipt_wait_ms: u64,
    /// Seconds for which the connection to a Muster miner is kept after its last job; 0 closes it at once.
    pub linger_s: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::new(),
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8091)),
            ready_file: None,
            operator_token: PathBuf::from("validator.token"),
            store: "sqlite:validator.db".to_owned(),
            http: HttpSettings::default(),
            wallet: WalletPath::default(),
            chain: ChainConfig::default(),
            dial: DialConfig::default(),
            facilitator: FacilitatorConfig::default(),
            users: UsersConfig::default(),
            routing: RoutingConfig::default(),
            trusted_miner: TrustedMinerConfig::default(),
            collateral: CollateralConfig::default(),
            queue: QueueConfig::default(),
            receipts: ReceiptsConfig::default(),
            pages: PagesConfig::default(),
            operator: OperatorConfig::default(),
            scoring: ScoringConfig::default(),
            gateway: GatewaySettings::default(),
            audit: AuditSettings::default(),
            cross_checks: CrossCheckSettings::default(),
            grading: GradingSettings::default(),
            timing: TimingConfig::default(),
            retention: ValidatorRetentionConfig::default(),
        }
    }
}

impl Default for ChainConfig {
    fn default() -> Self {
        Self {
            url: "ws://127.0.0.1:9944".to_owned(),
            urls: Vec::new(),
            netuid: Netuid(1),
            refresh_s: 6,
            wait_s: 60,
        }
    }
}

impl Default for FacilitatorConfig {
    fn default() -> Self {
        Self {
            url: "ws://127.0.0.1:8090/ws/v0/".to_owned(),
            heartbeat_s: 60,
            answer_s: 30,
        }
    }
}

impl Default for UsersConfig {
    fn default() -> Self {
        Self {
            allow_any: false,
            allow: BTreeSet::new(),
            facilitators: BTreeSet::new(),
            budget: BudgetConfig::default(),
            signature_max_age_s: 86_400,
            signature_max_ahead_s: 300,
        }
    }
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            account_open_jobs: 1_000,
            account_daily_jobs: 10_000,
            facilitator_open_jobs: 20_000,
        }
    }
}

impl BudgetConfig {
    /// The bounds on the jobs that a facilitator signs for its accounts.
    pub fn bounds(&self) -> AccountBudget {
        AccountBudget {
            account_open: self.account_open_jobs,
            account_daily: self.account_daily_jobs,
            facilitator_open: self.facilitator_open_jobs,
        }
    }
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_incidents: 3,
            incident_s: 600,
            fairness_s: 3_600,
            full_s: 5,
            warm_s: 86_400,
            proven_only: true,
            blacklist: BTreeSet::new(),
            trial: TrialConfig::default(),
        }
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_jobs: 100_000,
            max_per_account: 10_000,
            default_s: 3_600,
        }
    }
}

impl Default for ReceiptsConfig {
    fn default() -> Self {
        Self {
            gather: true,
            interval_s: 10,
            catch_up_s: 18_000,
        }
    }
}

impl Default for ScoringConfig {
    fn default() -> Self {
        let class_weights = ExecutorClass::ALL.into_iter().map(|class| (class, 1));
        Self {
            class_weights: class_weights.collect(),
            capacity_percent: 80,
            burn_per_second: 0,
            burn_account: None,
            burn_hotkey: None,
            ask_main_hotkeys: true,
            bonus_percent: 0,
        }
    }
}

impl Default for TimingConfig {
    fn default() -> Self {
        Self {
            leeway_s: 5,
            dial_s: 6,
            reservation_s: 7,
            startup_s: 10,
            image_silence_s: 90,
            reconnect_s: 30,
            reattach_s: 180,
            receipt_wait_ms: 2000,
            linger_s: 60,
        }
    }
}

impl ChainConfig {
    /// Every endpoint, the preferred one first.
    pub fn endpoints(&self) -> Vec<String> {
        std::iter::once(&self.url).chain(&self.urls).cloned().collect()
    }
}

impl Config {
    /// The rules by which jobs are accepted.
    pub fn user_rules(&self) -> UserRules {
        UserRules {
            trusted_miner: self.trusted_miner.miner().is_some(),
            ..self.users.rules()
        }
    }

    /// The blocks before a cycle whose batches of a kind count in it.
    pub fn blocks_back(&self, kind: ObservationKind) -> u64 {
        let grading = &self.grading;
        match kind {
            ObservationKind::Announced => grading.every_blocks.saturating_mul(BATCHES_BACK),
            ObservationKind::Unannounced => grading.probe_every_blocks.saturating_mul(PROBES_BACK),
        }
    }

    /// The bounds that other sections set on how long rows are needed.
    pub fn retention_bounds(&self) -> RetentionBounds {
        RetentionBounds {
            signature_age: self.users.signature_age().max_age,
            catch_up: Duration::from_secs(self.receipts.catch_up_s),
            batch_blocks: self
                .blocks_back(ObservationKind::Announced)
                .max(self.blocks_back(ObservationKind::Unannounced)),
        }
    }
}

impl UsersConfig {
    /// The rules by which a job's user is let in.
    fn rules(&self) -> UserRules {
        let users = if self.allow_any {
            AllowedUsers::Any
        } else {
            AllowedUsers::Listed(self.allow.clone())
        };
        UserRules {
            users,
            facilitators: self.facilitators.clone(),
            trusted_miner: false,
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.allow_any && !self.allow.is_empty() {
            problems.push(Problem::at(
                "users.allow",
                "has no effect while users.allow_any is true; remove one of them",
            ));
        }
        // A facilitator hands a job over up to an hour after it was signed, by default.
        if !(60..=2_592_000).contains(&self.signature_max_age_s) {
            problems.push(Problem::at(
                "users.signature_max_age_s",
                "must be a minute to thirty days (60 to 2592000)",
            ));
        }
        if self.signature_max_ahead_s > 86_400 {
            problems.push(Problem::at(
                "users.signature_max_ahead_s",
                "must be at most a day (86400)",
            ));
        }
        problems
    }

    /// How far the time inside a job's signature may lie from the clock.
    pub fn signature_age(&self) -> SignatureAge {
        SignatureAge {
            max_age: Duration::from_secs(self.signature_max_age_s),
            max_ahead: Duration::from_secs(self.signature_max_ahead_s),
        }
    }
}

impl RoutingConfig {
    /// The operator's part of every choice of a miner. `me` is the validator's own key, which is never chosen;
    /// `most_unproven` bounds the executors of classes that nobody grades.
    pub fn policy(&self, me: Hotkey, most_unproven: u32) -> RoutingPolicy {
        RoutingPolicy {
            me,
            most_unproven,
            max_incidents: self.max_incidents,
            blacklist: self.blacklist.clone(),
            prices: RoutingPolicy::PRICES,
        }
    }

    /// Whether a trial follows the failure of a user's job.
    pub fn has_trials(&self) -> bool {
        self.trial.image.is_some()
    }

    /// The times over which the ledger of miners remembers.
    pub fn windows(&self) -> LedgerWindows {
        LedgerWindows {
            record: Duration::from_secs(self.incident_s),
            given: Duration::from_secs(self.fairness_s),
            manifest: MANIFEST_AGE,
            full: Duration::from_secs(self.full_s),
            warm: Duration::from_secs(self.warm_s),
        }
    }
}

impl ScoringConfig {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let classes = self.class_weights.iter();
        for (class, _) in classes.filter(|(_, weight)| **weight > muster_scoring::MAX_CLASS_WEIGHT) {
            problems.push(Problem::at(
                format!("scoring.class_weights.{class}"),
                "must be at most 1000000",
            ));
        }
        for (path, percent) in [
            ("scoring.capacity_percent", self.capacity_percent),
            ("scoring.bonus_percent", self.bonus_percent),
        ] {
            if percent > 100 {
                problems.push(Problem::at(path, "must be at most 100"));
            }
        }
        if self.burn_per_second > 0 && self.burn_account.is_none() {
            problems.push(Problem::at(
                "scoring.burn_account",
                "must name the account into which validators burn, since scoring.burn_per_second is above 0",
            ));
        }
        problems
    }
}

impl TimingConfig {
    /// How long an attempt waits for its miner's signature under a receipt.
    pub fn receipt_wait(&self) -> Duration {
        Duration::from_millis(self.receipt_wait_ms)
    }

    /// How long the connection to a miner may stay lost.
    pub fn reconnect(&self) -> Duration {
        Duration::from_secs(self.reconnect_s)
    }

    /// The same for a miner that keeps its leases while it is restarted.
    pub fn reattach(&self) -> Duration {
        Duration::from_secs(self.reattach_s)
    }
}

impl RoleConfig for Config {
    const COMMENTED_DEFAULT: &'static str = include_str!("config/commented_default.toml");

    fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    fn place_paths(&mut self, folder: &mut ConfigFolder) {
        placed_paths::place(self, folder);
    }

    fn validate(&self) -> Vec<Problem> {
        let mut problems = self.http.problems("http");
        if let Err(error) = AddressRules::parse(&self.dial.allow) {
            problems.push(Problem::at("dial.allow", error.to_string()));
        }
        for (path, number) in [
            ("facilitator.heartbeat_s", self.facilitator.heartbeat_s),
            ("facilitator.answer_s", self.facilitator.answer_s),
            ("routing.max_attempts", u64::from(self.routing.max_attempts)),
            ("routing.max_incidents", u64::from(self.routing.max_incidents)),
            ("routing.fairness_s", self.routing.fairness_s),
            ("routing.full_s", self.routing.full_s),
            ("receipts.interval_s", self.receipts.interval_s),
            ("timing.dial_s", self.timing.dial_s),
            ("timing.reservation_s", self.timing.reservation_s),
            ("timing.image_silence_s", self.timing.image_silence_s),
            ("timing.reconnect_s", self.timing.reconnect_s),
            ("timing.reattach_s", self.timing.reattach_s),
        ] {
            if number == 0 {
                problems.push(Problem::at(path, "must be at least 1"));
            }
        }
        for (path, number) in [
            ("queue.max_jobs", self.queue.max_jobs),
            ("queue.max_per_account", self.queue.max_per_account),
        ] {
            if number == 0 {
                problems.push(Problem::at(path, "must be at least 1"));
            }
        }
        if self.queue.default_s > MAX_QUEUE_SECS {
            problems.push(Problem::at(
                "queue.default_s",
                "must be at most thirty days (2592000)",
            ));
        }
        // Older receipts are refused, so older pages need not be read.
        if self.receipts.catch_up_s > 172_800 {
            problems.push(Problem::at(
                "receipts.catch_up_s",
                "must be at most two days (172800)",
            ));
        }
        // Python miners refuse a started receipt that holds for longer than thirty days.
        if self.timing.reservation_s > 2_592_000 {
            problems.push(Problem::at(
                "timing.reservation_s",
                "must be at most thirty days (2592000)",
            ));
        }
        let chains = self.chain.urls.iter().map(|url| ("chain.urls", url));
        for (path, url) in chains.chain([
            ("chain.url", &self.chain.url),
            ("facilitator.url", &self.facilitator.url),
        ]) {
            if !url.starts_with("ws://") && !url.starts_with("wss://") {
                problems.push(Problem::at(path, "must begin with ws:// or wss://"));
            }
        }
        problems.extend(self.routing.trial.problem());
        problems.extend(self.trusted_miner.problems());
        if let Some(own) = self.trusted_miner.hotkey
            && self.routing.blacklist.contains(&own)
        {
            let text = "must not name the miner of [trusted_miner]";
            problems.push(Problem::at("routing.blacklist", text));
        }
        problems.extend(self.collateral.problems());
        problems.extend(self.users.problems());
        problems.extend(self.retention.problems("retention"));
        problems.extend(self.gateway.problems("gateway"));
        problems.extend(self.audit.problems("audit"));
        let session = Duration::from_secs(self.gateway.session_s);
        problems.extend(self.audit.session_problem("audit", session));
        problems.extend(self.cross_checks.problems("cross_checks"));
        problems.extend(self.grading.problems("grading"));
        problems.extend(self.scoring.problems());
        problems
    }
}

#[cfg(test)]
mod tests {
    use muster_chain::Metagraph;
    use muster_process::config::{commented_default, parse};
    use muster_protocol::{BlockNumber, Digest};

    use super::*;

    #[test]
    fn the_commented_defaults_are_the_defaults() {
        assert_eq!(commented_default::<Config>().unwrap(), Config::default());
    }

    #[test]
    fn a_trusted_miner_has_a_hotkey_and_an_address_that_can_be_dialled() {
        let hotkey = "hotkey = \"5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY\"";
        let address = "address = \"10.0.0.7:8092\"";
        let section = |rest: &str| parse::<Config>(&format!("[trusted_miner]\n{rest}"), "validator.toml");
        let whole = section(&format!("{hotkey}\n{address}")).unwrap();
        assert!(whole.user_rules().trusted_miner);
        assert!(
            whole
                .trusted_miner
                .is(whole.trusted_miner.miner().unwrap().miner.0)
        );
        assert!(!Config::default().user_rules().trusted_miner);
        for (rest, key) in [
            (hotkey.to_owned(), "trusted_miner.address"),
            (address.to_owned(), "trusted_miner.hotkey"),
            (
                format!("{hotkey}\naddress = \"0.0.0.0:8092\""),
                "trusted_miner.address",
            ),
            (
                format!("{hotkey}\n{address}\n[routing]\nblacklist = [{}]", &hotkey[9..]),
                "routing.blacklist",
            ),
        ] {
            let errors = section(&rest).unwrap_err().to_string();
            assert!(errors.contains(key), "{key} in {errors}");
        }
    }

    #[test]
    fn a_pin_counts_for_the_trusted_miner_only_and_the_chain_for_the_others() {
        let key = |byte: u8| MinerKey(Hotkey::from_bytes([byte; 32]));
        let (own, other) = (key(1), key(2));
        let (pin, on_chain) = (Digest::of(b"pinned"), Digest::of(b"announced"));
        let metagraph = Metagraph {
            block: BlockNumber(1),
            netuid: Netuid(1),
            tempo: 20,
            last_epoch: BlockNumber(0),
            neurons: vec![],
            certificates: [(own.0, on_chain), (other.0, on_chain)].into(),
        };
        let mut trusted = TrustedMinerConfig {
            hotkey: Some(own),
            ..TrustedMinerConfig::default()
        };
        assert_eq!(trusted.certificate_of(own, None), None);
        assert_eq!(trusted.certificate_of(own, Some(&metagraph)), Some(on_chain));
        trusted.certificate = Some(pin);
        assert_eq!(trusted.certificate_of(own, None), Some(pin));
        assert_eq!(trusted.certificate_of(own, Some(&metagraph)), Some(pin));
        assert_eq!(trusted.certificate_of(other, Some(&metagraph)), Some(on_chain));
        assert_eq!(trusted.certificate_of(other, None), None);
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let text = r#"
[chain]
url = "http://127.0.0.1"
urls = ["wss://a.example", "b.example"]
[facilitator]
heartbeat_s = 0
[users]
allow_any = true
allow = ["5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"]
signature_max_age_s = 1
[retention]
gathered = { days = 2, rows = 1, mib = 1 }
[routing.trial]
image = ""
[scoring]
capacity_percent = 101
burn_per_second = 5
bonus_percent = 200
[timing]
leeway = 1
reservation_s = 9999999
"#;
        let errors = parse::<Config>(text, "validator.toml").unwrap_err().to_string();
        for key in [
            "chain.url",
            "chain.urls",
            "facilitator.heartbeat_s",
            "users.allow",
            "users.signature_max_age_s",
            "retention.gathered.days",
            "routing.trial.image",
            "scoring.capacity_percent",
            "scoring.burn_account",
            "scoring.bonus_percent",
            "timing.leeway",
            "timing.reservation_s",
        ] {
            assert!(errors.contains(key), "{key} in {errors}");
        }
    }
}

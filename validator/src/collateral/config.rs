//! `[collateral]` of the validator's configuration.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use muster_chain::BlockNumber;
use muster_collateral::{EvmAddress, EvmSettings, LedgerSettings};
use muster_identity::wallet::WalletPath;
use muster_process::config::Problem;
use muster_protocol::{Hotkey, Rao};
use muster_routing::CollateralRule;
use serde::Deserialize;
use url::{Host, Url};

/// Where miners deposit collateral.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollateralKind {
    /// Nowhere: this validator asks for none.
    #[default]
    None,
    /// In a contract of the chain's EVM.
    Evm,
    /// In an account of the chain itself.
    Ledger,
}

/// The collateral that miners need to get jobs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollateralConfig {
    /// Where miners deposit it.
    pub source: CollateralKind,
    /// The least deposit of a miner that gets jobs, in rao.
    pub required_rao: u64,
    /// Seconds after which a reading no longer counts.
    pub max_age_s: u64,
    /// Seconds between two readings.
    pub interval_s: u64,
    /// JSON-RPC addresses of EVM nodes of one chain, the preferred one first.
    pub rpc_urls: Vec<String>,
    /// The id of the nodes' chain.
    pub chain_id: u64,
    /// The contract's address; without it, that of this validator's commitment.
    pub contract: Option<String>,
    /// The file with the key of the contract's trustee. Only slashing reads it.
    pub key_file: Option<PathBuf>,
    /// The most that a slashing transaction may cost in fees, in rao.
    pub max_fee_rao: u64,
    /// Seconds for one request to a node.
    pub request_s: u64,
    /// Seconds that a slash waits for its transaction to be final.
    pub receipt_s: u64,
    /// The account of the source `ledger`.
    pub ledger: CollateralLedgerConfig,
}

/// The account that miners' coldkeys pay into.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollateralLedgerConfig {
    /// The account that they pay into.
    pub account: Option<Hotkey>,
    /// The account that gets slashed money.
    pub slashed_to: Option<Hotkey>,
    /// The wallet whose hotkey is the account. Only slashing reads it.
    pub wallet: Option<WalletPath>,
    /// The first block whose transfers count; without it, the head at the first start.
    pub from_block: Option<u64>,
}

impl Default for CollateralConfig {
    fn default() -> Self {
        Self {
            source: CollateralKind::None,
            required_rao: 10_000_000,
            max_age_s: 3_600,
            interval_s: 60,
            rpc_urls: Vec::new(),
            chain_id: 964,
            contract: None,
            key_file: None,
            max_fee_rao: 10_000_000,
            request_s: 10,
            receipt_s: 180,
            ledger: CollateralLedgerConfig::default(),
        }
    }
}

impl CollateralConfig {
    /// The rule for miners; `None` if no collateral is asked for.
    pub(crate) fn rule(&self) -> Option<CollateralRule> {
        let rule = CollateralRule {
            required: Rao(self.required_rao),
            max_age: Duration::from_secs(self.max_age_s),
        };
        match self.source {
            CollateralKind::None => None,
            CollateralKind::Evm | CollateralKind::Ledger => Some(rule),
        }
    }

    /// The settings of the EVM source. An address that [`Self::problems`] refuses is left out.
    pub(crate) fn evm(&self) -> EvmSettings {
        EvmSettings {
            rpc_urls: self.rpc_urls.iter().filter_map(|url| url.parse().ok()).collect(),
            chain_id: self.chain_id,
            contract: self.contract_address(),
            key_file: self.key_file.clone(),
            max_fee: Rao(self.max_fee_rao),
            request: Duration::from_secs(self.request_s),
            receipt: Duration::from_secs(self.receipt_s),
        }
    }

    fn contract_address(&self) -> Option<EvmAddress> {
        self.contract.as_ref()?.parse().ok()
    }

    /// The settings of the ledger source; `None` if an account is missing.
    pub(crate) fn ledger(&self) -> Option<LedgerSettings> {
        Some(LedgerSettings {
            account: self.ledger.account?,
            slashed_to: self.ledger.slashed_to?,
            wallet: self.ledger.wallet.clone(),
            from_block: self.ledger.from_block.map(BlockNumber),
        })
    }

    /// The faults of this section, each at its key below `collateral`.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut report = |key: &str, text: &str| {
            problems.push(Problem::at(format!("collateral.{key}"), text));
        };
        for (key, number) in [
            ("required_rao", self.required_rao),
            ("interval_s", self.interval_s),
            ("request_s", self.request_s),
            ("receipt_s", self.receipt_s),
        ] {
            if number == 0 {
                report(key, "must be at least 1");
            }
        }
        if self.max_age_s <= self.interval_s {
            report("max_age_s", "must be more than collateral.interval_s");
        }
        if self.rpc_urls.iter().any(|url| !may_be_asked(url)) {
            report(
                "rpc_urls",
                "each must begin with https://, or with http:// and an address of this machine or a private network",
            );
        }
        if self.contract.is_some() && self.contract_address().is_none() {
            report("contract", "must be 0x and 40 hexadecimal digits");
        }
        match self.source {
            CollateralKind::None => {}
            CollateralKind::Evm => {
                if self.rpc_urls.is_empty() {
                    report(
                        "rpc_urls",
                        "must name a node, because collateral.source is \"evm\"",
                    );
                }
            }
            CollateralKind::Ledger => match (self.ledger.account, self.ledger.slashed_to) {
                (Some(account), Some(sink)) if account == sink => {
                    report(
                        "ledger.slashed_to",
                        "must be another account than collateral.ledger.account",
                    );
                }
                (Some(_), Some(_)) => {}
                (None, _) => report(
                    "ledger.account",
                    "is needed, because collateral.source is \"ledger\"",
                ),
                (_, None) => report(
                    "ledger.slashed_to",
                    "is needed, because collateral.source is \"ledger\"",
                ),
            },
        }
        problems
    }
}

/// Whether a node may be asked at this address: its answers decide about money, so nobody on the way may change them.
fn may_be_asked(url: &str) -> bool {
    let Ok(url) = url.parse::<Url>() else { return false };
    let is_near = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback() || ip.is_private(),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip).is_loopback() || ip.is_unique_local(),
        Some(Host::Domain(name)) => name == "localhost",
        None => return false,
    };
    match url.scheme() {
        "https" => true,
        "http" => is_near,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(config: &CollateralConfig) -> String {
        let problems = config
            .problems()
            .into_iter()
            .map(|problem| format!("{problem:?}"));
        problems.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn nothing_is_required_without_a_source() {
        let config = CollateralConfig::default();
        assert_eq!((faults_of(&config), config.rule()), (String::new(), None));
    }

    #[test]
    fn each_source_asks_for_what_it_needs() {
        let config = CollateralConfig {
            source: CollateralKind::Evm,
            contract: Some("0x12".to_owned()),
            ..CollateralConfig::default()
        };
        let all = faults_of(&config);
        assert!(
            all.contains("rpc_urls") && all.contains("collateral.contract"),
            "{all}"
        );
        let mut config = CollateralConfig {
            source: CollateralKind::Ledger,
            required_rao: 0,
            max_age_s: 60,
            ..CollateralConfig::default()
        };
        let all = faults_of(&config);
        for key in ["ledger.account", "required_rao", "max_age_s"] {
            assert!(all.contains(key), "{key} in {all}");
        }
        let key = Some(Hotkey::from_bytes([1; 32]));
        (config.ledger.account, config.ledger.slashed_to) = (key, key);
        assert!(faults_of(&config).contains("another account"));
    }

    #[test]
    fn a_node_is_asked_where_nobody_can_change_its_answers() {
        for good in [
            "https://rpc.example/key",
            "http://127.0.0.1:8545",
            "http://localhost:1",
            "http://10.0.0.7",
            "http://[::1]:1",
        ] {
            assert!(may_be_asked(good), "{good}");
        }
        for bad in [
            "http://rpc.example",
            "ws://127.0.0.1",
            "rpc.example",
            "http://8.8.8.8",
            "http://localhost.example",
        ] {
            assert!(!may_be_asked(bad), "{bad}");
        }
    }
}

//! The collateral on the status page: the source, the miners, the slashes, and the operator's order to slash.

use muster_chain::Metagraph;
use muster_collateral::SlashOrder;
use muster_protocol::{Digest, MinerKey, Rao, Timestamp, ValidatorKey};
use muster_routing::{CollateralVerdict, Deposit, judge_collateral};
use muster_store::StoreError;
use muster_validator_store::StoredSlash;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::collateral::CollateralView;

/// Slashes that are listed.
const MAX_SLASHES: u32 = 100;

/// `GET /v0/collateral`, and a part of `GET /v0/state`.
#[derive(Debug, Serialize)]
pub(crate) struct CollateralStatus {
    /// `none`, `evm` or `ledger`.
    source: &'static str,
    /// The source's place, for people.
    place: Option<String>,
    /// The least deposit of a miner that gets jobs, in rao.
    required: Option<Rao>,
    /// When the source last answered; `None` if it has not since the start.
    read_at: Option<Timestamp>,
    /// Why the last attempt to read it failed.
    failure: Option<String>,
}

/// One miner of `GET /v0/collateral`.
#[derive(Debug, Serialize)]
struct MinerCollateral {
    uid: u16,
    miner: MinerKey,
    /// The deposit by the last reading, however old.
    deposit: Option<Deposit>,
    #[serde(flatten)]
    verdict: CollateralVerdict,
}

/// One slash of `GET /v0/collateral`. The plan stays inside: it is a signed transaction.
#[derive(Debug, Serialize)]
struct SlashView {
    miner: MinerKey,
    account: String,
    amount: Rao,
    evidence: Digest,
    md5: String,
    url: String,
    source: String,
    state: &'static str,
    reference: String,
    created_at: Timestamp,
    ended_at: Option<Timestamp>,
}

impl From<StoredSlash> for SlashView {
    fn from(slash: StoredSlash) -> Self {
        Self {
            miner: slash.miner,
            account: slash.account,
            amount: slash.amount,
            evidence: slash.evidence,
            md5: slash.md5,
            url: slash.url,
            source: slash.source,
            state: slash.state.as_str(),
            reference: slash.reference,
            created_at: slash.created_at,
            ended_at: slash.ended_at,
        }
    }
}

/// The body of `POST /v0/collateral/slashes`.
#[derive(Debug, Deserialize)]
pub(crate) struct SlashRequest {
    /// The order itself.
    #[serde(flatten)]
    pub order: SlashOrder,
    /// Whether only to report what would happen.
    #[serde(default)]
    pub preview: bool,
}

impl CollateralView {
    /// `GET /v0/collateral`: the source, the miners of the subnet as it was last read, and the newest slashes.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn page(
        &self,
        validator: ValidatorKey,
        metagraph: Option<&Metagraph>,
    ) -> Result<Value, StoreError> {
        let slashes = self.store.slashes(MAX_SLASHES).await?;
        let slashes: Vec<_> = slashes.into_iter().map(SlashView::from).collect();
        Ok(json!({
            "validator": validator,
            "time": self.clock.now(),
            "collateral": self.status(),
            "miners": metagraph.map(|metagraph| self.miners(metagraph)).unwrap_or_default(),
            "slashes": slashes,
        }))
    }

    /// The state of the source, for the operator.
    pub(crate) fn status(&self) -> CollateralStatus {
        let latest = self.watched.as_ref().map(|watched| watched.latest.read().clone());
        let latest = latest.unwrap_or_default();
        CollateralStatus {
            source: self.watched.as_ref().map_or("none", |watched| watched.kind),
            place: self.watched.as_ref().map(|watched| watched.source.describe()),
            required: self.watched.as_ref().map(|watched| watched.rule.required),
            read_at: latest.good.map(|reading| reading.at),
            failure: latest.failure,
        }
    }

    /// The deposit of each miner of the subnet with its verdict; empty if no collateral is asked for.
    fn miners(&self, metagraph: &Metagraph) -> Vec<MinerCollateral> {
        let Some(watched) = &self.watched else {
            return Vec::new();
        };
        let (good, now) = (watched.latest.read().good.clone(), self.clock.now());
        let deposits = good.as_ref().map(|reading| &reading.deposits);
        let neurons = metagraph.neurons.iter();
        neurons
            .map(|neuron| {
                let miner = MinerKey(neuron.hotkey);
                MinerCollateral {
                    uid: neuron.uid.0,
                    miner,
                    deposit: deposits.and_then(|deposits| deposits.get(&miner)).copied(),
                    verdict: judge_collateral(watched.rule, good.as_deref(), miner, now),
                }
            })
            .collect()
    }
}

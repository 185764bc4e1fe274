//! Gathers the statements of other validators about miners' capacity. A statement counts once its rows follow from its
//! evidence, and the validator has leased executors of a miner about which it states anything.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use muster_chain::Epoch;
use muster_process::error::Causes;
use muster_protocol::{MinerKey, Timestamp, ValidatorKey};
use muster_receipts::{FetchError, Fetcher};
use muster_scoring::capacity_statements::{
    CapacityEvidence, MAX_EVIDENCE_BYTES, MAX_STATEMENT_BYTES, SignedStatement, StatementContext,
    StatementError, check_statement,
};
use muster_store::StoreError;

use super::{PeerValidators, READ_AT_ONCE};

/// How long before a probe its validator may have leased the executors that it probed: a session lasts a day.
const LEASED_BEFORE: Duration = Duration::from_secs(24 * 3_600);
/// How long after the begin of a probe its executors are leased at the latest.
const LEASED_AFTER: Duration = Duration::from_secs(900);

/// Why a statement is not taken now.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error("the statement cannot be read")]
    Fetch(#[from] FetchError),
    #[error("the statement does not count")]
    Statement(#[from] StatementError),
    #[error("the statement's evidence is not served")]
    NoEvidence,
    #[error("no receipt shows that the validator ever leased an executor of {0}")]
    NoLease(MinerKey),
}

impl PeerValidators {
    /// Reads the statements for the present cycle that are not there yet.
    pub(crate) async fn gather_statements(&self, fetcher: &Fetcher) -> Result<(), StoreError> {
        let Some(cycle) = self.gate.cycle() else {
            return Ok(());
        };
        let readings: Vec<_> = self
            .addresses()
            .into_iter()
            .map(|(validator, address)| self.gather_statement(fetcher, validator, address, cycle).boxed())
            .collect();
        let mut readings = stream::iter(readings).buffer_unordered(READ_AT_ONCE);
        while let Some(gathered) = readings.next().await {
            gathered?;
        }
        Ok(())
    }

    /// Reads and stores one validator's statement, unless it is there.
    async fn gather_statement(
        &self,
        fetcher: &Fetcher,
        validator: ValidatorKey,
        address: SocketAddr,
        cycle: Epoch,
    ) -> Result<(), StoreError> {
        let store = &self.state.store;
        if store.statement_of(validator, cycle).await?.is_some() {
            return Ok(());
        }
        match self.read_statement(fetcher, validator, address, cycle).await? {
            Ok(Some(statement)) => {
                let now = self.state.clock.now();
                store
                    .put_statement(&statement.stated(), &statement.to_text(), now)
                    .await?;
                tracing::info!(%validator, %cycle, "a validator stated capacity");
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%validator, %cycle, error = %Causes(&error), "a validator's statement is not taken");
            }
        }
        Ok(())
    }

    /// One validator's statement with its evidence checked; `None` if it has not stated anything.
    async fn read_statement(
        &self,
        fetcher: &Fetcher,
        validator: ValidatorKey,
        address: SocketAddr,
        cycle: Epoch,
    ) -> Result<Result<Option<SignedStatement>, NotTaken>, StoreError> {
        let Some(metagraph) = self.state.subnet.last_metagraph() else {
            return Ok(Ok(None));
        };
        let expected = StatementContext {
            genesis: self.state.store.genesis(),
            netuid: metagraph.netuid.0,
            validator,
            cycle: cycle.0,
        };
        let statement = match fetch_statement(fetcher, address, &expected).await {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
        };
        // It was signed, whatever its evidence is worth.
        self.note_sighting(&statement, None).await?;
        let evidence = match fetch_evidence(fetcher, address, &statement).await {
            Ok(evidence) => evidence,
            Err(error) => return Ok(Err(error)),
        };
        if let Some((miner, at)) = newest_probe(&evidence) {
            let (from, until) = (at.minus(LEASED_BEFORE), at.plus(LEASED_AFTER));
            let leased = self
                .state
                .store
                .count_started(validator, miner, from, until)
                .await?;
            if leased == 0 {
                return Ok(Err(NotTaken::NoLease(miner)));
            }
        }
        Ok(Ok(Some(statement)))
    }
}

async fn fetch_statement(
    fetcher: &Fetcher,
    address: SocketAddr,
    expected: &StatementContext,
) -> Result<Option<SignedStatement>, NotTaken> {
    let path = format!("/capacity/{}", expected.cycle);
    match fetcher.fetch_text(address, &path, MAX_STATEMENT_BYTES).await? {
        Some(text) => Ok(Some(check_statement(&text, expected)?)),
        None => Ok(None),
    }
}

async fn fetch_evidence(
    fetcher: &Fetcher,
    address: SocketAddr,
    statement: &SignedStatement,
) -> Result<CapacityEvidence, NotTaken> {
    let path = format!("/capacity-evidence/{}", statement.evidence());
    let text = fetcher.fetch_text(address, &path, MAX_EVIDENCE_BYTES).await?;
    Ok(statement.check_evidence(&text.ok_or(NotTaken::NoEvidence)?)?)
}

/// The newest probe that showed anything, of the miner with the most executors shown.
fn newest_probe(evidence: &CapacityEvidence) -> Option<(MinerKey, Timestamp)> {
    let probes = evidence.miners.iter().flat_map(|seen| {
        let shown = seen.observations.iter().filter(|observed| observed.shown > 0);
        shown.map(|observed| (observed.at, observed.shown, seen.miner))
    });
    probes.max().map(|(at, _, miner)| (miner, at))
}

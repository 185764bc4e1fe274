//! Compares the statements that other validators were shown with those that this one was shown. A validator that signs
//! two for one cycle and shows each to somebody else is found so (`docs/adr/0071`).

use std::collections::BTreeSet;
use std::net::SocketAddr;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use muster_chain::Epoch;
use muster_process::error::Causes;
use muster_protocol::ValidatorKey;
use muster_receipts::Fetcher;
use muster_scoring::capacity_statements::{
    MAX_SEEN_BYTES, MAX_STATEMENT_BYTES, SeenDigest, SeenDigests, SeenList, SignedStatement,
    StatementContext, check_statement,
};
use muster_store::StoreError;

use super::{PeerValidators, READ_AT_ONCE};
use crate::store::SeenStatement;

impl PeerValidators {
    /// Notes a statement whose signature was checked. `source` is the validator that served it, if not its own.
    pub(super) async fn note_sighting(
        &self,
        statement: &SignedStatement,
        source: Option<ValidatorKey>,
    ) -> Result<(), StoreError> {
        let stated = statement.stated();
        let seen = SeenStatement {
            validator: stated.validator,
            cycle: Epoch(stated.cycle),
            digest: statement.digest(),
            body: statement.to_text(),
            source,
        };
        let now = self.state.clock.now();
        if self.state.store.put_sighting(&seen, now).await? {
            let (validator, cycle, digest) = (seen.validator, seen.cycle, seen.digest);
            tracing::warn!(%validator, %cycle, %digest, "a validator signed two different statements for one cycle and has no vote in it");
        }
        Ok(())
    }

    /// Reads which statements for the present cycle the other validators were shown, and those that differ from what
    /// this one was shown.
    pub(crate) async fn compare_statements(&self, fetcher: &Fetcher) -> Result<(), StoreError> {
        let (Some(cycle), Some(metagraph)) = (self.gate.cycle(), self.state.subnet.last_metagraph()) else {
            return Ok(());
        };
        let netuid = metagraph.netuid.0;
        self.note_own_statement(cycle, netuid).await?;
        let me = self.state.key();
        let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
        let mut stating: BTreeSet<_> = permitted.map(|neuron| ValidatorKey(neuron.hotkey)).collect();
        stating.insert(me);
        let mut seen = SeenDigests::new();
        for sighting in self.state.store.sightings_in(cycle).await? {
            seen.entry(sighting.validator)
                .or_default()
                .insert(sighting.digest);
        }
        let liars = self.liars(cycle);
        let peers = self.addresses().into_iter();
        let comparisons: Vec<_> = peers
            .filter(|(peer, _)| !liars.contains(peer))
            .map(|(peer, address)| {
                self.compare_with(fetcher, peer, address, (cycle, netuid), &stating, &seen)
                    .boxed()
            })
            .collect();
        let mut comparisons = stream::iter(comparisons).buffer_unordered(READ_AT_ONCE);
        while let Some(compared) = comparisons.next().await {
            compared?;
        }
        Ok(())
    }

    /// This validator's own statement is one that others may have been shown differently.
    async fn note_own_statement(&self, cycle: Epoch, netuid: u16) -> Result<(), StoreError> {
        let me = self.state.key();
        let Some(body) = self.state.store.statement_of(me, cycle).await? else {
            return Ok(());
        };
        match check_statement(&body, &self.context(me, cycle, netuid)) {
            Ok(statement) => self.note_sighting(&statement, None).await,
            Err(_) => Ok(()),
        }
    }

    async fn compare_with(
        &self,
        fetcher: &Fetcher,
        peer: ValidatorKey,
        address: SocketAddr,
        (cycle, netuid): (Epoch, u16),
        stating: &BTreeSet<ValidatorKey>,
        seen: &SeenDigests,
    ) -> Result<(), StoreError> {
        let path = format!("/capacity-seen/{cycle}");
        let listed = match fetcher.fetch_text(address, &path, MAX_SEEN_BYTES).await {
            Ok(Some(text)) => SeenList::parse(&text),
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::debug!(%peer, error = %Causes(&error), "a validator's list of statements cannot be read");
                return Ok(());
            }
        };
        for entry in listed.unwrap_or_default().news(cycle.0, stating, seen) {
            let context = self.context(entry.validator, cycle, netuid);
            let path = format!("/capacity-statements/{}", entry.digest);
            let text = match fetcher.fetch_text(address, &path, MAX_STATEMENT_BYTES).await {
                Ok(Some(text)) => text,
                // It may have been deleted meanwhile, or the connection was lost: the next round asks again.
                Ok(None) | Err(_) => return Ok(()),
            };
            match check_statement(&text, &context) {
                Ok(statement) if SeenDigest::of(&statement) == entry => {
                    self.note_sighting(&statement, Some(peer)).await?;
                }
                Ok(_) | Err(_) => {
                    tracing::warn!(%peer, validator = %entry.validator, %cycle, "a validator shows a statement that its author did not sign, and is not asked again in this cycle");
                    self.note_liar(cycle, peer);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn context(&self, validator: ValidatorKey, cycle: Epoch, netuid: u16) -> StatementContext {
        StatementContext {
            genesis: self.state.store.genesis(),
            netuid,
            validator,
            cycle: cycle.0,
        }
    }

    /// The peers that showed a forged statement in this cycle.
    fn liars(&self, cycle: Epoch) -> BTreeSet<ValidatorKey> {
        let known = self.known.lock();
        let (noted, liars) = &known.liars;
        if *noted == Some(cycle) {
            liars.clone()
        } else {
            BTreeSet::new()
        }
    }

    fn note_liar(&self, cycle: Epoch, peer: ValidatorKey) {
        let mut known = self.known.lock();
        if known.liars.0 != Some(cycle) {
            known.liars = (Some(cycle), BTreeSet::new());
        }
        known.liars.1.insert(peer);
    }
}

//! Gathering: reads the others' lists, and fetches and replays the bundles that they show.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use muster_audit::AuditBundle;
use muster_process::error::Causes;
use muster_protocol::ValidatorKey;
use muster_receipts::Fetcher;
use muster_store::StoreError;
use muster_validator_store::{AuditOffer, OfferState, StoredEndorsement, StoredSelfTest};

use super::{DAY, Moment, VerdictExchange};
use crate::header_witness::shown_headers;
use crate::offered_bundle::read_bundle;
use crate::self_test::is_news;
use crate::shown_list::{MAX_LIST_BYTES, ShownBundle, ShownList, plan_fetches};
use crate::stated_blocks::{BlockFault, check_blocks};
use crate::statements::{AuditEndorsement, SelfTestStatement, open_text};

/// Lists that are read at a time.
const READ_AT_ONCE: usize = 8;

impl VerdictExchange {
    pub(super) async fn gather(
        &mut self,
        moment: &Moment,
        peers: BTreeMap<ValidatorKey, SocketAddr>,
    ) -> Result<(), StoreError> {
        let fetcher = &self.fetcher;
        let readings: Vec<_> = peers
            .into_iter()
            .map(|(peer, address)| {
                async move { (peer, address, read_list(fetcher, peer, address).await) }.boxed()
            })
            .collect();
        let lists: Vec<_> = stream::iter(readings)
            .buffer_unordered(READ_AT_ONCE)
            .collect()
            .await;
        // Before any bundle is read, which takes time.
        for (peer, _, list) in &lists {
            if let Some(list) = list {
                self.note_shown_header(moment, *peer, list).await?;
            }
        }
        for (peer, address, list) in lists {
            if let Some(list) = list {
                self.read_shown(moment, peer, address, list).await?;
            }
        }
        Ok(())
    }

    async fn read_shown(
        &mut self,
        moment: &Moment,
        peer: ValidatorKey,
        address: SocketAddr,
        list: ShownList,
    ) -> Result<(), StoreError> {
        let now = self.deps.clock.now();
        if let Some(text) = &list.self_test
            && let Some(test) = open_text::<SelfTestStatement>(text, peer, moment.subnet)
        {
            let stored = StoredSelfTest {
                validator: peer,
                tested_at: test.tested_at,
                statement: text.clone(),
                seen_at: now,
            };
            let known = self.deps.store.newest_self_tests().await?;
            let newest = known.iter().find(|known| known.validator == peer);
            if is_news(&test, newest.map(|known| known.tested_at), now) {
                self.deps.store.put_self_test(&stored).await?;
            }
        }
        let tally = self.deps.store.tally_author(peer, now.minus(DAY)).await?;
        let failures = self.failures.get(&peer).map_or(0, Vec::len);
        for shown in plan_fetches(&list.bundles, &tally, failures) {
            self.read_bundle(moment, peer, address, shown).await?;
        }
        for statement in list.endorsements {
            if let Some(read) = open_text::<AuditEndorsement>(&statement, peer, moment.subnet) {
                let stored = StoredEndorsement {
                    digest: read.bundle,
                    validator: peer,
                    statement,
                    seen_at: now,
                };
                self.deps.store.put_endorsement(&stored).await?;
            }
        }
        Ok(())
    }

    /// Fetches, replays and stores one bundle.
    async fn read_bundle(
        &mut self,
        moment: &Moment,
        author: ValidatorKey,
        address: SocketAddr,
        shown: ShownBundle,
    ) -> Result<(), StoreError> {
        let path = format!("/audits/{}", shown.digest);
        // More than the list states is not read.
        let most = usize::try_from(shown.bytes).unwrap_or(usize::MAX);
        let text = match self.fetcher.fetch_text(address, &path, most).await {
            Ok(Some(text)) => text,
            Ok(None) | Err(_) => {
                let now = self.deps.clock.now();
                self.failures.entry(author).or_default().push(now);
                return Ok(());
            }
        };
        let is_its = AuditBundle::digest_of(&text) == shown.digest;
        let (genesis, metagraph) = (moment.genesis.clone(), Arc::clone(&moment.metagraph));
        // Signatures and resampling take seconds.
        let reading = tokio::task::spawn_blocking(move || {
            let read = if is_its {
                read_bundle(&text, author, &genesis, &metagraph).map(|read| (read.says, read.bundle))
            } else {
                Err("the text that is served is not the one that is listed".to_owned())
            };
            (read, text)
        });
        let Ok((read, text)) = reading.await else {
            // The process stops.
            return Ok(());
        };
        if let Ok((_, bundle)) = &read {
            self.look_for_second(author, &shown_headers(bundle)).await?;
        }
        let read = match read {
            Ok((says, bundle)) => {
                let subnet = &self.deps.subnet;
                match check_blocks(&bundle, |block| subnet.block_hash(block).boxed()).await {
                    Ok(()) => Ok(says),
                    Err(fault @ BlockFault::Unknown { .. }) => {
                        tracing::warn!(bundle = %shown.digest, %author, %fault, "a bundle is read again later");
                        let now = self.deps.clock.now();
                        self.failures.entry(author).or_default().push(now);
                        return Ok(());
                    }
                    Err(fault) => Err(fault.to_string()),
                }
            }
            Err(reason) => Err(reason),
        };
        let now = self.deps.clock.now();
        let (says, state, reason) = match read {
            Ok(says) => (Some(says), OfferState::Offered, None),
            Err(reason) => (None, OfferState::Refused, Some(reason)),
        };
        let offer = AuditOffer {
            digest: shown.digest,
            author,
            says,
            bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
            state,
            reason,
            seen_at: now,
            seen_block: moment.block,
            decided_at: (state == OfferState::Refused).then_some(now),
        };
        tracing::info!(bundle = %offer.digest, %author, state = offer.state.name(), reason = offer.reason, "another validator shows a bundle");
        let body = (state == OfferState::Offered).then_some(text.as_str());
        self.deps.store.put_offer(&offer, body).await
    }
}

async fn read_list(fetcher: &Fetcher, peer: ValidatorKey, address: SocketAddr) -> Option<ShownList> {
    match fetcher.fetch_text(address, "/audits", MAX_LIST_BYTES).await {
        Ok(text) => ShownList::parse(&text?),
        Err(error) => {
            tracing::debug!(%peer, error = %Causes(&error), "a validator's list of bundles cannot be read");
            None
        }
    }
}

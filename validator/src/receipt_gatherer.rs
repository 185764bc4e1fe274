//! Gathers the receipts of all validators from the receipt pages of miners and of validators. Other validators'
//! receipts count in this validator's scores, and miners' signatures on its own receipts are found there too. A miner
//! may show its receipts to some validators only, so validators serve their own.
//!
//! No job waits for this. A party that does not serve its pages is skipped until the next round; a page that was read
//! in part is read on from that place, by the next process too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_chain::{BlockNumber, Metagraph};
use muster_identity::Verified;
use muster_process::error::Causes;
use muster_protocol::receipt::page_of;
use muster_protocol::{Receipt, Timestamp};
use muster_receipts::{
    Fetcher, PageCursor, PageRequest, PageSource, PairCycle, ReadingRules, ReceiptRejection, ReceiptTally,
    RejectionReason, advance_cursor, check_receipts, cut_lines, key_of, payload_bytes, plan_requests,
    read_lines, reject_over_quota,
};
use muster_store::StoreError;

use crate::chain::reachable_miners;
use crate::driver::JobDrivers;
use crate::peers::PeerValidators;
use crate::receipt_bounds::ReceiptBounds;
use crate::store::{GatheredPage, PlacedReceipt};
use crate::validator_state::ValidatorState;
use crate::weights::{BlockTimes, ScoringGate};

/// Parties whose pages are read at a time.
const SOURCES_AT_ONCE: usize = 32;

/// Receipts whose signatures are checked in one batch, and stored in one transaction.
const BATCH: usize = 1_000;

/// Pieces of one party's pages that are read in one round, so that a party with a long backlog does not delay the
/// others.
const PIECES: usize = 64;

/// Rounds after which the parties that have left the subnet are forgotten.
const ROUNDS_TO_CLEAR: u64 = 360;

/// Gathers receipts from every miner and validator of the subnet, in rounds.
pub(crate) struct ReceiptGatherer {
    pub(crate) state: Arc<ValidatorState>,
    pub(crate) drivers: Arc<JobDrivers>,
    pub(crate) gate: Arc<ScoringGate>,
    /// The other validators.
    pub(crate) peers: Arc<PeerValidators>,
}

impl ReceiptGatherer {
    /// Gathers receipts until the validator stops.
    pub(crate) async fn run(self) -> Result<(), StoreError> {
        let stop = self.state.tasks.token();
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            read = self.gather_rounds() => read,
        }
    }

    async fn gather_rounds(&self) -> Result<(), StoreError> {
        let fetcher = match Fetcher::new() {
            Ok(fetcher) => fetcher,
            Err(error) => {
                tracing::error!(error = %Causes(&error), "no receipts can be gathered");
                return Ok(());
            }
        };
        let config = &self.state.config.receipts;
        let mut cursors = self.state.store.page_cursors().await?;
        let mut block_times = self.gate.subscribe();
        for round in 0_u64.. {
            // Before the chain's rules are known, the cycle of a receipt is not known.
            if block_times.wait_for(Option::is_some).await.is_err() {
                return Ok(());
            }
            let pause = Duration::from_secs(config.interval_s);
            // Permits decide whose receipts count, so the subnet is read again once it is old.
            let metagraph = self.state.subnet.metagraph().await;
            let now = self.state.clock.now();
            self.peers.refresh(&metagraph).await;
            self.peers.gather_statements(&fetcher).await?;
            self.peers.compare_statements(&fetcher).await?;
            let times = self.gate.block_times();
            let bounds = ReceiptBounds::of_gathering(&self.state, &metagraph, times).await?;
            let readings = self.sources(&metagraph).into_iter().map(|(source, address)| {
                let known = cursors.get(&source).cloned().unwrap_or_default();
                let (fetcher, bounds) = (&fetcher, &bounds);
                async move {
                    let read = self.read_source(fetcher, bounds, source, address, known).await;
                    (source, read)
                }
            });
            let mut readings = stream::iter(readings).buffer_unordered(SOURCES_AT_ONCE);
            let mut read = Vec::new();
            while let Some((source, reading)) = readings.next().await {
                read.push((source, reading?));
            }
            drop(readings);
            let oldest = oldest_page(now, config.catch_up_s);
            for (source, mut known) in read {
                known.retain(|page, _| *page >= oldest);
                cursors.insert(source, known);
            }
            if round % ROUNDS_TO_CLEAR == 0 {
                cursors.retain(|source, _| metagraph.find(&source.hotkey()).is_some());
                self.drivers
                    .records
                    .forget(|miner| metagraph.find(&miner.0).is_some());
            }
            self.state.clock.sleep(pause).await;
        }
        Ok(())
    }

    /// The parties that serve receipt pages, with their addresses.
    fn sources(&self, metagraph: &Metagraph) -> Vec<(PageSource, SocketAddr)> {
        let miners = reachable_miners(metagraph, self.state.keypair.hotkey());
        let miners = miners
            .into_iter()
            .map(|(miner, address)| (PageSource::Miner(miner), address));
        let validators = self.peers.addresses().into_iter();
        miners
            .chain(validators.map(|(validator, address)| (PageSource::Validator(validator), address)))
            .collect()
    }

    /// Reads a party's new pages; returns how far each page has been read.
    async fn read_source(
        &self,
        fetcher: &Fetcher,
        bounds: &ReceiptBounds,
        source: PageSource,
        address: SocketAddr,
        mut known: BTreeMap<i64, PageCursor>,
    ) -> Result<BTreeMap<i64, PageCursor>, StoreError> {
        let now = self.state.clock.now();
        let catch_up = Duration::from_secs(self.state.config.receipts.catch_up_s);
        for ask in plan_requests(now, &known, catch_up).into_iter().take(PIECES) {
            let cursor = known.get(&ask.page).copied().unwrap_or_default();
            let piece = match fetcher.fetch(address, ask).await {
                Ok(piece) => piece,
                Err(error) => {
                    // The party's other pages would most likely fail too; the next round asks again.
                    tracing::debug!(%source, page = ask.page, error = %Causes(&error), "receipts cannot be read");
                    break;
                }
            };
            let cut = cut_lines(&piece.bytes);
            let cursor_now = advance_cursor(now, ask.page, cursor, &cut, piece.whole);
            known.insert(ask.page, cursor_now);
            // That a page is empty is not stored; the next process asks once more.
            if cut.used > 0 || cut.endless {
                let page = ReadPage {
                    source,
                    ask,
                    lines: &cut.lines,
                    cursor_before: cursor,
                    cursor_after: cursor_now,
                };
                match self.store_lines(bounds, page, long_line_refusals(&cut)).await {
                    Ok(()) => {}
                    Err(refused) if refused.is_refused_value() => {
                        // The rest of the page is not read by this process.
                        tracing::error!(%source, page = ask.page, error = %Causes(&refused), "the store refuses a value of a receipt page; the page is read no further");
                        let settled = PageCursor {
                            settled: true,
                            ..cursor_now
                        };
                        known.insert(ask.page, settled);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(known)
    }

    /// Checks the lines of a page and stores the valid receipts, a batch at a time. The cursor advances with the last
    /// batch.
    async fn store_lines(
        &self,
        bounds: &ReceiptBounds,
        page: ReadPage<'_>,
        mut refused: Vec<ReceiptRejection>,
    ) -> Result<(), StoreError> {
        let (source, number) = (page.source, page.ask.page);
        let rules = ReadingRules {
            source,
            page: number,
            permitted: bounds.permitted(),
            before_page: bounds.before_page(),
        };
        let mut batches = page.lines.chunks(BATCH).peekable();
        loop {
            let batch = batches.next().unwrap_or_default();
            let now = self.state.clock.now();
            let (receipts, unread) = read_lines(batch, &rules, now);
            refused.extend(unread);
            let known_digests = self.state.store.known_receipts(&receipts).await?;
            // No signature is checked for a pair that has no room.
            let tally = self.tally_of(bounds, source, receipts.iter()).await?;
            let (receipts, full): (Vec<_>, Vec<_>) = receipts.into_iter().partition(|receipt| {
                let (pair, bytes) = (pair_of(bounds, receipt), payload_bytes(&receipt.payload));
                let quota = bounds.quota(pair.validator, pair.miner);
                quota.is_none_or(|quota| tally.has_room(&pair, &quota, bytes))
            });
            // A receipt that is kept already is served by both its parties, which is no fault.
            let is_known = |receipt: &Receipt| known_digests.contains_key(&key_of(receipt));
            refused.extend(full.iter().filter(|full| !is_known(full)).map(reject_over_quota));
            // Checking a thousand signatures takes some thirty milliseconds, too long for a thread that serves sockets.
            let judging = tokio::task::spawn_blocking(move || check_receipts(receipts, &known_digests, now));
            let Ok(judged) = judging.await else {
                // The process stops; the cursor stays where it was.
                return Ok(());
            };
            refused.extend(judged.refused);
            let last = batches.peek().is_none();
            // No cycle may be scored between choosing a receipt's block and storing the receipt, and no other party's
            // page may use the same room.
            let _gate = self.gate.lock().await;
            let (good, full) = self.admit(bounds, source, judged.good).await?;
            refused.extend(full);
            let gathered = GatheredPage {
                source,
                page: number,
                cursor: if last {
                    page.cursor_after
                } else {
                    page.cursor_before
                },
                good: self.place_in_blocks(bounds, good).await?,
                refused: std::mem::take(&mut refused),
                own_page: self.state.own_page(),
            };
            if !gathered.refused.is_empty() {
                tracing::warn!(%source, page = number, refused = gathered.refused.len(), "receipts are served that do not count");
            }
            self.state
                .store
                .store_gathered(self.state.key(), &gathered, now)
                .await?;
            if last {
                return Ok(());
            }
        }
    }

    /// The amounts that are kept of the pairs and cycles of these receipts.
    async fn tally_of(
        &self,
        bounds: &ReceiptBounds,
        source: PageSource,
        receipts: impl Iterator<Item = &Receipt>,
    ) -> Result<ReceiptTally, StoreError> {
        let cycles: BTreeSet<u64> = receipts
            .map(|receipt| bounds.cycle_of(receipt.payload.timestamp()))
            .collect();
        match (cycles.first(), cycles.last()) {
            (Some(first), Some(last)) => self.state.store.gathered_amounts(&source, *first, *last).await,
            _ => Ok(ReceiptTally::default()),
        }
    }

    /// The receipts that are within the quotas of their pairs, and the rejections of the others.
    async fn admit(
        &self,
        bounds: &ReceiptBounds,
        source: PageSource,
        receipts: Vec<Verified<Receipt>>,
    ) -> Result<(Vec<Verified<Receipt>>, Vec<ReceiptRejection>), StoreError> {
        let mut tally = self
            .tally_of(bounds, source, receipts.iter().map(|receipt| &**receipt))
            .await?;
        let (mut good, mut full) = (Vec::with_capacity(receipts.len()), Vec::new());
        for receipt in receipts {
            let pair = pair_of(bounds, &receipt);
            let quota = bounds.quota(pair.validator, pair.miner);
            match quota.is_none_or(|quota| tally.admit(pair, &quota, payload_bytes(&receipt.payload))) {
                true => good.push(receipt),
                false => full.push(reject_over_quota(&receipt)),
            }
        }
        Ok((good, full))
    }

    /// Gives each receipt the block in which it counts: the head at its time, or the first block that is not scored
    /// yet, so that a late receipt is paid all the same.
    async fn place_in_blocks(
        &self,
        bounds: &ReceiptBounds,
        receipts: Vec<Verified<Receipt>>,
    ) -> Result<Vec<PlacedReceipt>, StoreError> {
        if receipts.is_empty() {
            return Ok(Vec::new());
        }
        let scored = self.state.store.scored_through().await?;
        let first = scored.map_or(BlockNumber(0), |block| BlockNumber(block.0.saturating_add(1)));
        let (block_times, head) = (self.gate.block_times(), self.state.subnet.head());
        let placed = receipts.into_iter().map(|receipt| {
            let time = receipt.payload.timestamp();
            PlacedReceipt {
                block: counting_block(time, block_times, head, first),
                cycle: bounds.cycle_of(time),
                receipt,
            }
        });
        Ok(placed.collect())
    }
}

/// A part of a page as it was read.
struct ReadPage<'a> {
    source: PageSource,
    ask: PageRequest,
    lines: &'a [Vec<u8>],
    cursor_before: PageCursor,
    cursor_after: PageCursor,
}

/// The pair of a receipt, in the cycle in which it was signed.
fn pair_of(bounds: &ReceiptBounds, receipt: &Receipt) -> PairCycle {
    PairCycle {
        cycle: bounds.cycle_of(receipt.payload.timestamp()),
        validator: receipt.payload.validator(),
        miner: receipt.payload.miner(),
    }
}

/// The block in which a receipt counts that was signed at `time`: the head at that time, at most the present `head` and
/// at least `first`, the first block that is not scored yet. A pace that was measured over hurried blocks would
/// otherwise place a receipt far beyond the head, where no cycle finds it.
fn counting_block(
    time: Timestamp,
    block_times: Option<BlockTimes>,
    head: Option<BlockNumber>,
    first: BlockNumber,
) -> BlockNumber {
    let Some(times) = block_times else { return first };
    let block = times.block_at(time);
    head.map_or(block, |head| block.min(head)).max(first)
}

/// The oldest page that is still read.
fn oldest_page(now: Timestamp, catch_up_s: u64) -> i64 {
    let span = i64::try_from(catch_up_s).unwrap_or(i64::MAX);
    let then = Timestamp::from_secs(now.secs().saturating_sub(span));
    page_of(then).saturating_sub(2)
}

/// One refusal for each line that was too long to be read.
fn long_line_refusals(cut: &muster_receipts::CutLines) -> Vec<ReceiptRejection> {
    let lines = usize::try_from(cut.too_long).unwrap_or(usize::MAX) + usize::from(cut.endless);
    let refusal = ReceiptRejection {
        why: RejectionReason::TooLong,
        example: String::new(),
    };
    vec![refusal; lines]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_counts_at_the_head_of_its_time_and_never_beyond_the_present_one() {
        let times = |block_ms| {
            Some(BlockTimes {
                block: BlockNumber(100),
                time_ms: 1_000_000,
                block_ms,
            })
        };
        let at = |secs, times, first| {
            let (time, head) = (Timestamp::from_secs(secs), Some(BlockNumber(110)));
            counting_block(time, times, head, BlockNumber(first)).0
        };
        assert_eq!(at(1_036, times(12_000), 90), 103);
        assert_eq!(at(1_036, times(12_000), 105), 105, "a scored block is over");
        assert_eq!(
            at(1_036, times(1), 90),
            110,
            "blocks that were measured in a hurry"
        );
        assert_eq!(at(1_036, None, 90), 90);
        let time = Timestamp::from_secs(1_036);
        assert_eq!(counting_block(time, times(12_000), None, BlockNumber(0)).0, 103);
    }
}

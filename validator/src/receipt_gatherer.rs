//! Reads the receipts of all validators from the miners' pages: what others paid counts in our scores, and what our own
//! miners signed without telling us is found there too.
//!
//! Nothing of a job waits for this. A miner that does not serve its pages is passed over until the next time; a page that
//! was read in part is read on from there, also by the next process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_chain::{BlockNumber, Metagraph};
use muster_identity::Verified;
use muster_process::error::Causes;
use muster_process::store::StoreError;
use muster_protocol::receipt::page_of;
use muster_protocol::{MinerKey, Receipt, Timestamp};
use muster_receipts::{Ask, Cursor, Fetcher, Refusal, Refused, after, cut, judge, plan, read};

use crate::shared::{Anchor, Shared};
use crate::store::Harvest;

/// Miners that are read at a time.
const AT_A_TIME: usize = 16;

/// Receipts whose signatures are checked in one batch, and kept in one transaction.
const BATCH: usize = 1_000;

/// Pieces of one miner's pages that are read in one round: the others have their turn before it is caught up with.
const PIECES: usize = 64;

/// Rounds between two clearings of what is old.
const ROUNDS_TO_CLEAR: u64 = 360;

/// Reads until the validator stops.
pub(crate) async fn run(shared: Arc<Shared>) -> Result<(), StoreError> {
    let stop = shared.tasks.token();
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        read = rounds(&shared) => read,
    }
}

async fn rounds(shared: &Shared) -> Result<(), StoreError> {
    let fetcher = match Fetcher::new() {
        Ok(fetcher) => fetcher,
        Err(error) => {
            tracing::error!(error = %Causes(&error), "no receipts can be gathered");
            return Ok(());
        }
    };
    let config = &shared.config.receipts;
    let mut cursors = shared.store.pages_read().await?;
    let mut anchored = shared.anchor.subscribe();
    for round in 0_u64.. {
        // Before the chain has told its rules nobody knows in which cycle a receipt counts.
        if anchored.wait_for(Option::is_some).await.is_err() {
            return Ok(());
        }
        let pause = Duration::from_secs(config.interval_s);
        let Some(metagraph) = shared.outlook.seen() else {
            shared.clock.sleep(pause).await;
            continue;
        };
        let now = shared.clock.now();
        let miners = miners(shared, &metagraph);
        let readings = miners.into_iter().map(|(miner, address)| {
            let known = cursors.get(&miner).cloned().unwrap_or_default();
            let fetcher = &fetcher;
            async move { (miner, one_miner(shared, fetcher, miner, address, known).await) }
        });
        let mut readings = stream::iter(readings).buffer_unordered(AT_A_TIME);
        let mut read = Vec::new();
        while let Some((miner, reading)) = readings.next().await {
            read.push((miner, reading?));
        }
        drop(readings);
        let oldest = oldest(now, config.catch_up_s);
        for (miner, mut known) in read {
            known.retain(|page, _| *page >= oldest);
            cursors.insert(miner, known);
        }
        if round % ROUNDS_TO_CLEAR == 0 {
            cursors.retain(|miner, _| metagraph.find(&miner.0).is_some());
            shared.ledger().forget(|miner| metagraph.find(&miner.0).is_some());
            shared.store.forget(oldest, now).await?;
        }
        shared.clock.sleep(pause).await;
    }
    Ok(())
}

fn oldest(now: Timestamp, catch_up_s: u64) -> i64 {
    let span = i64::try_from(catch_up_s).unwrap_or(i64::MAX);
    let then = Timestamp::from_secs(now.secs().saturating_sub(span));
    page_of(then).saturating_sub(2)
}

/// Where the miners of the subnet say that they are.
pub(crate) fn miners(shared: &Shared, metagraph: &Metagraph) -> Vec<(MinerKey, SocketAddr)> {
    let me = shared.keypair.hotkey();
    let serving = metagraph.neurons.iter().filter(|neuron| neuron.hotkey != me);
    serving
        .filter_map(|neuron| Some((MinerKey(neuron.hotkey), neuron.axon?)))
        .filter(|(_, address)| address.port() != 0 && !address.ip().is_unspecified())
        .collect()
}

/// Reads what one miner has for us; how far its pages have been read then.
async fn one_miner(
    shared: &Shared,
    fetcher: &Fetcher,
    miner: MinerKey,
    address: SocketAddr,
    mut known: BTreeMap<i64, Cursor>,
) -> Result<BTreeMap<i64, Cursor>, StoreError> {
    let now = shared.clock.now();
    let catch_up = Duration::from_secs(shared.config.receipts.catch_up_s);
    for ask in plan(now, &known, catch_up).into_iter().take(PIECES) {
        let cursor = known.get(&ask.page).copied().unwrap_or_default();
        let piece = match fetcher.fetch(address, ask).await {
            Ok(piece) => piece,
            Err(error) => {
                // The rest of its pages would fare no better; the next round asks again.
                tracing::debug!(%miner, page = ask.page, error = %Causes(&error), "a miner's receipts cannot be read");
                break;
            }
        };
        let cut = cut(&piece.bytes);
        let cursor_now = after(now, ask.page, cursor, &cut, piece.whole);
        known.insert(ask.page, cursor_now);
        // That a page is empty is not worth a write; the next process asks once more.
        if cut.used > 0 || cut.endless {
            keep(shared, miner, ask, &cut.lines, too_long(&cut), cursor, cursor_now).await?;
        }
    }
    Ok(known)
}

fn too_long(cut: &muster_receipts::Cut) -> Vec<Refusal> {
    let lines = usize::try_from(cut.too_long).unwrap_or(usize::MAX) + usize::from(cut.endless);
    let refusal = Refusal {
        why: Refused::TooLong,
        example: String::new(),
    };
    vec![refusal; lines]
}

/// Checks lines and keeps what counts, a batch at a time. The place to read on from moves with the last batch.
async fn keep(
    shared: &Shared,
    miner: MinerKey,
    ask: Ask,
    lines: &[Vec<u8>],
    mut refused: Vec<Refusal>,
    before: Cursor,
    then: Cursor,
) -> Result<(), StoreError> {
    let mut batches = lines.chunks(BATCH).peekable();
    loop {
        let batch = batches.next().unwrap_or_default();
        let now = shared.clock.now();
        let (receipts, unread) = read(batch, miner, now);
        refused.extend(unread);
        let held = shared.store.known_receipts(&receipts).await?;
        // A thousand signatures take some thirty milliseconds: not on a thread that serves sockets.
        let judging = tokio::task::spawn_blocking(move || judge(receipts, &held, now));
        let Ok(judged) = judging.await else {
            // The process stops; the place to read on from stays where it was.
            return Ok(());
        };
        refused.extend(judged.refused);
        let last = batches.peek().is_none();
        // Nothing is scored between looking which cycles are and keeping what counts in the next.
        let _alone = shared.scoring.lock().await;
        let harvest = Harvest {
            miner,
            page: ask.page,
            cursor: if last { then } else { before },
            good: placed(shared, judged.good).await?,
            refused: std::mem::take(&mut refused),
        };
        if !harvest.refused.is_empty() {
            tracing::warn!(%miner, page = ask.page, refused = harvest.refused.len(), "a miner serves receipts that do not count");
        }
        shared.store.reap(shared.me(), &harvest, now).await?;
        if last {
            return Ok(());
        }
    }
}

/// The block that each receipt counts in: the head at its time, but none whose work was scored already, so that what came
/// late is paid all the same.
async fn placed(
    shared: &Shared,
    receipts: Vec<Verified<Receipt>>,
) -> Result<Vec<(Verified<Receipt>, BlockNumber)>, StoreError> {
    if receipts.is_empty() {
        return Ok(Vec::new());
    }
    let scored = shared.store.scored_through().await?;
    let first = scored.map_or(BlockNumber(0), |block| BlockNumber(block.0.saturating_add(1)));
    let anchor: Option<Anchor> = *shared.anchor.borrow();
    let block = |receipt: &Verified<Receipt>| match anchor {
        Some(anchor) => anchor.block_at(receipt.payload.timestamp()).max(first),
        None => first,
    };
    Ok(receipts
        .into_iter()
        .map(|receipt| {
            let block = block(&receipt);
            (receipt, block)
        })
        .collect())
}

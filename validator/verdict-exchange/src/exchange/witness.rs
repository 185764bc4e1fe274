//! Witness: notes the headers that others show, and finds who saw those that a bundle rests on.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use muster_audit::{AuditBundle, LinkState};
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::{BucketHeader, Envelope};
use muster_store::StoreError;
use muster_validator_store::{HeaderReading, ReadHeader, SecondHeader};

use super::{Moment, VerdictExchange};
use crate::header_witness::{
    HeaderWitness, ShownHeader, are_empty_between, committing_headers, find_second, noted_bucket,
    open_header, shown_headers, witness_of,
};
use crate::shown_list::ShownList;
use crate::statements::{HeaderNote, open_text};

/// The longest text of a note that is read, in bytes.
const MAX_NOTE_BYTES: usize = 1_024;
/// The headers of a bundle of which others are asked at a time.
const ASKED_HEADERS: usize = 32;
/// Requests for notes at a time.
const ASKED_AT_ONCE: usize = 64;
/// The time in which notes are waited for.
const NOTES_LIMIT: Duration = Duration::from_secs(8);
/// Pairs of headers in another validator's list that are looked at.
const MOST_PAIRS: usize = 16;

/// The headers by which a bundle shows its lists of own prompts.
#[derive(Clone, Debug, Default)]
pub(super) struct HeaderWitnesses {
    /// Of each header, by its digest, whether its lists count and whether it goes on with the one before it.
    pub(super) links: BTreeMap<Digest, LinkState>,
    /// The number of those that were not shown in time.
    pub(super) unseen: usize,
    /// The number of those of which others may still show notes.
    pub(super) open: usize,
    /// The number of those that were seen and do not go on with the one before them, but for the first.
    pub(super) apart: usize,
    /// A bucket of which the author signed two headers.
    pub(super) signed_twice: Option<u64>,
}

impl VerdictExchange {
    /// Notes the newest header that a validator shows, if it is read between the end of a bucket and its draw block.
    pub(super) async fn note_shown_header(
        &self,
        moment: &Moment,
        author: ValidatorKey,
        list: &ShownList,
    ) -> Result<(), StoreError> {
        let store = &self.deps.store;
        let shown = list.header.as_deref();
        let shown = shown.and_then(|text| open_header(text, author, moment.subnet));
        // The answer may have come when the draw block was there already.
        let after = self
            .deps
            .subnet
            .head()
            .map_or(moment.block, |head| head.0.max(moment.block));
        let bucket = noted_bucket(moment.block).filter(|bucket| noted_bucket(after) == Some(*bucket));
        if let Some(bucket) = bucket {
            let of_bucket = shown.clone().filter(|header| header.bucket == bucket);
            let reading = HeaderReading {
                author,
                bucket: bucket.0,
                header: of_bucket.map(|header| ReadHeader {
                    digest: header.digest,
                    text: header.text,
                }),
                block: after,
                at: self.deps.clock.now(),
            };
            store.note_header(&reading).await?;
        }
        let shown: Vec<ShownHeader> = shown.into_iter().collect();
        self.look_for_second(author, &shown).await?;
        for (first, second) in list.second_headers.iter().take(MOST_PAIRS) {
            if let Some(found) = self.read_pair(moment, first, second) {
                store.put_second_header(&found).await?;
            }
        }
        Ok(())
    }

    /// Two headers of one bucket that one validator with a permit signed; `None` if they are not.
    fn read_pair(&self, moment: &Moment, first: &str, second: &str) -> Option<SecondHeader> {
        let stated = Envelope::<BucketHeader>::from_text(first).ok()?;
        let author = stated.statement().ok()?.validator;
        // Anybody can make up keys.
        moment.metagraph.find(&author.0).filter(|neuron| neuron.permit)?;
        let opened = |text: &str| open_text::<BucketHeader>(text, author, moment.subnet);
        let (one, other) = (opened(first)?, opened(second)?);
        (one.bucket == other.bucket && one != other).then(|| SecondHeader {
            author,
            bucket: one.bucket.0,
            first: first.to_owned(),
            second: second.to_owned(),
            seen_at: self.deps.clock.now(),
        })
    }

    /// Compares headers that their author signed with those that were read of the same buckets, and stores the first
    /// pair that differs. Returns its bucket.
    pub(super) async fn look_for_second(
        &self,
        author: ValidatorKey,
        shown: &[ShownHeader],
    ) -> Result<Option<u64>, StoreError> {
        let store = &self.deps.store;
        let buckets = shown.iter().map(|header| header.bucket.0);
        let (Some(first), Some(last)) = (buckets.clone().min(), buckets.max()) else {
            return Ok(None);
        };
        let read = store.header_readings(author, first, last).await?;
        let Some(found) = find_second(shown, &read, author, self.deps.clock.now()) else {
            return Ok(None);
        };
        tracing::error!(%author, bucket = found.bucket, "a validator has signed two headers of one bucket");
        store.put_second_header(&found).await?;
        Ok(Some(found.bucket))
    }

    /// A bucket of which this validator signed two headers; `None` if none is known.
    pub(super) async fn signed_twice(&self, author: ValidatorKey) -> Result<Option<u64>, StoreError> {
        let found = self.deps.store.second_header_of(author).await?;
        Ok(found.map(|found| found.bucket))
    }

    /// Which of a bundle's headers count. Others are asked about those that were not read here.
    pub(super) async fn find_witnesses(
        &self,
        moment: &Moment,
        author: ValidatorKey,
        bundle: &AuditBundle,
    ) -> Result<HeaderWitnesses, StoreError> {
        let mut found = HeaderWitnesses {
            signed_twice: self.look_for_second(author, &shown_headers(bundle)).await?,
            ..HeaderWitnesses::default()
        };
        let headers = committing_headers(bundle);
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else {
            return Ok(found);
        };
        let store = &self.deps.store;
        let read = store
            .header_readings(author, first.bucket.0, last.bucket.0)
            .await?;
        let keys = (author, ValidatorKey(self.deps.keypair.hotkey()));
        let witness = |header: &ShownHeader, notes: &[HeaderNote]| {
            witness_of(header, read.get(&header.bucket.0), notes, keys, &moment.metagraph)
        };
        let open = headers
            .iter()
            .filter(|header| witness(header, &[]) == HeaderWitness::Open);
        let mut asked: Vec<&ShownHeader> = open.collect();
        // Without a header that opens lists their answers are lost, and without another one evidence begins anew.
        asked.sort_by_key(|header| !header.opens_lists);
        let buckets: Vec<u64> = asked
            .into_iter()
            .take(ASKED_HEADERS)
            .map(|header| header.bucket.0)
            .collect();
        let notes = self.ask_notes(moment, author, &buckets).await;
        let mut before: Option<&ShownHeader> = None;
        for header in &headers {
            let joins = before.is_some_and(|before| {
                before.digest == header.previous && are_empty_between(before.bucket.0, header.bucket.0, &read)
            });
            let state = match witness(header, &notes) {
                HeaderWitness::Seen if joins => LinkState::Joined,
                HeaderWitness::Seen => {
                    found.apart += usize::from(before.is_some());
                    LinkState::Apart
                }
                HeaderWitness::Unseen => {
                    found.unseen += 1;
                    LinkState::Unseen
                }
                HeaderWitness::Open => {
                    found.open += 1;
                    LinkState::Unseen
                }
            };
            found.links.insert(header.digest, state);
            before = Some(header);
        }
        Ok(found)
    }

    /// Asks the others which headers of these buckets they read. Answers that come too late are not waited for.
    async fn ask_notes(&self, moment: &Moment, author: ValidatorKey, buckets: &[u64]) -> Vec<HeaderNote> {
        let peers = self.deps.peers.borrow().clone();
        let mut asked = Vec::new();
        for (peer, address) in peers.into_iter().filter(|(peer, _)| *peer != author) {
            for bucket in buckets {
                let path = format!("/audits/notes/{author}/{bucket}");
                asked.push(
                    async move {
                        let text = self.fetcher.fetch_text(address, &path, MAX_NOTE_BYTES).await;
                        open_text::<HeaderNote>(text.ok()??.trim(), peer, moment.subnet)
                    }
                    .boxed(),
                );
            }
        }
        let answers = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
        let answers = answers.take_until(tokio::time::sleep(NOTES_LIMIT));
        answers.filter_map(async |note| note).collect().await
    }
}

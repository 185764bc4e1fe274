//! The pages at which a validator shows its bundles, its statements about others' bundles, and its self-test. All of it
//! is signed or content-addressed, and meant to be checked by others.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use muster_identity::Keypair;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{Digest, Hotkey, ValidatorKey};
use muster_response_proof::{BucketHeader, Envelope};
use muster_store::StoreError;
use muster_validator_store::{HeaderReading, Store, genesis_digest};

use crate::header_witness::{ShownHeader, find_second, open_header};
use crate::shown_list::{ShownBundle, ShownList};
use crate::statements::{HeaderNote, sign_text};

/// Bundles, and statements, of a list at most.
const MOST_SHOWN: u32 = 256;
/// Pairs of headers in a list at most.
const MOST_PAIRS: u32 = 16;
/// The largest text of a header that is taken, in bytes.
const MAX_HEADER_BYTES: usize = 4_096;

/// Finds the header of the newest bucket that this validator has closed, in text form; `None` if there is none.
pub type FindHeader = Arc<dyn Fn() -> BoxFuture<'static, Result<Option<String>, StoreError>> + Send + Sync>;

/// The parts of a validator that its pages show.
#[derive(Clone)]
pub struct ExchangePages {
    /// The validator's key, which signs notes.
    pub keypair: Keypair,
    /// The number of the subnet.
    pub netuid: u16,
    /// The validator's store.
    pub store: Arc<Store>,
    /// The newest header of its own log.
    pub newest_header: FindHeader,
    /// The clock of the validator.
    pub clock: SharedClock,
}

impl std::fmt::Debug for ExchangePages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExchangePages")
    }
}

impl ExchangePages {
    /// The validator that shows them.
    pub fn validator(&self) -> ValidatorKey {
        ValidatorKey(self.keypair.hotkey())
    }

    fn subnet(&self) -> Option<(Digest, u16)> {
        Some((genesis_digest(&self.store.genesis())?, self.netuid))
    }
}

/// The pages `/audits`, `/audits/{digest}`, `/audits/notes/{author}/{bucket}` and `/audits/headers`.
pub fn page_routes<S: Clone + Send + Sync + 'static>(pages: ExchangePages) -> Router<S> {
    Router::new()
        .route("/audits", get(list))
        .route("/audits/headers", post(object))
        .route("/audits/{digest}", get(bundle))
        .route("/audits/notes/{author}/{bucket}", get(note))
        .layer(DefaultBodyLimit::max(MAX_HEADER_BYTES))
        .with_state(pages)
}

async fn list(State(pages): State<ExchangePages>) -> Response {
    match shown(&pages).await {
        Ok(list) => json(list.to_text()),
        Err(error) => unreadable(&error),
    }
}

async fn shown(pages: &ExchangePages) -> Result<ShownList, StoreError> {
    let (store, me) = (&pages.store, pages.validator());
    let bundles = store.shown_audits(me, MOST_SHOWN).await?;
    let endorsements = store.endorsements_by(me, MOST_SHOWN).await?;
    let tests = store.newest_self_tests().await?;
    Ok(ShownList {
        bundles: bundles
            .into_iter()
            .map(|(audit, bytes)| ShownBundle {
                digest: audit.digest,
                coldkey: audit.coldkey,
                model: audit.model,
                through_bucket: audit.through_bucket,
                bytes,
            })
            .collect(),
        endorsements: endorsements.into_iter().map(|one| one.statement).collect(),
        self_test: tests
            .into_iter()
            .find(|test| test.validator == me)
            .map(|test| test.statement),
        header: (pages.newest_header)().await?,
        second_headers: store
            .second_headers(MOST_PAIRS)
            .await?
            .into_iter()
            .map(|found| (found.first, found.second))
            .collect(),
    })
}

/// This validator's note of the header of another one's bucket that it read first, signed now.
async fn note(State(pages): State<ExchangePages>, Path((author, bucket)): Path<(Hotkey, u64)>) -> Response {
    let author = ValidatorKey(author);
    match pages.store.header_reading(author, bucket).await {
        Ok(reading) => match sign_note(&pages, reading) {
            Some(text) => text.into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
        Err(error) => unreadable(&error),
    }
}

fn sign_note(pages: &ExchangePages, reading: Option<HeaderReading>) -> Option<String> {
    let reading = reading?;
    let (genesis, netuid) = pages.subnet()?;
    let note = HeaderNote {
        genesis,
        netuid,
        validator: pages.validator(),
        author: reading.author,
        bucket: reading.bucket,
        header: reading.header?.digest,
        block: reading.block,
    };
    Some(sign_text(&pages.keypair, &note))
}

/// Takes a header that speaks against its author: another one than the header that was read of the same bucket.
/// Anybody may show it, since its author signed it.
async fn object(State(pages): State<ExchangePages>, text: String) -> Response {
    let text = text.trim();
    let author = Envelope::<BucketHeader>::from_text(text)
        .and_then(|envelope| Ok(envelope.statement()?.validator))
        .ok();
    let opened = author.zip(pages.subnet()).and_then(|(author, subnet)| {
        let header = open_header(text, author, subnet)?;
        Some((author, header))
    });
    let Some((author, header)) = opened else {
        let why = "the text is no header of this subnet that its validator signed";
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    match compare_headers(&pages, author, header).await {
        Ok(true) => StatusCode::NO_CONTENT.into_response(),
        Ok(false) => {
            let why = "this validator has read no other header of that bucket";
            (StatusCode::NOT_FOUND, why).into_response()
        }
        Err(error) => unreadable(&error),
    }
}

/// Stores a header if another one was read of its bucket, and returns whether that is so.
async fn compare_headers(
    pages: &ExchangePages,
    author: ValidatorKey,
    header: ShownHeader,
) -> Result<bool, StoreError> {
    let bucket = header.bucket.0;
    let reading = pages.store.header_reading(author, bucket).await?;
    let read = reading.map(|reading| (bucket, reading)).into_iter().collect();
    let Some(found) = find_second(&[header], &read, author, pages.clock.now()) else {
        return Ok(false);
    };
    tracing::error!(%author, bucket, "a validator has signed two headers of one bucket");
    pages.store.put_second_header(&found).await?;
    Ok(true)
}

/// The text of a bundle whose verdict counts here: the digest is that of the answer's bytes.
async fn bundle(State(pages): State<ExchangePages>, Path(digest): Path<Digest>) -> Response {
    match pages.store.audit_bundle(digest).await {
        Ok(Some(text)) => json(text),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => unreadable(&error),
    }
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn unreadable(error: &StoreError) -> Response {
    tracing::error!(error = %Causes(error), "a page about audits could not be read from the store");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

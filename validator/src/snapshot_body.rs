//! The text of a scoring snapshot as the body of an answer, read from the store a piece at a time.

use std::sync::Arc;

use axum::body::Body;
use futures_util::stream;
use muster_protocol::Digest;
use muster_store::StoreError;

use crate::store::Store;

/// The canonical text of a snapshot; `None` if there is none with this digest, or no more. An answer whose snapshot is
/// deleted meanwhile ends early; its digest shows that.
///
/// # Errors
/// The store fails at the first piece.
pub(crate) async fn snapshot_body(store: &Arc<Store>, digest: Digest) -> Result<Option<Body>, StoreError> {
    let Some(first) = store.snapshot_piece(digest, 0).await? else {
        return Ok(None);
    };
    let store = Arc::clone(store);
    let rest = stream::try_unfold((store, 1_u32), move |(store, number)| async move {
        let piece = store.snapshot_piece(digest, number).await?;
        Ok::<_, StoreError>(piece.map(|piece| (piece, (store, number.saturating_add(1)))))
    });
    let first = stream::iter([Ok(first)]);
    Ok(Some(Body::from_stream(futures_util::StreamExt::chain(
        first, rest,
    ))))
}

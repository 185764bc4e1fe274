//! The documents of a session under `/.well-known/muster/`. They are neither signed nor counted as responses.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, Uri};
use http_body_util::Full;
use muster_response_proof::well_known::{MAX_PROOFS, NumberedProof, PREFIX, ProofListing};

use crate::proof_signer::ProofSigner;
use crate::rejection::RequestRejection;

/// Answers a request for a path below [`PREFIX`].
pub(crate) async fn answer(
    signer: &Arc<ProofSigner>,
    method: &Method,
    uri: &Uri,
) -> Result<Response<Full<Bytes>>, RequestRejection> {
    let name = uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let reads = method == Method::GET;
    match name {
        "attestation" if reads => Ok(plain_text(signer.attestation().to_text())),
        "proofs" if reads => Ok(list_proofs(signer, uri.query())),
        "close" if reads => signer
            .closed()
            .map(|close| plain_text(close.to_text()))
            .ok_or(RequestRejection::NotFound),
        "close" if method == Method::POST => {
            signer.begin_close();
            signer.wait_drained().await;
            Ok(plain_text(close_document(signer, uri.query())))
        }
        "attestation" | "proofs" | "close" => Err(RequestRejection::Method),
        _ => Err(RequestRejection::NotFound),
    }
}

/// The closing statement, then one line for each proof from the requested number on, as nothing can be fetched
/// afterwards.
fn close_document(signer: &ProofSigner, query: Option<&str>) -> String {
    let mut text = signer.close().to_text();
    let kept = read_from(query).map(|from| signer.proofs(from, MAX_PROOFS).proofs);
    for (_, proof) in kept.unwrap_or_default() {
        text.push('\n');
        text.push_str(&proof);
    }
    text
}

/// The number of a query `from=N`.
fn read_from(query: Option<&str>) -> Option<u64> {
    let mut parameters = query.unwrap_or_default().split('&');
    let number = parameters.find_map(|parameter| parameter.strip_prefix("from="))?;
    number.parse().ok()
}

fn list_proofs(signer: &ProofSigner, query: Option<&str>) -> Response<Full<Bytes>> {
    let kept = signer.proofs(read_from(query).unwrap_or(0), MAX_PROOFS);
    let proofs = kept.proofs.iter().map(|(sequence, proof)| NumberedProof {
        sequence: *sequence,
        proof: proof.to_string(),
    });
    let answer = ProofListing {
        next: kept.next,
        proofs: proofs.collect(),
    };
    // Numbers and texts always have a JSON form.
    let body = serde_json::to_string(&answer).unwrap_or_default();
    document(body, "application/json")
}

fn plain_text(body: String) -> Response<Full<Bytes>> {
    document(body, "text/plain")
}

fn document(body: String, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

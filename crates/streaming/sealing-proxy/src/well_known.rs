//! What a session says about itself, under `/.well-known/muster/`. None of it is signed as a response, nor counted as one, but what
//! [`BESIDE`] answers.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, Uri};
use http_body_util::Full;
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;
use crate::sealer::Sealer;

/// Where all of it is.
pub(crate) const PREFIX: &str = "/.well-known/muster/";
/// Where whoever stands beside the engine is asked: a GET brings it up, a POST is passed to it. Its answers are signed as the engine's
/// are.
pub const BESIDE: &str = "/.well-known/muster/grade";
/// The most proofs in one answer.
pub(crate) const MOST_PROOFS: usize = 256;

/// The answer to `proofs?from=N`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proofs {
    /// The number that the next response will have.
    pub(crate) next: u64,
    /// In order; fewer than asked for where there are no more, or older ones have been let go.
    pub(crate) proofs: Vec<Numbered>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbered {
    /// Its number.
    pub(crate) sequence: u64,
    /// Its text form.
    pub(crate) proof: String,
}

/// Answers what is asked below [`PREFIX`].
pub(crate) async fn answer(
    sealer: &Arc<Sealer>,
    method: &Method,
    uri: &Uri,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let name = uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let reads = method == Method::GET;
    match name {
        "attestation" if reads => Ok(text(sealer.attestation().to_text())),
        "proofs" if reads => Ok(proofs(sealer, uri.query())),
        "close" if reads => sealer
            .closed()
            .map(|close| text(close.to_text()))
            .ok_or(Refusal::NotFound),
        "close" if method == Method::POST => {
            sealer.begin_close();
            sealer.drained().await;
            Ok(text(last_words(sealer, uri.query())))
        }
        "attestation" | "proofs" | "close" => Err(Refusal::Method),
        _ => Err(Refusal::NotFound),
    }
}

/// The close, and on a line each the proofs from the number on that was asked for: nothing can be asked after it.
fn last_words(sealer: &Sealer, query: Option<&str>) -> String {
    let mut said = sealer.close().to_text();
    let kept = from(query).map(|from| sealer.proofs(from, MOST_PROOFS).proofs);
    for (_, proof) in kept.unwrap_or_default() {
        said.push('\n');
        said.push_str(&proof);
    }
    said
}

fn from(query: Option<&str>) -> Option<u64> {
    let mut parameters = query.unwrap_or_default().split('&');
    let number = parameters.find_map(|parameter| parameter.strip_prefix("from="))?;
    number.parse().ok()
}

fn proofs(sealer: &Sealer, query: Option<&str>) -> Response<Full<Bytes>> {
    let kept = sealer.proofs(from(query).unwrap_or(0), MOST_PROOFS);
    let proofs = kept.proofs.iter().map(|(sequence, proof)| Numbered {
        sequence: *sequence,
        proof: proof.to_string(),
    });
    let answer = Proofs {
        next: kept.next,
        proofs: proofs.collect(),
    };
    // A struct of numbers and texts always has a JSON form.
    let body = serde_json::to_string(&answer).unwrap_or_default();
    typed(body, "application/json")
}

fn text(body: String) -> Response<Full<Bytes>> {
    typed(body, "text/plain")
}

fn typed(body: String, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

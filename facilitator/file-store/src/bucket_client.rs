//! Connects `object_store` to the program's own HTTP client and hash functions. The library's own would bring a
//! second TLS configuration.

use std::pin::Pin;
use std::time::Duration;

use axum::http::Response;
use hmac::{Hmac, Mac as _};
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, HttpClient, HttpConnector, HttpError,
    HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService, Signer, SigningAlgorithm,
};
use reqwest::redirect::Policy;
use sha2::{Digest as _, Sha256};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause between two pieces of a bucket's response.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// Builds the HTTP clients that reach buckets.
#[derive(Debug)]
pub(crate) struct ReqwestConnector;

#[derive(Debug)]
struct ReqwestService(reqwest::Client);

/// SHA-256 and HMAC-SHA-256, which are all that buckets need.
#[derive(Debug)]
pub(crate) struct Sha2Provider;

struct Sha256Context(Sha256, Vec<u8>);

struct HmacSha256Context(Hmac<Sha256>, Vec<u8>);

impl HttpConnector for ReqwestConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(READ_LIMIT)
            .redirect(Policy::none())
            .build()
            .map_err(|source| object_store::Error::Generic {
                store: "S3",
                source: Box::new(source),
            })?;
        Ok(HttpClient::new(ReqwestService(client)))
    }
}

impl HttpService for ReqwestService {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let sent = self
                .0
                .request(parts.method, parts.uri.to_string())
                .headers(parts.headers)
                .body(reqwest::Body::wrap(body))
                .send();
            let response: Response<reqwest::Body> = sent.await.map_err(failed)?.into();
            let (parts, body) = response.into_parts();
            Ok(HttpResponse::from_parts(
                parts,
                HttpResponseBody::new(body.map_err(failed)),
            ))
        })
    }
}

/// Converts an error, without the URL, which the caller adds.
fn failed(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else {
        // Each object has a unique name, so every request may be repeated.
        HttpErrorKind::Request
    };
    HttpError::new(kind, error.without_url())
}

fn unsupported(what: &str) -> object_store::Error {
    object_store::Error::NotSupported {
        source: format!("{what} is not used for buckets").into(),
    }
}

impl CryptoProvider for Sha2Provider {
    fn digest(&self, algorithm: DigestAlgorithm) -> object_store::Result<Box<dyn DigestContext>> {
        if algorithm != DigestAlgorithm::Sha256 {
            return Err(unsupported("that digest"));
        }
        Ok(Box::new(Sha256Context(Sha256::new(), Vec::new())))
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> object_store::Result<Box<dyn HmacContext>> {
        if algorithm != DigestAlgorithm::Sha256 {
            return Err(unsupported("that digest"));
        }
        let mac = Hmac::new_from_slice(secret).map_err(|_| unsupported("a secret of that length"))?;
        Ok(Box::new(HmacSha256Context(mac, Vec::new())))
    }

    fn sign(&self, _: SigningAlgorithm, _: &[u8]) -> object_store::Result<Box<dyn Signer>> {
        Err(unsupported("RSA"))
    }
}

impl DigestContext for Sha256Context {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.1 = self.0.finalize_reset().to_vec();
        Ok(&self.1)
    }
}

impl HmacContext for HmacSha256Context {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.1 = self.0.clone().finalize().into_bytes().to_vec();
        Ok(&self.1)
    }
}

//! Asks a registry for an image's manifest under the address rules of a job's data, before an engine pulls the image:
//! its content, its size, and the places to which the registry sends those who ask.
//!
//! The engine follows the realm and the redirects of a registry by itself. A registry that shows us other places than
//! the engine leads it there unseen; only a firewall around the engine prevents that.

use std::sync::Arc;

use muster_protocol::{Digest, ImageId};
use reqwest::header::{self, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode};

use crate::download::describe_failure;
use crate::error::HttpError;
use crate::job_url::Target;
use crate::pinned_request::PinnedClient;
use crate::registry_json::{ACCEPTED, Challenge, ImageManifest, RegistryManifest, token};
use crate::retry::is_retryable;
use muster_http::addresses::{AddressRules, is_public};

/// Upper bound on one answer, in bytes: the distribution protocol bounds manifests by as much.
const MAX_ANSWER: usize = 4 << 20;
const MAX_REDIRECTS: usize = 5;

/// The login at a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum RegistryAuth {
    /// Nothing is shown.
    #[default]
    Anonymous,
    /// A name and a password.
    Password {
        /// The name of the account.
        username: String,
        /// Its password, or a token in its place.
        password: String,
    },
    /// A token for the realm, as `docker login` keeps it for some registries.
    Identity(String),
}

/// An image as its registry lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryImage {
    /// The digest of the manifest that the name leads to.
    pub digest: Digest,
    /// The images for this machine's platform that the name may mean.
    pub images: Vec<ImageId>,
    /// The bytes that the largest of these images takes to transfer.
    pub bytes: u64,
    /// Whether a layer of one of these images is compressed by zstd, which not every engine reads.
    pub zstd: bool,
}

/// A registry did not give a usable manifest.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry cannot be reached, or it or a place that it leads to may not be reached.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The registry wants another login.
    #[error("the registry answers {0}")]
    Unauthorised(StatusCode),
    /// The registry has no such image.
    #[error("the registry answers {0}")]
    NotFound(StatusCode),
    /// The image is there, but not for this machine.
    #[error("the registry lists no image for linux on this machine's processor")]
    WrongPlatform,
    /// The name leads to something else that a registry keeps, for example a chart.
    #[error("the registry has no image there, but something of another kind, for example a chart")]
    NoImage,
    /// The content differs from the digest that was asked for.
    #[error("the manifest does not match its digest")]
    BadDigest,
    /// The answer is no manifest of schema 2 or OCI.
    #[error("the registry's answer {0}")]
    Malformed(&'static str),
}

/// The client of one registry.
#[derive(Debug)]
pub struct RegistryClient {
    http: PinnedClient,
    rules: Arc<AddressRules>,
    host: String,
}

/// One repository that is asked, and the authorization that has been found to suffice.
struct Conversation<'a> {
    http: &'a PinnedClient,
    base: Target,
    repository: &'a str,
    auth: &'a RegistryAuth,
    authorization: Option<HeaderValue>,
}

impl RegistryClient {
    /// The client of the registry at `host`, as an image's name writes it.
    pub fn new(host: &str, rules: Arc<AddressRules>) -> Self {
        let host = match host {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        Self {
            http: PinnedClient::new(Arc::clone(&rules)),
            rules,
            host: host.to_owned(),
        }
    }

    /// Uses another client for requests, for example one with another resolver.
    #[must_use]
    pub fn with_http(self, http: PinnedClient) -> Self {
        Self { http, ..self }
    }

    /// Whether the operator's list permits this registry beyond the public Internet: it may speak plain HTTP, or have
    /// a certificate that only the engine knows.
    pub fn is_exception(&self) -> bool {
        let Ok(target) = self.target("https") else {
            return false;
        };
        self.rules.names(target.host()) || target.address().is_some_and(|address| !is_public(address))
    }

    /// Checks the registry's own address: resolves its name and looks at all addresses.
    ///
    /// # Errors
    /// The name does not resolve, or leads to no address that jobs may reach.
    pub async fn check_address(&self) -> Result<(), HttpError> {
        let target = self.target("https")?;
        if self.rules.names(target.host()) {
            return Ok(());
        }
        // The engine chooses among the addresses by itself, so each of them must be permitted.
        self.http.check_all(&target).await
    }

    /// Asks for the manifest of `repository` at `pin`, a tag or a digest, and for the places of its content.
    ///
    /// # Errors
    /// The registry cannot be reached, refuses, or leads to an address that jobs may not reach.
    pub async fn resolve(
        &self,
        repository: &str,
        pin: &str,
        auth: &RegistryAuth,
    ) -> Result<RegistryImage, RegistryError> {
        self.check_address().await?;
        match self.resolve_by("https", repository, pin, auth).await {
            Err(RegistryError::Http(HttpError::Unreachable { .. })) if self.is_exception() => {
                self.resolve_by("http", repository, pin, auth).await
            }
            outcome => outcome,
        }
    }

    fn target(&self, scheme: &str) -> Result<Target, HttpError> {
        Ok(self.http.target(&format!("{scheme}://{}/v2/", self.host))?)
    }

    async fn resolve_by(
        &self,
        scheme: &str,
        repository: &str,
        pin: &str,
        auth: &RegistryAuth,
    ) -> Result<RegistryImage, RegistryError> {
        let mut asked = Conversation {
            http: &self.http,
            base: self.target(scheme)?,
            repository,
            auth,
            authorization: None,
        };
        let (digest, manifest) = asked.manifest(pin).await?;
        let images = match manifest {
            RegistryManifest::Image(image) => vec![image],
            RegistryManifest::NoImage => return Err(RegistryError::NoImage),
            RegistryManifest::Index(digests) => {
                let mut images = Vec::new();
                // Several variants of one architecture are few; a registry does not make us ask for more.
                for digest in digests.into_iter().take(4) {
                    if let (_, RegistryManifest::Image(image)) = asked.manifest(&digest.to_string()).await? {
                        images.push(image);
                    }
                }
                images
            }
        };
        if images.is_empty() {
            return Err(RegistryError::WrongPlatform);
        }
        for ImageManifest { config, largest, .. } in &images {
            for blob in [Some(config), largest.as_ref()].into_iter().flatten() {
                asked.check_place(blob).await?;
            }
        }
        Ok(RegistryImage {
            digest,
            zstd: images.iter().any(|image| image.zstd),
            bytes: images.iter().map(|image| image.bytes).max().unwrap_or_default(),
            images: images.iter().map(|image| ImageId(image.config)).collect(),
        })
    }
}

impl Conversation<'_> {
    /// The manifest at a tag or digest, and its digest.
    async fn manifest(&mut self, pin: &str) -> Result<(Digest, RegistryManifest), RegistryError> {
        let target = self.at(&format!("manifests/{pin}"))?;
        let mut answer = self.ask(&target, Method::GET).await?;
        if answer.status() == StatusCode::UNAUTHORIZED && self.authorization.is_none() {
            self.authorization = self.log_in(&answer).await?;
            answer = self.ask(&target, Method::GET).await?;
        }
        let status = answer.status();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(RegistryError::Unauthorised(status));
            }
            StatusCode::NOT_FOUND => return Err(RegistryError::NotFound(status)),
            other if other.is_success() => {}
            other if is_retryable(other) => {
                return Err(unreachable(&target, format!("it answered {other}")).into());
            }
            other => {
                return Err(RegistryError::Http(HttpError::Status {
                    shown: target.shown(),
                    status: other,
                    detail: String::new(),
                }));
            }
        }
        let bytes = read(answer, &target).await?;
        let digest = Digest::of(&bytes);
        if pin.parse::<Digest>().is_ok_and(|wanted| wanted != digest) {
            return Err(RegistryError::BadDigest);
        }
        let manifest =
            RegistryManifest::parse(&bytes).ok_or(RegistryError::Malformed("is no manifest of an image"))?;
        Ok((digest, manifest))
    }

    /// Checks where the registry sends those who ask for a blob. Its answer does not matter otherwise.
    async fn check_place(&self, blob: &Digest) -> Result<(), RegistryError> {
        let target = self.at(&format!("blobs/{blob}"))?;
        match self.ask(&target, Method::HEAD).await {
            Err(error @ (HttpError::Refused(_) | HttpError::NotPublic { .. })) => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn at(&self, path: &str) -> Result<Target, HttpError> {
        Ok(self
            .http
            .follow(&self.base, &format!("/v2/{}/{path}", self.repository))?)
    }

    /// One request. Redirects are followed; each place is checked, and only the first gets the authorization.
    async fn ask(&self, target: &Target, method: Method) -> Result<Response, HttpError> {
        let mut at = target.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self
                .http
                .client(&at)
                .await?
                .request(method.clone(), at.url().clone())
                .header(header::ACCEPT, ACCEPTED)
                .header(header::ACCEPT_ENCODING, "identity");
            if let Some(authorization) = self.authorization.as_ref().filter(|_| at.same_origin(target)) {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let sent = request.send().await;
            let answer = sent.map_err(|error| unreachable(&at, describe_failure(&error)))?;
            match self.http.redirect(&at, &answer)? {
                Some(next) => at = next,
                None => return Ok(answer),
            }
        }
        Err(HttpError::Redirects {
            shown: target.shown(),
            limit: MAX_REDIRECTS,
        })
    }

    /// The authorization that a refusal asks for; `None` if it asks for one that we do not have.
    async fn log_in(&self, refusal: &Response) -> Result<Option<HeaderValue>, RegistryError> {
        let values = refusal.headers().get_all(header::WWW_AUTHENTICATE);
        let challenge = values
            .iter()
            .find_map(|value| value.to_str().ok().and_then(Challenge::parse));
        let value = match challenge {
            None => return Ok(None),
            Some(Challenge::Basic) => match self.auth {
                RegistryAuth::Password { username, password } => basic(username, password),
                RegistryAuth::Anonymous | RegistryAuth::Identity(_) => return Ok(None),
            },
            Some(Challenge::Bearer { realm, service }) => {
                format!("Bearer {}", self.token(&realm, &service).await?)
            }
        };
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| RegistryError::Malformed("has a token that is no text"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    async fn token(&self, realm: &str, service: &str) -> Result<String, RegistryError> {
        // The realm is checked like a redirect: never from https down to http, and never inside.
        let target = self.http.follow(&self.base, realm).map_err(HttpError::from)?;
        let client: Client = self.http.client(&target).await?;
        let scope = format!("repository:{}:pull", self.repository);
        let request = match self.auth {
            RegistryAuth::Identity(identity) => {
                let form = [
                    ("grant_type", "refresh_token"),
                    ("client_id", "muster"),
                    ("service", service),
                    ("scope", &scope),
                    ("refresh_token", identity),
                ];
                let body = url::form_urlencoded::Serializer::new(String::new())
                    .extend_pairs(form)
                    .finish();
                client
                    .post(target.url().clone())
                    .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body(body)
            }
            RegistryAuth::Password { .. } | RegistryAuth::Anonymous => client
                .get(target.url().clone())
                .query(&[("service", service), ("scope", &scope)]),
        };
        let request = match self.auth {
            RegistryAuth::Password { username, password } => request.basic_auth(username, Some(password)),
            RegistryAuth::Identity(_) | RegistryAuth::Anonymous => request,
        };
        let sent = request.send().await;
        let answer = sent.map_err(|error| unreachable(&target, describe_failure(&error)))?;
        // A realm that redirects elsewhere is checked too; the answer there is the engine's to read.
        self.http.redirect(&target, &answer)?;
        match answer.status() {
            status if status.is_success() => {
                let bytes = read(answer, &target).await?;
                token(&bytes).ok_or(RegistryError::Malformed("to our login holds no token"))
            }
            status if is_retryable(status) => {
                Err(unreachable(&target, format!("it answered {status}")).into())
            }
            status => Err(RegistryError::Unauthorised(status)),
        }
    }
}

fn basic(username: &str, password: &str) -> String {
    use base64::Engine as _;
    let pair = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
    format!("Basic {pair}")
}

fn unreachable(target: &Target, what: String) -> HttpError {
    HttpError::Unreachable {
        shown: target.shown(),
        what,
        tries: 1,
    }
}

/// The body of an answer, up to [`MAX_ANSWER`].
async fn read(mut answer: Response, target: &Target) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(None) => return Ok(bytes),
            Ok(Some(piece)) if bytes.len() + piece.len() > MAX_ANSWER => {
                return Err(HttpError::TooLarge {
                    shown: target.shown(),
                    limit: MAX_ANSWER as u64,
                });
            }
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Err(error) => return Err(unreachable(target, describe_failure(&error))),
        }
    }
}

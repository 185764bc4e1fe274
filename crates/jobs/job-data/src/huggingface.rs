//! Lists the snapshots of the Hugging Face hub: the files of a revision and their URLs, which `fetch` downloads.

use std::collections::HashSet;

use muster_protocol::volume::HuggingfaceVolume;
use reqwest::header::{self, HeaderValue};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::download::{describe_failure, detail, header_text};
use crate::error::{HttpError, VolumeError};
use crate::huggingface_json::{HubFile, commit, files, is_repo, is_revision, patterns, wanted};
use crate::job_url::Target;
use crate::pinned_request::PinnedClient;
use crate::response_headers::{next_link, retry_after};
use crate::retry::{Retries, TryFailure, is_retryable, retryable};

/// Upper bound on the size of one answer, in bytes. A page of a listing holds a thousand entries.
const MAX_ANSWER: usize = 8 << 20;
const MAX_PAGES: usize = 1_000;
const MAX_REDIRECTS: usize = 5;
/// Characters with a meaning in a URL's path, beside those that the parser escapes itself.
const ESCAPED: &[char] = &['%', '?', '#', '\\'];

/// The wanted files of a snapshot and their URLs.
#[derive(Debug)]
pub(crate) struct HubSnapshot {
    pub(crate) files: Vec<(Target, HubFile)>,
    pub(crate) authorization: Option<HeaderValue>,
}

/// The client of the hub for one volume.
pub(crate) struct HubClient<'a> {
    pub(crate) http: &'a PinnedClient,
    /// The hub's base URL, for example `https://huggingface.co`.
    pub(crate) endpoint: &'a str,
    /// The operator's token, for volumes without a token of their own.
    pub(crate) token: &'a str,
    /// Position of the volume among the job's volumes, from 0.
    pub(crate) index: usize,
    /// Upper bound on the number of files.
    pub(crate) max_files: usize,
    pub(crate) called_off: &'a CancellationToken,
}

impl HubClient<'_> {
    /// Lists the files of a volume.
    ///
    /// # Errors
    /// The volume is malformed, or the hub refuses the request or gives a malformed answer.
    pub(crate) async fn list_snapshot(&self, volume: &HuggingfaceVolume) -> Result<HubSnapshot, VolumeError> {
        let index = self.index;
        let unwritten = |what| VolumeError::Repository { index, what };
        // The prefix of a repository in the hub's API and in the URLs of its files.
        let (kind, prefix) = match volume.repo_type.as_deref() {
            None | Some("model") => ("models", ""),
            Some("dataset") => ("datasets", "datasets/"),
            Some("space") => ("spaces", "spaces/"),
            Some(_) => return Err(unwritten("repo_type")),
        };
        let repo = Some(volume.repo_id.as_str()).filter(|repo| is_repo(repo));
        let repo = repo.ok_or(unwritten("repo_id"))?;
        let revision = Some(volume.revision.as_deref().unwrap_or("main")).filter(|name| is_revision(name));
        let revision = escape(revision.ok_or(unwritten("revision"))?, true);
        let patterns = patterns(volume.allow_patterns.as_ref()).map_err(unwritten)?;
        let authorization = self.authorization(volume.token.as_deref())?;
        let authorization = authorization.as_ref();

        let answer = self
            .request(&format!("/api/{kind}/{repo}/revision/{revision}"), authorization)
            .await?;
        let commit = commit(&answer.0).map_err(|reason| self.malformed_answer(reason))?;
        let mut wants = Vec::new();
        let mut seen = HashSet::new();
        let mut page = Some(format!(
            "/api/{kind}/{repo}/tree/{commit}?recursive=true&expand=false"
        ));
        for _ in 0..MAX_PAGES {
            let Some(path) = page.take() else { break };
            let (text, next) = self.request(&path, authorization).await?;
            let listed = files(&text).map_err(|reason| self.malformed_answer(reason))?;
            for file in listed
                .into_iter()
                .filter(|file| wanted(patterns.as_deref(), &file.path))
            {
                if !seen.insert(file.path.clone()) {
                    return Err(self.malformed_answer("it lists a file twice".to_owned()));
                }
                let path = escape(&file.path, false);
                let target = self.target(&format!("/{prefix}{repo}/resolve/{commit}/{path}"))?;
                wants.push((target, file));
            }
            if wants.len() > self.max_files {
                let limit = self.max_files;
                return Err(VolumeError::TooMany { index, limit });
            }
            page = next;
        }
        if page.is_some() {
            return Err(self.malformed_answer(format!("its listing has more than {MAX_PAGES} pages")));
        }
        if wants.is_empty() && patterns.is_some() {
            return Err(VolumeError::NothingMatches { index });
        }
        Ok(HubSnapshot {
            files: wants,
            authorization: authorization.cloned(),
        })
    }

    fn authorization(&self, own: Option<&str>) -> Result<Option<HeaderValue>, VolumeError> {
        let token = own.filter(|token| !token.is_empty()).unwrap_or(self.token);
        if token.is_empty() {
            return Ok(None);
        }
        let unwritten = |_| VolumeError::Repository {
            index: self.index,
            what: "token",
        };
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(unwritten)?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn target(&self, path: &str) -> Result<Target, VolumeError> {
        let url = format!("{}{path}", self.endpoint.trim_end_matches('/'));
        let refused = |error| VolumeError::fetch(self.index)(HttpError::Refused(error));
        self.http.target(&url).map_err(refused)
    }

    fn malformed_answer(&self, reason: String) -> VolumeError {
        VolumeError::HubClient {
            index: self.index,
            reason,
        }
    }

    /// Makes a request; returns the answer and the path of the next page.
    async fn request(
        &self,
        path: &str,
        authorization: Option<&HeaderValue>,
    ) -> Result<(Vec<u8>, Option<String>), VolumeError> {
        let target = self.target(path)?;
        let mut retries = Retries::new(self.http.pace());
        loop {
            let asking = timeout(
                self.http.pace().head.saturating_mul(2),
                self.try_once(&target, authorization),
            );
            let answered = tokio::select! {
                biased;
                () = self.called_off.cancelled() => return Err(VolumeError::CalledOff),
                answered = asking => answered,
            };
            let failure = match answered {
                Ok(Ok(PageAnswer::Whole(text, next))) => return Ok((text, next)),
                Ok(Ok(PageAnswer::Failed(failure))) => failure,
                Ok(Err(error)) => return Err(error),
                Err(_) => retryable("it did not answer in time"),
            };
            tokio::select! {
                biased;
                () = self.called_off.cancelled() => return Err(VolumeError::CalledOff),
                waited = retries.wait(&target, failure) => waited.map_err(VolumeError::fetch(self.index))?,
            }
        }
    }

    async fn try_once(
        &self,
        target: &Target,
        authorization: Option<&HeaderValue>,
    ) -> Result<PageAnswer, VolumeError> {
        let failed = VolumeError::fetch(self.index);
        let mut at = target.clone();
        for _ in 0..=MAX_REDIRECTS {
            let client = self.http.client(&at).await.map_err(&failed)?;
            let mut request = client
                .get(at.url().clone())
                .header(header::ACCEPT_ENCODING, "identity");
            // A renamed repository redirects within the hub. The token is only sent to the hub's own origin.
            if let Some(authorization) = authorization.filter(|_| at.same_origin(target)) {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let mut answer = match request.send().await {
                Ok(answer) => answer,
                Err(error) => return Ok(PageAnswer::Failed(retryable(describe_failure(&error)))),
            };
            if let Some(next) = self.http.redirect(&at, &answer).map_err(&failed)? {
                at = next;
                continue;
            }
            let status = answer.status();
            if is_retryable(status) {
                let asked = header_text(answer.headers(), &header::RETRY_AFTER).and_then(retry_after);
                let what = format!("it answered {status}");
                return Ok(PageAnswer::Failed(TryFailure::Retryable { what, asked }));
            }
            if !status.is_success() {
                let shown = at.shown();
                let detail = detail(answer.headers());
                return Err(failed(HttpError::Status {
                    shown,
                    status,
                    detail,
                }));
            }
            let next = self.next_page(&at, header_text(answer.headers(), &header::LINK))?;
            let mut text = Vec::new();
            loop {
                match answer.chunk().await {
                    Ok(None) => return Ok(PageAnswer::Whole(text, next)),
                    Ok(Some(piece)) if text.len() + piece.len() > MAX_ANSWER => {
                        return Err(self.malformed_answer(format!("it has more than {MAX_ANSWER} bytes")));
                    }
                    Ok(Some(piece)) => text.extend_from_slice(&piece),
                    Err(error) => return Ok(PageAnswer::Failed(retryable(describe_failure(&error)))),
                }
            }
        }
        let shown = target.shown();
        Err(failed(HttpError::Redirects {
            shown,
            limit: MAX_REDIRECTS,
        }))
    }

    /// The path of the next page, which must be on the hub itself because the token is sent with it.
    fn next_page(&self, at: &Target, link: Option<&str>) -> Result<Option<String>, VolumeError> {
        let Some(link) = link.and_then(next_link) else {
            return Ok(None);
        };
        let joined = at
            .url()
            .join(link)
            .map_err(|_| self.malformed_answer("its next page is not a URL".to_owned()))?;
        let endpoint = Url::parse(self.endpoint).map_err(|error| self.malformed_answer(error.to_string()))?;
        if joined.origin() != endpoint.origin() {
            return Err(self.malformed_answer("its next page is on another server".to_owned()));
        }
        let query = joined
            .query()
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        Ok(Some(format!("{}{query}", joined.path())))
    }
}

enum PageAnswer {
    Whole(Vec<u8>, Option<String>),
    Failed(TryFailure),
}

/// Escapes a name inside a URL's path: all characters that end the path or begin an escape, and `/` if the name is one
/// part.
fn escape(name: &str, one_part: bool) -> String {
    let mut out = String::with_capacity(name.len());
    for letter in name.chars() {
        if ESCAPED.contains(&letter) || (one_part && letter == '/') {
            out.push_str(&format!("%{:02X}", u32::from(letter)));
        } else {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_letters_in_a_url() {
        assert_eq!(escape("a b/c#d?e%2f", false), "a b/c%23d%3Fe%252f");
        assert_eq!(escape("refs/pr/1", true), "refs%2Fpr%2F1");
        let url = Url::parse(&format!("http://x/{}", escape("ä b?.txt", false))).unwrap();
        assert_eq!(url.path(), "/%C3%A4%20b%3F.txt");
    }
}

//! The identity of a browser, as an extractor: a handler that takes a [`SignedIn`] runs for signed-in browsers only.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use muster_facilitator_core::web_session::WebSecret;
use muster_facilitator_store::WebSession;
use muster_http::server::ClientAddress;
use muster_process::error::Causes;
use muster_protocol::Timestamp;
use muster_web_pages::PagePart;
use muster_web_pages::frame::Visitor;
use muster_web_pages::{notice, sign_in_page};

use super::api::{ApiFailure, SessionApi};
use super::outside::notice_outside;
use super::state::WebState;

use muster_facilitator_core::web_cookies::CookieKind;

use crate::rest::page_caller::SessionCaller;

/// A browser that is signed in.
pub(super) struct SignedIn {
    /// The API in the session's name.
    pub(super) api: SessionApi,
    pub(super) secret: WebSecret,
    account: String,
    form_token: String,
    now: Timestamp,
}

impl FromRequestParts<WebState> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &WebState) -> Result<Self, Response> {
        let Some(secret) = state.cookies().read(CookieKind::Session, &parts.headers) else {
            return Err(ask_to_sign_in(parts, false));
        };
        let (service, now) = (&state.service, state.service.clock.now());
        let found = service.store.find_web_session(&secret, now).await;
        let WebSession {
            actor,
            authority,
            signed_at,
            ..
        } = match found {
            Ok(Some(session)) => session,
            Ok(None) => return Err(ask_to_sign_in(parts, true)),
            Err(error) => {
                tracing::error!(error = %Causes(&error), "a page failed in the store");
                let words = "The facilitator's store does not answer; try again.";
                return Err(notice_outside(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "No answer",
                    words,
                ));
            }
        };
        Ok(Self {
            account: actor.account.to_string(),
            form_token: service.form_key.token(&secret),
            api: SessionApi {
                router: state.api.clone(),
                caller: SessionCaller {
                    actor,
                    authority,
                    signed_at,
                },
                client: parts.extensions.get::<ClientAddress>().copied(),
                host: parts.headers.get(header::HOST).cloned(),
            },
            secret,
            now,
        })
    }
}

/// The answer to a browser that is not signed in: a page leads to the form, anything else is refused.
fn ask_to_sign_in(parts: &Parts, had_session: bool) -> Response {
    let sent = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let is_page = sent("sec-fetch-dest").is_none_or(|dest| dest == "document");
    if !is_page {
        return (StatusCode::UNAUTHORIZED, "Sign in first.").into_response();
    }
    if parts.method != Method::GET {
        return Redirect::to("/sign-in").into_response();
    }
    // A link on another site brings no cookie. The page loads itself again from here, and the cookie comes with that.
    if !had_session && sent("sec-fetch-site") == Some("cross-site") {
        return Html(sign_in_page::render_again()).into_response();
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if path == "/" {
        return Redirect::to("/sign-in").into_response();
    }
    let next: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
    Redirect::to(&format!("/sign-in?next={next}")).into_response()
}

/// A path of this server that a sign-in may lead to: it begins with one slash and has no characters that lead
/// elsewhere.
pub(super) fn safe_path(wanted: &str) -> &str {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.?=&%".contains(&byte);
    let is_ours = wanted.starts_with('/') && !wanted.starts_with("//") && wanted.bytes().all(plain);
    if is_ours { wanted } else { "/" }
}

/// Whether another site has caused the request. Browsers state it in a header that scripts cannot change.
pub(super) fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let site = headers
        .get("sec-fetch-site")
        .and_then(|value| value.to_str().ok());
    matches!(site, Some("cross-site" | "same-site"))
}

// === impl SignedIn ===

impl SignedIn {
    /// The visitor that pages are made for.
    pub(super) fn visitor(&self) -> Visitor<'_> {
        Visitor {
            account: &self.account,
            form_token: &self.form_token,
            now: self.now,
        }
    }

    /// A page that states what failed, with the status of the API.
    pub(super) fn failure(&self, failure: &ApiFailure) -> Response {
        let title = match failure.status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            _ => "That did not work",
        };
        let words = match failure.status {
            StatusCode::NOT_FOUND => "There is nothing at this address, or it is another account's.",
            _ => &failure.words,
        };
        let page = notice::render(&self.visitor(), title, words);
        (failure.status, Html(page)).into_response()
    }

    /// The page for an address at which there is nothing.
    pub(super) fn not_found(&self) -> Response {
        self.failure(&ApiFailure {
            status: StatusCode::NOT_FOUND,
            words: String::new(),
        })
    }
}

/// An answer as a part of a page.
pub(super) fn as_part<T>(answer: Result<T, ApiFailure>) -> PagePart<T> {
    answer.map_err(|failure| failure.words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_this_server_alone() {
        for good in ["/", "/jobs?page=2&status=open", "/jobs/new?from=a-b"] {
            assert_eq!(safe_path(good), good);
        }
        for bad in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil",
            "/a\nb",
            "/a:b@c",
            "javascript:x",
        ] {
            assert_eq!(safe_path(bad), "/", "{bad}");
        }
    }
}

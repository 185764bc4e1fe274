//! Requests that change something, as extractors: they carry the token of the browser's own forms, or they are refused.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, Limited};
use std::time::Duration;

use super::outside::notice_outside;
use super::session::{SignedIn, is_from_elsewhere};
use super::state::WebState;
use axum::extract::FromRequestParts;

/// The largest form, in bytes. A pasted specification is the largest field.
const MAX_FORM: usize = 1024 * 1024;
/// The time in which a form must arrive.
const MAX_TIME: Duration = Duration::from_secs(30);
/// The field and the header with the token of a form.
pub(super) const TOKEN_FIELD: &str = "form_token";
const TOKEN_HEADER: &str = "muster-form-token";

/// The fields of a form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FormFields(Vec<(String, String)>);

/// A form that a signed-in browser sent from a page of this server.
pub(super) struct SignedForm {
    pub(super) signed_in: SignedIn,
    pub(super) fields: FormFields,
}

/// A request of the script of a signed-in browser's page, with its body unread.
pub(super) struct SignedFetch {
    pub(super) signed_in: SignedIn,
    pub(super) body: Body,
}

// === impl FormFields ===

impl FormFields {
    /// Reads a form within bounds of size and time.
    ///
    /// # Errors
    /// The answer to the browser.
    pub(super) async fn read(body: Body) -> Result<Self, Response> {
        let refuse = |words| notice_outside(StatusCode::BAD_REQUEST, "That did not work", words);
        let read = tokio::time::timeout(MAX_TIME, Limited::new(body, MAX_FORM).collect()).await;
        let bytes: Bytes = match read {
            Ok(Ok(whole)) => whole.to_bytes(),
            Ok(Err(_)) => return Err(refuse("The form is too large, or the connection broke.")),
            Err(_) => return Err(refuse("The form did not arrive in time.")),
        };
        let pairs = form_urlencoded::parse(&bytes);
        // Browsers end lines with CR LF in forms.
        let owned = |(name, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
            (name.into_owned(), value.replace("\r\n", "\n"))
        };
        Ok(Self(pairs.map(owned).collect()))
    }

    /// The value of a field; empty if the form has none.
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// Every value of a field.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(field, _)| field == name);
        named.map(|(_, value)| value.as_str())
    }
}

/// The answer to a form that this server did not make for the browser.
pub(super) fn foreign_form() -> Response {
    let words = "The form is not from a page of this server, or the page is older than your sign-in. Load the page again.";
    notice_outside(StatusCode::FORBIDDEN, "Not done", words)
}

async fn identify(parts: &mut Parts, state: &WebState) -> Result<SignedIn, Response> {
    if is_from_elsewhere(&parts.headers) {
        return Err(foreign_form());
    }
    SignedIn::from_request_parts(parts, state).await
}

impl FromRequest<WebState> for SignedForm {
    type Rejection = Response;

    async fn from_request(request: Request, state: &WebState) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let signed_in = identify(&mut parts, state).await?;
        let fields = FormFields::read(body).await?;
        let fits = state
            .service
            .form_key
            .fits(&signed_in.secret, fields.get(TOKEN_FIELD));
        if fits {
            Ok(Self { signed_in, fields })
        } else {
            Err(foreign_form())
        }
    }
}

impl FromRequest<WebState> for SignedFetch {
    type Rejection = Response;

    async fn from_request(request: Request, state: &WebState) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let signed_in = identify(&mut parts, state).await?;
        let token = parts
            .headers
            .get(TOKEN_HEADER)
            .and_then(|value| value.to_str().ok());
        let fits = token.is_some_and(|token| state.service.form_key.fits(&signed_in.secret, token));
        if fits {
            Ok(Self { signed_in, body })
        } else {
            Err((
                StatusCode::FORBIDDEN,
                "The request is not from a page of this server.",
            )
                .into_response())
        }
    }
}

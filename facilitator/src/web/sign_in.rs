//! Signing in with an API key or a one-time link, and signing out.

use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use muster_facilitator_core::credentials::ApiKeySecret;
use muster_facilitator_core::web_session::WebSecret;
use muster_facilitator_store::{Actor, NewWebSession, WebSignIn};
use muster_process::error::Causes;
use muster_protocol::Timestamp;
use muster_store::StoreError;
use muster_web_pages::sign_in_page::{self, SignInForm};
use serde::Deserialize;

use super::api::ApiFailure;
use super::form::{FormFields, SignedForm, TOKEN_FIELD, foreign_form};
use super::outside::notice_outside;
use super::session::{is_from_elsewhere, safe_path};
use super::state::WebState;
use muster_facilitator_core::web_cookies::CookieKind;

use crate::change_notices::Notice;
use crate::rest::authentication::AnonymousCaller;
use crate::rest::rejection::ApiRejection;
use crate::rest::rights::AnyRight;

/// The query of the sign-in's form.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SignInQuery {
    #[serde(default)]
    next: String,
}

/// The query of a one-time link.
#[derive(Debug, Default, Deserialize)]
pub(super) struct LinkQuery {
    #[serde(default)]
    token: String,
}

/// A browser that is not signed in yet, with the cookie that its form is tied to.
struct Visit {
    /// Sets the cookie, if the browser had none.
    cookie: Option<HeaderValue>,
    form_token: String,
}

/// The form for an API key.
pub(super) async fn form(
    _: AnonymousCaller,
    State(state): State<WebState>,
    Query(query): Query<SignInQuery>,
    headers: HeaderMap,
) -> Response {
    ask(&state, &headers, safe_path(&query.next), None)
}

fn ask(state: &WebState, headers: &HeaderMap, next: &str, problem: Option<&str>) -> Response {
    let visit = match Visit::of(state, headers) {
        Ok(visit) => visit,
        Err(error) => return no_randomness(error),
    };
    let page = sign_in_page::render(SignInForm {
        form_token: &visit.form_token,
        next,
        problem,
    });
    let status = if problem.is_some() {
        StatusCode::UNAUTHORIZED
    } else {
        StatusCode::OK
    };
    visit.answer((status, Html(page)).into_response())
}

/// Signs a browser in with an API key, under the same limits on wrong keys as the API.
pub(super) async fn with_key(State(state): State<WebState>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let fields = match check_visit(&state, &mut parts, body).await {
        Ok(fields) => fields,
        Err(response) => return response,
    };
    let next = safe_path(fields.get("next")).to_owned();
    let key = fields.get("key").trim();
    let Some(bearer) = ApiKeySecret::parse(key)
        .is_some()
        .then(|| HeaderValue::try_from(format!("Bearer {key}")).ok())
        .flatten()
    else {
        let reason = "That is no API key: a key begins with msk_ and has 64 hex digits after it.";
        return ask(&state, &parts.headers, &next, Some(reason));
    };
    let shown = parts.headers.clone();
    parts.headers.insert(header::AUTHORIZATION, bearer);
    match state.service.admission.admit::<AnyRight>(&parts).await {
        Ok(caller) => {
            let end = caller.authority.expires_at;
            let sign_in = WebSignIn {
                actor: caller.actor,
                signed_at: None,
            };
            begin_session(&state, &shown, &sign_in, end, &next).await
        }
        Err(rejection) => ask(&state, &shown, &next, Some(&rejection.message())),
    }
}

/// Asks whether a link is to be used.
pub(super) async fn link(
    _: AnonymousCaller,
    State(state): State<WebState>,
    Query(query): Query<LinkQuery>,
    headers: HeaderMap,
) -> Response {
    let now = state.service.clock.now();
    let Some(secret) = WebSecret::parse(&query.token) else {
        return dead_link();
    };
    match state.service.store.find_web_link(&secret, now).await {
        Ok(Some(account)) => match Visit::of(&state, &headers) {
            Ok(visit) => {
                let page =
                    sign_in_page::render_link(&visit.form_token, &account.to_string(), &secret.reveal());
                visit.answer(Html(page).into_response())
            }
            Err(error) => no_randomness(error),
        },
        Ok(None) => dead_link(),
        Err(error) => store_failed(&error),
    }
}

/// Uses a link, once.
pub(super) async fn use_link(State(state): State<WebState>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let fields = match check_visit(&state, &mut parts, body).await {
        Ok(fields) => fields,
        Err(response) => return response,
    };
    let Some(secret) = WebSecret::parse(fields.get("link")) else {
        return dead_link();
    };
    let now = state.service.clock.now();
    match state.service.store.use_web_link(&secret, now).await {
        Ok(Some(sign_in)) => begin_session(&state, &parts.headers, &sign_in, None, "/").await,
        Ok(None) => dead_link(),
        Err(error) => store_failed(&error),
    }
}

/// Checks that a form of the sign-in was made for this browser, and counts the request for its address.
async fn check_visit(
    state: &WebState,
    parts: &mut Parts,
    body: axum::body::Body,
) -> Result<FormFields, Response> {
    AnonymousCaller::from_request_parts(parts, state)
        .await
        .map_err(|rejection: ApiRejection| {
            notice_outside(rejection.status(), "Too many requests", &rejection.message())
        })?;
    if is_from_elsewhere(&parts.headers) {
        return Err(foreign_form());
    }
    let cookie = state.cookies().read(CookieKind::Visit, &parts.headers);
    let cookie = cookie.ok_or_else(foreign_form)?;
    let fields = FormFields::read(body).await?;
    if state.service.form_key.fits(&cookie, fields.get(TOKEN_FIELD)) {
        Ok(fields)
    } else {
        Err(foreign_form())
    }
}

/// Starts a session, and leads the browser to its page. The session ends with its API key at the latest.
async fn begin_session(
    state: &WebState,
    headers: &HeaderMap,
    sign_in: &WebSignIn,
    key_end: Option<Timestamp>,
    next: &str,
) -> Response {
    let (service, now) = (&state.service, state.service.clock.now());
    let secret = match draw() {
        Ok(secret) => secret,
        Err(error) => return no_randomness(error),
    };
    let usual = now.plus(service.session_lifetime);
    let expires_at = key_end.map_or(usual, |end| end.min(usual));
    let browser = headers
        .get(header::USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("unknown");
    let new = NewWebSession {
        secret: &secret,
        browser,
        signed_at: sign_in.signed_at,
        expires_at,
    };
    let actor = &sign_in.actor;
    if let Err(error) = service.store.create_web_session(actor, new, now).await {
        return store_failed(&error);
    }
    // The account's oldest session may have ended for it.
    service.notifier.publish(Notice::Sessions(actor.account.clone()));
    tracing::info!(account = %actor.account, "a browser is signed in");
    let cookies = state.cookies();
    let set = [
        cookies.session(&secret, expires_at.since(now)),
        cookies.remove(CookieKind::Visit),
    ];
    let mut response = Redirect::to(next).into_response();
    for cookie in set.into_iter().flatten() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// Ends the browser's session.
pub(super) async fn sign_out(State(state): State<WebState>, form: SignedForm) -> Response {
    let (service, actor) = (&state.service, &form.signed_in.api.caller.actor);
    let now = service.clock.now();
    let ended = service
        .store
        .end_web_session(actor, &form.signed_in.secret, now)
        .await;
    leave(&state, actor, ended)
}

/// Ends every session of the account, if the browser's own has the right to.
pub(super) async fn sign_out_everywhere(State(state): State<WebState>, form: SignedForm) -> Response {
    let caller = &form.signed_in.api.caller;
    if !caller.authority.may_end_sessions() {
        return form.signed_in.failure(&ApiFailure {
            status: StatusCode::FORBIDDEN,
            words: "The API key that signed this browser in lacks the right `keys`, so it ends no other browser's \
                    session. Sign in with the hotkey or with a key that has it."
                .to_owned(),
        });
    }
    let service = &state.service;
    let now = service.clock.now();
    let ended = service.store.end_all_web_sessions(&caller.actor, now).await;
    leave(&state, &caller.actor, ended.map(|_| ()))
}

fn leave(state: &WebState, actor: &Actor, ended: Result<(), StoreError>) -> Response {
    if let Err(error) = ended {
        return store_failed(&error);
    }
    let notice = Notice::Sessions(actor.account.clone());
    state.service.notifier.publish(notice);
    let mut response = Redirect::to("/sign-in").into_response();
    if let Some(cookie) = state.cookies().remove(CookieKind::Session) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

fn draw() -> Result<WebSecret, getrandom::Error> {
    let mut drawn = [0; 32];
    getrandom::fill(&mut drawn)?;
    Ok(WebSecret::from_bytes(drawn))
}

fn no_randomness(error: getrandom::Error) -> Response {
    tracing::error!(%error, "the operating system gives no randomness");
    let words = "No secret can be drawn now; try again.";
    notice_outside(StatusCode::SERVICE_UNAVAILABLE, "No answer", words)
}

fn dead_link() -> Response {
    let words = "The link has been used, or it is older than a minute. Run `muster login --web` again.";
    notice_outside(StatusCode::GONE, "The link does not work", words)
}

fn store_failed(error: &StoreError) -> Response {
    tracing::error!(error = %Causes(error), "a sign-in failed in the store");
    let words = "The facilitator's store does not answer; try again.";
    notice_outside(StatusCode::SERVICE_UNAVAILABLE, "No answer", words)
}

// === impl Visit ===

impl Visit {
    fn of(state: &WebState, headers: &HeaderMap) -> Result<Self, getrandom::Error> {
        let cookies = state.cookies();
        let known = cookies.read(CookieKind::Visit, headers);
        let secret = match known {
            Some(secret) => secret,
            None => draw()?,
        };
        Ok(Self {
            cookie: cookies.visit(&secret).filter(|_| known.is_none()),
            form_token: state.service.form_key.token(&secret),
        })
    }

    fn answer(self, mut response: Response) -> Response {
        if let Some(cookie) = self.cookie {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        response
    }
}

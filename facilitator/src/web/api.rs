//! Requests to the REST API of this process, in the name of a browser's session.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt as _;
use muster_http::server::ClientAddress;
use muster_protocol::{FeatureSet, MUSTER_FEATURES_HEADER};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::rest::page_caller::SessionCaller;

/// The API for one session.
#[derive(Clone)]
pub(super) struct SessionApi {
    pub(super) router: Router,
    pub(super) caller: SessionCaller,
    /// The browser's address, which requests are counted by.
    pub(super) client: Option<ClientAddress>,
    /// The host that the browser asked, which signed URLs begin with where no public address is configured.
    pub(super) host: Option<HeaderValue>,
}

/// The reason why the API gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiFailure {
    pub(super) status: StatusCode,
    /// The reason in the API's words.
    pub(super) words: String,
}

type ApiResult<T> = Result<T, ApiFailure>;

// === impl SessionApi ===

impl SessionApi {
    /// Sends a request as it is, with further headers, and returns the response as it comes.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        further: &[(HeaderName, HeaderValue)],
        body: Body,
    ) -> Response {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        if let Some(host) = &self.host {
            headers.insert(header::HOST, host.clone());
        }
        if let Ok(features) = HeaderValue::try_from(FeatureSet::ours().to_string()) {
            headers.insert(MUSTER_FEATURES_HEADER, features);
        }
        for (name, value) in further {
            headers.insert(name.clone(), value.clone());
        }
        request.extensions_mut().insert(self.caller.clone());
        if let Some(client) = self.client {
            request.extensions_mut().insert(client);
        }
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> ApiResult<T> {
        decode(self.send(Method::GET, path, &[], Body::empty()).await).await
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> ApiResult<T> {
        let text = serde_json::to_vec(body).unwrap_or_default();
        decode(self.send(Method::POST, path, &[json_body()], text.into()).await).await
    }

    /// Sends a request whose answer does not matter.
    pub(super) async fn act(&self, method: Method, path: &str) -> ApiResult<()> {
        let response = self.send(method, path, &[], Body::empty()).await;
        if response.status().is_success() {
            Ok(())
        } else {
            Err(read_failure(response).await)
        }
    }
}

/// The header of a JSON body.
pub(super) fn json_body() -> (HeaderName, HeaderValue) {
    (header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
}

/// Decodes the answer of a successful request.
pub(super) async fn decode<T: DeserializeOwned>(response: Response) -> ApiResult<T> {
    if !response.status().is_success() {
        return Err(read_failure(response).await);
    }
    let body = response.into_body().collect().await;
    let text = body.map(|body| body.to_bytes()).unwrap_or_default();
    serde_json::from_slice(&text).map_err(|error| {
        tracing::error!(%error, "a page cannot read an answer of its own API");
        ApiFailure {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            words: "The facilitator has a defect; the operator's log describes it.".to_owned(),
        }
    })
}

/// Reads the reason of a request that failed.
pub(super) async fn read_failure(response: Response) -> ApiFailure {
    let status = response.status();
    let body = response.into_body().collect().await;
    let text = body.map(|body| body.to_bytes()).unwrap_or_default();
    let value = serde_json::from_slice(&text).unwrap_or(Value::Null);
    ApiFailure {
        status,
        words: reason_in(&value).unwrap_or_else(|| format!("The API answered {status}.")),
    }
}

/// The reason in a rejection: `{"detail": …}`, `{"error": …}`, OpenAI's `{"error": {"message": …}}`, a list of reasons,
/// or lists of reasons by field.
fn reason_in(value: &Value) -> Option<String> {
    match value {
        Value::String(words) => Some(words.clone()),
        Value::Array(reasons) => {
            let words: Vec<_> = reasons.iter().filter_map(reason_in).collect();
            (!words.is_empty()).then(|| words.join(" "))
        }
        Value::Object(fields) => {
            for name in ["detail", "error", "message"] {
                if let Some(reason) = fields.get(name).and_then(reason_in) {
                    return Some(reason);
                }
            }
            let words: Vec<_> = fields
                .iter()
                .filter_map(|(name, reason)| Some(format!("{name}: {}", reason_in(reason)?)))
                .collect();
            (!words.is_empty()).then(|| words.join(" "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// The headers of the API's response that its browser gets.
pub(super) fn pass_headers(headers: &HeaderMap, names: &[&'static str]) -> HeaderMap {
    names
        .iter()
        .filter_map(|name| Some((HeaderName::from_static(name), headers.get(*name)?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_shape_of_a_rejection_has_words() {
        let words = |value| reason_in(&value);
        assert_eq!(words(json!({"detail": "a"})).as_deref(), Some("a"));
        assert_eq!(
            words(json!({"error": {"message": "b", "code": 1}})).as_deref(),
            Some("b")
        );
        assert_eq!(words(json!(["c", "d"])).as_deref(), Some("c d"));
        let fields = json!({"image": ["e"], "args": ["f"]});
        assert_eq!(words(fields).as_deref(), Some("image: e args: f"));
        assert_eq!(words(json!(7)), None);
    }
}

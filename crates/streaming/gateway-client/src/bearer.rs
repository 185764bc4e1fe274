//! Reads the API key of a request.

use http::{HeaderMap, header};
use muster_openai::OpenAiError;

/// The key or token in `Authorization: Bearer`.
///
/// # Errors
/// [`OpenAiError::MissingKey`] if the header is absent, empty, or of another scheme.
pub fn bearer_token(headers: &HeaderMap) -> Result<&str, OpenAiError> {
    let value = headers
        .get(header::AUTHORIZATION)
        .ok_or(OpenAiError::MissingKey)?;
    value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim())
        .filter(|key| !key.is_empty())
        .ok_or(OpenAiError::MissingKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_what_follows_the_scheme() {
        let token = |value: &'static str| {
            let value = http::HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
            bearer_token(&headers).map(str::to_owned)
        };
        assert_eq!(token("bearer  secret "), Ok("secret".to_owned()));
        for value in ["Basic secret", "Bearer", "Bearer  ", "secret"] {
            assert_eq!(token(value), Err(OpenAiError::MissingKey), "{value}");
        }
        assert_eq!(bearer_token(&HeaderMap::new()), Err(OpenAiError::MissingKey));
    }
}

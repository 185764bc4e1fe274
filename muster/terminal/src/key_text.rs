//! API keys as text for people.

use muster_protocol::account_api::ApiKey;

/// The names of a key's rights with commas.
pub fn rights(key: &ApiKey) -> String {
    let names: Vec<_> = key.rights.iter().map(|right| right.as_str()).collect();
    names.join(",")
}

/// The rights and the end of a key, as text; empty for a key of a facilitator that knows neither.
pub fn bounds(key: &ApiKey) -> String {
    let rights = rights(key);
    match key.expires_at {
        Some(end) if !rights.is_empty() => format!(" for {rights} until {end}"),
        Some(_) | None => String::new(),
    }
}

//! The part of a validator's commitment that states where it serves its pages. Pure.
//!
//! ComputeHorde's validators commit a JSON object with the address of their contract; `muster` is one more key of it.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

/// The address in a commitment; `None` if it names none.
pub(crate) fn pages(commitment: &str) -> Option<SocketAddr> {
    let value: Value = serde_json::from_str(commitment).ok()?;
    value.get("muster")?.get("pages")?.as_str()?.parse().ok()
}

/// The commitment with this address, beside its earlier content. A text that is no JSON object is replaced.
pub(crate) fn with_pages(before: Option<&str>, pages: SocketAddr) -> String {
    let before = before.and_then(|text| serde_json::from_str(text).ok());
    let mut object: Map<String, Value> = before.unwrap_or_default();
    object.insert("muster".to_owned(), json!({ "pages": pages.to_string() }));
    Value::Object(object).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_beside_the_contract() {
        let at: SocketAddr = "203.0.113.5:8093".parse().unwrap();
        let contract = r#"{"contract":{"address":"0x0123456789012345678901234567890123456789"}}"#;
        let both = with_pages(Some(contract), at);
        assert_eq!(
            both,
            r#"{"contract":{"address":"0x0123456789012345678901234567890123456789"},"muster":{"pages":"203.0.113.5:8093"}}"#
        );
        assert!(both.len() <= 128, "it fits into a commitment: {}", both.len());
        assert_eq!(pages(&both), Some(at));
        assert_eq!(with_pages(Some(&both), at), both);
        assert_eq!(pages(&with_pages(Some("<M:C2>"), at)), Some(at));
    }

    #[test]
    fn other_commitments_name_no_address() {
        for text in [
            "",
            "<M:C2>",
            "[1]",
            r#"{"muster":{"pages":7}}"#,
            r#"{"muster":{"pages":"nowhere"}}"#,
        ] {
            assert_eq!(pages(text), None, "{text}");
        }
    }
}

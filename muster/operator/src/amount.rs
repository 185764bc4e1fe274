//! Amounts of TAO as people write them.

use muster_protocol::Rao;

/// Reads an amount of TAO such as `0.005`, exactly.
///
/// # Errors
/// The text is no such amount; the reason as text.
pub fn parse_tao(text: &str) -> Result<Rao, String> {
    let fault = || format!("{text} is not an amount of TAO with at most nine digits after the point");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 9 {
        return Err(fault());
    }
    let rao = format!("{whole}{part:0<9}").parse().map_err(|_| fault())?;
    Ok(Rao(rao))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_exactly_or_not_at_all() {
        for (text, rao) in [
            ("0.005", 5_000_000),
            ("1", 1_000_000_000),
            ("2.000000001", 2_000_000_001),
            ("0", 0),
        ] {
            assert_eq!(parse_tao(text), Ok(Rao(rao)), "{text}");
        }
        for bad in [
            "",
            ".5",
            "5.",
            "-1",
            "1e3",
            "0.0000000001",
            "1,5",
            "99999999999999999999",
        ] {
            assert!(parse_tao(bad).is_err(), "{bad}");
        }
    }
}

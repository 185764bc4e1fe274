//! Quantities of resources as Kubernetes writes them: `500m`, `2`, `1.5Gi`, `1e3`.

/// Billionths in one.
const NANO: u128 = 1_000_000_000;
/// The most digits that are read on either side of the point.
const MAX_DIGITS: usize = 18;

/// A quantity in billionths, rounded up. `None` for a text that is no quantity, or a negative one.
pub(crate) fn parse(text: &str) -> Option<u128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = whole.len().saturating_add(fraction.len());
    if digits == 0 || whole.len() > MAX_DIGITS || fraction.len() > MAX_DIGITS || fraction.contains('.') {
        return None;
    }
    let value: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let (times, by) = factor(suffix)?;
    // `value` has at most 36 digits. The product may not fit, and is then larger than any machine.
    let Some(product) = value.checked_mul(times) else {
        return Some(u128::MAX);
    };
    Some(product.div_ceil(scale.checked_mul(by)?))
}

/// The billionths of a suffix, as a fraction.
fn factor(suffix: &str) -> Option<(u128, u128)> {
    let binary = |power: u32| Some((NANO.checked_mul(1024_u128.checked_pow(power)?)?, 1));
    match suffix {
        "" => Some((NANO, 1)),
        "n" => Some((1, 1)),
        "u" => Some((1_000, 1)),
        "m" => Some((1_000_000, 1)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let signed = exponent.strip_prefix('+').unwrap_or(exponent);
            decimal(signed.parse().ok().filter(|power| (-18..=18).contains(power))?)
        }
    }
}

fn decimal(power: i32) -> Option<(u128, u128)> {
    let size = 10_u128.checked_pow(power.unsigned_abs())?;
    if power < 0 {
        Some((NANO, size))
    } else {
        Some((NANO.checked_mul(size)?, 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_of_every_notation_are_read() {
        let cases = [
            ("1", NANO),
            ("100m", NANO / 10),
            ("0.5", NANO / 2),
            (".5", NANO / 2),
            ("5.", 5 * NANO),
            ("1k", 1_000 * NANO),
            ("1Ki", 1_024 * NANO),
            ("1.5Gi", 3 * 512 * 1024 * 1024 * NANO),
            ("1e3", 1_000 * NANO),
            ("1E3", 1_000 * NANO),
            ("12e-1", 6 * NANO / 5),
            ("1n", 1),
            ("0.1n", 1),
            ("1E", 1_000_000_000_000_000_000 * NANO),
            ("+2", 2 * NANO),
            ("16393244Ki", 16_393_244 * 1_024 * NANO),
        ];
        for (text, value) in cases {
            assert_eq!(parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_quantities() {
        for text in [
            "", ".", "-1", "1 Gi", "Gi", "1.2.3", "1gi", "1e", "1e99", "1m1", "ä", "++1",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn thousandths_are_a_thousandth(value in 0_u64..1_000_000_000) {
            prop_assert_eq!(parse(&format!("{value}")), parse(&format!("{value}000m")));
        }
    }
}

//! Words of the screens: text of strangers, times, sizes, bars.

use std::time::Duration;

use muster_protocol::Timestamp;

/// The most characters of a cell; the rest could not be seen anyway.
const MAX_CELL: usize = 500;

/// A stranger's text as one line that does nothing to a terminal: control characters and those that reverse the
/// direction of text become `·`.
pub fn sanitize(text: &str) -> String {
    let safe = |c: char| match c {
        c if c.is_control() => '·',
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => '·',
        c => c,
    };
    text.chars().take(MAX_CELL).map(safe).collect()
}

/// The beginning and the end of a key.
pub fn short_key(key: &str) -> String {
    let count = key.chars().count();
    if count <= 12 {
        return sanitize(key);
    }
    let head: String = key.chars().take(6).collect();
    let tail: String = key.chars().skip(count.saturating_sub(4)).collect();
    sanitize(&format!("{head}…{tail}"))
}

/// The first part of an id.
pub fn short_id(id: &str) -> String {
    sanitize(&id.chars().take(8).collect::<String>())
}

/// A span in one or two units: `42s`, `3m05s`, `2h14m`, `3d4h`.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// The time since `at`; `-` if it is not known.
pub fn age(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "-".to_owned(), |at| span(now.since(at)))
}

/// The time until `at`; `-` if it is not known.
pub fn until(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "-".to_owned(), |at| span(at.since(now)))
}

/// A share of ten as a bar: `███▌······`.
pub fn bar(permille: u32) -> String {
    let halves = permille.min(1_000).saturating_mul(20) / 1_000;
    let full = usize::try_from(halves / 2).unwrap_or_default();
    let half = if halves % 2 == 1 { "▌" } else { "" };
    let shown = format!("{}{half}", "█".repeat(full));
    let missing = 10_usize.saturating_sub(shown.chars().count());
    format!("{shown}{}", "·".repeat(missing))
}

/// The latest of a row of values as little columns, each of them `0..=100`.
pub fn sparkline(percents: impl DoubleEndedIterator<Item = u32>, width: usize) -> String {
    const COLUMNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let column = |percent: u32| {
        let step = usize::try_from(percent.min(100) * 7 / 100).unwrap_or_default();
        COLUMNS.get(step).copied().unwrap_or('█')
    };
    let mut newest: Vec<char> = percents.rev().take(width).map(column).collect();
    newest.reverse();
    newest.into_iter().collect()
}

/// A share of a whole in thousandths; 0 of nothing.
pub fn permille(part: u64, whole: u64) -> u32 {
    let share = u128::from(part)
        .saturating_mul(1_000)
        .checked_div(u128::from(whole));
    u32::try_from(share.unwrap_or_default()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_spans_and_bars_are_short() {
        assert_eq!(
            short_key("5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"),
            "5Grwva…utQY"
        );
        let text = |seconds| span(Duration::from_secs(seconds));
        assert_eq!(
            [text(42), text(185), text(8_040), text(273_600)],
            ["42s", "3m05s", "2h14m", "3d4h"]
        );
        assert_eq!(
            [bar(0), bar(350), bar(1_000), bar(9_999)],
            ["··········", "███▌······", "██████████", "██████████"]
        );
        assert_eq!(sparkline([0, 50, 100].into_iter(), 2), "▄█");
        assert_eq!([permille(1, 0), permille(1, 4)], [0, 250]);
    }

    #[test]
    fn a_sequence_of_a_terminal_is_text() {
        assert_eq!(sanitize("\u{1b}]0;pwned\u{7}\u{202e}x\r\n"), "·]0;pwned··x··");
    }

    proptest! {
        #[test]
        fn no_text_keeps_what_a_terminal_obeys(text in "[\\x00-\\u{ffff}]{0,600}") {
            let shown = sanitize(&text);
            prop_assert!(shown.chars().count() <= MAX_CELL);
            let is_obeyed = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
            prop_assert!(!shown.chars().any(is_obeyed));
        }
    }
}

//! Words that all pages share: times, spans, sizes, and text of strangers.

use std::time::Duration;

use maud::{Markup, html};
use muster_protocol::Timestamp;

/// A text of a user or a job as lines without control characters.
///
/// Sequences that only choose colours go. Every other control character becomes its picture (`␛`), and so do the
/// characters that reverse the direction of text. A lone carriage return ends a line, as in the output of progress
/// bars.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = skip_colour(rest) {
            rest = after;
            continue;
        }
        let (_, after) = rest.split_at(first.len_utf8());
        rest = after;
        match first {
            '\n' | '\t' => shown.push(first),
            '\r' if rest.starts_with('\n') => {}
            '\r' => shown.push('\n'),
            '\u{7f}' => shown.push('\u{2421}'),
            '\0'..='\u{1f}' => shown.extend(char::from_u32(0x2400 + u32::from(first))),
            '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => shown.push('\u{fffd}'),
            other => shown.push(other),
        }
    }
    shown
}

/// The rest of the text after a sequence that chooses colours (`ESC [ 0;31 m`), if the text begins with one.
fn skip_colour(text: &str) -> Option<&str> {
    let after = text.strip_prefix("\u{1b}[")?;
    let end = after.find(|c: char| !(c.is_ascii_digit() || c == ';' || c == ':'))?;
    after.get(end..)?.strip_prefix('m')
}

/// A span of time in two units: `1.24 s`, `3 min 05 s`, `2 h 14 min`, `3 d 4 h`.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    if seconds < 10 {
        format!("{:.2} s", span.as_secs_f64())
    } else if minutes < 1 {
        format!("{:.1} s", span.as_secs_f64())
    } else if hours < 1 {
        format!("{minutes} min {:02} s", seconds % 60)
    } else if days < 1 {
        format!("{hours} h {:02} min", minutes % 60)
    } else {
        format!("{days} d {} h", hours % 24)
    }
}

/// A limit of whole seconds: `30 s`, `10 min`, `24 h`.
pub fn limit(seconds: u64) -> String {
    if seconds >= 7_200 && seconds.is_multiple_of(3_600) {
        format!("{} h", seconds / 3_600)
    } else if seconds >= 120 && seconds.is_multiple_of(60) {
        format!("{} min", seconds / 60)
    } else {
        format!("{seconds} s")
    }
}

/// A size in binary units: `512 B`, `1.5 MiB`.
pub fn bytes(size: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if size < 1_024 {
        return format!("{size} B");
    }
    let (mut tenths, mut unit) = (size.saturating_mul(10) >> 10, "KiB");
    for larger in units.into_iter().skip(1) {
        if tenths < 10_240 {
            break;
        }
        tenths >>= 10;
        unit = larger;
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// A number with commas between thousands.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && digits.len().saturating_sub(at) % 3 == 0 {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// The time as `2026-11-23 19:44:05`, UTC.
pub fn utc(at: Timestamp) -> String {
    at.to_string()
        .chars()
        .take(19)
        .collect::<String>()
        .replace('T', " ")
}

/// How long ago it was, or how far ahead it is, in one unit.
fn relative(at: Timestamp, now: Timestamp) -> String {
    let (distance, ahead) = if at > now {
        (at.since(now), true)
    } else {
        (now.since(at), false)
    };
    let seconds = distance.as_secs();
    let (count, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3_600 => (seconds / 60, "min"),
        3_600..86_400 => (seconds / 3_600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    if ahead {
        format!("in {count} {unit}")
    } else {
        format!("{count} {unit} ago")
    }
}

/// A time that people read: the distance from now, with the exact time in its title. The script keeps it current.
pub fn time(at: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(at) title=(format!("{} UTC", utc(at))) data-relative { (relative(at, now)) } }
}

/// The beginning and the end of a long name, such as a hotkey's address.
pub fn shorten(name: &str) -> String {
    let count = name.chars().count();
    if count <= 20 {
        return name.to_owned();
    }
    let head: String = name.chars().take(6).collect();
    let tail: String = name.chars().skip(count.saturating_sub(4)).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn colours_go_and_other_control_characters_are_seen() {
        assert_eq!(plain("\u{1b}[1;31mred\u{1b}[0m\tx\r\ny\rz"), "red\tx\ny\nz");
        assert_eq!(plain("\u{1b}]0;title\u{7}"), "␛]0;title␇");
        assert_eq!(plain("\u{1b}[2J"), "␛[2J");
        assert_eq!(plain("a\u{202e}b\u{9b}c\u{7f}"), "a\u{fffd}b\u{fffd}c␡");
        assert_eq!(plain("żółw <b>&"), "żółw <b>&");
    }

    #[test]
    fn spans_sizes_and_numbers_are_short() {
        let text = |millis| span(Duration::from_millis(millis));
        assert_eq!(text(1_240), "1.24 s");
        assert_eq!(text(185_000), "3 min 05 s");
        assert_eq!(text(8_040_000), "2 h 14 min");
        assert_eq!(text(273_600_000), "3 d 4 h");
        assert_eq!(
            [bytes(512), bytes(1_572_864), bytes(u64::MAX)],
            ["512 B", "1.5 MiB", "1677721.5 TiB"]
        );
        assert_eq!([limit(90), limit(600), limit(86_400)], ["90 s", "10 min", "24 h"]);
        assert_eq!(
            [number(0), number(999), number(1_234_567)],
            ["0", "999", "1,234,567"]
        );
        assert_eq!(
            shorten("5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY"),
            "5Grwva…utQY"
        );
    }

    #[test]
    fn a_time_says_how_long_ago_it_was() {
        let now = Timestamp::from_secs(10_000);
        let text = |at| relative(Timestamp::from_secs(at), now);
        assert_eq!(
            [text(9_990), text(9_000), text(10_120)],
            ["10 s ago", "16 min ago", "in 2 min"]
        );
        assert_eq!(utc(now), "1970-01-01 02:46:40");
    }

    proptest! {
        #[test]
        fn no_text_keeps_a_control_character(text in "\\PC*|[\\x00-\\x1f\\x7f-\\x9fa\\[m;0]{0,40}") {
            let shown = plain(&text);
            prop_assert!(shown.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'), "{shown:?}");
        }
    }
}

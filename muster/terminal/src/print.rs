//! The one place that writes to the terminal. A reader that goes away (`muster … | head`) is no error.

use std::fmt::Arguments;
use std::io::Write as _;

/// A line of what was asked for.
pub fn line(text: Arguments<'_>) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Text of what was asked for, as it is.
pub fn raw(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A line beside what was asked for.
pub fn problem(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Bytes of what was asked for, as they are and at once.
pub fn bytes_beside(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A text of a stranger on one line, without characters that a terminal obeys.
pub fn plain(text: &str) -> String {
    let obeyed = |letter: char| {
        letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|letter| if obeyed(letter) { '·' } else { letter })
        .collect()
}

/// A table of what was asked for, without lines around it.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for text in table.lines() {
        line(format_args!("{}", text.trim_end()));
    }
}

/// A number of bytes as people write it.
pub fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

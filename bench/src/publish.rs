//! Where a report goes: its raw samples into `bench/results/`, its table into `docs/performance.md`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::{Report, Row, median};

/// The longest line of a page, in characters.
const COLUMNS: usize = 120;

/// A report with when and where it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The program below `src/bin/`.
    pub bench: String,
    /// The day, `YYYY-MM-DD`.
    pub date: String,
    /// Processor and number of cores.
    pub machine: String,
    /// The rows to publish.
    pub report: Report,
}

/// Stores the samples and rewrites the table between `<!-- bench: NAME -->` and `<!-- end -->`.
///
/// # Errors
/// `docs/performance.md` has no place for this bench; a file cannot be read or written.
pub fn publish(root: &Path, record: &Record) -> anyhow::Result<()> {
    let page = root.join("docs/performance.md");
    let text = std::fs::read_to_string(&page).with_context(|| format!("read {}", page.display()))?;
    let text = with_table(&text, &record.bench, &table(record))?;
    let results = root.join("bench/results");
    std::fs::create_dir_all(&results).context("make bench/results")?;
    let stored = serde_json::to_string_pretty(record)? + "\n";
    std::fs::write(results.join(format!("{}.json", record.bench)), stored).context("store the samples")?;
    std::fs::write(&page, text).with_context(|| format!("write {}", page.display()))
}

/// The page with the table of one bench in its place.
fn with_table(page: &str, bench: &str, table: &str) -> anyhow::Result<String> {
    let start = format!("<!-- bench: {bench} -->\n");
    let (before, rest) = page.split_once(&start).with_context(|| {
        format!(
            "docs/performance.md has no line {:?}: write it where the table belongs",
            start.trim()
        )
    })?;
    let (_, after) = rest
        .split_once("<!-- end -->")
        .with_context(|| format!("the table of {bench} in docs/performance.md has no <!-- end -->"))?;
    Ok(format!("{before}{start}{table}<!-- end -->{after}"))
}

/// The table as Markdown, with the command that makes it again.
fn table(record: &Record) -> String {
    let mut text = format!(
        "\n`cargo xtask bench {}`, {}, {}:\n\n| what | ours | peer | ratio | target |\n|---|---|---|---|---|\n",
        record.bench, record.date, record.machine
    );
    for row in &record.report.rows {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.what,
            figure(&row.ours, &row.unit),
            peer(row),
            row.ratio().map_or_else(String::new, short),
            target(row),
        );
    }
    for note in &record.report.notes {
        text.push_str(&item(note));
    }
    if !record.report.notes.is_empty() {
        text.push('\n');
    }
    text.push('\n');
    text
}

/// A note as an item of a list, in lines as long as the page's.
fn item(note: &str) -> String {
    let (mut text, mut used) = ("\n*".to_owned(), 1);
    for word in note.split(' ') {
        let width = word.chars().count();
        if used + 1 + width > COLUMNS {
            text.push_str("\n ");
            used = 1;
        }
        text.push(' ');
        text.push_str(word);
        used += 1 + width;
    }
    text
}

fn peer(row: &Row) -> String {
    if row.peer.is_empty() {
        return String::new();
    }
    format!("{} ({})", figure(&row.theirs, &row.unit), row.peer)
}

fn target(row: &Row) -> String {
    let Some(target) = row.target else {
        return String::new();
    };
    let sign = match row.direction {
        crate::Direction::LowerIsBetter => "≤",
        crate::Direction::HigherIsBetter => "≥",
    };
    let verdict = match row.reached() {
        Some(true) => "reached",
        Some(false) => "**missed**",
        None => "not measured",
    };
    format!("{sign} {}, {verdict}", short(target))
}

fn figure(samples: &[f64], unit: &str) -> String {
    median(samples).map_or_else(
        || "none".to_owned(),
        |value| format!("{} {unit}", short(value)).trim_end().to_owned(),
    )
}

/// Three digits that mean something.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 0.1 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, Turns};

    fn record() -> Record {
        let turns = Turns {
            ours: vec![150.0, 140.0, 160.0],
            peer: vec![140.0, 138.0, 142.0],
        };
        let row = Row::against(
            "trivial job",
            "ms",
            Direction::LowerIsBetter,
            "bare engine",
            turns,
        );
        Record {
            bench: "job-start".to_owned(),
            date: "2026-11-21".to_owned(),
            machine: "2 cores".to_owned(),
            report: Report {
                rows: vec![row.target(1.15)],
                notes: vec!["image of one static binary".to_owned()],
            },
        }
    }

    #[test]
    fn a_table_says_how_it_was_made_and_whether_the_target_is_reached() {
        let text = table(&record());
        assert!(text.contains("`cargo xtask bench job-start`, 2026-11-21, 2 cores"));
        assert!(text.contains("| trivial job | 150 ms | 140 ms (bare engine) | 1.07 | ≤ 1.15, reached |"));
        assert!(text.contains("* image of one static binary"));
    }

    #[test]
    fn long_notes_are_wrapped() {
        let text = item(&["word"; 60].join(" "));
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        assert_eq!(text.split_whitespace().filter(|word| *word == "word").count(), 60);
        assert_eq!(
            text.lines().filter(|line| line.starts_with("  word")).count(),
            2,
            "{text}"
        );
    }

    #[test]
    fn a_table_replaces_the_one_before_and_nothing_else() {
        let page = "# P\n<!-- bench: a -->\nold\n<!-- end -->\nkept\n<!-- bench: b -->\nb\n<!-- end -->\n";
        let once = with_table(page, "a", "new\n").unwrap();
        assert_eq!(
            once,
            "# P\n<!-- bench: a -->\nnew\n<!-- end -->\nkept\n<!-- bench: b -->\nb\n<!-- end -->\n"
        );
        assert_eq!(with_table(&once, "a", "new\n").unwrap(), once);
    }

    #[test]
    fn a_bench_without_a_place_is_named() {
        let error = with_table("# P\n", "a", "").unwrap_err();
        assert!(error.to_string().contains("<!-- bench: a -->"), "{error}");
    }

    #[test]
    fn publishing_twice_is_publishing_once() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        let page = root.path().join("docs/performance.md");
        std::fs::write(&page, "<!-- bench: job-start -->\n<!-- end -->\n").unwrap();
        publish(root.path(), &record()).unwrap();
        let first = std::fs::read_to_string(&page).unwrap();
        publish(root.path(), &record()).unwrap();
        assert_eq!(std::fs::read_to_string(&page).unwrap(), first);
        let stored = std::fs::read(root.path().join("bench/results/job-start.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Record>(&stored).unwrap(), record());
    }

    #[test]
    fn figures_keep_what_means_something() {
        for (value, text) in [
            (12345.6, "12346"),
            (138.2, "138"),
            (13.82, "13.8"),
            (1.382, "1.38"),
            (0.0, "0.00"),
            (0.00123, "1.23e-3"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}

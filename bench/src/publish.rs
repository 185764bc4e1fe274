//! Where a report goes: its raw samples and its table into `bench/results/`, its targets into `docs/performance.md`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::{Report, Row, median};

/// The longest line of a page, in characters.
const COLUMNS: usize = 120;
/// The page with the targets of all benches, and the marks around their table.
const PAGE: &str = "docs/performance.md";
const BEGIN: &str = "<!-- targets: begin -->\n";
const END: &str = "<!-- targets: end -->";

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

/// Stores the samples and the table of a bench below `bench/results/`, and rewrites the table of all targets.
///
/// # Errors
/// The page has no marks for the table, a stored result is none, or a file cannot be read or written.
pub fn publish(root: &Path, record: &Record) -> anyhow::Result<()> {
    let results = root.join("bench/results");
    std::fs::create_dir_all(&results).context("make bench/results")?;
    let stored = serde_json::to_string_pretty(record)? + "\n";
    std::fs::write(results.join(format!("{}.json", record.bench)), stored).context("store the samples")?;
    std::fs::write(results.join(format!("{}.md", record.bench)), table(record)).context("store the table")?;
    let page = root.join(PAGE);
    let text = std::fs::read_to_string(&page).with_context(|| format!("read {}", page.display()))?;
    let text = with_targets(&text, &targets(&read_records(&results)?))?;
    std::fs::write(&page, text).with_context(|| format!("write {}", page.display()))
}

/// Every stored result, in the order of the benches' names.
fn read_records(results: &Path) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(results).context("list bench/results")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let record: Record =
                serde_json::from_str(&text).with_context(|| format!("{} is no result", path.display()))?;
            records.push(record);
        }
    }
    records.sort_by(|a, b| a.bench.cmp(&b.bench));
    Ok(records)
}

/// The page with the table of all targets in its place.
fn with_targets(page: &str, table: &str) -> anyhow::Result<String> {
    let marks = || {
        format!(
            "{PAGE} has no lines {:?} and {END:?} around its table",
            BEGIN.trim()
        )
    };
    let (before, rest) = page.split_once(BEGIN).with_context(marks)?;
    let (_, after) = rest.split_once(END).with_context(marks)?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

/// The table of all rows that have a target: those that miss it first.
fn targets(records: &[Record]) -> String {
    let mut text = "| bench | what | ours | peer | ratio | target |\n|---|---|---|---|---|---|\n".to_owned();
    for is_missed in [true, false] {
        for record in records {
            let rows = record.report.rows.iter().filter(|row| row.target.is_some());
            for row in rows.filter(|row| (row.reached() == Some(false)) == is_missed) {
                // Writing to a String does not fail.
                let _ = writeln!(
                    text,
                    "| [{0}](../bench/results/{0}.md) {1}",
                    record.bench,
                    cells(row)
                );
            }
        }
    }
    text
}

/// The page of one bench as Markdown, with the command that makes it again.
fn table(record: &Record) -> String {
    let mut text = format!(
        "# The bench {0}\n\n`cargo xtask bench {0}`, {1}, {2}:\n\n| what | ours | peer | ratio | target |\n|---|---|---|---|---|\n",
        record.bench, record.date, record.machine
    );
    for row in &record.report.rows {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}", cells(row));
    }
    for note in &record.report.notes {
        text.push_str(&item(note));
    }
    if !record.report.notes.is_empty() {
        text.push('\n');
    }
    text
}

/// A row of a table, from its first bar to its last one.
fn cells(row: &Row) -> String {
    format!(
        "| {} | {} | {} | {} | {} |",
        row.what,
        figure(&row.ours, &row.unit),
        peer(row),
        row.ratio().map_or_else(String::new, short),
        target(row),
    )
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
    fn the_table_of_targets_replaces_the_one_before_and_nothing_else() {
        let page = format!("# P\n{BEGIN}old\n{END}\nkept\n");
        let once = with_targets(&page, "| new |\n").unwrap();
        assert_eq!(once, format!("# P\n{BEGIN}\n| new |\n\n{END}\nkept\n"));
        assert_eq!(with_targets(&once, "| new |\n").unwrap(), once);
    }

    #[test]
    fn a_page_without_marks_is_an_error() {
        let error = with_targets("# P\n", "").unwrap_err();
        assert!(error.to_string().contains("<!-- targets: begin -->"), "{error}");
    }

    #[test]
    fn missed_targets_come_first_and_rows_without_a_target_are_left_out() {
        let mut reached = record();
        reached.bench = "a".to_owned();
        let plain = Row::alone("plain", "s", Direction::LowerIsBetter, vec![1.0]);
        let missed = Row::alone("slow", "s", Direction::LowerIsBetter, vec![3.0]).target(2.0);
        let other = Record {
            bench: "b".to_owned(),
            report: Report {
                rows: vec![plain, missed],
                notes: Vec::new(),
            },
            ..record()
        };
        let text = targets(&[reached, other]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| [b](../bench/results/b.md) | slow | 3.00 s |  |  | ≤ 2.00, **missed** |",
                "| [a](../bench/results/a.md) | trivial job | 150 ms | 140 ms (bare engine) | 1.07 | ≤ 1.15, reached |",
            ]
        );
    }

    #[test]
    fn publishing_twice_is_publishing_once() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        let page = root.path().join(PAGE);
        std::fs::write(&page, format!("{BEGIN}{END}\n")).unwrap();
        publish(root.path(), &record()).unwrap();
        let first = std::fs::read_to_string(&page).unwrap();
        assert!(
            first.contains("[job-start](../bench/results/job-start.md)"),
            "{first}"
        );
        publish(root.path(), &record()).unwrap();
        assert_eq!(std::fs::read_to_string(&page).unwrap(), first);
        let results = root.path().join("bench/results");
        let stored = std::fs::read(results.join("job-start.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Record>(&stored).unwrap(), record());
        let shown = std::fs::read_to_string(results.join("job-start.md")).unwrap();
        assert_eq!(shown, table(&record()));
    }

    #[test]
    fn the_committed_tables_are_those_of_the_committed_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        let results = root.join("bench/results");
        let records = read_records(&results).unwrap();
        for record in &records {
            let shown = std::fs::read_to_string(results.join(format!("{}.md", record.bench))).unwrap();
            for row in &record.report.rows {
                assert!(shown.contains(&cells(row)), "{}: {}", record.bench, cells(row));
            }
        }
        assert_eq!(with_targets(&page, &targets(&records)).unwrap(), page);
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

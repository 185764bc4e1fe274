//! The catalogue of metrics: every metric that a role exports, with its type, its labels and its meaning.
//!
//! The catalogue is the source of the HELP lines, of the zeros that counters begin with, and of the table in
//! `docs/operations/metrics.md`. A test compares it with the scrapes of running roles.

mod entries;
mod metric_entry;

use std::fmt::Write as _;

pub use self::metric_entry::{LabelValues, MetricEntry, MetricKind, MetricLabel, MetricRole};

/// Every metric that a role exports: those of each process first, then role by role.
pub fn all_metrics() -> impl Iterator<Item = &'static MetricEntry> {
    entries::PARTS.into_iter().flatten()
}

/// Describes the metrics of a role to the process's recorder, and lets every counter whose label values are known begin
/// at zero: a counter that appears with its first event hides that event from `increase`.
pub(super) fn register(role: MetricRole) {
    for entry in all_metrics().filter(|entry| entry.is_of(role)) {
        entry.describe();
        let counts = entry.kind == MetricKind::Counter && entry.needs.is_empty();
        for labels in entry.label_sets().filter(|_| counts).unwrap_or_default() {
            metrics::counter!(entry.name, labels).absolute(0);
        }
    }
}

/// The metrics as a table of Markdown: the middle part of `docs/operations/metrics.md`.
pub fn markdown_table() -> String {
    let mut table = String::from("| metric | type | roles | labels | meaning |\n|---|---|---|---|---|\n");
    for entry in all_metrics() {
        let roles: Vec<_> = entry.roles.iter().map(|role| role.name()).collect();
        let roles = if roles.len() == MetricRole::ALL.len() {
            "all".to_owned()
        } else {
            roles.join(", ")
        };
        let labels: Vec<_> = entry.labels.iter().map(describe_label).collect();
        let needs = match entry.needs {
            "" => String::new(),
            needs => format!(" Absent without {needs}."),
        };
        // Writing to a text cannot fail.
        let _ = writeln!(
            table,
            "| `{}` | {} | {roles} | {} | {}{needs} |",
            entry.name,
            entry.kind.name(),
            labels.join("; "),
            entry.help
        );
    }
    table
}

fn describe_label(label: &MetricLabel) -> String {
    match label.values {
        LabelValues::OneOf(values) => format!("`{}`: {}", label.name, values.join(", ")),
        LabelValues::BoundedBy(bound) => format!("`{}`: {bound}", label.name),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The most series of one metric whose label values are listed.
    const MAX_SERIES: usize = 64;

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        let mut seen = BTreeSet::new();
        for entry in all_metrics() {
            let name = entry.name;
            assert!(seen.insert(name), "{name} is listed twice");
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
                "{name}"
            );
            assert_eq!(
                entry.kind == MetricKind::Counter,
                name.ends_with("_total"),
                "{name}"
            );
            if entry.kind == MetricKind::Histogram {
                assert!(
                    name.ends_with("_seconds"),
                    "{name}: the buckets are those of times"
                );
            }
            assert!(
                name.starts_with("muster_") || name.starts_with("process_"),
                "{name}"
            );
            assert!(!entry.roles.is_empty() && entry.help.ends_with('.'), "{name}");
            assert!(!entry.help.contains('|'), "{name}: the table would break");
        }
    }

    #[test]
    fn every_label_is_bounded_and_names_no_job() {
        for entry in all_metrics() {
            for label in entry.labels {
                assert!(
                    !["job", "attempt", "user", "key", "hotkey"].contains(&label.name),
                    "{}",
                    entry.name
                );
                if let LabelValues::BoundedBy(bound) = label.values {
                    assert!(!bound.is_empty(), "{}", entry.name);
                }
            }
            let series = entry.label_sets().map_or(0, |sets| sets.len());
            assert!(series <= MAX_SERIES, "{}: {series} series", entry.name);
        }
    }

    /// `docs/operations/metrics.md` is what operators read: a change of the metrics is seen in a review.
    #[test]
    fn the_table_in_the_repository_is_the_catalogue() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/operations/metrics.md");
        let kept = std::fs::read_to_string(path).unwrap();
        let (begin, end) = ("<!-- metrics: begin -->\n", "<!-- metrics: end -->");
        let (head, rest) = kept.split_once(begin).unwrap();
        let (_, tail) = rest.split_once(end).unwrap();
        let fresh = format!("{head}{begin}\n{}\n{end}{tail}", markdown_table());
        if std::env::var_os("MUSTER_WRITE_METRICS").is_some() {
            std::fs::write(path, &fresh).unwrap();
            return;
        }
        assert!(
            kept == fresh,
            "the metrics have changed: run this test with MUSTER_WRITE_METRICS=1 and look"
        );
    }
}

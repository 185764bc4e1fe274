//! The completion report of a job as text.

use muster_protocol::job::CompletionReport;

use crate::print::{self, size};

/// The output files that are named.
const NAMED: usize = 20;

/// Prints what the program used, its last metrics and the digests of its output files.
pub fn print_completion(report: &CompletionReport) {
    for line in lines(report) {
        print::line(format_args!("{line}"));
    }
}

fn lines(report: &CompletionReport) -> Vec<String> {
    let mut used = vec![format!("{} s", seconds(report.compute_ms))];
    if let Some(cpu) = report.cpu_ms {
        used.push(format!("{} s of processor time", seconds(cpu)));
    }
    if let Some(memory) = report.memory_peak {
        used.push(format!("{} of memory at most", size(memory)));
    }
    if let Some(gpu) = report.gpu_ms {
        used.push(format!("{} s of GPUs", seconds(gpu)));
    }
    if let Some(mean) = report.gpu_permille {
        used.push(format!("GPUs busy for {}.{} %", mean / 10, mean % 10));
    }
    let mut lines = vec![format!("program  {}", used.join(", "))];
    for (name, value) in &report.metrics {
        lines.push(format!("  metric   {name} {value}"));
    }
    for file in report.outputs.iter().take(NAMED) {
        let (path, bytes) = (file.path.escape_debug(), size(file.bytes));
        lines.push(format!("  file     {} {bytes} /output/{path}", file.sha256));
    }
    let more = report.outputs.len().saturating_sub(NAMED) as u64;
    if more > 0 {
        lines.push(format!("  file     and {more} more"));
    }
    if report.unlisted > 0 {
        lines.push(format!(
            "  file     and {} without a digest: too many, too large, or no regular files",
            report.unlisted
        ));
    }
    lines
}

/// Seconds with one digit after the point.
fn seconds(millis: u64) -> String {
    format!("{}.{}", millis / 1_000, millis % 1_000 / 100)
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;
    use muster_protocol::job::OutputFile;

    use super::*;

    #[test]
    fn a_report_is_a_line_of_use_and_a_line_for_each_metric_and_file() {
        let file = |path: String| OutputFile {
            path,
            sha256: Digest::of(b"x"),
            bytes: 1,
            mode: None,
        };
        let report = CompletionReport {
            outputs: vec![file("a\u{1b}[31m".to_owned())],
            unlisted: 3,
            compute_ms: 61_250,
            cpu_ms: Some(59_000),
            memory_peak: Some(3 << 29),
            gpu_ms: Some(122_500),
            gpu_permille: Some(935),
            metrics: [("loss".parse().unwrap(), 0.25.try_into().unwrap())].into(),
            printed: None,
        };
        let told = lines(&report).join("\n");
        for words in [
            "program  61.2 s, 59.0 s of processor time, 1.50 GiB of memory at most, 122.5 s of GPUs, GPUs busy for 93.5 %",
            "metric   loss 0.25",
            "and 3 without a digest",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert!(!told.contains('\u{1b}'), "{told:?}");
        let many = CompletionReport {
            outputs: (0..25).map(|at| file(format!("{at:02}"))).collect(),
            ..CompletionReport::default()
        };
        assert_eq!(lines(&many).len(), 1 + NAMED + 1);
        assert_eq!(lines(&CompletionReport::default()), ["program  0.0 s"]);
    }
}

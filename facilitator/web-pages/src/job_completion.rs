//! The part of a job's page that shows what its program left and used.

use maud::{Markup, html};
use muster_protocol::job::CompletionReport;

use crate::text::{bytes, plain, shorten};

/// The section with the use of the machine, the last metrics, and the digests of the output files.
pub(crate) fn section(report: &CompletionReport) -> Markup {
    html! {
        section aria-labelledby="completion" {
            h2 #completion { "Program" }
            dl {
                div { dt { "Ran for" } dd { (seconds(report.compute_ms)) } }
                @if let Some(cpu) = report.cpu_ms { div { dt { "Processor time" } dd { (seconds(cpu)) } } }
                @if let Some(memory) = report.memory_peak {
                    div { dt { "Most memory" } dd { (bytes(memory)) } }
                }
                @if let Some(gpu) = report.gpu_ms { div { dt { "GPU time" } dd { (seconds(gpu)) } } }
                @if let Some(mean) = report.gpu_permille {
                    div { dt { "GPUs busy" } dd { (format!("{}.{} %", mean / 10, mean % 10)) } }
                }
                @for (name, value) in &report.metrics {
                    div { dt { (name.as_str()) } dd { (value.to_string()) } }
                }
            }
            @if !report.outputs.is_empty() {
                table {
                    thead { tr { th scope="col" { "File" } th scope="col" { "Size" } th scope="col" { "SHA-256" } } }
                    tbody {
                        @for file in &report.outputs {
                            tr {
                                th.break scope="row" { (plain(&file.path)) }
                                td { (bytes(file.bytes)) }
                                td.mono { span title=(file.sha256) { (shorten(&file.sha256.hex())) } }
                            }
                        }
                    }
                }
            }
            @if report.unlisted > 0 {
                p.dim { (report.unlisted) " more without a digest: too many, too large, or no regular files." }
            }
        }
    }
}

/// Seconds with one digit after the point.
fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1_000, millis % 1_000 / 100)
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;
    use muster_protocol::job::OutputFile;

    use super::*;

    #[test]
    fn the_section_escapes_what_a_program_named_and_leaves_out_what_was_not_measured() {
        let report = CompletionReport {
            outputs: vec![OutputFile {
                path: "<b>a\u{1b}".to_owned(),
                sha256: Digest::of(b"x"),
                bytes: 7,
                mode: None,
            }],
            unlisted: 2,
            compute_ms: 1_900,
            memory_peak: Some(1),
            ..CompletionReport::default()
        };
        let html = section(&report).into_string();
        for words in ["1.9 s", "1 B", "&lt;b&gt;a", "2 more without a digest"] {
            assert!(html.contains(words), "{words}: {html}");
        }
        assert!(
            !html.contains("<b>") && !html.contains('\u{1b}') && !html.contains("GPU"),
            "{html}"
        );
    }
}

//! The part of a job's page that shows what its validator found by running the job again.

use maud::{Markup, html};
use muster_protocol::Timestamp;
use muster_protocol::wire::checks::{CheckOrigin, CheckState, JobCheck};

use crate::text::{plain, shorten, time};

/// The section with the state, the reason and the compared outputs.
pub(crate) fn section(check: &JobCheck, now: Timestamp) -> Markup {
    html! {
        section aria-labelledby="check" {
            h2 #check { "Run again" }
            p data-check=(check.state.as_str()) {
                strong { (word_of(check.state)) } " "
                @match check.origin {
                    CheckOrigin::Drawn => "The job declares itself deterministic and was drawn",
                    CheckOrigin::Reported | CheckOrigin::Unknown => "You reported the job",
                }
                ", so the validator runs it again on its own miner " (time(check.at, now)) "."
            }
            @if !check.reason.is_empty() { p { (plain(&check.reason)) } }
            @if !check.outputs.is_empty() {
                table {
                    thead { tr { th scope="col" { "Output" } th scope="col" { "Yours" } th scope="col" { "Validator\u{2019}s" } } }
                    tbody {
                        @for output in &check.outputs {
                            tr {
                                th scope="row" { (plain(&output.name)) }
                                @for digest in [output.job, output.trusted] {
                                    td.mono {
                                        @match digest {
                                            Some(digest) => span title=(digest) { (shorten(&digest.hex())) },
                                            None => "none",
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn word_of(state: CheckState) -> &'static str {
    match state {
        CheckState::Pending => "Not known yet.",
        CheckState::Agrees => "The outputs agree.",
        CheckState::Differs => "The outputs differ.",
        CheckState::Unproven | CheckState::Unknown => "Nothing can be said.",
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Digest;
    use muster_protocol::wire::checks::CheckedOutput;

    use super::*;

    #[test]
    fn the_section_says_which_outputs_differ_and_escapes_their_names() {
        let check = JobCheck {
            uuid: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            origin: CheckOrigin::Drawn,
            state: CheckState::Differs,
            reason: "1 of 1 outputs differ".to_owned(),
            outputs: vec![CheckedOutput {
                name: "/artifacts/<b>".to_owned(),
                job: Some(Digest::of(b"x")),
                trusted: None,
            }],
            at: Timestamp::from_secs(1),
        };
        let page = section(&check, Timestamp::from_secs(61)).into_string();
        assert!(
            page.contains("The outputs differ.") && page.contains("1 of 1 outputs differ"),
            "{page}"
        );
        assert!(
            page.contains("/artifacts/&lt;b&gt;") && page.contains("none"),
            "{page}"
        );
        assert!(page.contains(&Digest::of(b"x").to_string()), "{page}");
    }
}

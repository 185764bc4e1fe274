//! The failure of a job on its page: the next step first, then the event and the party at fault.

use maud::{Markup, html};
use muster_protocol::ErrorCode;
use muster_protocol::job::{Fault, Outcome};

use crate::text::plain;

/// The heading of the part of an error's page that says what to do.
const WHAT_TO_DO: &str = "## What to do\n";

/// The failure as text. A job that succeeded has none.
pub(crate) fn section(outcome: &Outcome) -> Markup {
    let (what, message, reason, context) = match outcome {
        Outcome::Completed(_) => return html! {},
        Outcome::Rejected(details) => (
            format!("Rejected by the {}", details.rejected_by),
            &details.message,
            details.reason.as_str(),
            &details.context,
        ),
        Outcome::Failed(details) => {
            let exit = details.docker_process_exit_status;
            let exit = exit.map(|code| format!(", exit code {code}")).unwrap_or_default();
            (
                format!(
                    "Failed in stage {}{exit}",
                    details.stage.as_str().replace('_', " ")
                ),
                &details.message,
                details.reason.as_str(),
                &details.context,
            )
        }
        Outcome::HordeFailed(details) => (
            format!("Failed by the subnet, says the {}", details.reported_by),
            &details.message,
            details.reason.as_str(),
            &details.context,
        ),
    };
    let named = context.as_ref().and_then(|context| context.get("code")?.as_str());
    let code = named.and_then(|named| ErrorCode::ALL.iter().copied().find(|code| code.code() == named));
    html! {
        div.failure role="group" aria-label="Failure" {
            p { strong { (inline_code(&next_step(code, outcome.fault()))) } }
            p { (what) ": " (plain(message)) " (" (reason.replace('_', " ")) ")" }
            p { "At fault: " strong { (outcome.fault()) } ". "
                code { "muster explain " (plain(named.unwrap_or(reason))) } " says more." }
        }
    }
}

/// The first sentence that the code's page says to do, or the step that follows from the fault.
fn next_step(code: Option<ErrorCode>, fault: Fault) -> String {
    let of_page = code.and_then(|code| first_sentence(code.page().split_once(WHAT_TO_DO)?.1));
    of_page.unwrap_or_else(|| {
        let step = match fault {
            Fault::User => "Change the job as the message says, and run it again.",
            Fault::Nobody => "Run the job again when there is room.",
            Fault::Executor | Fault::Miner | Fault::Validator | Fault::Facilitator | Fault::Network => {
                "Run the job again: another executor may take it, and this attempt costs you nothing."
            }
        };
        step.to_owned()
    })
}

/// The first sentence of a page's part. One that leads to a block of commands ends there.
fn first_sentence(part: &str) -> Option<String> {
    let paragraph = part.split("\n\n").next()?.trim();
    // A sentence ends before a space or at the line's end; an address or a file's name has no space after its dot.
    let end = [". ", ".\n"].iter().filter_map(|mark| paragraph.find(mark)).min();
    let sentence = end.and_then(|end| paragraph.get(..end)).unwrap_or(paragraph);
    Some(format!("{}.", sentence.trim_end_matches(['.', ':'])))
}

/// Text with words between backticks as code.
fn inline_code(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_first_sentence_to_do() {
        for code in ErrorCode::ALL {
            let step = next_step(Some(*code), Fault::Nobody);
            assert_ne!(
                step,
                next_step(None, Fault::Nobody),
                "{code:?} has no sentence of its own"
            );
            assert!(
                step.ends_with('.') && step.matches('`').count().is_multiple_of(2),
                "{code:?}: {step}"
            );
        }
    }

    #[test]
    fn a_failure_begins_with_the_next_step() {
        let outcome: Outcome = Outcome::Failed(
            serde_json::from_value(serde_json::json!({
                "reason": "timeout", "stage": "execution", "message": "<b> ran for 60 s", "context": {"code": "E0010"},
            }))
            .unwrap(),
        );
        let shown = section(&outcome).into_string();
        let [step, words, fault] = [
            "Ask for more time",
            "&lt;b&gt; ran for 60 s",
            "muster explain E0010",
        ]
        .map(|part| shown.find(part).unwrap_or_else(|| panic!("{part}: {shown}")));
        assert!(step < words && words < fault, "{shown}");
        let uncoded: Outcome = Outcome::HordeFailed(
            serde_json::from_value(serde_json::json!({
                "reported_by": "validator", "reason": "generic_error", "message": "m", "context": {"fault": "miner"},
            }))
            .unwrap(),
        );
        let shown = section(&uncoded).into_string();
        assert!(
            shown.contains("Run the job again") && shown.contains("muster explain generic_error"),
            "{shown}"
        );
    }
}

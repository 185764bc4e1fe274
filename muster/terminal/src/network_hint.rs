//! Advice where a program failed because it wanted a network, which no job has.

use muster_protocol::job::Outcome;
use muster_protocol::rest::JobView;

/// The end of each stream that is searched, in bytes: programs say last why they end.
const SEARCHED: usize = 8 * 1024;

/// Words of the resolver, the kernel and well-known programs for a host that is not reached.
const SIGNS: [&str; 10] = [
    // glibc, and pip, apt and git by its words
    "Temporary failure in name resolution",
    "Name or service not known",
    "No address associated with hostname",
    "Temporary failure resolving",
    "Network is unreachable",
    // curl and git
    "Could not resolve host",
    // pip
    "Failed to establish a new connection",
    // node and npm
    "getaddrinfo EAI_AGAIN",
    "getaddrinfo ENOTFOUND",
    // wget
    "unable to resolve host address",
];

/// One sentence of advice, which follows the failure.
const HINT: &str = "the program wanted a network, and a job has none: what it fetches belongs into its image \
                    (`docker build`, `docker save`, `--image-archive`) or among its inputs";

/// Advice about the end of a program that wanted a network; `None` for every other end.
pub(crate) fn network_hint(outcome: &Outcome, view: &JobView) -> Option<&'static str> {
    let failed = match outcome {
        Outcome::Failed(details) => details.docker_process_exit_status.is_some_and(|code| code != 0),
        Outcome::Completed(_) | Outcome::Rejected(_) | Outcome::HordeFailed(_) => false,
    };
    let wants_network = || [&view.stderr, &view.stdout].iter().any(|text| has_sign(text));
    (failed && wants_network()).then_some(HINT)
}

fn has_sign(text: &str) -> bool {
    let start = text.len().saturating_sub(SEARCHED);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    let end = text.get(start.unwrap_or_default()..).unwrap_or_default();
    SIGNS.iter().any(|sign| end.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_a_program_prints_tells_that_it_wanted_a_network() {
        let pip = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(': Failed to \
                   establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/pandas/\n\
                   ERROR: No matching distribution found for pandas\n";
        assert!(has_sign(pip));
        assert!(has_sign(&format!("{}\u{e9}{pip}", "\u{e9}".repeat(SEARCHED))));
        assert!(!has_sign("ERROR: No matching distribution found for pandas\n"));
        assert!(!has_sign(&format!("{pip}{}", "a later line\n".repeat(SEARCHED))));
        assert!(!has_sign(""));
    }
}

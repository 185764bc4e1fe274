//! Advice about failures that a user of docker does not expect: no network, read-only folders, and images by name.

use muster_protocol::job::{ImageFetchFailure, Outcome};
use muster_protocol::rest::JobView;

/// The end of each stream that is searched, in bytes: programs say last why they end.
const SEARCHED: usize = 8 * 1024;

/// Words of the kernel for a place that is read-only.
const READ_ONLY: [&str; 1] = ["Read-only file system"];

/// Words of the resolver, the kernel and well-known programs for a host that is not reached.
const NO_NETWORK: [&str; 10] = [
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

/// The advice for a program that wanted a network.
const NETWORK_HINT: &str = "the program wanted a network, and a job has none: what it fetches belongs into its image \
                    (`docker build`, `docker save`, `--image-archive`) or among its inputs";

/// The advice for a program that wrote into its image.
const READ_ONLY_HINT: &str = "a program may write below /output, /volume, /tmp, /var/tmp, /run and its home folder, and \
                              `-o NAME` brings back /output/NAME";

/// The advice for an image that did not come by its name.
const IMAGE_HINT: &str = "check the image's name; an image that no registry gives to everybody travels with \
                          `--image-archive`";

/// One sentence of advice, which follows the failure; `None` where there is none.
pub(crate) fn failure_hint(outcome: &Outcome, view: &JobView) -> Option<&'static str> {
    let failed = match outcome {
        Outcome::Failed(details) => details.docker_process_exit_status.is_some_and(|code| code != 0),
        Outcome::HordeFailed(_) => {
            return outcome
                .image_fetch_failure()
                .is_some_and(is_about_the_name)
                .then_some(IMAGE_HINT);
        }
        Outcome::Completed(_) | Outcome::Rejected(_) => false,
    };
    let printed = |signs: &[&str]| {
        [&view.stderr, &view.stdout]
            .iter()
            .any(|text| has_sign(text, signs))
    };
    if !failed {
        return None;
    }
    if printed(&NO_NETWORK) {
        return Some(NETWORK_HINT);
    }
    printed(&READ_ONLY).then_some(READ_ONLY_HINT)
}

/// Whether another name of the image may be the remedy.
const fn is_about_the_name(failure: ImageFetchFailure) -> bool {
    match failure {
        ImageFetchFailure::NoSuchImage | ImageFetchFailure::NoRight | ImageFetchFailure::Unreachable => true,
        ImageFetchFailure::TooLarge
        | ImageFetchFailure::WrongPlatform
        | ImageFetchFailure::Stalled
        | ImageFetchFailure::TimedOut
        | ImageFetchFailure::NoExecutor
        | ImageFetchFailure::NoSlot
        | ImageFetchFailure::CameToNobody
        | ImageFetchFailure::Unknown => false,
    }
}

fn has_sign(text: &str, signs: &[&str]) -> bool {
    let start = text.len().saturating_sub(SEARCHED);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    let end = text.get(start.unwrap_or_default()..).unwrap_or_default();
    signs.iter().any(|sign| end.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_a_program_prints_tells_that_it_wanted_a_network() {
        let pip = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(': Failed to \
                   establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/pandas/\n\
                   ERROR: No matching distribution found for pandas\n";
        let has_sign = |text: &str| has_sign(text, &NO_NETWORK);
        assert!(has_sign(pip));
        assert!(has_sign(&format!("{}\u{e9}{pip}", "\u{e9}".repeat(SEARCHED))));
        assert!(!has_sign("ERROR: No matching distribution found for pandas\n"));
        assert!(!has_sign(&format!("{pip}{}", "a later line\n".repeat(SEARCHED))));
        assert!(!has_sign(""));
        assert!(super::has_sign(
            "OSError: [Errno 30] Read-only file system: 'model.bin'\n",
            &READ_ONLY
        ));
    }
}

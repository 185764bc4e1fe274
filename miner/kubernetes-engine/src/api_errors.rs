//! Errors of the cluster's API, sorted by their consequence.

use std::error::Error as _;

use kube::Error;
use kube::core::Status;
use muster_provisioning::EngineError;

/// Characters of the cluster's own text that are passed on.
const MAX_WORDS: usize = 600;

/// The error of a call that did `what`: "create the pod muster-…".
pub(crate) fn engine_error(what: &str, error: &Error) -> EngineError {
    if let Error::Api(status) = error {
        return of_status(what, status);
    }
    EngineError::Unreachable(format!(
        "cannot {what}: the Kubernetes API did not answer ({}); check that the kubeconfig's server is up and can be \
         reached from this machine",
        words(&causes(error))
    ))
}

/// The error of a call that took too long.
pub(crate) fn timed_out(what: &str, seconds: u64) -> EngineError {
    EngineError::Unreachable(format!(
        "cannot {what}: the Kubernetes API did not answer within {seconds} s; check the control plane"
    ))
}

/// Whether the cluster reports that an object of this name is there already.
pub(crate) fn is_conflict(error: &Error) -> bool {
    code(error) == Some(409) && reason(error) == Some("AlreadyExists")
}

/// Whether the cluster reports that there is no such object.
pub(crate) fn is_missing(error: &Error) -> bool {
    code(error) == Some(404)
}

/// Whether the cluster reports that this miner has no right to do so.
pub(crate) fn is_forbidden(error: &Error) -> bool {
    code(error) == Some(403)
}

fn code(error: &Error) -> Option<u16> {
    if let Error::Api(status) = error {
        Some(status.code)
    } else {
        None
    }
}

fn reason(error: &Error) -> Option<&str> {
    if let Error::Api(status) = error {
        Some(&status.reason)
    } else {
        None
    }
}

fn of_status(what: &str, status: &Status) -> EngineError {
    let said = words(&status.message);
    let refused = |advice: &str| {
        EngineError::Refused(format!(
            "Kubernetes refused to {what} (status {}: {said}); {advice}",
            status.code
        ))
    };
    match status.code {
        401 => refused("the kubeconfig's token or certificate is not valid any more; renew it"),
        403 if said.contains("exceeded quota") => {
            refused("raise the namespace's ResourceQuota, or lower the pool's count")
        }
        403 if is_denial(&said) => {
            refused("a policy of the cluster denies it; change the pod template, or the policy")
        }
        403 => refused(
            "give the miner's account the rights of `muster miner manifests kubernetes`, with kubectl apply",
        ),
        404 => refused("create the namespace, or set the right one"),
        // Everything that means "later", and everything that means that the control plane itself is not well.
        408 | 409 | 425 | 429 => unreachable(what, status.code, &said),
        400..=499 => refused("change the pod template so that the cluster takes it"),
        _ => unreachable(what, status.code, &said),
    }
}

fn unreachable(what: &str, code: u16, said: &str) -> EngineError {
    EngineError::Unreachable(format!(
        "cannot {what}: the Kubernetes API answered status {code} ({said}); look at the control plane if this lasts"
    ))
}

/// Whether an answer 403 comes of an admission policy and not of missing rights.
fn is_denial(said: &str) -> bool {
    said.contains("admission webhook") || said.contains("violates PodSecurity") || !said.contains("cannot ")
}

/// The cluster's text, printable and not endless.
pub(crate) fn words(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = plain.take(MAX_WORDS).collect();
    if text.chars().nth(MAX_WORDS).is_some() {
        short.push('…');
    }
    if short.trim().is_empty() {
        short = "no reason given".to_owned();
    }
    short
}

/// An error and the causes whose text it does not repeat.
fn causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, message: &str) -> EngineError {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::success()
        };
        engine_error("create the pod p", &Error::Api(Box::new(status)))
    }

    #[test]
    fn refusals_say_who_can_change_them() {
        let cases = [
            (401, "Unauthorized", "renew it"),
            (
                403,
                r#"pods is forbidden: User "m" cannot create resource "pods" in the namespace "x""#,
                "kubectl apply",
            ),
            (
                403,
                r#"pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"#,
                "ResourceQuota",
            ),
            (
                403,
                r#"pods "p" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes"#,
                "policy",
            ),
            (403, r#"admission webhook "w" denied the request: no"#, "policy"),
            (404, r#"namespaces "muster" not found"#, "namespace"),
            (422, "Pod is invalid: spec.containers[0].image", "template"),
            (400, "Pod in version v1 cannot be handled", "template"),
        ];
        for (code, message, advice) in cases {
            let EngineError::Refused(text) = error(code, message) else {
                panic!("{code} {message}");
            };
            assert!(
                text.contains(advice) && text.contains("create the pod p"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_control_plane_that_is_not_well_is_asked_again() {
        for code in [408, 409, 429, 500, 502, 503, 504, 0] {
            let found = error(code, "etcdserver: request timed out");
            assert!(matches!(found, EngineError::Unreachable(_)), "{code}: {found}");
        }
        let lost = Error::Service(std::io::Error::other("connection refused").into());
        let EngineError::Unreachable(text) = engine_error("list pods", &lost) else {
            panic!("a lost connection");
        };
        assert!(text.contains("connection refused"), "{text}");
    }

    #[test]
    fn long_and_unprintable_words_are_cut() {
        let text = words(&format!("a\u{1b}[31m\n{}", "x".repeat(5_000)));
        assert!(!text.contains('\u{1b}') && text.chars().count() == MAX_WORDS + 1);
        assert_eq!(words(" \n"), "no reason given");
    }
}

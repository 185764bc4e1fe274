//! The names and labels of objects in a cluster.

use muster_protocol::AttemptId;

/// The label with the miner's name.
pub(crate) const MINER_LABEL: &str = "muster-miner";
/// The label with the pool's name.
pub(crate) const POOL_LABEL: &str = "muster-pool";
/// The label of a node that names its machine.
pub(crate) const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// The container whose program is the executor.
pub(crate) const CONTAINER: &str = "executor";
/// The key of the token in its Secret.
pub(crate) const TOKEN_KEY: &str = "token";

const PREFIX: &str = "muster-";

/// The name of the pod of an attempt, and of its Secret.
pub(crate) fn pod_name(attempt: AttemptId) -> String {
    format!("{PREFIX}{attempt}")
}

/// The attempt of a pod by its name; `None` for a pod of another kind.
pub(crate) fn attempt_of(pod_name: &str) -> Option<AttemptId> {
    pod_name.strip_prefix(PREFIX)?.parse().ok()
}

/// Whether a text may be the value of a label.
pub(crate) fn is_label_value(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Whether a text may be the name of a namespace.
pub(crate) fn is_namespace(text: &str) -> bool {
    is_label_value(text)
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Whether a text may be the name of a node.
pub(crate) fn is_node_name(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| {
            let edge = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            edge(part.as_bytes().first()) && edge(part.as_bytes().last()) && part.bytes().all(plain)
        })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_name_of_a_pod_names_its_attempt() {
        let attempt = AttemptId::from_uuid(Uuid::new_v4());
        assert_eq!(attempt_of(&pod_name(attempt)), Some(attempt));
        for other in ["", "muster-", "muster-miner-0", "nginx"] {
            assert_eq!(attempt_of(other), None, "{other}");
        }
        assert!(is_namespace(&pod_name(attempt)));
    }

    #[test]
    fn names_that_the_cluster_would_refuse_are_known_before() {
        for good in [
            "a",
            "h100-pool_1.eu",
            "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
        ] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a b", "ä", &"x".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
        assert!(is_namespace("gpu-jobs") && !is_namespace("GPU") && !is_namespace("a.b"));
        assert!(is_node_name("ip-10-0-0-1.ec2.internal") && is_node_name("mh1"));
        for bad in ["", "a..b", "A", "-a", "a-.b", "a/b"] {
            assert!(!is_node_name(bad), "{bad}");
        }
    }
}

//! The admission policy that leaves a miner's account the pod of a lease alone.
//!
//! The account starts pods that are privileged, or have the socket of the node's Docker engine. Without a policy a
//! thief of its token starts any image so, and is root on every node.

use std::str::FromStr;

use serde_json::{Value, json};

use crate::manifests::ACCOUNT;
use crate::settings::DockerPlace;
use crate::template::{NODE_ENGINE_COMMAND, OWN_ENGINE_COMMAND};

/// An image that its digest names: `REPOSITORY@sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedImage(String);

/// A text names no image by its digest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no digest: write the image as REPOSITORY@sha256: and 64 hexadecimal digits, since a tag can move"
)]
pub struct NotPinned(String);

impl FromStr for PinnedImage {
    type Err = NotPinned;

    fn from_str(text: &str) -> Result<Self, NotPinned> {
        let is_name = |name: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"./:_-".contains(&byte);
            !name.is_empty() && name.bytes().all(is_letter)
        };
        let is_digest =
            |digest: &str| digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text.split_once("@sha256:") {
            Some((name, digest)) if is_name(name) && is_digest(digest) => Ok(Self(text.to_owned())),
            Some(_) | None => Err(NotPinned(text.to_owned())),
        }
    }
}

fn policy_name(namespace: &str) -> String {
    format!("muster-miner-{namespace}")
}

/// A list of texts in CEL.
fn list_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    format!("[{}]", quoted.join(", "))
}

/// The rules of a pod that the account creates, as expressions of CEL, each with its message.
fn pod_rules(image: &PinnedImage, docker: DockerPlace) -> [(String, &'static str); 8] {
    let PinnedImage(image) = image;
    let command = list_of(match docker {
        DockerPlace::Pod => &OWN_ENGINE_COMMAND,
        DockerPlace::Node => &NODE_ENGINE_COMMAND,
    });
    // A privileged container takes no further right by any other field of its security context.
    let (rights, volumes, processes) = match docker {
        DockerPlace::Pod => (
            "true",
            "false",
            "!has(object.spec.hostPID) || !object.spec.hostPID",
        ),
        DockerPlace::Node => (
            "!has(c.securityContext)",
            "has(v.hostPath) && v.hostPath.path in ['/var/run/docker.sock', '/var/lib/muster']",
            "true",
        ),
    };
    [
        (
            format!(
                "object.spec.containers.size() == 1 && object.spec.containers.all(c, c.image == '{image}' && \
                 has(c.command) && c.command == {command} && !has(c.args))"
            ),
            "a lease's pod has one container, which runs `muster executor` from the pinned image",
        ),
        (
            format!(
                "object.spec.containers.all(c, !has(c.lifecycle) && !has(c.livenessProbe) && \
                 !has(c.readinessProbe) && !has(c.startupProbe) && {rights})"
            ),
            "a lease's pod runs no further commands and takes no further rights",
        ),
        (
            "!has(object.spec.initContainers) && !has(object.spec.ephemeralContainers)".to_owned(),
            "a lease's pod has no further containers",
        ),
        (
            format!(
                "!has(object.spec.volumes) || object.spec.volumes.all(v, has(v.emptyDir) || ({volumes}))"
            ),
            "a lease's pod mounts folders of its own, with an engine on the node that one's socket and the folder of \
             jobs, and nothing else of the node or the cluster",
        ),
        (
            processes.to_owned(),
            "a lease's pod with an engine of its own does not see the processes of its node",
        ),
        (
            "!has(object.spec.hostIPC) || !object.spec.hostIPC".to_owned(),
            "a lease's pod does not share the memory of its node",
        ),
        (
            "has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken"
                .to_owned(),
            "a lease's pod gets no token of the cluster",
        ),
        (
            "object.spec.containers.all(c, !has(c.envFrom) && (!has(c.env) || c.env.all(e, \
             e.name in ['MINER_ADDRESS', 'RUST_LOG'] && has(e.value) || e.name == 'EXECUTOR_TOKEN' && \
             has(e.valueFrom) && has(e.valueFrom.secretKeyRef) && \
             e.valueFrom.secretKeyRef.name == object.metadata.name)))"
                .to_owned(),
            "a lease's pod has the miner's address, the token of its own Secret, and no other variables",
        ),
    ]
}

/// The policy of a namespace, for `kubectl apply`.
pub(crate) fn admission_policy(namespace: &str, image: &PinnedImage, docker: DockerPlace) -> Value {
    let validations: Vec<Value> = pod_rules(image, docker)
        .into_iter()
        .map(|(expression, message)| json!({"expression": expression, "message": message}))
        .collect();
    let is_miner = format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{ACCOUNT}'");
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy_name(namespace)},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"]
            }]},
            "matchConditions": [{"name": "by-the-miner", "expression": is_miner}],
            "validations": validations
        }
    })
}

/// The binding of the policy to its namespace.
pub(crate) fn policy_binding(namespace: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": policy_name(namespace)},
        "spec": {
            "policyName": policy_name(namespace),
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;
    use std::time::Duration;

    use cel::{Context, Program};

    use super::*;
    use crate::pod_spec;
    use crate::template::PodTemplate;

    fn image() -> String {
        format!("registry.example.org:5000/muster@sha256:{}", "ab".repeat(32))
    }

    /// The pod that the engine creates for a lease.
    fn lease_pod(docker: DockerPlace) -> Value {
        let template = PodTemplate::load(docker, Path::new(""), &image()).unwrap();
        let order = pod_spec::tests::order(Duration::from_secs(60));
        let pod = pod_spec::pod(&template, &BTreeMap::new(), &order, &BTreeSet::new());
        serde_json::to_value(pod).unwrap()
    }

    /// The messages of the rules that refuse a pod of this user.
    fn refusals(docker: DockerPlace, pod: &Value, user: &str) -> Vec<String> {
        let policy = admission_policy("gpu-jobs", &image().parse().unwrap(), docker);
        let mut context = Context::default();
        context.add_variable("object", pod.clone()).unwrap();
        let request = json!({"userInfo": {"username": user}});
        context.add_variable("request", request).unwrap();
        let holds = |expression: &Value| {
            let program = Program::compile(expression.as_str().unwrap()).unwrap();
            // An expression that fails refuses, too: the policy's failures do.
            program.execute(&context) == Ok(true.into())
        };
        if !holds(&policy["spec"]["matchConditions"][0]["expression"]) {
            return Vec::new();
        }
        let rules = policy["spec"]["validations"].as_array().unwrap();
        let broken = rules.iter().filter(|rule| !holds(&rule["expression"]));
        broken
            .map(|rule| rule["message"].as_str().unwrap().to_owned())
            .collect()
    }

    const MINER: &str = "system:serviceaccount:gpu-jobs:muster-miner";

    #[test]
    fn the_pod_of_a_lease_is_admitted_and_other_users_are_not_judged() {
        let other = json!({"metadata": {"name": "x"}, "spec": {"containers": [{"image": "alpine"}]}});
        for docker in [DockerPlace::Pod, DockerPlace::Node] {
            assert_eq!(refusals(docker, &lease_pod(docker), MINER), Vec::<String>::new());
            assert_eq!(refusals(docker, &other, "system:admin"), Vec::<String>::new());
            assert!(!refusals(docker, &other, MINER).is_empty());
        }
        for (place, other) in [
            (DockerPlace::Pod, DockerPlace::Node),
            (DockerPlace::Node, DockerPlace::Pod),
        ] {
            assert!(!refusals(place, &lease_pod(other), MINER).is_empty());
        }
    }

    #[test]
    fn a_thief_of_the_accounts_token_gets_no_other_pod() {
        let changes: [(&str, Value); 14] = [
            ("/spec/containers/0/image", json!("alpine")),
            (
                "/spec/containers/0/image",
                json!("registry.example.org:5000/muster:1"),
            ),
            (
                "/spec/containers/0/command",
                json!(["sh", "-c", "docker run --privileged"]),
            ),
            ("/spec/containers/0/command", json!(null)),
            (
                "/spec/containers/0/args",
                json!(["--config", "/var/lib/muster/x"]),
            ),
            (
                "/spec/containers/0/lifecycle",
                json!({"postStart": {"exec": {"command": ["sh"]}}}),
            ),
            (
                "/spec/containers/0/livenessProbe",
                json!({"exec": {"command": ["sh"]}}),
            ),
            (
                "/spec/containers/1",
                json!({"name": "b", "image": image(), "command": ["muster", "executor"]}),
            ),
            ("/spec/initContainers", json!([{"name": "b", "image": "alpine"}])),
            (
                "/spec/volumes/2",
                json!({"name": "root", "hostPath": {"path": "/"}}),
            ),
            (
                "/spec/volumes/2",
                json!({"name": "s", "secret": {"secretName": "muster-invitation"}}),
            ),
            ("/spec/hostIPC", json!(true)),
            ("/spec/automountServiceAccountToken", json!(true)),
            (
                "/spec/containers/0/env/2",
                json!({"name": "EXECUTOR_TOKEN", "valueFrom": {"secretKeyRef": {"name": "muster-invitation", "key": "t"}}}),
            ),
        ];
        let of_both = changes.into_iter().flat_map(|(place, value)| {
            [DockerPlace::Pod, DockerPlace::Node].map(|docker| (docker, place, value.clone()))
        });
        let privileged = json!({"privileged": true});
        let socket = json!({"name": "s", "hostPath": {"path": "/var/run/docker.sock"}});
        let of_one = [
            (
                DockerPlace::Node,
                "/spec/containers/0/securityContext",
                privileged,
            ),
            (DockerPlace::Pod, "/spec/volumes/2", socket),
            (DockerPlace::Pod, "/spec/hostPID", json!(true)),
        ];
        for (docker, place, value) in of_both.chain(of_one) {
            let mut pod = lease_pod(docker);
            let (parent, key) = place.rsplit_once('/').unwrap();
            match (pod.pointer_mut(parent).unwrap(), value) {
                (Value::Array(items), value) => items.push(value),
                (Value::Object(fields), Value::Null) => drop(fields.remove(key)),
                (Value::Object(fields), value) => drop(fields.insert(key.to_owned(), value)),
                (other, _) => panic!("{parent} is {other}"),
            }
            assert_eq!(refusals(docker, &pod, MINER).len(), 1, "{place}: {pod}");
        }
    }

    #[test]
    fn an_image_without_a_digest_is_refused_with_the_form_that_is_wanted() {
        for text in [
            "muster",
            "muster:1",
            "muster@sha256:ab",
            "mu'ster@sha256:",
            "@sha256:",
        ] {
            let error = text.parse::<PinnedImage>().unwrap_err().to_string();
            assert!(error.contains("REPOSITORY@sha256:"), "{error}");
        }
        let quoted = format!("a' || true || 'b@sha256:{}", "ab".repeat(32));
        assert!(
            quoted.parse::<PinnedImage>().is_err(),
            "it would leave the expression"
        );
        assert!(image().parse::<PinnedImage>().is_ok());
    }
}

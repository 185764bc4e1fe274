//! The manifests that an operator applies to a cluster, as text for `kubectl apply -f -`.

use muster_protocol::ExecutorClass;
use serde_json::{Value, json};

use crate::admission_policy::{PinnedImage, admission_policy, policy_binding};
use crate::object_names::CONTAINER;
use crate::settings::DockerPlace;
use crate::template::{NODE_ENGINE_COMMAND, OWN_ENGINE_COMMAND, built_in, lay_over};

/// The service account of a miner that uses the cluster.
pub const ACCOUNT: &str = "muster-miner";
/// The Secret from which persistent executors take their invitation, and its key.
pub const INVITATION: &str = "muster-invitation";

/// The folder of a node in which a persistent executor that brings its engine keeps its membership file, and nothing
/// else: every other folder of its pod goes with the pod.
const MEMBERSHIP_FOLDER: &str = "/var/lib/muster-membership";
const CONFIG: &str = "/etc/muster/executor.toml";

/// The wishes of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestOptions {
    /// The namespace of the pods.
    pub namespace: String,
    /// Whether the miner starts a pod for each lease, for which it needs an account.
    pub starts_leases: bool,
    /// Whether the miner may list the cluster's nodes, by which it knows how many executors find room.
    pub list_nodes: bool,
    /// The place of the Docker engine of all executors.
    pub docker: DockerPlace,
    /// The image by digest that pods of leases run, and no other. Without one the account may start any pod.
    pub lease_image: Option<PinnedImage>,
    /// A persistent executor on each node.
    pub persistent: Option<PersistentExecutors>,
}

/// Executors that stay on the nodes of a cluster: one on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentExecutors {
    /// The image with the program `muster` and a shell.
    pub image: String,
    /// The class with which the miner enrolls them.
    pub class: ExecutorClass,
    /// Jobs that each of them runs at once.
    pub capacity: u32,
    /// GPUs of the resource `nvidia.com/gpu` that each of them takes; 0 for none.
    pub gpus: u32,
}

/// A text could not be written as YAML, which is a defect of this crate.
#[derive(Debug, thiserror::Error)]
#[error("a manifest cannot be written as YAML: {0}")]
pub struct ManifestError(String);

/// The manifests as YAML, each under a comment that states what it is for.
///
/// # Errors
/// A manifest cannot be written as YAML.
pub fn manifests(options: &ManifestOptions) -> Result<String, ManifestError> {
    let namespace = options.namespace.as_str();
    let mut documents = vec![(
        "The namespace of the executors. They are privileged or mount folders of their nodes, which a stricter level \
         forbids.",
        namespace_of(namespace),
    )];
    if options.starts_leases {
        documents.extend([
            ("The account of the miner.", account(namespace)),
            (
                "The miner's rights: it starts, watches and removes pods, reads their logs, and gives each its token. \
                 It cannot read Secrets.",
                role(namespace),
            ),
            (
                "The account has those rights in this namespace.",
                role_binding(namespace),
            ),
        ]);
    }
    if options.starts_leases && options.list_nodes {
        documents.extend([
            (
                "Nodes belong to no namespace. Without this right the miner takes the configured count for its places.",
                cluster_role(),
            ),
            ("The account has that right.", cluster_role_binding(namespace)),
        ]);
    }
    if let Some(image) = &options.lease_image {
        documents.extend([
            (
                "The account starts pods that are as powerful as root on their node, and so would a thief of its token. \
                 This policy leaves it the one pod that a lease needs: this image, this command, and the folders of \
                 an executor. It needs Kubernetes 1.30.",
                admission_policy(namespace, image, options.docker),
            ),
            ("The policy holds in this namespace.", policy_binding(namespace)),
        ]);
    }
    if let Some(persistent) = &options.persistent {
        documents.extend([
            ("The configuration of the persistent executors.", config_map(namespace, persistent, options.docker)),
            (
                "A persistent executor on each node. It enrolls once, with the token of the Secret muster-invitation, \
                 and keeps its key on the node. A new version starts on a node when its pod is deleted there.",
                daemon_set(namespace, persistent, options.docker),
            ),
        ]);
    }
    let mut text = String::new();
    for (comment, document) in documents {
        let yaml = serde_saphyr::to_string(&document).map_err(|error| ManifestError(error.to_string()))?;
        text.push_str("---\n");
        for line in wrapped(comment) {
            text.push_str("# ");
            text.push_str(&line);
            text.push('\n');
        }
        text.push_str(yaml.trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// Lines of at most 100 characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len().saturating_add(word.len()) < 100 => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

fn namespace_of(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}
    })
}

fn account(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": namespace}
    })
}

fn role(namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ACCOUNT, "namespace": namespace},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
        ]
    })
}

fn role_binding(namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": ACCOUNT, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]
    })
}

fn cluster_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "muster-miner-nodes"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    })
}

fn cluster_role_binding(namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        // One for each namespace: a second pool must not take the right of the first one away.
        "metadata": {"name": format!("muster-miner-nodes-{namespace}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "muster-miner-nodes"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]
    })
}

/// The file by which a persistent executor is known to its miner. It lies on the node, so it outlives the pod.
fn membership(docker: DockerPlace) -> String {
    match docker {
        DockerPlace::Pod => format!("{MEMBERSHIP_FOLDER}/executor.json"),
        DockerPlace::Node => "/var/lib/muster/executor-membership.json".to_owned(),
    }
}

fn config_map(namespace: &str, persistent: &PersistentExecutors, docker: DockerPlace) -> Value {
    let config = format!(
        "[standing]\nmembership = \"{}\"\nclass = \"{}\"\ncapacity = {}\n",
        membership(docker),
        persistent.class,
        persistent.capacity
    );
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "muster-executor", "namespace": namespace},
        "data": {"executor.toml": config}
    })
}

/// The built-in pod of an executor, kept on each node.
fn daemon_set(namespace: &str, persistent: &PersistentExecutors, docker: DockerPlace) -> Value {
    let labels = json!({"app.kubernetes.io/name": "muster-persistent-executor"});
    let words = match docker {
        DockerPlace::Pod => OWN_ENGINE_COMMAND.as_slice(),
        DockerPlace::Node => NODE_ENGINE_COMMAND.as_slice(),
    };
    let command = [words, &["--config", CONFIG, "--persistent"]].concat();
    let membership = membership(docker);
    let enroll = format!(
        "[ -e {membership} ] || exec muster executor --config {CONFIG} --enroll \"$INVITATION\" --name \"$NODE_NAME\""
    );
    let resources = if persistent.gpus > 0 {
        json!({"requests": null, "limits": {"nvidia.com/gpu": persistent.gpus.to_string()}})
    } else {
        Value::Null
    };
    let mut spec = built_in(docker)
        .get_mut("spec")
        .map(Value::take)
        .unwrap_or_default();
    lay_over(
        &mut spec,
        json!({
            "terminationGracePeriodSeconds": 60,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [{
                "name": CONTAINER,
                "image": persistent.image,
                "command": command,
                "resources": resources,
                "volumeMounts": [{"name": "config", "mountPath": "/etc/muster", "readOnly": true}]
            }],
            "volumes": [{"name": "config", "configMap": {"name": "muster-executor"}}]
        }),
    );
    if docker == DockerPlace::Pod {
        let folder = json!({"path": MEMBERSHIP_FOLDER, "type": "DirectoryOrCreate"});
        let mounts = json!([{"name": "membership", "mountPath": MEMBERSHIP_FOLDER}]);
        lay_over(
            &mut spec,
            json!({
                "containers": [{"name": CONTAINER, "volumeMounts": mounts}],
                "volumes": [{"name": "membership", "hostPath": folder}]
            }),
        );
    }
    let mounts = spec.pointer("/containers/0/volumeMounts").cloned();
    let first = json!([{
        "name": "enroll",
        "image": persistent.image,
        "command": ["sh", "-ec", enroll],
        "env": [
            {"name": "INVITATION", "valueFrom": {"secretKeyRef": {"name": INVITATION, "key": "token"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        ],
        "volumeMounts": mounts
    }]);
    lay_over(&mut spec, json!({"initContainers": first}));
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "muster-executor", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": labels}, "spec": spec}
        }
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::rbac::v1::{ClusterRole, Role};

    use super::*;

    fn pinned() -> PinnedImage {
        let digest = "ab".repeat(32);
        format!("registry.example.org/muster@sha256:{digest}")
            .parse()
            .unwrap()
    }

    fn all() -> ManifestOptions {
        ManifestOptions {
            namespace: "gpu-jobs".to_owned(),
            starts_leases: true,
            list_nodes: true,
            docker: DockerPlace::Pod,
            lease_image: Some(pinned()),
            persistent: Some(PersistentExecutors {
                image: "registry.example.org/muster:1".to_owned(),
                class: ExecutorClass::AlwaysOnTest,
                capacity: 2,
                gpus: 8,
            }),
        }
    }

    fn documents(options: &ManifestOptions) -> Vec<Value> {
        let text = manifests(options).unwrap();
        text.split("---\n")
            .filter(|document| !document.is_empty())
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect()
    }

    fn of_kind(kind: &str) -> Value {
        let mut found = documents(&all())
            .into_iter()
            .filter(|document| document["kind"] == kind);
        found.next().unwrap()
    }

    #[test]
    fn the_miner_has_these_rights_and_no_other() {
        let role: Role = serde_json::from_value(of_kind("Role")).unwrap();
        let rights: Vec<String> = role
            .rules
            .unwrap()
            .iter()
            .map(|rule| {
                format!(
                    "{}: {}",
                    rule.resources.clone().unwrap().join(","),
                    rule.verbs.join(",")
                )
            })
            .collect();
        let wanted = [
            "pods: create,get,list,watch,delete",
            "pods/log: get",
            "secrets: create",
        ];
        assert_eq!(rights, wanted);
        let nodes: ClusterRole = serde_json::from_value(of_kind("ClusterRole")).unwrap();
        assert_eq!(nodes.rules.unwrap()[0].verbs, ["list"]);
    }

    #[test]
    fn a_persistent_executor_has_the_folders_of_its_engine() {
        let pod = |docker| {
            let persistent = all().persistent.unwrap();
            let set: DaemonSet = serde_json::from_value(daemon_set("gpu-jobs", &persistent, docker)).unwrap();
            set.spec.unwrap().template.spec.unwrap()
        };
        let own = pod(DockerPlace::Pod);
        let command = own.containers[0].command.as_ref().unwrap();
        assert_eq!(command[..5], OWN_ENGINE_COMMAND);
        assert_eq!(own.host_network, None);
        let volumes = own.volumes.unwrap();
        let of_the_node = volumes.iter().filter_map(|volume| volume.host_path.as_ref());
        let of_the_node: Vec<&str> = of_the_node.map(|folder| folder.path.as_str()).collect();
        assert_eq!(of_the_node, [MEMBERSHIP_FOLDER]);
        let shared = pod(DockerPlace::Node);
        assert_eq!(shared.host_network, Some(true));
        assert_eq!(shared.containers[0].security_context, None);
        assert_eq!(
            shared.containers[0].resources.as_ref().unwrap().requests,
            None,
            "its GPUs alone"
        );
    }

    #[test]
    fn the_persistent_executor_enrolls_once_and_keeps_its_key() {
        let set: DaemonSet = serde_json::from_value(of_kind("DaemonSet")).unwrap();
        let spec = set.spec.unwrap().template.spec.unwrap();
        let enroll = &spec.init_containers.unwrap()[0];
        let command = enroll.command.as_ref().unwrap().join(" ");
        assert!(
            command.contains("[ -e /var/lib/muster-membership/executor.json ]"),
            "{command}"
        );
        let limits = spec.containers[0].resources.clone().unwrap().limits.unwrap();
        assert_eq!(limits["nvidia.com/gpu"].0, "8");
        let config = of_kind("ConfigMap")["data"]["executor.toml"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            config.contains("class = \"always_on.test\"\ncapacity = 2\n"),
            "{config}"
        );
    }

    #[test]
    fn only_wanted_manifests_are_printed_each_in_the_namespace() {
        let least = ManifestOptions {
            list_nodes: false,
            lease_image: None,
            persistent: None,
            ..all()
        };
        assert_eq!(documents(&least).len(), 4);
        let kinds: Vec<String> = documents(&ManifestOptions {
            starts_leases: false,
            lease_image: None,
            ..all()
        })
        .iter()
        .map(|document| document["kind"].as_str().unwrap().to_owned())
        .collect();
        assert_eq!(
            kinds,
            ["Namespace", "ConfigMap", "DaemonSet"],
            "without an account"
        );
        let all = documents(&all());
        assert_eq!(all.len(), 10);
        for document in all {
            let metadata = &document["metadata"];
            let names = [
                &metadata["namespace"],
                &metadata["name"],
                &document["subjects"][0]["namespace"],
                &document["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"],
            ];
            let inside = names.iter().any(|name| **name == "gpu-jobs");
            let is_of_cluster =
                ["ClusterRole", "ValidatingAdmissionPolicy"].contains(&document["kind"].as_str().unwrap());
            assert!(inside || is_of_cluster, "{document}");
        }
    }

    #[test]
    fn every_manifest_has_a_comment_and_no_line_is_long() {
        let text = manifests(&all()).unwrap();
        assert_eq!(text.matches("---\n# ").count(), 10);
        assert!(
            text.lines()
                .filter(|line| line.starts_with('#'))
                .all(|line| line.len() <= 104)
        );
    }
}

//! The template of the pods: the built-in one, and the operator's laid over it.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value, json};

use crate::object_names::CONTAINER;
use crate::settings::DockerPlace;

/// The command of an executor with an engine of its own. The first program removes the processes whose parents have
/// ended: an engine leaves some behind.
pub(crate) const OWN_ENGINE_COMMAND: [&str; 5] = ["tini", "--", "muster", "executor", "--with-engine"];
/// The command of an executor with the engine of its node.
pub(crate) const NODE_ENGINE_COMMAND: [&str; 2] = ["muster", "executor"];

/// Bytes of a template's file, at most.
const MAX_BYTES: u64 = 1 << 20;

/// The way in which a template is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The file cannot be read.
    #[error("cannot read the pod template {path}: {source}")]
    Read {
        /// The file that `template` names.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The text is no pod template.
    #[error("the pod template {path} is of no use: {reason}")]
    Content {
        /// The file that `template` names.
        path: PathBuf,
        /// The reason as text.
        reason: String,
    },
    /// No image is named.
    #[error("must name the image of the executor's container, here or in the pod template")]
    NoImage,
}

/// A checked template: what all pods of a pool have in common.
#[derive(Clone, Debug)]
pub(crate) struct PodTemplate {
    pod: PodTemplateSpec,
}

impl PodTemplate {
    /// Reads the operator's template, unless `path` is empty, and lays it over the built-in one of `docker`. An `image`
    /// that is not empty takes the place of the template's.
    pub(crate) fn load(docker: DockerPlace, path: &Path, image: &str) -> Result<Self, TemplateError> {
        let mut value = built_in(docker);
        if !path.as_os_str().is_empty() {
            let text = read(path)?;
            let content = |reason| TemplateError::Content {
                path: path.to_owned(),
                reason,
            };
            lay_over(&mut value, parse(&text).map_err(content)?);
            Self::check_fields(&value).map_err(content)?;
        }
        let mut pod: PodTemplateSpec =
            serde_json::from_value(value).map_err(|error| TemplateError::Content {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
        let mut executors = containers.filter(|container| container.name == CONTAINER);
        let Some(executor) = executors.next() else {
            return Err(TemplateError::NoImage);
        };
        if !image.is_empty() {
            executor.image = Some(image.to_owned());
        }
        if executor.image.as_deref().unwrap_or_default().is_empty() {
            return Err(TemplateError::NoImage);
        }
        Ok(Self { pod })
    }

    /// The template as the cluster's types hold it.
    pub(crate) fn pod(&self) -> &PodTemplateSpec {
        &self.pod
    }

    /// Checks that each field is one of a pod, and none that the engine sets itself.
    fn check_fields(value: &Value) -> Result<(), String> {
        let spec = value.get("spec").unwrap_or(&Value::Null);
        for field in ["restartPolicy", "activeDeadlineSeconds", "nodeName"] {
            if spec.get(field).is_some() {
                return Err(format!(
                    "it must not set spec.{field}, which is set for each lease"
                ));
            }
        }
        let typed: PodTemplateSpec =
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
        let known = serde_json::to_value(typed).map_err(|error| error.to_string())?;
        match first_unknown(value, &known, String::new()) {
            Some(path) => Err(format!("a pod has no field `{path}`; check its spelling")),
            None => Ok(()),
        }
    }
}

/// The pod of an executor, to which others are laid over.
pub(crate) fn built_in(docker: DockerPlace) -> Value {
    let mut template = json!({
        "metadata": {"labels": {"app.kubernetes.io/name": "muster-executor"}},
        "spec": {
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 30,
            "containers": [{
                "name": CONTAINER,
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}
            }]
        }
    });
    let spec = match docker {
        DockerPlace::Pod => with_own_engine(),
        DockerPlace::Node => with_the_engine_of_its_node(),
    };
    lay_over(&mut template, json!({"spec": spec}));
    template
}

/// An executor that runs its jobs in a Docker engine inside its own container. Both have the same mounts, processes and
/// network, and nothing of the node is mounted. An engine needs a privileged container.
///
/// The folders are on the node's disk, since an engine cannot lay its images over those of a container. Their sizes
/// hold an executor's default bounds: an image of 100 GiB unpacked, and the disk of one job beside 20 GiB of kept
/// inputs. The cluster ends a pod that exceeds them.
fn with_own_engine() -> Value {
    json!({
        "containers": [{
            "name": CONTAINER,
            "command": OWN_ENGINE_COMMAND,
            "securityContext": {"privileged": true},
            "volumeMounts": [
                {"name": "engine", "mountPath": "/var/lib/docker"},
                {"name": "work", "mountPath": "/var/lib/muster"}
            ]
        }],
        "volumes": [
            {"name": "engine", "emptyDir": {"sizeLimit": "120Gi"}},
            {"name": "work", "emptyDir": {"sizeLimit": "60Gi"}}
        ]
    })
}

/// An executor that runs its jobs in the Docker engine of its node. The folder of jobs has the same path inside and
/// outside, since the engine mounts parts of it into the containers of jobs.
///
/// It has the network and the processes of its node. Clients of streaming sessions dial the executor, and it looks at
/// the process that listens in a job's container. Neither adds to what the engine's socket already gives.
fn with_the_engine_of_its_node() -> Value {
    json!({
        "hostNetwork": true,
        "hostPID": true,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "containers": [{
            "name": CONTAINER,
            "command": NODE_ENGINE_COMMAND,
            "volumeMounts": [
                {"name": "docker-socket", "mountPath": "/var/run/docker.sock"},
                {"name": "work", "mountPath": "/var/lib/muster"}
            ]
        }],
        "volumes": [
            {"name": "docker-socket", "hostPath": {"path": "/var/run/docker.sock", "type": "Socket"}},
            {"name": "work", "hostPath": {"path": "/var/lib/muster", "type": "DirectoryOrCreate"}}
        ]
    })
}

fn read(path: &Path) -> Result<String, TemplateError> {
    let failed = |source| TemplateError::Read {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_BYTES {
        let text = format!("it has {size} bytes, and a pod template has at most {MAX_BYTES}");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, text)));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Reads YAML, of which JSON is a part: a pod template (`metadata`, `spec`), a pod, or the spec of one alone.
fn parse(text: &str) -> Result<Value, String> {
    let value: Value = serde_saphyr::from_str(text).map_err(|error| first_line(&error.to_string()))?;
    let Value::Object(mut fields) = value else {
        return Err("it is not a mapping with the key `spec`".to_owned());
    };
    let mut template = if fields.contains_key("spec") || fields.contains_key("metadata") {
        for (key, wanted) in [("apiVersion", "v1"), ("kind", "Pod")] {
            if fields.shift_remove(key).is_some_and(|value| value != wanted) {
                return Err(format!(
                    "its {key} is not {wanted}; write a pod's metadata and spec"
                ));
            }
        }
        Value::Object(fields)
    } else {
        json!({"spec": fields})
    };
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| key != "name" && key != "namespace");
    }
    quantities_as_text(&mut template);
    Ok(template)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// People write `nvidia.com/gpu: 1`; the types take text.
fn quantities_as_text(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if !matches!(key.as_str(), "limits" | "requests" | "overhead") {
                    quantities_as_text(value);
                    continue;
                }
                let amounts = value.as_object_mut().into_iter().flat_map(Map::values_mut);
                for amount in amounts.filter(|amount| amount.is_number()) {
                    *amount = Value::String(amount.to_string());
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quantities_as_text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Lays `over` onto `base`: mappings key by key, where `null` removes a key; lists whose entries have names
/// (containers, volumes, variables) or paths (mounts) entry by entry; everything else is replaced.
pub(crate) fn lay_over(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    base.shift_remove(&key);
                } else {
                    lay_over(base.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (base @ Value::Null, Value::Object(over)) => {
            *base = Value::Object(Map::new());
            lay_over(base, Value::Object(over));
        }
        (Value::Array(base), Value::Array(over)) if !base.is_empty() && over.iter().all(has_key) => {
            for value in over {
                match base.iter_mut().find(|entry| key_of(entry) == key_of(&value)) {
                    Some(entry) => lay_over(entry, value),
                    None => base.push(value),
                }
            }
        }
        (base, over) => *base = over,
    }
}

/// The key of a list's entry: a mount's path, else its name.
fn key_of(entry: &Value) -> Option<&Value> {
    entry.get("mountPath").or_else(|| entry.get("name"))
}

fn has_key(entry: &Value) -> bool {
    key_of(entry).is_some()
}

/// The path of the first field of `written` that `known` does not have.
fn first_unknown(written: &Value, known: &Value, path: String) -> Option<String> {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => written.iter().find_map(|(key, value)| {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            match known.get(key) {
                Some(known) => first_unknown(value, known, path),
                // The types leave empty lists and mappings out.
                None if is_empty(value) => None,
                None => Some(path),
            }
        }),
        (Value::Array(written), Value::Array(known)) => written
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(index, (value, known))| first_unknown(value, known, format!("{path}[{index}]"))),
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(text: &str) -> Result<PodTemplate, TemplateError> {
        let folder = tempfile::tempdir().unwrap();
        let template = folder.path().join("template.yaml");
        std::fs::write(&template, text).unwrap();
        PodTemplate::load(DockerPlace::Node, &template, "muster:1")
    }

    fn reason(text: &str) -> String {
        load(text).unwrap_err().to_string()
    }

    #[test]
    fn an_operator_writes_only_the_differences() {
        let template = load(
            "spec:\n  nodeSelector: {gpu: h100}\n  tolerations: [{key: nvidia.com/gpu, operator: Exists}]\n  \
             containers:\n  - name: executor\n    resources: {limits: {nvidia.com/gpu: 1}}\n    \
             env: [{name: NVIDIA_DRIVER_CAPABILITIES, value: all}]\n",
        );
        let pod = template.unwrap().pod().clone();
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_selector.unwrap()["gpu"], "h100");
        let [executor] = spec.containers.as_slice() else {
            panic!("one container");
        };
        assert_eq!(executor.image.as_deref(), Some("muster:1"));
        let resources = executor.resources.clone().unwrap();
        assert_eq!(resources.limits.unwrap()["nvidia.com/gpu"].0, "1");
        assert_eq!(resources.requests.unwrap()["cpu"].0, "1");
        assert_eq!(executor.volume_mounts.as_ref().unwrap().len(), 2);
        assert_eq!(spec.volumes.unwrap().len(), 2);
    }

    #[test]
    fn parts_of_the_built_in_template_can_be_replaced_and_removed() {
        let template = load(
            r#"{"containers": [{"name": "executor", "resources": null, "command": ["sh"]},
                               {"name": "docker", "image": "docker:dind"}],
                "volumes": [{"name": "docker-socket", "hostPath": null, "emptyDir": {}}]}"#,
        );
        let spec = template.unwrap().pod().spec.clone().unwrap();
        assert_eq!(spec.containers.len(), 2);
        assert_eq!(spec.containers[0].resources, None);
        assert_eq!(spec.containers[0].command.as_ref().unwrap(), &["sh"]);
        let volumes = spec.volumes.unwrap();
        assert!(volumes[0].empty_dir.is_some() && volumes[0].host_path.is_none());
        assert!(volumes[1].host_path.is_some());
    }

    #[test]
    fn a_mistake_is_found_before_any_lease() {
        let unknown = reason(
            "spec:\n  containers:\n  - name: executor\n    resource: {}\n    imagePullPolicies: Always\n",
        );
        assert!(
            unknown.contains("spec.containers[0].imagePullPolicies"),
            "{unknown}"
        );
        assert!(reason("spec: {tolerationss: [{}]}").contains("spec.tolerationss"));
        assert!(reason("spec: {restartPolicy: Always}").contains("spec.restartPolicy"));
        assert!(reason("kind: Deployment\nspec: {}").contains("kind is not Pod"));
        assert!(reason("- a").contains("not a mapping"));
        assert!(reason("spec: {hostNetwork: 7}").contains("of no use"));
        assert!(reason("spec: [").contains("of no use"));
    }

    #[test]
    fn a_pod_with_its_own_engine_takes_nothing_of_its_node() {
        let template = PodTemplate::load(DockerPlace::Pod, Path::new(""), "muster:1").unwrap();
        let spec = template.pod().spec.clone().unwrap();
        assert_eq!(
            (spec.host_network, spec.host_pid, spec.host_ipc),
            (None, None, None)
        );
        for volume in spec.volumes.unwrap() {
            let folder = volume
                .empty_dir
                .unwrap_or_else(|| panic!("{} is not the pod's own", volume.name));
            assert!(folder.size_limit.is_some(), "{} has no bound", volume.name);
        }
    }

    #[test]
    fn a_template_without_an_image_says_so() {
        let error = PodTemplate::load(DockerPlace::Pod, Path::new(""), "").unwrap_err();
        assert!(matches!(error, TemplateError::NoImage));
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(text in ".{0,200}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_template_laid_over_itself_changes_nothing(docker in prop_oneof![
            Just(DockerPlace::Pod), Just(DockerPlace::Node)
        ]) {
            let mut value = built_in(docker);
            lay_over(&mut value, built_in(docker));
            prop_assert_eq!(value, built_in(docker));
        }
    }
}

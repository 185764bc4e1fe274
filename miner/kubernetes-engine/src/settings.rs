//! The settings of a cluster, as an operator writes them.

use std::path::PathBuf;

use muster_process::config::Problem;
use serde::Deserialize;

use crate::object_names::is_namespace;
use crate::template::{PodTemplate, TemplateError};

/// The place of the Docker engine in which an executor runs its jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DockerPlace {
    /// In the pod, beside the executor: the node needs none.
    #[default]
    Pod,
    /// On the node, whose socket the pod mounts.
    Node,
}

/// The cluster in which a pool's executors start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesSettings {
    /// The kubeconfig file. Empty: the file that `KUBECONFIG` names, `~/.kube/config`, or the service account of the
    /// pod in which the miner runs, whichever is there first.
    pub kubeconfig: PathBuf,
    /// The context in the kubeconfig; its current one if this is empty.
    pub context: String,
    /// The namespace of the pods.
    pub namespace: String,
    /// The place of the Docker engine.
    pub docker: DockerPlace,
    /// A file with an operator's pod template, YAML or JSON, which is laid over the built-in one. Empty: the built-in
    /// one as it is.
    pub template: PathBuf,
    /// The image of the executor's container. Empty: the one that the template names.
    pub image: String,
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self {
            kubeconfig: PathBuf::new(),
            context: String::new(),
            namespace: "muster".to_owned(),
            docker: DockerPlace::Pod,
            template: PathBuf::new(),
            image: String::new(),
        }
    }
}

impl KubernetesSettings {
    /// The problems of these settings, with `prefix` before the name of each key. The files that they name are read.
    pub fn problems(&self, prefix: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |key: &str, text: String| problems.push(Problem::at(format!("{prefix}.{key}"), text));
        if !self.kubeconfig.as_os_str().is_empty() && !self.kubeconfig.is_file() {
            let shown = self.kubeconfig.display();
            add(
                "kubeconfig",
                format!("there is no file {shown}; name one, or leave it empty"),
            );
        }
        if !is_namespace(&self.namespace) {
            let text = "must be the name of a namespace: 1 to 63 lowercase letters, digits and inner hyphens";
            add("namespace", text.to_owned());
        }
        match PodTemplate::load(self.docker, &self.template, &self.image) {
            Ok(_) => {}
            Err(TemplateError::NoImage) => add("image", TemplateError::NoImage.to_string()),
            Err(error) => add("template", error.to_string()),
        }
        problems
    }
}

/// The way in which an engine cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A value cannot be a label of a pod.
    #[error(
        "the {what} {value:?} cannot be the value of a label in Kubernetes: it takes 1 to 63 letters, digits, `-`, `_` \
         and `.`, with a letter or digit at both ends"
    )]
    Label {
        /// The kind of value.
        what: &'static str,
        /// The value that the operator set.
        value: String,
    },
    /// The pod template is of no use.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No usable kubeconfig and no service account.
    #[error(
        "no access to a Kubernetes cluster: {reason}; check kubeconfig and context, or try `kubectl get pods`"
    )]
    Access {
        /// The reason as text.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_named_with_its_key() {
        let bad = KubernetesSettings {
            kubeconfig: "/no/such/file".into(),
            namespace: "Not A Name".to_owned(),
            ..KubernetesSettings::default()
        };
        let problems: Vec<String> = bad
            .problems("executor.kubernetes")
            .iter()
            .map(ToString::to_string)
            .collect();
        for key in ["kubeconfig", "namespace", "image"] {
            let path = format!("`executor.kubernetes.{key}`");
            assert!(
                problems.iter().any(|text| text.contains(&path)),
                "{key}: {problems:?}"
            );
        }
        assert_eq!(problems.len(), 3);
    }

    #[test]
    fn an_image_is_enough() {
        let good = KubernetesSettings {
            image: "registry.example.org/muster:1".to_owned(),
            ..KubernetesSettings::default()
        };
        assert_eq!(good.problems("k"), []);
    }
}

//! The pod and the Secret of one lease.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, Container, EnvVar, EnvVarSource, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, Pod, Secret, SecretKeySelector,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use muster_provisioning::Order;

use crate::object_names::{
    CONTAINER, HOSTNAME_LABEL, MINER_LABEL, POOL_LABEL, TOKEN_KEY, is_label_value, is_node_name, pod_name,
};
use crate::template::PodTemplate;

/// The labels by which the pods of one pool of one miner are found again.
pub(crate) fn pool_labels(miner: &str, pool: &str) -> BTreeMap<String, String> {
    [(MINER_LABEL, miner), (POOL_LABEL, pool)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The pod of an order. Its program waits for the Secret of the same name.
pub(crate) fn pod(
    template: &PodTemplate,
    labels: &BTreeMap<String, String>,
    order: &Order,
    excluded_hosts: &BTreeSet<String>,
) -> Pod {
    let name = pod_name(order.token.attempt());
    let mut metadata = template.pod().metadata.clone().unwrap_or_default();
    metadata.name = Some(name.clone());
    metadata.namespace = None;
    let all = metadata.labels.get_or_insert_default();
    all.extend(labels.clone());
    let mut spec = template.pod().spec.clone().unwrap_or_default();
    spec.restart_policy = Some("Never".to_owned());
    // The cluster takes seconds from 1 to 2³¹ - 1.
    let seconds = order
        .lasts
        .as_secs()
        .saturating_add(1)
        .min(i32::MAX.unsigned_abs().into());
    spec.active_deadline_seconds = i64::try_from(seconds).ok();
    if let Some(executor) = spec.containers.iter_mut().find(|found| found.name == CONTAINER) {
        set_variables(executor, &order.miner_address, &name);
    }
    exclude(&mut spec.affinity, excluded_hosts);
    Pod {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

/// Sets the variables that `muster executor` reads.
fn set_variables(executor: &mut Container, miner_address: &str, secret: &str) {
    let own = [
        EnvVar {
            name: "MINER_ADDRESS".to_owned(),
            value: Some(miner_address.to_owned()),
            value_from: None,
        },
        EnvVar {
            name: "EXECUTOR_TOKEN".to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                secret_key_ref: Some(SecretKeySelector {
                    name: secret.to_owned(),
                    key: TOKEN_KEY.to_owned(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            }),
        },
    ];
    let variables = executor.env.get_or_insert_default();
    variables.retain(|variable| own.iter().all(|own| own.name != variable.name));
    variables.extend(own);
}

/// Keeps the pod from hosts, by their node's name and by their hostname label, which differ in some clouds.
fn exclude(affinity: &mut Option<Affinity>, hosts: &BTreeSet<String>) {
    let not_in = |key: &str, values: Vec<String>| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(values),
    };
    // A label that cannot be would make the whole term match no node.
    let labels: Vec<String> = hosts
        .iter()
        .filter(|host| is_label_value(host))
        .cloned()
        .collect();
    // The cluster takes one name in each requirement on fields.
    let fields: Vec<NodeSelectorRequirement> = hosts
        .iter()
        .filter(|host| is_node_name(host))
        .map(|host| not_in("metadata.name", vec![host.clone()]))
        .collect();
    let labels: Vec<NodeSelectorRequirement> = (!labels.is_empty())
        .then(|| not_in(HOSTNAME_LABEL, labels))
        .into_iter()
        .collect();
    if labels.is_empty() && fields.is_empty() {
        return;
    }
    let node_affinity: &mut NodeAffinity = affinity
        .get_or_insert_default()
        .node_affinity
        .get_or_insert_default();
    let selector = node_affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(NodeSelector::default);
    if selector.node_selector_terms.is_empty() {
        selector.node_selector_terms.push(NodeSelectorTerm::default());
    }
    // A node is taken if one of the terms holds, so each must exclude the hosts.
    for term in &mut selector.node_selector_terms {
        term.match_expressions
            .get_or_insert_default()
            .extend(labels.iter().cloned());
        term.match_fields
            .get_or_insert_default()
            .extend(fields.iter().cloned());
    }
}

/// The Secret with the token of an order. The cluster removes it once its pod is gone.
pub(crate) fn secret(labels: &BTreeMap<String, String>, order: &Order, pod_uid: &str) -> Secret {
    let name = pod_name(order.token.attempt());
    Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name,
                uid: pod_uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        string_data: Some([(TOKEN_KEY.to_owned(), order.token.to_string())].into()),
        ..Secret::default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::time::Duration;

    use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken};
    use muster_provisioning::Notice;
    use uuid::Uuid;

    use super::*;
    use crate::settings::DockerPlace;

    pub(crate) fn order(lasts: Duration) -> Order {
        Order {
            token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
            class: ExecutorClass::AlwaysOnTest,
            private_image: false,
            miner_address: "ws://10.0.0.1:8092".to_owned(),
            lasts,
            notice: Notice::default(),
        }
    }

    fn template() -> PodTemplate {
        PodTemplate::load(DockerPlace::Pod, Path::new(""), "muster:1").unwrap()
    }

    fn hosts(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_pod_bears_its_pool_and_never_the_token() {
        let order = order(Duration::from_millis(59_500));
        let labels = pool_labels("miner-1", "h100");
        let pod = pod(&template(), &labels, &order, &BTreeSet::new());
        let text = serde_json::to_string(&pod).unwrap();
        assert!(!text.contains(&order.token.to_string()));
        assert_eq!(
            pod.metadata.name,
            Some(format!("muster-{}", order.token.attempt()))
        );
        let all = pod.metadata.labels.unwrap();
        assert_eq!(all[MINER_LABEL], "miner-1");
        assert_eq!(all[POOL_LABEL], "h100");
        assert_eq!(all["app.kubernetes.io/name"], "muster-executor");
        let spec = pod.spec.unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(spec.active_deadline_seconds, Some(60));
        assert_eq!(spec.affinity, None);
        let secret = secret(&labels, &order, "uid-of-the-pod");
        assert_eq!(secret.string_data.unwrap()["token"], order.token.to_string());
        assert_eq!(secret.metadata.owner_references.unwrap()[0].uid, "uid-of-the-pod");
    }

    #[test]
    fn a_lease_without_an_end_has_the_longest_deadline_of_the_cluster() {
        let pod = pod(
            &template(),
            &BTreeMap::new(),
            &order(Duration::MAX),
            &BTreeSet::new(),
        );
        let deadline = pod.spec.unwrap().active_deadline_seconds;
        assert_eq!(deadline, Some(i64::from(i32::MAX)));
    }

    #[test]
    fn excluded_hosts_are_excluded_in_every_term_of_the_operators() {
        let term = |key: &str| NodeSelectorTerm {
            match_expressions: Some(vec![NodeSelectorRequirement {
                key: key.to_owned(),
                operator: "Exists".to_owned(),
                values: None,
            }]),
            match_fields: None,
        };
        let mut affinity = Some(Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                    node_selector_terms: vec![term("a"), term("b")],
                }),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        });
        exclude(&mut affinity, &hosts(&["mh1", "mh2", "no name/at all"]));
        let required = affinity.unwrap().node_affinity.unwrap();
        let terms = required
            .required_during_scheduling_ignored_during_execution
            .unwrap()
            .node_selector_terms;
        assert_eq!(terms.len(), 2);
        for term in terms {
            let expressions = term.match_expressions.unwrap();
            assert_eq!(expressions.len(), 2);
            assert_eq!(expressions[1].key, HOSTNAME_LABEL);
            assert_eq!(expressions[1].values.as_ref().unwrap(), &["mh1", "mh2"]);
            assert_eq!(term.match_fields.unwrap().len(), 2);
        }
    }

    #[test]
    fn hosts_that_cannot_be_nodes_exclude_nothing() {
        let mut affinity = None;
        exclude(&mut affinity, &hosts(&["no name/at all"]));
        assert_eq!(affinity, None);
    }
}

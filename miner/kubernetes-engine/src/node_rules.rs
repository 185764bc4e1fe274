//! Whether a pod may run on a node, as the scheduler decides it: readiness, taints, labels, names.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

use crate::object_names::HOSTNAME_LABEL;

/// Whether pods of this spec may start on the node now.
pub(crate) fn may_start(node: &Node, spec: &PodSpec, excluded_hosts: &BTreeSet<String>) -> bool {
    is_ready(node)
        && !names(node).any(|name| excluded_hosts.contains(name))
        && tolerates(node, spec)
        && is_selected(node, spec)
}

fn names(node: &Node) -> impl Iterator<Item = &String> {
    let labels = node.metadata.labels.as_ref();
    let hostname = labels.and_then(|labels| labels.get(HOSTNAME_LABEL));
    node.metadata.name.iter().chain(hostname)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions
        .filter(|condition| condition.type_ == "Ready")
        .any(|condition| condition.status == "True");
    let drained = node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true));
    ready && !drained && node.metadata.deletion_timestamp.is_none()
}

fn tolerates(node: &Node, spec: &PodSpec) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints
        .filter(|taint| taint.effect != "PreferNoSchedule")
        .all(|taint| {
            let mut tolerations = spec.tolerations.iter().flatten();
            tolerations.any(|toleration| covers(toleration, taint))
        })
}

fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let effect = set(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = match set(&toleration.key) {
        Some(key) => key == taint.key,
        None => exists,
    };
    let value = exists
        || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    effect && key && value
}

fn is_selected(node: &Node, spec: &PodSpec) -> bool {
    let mut wanted = spec.node_selector.iter().flatten();
    if !wanted.all(|(key, value)| label(node, key) == Some(value)) {
        return false;
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    required.is_none_or(|selector| {
        let mut terms = selector.node_selector_terms.iter();
        terms.any(|term| holds_term(node, term))
    })
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a String> {
    node.metadata.labels.as_ref()?.get(key)
}

/// A term without requirements matches no node.
fn holds_term(node: &Node, term: &NodeSelectorTerm) -> bool {
    let expressions = || term.match_expressions.iter().flatten();
    let fields = || term.match_fields.iter().flatten();
    (expressions().next().is_some() || fields().next().is_some())
        && expressions().all(|wanted| holds(wanted, label(node, &wanted.key)))
        && fields().all(|wanted| wanted.key == "metadata.name" && holds(wanted, node.metadata.name.as_ref()))
}

fn holds(wanted: &NodeSelectorRequirement, found: Option<&String>) -> bool {
    let named = || {
        let mut values = wanted.values.iter().flatten();
        values.any(|value| Some(value) == found)
    };
    let bound = || wanted.values.as_ref()?.first()?.parse::<i64>().ok();
    let number = || found?.parse::<i64>().ok();
    match wanted.operator.as_str() {
        "In" => named(),
        "NotIn" => !named(),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => number()
            .zip(bound())
            .is_some_and(|(number, bound)| number > bound),
        "Lt" => number()
            .zip(bound())
            .is_some_and(|(number, bound)| number < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: &Value, ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "node-1", "labels": {HOSTNAME_LABEL: "host-1", "gpu": "h100", "cores": "64"}},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}]}
        }))
        .unwrap()
    }

    fn good() -> Node {
        node(&json!({}), "True")
    }

    fn starts(node: &Node, spec: Value, excluded: &[&str]) -> bool {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let excluded = excluded.iter().map(|name| (*name).to_owned()).collect();
        may_start(node, &serde_json::from_value(spec).unwrap(), &excluded)
    }

    #[test]
    fn nodes_that_are_down_drained_or_excluded_do_not_count() {
        assert!(starts(&good(), json!({}), &["another"]));
        assert!(!starts(&node(&json!({}), "Unknown"), json!({}), &[]));
        assert!(!starts(
            &node(&json!({"unschedulable": true}), "True"),
            json!({}),
            &[]
        ));
        assert!(!starts(&good(), json!({}), &["node-1"]));
        assert!(!starts(&good(), json!({}), &["host-1"]));
    }

    #[test]
    fn taints_keep_pods_away_that_do_not_tolerate_them() {
        let tainted = node(
            &json!({"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}),
            "True",
        );
        let with = |toleration: Value| starts(&tainted, json!({"tolerations": [toleration]}), &[]);
        assert!(!starts(&tainted, json!({}), &[]));
        assert!(with(json!({"key": "nvidia.com/gpu", "operator": "Exists"})));
        assert!(with(json!({"operator": "Exists"})));
        assert!(with(
            json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"})
        ));
        assert!(!with(json!({"key": "nvidia.com/gpu", "value": "absent"})));
        assert!(!with(
            json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"})
        ));
        let preferred = node(
            &json!({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}),
            "True",
        );
        assert!(starts(&preferred, json!({}), &[]));
    }

    #[test]
    fn labels_and_affinities_select() {
        assert!(starts(&good(), json!({"nodeSelector": {"gpu": "h100"}}), &[]));
        assert!(!starts(&good(), json!({"nodeSelector": {"gpu": "a100"}}), &[]));
        let term = |wanted: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [wanted]}}}})
        };
        let wants = |key: &str, operator: &str, values: &[&str]| {
            let wanted = json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
            starts(&good(), term(wanted), &[])
        };
        assert!(wants("gpu", "In", &["a100", "h100"]) && !wants("gpu", "In", &["a100"]));
        assert!(wants("gpu", "NotIn", &["a100"]) && !wants("gpu", "NotIn", &["h100"]));
        assert!(wants("gpu", "Exists", &[]) && !wants("gpu", "DoesNotExist", &[]));
        assert!(
            wants("cores", "Gt", &["32"]) && !wants("cores", "Lt", &["32"]) && !wants("gpu", "Gt", &["1"])
        );
        let field =
            json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]});
        assert!(!starts(&good(), term(field), &[]));
        assert!(!starts(&good(), term(json!({})), &[]));
    }
}

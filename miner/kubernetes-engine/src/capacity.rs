//! How many pods the nodes of a cluster can hold at one time.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Node, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::node_rules::may_start;
use crate::quantity;

/// Amounts of resources by their names, in billionths.
type Amounts = BTreeMap<String, u128>;

/// The pods of this spec that the nodes can hold at one time if nothing else runs there.
pub(crate) fn places(nodes: &[Node], spec: &PodSpec, excluded_hosts: &BTreeSet<String>) -> u32 {
    let wanted = requests(spec);
    nodes
        .iter()
        .filter(|node| may_start(node, spec, excluded_hosts))
        .map(|node| fits(&allocatable(node), &wanted))
        .fold(0, u32::saturating_add)
}

/// How often `wanted` fits into `free`. A resource that a node does not name is one that it does not have.
fn fits(free: &Amounts, wanted: &Amounts) -> u32 {
    let times = wanted
        .iter()
        .filter(|(_, wanted)| **wanted > 0)
        .map(|(name, wanted)| free.get(name).copied().unwrap_or(0) / wanted)
        .min();
    times.map_or(0, |times| u32::try_from(times).unwrap_or(u32::MAX))
}

fn allocatable(node: &Node) -> Amounts {
    let status = node.status.as_ref();
    amounts(status.and_then(|status| status.allocatable.as_ref()))
}

/// The requests of a pod as the scheduler counts them: its containers together, or its largest init container.
fn requests(spec: &PodSpec) -> Amounts {
    let mut sum = Amounts::new();
    for container in &spec.containers {
        for (name, amount) in of_container(container) {
            let so_far = sum.entry(name).or_default();
            *so_far = so_far.saturating_add(amount);
        }
    }
    for container in spec.init_containers.iter().flatten() {
        for (name, amount) in of_container(container) {
            let so_far = sum.entry(name).or_default();
            *so_far = amount.max(*so_far);
        }
    }
    for (name, amount) in amounts(spec.overhead.as_ref()) {
        let so_far = sum.entry(name).or_default();
        *so_far = so_far.saturating_add(amount);
    }
    // Every node states how many pods it takes.
    sum.insert("pods".to_owned(), quantity::parse("1").unwrap_or(1));
    sum
}

/// A container requests its limit of a resource for which it names no request.
fn of_container(container: &Container) -> Amounts {
    let none = ResourceRequirements::default();
    let resources = container.resources.as_ref().unwrap_or(&none);
    let mut wanted = amounts(resources.limits.as_ref());
    wanted.extend(amounts(resources.requests.as_ref()));
    wanted
}

/// An amount that cannot be read counts as nothing: a request of it restricts nothing, and a node does not have it.
fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    quantities
        .into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), quantity::parse(&amount.0)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, allocatable: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
        }))
        .unwrap()
    }

    fn spec(containers: &Value) -> PodSpec {
        serde_json::from_value(json!({"containers": containers})).unwrap()
    }

    fn one(requests: &Value) -> PodSpec {
        spec(&json!([{"name": "executor", "resources": {"requests": requests}}]))
    }

    #[test]
    fn the_scarcest_resource_decides() {
        let nodes = [
            node("a", &json!({"cpu": "8", "memory": "16Gi", "pods": "110"})),
            node("b", &json!({"cpu": "3900m", "memory": "64Gi", "pods": "110"})),
        ];
        let wanted = one(&json!({"cpu": "1", "memory": "3Gi"}));
        assert_eq!(places(&nodes, &wanted, &BTreeSet::new()), 5 + 3);
        let excluded = BTreeSet::from(["a".to_owned()]);
        assert_eq!(places(&nodes, &wanted, &excluded), 3);
    }

    #[test]
    fn gpus_are_counted_by_their_limits_and_none_is_none() {
        let nodes = [
            node("a", &json!({"cpu": "8", "nvidia.com/gpu": "2", "pods": "110"})),
            node("b", &json!({"cpu": "8", "pods": "110"})),
        ];
        let wanted = spec(&json!([{"name": "executor", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]));
        assert_eq!(places(&nodes, &wanted, &BTreeSet::new()), 2);
    }

    #[test]
    fn a_pod_without_requests_is_bounded_by_the_pods_of_the_node() {
        let nodes = [node("a", &json!({"cpu": "8", "pods": "110"}))];
        assert_eq!(places(&nodes, &one(&json!({})), &BTreeSet::new()), 110);
        assert_eq!(
            places(&[node("a", &json!({}))], &one(&json!({})), &BTreeSet::new()),
            0
        );
    }

    #[test]
    fn containers_add_up_and_init_containers_do_not() {
        let nodes = [node("a", &json!({"cpu": "12", "pods": "110"}))];
        let cpu = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let mut wanted = spec(&json!([cpu("executor", "1"), cpu("docker", "2")]));
        assert_eq!(places(&nodes, &wanted, &BTreeSet::new()), 4);
        wanted.init_containers =
            serde_json::from_value(json!([cpu("first", "6"), cpu("second", "5")])).unwrap();
        assert_eq!(places(&nodes, &wanted, &BTreeSet::new()), 2);
        wanted.overhead = Some([("cpu".to_owned(), Quantity("1".to_owned()))].into());
        assert_eq!(places(&nodes, &wanted, &BTreeSet::new()), 1);
    }

    proptest! {
        /// This many pods fit, and not one more.
        #[test]
        fn as_many_fit_as_are_said(
            cpu in 0_u32..200_000, wanted_cpu in 1_u32..5_000, gpus in 0_u32..16, wanted_gpus in 0_u32..9,
            pods in 0_u32..200,
        ) {
            let allocatable = json!({
                "cpu": format!("{cpu}m"), "nvidia.com/gpu": gpus.to_string(), "pods": pods.to_string()
            });
            let wanted = one(&json!({"cpu": format!("{wanted_cpu}m"), "nvidia.com/gpu": wanted_gpus.to_string()}));
            let found = places(&[node("a", &allocatable)], &wanted, &BTreeSet::new());
            let hold = |count: u32| {
                count * wanted_cpu <= cpu && count * wanted_gpus <= gpus && count <= pods
            };
            prop_assert!(hold(found));
            prop_assert!(!hold(found + 1));
        }

        #[test]
        fn amounts_of_any_text_are_counted_without_harm(cpu in ".{0,24}", wanted in ".{0,24}") {
            let allocatable = json!({"cpu": cpu, "pods": "110"});
            let _ = places(&[node("a", &allocatable)], &one(&json!({"cpu": wanted})), &BTreeSet::new());
        }
    }
}

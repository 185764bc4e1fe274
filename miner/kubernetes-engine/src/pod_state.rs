//! The state of an executor, read from its pod.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use muster_provisioning::EngineExecutor;

use crate::api_errors::words;
use crate::object_names::CONTAINER;

/// The state of the executor of a pod.
pub(crate) fn state_of(pod: &Pod) -> EngineExecutor {
    let none = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&none);
    let host = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    match status.phase.as_deref() {
        Some("Succeeded" | "Failed") => EngineExecutor::Ended { how: end(status) },
        // A container beside the executor's may go on, and keeps the pod in this phase.
        Some("Running" | "Unknown") => match executor_end(status) {
            Some(ended) => EngineExecutor::Ended {
                how: container_end(ended),
            },
            None => EngineExecutor::Running { host },
        },
        Some(_) | None => EngineExecutor::Pending {
            reason: pending_reason(status, host.as_deref()),
        },
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let first = status.init_container_statuses.iter().flatten();
    first.chain(status.container_statuses.iter().flatten())
}

fn executor_end(status: &PodStatus) -> Option<&ContainerStateTerminated> {
    containers(status)
        .find(|container| container.name == CONTAINER)?
        .state
        .as_ref()?
        .terminated
        .as_ref()
}

/// The end of a pod: the pod's own reason (its deadline, an eviction), and that of a container.
fn end(status: &PodStatus) -> String {
    let own = joined(status.reason.as_deref(), status.message.as_deref());
    let failed = || {
        let ends = containers(status).filter_map(|found| found.state.as_ref()?.terminated.as_ref());
        ends.into_iter().find(|ended| ended.exit_code != 0)
    };
    let container = executor_end(status).or_else(failed).map(container_end);
    match (own, container) {
        (Some(own), Some(container)) => format!("{own}; {container}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => "its pod ended without a reason".to_owned(),
    }
}

fn container_end(ended: &ContainerStateTerminated) -> String {
    let code = ended.exit_code;
    let program = match ended.signal {
        Some(signal) => format!("its program ended with exit code {code} after signal {signal}"),
        None => format!("its program ended with exit code {code}"),
    };
    match joined(ended.reason.as_deref(), ended.message.as_deref()) {
        Some(reason) => format!("{program} ({reason})"),
        None => program,
    }
}

fn pending_reason(status: &PodStatus, host: Option<&str>) -> String {
    let waiting = containers(status)
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref())
        // Every container waits with this reason while another one has the word.
        .filter(|waiting| !matches!(waiting.reason.as_deref(), Some("PodInitializing")))
        .find_map(|waiting| joined(waiting.reason.as_deref(), waiting.message.as_deref()));
    let unscheduled = || {
        let conditions = status.conditions.iter().flatten();
        conditions
            .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
            .find_map(|condition| joined(condition.reason.as_deref(), condition.message.as_deref()))
    };
    let own = || joined(status.reason.as_deref(), status.message.as_deref());
    waiting
        .or_else(unscheduled)
        .or_else(own)
        .unwrap_or_else(|| match host {
            Some(host) => format!("its node {host} has not started it yet"),
            None => "the scheduler has not looked at it yet".to_owned(),
        })
}

fn joined(reason: Option<&str>, message: Option<&str>) -> Option<String> {
    let set = |text: Option<&str>| text.filter(|text| !text.trim().is_empty()).map(words);
    match (set(reason), set(message)) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
        (Some(text), None) | (None, Some(text)) => Some(text),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(status: &Value) -> EngineExecutor {
        let pod = json!({"metadata": {}, "spec": {"containers": [], "nodeName": "mh1"}, "status": status});
        state_of(&serde_json::from_value(pod).unwrap())
    }

    fn pending(status: &Value) -> String {
        let EngineExecutor::Pending { reason } = state(status) else {
            panic!("not pending: {status}");
        };
        reason
    }

    fn ended(status: &Value) -> String {
        let EngineExecutor::Ended { how } = state(status) else {
            panic!("not ended: {status}");
        };
        how
    }

    #[test]
    fn one_that_waits_says_for_what() {
        let unschedulable = json!({"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}]});
        assert_eq!(
            pending(&unschedulable),
            "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        );
        let image = json!({"phase": "Pending", "containerStatuses": [
            {"name": "executor", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}}}]});
        assert_eq!(pending(&image), "ImagePullBackOff: Back-off pulling image \"x\"");
        assert!(pending(&json!({"phase": "Pending"})).contains("mh1"));
        assert!(!pending(&json!({})).is_empty());
    }

    #[test]
    fn one_that_runs_says_where() {
        let host = Some("mh1".to_owned());
        assert_eq!(
            state(&json!({"phase": "Running"})),
            EngineExecutor::Running { host: host.clone() }
        );
        // A node that is lost proves nothing about the executor.
        assert_eq!(
            state(&json!({"phase": "Unknown", "reason": "NodeLost"})),
            EngineExecutor::Running { host }
        );
    }

    #[test]
    fn an_end_has_its_reason_and_its_exit_code() {
        let late = json!({"phase": "Failed", "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline"});
        assert!(ended(&late).starts_with("DeadlineExceeded: Pod was active"));
        let terminated = |name: &str| {
            json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}})
        };
        let killed = json!({"phase": "Failed", "containerStatuses": [terminated("executor")]});
        assert_eq!(ended(&killed), "its program ended with exit code 137 (OOMKilled)");
        let beside = json!({"phase": "Running", "containerStatuses": [terminated("executor")]});
        assert_eq!(ended(&beside), "its program ended with exit code 137 (OOMKilled)");
        let other = json!({"phase": "Running", "containerStatuses": [terminated("docker")]});
        assert!(matches!(state(&other), EngineExecutor::Running { .. }));
        assert!(!ended(&json!({"phase": "Succeeded"})).is_empty());
    }
}

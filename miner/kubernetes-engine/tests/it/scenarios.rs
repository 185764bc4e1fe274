//! Scenarios that need the control plane of a cluster and no node. Each plays against a real one, which is recorded,
//! and against the recording.

use std::collections::BTreeSet;

use muster_kubernetes_engine::DockerPlace;
use muster_kubernetes_engine::manifests::{ManifestOptions, PersistentExecutors, manifests};
use muster_protocol::ExecutorClass;
use muster_provisioning::{EngineError, EngineExecutor, ExecutorEngine as _};

use muster_testbed::within;

use crate::target::{Rights, Target, attempt, order};

fn none() -> BTreeSet<String> {
    BTreeSet::new()
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, EngineError>) -> String {
    match outcome {
        Err(EngineError::Refused(text)) => text,
        Ok(_) | Err(EngineError::Unreachable(_)) => panic!("not refused: {outcome:?}"),
    }
}

/// A pod comes once, waits with the scheduler's reason, and goes.
pub(crate) async fn create_and_delete(target: Target) {
    let engine = target
        .engine(Rights::All, "spec: {nodeSelector: {muster-test: nowhere}}")
        .await;
    for docker in [DockerPlace::Pod, DockerPlace::Node] {
        let manifests = every_manifest(&target, docker);
        target.kubectl(&["apply", "--dry-run=server", "-f", "-"], &manifests);
    }
    let order = order(1);
    engine.create(&order, &none()).await.unwrap();
    engine.create(&order, &none()).await.unwrap();
    let reason = within("the scheduler's reason", async {
        loop {
            let survey = engine.survey(&none()).await.unwrap();
            assert_eq!(survey.executors.len(), 1);
            assert_eq!(survey.places, 0, "no node has the label");
            let EngineExecutor::Pending { reason } = &survey.executors[&attempt(1)] else {
                panic!("{survey:?}");
            };
            if reason.contains("available") {
                break reason.clone();
            }
            target.wait().await;
        }
    });
    let reason = reason.await;
    assert!(reason.starts_with("Unschedulable: "), "{reason}");
    if let Some(token) = target.kubectl(
        &["get", "secret", &format!("muster-{}", attempt(1)), "-o", "json"],
        "",
    ) {
        assert!(
            token.contains("\"kind\": \"Pod\""),
            "the pod is its owner: {token}"
        );
    }
    engine.delete(attempt(1)).await.unwrap();
    engine.delete(attempt(1)).await.unwrap();
    assert!(engine.survey(&none()).await.unwrap().executors.is_empty());
    wait_until_no_secret(&target).await;
    target.finish();
}

/// The manifests of a miner with persistent executors, which the cluster checks and does not keep.
fn every_manifest(target: &Target, docker: DockerPlace) -> String {
    let options = ManifestOptions {
        namespace: target.namespace.to_owned(),
        list_nodes: true,
        docker,
        starts_leases: true,
        lease_image: None,
        persistent: Some(PersistentExecutors {
            image: "muster/test:1".to_owned(),
            class: ExecutorClass::AlwaysOnTest,
            capacity: 1,
            gpus: 1,
        }),
    };
    manifests(&options).unwrap()
}

/// The cluster removes a Secret some time after its pod.
async fn wait_until_no_secret(target: &Target) {
    let gone = async {
        while target
            .kubectl(&["get", "secrets", "-o", "name"], "")
            .is_some_and(|names| names.contains("secret/muster-0"))
        {
            target.wait().await;
        }
    };
    within("the end of the Secret", gone).await;
}

/// A miner that stopped between the pod and its Secret makes the Secret later.
pub(crate) async fn missing_secret(target: Target) {
    let engine = target.engine(Rights::All, "spec: {}").await;
    engine.create(&order(2), &none()).await.unwrap();
    let name = format!("muster-{}", attempt(2));
    target.kubectl(&["delete", "secret", &name], "");
    engine.create(&order(2), &none()).await.unwrap();
    target.kubectl(&["get", "secret", &name], "");
    engine.delete(attempt(2)).await.unwrap();
    target.finish();
}

/// An account without the printed rights is refused, with the way to give them.
pub(crate) async fn without_rights(target: Target) {
    let engine = target.engine(Rights::None, "spec: {}").await;
    let create = refusal(engine.create(&order(3), &none()).await);
    assert!(
        create.contains("status 403") && create.contains("kubectl apply"),
        "{create}"
    );
    let survey = refusal(engine.survey(&none()).await);
    assert!(survey.contains("kubectl apply"), "{survey}");
    let delete = refusal(engine.delete(attempt(3)).await);
    assert!(delete.contains("delete the pod"), "{delete}");
    target.finish();
}

/// A token that is not valid any more is refused, with another advice.
pub(crate) async fn bad_token(target: Target) {
    let engine = target.engine(Rights::BadToken, "spec: {}").await;
    let text = refusal(engine.create(&order(4), &none()).await);
    assert!(text.contains("status 401") && text.contains("renew"), "{text}");
    target.finish();
}

/// A quota of the namespace is the operator's to raise.
pub(crate) async fn quota(target: Target) {
    let engine = target
        .engine(Rights::NoNodes, "spec: {nodeSelector: {muster-test: nowhere}}")
        .await;
    target.kubectl(&["create", "quota", "one", "--hard=pods=1"], "");
    // The cluster counts a new quota after a moment, and refuses everything until then.
    let counted = async {
        while target
            .kubectl(&["get", "quota", "one", "-o", "jsonpath={.status.hard.pods}"], "")
            .is_some_and(|hard| hard != "1")
        {
            target.wait().await;
        }
    };
    within("the quota", counted).await;
    engine.create(&order(5), &none()).await.unwrap();
    let text = refusal(engine.create(&order(6), &none()).await);
    assert!(
        text.contains("exceeded quota") && text.contains("ResourceQuota"),
        "{text}"
    );
    let survey = engine.survey(&none()).await.unwrap();
    assert_eq!(survey.executors.len(), 1);
    // Without the right to list nodes, the operator's count is all that is known.
    assert_eq!(survey.places, 7);
    engine.delete(attempt(5)).await.unwrap();
    target.finish();
}

/// A template that the cluster does not take is the operator's to change.
pub(crate) async fn invalid_pod(target: Target) {
    let template = "containers: [{name: executor, resources: {limits: {cpu: 1}, requests: {cpu: 2}}}]";
    let engine = target.engine(Rights::All, template).await;
    let text = refusal(engine.create(&order(7), &none()).await);
    assert!(text.contains("status 422") && text.contains("template"), "{text}");
    let engine = target
        .engine(Rights::All, "priorityClassName: no-such-class")
        .await;
    let text = refusal(engine.create(&order(7), &none()).await);
    assert!(
        text.contains("no-such-class") && text.contains("policy"),
        "{text}"
    );
    target.finish();
}

/// The pods of a miner that shares the namespace are not this one's.
pub(crate) async fn another_miner(target: Target) {
    let engine = target
        .engine(Rights::All, "spec: {nodeSelector: {muster-test: nowhere}}")
        .await;
    let pod = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("muster-{}", attempt(8)), "labels": {"muster-miner": "miner-2"}},
        "spec": {"containers": [{"name": "c", "image": "c"}]}
    });
    target.kubectl(&["create", "-f", "-"], &pod.to_string());
    assert!(engine.survey(&none()).await.unwrap().executors.is_empty());
    let text = refusal(engine.create(&order(8), &none()).await);
    assert!(text.contains("not of this miner's pool"), "{text}");
    target.finish();
}

/// Hosts are excluded in a form that the cluster takes, odd names among them.
pub(crate) async fn excluded_hosts(target: Target) {
    let engine = target
        .engine(Rights::All, "spec: {nodeSelector: {muster-test: nowhere}}")
        .await;
    let hosts = ["node-1", "node-2.example.org", "Not a node's name", "UPPER"];
    let hosts: BTreeSet<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    engine.create(&order(9), &hosts).await.unwrap();
    engine.delete(attempt(9)).await.unwrap();
    target.finish();
}

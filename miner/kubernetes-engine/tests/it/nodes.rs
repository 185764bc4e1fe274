//! Scenarios that need nodes: three of them, `mh1` to `mh3`, with two GPUs each and the image `muster/test:1`, whose
//! program runs until it is asked to end, or ends at once with the exit code of its argument.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_kubernetes_engine::KubernetesEngine;
use muster_provisioning::{EngineExecutor, ExecutorEngine as _, Survey};

use muster_testbed::within;

use crate::target::{Rights, Target, attempt, order};

/// The nodes share this machine's network, whose addresses their containers need not have.
const TEMPLATE: &str = "
hostNetwork: true
terminationGracePeriodSeconds: 5
tolerations: [{key: nvidia.com/gpu, operator: Exists}]
volumes: null
containers:
- name: executor
  imagePullPolicy: Never
  command: [/stand-in]
  securityContext: null
  volumeMounts: null
  resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {nvidia.com/gpu: 1}}
";

fn hosts(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Looks until the cluster shows this.
async fn wait_for(
    target: &Target,
    engine: &KubernetesEngine,
    what: &str,
    holds: impl Fn(&Survey) -> bool,
) -> Survey {
    within(what, async {
        loop {
            let last = engine.survey(&hosts(&[])).await.unwrap();
            if holds(&last) {
                return last;
            }
            target.wait().await;
        }
    })
    .await
}

fn running(survey: &Survey) -> usize {
    let states = survey.executors.values();
    states
        .filter(|state| matches!(state, EngineExecutor::Running { .. }))
        .count()
}

/// Six GPUs hold six executors; the seventh waits, and starts once another one is gone.
pub(crate) async fn as_many_run_as_there_are_gpus(target: Target) {
    let engine = target.engine(Rights::All, TEMPLATE).await;
    assert_eq!(engine.survey(&hosts(&[])).await.unwrap().places, 6);
    assert_eq!(engine.survey(&hosts(&["mh1"])).await.unwrap().places, 4);
    for number in 11..=17 {
        engine.create(&order(number), &hosts(&[])).await.unwrap();
    }
    let full = wait_for(&target, &engine, "six run and one waits for a GPU", |survey| {
        let waits = survey.executors.values().any(|state| {
            matches!(state, EngineExecutor::Pending { reason } if reason.contains("Insufficient nvidia.com/gpu"))
        });
        running(survey) == 6 && waits
    })
    .await;
    assert_eq!(full.places, 6, "busy places count");
    let first = (11..=17)
        .map(attempt)
        .find(|attempt| matches!(full.executors.get(attempt), Some(EngineExecutor::Running { .. })));
    let first = first.unwrap();
    engine.delete(first).await.unwrap();
    wait_for(&target, &engine, "the seventh runs", |survey| {
        !survey.executors.contains_key(&first) && running(survey) == 6
    })
    .await;
    for number in 11..=17 {
        engine.delete(attempt(number)).await.unwrap();
    }
    wait_for(&target, &engine, "none is left", |survey| {
        survey.executors.is_empty()
    })
    .await;
    target.finish();
}

/// An executor starts on no excluded host, and waits if every host is excluded.
pub(crate) async fn excluded_hosts_get_no_executor(target: Target) {
    let engine = target.engine(Rights::All, TEMPLATE).await;
    engine.create(&order(21), &hosts(&["mh1", "mh3"])).await.unwrap();
    engine
        .create(&order(22), &hosts(&["mh1", "mh2", "mh3"]))
        .await
        .unwrap();
    let survey = wait_for(&target, &engine, "one runs and one cannot", |survey| {
        let waits = matches!(
            survey.executors.get(&attempt(22)),
            Some(EngineExecutor::Pending { reason }) if reason.contains("affinity")
        );
        running(survey) == 1 && waits
    })
    .await;
    let host = Some("mh2".to_owned());
    assert_eq!(survey.executors[&attempt(21)], EngineExecutor::Running { host });
    for number in [21, 22] {
        engine.delete(attempt(number)).await.unwrap();
    }
    wait_for(&target, &engine, "none is left", |survey| {
        survey.executors.is_empty()
    })
    .await;
    target.finish();
}

/// The ways in which an executor ends, or never begins, have their reasons.
pub(crate) async fn ends_have_their_reasons(target: Target) {
    let failing = target
        .engine(Rights::All, &TEMPLATE.replace("[/stand-in]", "[/stand-in, '3']"))
        .await;
    failing.create(&order(31), &hosts(&[])).await.unwrap();
    let lasting = target.engine(Rights::All, TEMPLATE).await;
    let mut short = order(32);
    short.lasts = Duration::from_secs(2);
    lasting.create(&short, &hosts(&[])).await.unwrap();
    let image = "imagePullPolicy: Never\n  image: muster/not-there:1";
    let absent = target
        .engine(Rights::All, &TEMPLATE.replace("imagePullPolicy: Never", image))
        .await;
    absent.create(&order(33), &hosts(&[])).await.unwrap();
    let survey = wait_for(&target, &lasting, "two ended and one has no image", |survey| {
        let ended = survey
            .executors
            .values()
            .filter(|state| matches!(state, EngineExecutor::Ended { .. }));
        let image = matches!(
            survey.executors.get(&attempt(33)),
            Some(EngineExecutor::Pending { reason }) if reason.contains("ErrImageNeverPull")
        );
        ended.count() == 2 && image
    })
    .await;
    let how = |number: u128| match &survey.executors[&attempt(number)] {
        EngineExecutor::Ended { how } => how.clone(),
        EngineExecutor::Pending { .. } | EngineExecutor::Running { .. } => panic!("{survey:#?}"),
    };
    assert!(how(31).contains("exit code 3"), "{}", how(31));
    assert!(how(32).contains("DeadlineExceeded"), "{}", how(32));
    for number in 31..=33 {
        lasting.delete(attempt(number)).await.unwrap();
    }
    wait_for(&target, &lasting, "none is left", |survey| {
        survey.executors.is_empty()
    })
    .await;
    target.finish();
}

/// A node that is lost takes its places with it and nothing else: its executor is not replaced, and may still run.
pub(crate) async fn a_lost_node_takes_its_places(target: Target) {
    let engine = target.engine(Rights::All, TEMPLATE).await;
    engine.create(&order(41), &hosts(&["mh1", "mh2"])).await.unwrap();
    engine.create(&order(42), &hosts(&["mh2", "mh3"])).await.unwrap();
    wait_for(&target, &engine, "both run", |survey| running(survey) == 2).await;
    target.kill_node("mh3");
    let survey = wait_for(&target, &engine, "its places are gone", |survey| {
        survey.places == 4
    })
    .await;
    assert_eq!(survey.executors.len(), 2, "no second pod for the same token");
    let host = Some("mh3".to_owned());
    assert_eq!(survey.executors[&attempt(41)], EngineExecutor::Running { host });
    // A new executor goes elsewhere.
    engine.create(&order(43), &hosts(&["mh1"])).await.unwrap();
    let survey = wait_for(&target, &engine, "the new one runs", |survey| {
        matches!(
            survey.executors.get(&attempt(43)),
            Some(EngineExecutor::Running { .. })
        )
    })
    .await;
    let host = Some("mh2".to_owned());
    assert_eq!(survey.executors[&attempt(43)], EngineExecutor::Running { host });
    // The order to remove the pod is taken; the pod goes once the node is back or removed.
    engine.delete(attempt(41)).await.unwrap();
    engine.delete(attempt(41)).await.unwrap();
    for number in [42, 43] {
        engine.delete(attempt(number)).await.unwrap();
    }
    wait_for(&target, &engine, "the others are gone", |survey| {
        survey.executors.len() == 1
    })
    .await;
    target.finish();
}

//! Orders, engines and looks at executors.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_process::SystemClock;
use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken};
use muster_provisioning::{EngineError, EngineExecutor, ExecutorEngine, Notice, Order};
use muster_slurm_engine::{SlurmEngine, SlurmSettings};
use muster_testbed::slurm::SlurmCluster;
use uuid::Uuid;

pub(crate) const LABEL: &str = "muster pool=h100";

pub(crate) fn none() -> BTreeSet<String> {
    BTreeSet::new()
}

pub(crate) fn order() -> Order {
    Order {
        token: ExecutorToken::new(AttemptId::from_uuid(Uuid::new_v4()), Uuid::new_v4()),
        class: ExecutorClass::AlwaysOnTest,
        private_image: false,
        miner_address: "ws://127.0.0.1:1".to_owned(),
        lasts: Duration::from_mins(10),
        notice: Notice::default(),
    }
}

/// The request of an executor with `gpus` GPUs on this cluster.
pub(crate) fn settings(cluster: &SlurmCluster, gpus: u32) -> SlurmSettings {
    SlurmSettings {
        conf: cluster.conf(),
        gpus,
        cpus: 1,
        memory_mib: 100,
        ..SlurmSettings::default()
    }
}

pub(crate) fn engine_of(settings: SlurmSettings, script: &str) -> SlurmEngine {
    let command = ["sh", "-c", script].map(str::to_owned);
    SlurmEngine::new(settings, &command, LABEL.to_owned(), Arc::new(SystemClock::new()))
}

pub(crate) fn engine(cluster: &SlurmCluster, gpus: u32) -> SlurmEngine {
    engine_of(settings(cluster, gpus), "exec sleep 600")
}

pub(crate) async fn look(engine: &SlurmEngine, order: &Order) -> Option<EngineExecutor> {
    let survey = engine.survey(&none()).await.ok()?;
    survey.executors.get(&order.token.attempt()).cloned()
}

pub(crate) async fn wait_for(
    cluster: &SlurmCluster,
    engine: &SlurmEngine,
    order: &Order,
    fits: impl Fn(&EngineExecutor) -> bool,
) -> EngineExecutor {
    let ask = async || look(engine, order).await.filter(&fits);
    cluster
        .wait_until("the executor is as expected", ask)
        .await
        .unwrap()
}

pub(crate) fn runs(executor: &EngineExecutor) -> bool {
    matches!(executor, EngineExecutor::Running { .. })
}

pub(crate) fn has_ended(executor: &EngineExecutor) -> bool {
    matches!(executor, EngineExecutor::Ended { .. })
}

pub(crate) fn waits(executor: &EngineExecutor) -> bool {
    matches!(executor, EngineExecutor::Pending { .. })
}

pub(crate) fn host_of(executor: EngineExecutor) -> String {
    match executor {
        EngineExecutor::Running { host: Some(host) } => host,
        other @ (EngineExecutor::Pending { .. }
        | EngineExecutor::Running { host: None }
        | EngineExecutor::Ended { .. }) => panic!("{other:?} has no host"),
    }
}

/// The jobs of a name that have not ended, by id.
pub(crate) async fn live_jobs(cluster: &SlurmCluster, order: &Order) -> Vec<String> {
    let name = format!("--name=muster-{}", order.token.attempt());
    let listed = cluster
        .run("squeue", &["--noheader", "--format=%i", &name])
        .await
        .unwrap();
    listed.lines().map(str::to_owned).collect()
}

pub(crate) fn refusal(error: EngineError) -> String {
    match error {
        EngineError::Refused(text) => text,
        EngineError::Unreachable(text) => panic!("no refusal: {text}"),
    }
}

//! The life of an executor: it waits, runs, ends and is deleted.

use muster_provisioning::{EngineExecutor, ExecutorEngine};
use muster_testbed::slurm::SlurmCluster;
use tokio::time::Instant;

use crate::support::{
    engine, engine_of, has_ended, host_of, live_jobs, look, none, order, runs, settings, wait_for, waits,
};

#[tokio::test]
async fn an_executor_waits_runs_and_ends() {
    let cluster = SlurmCluster::start(1).await.unwrap();
    let done = cluster.folder().join("done");
    let script = format!("until [ -e {} ]; do sleep 0.1; done; exit 7", done.display());
    let engine = engine_of(settings(&cluster, 1), &script);
    let order = order();
    let begun = Instant::now();
    engine.create(&order, &none()).await.unwrap();
    let created = begun.elapsed();
    let host = host_of(wait_for(&cluster, &engine, &order, runs).await);
    println!("created after {created:?}, running after {:?}", begun.elapsed());
    assert_eq!(host, "node0");
    std::fs::write(done, []).unwrap();
    let fits = |executor: &EngineExecutor| matches!(executor, EngineExecutor::Ended { how } if how.contains("FAILED"));
    let EngineExecutor::Ended { how } = wait_for(&cluster, &engine, &order, fits).await else {
        unreachable!()
    };
    assert!(how.contains("NonZeroExitCode") && how.contains("node0"), "{how}");
    // The token of an executor that has ended is spent, so it is not started again.
    engine.create(&order, &none()).await.unwrap();
    assert_eq!(live_jobs(&cluster, &order).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_executor_without_a_place_says_why_and_starts_once_there_is_one() {
    let cluster = SlurmCluster::start(1).await.unwrap();
    let engine = engine(&cluster, 2);
    let (first, second, third) = (order(), order(), order());
    engine.create(&first, &none()).await.unwrap();
    wait_for(&cluster, &engine, &first, runs).await;
    engine.create(&second, &none()).await.unwrap();
    wait_for(&cluster, &engine, &second, |executor| {
        waits_for(executor, "Resources")
    })
    .await;
    engine.create(&third, &none()).await.unwrap();
    wait_for(&cluster, &engine, &third, |executor| {
        waits_for(executor, "Priority")
    })
    .await;
    engine.delete(first.token.attempt()).await.unwrap();
    wait_for(&cluster, &engine, &second, runs).await;
    assert!(
        look(&engine, &third)
            .await
            .is_some_and(|executor| waits(&executor))
    );
}

#[tokio::test]
async fn an_executor_is_deleted_in_every_state() {
    let cluster = SlurmCluster::start(1).await.unwrap();
    let engine = engine(&cluster, 2);
    // Slurm ends one that ignores TERM after KillWait.
    let deaf = engine_of(settings(&cluster, 2), "trap '' TERM; while :; do sleep 1; done");
    let (running, pending, ended, absent) = (order(), order(), order(), order());
    deaf.create(&running, &none()).await.unwrap();
    wait_for(&cluster, &engine, &running, runs).await;
    engine.create(&pending, &none()).await.unwrap();
    wait_for(&cluster, &engine, &pending, waits).await;
    engine.delete(absent.token.attempt()).await.unwrap();
    engine.delete(pending.token.attempt()).await.unwrap();
    let survey = engine.survey(&none()).await.unwrap();
    assert!(
        has_ended(&survey.executors[&pending.token.attempt()]),
        "{survey:?}"
    );
    let begun = Instant::now();
    engine.delete(running.token.attempt()).await.unwrap();
    println!("a running executor was deleted after {:?}", begun.elapsed());
    assert!(
        look(&engine, &running)
            .await
            .is_some_and(|executor| has_ended(&executor))
    );
    // The node is free again although the program was deaf.
    let quick = engine_of(settings(&cluster, 2), "true");
    quick.create(&ended, &none()).await.unwrap();
    wait_for(&cluster, &quick, &ended, has_ended).await;
    for order in [running, pending, ended] {
        engine.delete(order.token.attempt()).await.unwrap();
        assert_eq!(live_jobs(&cluster, &order).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn several_creations_of_one_executor_start_one_job() {
    let cluster = SlurmCluster::start(1).await.unwrap();
    let engine = engine(&cluster, 1);
    let order = order();
    let hosts = none();
    let (first, second) = tokio::join!(engine.create(&order, &hosts), engine.create(&order, &hosts));
    first.and(second).unwrap();
    engine.create(&order, &hosts).await.unwrap();
    wait_for(&cluster, &engine, &order, runs).await;
    engine.create(&order, &hosts).await.unwrap();
    assert_eq!(live_jobs(&cluster, &order).await.len(), 1);
    // Another process of the miner finds it too.
    let next = engine_of(settings(&cluster, 1), "exec sleep 600");
    next.create(&order, &hosts).await.unwrap();
    assert_eq!(live_jobs(&cluster, &order).await.len(), 1);
}

fn waits_for(executor: &EngineExecutor, expected: &str) -> bool {
    matches!(executor, EngineExecutor::Pending { reason } if reason == expected)
}

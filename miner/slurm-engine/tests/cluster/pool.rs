//! The request of a pool: refusals, excluded hosts, places, and the token that nobody sees.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_process::SystemClock;
use muster_provisioning::ExecutorEngine;
use muster_slurm_engine::{SlurmEngine, SlurmSettings};
use muster_testbed::slurm::SlurmCluster;

use crate::support::{engine, engine_of, host_of, live_jobs, none, order, refusal, runs, settings, wait_for};

#[tokio::test]
async fn a_request_that_no_node_fits_is_refused_with_advice_each_time() {
    let cluster = SlurmCluster::start(1).await.unwrap();
    for (settings, said, advice) in [
        (
            settings(&cluster, 3),
            "Requested node configuration is not available",
            "sinfo",
        ),
        (
            SlurmSettings {
                gpus: 0,
                gres: "gpu:a100:1".to_owned(),
                ..settings(&cluster, 0)
            },
            "Requested node configuration is not available",
            "`gres`",
        ),
        (
            SlurmSettings {
                partition: "nope".to_owned(),
                ..settings(&cluster, 1)
            },
            "nvalid partition",
            "`partition`",
        ),
        (
            SlurmSettings {
                memory_mib: 5000,
                ..settings(&cluster, 1)
            },
            "Memory specification",
            "`memory_mib`",
        ),
        (
            SlurmSettings {
                args: vec!["--constraint=x".to_owned()],
                ..settings(&cluster, 1)
            },
            "feature",
            "`args`",
        ),
    ] {
        let engine = engine_of(settings, "exec sleep 600");
        let order = order();
        for _ in 0..2 {
            let text = refusal(engine.create(&order, &none()).await.unwrap_err());
            assert!(text.contains(said) && text.contains(advice), "{text}");
        }
        assert_eq!(live_jobs(&cluster, &order).await, Vec::<String>::new());
        engine.delete(order.token.attempt()).await.unwrap();
    }
}

#[tokio::test]
async fn an_excluded_host_is_left_out_and_an_unknown_one_is_no_error() {
    let cluster = SlurmCluster::start(2).await.unwrap();
    let engine = engine(&cluster, 1);
    let hosts = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    let order = order();
    let excluded = hosts(&["node0", "gone", "node[0-1]", ""]);
    engine.create(&order, &excluded).await.unwrap();
    assert_eq!(host_of(wait_for(&cluster, &engine, &order, runs).await), "node1");
    assert_eq!(engine.survey(&excluded).await.unwrap().places, 2);
    assert_eq!(
        engine.survey(&hosts(&["node0", "node1"])).await.unwrap().places,
        0
    );
}

#[tokio::test]
async fn a_pool_sees_its_own_executors_and_the_places_that_its_request_fits() {
    let cluster = SlurmCluster::start(2).await.unwrap();
    let one = engine(&cluster, 1);
    let command = ["sleep", "600"].map(str::to_owned);
    let clock = Arc::new(SystemClock::new());
    let other = SlurmEngine::new(settings(&cluster, 1), &command, "muster pool=h".to_owned(), clock);
    let order = order();
    one.create(&order, &none()).await.unwrap();
    wait_for(&cluster, &one, &order, runs).await;
    assert!(other.survey(&none()).await.unwrap().executors.is_empty());
    let all = settings(&cluster, 1);
    for (settings, places) in [
        (all.clone(), 4),
        (settings(&cluster, 2), 2),
        (
            SlurmSettings {
                memory_mib: 2500,
                ..all.clone()
            },
            2,
        ),
        (
            SlurmSettings {
                cpus: 3,
                gpus: 0,
                ..all.clone()
            },
            4,
        ),
        (
            SlurmSettings {
                partition: "gpu".to_owned(),
                ..all.clone()
            },
            4,
        ),
        (
            SlurmSettings {
                partition: "nope".to_owned(),
                ..all.clone()
            },
            0,
        ),
        (
            SlurmSettings {
                args: vec!["--exclusive".to_owned()],
                ..all.clone()
            },
            2,
        ),
    ] {
        let survey = engine_of(settings.clone(), "true").survey(&none()).await.unwrap();
        assert_eq!(survey.places, places, "{settings:?}");
        assert_eq!(survey.executors.len(), 1);
    }
    cluster
        .run(
            "scontrol",
            &["update", "nodename=node1", "state=drain", "reason=test"],
        )
        .await
        .unwrap();
    assert_eq!(one.survey(&none()).await.unwrap().places, 2);
}

#[tokio::test]
async fn the_token_shows_neither_in_slurm_nor_on_a_command_line() {
    let cluster = SlurmCluster::start(1).await.unwrap();
    let told = cluster.folder().join("told");
    let script = format!(
        "echo \"$MINER_ADDRESS $EXECUTOR_TOKEN $SECRET\" > {}; exec sleep 600",
        told.display()
    );
    let engine = engine_of(settings(&cluster, 1), &script);
    let order = order();
    let token = order.token.to_string();
    // The command lines of sbatch are looked at for as long as it runs.
    let mut seen_sbatch = false;
    let mut lines = Vec::new();
    let hosts = none();
    let create = engine.create(&order, &hosts);
    let watch = async {
        loop {
            for line in command_lines() {
                seen_sbatch |= line.contains("sbatch");
                lines.push(line);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        created = create => created.unwrap(),
        () = watch => unreachable!(),
    }
    wait_for(&cluster, &engine, &order, runs).await;
    lines.extend(command_lines());
    assert!(seen_sbatch, "sbatch was never seen");
    assert!(!lines.iter().any(|line| line.contains(&token)));
    let name = format!("muster-{}", order.token.attempt());
    let shown = cluster
        .run("scontrol", &["--details", "show", "job"])
        .await
        .unwrap();
    assert!(shown.contains(&name) && !shown.contains(&token), "{shown}");
    let json = cluster.run("squeue", &["--json"]).await.unwrap();
    assert!(json.contains(&name) && !json.contains(&token));
    let read = async || {
        std::fs::read_to_string(&told)
            .ok()
            .filter(|text| text.ends_with('\n'))
    };
    let text = cluster
        .wait_until("the executor has its variables", read)
        .await
        .unwrap();
    assert_eq!(text.trim_end(), format!("ws://127.0.0.1:1 {token}"));
}

/// The command line of every process of this machine.
fn command_lines() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let read = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    entries
        .filter_map(read)
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect()
}

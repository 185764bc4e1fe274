//! Faults of the cluster and of Slurm's programs.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use muster_provisioning::{EngineError, EngineExecutor, ExecutorEngine};
use muster_slurm_engine::SlurmSettings;
use muster_testbed::slurm::SlurmCluster;
use tokio::time::Instant;

use crate::support::{
    engine, engine_of, has_ended, host_of, live_jobs, look, none, order, refusal, runs, settings, wait_for,
};

#[tokio::test]
async fn a_program_that_is_missing_is_named_with_its_setting() {
    let settings = SlurmSettings {
        bin: "/no/such".into(),
        ..SlurmSettings::default()
    };
    let engine = engine_of(settings, "true");
    let created = engine.create(&order(), &none()).await.unwrap_err();
    for text in [
        refusal(created),
        refusal(engine.survey(&none()).await.unwrap_err()),
    ] {
        assert!(text.contains("/no/such/") && text.contains("`bin`"), "{text}");
    }
}

#[tokio::test]
async fn a_dead_controller_is_unreachable_and_loses_no_executor() {
    let mut cluster = SlurmCluster::start(1).await.unwrap();
    let engine = engine(&cluster, 1);
    let (first, second) = (order(), order());
    engine.create(&first, &none()).await.unwrap();
    wait_for(&cluster, &engine, &first, runs).await;
    cluster
        .wait_until_saved(&format!("muster-{}", first.token.attempt()))
        .await
        .unwrap();
    cluster.kill_controller().await.unwrap();
    let hosts = none();
    let (created, deleted, surveyed) = tokio::join!(
        engine.create(&second, &hosts),
        engine.delete(first.token.attempt()),
        async { engine.survey(&none()).await.map(|_| ()) }
    );
    for answer in [created, deleted, surveyed] {
        assert!(
            matches!(&answer, Err(EngineError::Unreachable(text)) if text.contains("scontrol ping")),
            "{answer:?}"
        );
    }
    cluster.start_controller().unwrap();
    wait_for(&cluster, &engine, &first, runs).await;
    assert_eq!(look(&engine, &second).await, None);
    engine.create(&second, &none()).await.unwrap();
    wait_for(&cluster, &engine, &second, runs).await;
    engine.delete(first.token.attempt()).await.unwrap();
}

#[tokio::test]
async fn a_submission_without_an_answer_starts_one_executor_and_its_deletion_finds_it() {
    let cluster = SlurmCluster::start(1).await.unwrap();
    let engine = engine_of(
        SlurmSettings {
            call_s: 2,
            ..settings(&cluster, 1)
        },
        "exec sleep 600",
    );
    // sbatch runs while the controller stands still; the question before it was answered.
    let frozen = engine_of(
        SlurmSettings {
            call_s: 2,
            bin: freezing_programs(&cluster),
            ..settings(&cluster, 1)
        },
        "exec sleep 600",
    );
    let (kept, deleted) = (order(), order());
    for order in [&kept, &deleted] {
        let create = async { frozen.create(order, &none()).await };
        let freeze = async {
            let asks = cluster.folder().join("sbatch-asks");
            cluster
                .wait_until("sbatch runs", async || asks.exists().then_some(()))
                .await
                .unwrap();
            cluster.freeze_controller().unwrap();
            std::fs::remove_file(asks).unwrap();
        };
        let (created, ()) = tokio::join!(create, freeze);
        assert!(matches!(created, Err(EngineError::Unreachable(_))), "{created:?}");
        cluster.thaw_controller().unwrap();
    }
    frozen.delete(deleted.token.attempt()).await.unwrap();
    engine.create(&kept, &none()).await.unwrap();
    wait_for(&cluster, &engine, &kept, runs).await;
    assert_eq!(live_jobs(&cluster, &deleted).await, Vec::<String>::new());
    println!(
        "jobs of the one that is kept: {:?}",
        live_jobs(&cluster, &kept).await
    );
    engine.delete(kept.token.attempt()).await.unwrap();
    let ended = async || live_jobs(&cluster, &kept).await.is_empty().then_some(());
    cluster.wait_until("no job is left", ended).await.unwrap();
}

/// A folder of programs whose sbatch waits until the controller stands still.
fn freezing_programs(cluster: &SlurmCluster) -> PathBuf {
    let folder = cluster.folder().join("programs");
    std::fs::create_dir(&folder).unwrap();
    for program in ["squeue", "sinfo", "scancel"] {
        symlink(format!("/usr/bin/{program}"), folder.join(program)).unwrap();
    }
    let asks = cluster.folder().join("sbatch-asks");
    let asks = asks.display();
    let wait = format!("touch {asks}; while [ -e {asks} ]; do sleep 0.05; done; exec /usr/bin/sbatch \"$@\"");
    write_program(&folder, "sbatch", &wait);
    folder
}

fn write_program(folder: &Path, name: &str, script: &str) {
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_job_that_shows_only_after_its_deletion_is_cancelled_too() {
    let folder = tempfile::tempdir().unwrap();
    let (path, order) = (folder.path(), order());
    let at = path.display();
    // The questions of the creation and of the deletion find nothing, and the second look of the deletion a job.
    write_program(path, "sbatch", "exec sleep 600");
    write_program(path, "scancel", &format!("echo \"$*\" > {at}/cancelled"));
    let row = format!("7|PENDING||muster-{}|any|None", order.token.attempt());
    let script = format!(
        "echo >> {at}/asked; [ -e {at}/cancelled ] || [ $(wc -l < {at}/asked) -lt 3 ] || echo '{row}'"
    );
    write_program(path, "squeue", &script);
    let settings = SlurmSettings {
        bin: path.to_owned(),
        call_s: 1,
        ..SlurmSettings::default()
    };
    let engine = engine_of(settings, "true");
    let created = engine.create(&order, &none()).await;
    assert!(
        matches!(&created, Err(EngineError::Unreachable(text)) if text.contains("`call_s`")),
        "{created:?}"
    );
    engine.delete(order.token.attempt()).await.unwrap();
    let cancelled = std::fs::read_to_string(path.join("cancelled")).unwrap();
    assert_eq!(cancelled, "--quiet 7\n");
}

#[tokio::test]
async fn an_executor_on_a_lost_node_ends_and_the_node_holds_none() {
    let mut cluster = SlurmCluster::start(2).await.unwrap();
    let engine = engine(&cluster, 1);
    assert_eq!(engine.survey(&none()).await.unwrap().places, 4);
    let (first, second) = (order(), order());
    engine
        .create(&first, &BTreeSet::from(["node1".to_owned()]))
        .await
        .unwrap();
    assert_eq!(host_of(wait_for(&cluster, &engine, &first, runs).await), "node0");
    cluster.kill_node(0).await.unwrap();
    let begun = Instant::now();
    let ended = wait_for(&cluster, &engine, &first, has_ended).await;
    println!("a lost node was noticed after {:?}: {ended:?}", begun.elapsed());
    assert!(matches!(ended, EngineExecutor::Ended { how } if how.contains("NODE_FAIL")));
    assert_eq!(engine.survey(&none()).await.unwrap().places, 2);
    engine.create(&second, &none()).await.unwrap();
    assert_eq!(host_of(wait_for(&cluster, &engine, &second, runs).await), "node1");
    cluster.start_node(0).unwrap();
    let back = async || (engine.survey(&none()).await.ok()?.places == 4).then_some(());
    cluster.wait_until("the node is back", back).await.unwrap();
}

//! The lease by which one of several processes leads. Only PostgreSQL has one.

use muster_store::testing::stores;
use muster_validator::store::{LeaseState, Standby};
use sqlx::migrate::Migrator;

use super::*;

/// An empty store in PostgreSQL, migrated up to this version.
async fn postgres(version: i64) -> TestStore {
    let known = MIGRATIONS.iter().filter(|migration| migration.version <= version);
    let stores = stores(&Migrator::with_migrations(known.cloned().collect()))
        .await
        .unwrap();
    stores
        .into_iter()
        .find(|store| store.engine == "postgres")
        .unwrap()
}

async fn standby(test: &TestStore, name: &str) -> Standby {
    Standby::open(&test.url, name.to_owned()).await.unwrap()
}

/// Waits until another connection waits for a lock that the one of this process id holds.
async fn something_waits_for(test: &TestStore, pid: i32) {
    muster_testbed::until("a connection that waits for a lock", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE CAST($1 AS INTEGER) = ANY (pg_blocking_pids(pid))",
        )
        .bind(pid)
        .fetch_one(&test.pool)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
}

/// The process id of a connection in the server.
async fn pid_of(connection: &mut sqlx::AnyConnection) -> i32 {
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()");
    pid.fetch_one(connection).await.unwrap()
}

/// Lets the lease run out, as time would.
async fn let_the_lease_run_out(test: &TestStore) {
    let done = sqlx::query("UPDATE owner SET until = until - 10000000")
        .execute(&test.pool)
        .await;
    assert_eq!(done.unwrap().rows_affected(), 1);
}

async fn newest_migration(test: &TestStore) -> Option<i64> {
    let newest = sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations");
    newest.fetch_one(&test.pool).await.unwrap()
}

#[tokio::test]
async fn a_standby_leads_once_the_leader_has_given_its_lease_up_and_then_alone_writes() {
    let test = postgres(i64::MAX).await;
    let (first, second) = (standby(&test, "a:1").await, standby(&test, "b:2").await);
    assert_eq!(first.look().await.unwrap().state, LeaseState::Free);
    let (leader, _) = first.lead().await.unwrap().unwrap();
    leader.renew_lease().await.unwrap();
    let view = second.look().await.unwrap();
    assert_eq!(view.holder(), Some("a:1"), "{view:?}");
    assert!(second.lead().await.unwrap().is_none(), "the lease is held");
    assert!(leader.leads().await.unwrap());

    leader.release_lease().await.unwrap();
    assert_eq!(second.look().await.unwrap().holder(), None);
    let (next, _) = second.lead().await.unwrap().unwrap();
    assert!(next.leads().await.unwrap() && !leader.leads().await.unwrap());
    for refused in [
        leader.renew_lease().await,
        leader.release_lease().await,
        leader.note_chain("a", BlockNumber(1), NOW(1)).await,
    ] {
        assert!(matches!(refused, Err(StoreError::Superseded)), "{refused:?}");
    }
    assert_eq!(first.look().await.unwrap().holder(), Some("b:2"));
}

#[tokio::test]
async fn one_of_two_standbys_takes_a_lease_that_ran_out() {
    let test = postgres(i64::MAX).await;
    let (leader, _) = standby(&test, "a:1").await.lead().await.unwrap().unwrap();
    let_the_lease_run_out(&test).await;
    let (second, third) = (standby(&test, "b:2").await, standby(&test, "c:3").await);
    let (taken, also) = tokio::join!(second.lead(), third.lead());
    let leaders = [taken.unwrap(), also.unwrap()].into_iter().flatten().count();
    assert_eq!(leaders, 1);
    // The old leader's renewal comes late, and is refused.
    assert!(matches!(leader.renew_lease().await, Err(StoreError::Superseded)));
    let holder = second.look().await.unwrap().holder().map(str::to_owned);
    assert!(matches!(holder.as_deref(), Some("b:2" | "c:3")), "{holder:?}");
}

#[tokio::test]
async fn two_processes_that_start_together_on_an_empty_store_make_one_leader() {
    let test = postgres(0).await;
    let (first, second) = (standby(&test, "a:1").await, standby(&test, "b:2").await);
    assert_eq!(first.look().await.unwrap().state, LeaseState::Unknown);
    let (taken, also) = tokio::join!(first.lead(), second.lead());
    let leaders = [taken.unwrap(), also.unwrap()].into_iter().flatten().count();
    assert_eq!(leaders, 1);
}

#[tokio::test]
async fn a_standby_migrates_nothing_before_it_leads() {
    let test = postgres(43).await;
    let standby = standby(&test, "a:1").await;
    assert_eq!(standby.look().await.unwrap().state, LeaseState::Unknown);
    assert_eq!(newest_migration(&test).await, Some(43));
    let (leader, _) = standby.lead().await.unwrap().unwrap();
    assert!(newest_migration(&test).await > Some(43));
    assert!(leader.leads().await.unwrap());
}

#[tokio::test]
async fn a_lease_counts_from_its_taking_however_long_the_migrations_before_it_took() {
    let test = postgres(43).await;
    let standby = standby(&test, "a:1").await;
    let mut held = test.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE cycles IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .unwrap();
    let pid = pid_of(&mut held).await;
    let releasing = async {
        something_waits_for(&test, pid).await;
        let released = tokio::time::Instant::now();
        held.rollback().await.unwrap();
        released
    };
    let (led, released) = tokio::join!(standby.lead(), releasing);
    let (_, since) = led.unwrap().unwrap();
    assert!(since >= released);
}

#[tokio::test]
async fn a_standby_of_an_older_version_is_told_so() {
    let test = postgres(i64::MAX).await;
    let standby = standby(&test, "a:1").await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'of a newer version', TRUE, '', 0)",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    for told in [standby.look().await.map(drop), standby.lead().await.map(drop)] {
        assert!(
            matches!(told, Err(StoreError::Newer { found: 9999, .. })),
            "{told:?}"
        );
    }
    let opened = Standby::open(&test.url, "b:2".to_owned()).await.map(drop);
    assert!(matches!(opened, Err(StoreError::Newer { .. })), "{opened:?}");
}

#[tokio::test]
async fn a_late_write_of_the_leader_before_is_in_the_store_before_the_next_one_leads() {
    let test = postgres(i64::MAX).await;
    let (leader, _) = standby(&test, "a:1").await.lead().await.unwrap().unwrap();
    let_the_lease_run_out(&test).await;
    let mut write = leader.writer().begin().await.unwrap();
    sqlx::query("INSERT INTO chains (genesis, seen_at) VALUES ('late', 1)")
        .execute(&mut *write)
        .await
        .unwrap();
    let pid = pid_of(&mut write).await;
    let next = standby(&test, "b:2").await;
    // The write holds the row of the lease, so the next process waits for its end.
    let committing = async {
        something_waits_for(&test, pid).await;
        write.commit("write late").await
    };
    let (led, committed) = tokio::join!(next.lead(), committing);
    committed.unwrap();
    let (led, _) = led.unwrap().unwrap();
    let found: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM chains WHERE genesis = 'late'")
        .fetch_one(&led.pool())
        .await
        .unwrap();
    assert_eq!(found, 1);
    let late = leader.note_chain("later", BlockNumber(1), NOW(1)).await;
    assert!(matches!(late, Err(StoreError::Superseded)), "{late:?}");
}

//! Stores of every schema that a role ever had, with rows in every table, brought up to date on both engines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, ensure};
use muster_store::migrate;
use muster_store::testing::{TestStore, migrations_in, stores};
use sqlx::migrate::Migrator;
use sqlx::{AnyPool, AssertSqlSafe};

static FACILITATOR: LazyLock<Migrator> = LazyLock::new(|| migrations_in("../facilitator/store/migrations"));
static VALIDATOR: LazyLock<Migrator> = LazyLock::new(|| migrations_in("../validator/store/migrations"));
static MINER: LazyLock<Migrator> = LazyLock::new(|| migrations_in("../miner/migrations"));

/// The rows that a role's program of that migration left behind.
fn rows(role: &str, version: i64) -> Result<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("schemas/{role}-{version}.sql"));
    std::fs::read_to_string(&path).with_context(|| {
        format!(
            "{}: a migration came, so the rows of the schema before it are needed",
            path.display()
        )
    })
}

/// Stores as an older program left them: the schema up to migration `version`, and these rows.
async fn older(migrator: &Migrator, version: i64, rows: &str) -> Result<Vec<TestStore>> {
    let known = migrator
        .iter()
        .filter(|migration| migration.version <= version)
        .cloned();
    let stores = stores(&Migrator::with_migrations(known.collect())).await?;
    for store in &stores {
        sqlx::raw_sql(AssertSqlSafe(rows.to_owned()))
            .execute(&store.pool)
            .await
            .with_context(|| format!("load the rows of migration {version} on {}", store.engine))?;
    }
    Ok(stores)
}

/// Every table with its columns.
async fn schema(store: &TestStore) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let statement = match store.engine {
        "sqlite" => {
            "SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c \
             WHERE m.type = 'table' AND m.name NOT LIKE '\\_sqlx%' ESCAPE '\\' AND m.name NOT LIKE 'sqlite%'"
        }
        _ => {
            "SELECT CAST(table_name AS TEXT), CAST(column_name AS TEXT) FROM information_schema.columns \
             WHERE table_schema = current_schema() AND table_name NOT LIKE '\\_sqlx%'"
        }
    };
    let columns: Vec<(String, String)> = sqlx::query_as(statement).fetch_all(&store.pool).await?;
    let mut tables: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (table, column) in columns {
        tables.entry(table).or_default().insert(column);
    }
    Ok(tables)
}

async fn count(pool: &AnyPool, table: &str) -> Result<i64> {
    let (count,): (i64,) = sqlx::query_as(AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}")))
        .fetch_one(pool)
        .await?;
    Ok(count)
}

/// Migrates from every version; no row is lost and the schema is that of a store that begins today.
async fn from_every_version(role: &str, migrator: &'static Migrator) -> Result<()> {
    let fresh = stores(migrator).await?;
    let latest = migrator.iter().map(|migration| migration.version).max();
    let mut seen = 0;
    for migration in migrator.iter() {
        let rows = match rows(role, migration.version) {
            // The next migration needs the schema that today's program leaves behind.
            Err(_) if Some(migration.version) == latest && seen > 0 => continue,
            rows => rows?,
        };
        for (store, fresh) in older(migrator, migration.version, &rows)
            .await?
            .iter()
            .zip(&fresh)
        {
            let name = format!("{role} {} on {}", migration.version, store.engine);
            let mut before = BTreeMap::new();
            for table in schema(store).await?.into_keys() {
                let rows = count(&store.pool, &table).await?;
                ensure!(
                    rows > 0,
                    "{name}: the table {table} is empty, so nothing is shown about it"
                );
                before.insert(table, rows);
            }
            migrate(&store.pool, migrator).await?;
            ensure!(
                schema(store).await? == schema(fresh).await?,
                "{name}: another schema than a fresh one"
            );
            for (table, rows) in before {
                ensure!(
                    count(&store.pool, &table).await? == rows,
                    "{name}: {table} has lost or gained rows"
                );
            }
            seen += 1;
        }
    }
    ensure!(seen > 0, "{role} has no migrations");
    Ok(())
}

#[tokio::test]
async fn a_facilitators_store_of_every_version() {
    from_every_version("facilitator", &FACILITATOR).await.unwrap();
}

#[tokio::test]
async fn a_validators_store_of_every_version() {
    from_every_version("validator", &VALIDATOR).await.unwrap();
}

#[tokio::test]
async fn a_miners_store_of_every_version() {
    from_every_version("miner", &MINER).await.unwrap();
}

/// The retention migration finds the jobs that earlier reports of cheating name.
#[tokio::test]
async fn jobs_of_earlier_reports_of_cheating_are_disputed() {
    for old in older(&VALIDATOR, 8, &rows("validator", 8).unwrap())
        .await
        .unwrap()
    {
        migrate(&old.pool, &VALIDATOR).await.unwrap();
        let disputed: Vec<(String,)> = sqlx::query_as("SELECT job_id FROM disputes")
            .fetch_all(&old.pool)
            .await
            .unwrap();
        let job = "11111111-2222-4333-8444-555555555552".to_owned();
        assert_eq!(disputed, [(job,)], "{}", old.engine);
    }
}

/// The values that the second migration computes for earlier jobs.
#[tokio::test]
async fn jobs_from_before_accounts_belong_to_their_signatory_and_know_their_end() {
    use muster_facilitator_store::{JobListing, Store};

    const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    for old in older(&FACILITATOR, 1, &rows("facilitator", 1).unwrap())
        .await
        .unwrap()
    {
        let store = Store::open(&old.url).await.unwrap();
        let alice = ALICE.parse().unwrap();
        let listed = store
            .list_jobs(
                &alice,
                &muster_facilitator_core::list_page::JobFilter::default(),
                10,
                0,
            )
            .await
            .unwrap();
        let JobListing::Page(page) = listed else {
            panic!("a page of four jobs is too long")
        };
        let shown: Vec<_> = page
            .jobs
            .iter()
            .map(|job| job.history.visible_status().to_string())
            .collect();
        assert_eq!(
            shown,
            ["rejected", "completed", "accepted", "sent"],
            "{}",
            old.engine
        );
        assert_eq!(page.jobs[3].request.env.keys().collect::<Vec<_>>(), ["B", "A"]);
        let ended: Vec<(i64,)> = sqlx::query_as("SELECT ended_at FROM jobs ORDER BY uuid")
            .fetch_all(&old.pool)
            .await
            .unwrap();
        let base = 1_769_000_000_000_000;
        assert_eq!(ended, [(0,), (0,), (base + 23,), (base + 14,)]);
        assert_eq!(
            store.unanswered_jobs(page.jobs[0].validator).await.unwrap(),
            [page.jobs[3].request.uuid]
        );
    }
}

/// Stores with the rows that the program of commit c63b556c wrote, whose schema was `version`, on both engines.
async fn written(role: &str, version: i64, migrator: &'static Migrator) -> Result<Vec<TestStore>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("stores/{role}-{version}.sql"));
    let rows = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    older(migrator, version, &rows).await
}

/// The subnet of that commit was killed while one job ran, three waited and a session was open.
#[tokio::test]
async fn stores_that_an_earlier_release_wrote_are_read_by_todays_roles() {
    use muster_facilitator_core::list_page::JobFilter;
    use muster_facilitator_store::JobListing;
    use muster_miner::lease_table::LeaseStatus;

    let account = "5GxYuLpeqzbCJWi8xmAq8CJAo1ZbkbDzgMZX7gpVjKHMjwDn"
        .parse()
        .unwrap();
    for old in written("facilitator", 29, &FACILITATOR).await.unwrap() {
        let store = muster_facilitator_store::Store::open(&old.url).await.unwrap();
        let JobListing::Page(page) = store
            .list_jobs(&account, &JobFilter::default(), 20, 0)
            .await
            .unwrap()
        else {
            panic!("a page of eight jobs is too long")
        };
        let shown: Vec<_> = page
            .jobs
            .iter()
            .map(|job| job.history.visible_status().to_string())
            .collect();
        let (open, ended) = shown.split_at(4);
        assert_eq!(
            open,
            ["received", "received", "received", "volumes_ready"],
            "{}",
            old.engine
        );
        assert_eq!(
            ended,
            ["completed", "horde_failed", "failed", "failed"],
            "{}",
            old.engine
        );
    }
    for old in written("validator", 35, &VALIDATOR).await.unwrap() {
        let store = muster_validator::store::Store::open(&old.url).await.unwrap();
        let open = store.open_after(None).await.unwrap().read().unwrap();
        assert_eq!(open.len(), 2, "{}: a job and a session", old.engine);
        assert!(open.iter().all(|job| job.attempts.len() == 1), "{}", old.engine);
        assert_eq!(
            store.waiting_after(None).await.unwrap().len(),
            3,
            "{}",
            old.engine
        );
        for job in store.open_jobs().await.unwrap() {
            assert!(store.job(job).await.unwrap().is_some(), "{}", old.engine);
        }
        assert_eq!(store.cycles(10).await.unwrap().len(), 3, "{}", old.engine);
        assert_eq!(store.receipts(100).await.unwrap().len(), 16, "{}", old.engine);
    }
    for old in written("miner", 3, &MINER).await.unwrap() {
        let records = muster_miner::store::Store::open(&old.url)
            .await
            .unwrap()
            .records()
            .await
            .unwrap();
        let open = records.iter().filter(|record| record.status == LeaseStatus::Open);
        assert_eq!((records.len(), open.count()), (6, 2), "{}", old.engine);
    }
}

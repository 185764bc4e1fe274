//! Every table of every store has a bound, in the code and on the page that operators read: the janitor's rules name
//! it, or another part of the role deletes its rows, or it stays for ever with a reason. A migration with a table that
//! nobody named fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_chain::BlockNumber;
use muster_facilitator_store::{FacilitatorRetention, FacilitatorRetentionConfig};
use muster_protocol::Timestamp;
use muster_scoring::Scores;
use muster_store::retention::{Deletion, Keep, RetentionRules as _};
use muster_store::size::measure_tables;
use muster_store::testing::{TestStore, migrations_in, sqlite};
use muster_validator::store::retention::{RetentionBounds, ValidatorRetentionConfig};
use muster_validator::store::{CycleState, StoredCycle};

const PAGE: &str = "docs/operations/retention.md";
/// The cell of a row whose tables nobody deletes from.
const FOR_EVER: &str = "for ever";

/// The tables of one role, and what bounds each of them.
struct Role {
    /// The heading of its section on the page.
    section: &'static str,
    migrations: &'static str,
    /// Tables whose rows another part of the role deletes, with the folder of the sources that do it.
    elsewhere: &'static [(&'static str, &'static str)],
    /// Tables whose rows stay, with the reason as the page states it.
    kept: &'static [(&'static str, &'static str)],
}

const FACILITATOR: Role = Role {
    section: "Facilitator",
    migrations: "facilitator/store/migrations",
    elsewhere: &[
        ("attempt_bytes", "facilitator/file-store/src/checkpoint_blocks"),
        ("block_bytes", "facilitator/file-store/src/checkpoint_blocks"),
        ("files", "facilitator/file-store/src"),
        ("file_segments", "facilitator/file-store/src"),
        ("job_blocks", "facilitator/file-store/src/checkpoint_blocks"),
        ("replicas", "facilitator/store/src"),
        ("stored_bytes", "facilitator/file-store/src"),
        ("webhook_accounts", "facilitator/webhooks/src"),
    ],
    kept: &[(
        "secrets",
        "tokens, links and URLs that were given out follow from them",
    )],
};

const VALIDATOR: Role = Role {
    section: "Validator",
    migrations: "validator/store/migrations",
    elsewhere: &[
        ("batch_proofs", "validator/grading-runner/src"),
        ("check_news", "validator/cross-checks/src"),
        ("cross_checks", "validator/cross-checks/src"),
        ("grades", "validator/grading-runner/src"),
        ("machine_dependent_images", "validator/cross-checks/src"),
        ("own_checks", "validator/cross-checks/src"),
        ("queue", "validator/store/src"),
        ("refunded_attempts", "validator/cross-checks/src"),
    ],
    kept: &[
        ("burn_readings", "blocks that were read are not read again"),
        (
            "chains",
            "until a chain answers after a start, the newest one is meant",
        ),
        (
            "check_news_numbers",
            "a number does not come again once its news is gone",
        ),
        ("collateral_accounts", "they are the balances"),
        ("collateral_books", "they are the balances"),
        ("collateral_slashes", "a forgotten one could be repeated"),
        ("horizons", "a forgotten key stays refused"),
        ("owner", "a process that has lost the store can write no more"),
    ],
};

const MINER: Role = Role {
    section: "Miner",
    migrations: "miner/migrations",
    elsewhere: &[
        ("audit_findings", "miner/audit-check/src"),
        ("audit_verdicts", "miner/audit-check/src"),
        ("leases", "miner/src"),
    ],
    kept: &[],
};

/// A row of a table on the page.
struct PageRow {
    tables: BTreeSet<String>,
    time: String,
    size: String,
    why: String,
}

impl Role {
    async fn store(&self) -> Result<TestStore> {
        Ok(sqlite(&migrations_in(root().join(self.migrations))).await?)
    }

    /// Compares the tables of `store` with `rules`, with the lists above, and with the page.
    async fn check(&self, store: &TestStore, rules: &[Deletion]) -> Result<()> {
        let role = self.section;
        let schema: BTreeSet<String> = measure_tables(&store.url)
            .await?
            .into_iter()
            .map(|size| size.table)
            .collect();
        ensure!(!schema.is_empty(), "{role} has no tables");
        let mut named = BTreeMap::new();
        for table in rules.iter().flat_map(tables_of) {
            named.insert(table, "a rule of the janitor");
        }
        for (table, folder) in self.elsewhere {
            ensure!(
                deletes_from(&root().join(folder), table)?,
                "{role}: nothing in {folder} deletes from {table}"
            );
            let other = named.insert(*table, "a deletion elsewhere");
            ensure!(other.is_none(), "{role}: {table} has {other:?} already");
        }
        for (table, reason) in self.kept {
            ensure!(!reason.is_empty(), "{role}: {table} stays for ever for no reason");
            let other = named.insert(*table, "a reason to stay");
            ensure!(other.is_none(), "{role}: {table} has {other:?} already");
        }
        let named: BTreeSet<String> = named.into_keys().map(str::to_owned).collect();
        ensure!(
            named == schema,
            "{role}: {:?} have no bound: give each a rule of retention, or name in this test what deletes its rows or \
             why they stay; {:?} are no tables",
            schema.difference(&named).collect::<Vec<_>>(),
            named.difference(&schema).collect::<Vec<_>>()
        );
        self.compare_page(&schema)
    }

    fn compare_page(&self, schema: &BTreeSet<String>) -> Result<()> {
        let role = self.section;
        let rows = page_rows(role)?;
        let shown: BTreeSet<String> = rows.iter().flat_map(|row| row.tables.clone()).collect();
        ensure!(
            shown == *schema,
            "{PAGE}, {role}: {:?} are missing, {:?} are no tables",
            schema.difference(&shown).collect::<Vec<_>>(),
            shown.difference(schema).collect::<Vec<_>>()
        );
        let kept: BTreeMap<&str, &str> = self.kept.iter().copied().collect();
        for row in &rows {
            let is_bounded = [&row.time, &row.size].iter().any(|cell| !is_blank(cell));
            ensure!(is_bounded, "{PAGE}, {role}: {:?} have no bound", row.tables);
            for table in &row.tables {
                let reason = kept.get(table.as_str());
                ensure!(
                    reason.is_some() == (row.time == FOR_EVER),
                    "{PAGE}, {role}: {table} stays for ever in one of the page and this test, not in both"
                );
                ensure!(
                    reason.is_none_or(|reason| row.why == *reason),
                    "{PAGE}, {role}: {table} stays because {:?}, and in this test because {reason:?}",
                    row.why
                );
            }
        }
        Ok(())
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The tables from which a deletion takes rows.
fn tables_of(deletion: &Deletion) -> Vec<&'static str> {
    match deletion {
        Deletion::Aged { rows, .. } => vec![rows.table],
        Deletion::Rows { table, .. } => vec![*table],
        Deletion::Tree { table, parts, .. } => parts.iter().map(|(part, _)| *part).chain([*table]).collect(),
    }
}

/// Whether a statement in the Rust sources below `folder` deletes rows of `table`.
fn deletes_from(folder: &Path, table: &str) -> Result<bool> {
    let statement = format!("DELETE FROM {table} ");
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let found = match path.is_dir() {
            true => deletes_from(&path, table)?,
            false => fs::read_to_string(&path)?.contains(&statement),
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The rows of the first table below a heading of the page.
fn page_rows(section: &str) -> Result<Vec<PageRow>> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let (_, below) = page
        .split_once(&format!("\n## {section}\n"))
        .with_context(|| format!("{PAGE} has no section {section}"))?;
    let lines = below.lines().skip_while(|line| !line.starts_with('|'));
    let mut rows = Vec::new();
    // The first two lines are the heads of the columns and their border.
    for line in lines.take_while(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[tables, time, size, why] = cells.as_slice() else {
            anyhow::bail!("{PAGE}: {line:?} has not four cells");
        };
        rows.push(PageRow {
            tables: tables.split('`').skip(1).step_by(2).map(str::to_owned).collect(),
            time: time.to_owned(),
            size: size.to_owned(),
            why: why.to_owned(),
        });
    }
    ensure!(!rows.is_empty(), "{PAGE}: the section {section} has no table");
    Ok(rows)
}

fn is_blank(cell: &str) -> bool {
    cell.is_empty() || cell == "–"
}

#[tokio::test]
async fn each_table_of_the_facilitator_has_a_rule_or_a_reason() {
    let test = FACILITATOR.store().await.unwrap();
    let store = muster_facilitator_store::Store::open(&test.url).await.unwrap();
    let rules = FacilitatorRetention::new(store, FacilitatorRetentionConfig::default());
    let due = rules.due(Timestamp::from_secs(1_769_000_000), &[]).await.unwrap();
    FACILITATOR.check(&test, &due).await.unwrap();
}

#[tokio::test]
async fn each_table_of_the_validator_has_a_rule_or_a_reason() {
    let test = VALIDATOR.store().await.unwrap();
    let store = muster_validator::store::Store::with_pool(test.pool.clone())
        .await
        .unwrap();
    let now = Timestamp::from_secs(1_769_000_000);
    store.note_chain("chain", BlockNumber(9), now).await.unwrap();
    // Rows that scoring reads go only once their cycle is settled.
    let settled = StoredCycle {
        number: 1,
        first_block: 0,
        last_block: 9,
        state: CycleState::Set,
        scores: Scores::default(),
        snapshot: None,
        weights: vec![],
        reveal: None,
        on_its_way: None,
        error: None,
        at_block: 9,
        changed_at: now,
    };
    assert!(store.begin_cycle(&settled, None).await.unwrap());
    let bounds = RetentionBounds {
        signature_age: Duration::from_secs(300),
        catch_up: Duration::from_secs(18_000),
        batch_blocks: 0,
    };
    let config = ValidatorRetentionConfig::default();
    let due = store.due_deletions(&config, bounds, now, &[]).await.unwrap();
    VALIDATOR.check(&test, &due).await.unwrap();
}

#[tokio::test]
async fn each_table_of_the_miner_has_a_rule_or_a_reason() {
    let test = MINER.store().await.unwrap();
    let keep = Keep {
        days: 30,
        rows: 1_000,
        mib: 64,
    };
    let store = muster_miner::store::Store::on(test.pool.clone());
    let (rules, _) = store.retention(keep).unwrap();
    let due = rules.due(Timestamp::from_secs(1_769_000_000), &[]).await.unwrap();
    MINER.check(&test, &due).await.unwrap();
}

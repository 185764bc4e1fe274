//! The rows of one hour in the tables whose writers have rules of their own, which are not the matter here.

use muster_protocol::Timestamp;
use sqlx::AnyPool;

/// Statements with the number of the hour and its time in microseconds.
const ROWS: &[&str] = &[
    // The newest job, which the tables of its parts refer to.
    "INSERT INTO feedback (job, feedback, given_at) \
     SELECT uuid, CAST($1 AS TEXT), $2 FROM jobs ORDER BY rowid DESC LIMIT 1",
    "INSERT INTO cheat_reports (job, validator, report, reported_at, delivered_at) \
     SELECT uuid, validator, CAST($1 AS TEXT), $2, $2 FROM jobs ORDER BY rowid DESC LIMIT 1",
    "INSERT INTO job_checks (job, notice, told_at) \
     SELECT uuid, CAST($1 AS TEXT), $2 FROM jobs ORDER BY rowid DESC LIMIT 1",
    "INSERT INTO webhook_messages (job, account, url, state, attempts, next_at, error, changed_at) \
     SELECT uuid, account, CAST($1 AS TEXT), 'delivered', 1, $2, '', $2 FROM jobs ORDER BY rowid DESC LIMIT 1",
    "INSERT INTO progress (job, stage, done, total) \
     SELECT uuid, 'download', $1, $2 FROM jobs ORDER BY rowid DESC LIMIT 1",
    "INSERT INTO queue_places (job, class, ahead, waiting, estimate_s, why, told_at) \
     SELECT uuid, 'always_on.test', $1, 0, -1, '', $2 FROM jobs ORDER BY rowid DESC LIMIT 1",
    // Chats, and what validators report about them.
    "INSERT INTO answer_reports (job, account, validator, report, reported_at, delivered_at) \
     VALUES ('session ' || $1, 'User', 'Validator', '', $2, $2)",
    "INSERT INTO refunds (validator, response, client, model, day, input_tokens, output_tokens, bundle, told_at) \
     VALUES ('Validator', 'answer ' || $1, 'client', 'tiny', $2 / 86400000000, 1, 1, 'bundle', $2)",
    "INSERT INTO miner_reports (validator, miner, report, told_at) VALUES ('Validator', 'miner ' || $1, '{}', $2)",
    "INSERT INTO validators (hotkey, seen_at) VALUES ('validator ' || $1, $2)",
    // Accounts, their keys and their sign-ins.
    "INSERT INTO quotas (account, day, jobs) VALUES ('account ' || $1, $2 / 86400000000, 1)",
    "INSERT INTO api_keys (id, hash, account, name, created_at, revoked_at) \
     VALUES ('key ' || $1, 'hash ' || $1, 'User', 'revoked', $2, $2)",
    "INSERT INTO web_links (hash, account, credential, created_at, expires_at) \
     VALUES ('link ' || $1, 'User', 'hotkey', $2, $2 + 4000000000)",
    "INSERT INTO web_sessions (hash, account, credential, browser, created_at, expires_at) \
     VALUES ('session ' || $1, 'User', 'hotkey', '', $2, $2 + 86400000000)",
    "INSERT INTO account_deletions (account, requested_at, finished_at) VALUES ('gone ' || $1, $2, $2)",
    "INSERT INTO webhook_accounts (account, secret, url, changed_at) VALUES ('User', CAST($1 AS TEXT), '', $2) \
     ON CONFLICT (account) DO UPDATE SET changed_at = excluded.changed_at",
];

pub(super) async fn write(pool: &AnyPool, hour: i64, now: Timestamp) {
    let mut transaction = pool.begin().await.unwrap();
    for statement in ROWS {
        let query = sqlx::query(*statement).bind(hour).bind(now.micros());
        query.execute(&mut *transaction).await.unwrap();
    }
    transaction.commit().await.unwrap();
}

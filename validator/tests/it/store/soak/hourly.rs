//! The rows of one hour in the tables of chats, audits, grading and the chain, whose writers have rules of their own,
//! which are not the matter here.

use muster_protocol::Timestamp;
use sqlx::AnyPool;

/// Statements with the number of the hour and its time in microseconds: one row each.
const ROWS: &[&str] = &[
    // A session that has closed, and the log of its answers.
    "INSERT INTO sessions (session_id, job_id, miner, model, address, attestation, opened_at, closed_at) \
     VALUES ('session ' || $1, 'job of session ' || $1, 'miner', 'tiny', 'address', 'attestation', $2, $2)",
    "INSERT INTO other_proofs (session_id, sequence, proof, kept_at) VALUES ('session ' || $1, 0, 'proof', $2)",
    "INSERT INTO answer_buckets (bucket, answers, header, shares, canary_list, closed_at) \
     VALUES ($1, 1, 'header', '[]', 'list ' || $1, $2)",
    "INSERT INTO canaries (list, position, salt, request, sent_at, made_at) \
     VALUES ('list ' || $1, 0, 'salt', 'request', $2, $2)",
    "INSERT INTO written_prompts (model, prompt, written_at) VALUES ('tiny', 'prompt ' || $1, $2)",
    "INSERT INTO nonce_periods (period, block_hash, began_at) VALUES ($1, 'hash', $2)",
    // Audits, and what is reported of them to validators and miners.
    "INSERT INTO audit_runs (run_id, coldkey, model, state, answers, scored, began_at, ended_at) \
     VALUES ('run ' || $1, 'coldkey', 'tiny', 'judged', 1, 1, $2, $2)",
    "INSERT INTO self_tests (test_id, model, state, answers, cheated, began_at, ended_at, evidence) \
     VALUES ('test ' || $1, 'tiny', 'passed', 1, 1, $2, $2, 'bundle')",
    "INSERT INTO audit_verdicts (genesis, digest, coldkey, miners, model, verdict, quality, body, adopted_at, origin, \
     author, through_bucket) \
     VALUES ('chain', 'bundle ' || $1, 'coldkey', '[]', 'tiny', 'consistent', 1000, 'bundle', $2, 'own', 'author', $1)",
    "INSERT INTO audit_offers (genesis, author, digest, through_bucket, bytes, state, seen_at, seen_block) \
     VALUES ('chain', 'author', 'offer ' || $1, $1, 1, 'adopted', $2, $1)",
    "INSERT INTO audit_endorsements (genesis, digest, validator, statement, seen_at) \
     VALUES ('chain', 'offer ' || $1, 'validator', 'statement', $2)",
    "INSERT INTO audit_self_tests (genesis, validator, tested_at, statement, seen_at) \
     VALUES ('chain', 'validator', $2, 'statement ' || $1, $2)",
    "INSERT INTO audit_notices (miner, kind, about, made_at, delivered_at) \
     VALUES ('miner', 'header', CAST($1 AS TEXT), $2, $2)",
    "INSERT INTO audit_appeals (bundle, received_at, miner, coldkey, model, appeal, reason, open_until, ended_at) \
     VALUES ('bundle ' || $1, $2, 'miner', 'coldkey', 'tiny', 'appeal', 'reason', $2, $2)",
    // Grading.
    "INSERT INTO batches (batch_id, block, state, began_at, ended_at, head) \
     VALUES ('batch ' || $1, $1 * 300, 'done', $2, $2, '{}')",
    "INSERT INTO batch_proofs (batch_id, place, number, proof) VALUES ('batch ' || $1, 0, 0, CAST($2 AS TEXT))",
    "INSERT INTO grades (batch_id, place, miner, class, seat, grade, judgement, evidence) \
     VALUES ('batch ' || $1, 0, 'miner', 'class', 0, 'proven', CAST($2 AS TEXT), '{}')",
    "INSERT INTO capacities (batch_id, miner, class, block, proven, excused) \
     VALUES ('batch ' || $1, 'miner', 'class', $1 * 300, 1, $2 * 0)",
    "INSERT INTO excuses (batch_id, miner, class, attempt_id, at, until_at, state) \
     VALUES ('batch ' || $1, 'miner', 'class', 'attempt', $2, $2, 'covered')",
    // Receipts of others, and the pages on which receipts are read.
    "INSERT INTO gathered (validator, attempt_id, kind, miner, payload, digest, validator_signature, miner_signature, \
     written_at, chain, block) \
     VALUES ('validator', 'attempt ' || $1, 'finished', 'miner', '{}', 'digest', '', '', $2, 'chain', $1 * 300)",
    "INSERT INTO gathered_amounts (chain, validator, miner, cycle, receipts, bytes, written_at) \
     VALUES ('chain', 'validator', 'miner', $1 * 300, 1, 2, $2)",
    "INSERT INTO pages_read (miner, page, next_byte, settled) VALUES ('miner', $2 / 300000000, $1, 1)",
    "INSERT INTO receipt_lines (page, first, length, line) VALUES ($2 / 300000000, 0, 1, CAST($1 AS TEXT))",
    "INSERT INTO refused_receipts (miner, reason, refused, last_at, example) \
     VALUES ('miner ' || $1, 'reason', 1, $2, 'line')",
    // Reports of cheating about jobs that are gone, and turns in the queue.
    "INSERT INTO cheat_reports (signatory, timestamp_ns, report, received_at) VALUES ('user', $1, '{}', $2)",
    "INSERT INTO disputes (job_id, reported_at) VALUES ('gone job ' || $1, $2)",
    "INSERT INTO queue_turns (class, account, ticket) VALUES ('class', 'account ' || $1, $1 + $2 * 0)",
    // The chain and what validators state about it.
    "INSERT INTO epochs (chain, first_block, first_ms, block_ms, permitted, proven) \
     VALUES ('chain', $1 * 300, $2 / 1000, 12000, '[]', '[]')",
    "INSERT INTO capacity_statements (chain, cycle, validator, digest, body, received_at) \
     VALUES ('chain', $1, 'validator', 'digest', '{}', $2)",
    "INSERT INTO capacity_evidence (digest, body, written_at) VALUES ('digest ' || $1, '{}', $2)",
    "INSERT INTO audit_header_notes (genesis, author, bucket, digest, header, seen_block, seen_at) \
     VALUES ('', 'author ' || $1, 1, 'digest', 'signed', 1, $2)",
    "INSERT INTO own_lists (list, bucket, place, salt, session, miner, model, length, root, committed_at) \
     VALUES ('list ' || $1, $1, 0, '', '', '', 'tiny', 1, '', $2)",
    "INSERT INTO audit_second_headers (genesis, author, bucket, first, second, seen_at) \
     VALUES ('', 'author ' || $1, 1, 'signed', 'signed', $2)",
    "INSERT INTO capacity_sightings (chain, cycle, validator, digest, body, source, seen_at) \
     VALUES ('chain', $1, 'validator', 'digest', '{}', '', $2)",
    "INSERT INTO main_hotkeys (chain, cycle, miner, main, answered_at) VALUES ('chain', $1, 'miner', 'main', $2)",
    "INSERT INTO burned_transfers (genesis, account, block, payer, amount, read_at) \
     VALUES ('chain', 'burn', $1 * 300, 'payer', 1, $2)",
];

/// Statements with the number of answers besides: as many rows of the session each.
const ANSWERS: &[&str] = &[
    "INSERT INTO responses (response_id, session_id, client, model, asked_at, ended_at, status, how_ended, verdict, \
     proof, sequence, bytes, input_tokens, output_tokens, earned, bucket, position, drawn) \
     SELECT 'answer ' || $1 || ' ' || i, 'session ' || $1, 'client', 'tiny', $2, $2, 200, 'whole', 'proven', \
     'proof', i, 1, 1, 1, 1, $1, i, 1 FROM answers",
    "INSERT INTO pairs (response_id, request, response, gathered_at) \
     SELECT 'answer ' || $1 || ' ' || i, 'request', 'response', $2 FROM answers",
    "INSERT INTO request_forms (response_id, model, client, form, seen_at) \
     SELECT 'answer ' || $1 || ' ' || i, 'tiny', 'client', '{}', $2 FROM answers",
    "INSERT INTO answer_scores (response_id, reference, outcome, scored_at) \
     SELECT 'answer ' || $1 || ' ' || i, 0, '{}', $2 FROM answers",
    "INSERT INTO answer_ids (response_id, prompt, output, kept_at) \
     SELECT 'answer ' || $1 || ' ' || i, '[]', '[]', $2 FROM answers",
];

pub(super) async fn write(pool: &AnyPool, hour: i64, answers: i64, now: Timestamp) {
    let mut transaction = pool.begin().await.unwrap();
    for statement in ROWS {
        let query = sqlx::query(*statement).bind(hour).bind(now.micros());
        query.execute(&mut *transaction).await.unwrap();
    }
    for statement in ANSWERS {
        let numbered = format!(
            "WITH RECURSIVE answers (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM answers WHERE i < $3) {statement}"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(numbered));
        let query = query.bind(hour).bind(now.micros()).bind(answers);
        query.execute(&mut *transaction).await.unwrap();
    }
    transaction.commit().await.unwrap();
}

//! Checking receipts' signatures: many at once against one after the other.

use std::hint::black_box;

use muster_bench::{Direction, Report, Row, take_turns, timed};
use muster_identity::{Domain, Keypair, SignatureClaim, SigningMessage, verify, verify_batch};

/// About what one page of receipts holds.
const RECEIPTS: u32 = 1_000;
const ROUNDS: usize = 15;
/// With it a message has 256 bytes.
const BENCH: Domain = Domain::new("muster/benched/1");

fn main() -> anyhow::Result<()> {
    let pairs: Vec<Keypair> = (0..8).map(|seed| Keypair::from_seed([seed; 32])).collect();
    let messages: Vec<_> = (0..RECEIPTS)
        .map(|n| SigningMessage::tagged(BENCH, &n.to_be_bytes().repeat(60)))
        .collect();
    let signed: Vec<_> = messages
        .iter()
        .zip(pairs.iter().cycle())
        .map(|(message, pair)| (pair.hotkey(), message, pair.sign(message)))
        .collect();
    let claims: Vec<SignatureClaim<'_>> = signed
        .iter()
        .map(|(key, message, signature)| SignatureClaim {
            key,
            message: message.as_bytes(),
            signature,
        })
        .collect();
    let turns = take_turns(
        ROUNDS,
        || per_signature(|| verify_batch(&claims)),
        || {
            per_signature(|| {
                claims
                    .iter()
                    .map(|c| verify(c.key, c.message, c.signature))
                    .collect()
            })
        },
    )?;
    let row = Row::against(
        "checking a signature",
        "µs",
        Direction::LowerIsBetter,
        "sp-core, one after the other",
        turns,
    );
    Report {
        rows: vec![row.target(0.6)],
        notes: vec![format!("{RECEIPTS} messages of 256 bytes by 8 keys, one core")],
    }
    .print()
}

/// Microseconds for each, when all of them hold.
fn per_signature(check: impl Fn() -> Vec<bool>) -> anyhow::Result<f64> {
    let (answers, spent) = timed(|| black_box(check()));
    anyhow::ensure!(
        answers.iter().all(|answer| *answer),
        "a true signature was refused"
    );
    Ok(spent.as_secs_f64() * 1e6 / f64::from(RECEIPTS))
}

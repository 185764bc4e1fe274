//! Runs every parser over a fixed number of seeded inputs: golden frames, mutated. The inputs are the same in every
//! run.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../../fuzz/targets.rs"]
mod targets;

/// Inputs for each target; `MUSTER_FUZZ_INPUTS` sets another number.
const INPUTS: usize = 10_000;

/// Pieces of text that parsers often handle wrongly.
const TOKENS: &[&str] = &[
    "null",
    "true",
    "-1",
    "1e999",
    "18446744073709551616",
    "\"\"",
    "[]",
    "{}",
    "\\u0000",
    "\\ud800",
    "{\"a\":",
    "[[[[[[[[",
    "\"message_type\":\"V0Heartbeat\",",
    "é",
    "\u{feff}",
    "0x",
    "unknown",
    "2026-01-21T12:34:56Z",
    "multi_volume",
    ",",
    "\"",
    "}",
];

/// xorshift64*: the seed determines the whole run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

fn seeds() -> Vec<String> {
    let nonce = "0123456789abcdef0123456789abcdef:1vC5kq:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNO-_";
    let mut seeds = vec![String::new(), "{}".to_owned(), nonce.to_owned()];
    for text in [
        include_str!("../../../../../tests/vectors/wire.json"),
        include_str!("../../../../../tests/vectors/python.json"),
    ] {
        let vectors: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
        seeds.extend(
            vectors
                .values()
                .filter_map(|value| value.as_str().map(str::to_owned)),
        );
    }
    seeds
}

fn mutate(random: &mut Random, seeds: &[String]) -> String {
    let mut bytes = seeds[random.below(seeds.len())].clone().into_bytes();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, TOKENS[random.below(TOKENS.len())].bytes())),
            3 => {
                let other = seeds[random.below(seeds.len())].as_bytes();
                let from = random.below(other.len() + 1);
                drop(bytes.splice(at.., other[from..].iter().copied()));
            }
            4 => {
                let end = at + random.below(bytes.len() - at + 1);
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            _ => {
                let end = at + random.below(bytes.len() - at + 1);
                drop(bytes.drain(at..end));
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn no_input_breaks_a_parser() {
    let inputs = std::env::var("MUSTER_FUZZ_INPUTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(INPUTS);
    let seeds = seeds();
    for (name, target) in targets::TARGETS {
        let mut random = Random(0x6d75_7374_6572_0001);
        for seed in &seeds {
            target(seed);
        }
        for round in 0..inputs {
            let input = mutate(&mut random, &seeds);
            if let Err(panic) = std::panic::catch_unwind(|| target(&input)) {
                eprintln!("target {name}, round {round}, input:\n{input}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

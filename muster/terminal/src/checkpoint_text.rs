//! The checkpoints of a job as text.

use muster_protocol::job::KeptCheckpoint;

use crate::print::{self, plain};

/// Prints a row for each checkpoint.
pub fn print_table(checkpoints: &[KeptCheckpoint]) {
    print::table(
        &["n", "name", "bytes", "epoch", "step", "metric", "kept at"],
        checkpoints.iter().map(row),
    );
}

fn row(checkpoint: &KeptCheckpoint) -> Vec<String> {
    let count = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    vec![
        checkpoint.ordinal.to_string(),
        // A job's program chose it.
        plain(&checkpoint.name),
        checkpoint.bytes.to_string(),
        count(checkpoint.epoch),
        count(checkpoint.step),
        checkpoint
            .metric
            .map(|value| f64::from(value).to_string())
            .unwrap_or_default(),
        checkpoint.at.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Digest, Timestamp};

    use super::*;

    #[test]
    fn a_name_commands_no_terminal() {
        let checkpoint = KeptCheckpoint {
            ordinal: 3,
            attempt: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            manifest: Digest::of(b"a"),
            name: "step\u{1b}]0;x\u{7}\r\n\u{202e}9".to_owned(),
            bytes: 5,
            epoch: None,
            step: Some(9),
            metric: None,
            at: Timestamp::from_secs(1),
        };
        let cells = row(&checkpoint);
        assert_eq!(cells.get(1).unwrap(), "step·]0;x····9");
        assert_eq!(cells.len(), 7);
    }
}

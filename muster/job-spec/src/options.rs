//! Options of a job on the command line, which `muster job` takes: its terms, its times, and reports about it.

mod checkpoints;
mod machine;
mod report;
mod since;
mod start;
mod terms;

use std::time::Duration;

pub use checkpoints::{
    CheckpointChoice, CheckpointOptions, NamedCheckpoint, read_best_metric, read_choice, read_resume_source,
    read_stall,
};
pub use machine::{MachineOptions, gpus, memory};
pub use report::ReportOptions;
pub use since::{Since, read_since};
pub use start::{StartOptions, entrypoint, workdir};
pub use terms::TermsOptions;

/// Reads `90`, `90s`, `15m`, `2h`, `1d`, `1h30m`.
///
/// # Errors
/// The text is no time, or none at all.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parts: Vec<_> = text
        .split_inclusive(|letter: char| !letter.is_ascii_digit())
        .collect();
    let [_, _, ..] = parts.as_slice() else {
        return part_of_duration(text);
    };
    if !text.ends_with(|letter: char| letter.is_ascii_alphabetic()) {
        return Err(format!(
            "write 1h30m, with a unit behind each number, instead of {text:?}"
        ));
    }
    let mut sum = Duration::ZERO;
    for part in parts {
        sum = sum.saturating_add(part_of_duration(part)?);
    }
    Ok(sum)
}

fn part_of_duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = text
        .find(|c: char| !c.is_ascii_digit())
        .map_or((text, "s"), |at| text.split_at(at));
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(format!("write 90, 90s, 15m, 2h or 1d instead of {text:?}")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("write 90, 90s, 15m, 2h or 1d instead of {text:?}"))?;
    match number.checked_mul(scale) {
        Some(secs) if secs > 0 => Ok(Duration::from_secs(secs)),
        Some(_) | None => Err(format!("{text:?} is not a valid duration")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_are_seconds_without() {
        for (text, secs) in [
            ("90", 90),
            ("90s", 90),
            ("15m", 900),
            ("2h", 7_200),
            ("1d", 86_400),
            ("1h30m", 5_400),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for bad in [
            "",
            "m",
            "1w",
            "-1",
            "0",
            "1.5h",
            "1h30",
            "1h m",
            "99999999999999999999",
            "9999999999999999999d",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}

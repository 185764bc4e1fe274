//! The offers of a subnet as text: each class, and how long a job of the user's would wait.

use muster_protocol::rest::{ClassOffer, ValidatorCapacity, WATCHED_DISK_NOTE};

use crate::{job_text, print};

/// Prints the classes that a validator offers, the reasons why jobs wait, and its limits.
pub fn print_offers(offers: &ValidatorCapacity) {
    print::table(
        &[
            "class",
            "hardware",
            "executors",
            "free",
            "running",
            "private images",
            "before you",
            "a job of yours",
        ],
        offers.classes.iter().map(row),
    );
    let reasons = offers.classes.iter().filter(|offer| !offer.why.is_empty());
    for offer in reasons {
        print::line(format_args!(
            "  {} jobs wait for {}: {}",
            offer.waiting, offer.class, offer.why
        ));
    }
    for offer in offers.classes.iter().filter(|offer| offer.has_watched_disks()) {
        print::line(format_args!("  {}", disk_note(offer)));
    }
    let limits = offers.limits;
    print::line(format_args!(
        "limits: a job {}, its image {} ({} without --image-time-limit), the queue {} ({} without --queue-time)",
        span(limits.job_s),
        span(limits.image_s),
        span(limits.image_default_s),
        span(limits.queue_s),
        span(limits.queue_default_s),
    ));
}

fn disk_note(offer: &ClassOffer) -> String {
    format!("{}: {WATCHED_DISK_NOTE}", offer.class)
}

fn row(offer: &ClassOffer) -> Vec<String> {
    vec![
        offer.class.to_string(),
        offer.hardware.clone().unwrap_or_else(|| "?".to_owned()),
        offer.executors.to_string(),
        offer.free.to_string(),
        offer.running.to_string(),
        offer.private_images.to_string(),
        offer.ahead.to_string(),
        prospect(offer),
    ]
}

/// When the user's next job of this class would start.
fn prospect(offer: &ClassOffer) -> String {
    match (offer.executors, offer.estimate_s) {
        (0, _) => "waits for a miner".to_owned(),
        (_, Some(0)) => "starts now".to_owned(),
        (_, Some(seconds)) => format!("waits {}", job_text::wait(seconds)),
        (_, None) if offer.ahead == 0 && offer.free > 0 => "starts now".to_owned(),
        (_, None) => "waits; nobody knows how long".to_owned(),
    }
}

/// A time limit in its largest whole unit: `30 d`, `45 min`.
fn span(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let whole = units
        .into_iter()
        .find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    match whole {
        Some((unit, name)) => format!("{} {name}", seconds / unit),
        None => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::ExecutorClass;

    use super::*;

    #[test]
    fn a_user_reads_when_a_job_would_start() {
        let offer = |executors, free, ahead, estimate_s| ClassOffer {
            class: ExecutorClass::AlwaysOnTest,
            hardware: None,
            miners: 1,
            executors,
            free,
            running: 0,
            private_images: 0,
            waiting: ahead,
            ahead,
            estimate_s,
            why: String::new(),
        };
        assert_eq!(prospect(&offer(2, 1, 0, Some(0))), "starts now");
        assert_eq!(prospect(&offer(2, 1, 0, None)), "starts now");
        assert_eq!(prospect(&offer(2, 0, 3, Some(200))), "waits about 4 min");
        assert_eq!(prospect(&offer(2, 0, 3, None)), "waits; nobody knows how long");
        assert_eq!(prospect(&offer(0, 0, 1, None)), "waits for a miner");
        assert_eq!(row(&offer(2, 1, 0, Some(0)))[1], "?");
        let mut watched = offer(2, 1, 0, None);
        assert!(!watched.has_watched_disks());
        watched.hardware = Some("8 cores, some with a watched disk".to_owned());
        assert!(watched.has_watched_disks());
        let note = disk_note(&watched);
        assert!(
            note.starts_with("always_on.test: some executors have a watched disk"),
            "{note}"
        );
        for (seconds, text) in [
            (90, "90 s"),
            (1_800, "30 min"),
            (3_600, "1 h"),
            (2_592_000, "30 d"),
            (0, "0 s"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}

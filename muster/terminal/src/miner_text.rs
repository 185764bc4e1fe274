//! A miner's machines as text for people: as validators proved them and as the miner claims them.

use muster_protocol::Timestamp;
use muster_protocol::rest::{MinerReport, MinerView};
use muster_protocol::wire::machines::{ClaimedSpecs, MachineLoad, plain};

use crate::job_text::age;
use crate::print;

/// A miner as each validator reports it, with a line feed after each line.
pub fn describe_miner(view: &MinerView, now: Timestamp) -> String {
    let mut text = format!("miner    {}\n", view.miner);
    for report in &view.results {
        let age = age(report.told_at, now);
        text.push_str(&format!("validator {}, told {age} ago\n", report.validator));
        for line in describe(report) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// The lines about one validator's report: what is proven, and then what is only claimed.
pub fn describe(report: &MinerReport) -> Vec<String> {
    let mut lines = vec!["  proven by the validator's challenges:".to_owned()];
    for class in &report.proven {
        lines.push(format!(
            "    {}: {} of {} executors, at block {}",
            class.class, class.proven, class.challenged, class.block
        ));
    }
    if report.proven.is_empty() {
        lines.push("    nothing yet".to_owned());
    }
    lines.push("  claimed by the miner, checked by nobody:".to_owned());
    let claims = &report.claims;
    for offer in &claims.offers {
        lines.push(format!("    offers {} x {}", offer.executors, offer.class));
    }
    lines.extend(claims.specs.iter().map(specs));
    lines.extend(claims.machines.iter().map(load));
    if claims.offers.is_empty() && claims.specs.is_empty() && claims.machines.is_empty() {
        lines.push("    nothing".to_owned());
    }
    lines
}

/// The specs of a machine in a line. The facilitator is another party, so its texts are cleaned here too.
fn specs(specs: &ClaimedSpecs) -> String {
    let mut parts: Vec<String> = specs.gpus.iter().map(|kind| plain(kind)).collect();
    if specs.cores > 0 {
        parts.push(
            format!("{} cores {}", specs.cores, plain(&specs.cpu))
                .trim_end()
                .to_owned(),
        );
    }
    for (amount, what) in [(specs.memory, "memory"), (specs.disk, "disk")] {
        if amount > 0 {
            parts.push(format!("{} {what}", print::size(amount)));
        }
    }
    if !specs.os.is_empty() {
        parts.push(plain(&specs.os));
    }
    format!("    specs of {}: {}", specs.class, parts.join(", "))
}

/// The load of a machine in a line.
fn load(load: &MachineLoad) -> String {
    let percent = |used: u64, total: u64| used.saturating_mul(100).checked_div(total).unwrap_or(0);
    let gpus = match load.gpus {
        0 => String::new(),
        count => format!(
            ", {count} GPUs {}% busy with {}% of their memory",
            load.gpu_percent,
            percent(load.gpu_memory_used, load.gpu_memory_total)
        ),
    };
    format!(
        "    executor {} ({}): processors {}% busy, memory {}%, disk {}%{gpus}",
        plain(&load.name),
        load.class,
        load.cpu_permille / 10,
        percent(load.memory_used, load.memory_total),
        percent(load.disk_used, load.disk_total),
    )
}

#[cfg(test)]
mod tests {
    use muster_protocol::wire::machines::{ClaimedOffer, MinerClaims, ProvenClass};
    use muster_protocol::{ExecutorClass, Hotkey, Timestamp, ValidatorKey};

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    #[test]
    fn proven_and_claimed_hardware_stand_apart() {
        let mut report = MinerReport {
            validator: ValidatorKey(Hotkey::from_bytes([1; 32])),
            told_at: Timestamp::from_secs(0),
            proven: vec![],
            claims: MinerClaims::default(),
        };
        assert_eq!(
            describe(&report),
            [
                "  proven by the validator's challenges:",
                "    nothing yet",
                "  claimed by the miner, checked by nobody:",
                "    nothing",
            ]
        );
        report.proven.push(ProvenClass {
            class: CLASS,
            challenged: 3,
            proven: 2,
            block: 9,
        });
        report.claims.offers.push(ClaimedOffer {
            class: CLASS,
            executors: 4,
        });
        report.claims.specs.push(ClaimedSpecs {
            class: CLASS,
            told_at: Timestamp::from_secs(0),
            cpu: "EPYC\u{1b}[2J".to_owned(),
            cores: 8,
            memory: 0,
            disk: 0,
            os: "Debian".to_owned(),
            gpus: vec!["2 x A6000".to_owned()],
        });
        report.claims.machines.push(MachineLoad {
            name: "box-7".to_owned(),
            class: CLASS,
            at: Timestamp::from_secs(0),
            cpu_permille: 255,
            memory_total: 4,
            memory_used: 1,
            disk_total: 0,
            disk_used: 1,
            gpus: 2,
            gpu_percent: 50,
            gpu_memory_total: 10,
            gpu_memory_used: 1,
        });
        assert_eq!(
            describe(&report),
            [
                "  proven by the validator's challenges:",
                "    always_on.test: 2 of 3 executors, at block 9",
                "  claimed by the miner, checked by nobody:",
                "    offers 4 x always_on.test",
                "    specs of always_on.test: 2 x A6000, 8 cores EPYC[2J, Debian",
                "    executor box-7 (always_on.test): processors 25% busy, memory 25%, disk 0%, 2 GPUs 50% busy with 10% of \
                 their memory",
            ]
        );
    }
}

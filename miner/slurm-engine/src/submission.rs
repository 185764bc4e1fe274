//! The job of an executor, as sbatch receives it.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_provisioning::Order;

use crate::jobs::job_name;
use crate::settings::SlurmSettings;

/// The variables that a job gets, by name: their values never stand in an argument, which other users can read.
pub(crate) const EXPORTED: [&str; 4] = [ADDRESS, TOKEN, "PATH", "HOME"];
/// The address that the executor dials.
pub(crate) const ADDRESS: &str = "MINER_ADDRESS";
/// The token that it shows there.
pub(crate) const TOKEN: &str = "EXECUTOR_TOKEN";

/// The arguments of sbatch for an order. The script comes on the standard input.
pub(crate) fn arguments(
    settings: &SlurmSettings,
    label: &str,
    order: &Order,
    excluded: &BTreeSet<String>,
) -> Vec<String> {
    let mut arguments = settings.args.clone();
    let mut add = |option: &str, value: &str| arguments.push(format!("--{option}={value}"));
    add("job-name", &job_name(order.token.attempt()));
    add("comment", label);
    add("time", &minutes(order.lasts).to_string());
    add("export", &EXPORTED.join(","));
    add("nodes", "1");
    add("ntasks", "1");
    // Should a submission without an answer be carried out after the next one, the second job waits for the first.
    add("dependency", "singleton");
    add(
        "output",
        if settings.log.is_empty() {
            "/dev/null"
        } else {
            &settings.log
        },
    );
    let gpus = format!("gpu:{}", settings.gpus);
    let gres = if settings.gpus > 0 { &gpus } else { &settings.gres };
    let (cpus, memory) = (settings.cpus.to_string(), format!("{}M", settings.memory_mib));
    let excluded = excluded.iter().map(String::as_str).collect::<Vec<_>>().join(",");
    for (option, value, is_set) in [
        ("partition", &settings.partition, !settings.partition.is_empty()),
        ("account", &settings.account, !settings.account.is_empty()),
        ("qos", &settings.qos, !settings.qos.is_empty()),
        ("gres", gres, !gres.is_empty()),
        ("cpus-per-task", &cpus, settings.cpus > 0),
        ("mem", &memory, settings.memory_mib > 0),
        ("exclude", &excluded, !excluded.is_empty()),
    ] {
        if is_set {
            add(option, value);
        }
    }
    // The token admits one executor once, so a second start of the job could only fail.
    arguments.extend(["--no-requeue".to_owned(), "--parsable".to_owned()]);
    arguments
}

/// The script of a job: it becomes the executor's program, so that Slurm's signals reach it.
pub(crate) fn script(command: &[String]) -> String {
    let words: Vec<String> = command.iter().map(|word| quote(word)).collect();
    format!("#!/bin/sh\nexec {}\n", words.join(" "))
}

/// Slurm ends a job after whole minutes.
fn minutes(span: Duration) -> u64 {
    let whole = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    whole.div_ceil(60).max(1)
}

/// One word of a shell's command, whatever it holds.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use muster_protocol::{AttemptId, ExecutorClass, ExecutorToken};
    use muster_provisioning::Notice;
    use uuid::Uuid;

    use super::*;

    fn order(lasts: Duration) -> Order {
        let attempt: AttemptId = "11111111-2222-4333-8444-555555555555".parse().unwrap();
        Order {
            token: ExecutorToken::new(attempt, Uuid::nil()),
            class: ExecutorClass::AlwaysOnTest,
            private_image: false,
            miner_address: "ws://192.0.2.7:1".to_owned(),
            lasts,
            notice: Notice::default(),
        }
    }

    #[test]
    fn the_least_pool_asks_for_one_node_and_nothing_else() {
        let settings = SlurmSettings::default();
        let arguments = arguments(
            &settings,
            "pool a",
            &order(Duration::from_secs(61)),
            &BTreeSet::new(),
        );
        let expected = [
            "--job-name=muster-11111111-2222-4333-8444-555555555555",
            "--comment=pool a",
            "--time=2",
            "--export=MINER_ADDRESS,EXECUTOR_TOKEN,PATH,HOME",
            "--nodes=1",
            "--ntasks=1",
            "--dependency=singleton",
            "--output=/dev/null",
            "--no-requeue",
            "--parsable",
        ];
        assert_eq!(arguments, expected);
    }

    #[test]
    fn every_setting_becomes_an_option_and_no_secret_does() {
        let settings = SlurmSettings {
            partition: "gpu".to_owned(),
            account: "lab".to_owned(),
            qos: "high".to_owned(),
            gpus: 2,
            cpus: 8,
            memory_mib: 64_000,
            args: vec!["--constraint=nvlink".to_owned()],
            log: "/var/log/%x".to_owned(),
            ..SlurmSettings::default()
        };
        let order = order(Duration::from_mins(1));
        let excluded = BTreeSet::from(["node1".to_owned(), "node2".to_owned()]);
        let arguments = arguments(&settings, "p", &order, &excluded);
        for expected in [
            "--constraint=nvlink",
            "--partition=gpu",
            "--account=lab",
            "--qos=high",
            "--gres=gpu:2",
            "--cpus-per-task=8",
            "--mem=64000M",
            "--exclude=node1,node2",
            "--output=/var/log/%x",
            "--time=1",
        ] {
            assert!(
                arguments.iter().any(|argument| argument == expected),
                "{expected}"
            );
        }
        let all = arguments.join(" ");
        assert!(
            !all.contains(&order.token.to_string()) && !all.contains("192.0.2.7"),
            "{all}"
        );
    }

    #[test]
    fn a_job_lasts_whole_minutes_and_at_least_one() {
        assert_eq!(
            [0, 1, 60, 61].map(|s| minutes(Duration::from_secs(s))),
            [1, 1, 1, 2]
        );
        assert_eq!(minutes(Duration::from_millis(60_001)), 2);
    }

    #[test]
    fn a_command_keeps_its_words_whatever_they_hold() {
        let words = ["a b", "c'd", "$HOME", "", "new\nline"].map(str::to_owned);
        let command = ["printf".to_owned(), "%s|".to_owned()]
            .into_iter()
            .chain(words)
            .collect::<Vec<_>>();
        let output = std::process::Command::new("sh")
            .args(["-c", &script(&command)])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "a b|c'd|$HOME||new\nline|"
        );
    }
}

//! The hardware of an executor, in a few words and in all its parts, read from the specs that its miner sends.

use muster_protocol::rest::WATCHED_DISK;
use muster_protocol::wire::machines::{ClaimedSpecs, MAX_GPU_KINDS, plain};
use muster_protocol::{ExecutorClass, Timestamp};
use serde_json::Value;

/// The key of an executor's specs that states how a job's disk is bounded: `sized` or `watched`.
const DISK_BOUND_KEY: &str = "muster_disk_bound";

/// The most characters of a name of a part.
const MAX_NAME: usize = 40;

/// The most kinds of GPU that are named.
const MAX_KINDS: usize = 4;

/// The hardware of a machine as people write it: `8 cores, 16 GiB` or `2 x NVIDIA A6000, 64 cores, 252 GiB`. `None` if
/// the specs state nothing of it. The specs are a miner's claim, in ComputeHorde's form.
pub fn describe_hardware(specs: &Value) -> Option<String> {
    // A miner passes the executor's object on inside one of the same name.
    let specs = specs.get("specs").unwrap_or(specs);
    let mut parts = gpus(specs, MAX_KINDS);
    let cores = specs.pointer("/cpu/count").and_then(Value::as_u64);
    parts.extend(cores.filter(|cores| *cores > 0).map(|cores| match cores {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    }));
    let kib = specs.pointer("/ram/total").and_then(Value::as_u64);
    let gib = kib.map(|kib| kib.saturating_add(1 << 19) >> 20);
    parts.extend(gib.filter(|gib| *gib > 0).map(|gib| format!("{gib} GiB")));
    let bound = specs.get(DISK_BOUND_KEY).and_then(Value::as_str);
    parts.extend(
        bound
            .filter(|bound| *bound == "watched")
            .map(|_| WATCHED_DISK.to_owned()),
    );
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The specs of the machine that served as an executor of `class`. The parts that are not stated, or that have another
/// form than ComputeHorde's, are empty. Every text is bounded.
pub fn read_specs(specs: &Value, class: ExecutorClass, told_at: Timestamp) -> ClaimedSpecs {
    let specs = specs.get("specs").unwrap_or(specs);
    let number = |path: &str| specs.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    let text = |path: &str| plain(specs.pointer(path).and_then(Value::as_str).unwrap_or_default());
    ClaimedSpecs {
        class,
        told_at,
        cpu: text("/cpu/model"),
        cores: number("/cpu/count"),
        memory: number("/ram/total").saturating_mul(1_024),
        disk: number("/hard_disk/total").saturating_mul(1_024),
        os: text("/os"),
        gpus: gpus(specs, MAX_GPU_KINDS),
    }
}

/// Each kind of GPU with its number, in the order of the list; `most` kinds at most.
fn gpus(specs: &Value, most: usize) -> Vec<String> {
    let details = specs.pointer("/gpu/details").and_then(Value::as_array);
    let mut kinds: Vec<(String, u32)> = Vec::new();
    for detail in details.into_iter().flatten() {
        let name: String = detail
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .chars()
            .filter(|letter| !letter.is_control())
            .take(MAX_NAME)
            .collect();
        if name.is_empty() {
            continue;
        }
        if let Some((_, count)) = kinds.iter_mut().find(|(known, _)| *known == name) {
            *count = count.saturating_add(1);
        } else if kinds.len() < most {
            kinds.push((name, 1));
        }
    }
    kinds
        .into_iter()
        .map(|(name, count)| format!("{count} x {name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_is_described_by_what_is_known_of_it() {
        let cpu = json!({"specs": {"cpu": {"count": 8}, "ram": {"total": 16_384_000}, "gpu": {"count": 0, "details": []}}});
        assert_eq!(describe_hardware(&cpu).as_deref(), Some("8 cores, 16 GiB"));
        let gpu = |name: &str| json!({"name": name, "uuid": "GPU-1"});
        let details = [gpu("A6000"), gpu("A6000"), gpu("H200\n"), gpu(""), json!(7)];
        let gpus = json!({"gpu": {"details": details}, "cpu": {"count": 1}});
        assert_eq!(
            describe_hardware(&gpus).as_deref(),
            Some("2 x A6000, 1 x H200, 1 core")
        );
        let bounded = |bound: &str| {
            let specs = json!({"specs": {"cpu": {"count": 8}, "muster_disk_bound": bound}});
            describe_hardware(&specs).unwrap()
        };
        assert_eq!(bounded("watched"), "8 cores, watched disk");
        assert_eq!(bounded("sized"), "8 cores");
        for nothing in [
            json!({}),
            json!(null),
            json!({"cpu": {"count": "many"}}),
            json!({"ram": {"total": 0}}),
        ] {
            assert_eq!(describe_hardware(&nothing), None, "{nothing}");
        }
        let told_at = Timestamp::from_secs(1);
        let read = |specs: &Value| read_specs(specs, ExecutorClass::AlwaysOnTest, told_at);
        let whole = read(&json!({"specs": {
            "cpu": {"count": 8, "model": "EPYC\u{1b}[1m"}, "ram": {"total": 2}, "hard_disk": {"total": u64::MAX},
            "os": "Debian", "gpu": {"details": [gpu("A6000"), gpu("A6000")]},
        }}));
        assert_eq!(
            (whole.cpu.as_str(), whole.cores, whole.memory),
            ("EPYC[1m", 8, 2_048)
        );
        assert_eq!(
            (whole.disk, whole.os.as_str(), whole.gpus),
            (u64::MAX, "Debian", vec!["2 x A6000".to_owned()])
        );
        for odd in [
            json!(null),
            json!([1]),
            json!({"cpu": [], "ram": {"total": -1}, "os": 7, "gpu": "many"}),
        ] {
            let specs = read(&odd);
            assert_eq!(
                (specs.cores, specs.memory, specs.os.as_str()),
                (0, 0, ""),
                "{odd}"
            );
        }
        let many: Vec<_> = (0..100)
            .map(|n| gpu(&format!("{n}{}", "x".repeat(900))))
            .collect();
        let long = describe_hardware(&json!({"gpu": {"details": many}})).unwrap();
        assert!(long.len() < 200, "{long}");
    }
}

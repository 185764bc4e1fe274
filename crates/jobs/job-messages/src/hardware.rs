//! The hardware of an executor in a few words, read from the specs that its miner sends.

use serde_json::Value;

/// The most characters of a name of a part.
const MAX_NAME: usize = 40;

/// The most kinds of GPU that are named.
const MAX_KINDS: usize = 4;

/// The hardware of a machine as people say it: `8 cores, 16 GiB` or `2 x NVIDIA A6000, 64 cores, 252 GiB`. `None` if
/// the specs tell nothing of it. The specs are a miner's word, in ComputeHorde's form.
pub fn describe_hardware(specs: &Value) -> Option<String> {
    // A miner passes the executor's object on inside one of the same name.
    let specs = specs.get("specs").unwrap_or(specs);
    let mut parts = gpus(specs);
    let cores = specs.pointer("/cpu/count").and_then(Value::as_u64);
    parts.extend(cores.filter(|cores| *cores > 0).map(|cores| match cores {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    }));
    let kib = specs.pointer("/ram/total").and_then(Value::as_u64);
    let gib = kib.map(|kib| kib.saturating_add(1 << 19) >> 20);
    parts.extend(gib.filter(|gib| *gib > 0).map(|gib| format!("{gib} GiB")));
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Each kind of GPU with its number, in the order of the list.
fn gpus(specs: &Value) -> Vec<String> {
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
        } else if kinds.len() < MAX_KINDS {
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
        for nothing in [
            json!({}),
            json!(null),
            json!({"cpu": {"count": "many"}}),
            json!({"ram": {"total": 0}}),
        ] {
            assert_eq!(describe_hardware(&nothing), None, "{nothing}");
        }
        let many: Vec<_> = (0..100)
            .map(|n| gpu(&format!("{n}{}", "x".repeat(900))))
            .collect();
        let long = describe_hardware(&json!({"gpu": {"details": many}})).unwrap();
        assert!(long.len() < 200, "{long}");
    }
}

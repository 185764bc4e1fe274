//! The specs of this machine in ComputeHorde's field names, read from `/proc` and the file system without a container.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::machine::gpu::GpuLibrary;

/// The size of this machine, as far as limits depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineSize {
    /// How many processors this process may use, at least 1.
    pub cpus: u64,
    /// Memory in bytes.
    pub memory: u64,
}

/// Reads how many processors and how much memory this machine has, for the limits of a job.
pub fn read_machine_size() -> MachineSize {
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let memory = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo(&text, "MemTotal"));
    // If /proc cannot be read, a small machine is assumed: jobs then get too little rather than too much.
    MachineSize {
        cpus,
        memory: memory.map_or(1 << 30, |kib| kib.saturating_mul(1_024)),
    }
}

/// Reads the specs as `V0MachineSpecsRequest` carries them, without its outer `specs`. Blocks on a few small files.
///
/// A part that cannot be read is replaced by `<part>_scrape_error`. `disk` is a folder on the disk that counts.
pub fn gather(disk: &Path) -> Value {
    let mut specs = Map::new();
    let mut put = |part: &str, read: Result<Value, String>| match read {
        Ok(value) => specs.insert(part.to_owned(), value),
        Err(reason) => specs.insert(format!("{part}_scrape_error"), Value::String(reason)),
    };
    let gpus = match GpuLibrary::open().specs() {
        Some(Ok(gpus)) => Ok(gpus),
        Some(Err(error)) => Err(error.to_string()),
        None => gpu(Path::new("/proc/driver/nvidia/gpus")),
    };
    put("gpu", gpus);
    put("cpu", text("/proc/cpuinfo").map(|text| cpu(&text)));
    put("ram", text("/proc/meminfo").and_then(|text| ram(&text)));
    put("hard_disk", hard_disk(disk));
    put("os", text("/etc/os-release").map(|text| os(&text)));
    Value::Object(specs)
}

fn text(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

/// The GPUs without NVML, from the driver's folder, which exists if there is a GPU.
fn gpu(folder: &Path) -> Result<Value, String> {
    let mut details = Vec::new();
    if folder.exists() {
        let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten() {
            let text = fs::read_to_string(entry.path().join("information")).unwrap_or_default();
            details.push(json!({"name": field(&text, "Model"), "uuid": field(&text, "GPU UUID")}));
        }
    }
    Ok(json!({"count": details.len(), "details": details}))
}

fn cpu(text: &str) -> Value {
    let all = |name: &str| {
        text.lines()
            .filter_map(|line| value_of(line, name))
            .collect::<Vec<_>>()
    };
    let clocks: Vec<f64> = all("cpu MHz")
        .into_iter()
        .filter_map(|clock| clock.parse().ok())
        .collect();
    let model = all("model name")
        .first()
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |&name| name.to_owned());
    json!({"count": all("processor").len(), "model": model, "clocks": clocks})
}

fn ram(text: &str) -> Result<Value, String> {
    let read = |name| meminfo(text, name).ok_or_else(|| format!("/proc/meminfo has no {name}"));
    let (total, free, available) = (read("MemTotal")?, read("MemFree")?, read("MemAvailable")?);
    let used = total.saturating_sub(free);
    Ok(json!({"total": total, "free": free, "available": available, "used": used}))
}

fn hard_disk(path: &Path) -> Result<Value, String> {
    let stats = nix::sys::statvfs::statvfs(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let kib = |blocks: u64| blocks.saturating_mul(stats.fragment_size()) / 1_024;
    let (total, free) = (kib(stats.blocks()), kib(stats.blocks_available()));
    Ok(json!({"total": total, "used": total.saturating_sub(kib(stats.blocks_free())), "free": free}))
}

fn os(text: &str) -> Value {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    Value::String(name.map_or_else(
        || std::env::consts::OS.to_owned(),
        |name| name.trim_matches('"').to_owned(),
    ))
}

/// A value of `/proc/meminfo`, in KiB.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| value_of(line, name))?
        .strip_suffix(" kB")?
        .trim()
        .parse()
        .ok()
}

fn field(text: &str, name: &str) -> String {
    text.lines()
        .find_map(|line| value_of(line, name))
        .unwrap_or_default()
        .to_owned()
}

fn value_of<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = line.split_once(':')?;
    (key.trim() == name).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_of_this_machine_have_every_part() {
        let specs = gather(Path::new("/"));
        assert!(specs["cpu"]["count"].as_u64().unwrap() >= 1, "{specs}");
        assert!(specs["ram"]["total"].as_u64().unwrap() > specs["ram"]["used"].as_u64().unwrap());
        assert!(specs["hard_disk"]["total"].as_u64().unwrap() > 0);
        assert!(specs["os"].is_string());
        assert!(specs["gpu"]["count"].is_u64());
        assert!(read_machine_size().memory > 1 << 20);
    }

    #[test]
    fn unreadable_part_of_the_specs_has_its_reason() {
        let specs = gather(Path::new("/nonexistent"));
        assert!(
            specs["hard_disk_scrape_error"]
                .as_str()
                .unwrap()
                .contains("/nonexistent")
        );
        assert_eq!(specs.get("hard_disk"), None);
    }

    #[test]
    fn specs_texts_of_other_machines_are_read() {
        let cpu =
            cpu("processor\t: 0\nmodel name\t: X\ncpu MHz\t\t: 2400.5\n\nprocessor\t: 1\nmodel name\t: X\n");
        assert_eq!(cpu, json!({"count": 2, "model": "X", "clocks": [2400.5]}));
        let ram = ram("MemTotal:  100 kB\nMemFree: 40 kB\nMemAvailable: 60 kB\n").unwrap();
        assert_eq!(
            ram,
            json!({"total": 100, "free": 40, "available": 60, "used": 60})
        );
        assert_eq!(os("ID=x\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
        let folder = tempfile::tempdir().unwrap();
        let card = folder.path().join("0000:01:00.0");
        fs::create_dir(&card).unwrap();
        fs::write(
            card.join("information"),
            "Model: \t NVIDIA H200\nGPU UUID: \t GPU-1\n",
        )
        .unwrap();
        let seen = gpu(folder.path()).unwrap();
        assert_eq!(
            seen,
            json!({"count": 1, "details": [{"name": "NVIDIA H200", "uuid": "GPU-1"}]})
        );
    }
}

//! The parts of a file that are more than one value.

use std::path::Path;

use muster_job_metrics::MetricRules;
use muster_protocol::ExecutorClass;
use muster_protocol::job::{CheckpointTerms, MAX_CHECKPOINT_EVERY, MetricRule, SAVED_EXIT_CODE, SaveSignal};
use toml::{Table, Value};

use crate::checker::{Checker, kind};
use crate::from_folder;
use crate::options::{entrypoint, gpus, memory, read_best_metric, read_resume_source, read_stall, workdir};

/// The classes by the GPU memory of their executors in MB, smallest first.
const GPU_CLASSES: [(i64, ExecutorClass); 2] = [
    (24_000, ExecutorClass::AlwaysOnGpu24Gb),
    (48_000, ExecutorClass::AlwaysOnLlmA6000),
];

/// The class without a GPU by the main memory of its executors in MB.
const CPU_CLASS: (i64, ExecutorClass) = (16_000, ExecutorClass::AlwaysOnCpu8c16Gb);

pub(crate) const CHECKPOINT_KEYS: [&str; 7] = [
    "folder",
    "every",
    "best",
    "signal",
    "fatal_exit",
    "resume_from",
    "stall",
];

/// The class, by its name, by device and memory, or by what the subnet offers.
pub(crate) fn add_machine(spec: &mut Checker, table: &Table) {
    add_offered_machine(spec, table);
    let class = spec.text(table, "class");
    let device = spec.text(table, "device");
    let memory = spec.number(table, "min_memory_mb", 0..=10_000_000);
    if table.contains_key("class") {
        for key in ["device", "min_memory_mb"] {
            if table.contains_key(key) {
                spec.fault(key, "cannot stand beside class, which says it already");
            }
        }
        match class.as_deref().map(str::parse::<ExecutorClass>) {
            Some(Ok(class)) => spec.option("--class", class.as_str()),
            Some(Err(error)) => spec.fault("class", error.to_string()),
            None => {}
        }
        return;
    }
    let memory = memory.unwrap_or(0);
    let classes: &[(i64, ExecutorClass)] = match device.as_deref().map(str::to_ascii_lowercase).as_deref() {
        Some("gpu" | "cuda" | "opencl") => &GPU_CLASSES,
        Some("cpu") => &[CPU_CLASS],
        Some(_) => return spec.fault("device", "must be cpu, gpu, cuda or opencl"),
        None if memory > 0 => &[CPU_CLASS],
        None => return,
    };
    match classes.iter().find(|(has, _)| *has >= memory) {
        Some((_, class)) => spec.option("--class", class.as_str()),
        None => {
            let most = classes.last().map_or(0, |(has, _)| *has);
            spec.fault("min_memory_mb", format!("no class has more than {most} MB"));
        }
    }
}

/// The number of GPUs and the main memory, by which the subnet's offers choose the class.
fn add_offered_machine(spec: &mut Checker, table: &Table) {
    for key in ["gpus", "memory"] {
        let text = match table.get(key) {
            None => continue,
            Some(Value::Integer(number)) => number.to_string(),
            Some(Value::String(text)) => text.clone(),
            Some(
                other @ (Value::Float(_)
                | Value::Boolean(_)
                | Value::Datetime(_)
                | Value::Array(_)
                | Value::Table(_)),
            ) => {
                spec.fault(key, format!("must be a number or a size, and is {}", kind(other)));
                continue;
            }
        };
        let read = match key {
            "gpus" => gpus(&text).map(drop),
            _ => memory(&text).map(drop),
        };
        match read {
            Err(reason) => spec.fault(key, reason),
            Ok(())
                if ["class", "device", "min_memory_mb"]
                    .iter()
                    .any(|other| table.contains_key(*other)) =>
            {
                spec.fault(key, "cannot stand beside class, device or min_memory_mb");
            }
            Ok(()) => spec.option(&format!("--{key}"), text),
        }
    }
}

/// The working directory and the entry point of the program.
pub(crate) fn add_start(spec: &mut Checker, table: &Table) {
    if let Some(path) = spec.text(table, "workdir") {
        match workdir(&path) {
            Ok(path) => spec.words.push(format!("--workdir={path}")),
            Err(flaw) => spec.fault("workdir", flaw),
        }
    }
    // An empty one means no entry point.
    let program = match table.get("entrypoint") {
        Some(Value::String(text)) if text.is_empty() => Some(String::new()),
        Some(_) | None => spec.text(table, "entrypoint"),
    };
    if let Some(program) = program {
        match entrypoint(&program) {
            Ok(program) => spec.words.push(format!("--entrypoint={program}")),
            Err(flaw) => spec.fault("entrypoint", flaw),
        }
    }
}

/// Inputs and outputs. Relative paths of inputs count from `folder`.
pub(crate) fn add_files(spec: &mut Checker, table: &Table, folder: &Path) {
    for (path, source) in &spec.section(table, "inputs") {
        match source {
            Value::String(source) => {
                let is_elsewhere =
                    source == "-" || source.starts_with("http://") || source.starts_with("https://");
                let source = match is_elsewhere {
                    true => source.clone(),
                    false => from_folder(folder, source),
                };
                spec.option("--input", format!("{path}={source}"));
            }
            other @ (Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_)) => spec.fault(
                &format!("inputs.{path}"),
                format!("must be a file, a folder or a URL, and is {}", kind(other)),
            ),
        }
    }
    for (path, target) in &spec.section(table, "outputs") {
        match target {
            Value::Boolean(true) => spec.option("--output", path.clone()),
            Value::Boolean(false) => {}
            Value::String(url) => spec.option("--output", format!("{path}={url}")),
            other @ (Value::Integer(_)
            | Value::Float(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_)) => spec.fault(
                &format!("outputs.{path}"),
                format!("must be true or a URL, and is {}", kind(other)),
            ),
        }
    }
}

/// Variables of the environment, and parameters, whose names become upper case.
pub(crate) fn add_variables(spec: &mut Checker, table: &Table) {
    for (section, is_parameter) in [("env", false), ("parameters", true)] {
        for (name, value) in &spec.section(table, section) {
            let key = format!("{section}.{name}");
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if name.is_empty() || !name.bytes().all(plain) {
                spec.fault(&key, "a name has letters, digits and _ only");
                continue;
            }
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                Value::Boolean(flag) => flag.to_string(),
                other @ (Value::Datetime(_) | Value::Array(_) | Value::Table(_)) => {
                    spec.fault(
                        &key,
                        format!("must be a text or a number, and is {}", kind(other)),
                    );
                    continue;
                }
            };
            let name = if is_parameter {
                name.to_ascii_uppercase()
            } else {
                name.clone()
            };
            spec.option("--env", format!("{name}={value}"));
        }
    }
}

/// Rules for metrics.
pub(crate) fn add_metrics(spec: &mut Checker, table: &Table) {
    for (name, pattern) in &spec.section(table, "metrics") {
        let key = format!("metrics.{name}");
        let Value::String(pattern) = pattern else {
            spec.fault(
                &key,
                format!("must be a regular expression, and is {}", kind(pattern)),
            );
            continue;
        };
        let rule = match name.parse() {
            Ok(name) => MetricRule {
                name,
                pattern: pattern.clone(),
            },
            Err(error) => {
                spec.fault(&key, format!("{error}"));
                continue;
            }
        };
        match MetricRules::compile(std::slice::from_ref(&rule)) {
            Ok(_) => spec.option("--metric", format!("{name}={pattern}")),
            Err(error) => spec.fault(&key, error.to_string()),
        }
    }
}

/// Adds the faults and the options of `[checkpoint]`.
pub(crate) fn add_checkpoint(spec: &mut Checker, table: &Table) {
    const ABOVE: &str = "checkpoint.";
    if !table.contains_key("checkpoint") {
        return;
    }
    let section = spec.section(table, "checkpoint");
    spec.refuse_unknown(ABOVE, &section, &CHECKPOINT_KEYS);
    let folder = spec.text_at(&section, ABOVE, "folder");
    let terms = CheckpointTerms {
        folder: folder
            .clone()
            .unwrap_or_else(|| CheckpointTerms::default().folder),
        ..CheckpointTerms::default()
    };
    match (terms.find_flaw(), folder) {
        (Some(flaw), _) => spec.fault("checkpoint.folder", flaw),
        (None, Some(folder)) => spec.words.push(format!("--checkpoint={folder}")),
        (None, None) => spec.words.push("--checkpoint".to_owned()),
    }
    if let Some(every) = spec.number_at(&section, ABOVE, "every", 1..=i64::from(MAX_CHECKPOINT_EVERY)) {
        spec.option("--every", every.to_string());
    }
    if let Some(text) = spec.text_at(&section, ABOVE, "best") {
        match read_best_metric(&text) {
            Ok(_) => spec.option("--best", text),
            Err(flaw) => spec.fault("checkpoint.best", flaw),
        }
    }
    if let Some(text) = spec.text_at(&section, ABOVE, "resume_from") {
        match read_resume_source(&text) {
            Ok(_) => spec.option("--resume-from", text),
            Err(flaw) => spec.fault("checkpoint.resume_from", flaw),
        }
    }
    if let Some(signal) = spec.text_at(&section, ABOVE, "signal") {
        match signal.parse::<SaveSignal>() {
            Ok(signal) => spec.option("--save-signal", signal.name()),
            Err(error) => spec.fault("checkpoint.signal", error.to_string()),
        }
    }
    if let Some(text) = spec.time_at(&section, ABOVE, "stall") {
        match read_stall(&text) {
            Ok(_) => spec.option("--stall", text),
            Err(flaw) => spec.fault("checkpoint.stall", flaw),
        }
    }
    match section.get("fatal_exit") {
        None => {}
        Some(Value::Array(codes)) => {
            for code in codes {
                match code.as_integer() {
                    Some(code) if (1..=255).contains(&code) && code != i64::from(SAVED_EXIT_CODE) => {
                        spec.option("--fatal-exit", code.to_string());
                    }
                    Some(_) | None => {
                        spec.fault(
                            "checkpoint.fatal_exit",
                            format!("has exit codes from 1 to 255, and never {SAVED_EXIT_CODE}"),
                        );
                    }
                }
            }
        }
        Some(other) => spec.fault(
            "checkpoint.fatal_exit",
            format!("must be a list of exit codes, and is {}", kind(other)),
        ),
    }
}

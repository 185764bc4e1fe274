//! A job written down in a TOML file, for `muster job run --spec`.
//!
//! [`read`] checks the whole file and names every fault of it at once. It returns the options of `muster job
//! run`, so that a file can state nothing that the command line cannot.

mod checker;
pub mod options;
mod overrides;
mod sections;

use std::path::Path;

use toml::Table;

use checker::Checker;
pub use checker::SpecFault;

/// The keys of the file, with what they stand for.
const KEYS: [&str; 26] = [
    "image",
    "command",
    "device",
    "min_memory_mb",
    "class",
    "gpus",
    "memory",
    "workdir",
    "entrypoint",
    "priority",
    "timeout",
    "download_timeout",
    "upload_timeout",
    "queue_time",
    "image_time_limit",
    "artifacts",
    "save",
    "deterministic",
    "on_trusted_miner",
    "webhook",
    "inputs",
    "outputs",
    "env",
    "parameters",
    "metrics",
    "checkpoint",
];

/// Those of the keys that are tables.
const SECTIONS: [&str; 6] = ["inputs", "outputs", "env", "parameters", "metrics", "checkpoint"];

/// Reads the text of a file that lies in `folder`, from which its relative paths count. `sets` has the `KEY=VALUE` that
/// stand in the place of the file's own.
///
/// # Errors
/// Every fault of the file, in the order of its keys.
pub fn read(text: &str, sets: &[String], folder: &Path) -> Result<Vec<String>, Vec<SpecFault>> {
    let mut table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => return Err(vec![SpecFault::of_file(&error.to_string())]),
    };
    let mut spec = Checker::default();
    overrides::set_all(&mut spec, &mut table, sets);
    spec.refuse_unknown("", &table, &KEYS);
    let image = spec.text(&table, "image");
    if image.is_none() && !table.contains_key("image") {
        spec.fault("image", "is missing: the name of the image to run");
    }
    sections::add_machine(&mut spec, &table);
    sections::add_start(&mut spec, &table);
    for (key, option) in [
        ("timeout", "--timeout"),
        ("download_timeout", "--download-timeout"),
        ("upload_timeout", "--upload-timeout"),
        ("queue_time", "--queue-time"),
        ("image_time_limit", "--image-time-limit"),
    ] {
        if let Some(time) = spec.time(&table, key) {
            spec.option(option, time);
        }
    }
    if let Some(priority) = spec.number(&table, "priority", 1..=10) {
        spec.option("--priority", priority.to_string());
    }
    for (key, option) in [("artifacts", "--artifacts"), ("webhook", "--webhook")] {
        if let Some(text) = spec.text(&table, key) {
            spec.option(option, text);
        }
    }
    if let Some(save) = spec.text(&table, "save") {
        spec.option("--save", from_folder(folder, &save));
    }
    for (key, option) in [
        ("deterministic", "--deterministic"),
        ("on_trusted_miner", "--on-trusted-miner"),
    ] {
        if spec.flag(&table, key) {
            spec.words.push(option.to_owned());
        }
    }
    sections::add_files(&mut spec, &table, folder);
    sections::add_variables(&mut spec, &table);
    sections::add_metrics(&mut spec, &table);
    sections::add_checkpoint(&mut spec, &table);
    let command = spec.texts(&table, "command");
    spec.words.extend(image);
    if !command.is_empty() {
        spec.words.push("--".to_owned());
        spec.words.extend(command);
    }
    spec.finish()
}

/// A path of the file as it is to be read from the folder in which this program runs.
fn from_folder(folder: &Path, path: &str) -> String {
    folder.join(path).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WHOLE: &str = r#"
image = "python:3.13-slim"
command = ["python", "/volume/train.py", "--lr", "0.1"]
device = "gpu"
min_memory_mb = 30000
priority = 7
timeout = "20h"
queue_time = "2h"
deterministic = true

[inputs]
"train.py" = "train.py"
data = "https://host/data.bin"

[outputs]
"model.bin" = true
"log.txt" = "https://bucket/log.txt"

[env]
MODE = "fast"

[parameters]
epochs = 10
learning_rate = 0.001

[metrics]
loss = "loss: ([0-9.]+)"

[checkpoint]
folder = "/opt/ml/checkpoints"
every = 2
best = "loss"
signal = "USR1"
fatal_exit = [3, 4]
stall = "15m"
"#;

    #[test]
    fn a_whole_file_stands_for_these_options() {
        let words = read(WHOLE, &[], Path::new("")).unwrap();
        let expected = [
            "--class",
            "always_on.llm.a6000",
            "--timeout",
            "20h",
            "--queue-time",
            "2h",
            "--priority",
            "7",
            "--deterministic",
            "--input",
            "data=https://host/data.bin",
            "--input",
            "train.py=train.py",
            "--output",
            "log.txt=https://bucket/log.txt",
            "--output",
            "model.bin",
            "--env",
            "MODE=fast",
            "--env",
            "EPOCHS=10",
            "--env",
            "LEARNING_RATE=0.001",
            "--metric",
            "loss=loss: ([0-9.]+)",
            "--checkpoint=/opt/ml/checkpoints",
            "--every",
            "2",
            "--best",
            "loss",
            "--save-signal",
            "USR1",
            "--stall",
            "15m",
            "--fatal-exit",
            "3",
            "--fatal-exit",
            "4",
            "python:3.13-slim",
            "--",
            "python",
            "/volume/train.py",
            "--lr",
            "0.1",
        ];
        assert_eq!(words, expected, "entries of a table go by their names");
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let faults = read(
            r#"
imag = "x"
command = "train"
device = "tpu"
min_memory_mb = -1
priority = 11
timeout = "soon"
deterministic = 1
[inputs]
a = 7
[parameters]
"no name" = 1
list = [1]
[metrics]
loss = "("
[checkpoint]
folder = "relative"
every = 0
signal = "KILL"
fatal_exit = [85]
best = "loss=best"
resume_from = ":3"
stall = "9s"
resume = "x"
"#,
            &[],
            Path::new(""),
        )
        .unwrap_err();
        let keys: Vec<_> = faults.iter().map(|fault| fault.key.as_str()).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            [
                "checkpoint.best",
                "checkpoint.every",
                "checkpoint.fatal_exit",
                "checkpoint.folder",
                "checkpoint.resume",
                "checkpoint.resume_from",
                "checkpoint.signal",
                "checkpoint.stall",
                "command",
                "deterministic",
                "device",
                "imag",
                "image",
                "inputs.a",
                "metrics.loss",
                "min_memory_mb",
                "parameters.list",
                "parameters.no name",
                "priority",
                "timeout",
            ]
        );
        let text = faults
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n");
        assert!(text.contains("imag: is no key of a job"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_toml_says_where() {
        let faults = read("image = ", &[], Path::new("")).unwrap_err();
        assert_eq!(faults.len(), 1);
        assert!(
            faults.first().unwrap().to_string().contains("line 1"),
            "{faults:?}"
        );
    }

    #[test]
    fn relative_paths_count_from_the_files_folder() {
        let text = "image = \"a\"\nsave = \"results\"\n[inputs]\na = \"data/a\"\nb = \"/b\"\nc = \"https://h/c\"\n\
            \"-\" = \"-\"\n";
        let words = read(text, &[], Path::new("../jobs")).unwrap();
        let expected = [
            "--save",
            "../jobs/results",
            "--input",
            "-=-",
            "--input",
            "a=../jobs/data/a",
            "--input",
            "b=/b",
            "--input",
            "c=https://h/c",
            "a",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn the_start_of_the_program_and_the_machine_are_read() {
        let read = |text: &str| read(&format!("image = \"a\"\n{text}"), &[], Path::new(""));
        let whole = "workdir = \"/w\"\nentrypoint = \"\"\ngpus = 2\nmemory = \"8g\"";
        let expected = [
            "--gpus",
            "2",
            "--memory",
            "8g",
            "--workdir=/w",
            "--entrypoint=",
            "a",
        ];
        assert_eq!(read(whole).unwrap(), expected);
        assert_eq!(read("gpus = \"all\"").unwrap(), ["--gpus", "all", "a"]);
        for (text, key) in [
            ("workdir = \"w\"", "workdir"),
            ("entrypoint = [\"sh\"]", "entrypoint"),
            ("gpus = -1", "gpus"),
            ("memory = 8.5", "memory"),
            ("memory = \"much\"", "memory"),
            ("gpus = 1\nclass = \"always_on.test\"", "gpus"),
            ("memory = \"1g\"\ndevice = \"cpu\"", "memory"),
        ] {
            let faults = read(text).unwrap_err();
            let keys: Vec<_> = faults.iter().map(|fault| fault.key.as_str()).collect();
            assert_eq!(keys, [key], "{text}");
        }
    }

    #[test]
    fn memory_and_device_choose_the_smallest_class() {
        let class = |text: &str| {
            let words = read(&format!("image = \"a\"\n{text}"), &[], Path::new(""))?;
            let at = words.iter().position(|word| word == "--class");
            Ok::<_, Vec<SpecFault>>(at.and_then(|at| words.get(at + 1)).cloned())
        };
        assert_eq!(class("").unwrap(), None);
        assert_eq!(
            class("device = \"cpu\"").unwrap().as_deref(),
            Some("always_on.cpu.8c.16gb")
        );
        assert_eq!(
            class("device = \"cuda\"").unwrap().as_deref(),
            Some("always_on.gpu-24gb")
        );
        assert_eq!(
            class("class = \"always_on.test\"").unwrap().as_deref(),
            Some("always_on.test")
        );
        assert!(class("device = \"gpu\"\nmin_memory_mb = 90000").is_err());
        assert!(class("device = \"gpu\"\nclass = \"always_on.test\"").is_err());
    }

    proptest! {
        #[test]
        fn no_file_does_harm(text in ".{0,200}") {
            let _ = read(&text, std::slice::from_ref(&text), Path::new("/job"));
        }
    }
}

//! The Slurm section of a pool of executors.

use std::path::PathBuf;

use muster_process::config::Problem;
use serde::Deserialize;

use crate::gres;

/// The options of sbatch that the engine sets itself, by their long and short names.
const RESERVED: &[(&str, Option<char>)] = &[
    ("account", Some('A')),
    ("array", Some('a')),
    ("clusters", Some('M')),
    ("comment", None),
    ("cpus-per-task", Some('c')),
    ("dependency", Some('d')),
    ("exclude", Some('x')),
    ("export", None),
    ("export-file", None),
    ("gpus", Some('G')),
    ("gres", None),
    ("input", Some('i')),
    ("job-name", Some('J')),
    ("mem", None),
    ("no-requeue", None),
    ("nodes", Some('N')),
    ("ntasks", Some('n')),
    ("output", Some('o')),
    ("parsable", None),
    ("partition", Some('p')),
    ("qos", Some('q')),
    ("requeue", None),
    ("test-only", None),
    ("time", Some('t')),
    ("wait", Some('W')),
    ("wrap", None),
];

/// The Slurm cluster of a pool, and the request of each of its executors.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmSettings {
    /// The folder of `sbatch`, `squeue`, `scancel` and `sinfo`. Empty: they are found by `PATH`.
    pub bin: PathBuf,
    /// The cluster's `slurm.conf`. Empty: `SLURM_CONF` of the miner's environment, or the place that Slurm was built
    /// for.
    pub conf: PathBuf,
    /// The partition, or several with commas between them. Empty: the cluster's default partition.
    pub partition: String,
    /// The account that pays. Empty: the user's default account.
    pub account: String,
    /// The quality of service. Empty: the default.
    pub qos: String,
    /// The GPUs of one executor, of any type.
    pub gpus: u32,
    /// Instead of `gpus`: generic resources in Slurm's words, such as `gpu:h100:2`.
    pub gres: String,
    /// The CPUs of one executor. 0: Slurm's default.
    pub cpus: u32,
    /// The memory of one executor in MiB. 0: Slurm's default, which is all memory of a node on many clusters.
    pub memory_mib: u64,
    /// Further options of sbatch, each with its value in one text, such as `--constraint=nvlink`.
    pub args: Vec<String>,
    /// The file of an executor's output on its node, in which sbatch fills in `%x` and `%j`. Empty: `/dev/null`.
    pub log: String,
    /// The seconds for one call of a program of Slurm.
    pub call_s: u64,
}

impl Default for SlurmSettings {
    fn default() -> Self {
        Self {
            bin: PathBuf::new(),
            conf: PathBuf::new(),
            partition: String::new(),
            account: String::new(),
            qos: String::new(),
            gpus: 0,
            gres: String::new(),
            cpus: 0,
            memory_mib: 0,
            args: vec![],
            log: String::new(),
            call_s: 30,
        }
    }
}

impl SlurmSettings {
    /// The values that cannot work; `prefix` is the path of this section, such as `executor.pools.0.slurm`.
    pub fn problems(&self, prefix: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |key: &str, text: String| problems.push(Problem::at(format!("{prefix}.{key}"), text));
        let names = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("qos", &self.qos),
            ("gres", &self.gres),
        ];
        for (key, value) in names {
            if value.chars().any(|c| c.is_whitespace() || c.is_control()) {
                add(key, "must not contain white space".to_owned());
            }
        }
        if !self.gres.is_empty() && self.gpus > 0 {
            add("gres", "excludes gpus; name the GPUs in one of them".to_owned());
        }
        if !self.gres.is_empty() && gres::parse_request(&self.gres).is_none() {
            let text = "must be generic resources such as gpu:2 or gpu:h100:2, with commas between them";
            add("gres", text.to_owned());
        }
        if self.log.chars().any(char::is_control) {
            add("log", "must be a path without control characters".to_owned());
        }
        if self.call_s == 0 {
            add("call_s", "must be at least 1".to_owned());
        }
        for argument in &self.args {
            if let Some(text) = argument_problem(argument) {
                add("args", text);
            }
        }
        problems
    }

    /// Whether an option stands among the further ones.
    pub(crate) fn has_argument(&self, option: &str) -> bool {
        self.args
            .iter()
            .any(|argument| argument.split('=').next() == Some(option))
    }
}

/// The reason why a further option cannot be one.
fn argument_problem(argument: &str) -> Option<String> {
    if argument.contains('\0') {
        return Some("must not contain a zero byte".to_owned());
    }
    let reserved = |name: &str| format!("{argument:?} sets {name}, which this engine sets itself; remove it");
    if let Some(long) = argument.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or(long);
        if name.is_empty() {
            return Some(format!("{argument:?} is no option of sbatch"));
        }
        // sbatch takes the beginning of a long option for the whole.
        let found = RESERVED.iter().find(|(option, _)| option.starts_with(name));
        return found.map(|(option, _)| reserved(&format!("--{option}")));
    }
    let Some(letter) = argument.strip_prefix('-').and_then(|rest| rest.chars().next()) else {
        let text = "is no option; write an option and its value in one text, such as \"--constraint=nvlink\"";
        return Some(format!("{argument:?} {text}"));
    };
    let found = RESERVED.iter().find(|(_, short)| *short == Some(letter));
    found.map(|(option, _)| reserved(&format!("--{option}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(settings: &SlurmSettings) -> Vec<String> {
        let problems = settings.problems("pool.slurm");
        problems.into_iter().map(|problem| problem.path).collect()
    }

    #[test]
    fn the_defaults_have_no_problem_and_unknown_keys_are_refused() {
        assert_eq!(keys(&SlurmSettings::default()), Vec::<String>::new());
        assert_eq!(
            toml::from_str::<SlurmSettings>("").unwrap(),
            SlurmSettings::default()
        );
        assert!(toml::from_str::<SlurmSettings>("gpu = 1").is_err());
    }

    #[test]
    fn every_problem_names_its_key() {
        let settings = SlurmSettings {
            partition: "a b".to_owned(),
            account: "a\n".to_owned(),
            qos: "\t".to_owned(),
            gpus: 1,
            gres: "gpu:x:y:z:1".to_owned(),
            log: "a\nb".to_owned(),
            call_s: 0,
            args: vec!["--job-name=x".to_owned()],
            ..SlurmSettings::default()
        };
        let expected = [
            "partition",
            "account",
            "qos",
            "gres",
            "gres",
            "log",
            "call_s",
            "args",
        ];
        assert_eq!(keys(&settings), expected.map(|key| format!("pool.slurm.{key}")));
    }

    #[test]
    fn an_option_of_the_engine_is_found_in_every_spelling() {
        for argument in [
            "--job-name=x",
            "--job=x",
            "-Jx",
            "-J",
            "--exp=ALL",
            "--requeue",
            "--wrap=id",
            "-a1-3",
            "script.sh",
            "",
            "-",
            "--",
            "--=x",
        ] {
            assert!(argument_problem(argument).is_some(), "{argument}");
        }
        for argument in [
            "--constraint=nvlink",
            "-Cnvlink",
            "--exclusive",
            "--reservation=x",
            "--mem-per-gpu=1G",
            "--time-min=5",
        ] {
            assert_eq!(argument_problem(argument), None);
        }
    }
}

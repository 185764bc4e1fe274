//! One pool in a miner's configuration.

use std::collections::BTreeSet;

use muster_kubernetes_engine::KubernetesSettings;
use muster_process::config::Problem;
use muster_protocol::ExecutorClass;
use muster_slurm_engine::SlurmSettings;
use serde::Deserialize;

/// The way in which a pool's executors are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// Processes on the miner's machine.
    #[default]
    Local,
    /// The operator's commands `provision` and `release`.
    Command,
    /// Batch jobs of Slurm.
    Slurm,
    /// Pods of Kubernetes.
    Kubernetes,
}

impl EngineKind {
    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Command => "command",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// One pool of executors.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// The pool's name, unique among the pools of this miner: it is part of labels at the engine.
    pub name: String,
    /// The class of its executors.
    pub class: ExecutorClass,
    /// The most executors at one time.
    pub count: u32,
    /// The price of one executor for an hour, in a unit that all pools share. Of the pools of a class that have a place
    /// the cheapest one gets the lease.
    pub price: u64,
    /// The way in which they are started.
    pub engine: EngineKind,
    /// Where they dial, `ws://…`. Empty: where `executor.dial` says.
    pub dial: String,
    /// The executor's program and its arguments. Of no use to `command`, and to `kubernetes`, whose image has it.
    pub command: Vec<String>,
    /// Of `command`: brings an executor up.
    pub provision: Vec<String>,
    /// Of `command`: takes away what `provision` made.
    pub release: Vec<String>,
    /// Of `command`: how long one call may take, in seconds.
    pub provision_s: u64,
    /// Of `command`: the seconds that all its machines together may take in any 24 hours; 0 for no limit.
    pub daily_machine_s: u64,
    /// Of `slurm`: the cluster and the request.
    pub slurm: SlurmSettings,
    /// Of `kubernetes`: the cluster and the pod.
    pub kubernetes: KubernetesSettings,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            class: ExecutorClass::AlwaysOnTest,
            count: 1,
            price: 0,
            engine: EngineKind::default(),
            dial: String::new(),
            command: vec!["muster".to_owned(), "executor".to_owned()],
            provision: vec![],
            release: vec![],
            provision_s: 600,
            daily_machine_s: 0,
            slurm: SlurmSettings::default(),
            kubernetes: KubernetesSettings::default(),
        }
    }
}

/// The longest name of a pool, in characters.
const MAX_NAME: usize = 40;

impl PoolConfig {
    /// The problems of all pools of a miner, with `prefix` before the name of each key.
    pub fn problems_of_all(pools: &[Self], prefix: &str) -> Vec<Problem> {
        let mut names = BTreeSet::new();
        let mut problems = Vec::new();
        for (number, pool) in pools.iter().enumerate() {
            let prefix = format!("{prefix}[{number}]");
            if !names.insert(&pool.name) {
                let text = format!("is the name of another pool too: {:?}", pool.name);
                problems.push(Problem::at(format!("{prefix}.name"), text));
            }
            problems.extend(pool.problems(&prefix));
        }
        problems
    }

    fn problems(&self, prefix: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |key: &str, text: &str| problems.push(Problem::at(format!("{prefix}.{key}"), text));
        let is_name = (1..=MAX_NAME).contains(&self.name.len())
            && self
                .name
                .chars()
                .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-')
            && !self.name.starts_with('-')
            && !self.name.ends_with('-');
        if !is_name {
            add(
                "name",
                "must be 1 to 40 lowercase letters, digits and inner hyphens",
            );
        }
        if self.count == 0 {
            add("count", "must be at least 1; remove the pool to have none");
        }
        if !self.dial.is_empty() && !self.dial.starts_with("ws://") && !self.dial.starts_with("wss://") {
            add("dial", "must begin with ws:// or wss://, or be empty");
        }
        let is_command = self.engine == EngineKind::Command;
        if is_command && (self.provision.is_empty() || self.release.is_empty()) {
            add(
                "provision",
                "must be set, and release with it, for the engine \"command\"",
            );
        }
        let for_commands = [
            ("provision", !self.provision.is_empty()),
            ("release", !self.release.is_empty()),
            ("daily_machine_s", self.daily_machine_s > 0),
        ];
        for (key, _) in for_commands.iter().filter(|(_, is_set)| *is_set && !is_command) {
            add(key, "has no effect without engine = \"command\"");
        }
        if self.provision_s == 0 {
            add("provision_s", "must be at least 1");
        }
        let needs_command = matches!(self.engine, EngineKind::Local | EngineKind::Slurm);
        if needs_command && self.command.first().is_none_or(String::is_empty) {
            add("command", "must name a program");
        }
        if self.engine != EngineKind::Slurm && self.slurm != SlurmSettings::default() {
            add("slurm", "has no effect without engine = \"slurm\"");
        }
        if self.engine != EngineKind::Kubernetes && self.kubernetes != KubernetesSettings::default() {
            add("kubernetes", "has no effect without engine = \"kubernetes\"");
        }
        match self.engine {
            EngineKind::Slurm => problems.extend(self.slurm.problems(&format!("{prefix}.slurm"))),
            EngineKind::Kubernetes => {
                problems.extend(self.kubernetes.problems(&format!("{prefix}.kubernetes")));
            }
            EngineKind::Local | EngineKind::Command => {}
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        #[derive(Deserialize)]
        struct File {
            pools: Vec<PoolConfig>,
        }
        let file: File = toml::from_str(text).unwrap();
        PoolConfig::problems_of_all(&file.pools, "executor.pools")
            .into_iter()
            .map(|problem| problem.path)
            .collect()
    }

    #[test]
    fn everything_wrong_with_pools_is_named_with_its_pool() {
        let good = "[[pools]]\nname = \"a\"\n[[pools]]\nname = \"b\"\nengine = \"slurm\"\n[pools.slurm]\ngpus = 2\n\
                    [[pools]]\nname = \"c\"\nengine = \"command\"\nprovision = [\"x\"]\nrelease = [\"y\"]";
        assert_eq!(paths(good), Vec::<String>::new());
        let bad = "[[pools]]\nname = \"a\"\ncount = 0\nprovision = [\"x\"]\n[[pools]]\nname = \"a\"\nengine = \
                   \"command\"\ndial = \"http://x\"\n[pools.slurm]\ngpus = 1";
        assert_eq!(
            paths(bad),
            [
                "executor.pools[0].count",
                "executor.pools[0].provision",
                "executor.pools[1].name",
                "executor.pools[1].dial",
                "executor.pools[1].provision",
                "executor.pools[1].slurm",
            ]
        );
        assert_eq!(paths("[[pools]]\nname = \"With Blanks\"\ncommand = []").len(), 2);
    }
}

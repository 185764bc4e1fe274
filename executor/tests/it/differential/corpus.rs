//! The commands of the corpus, and the table of differences from plain docker.

use serde::Deserialize;
use serde_json::{Value, json};

/// One command that docker and an executor run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Command {
    pub(super) name: String,
    /// One of [`super::images::TestImages::SUITE`] or [`super::images::TestImages::SOAK`].
    pub(super) image: String,
    pub(super) run: Vec<String>,
    /// The working directory.
    #[serde(default)]
    pub(super) workdir: Option<String>,
    /// The program in place of the image's entry point.
    #[serde(default)]
    pub(super) entrypoint: Option<String>,
    /// The program's standard input.
    #[serde(default)]
    pub(super) stdin: Option<String>,
    /// The key of the difference for which plain docker does something else.
    #[serde(default)]
    pub(super) differs: Option<String>,
    #[serde(default)]
    pub(super) through: Through,
}

/// The part of Muster that runs a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Through {
    /// An executor, whose miner is the test. Its text fields hold a million characters of text.
    #[default]
    Executor,
    /// The whole subnet, by the command of users: output that is longer, or no text.
    Cli,
}

/// A difference between plain docker and a job.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Difference {
    pub(super) key: String,
}

#[derive(Deserialize)]
struct CommandFile {
    command: Vec<Command>,
}

#[derive(Deserialize)]
struct DifferenceFile {
    difference: Vec<Difference>,
}

/// The commands of every run of the tests.
pub(super) fn commands() -> Vec<Command> {
    read("commands.toml")
}

/// The commands that only a soak runs.
pub(super) fn soak_commands() -> Vec<Command> {
    read("soak.toml")
}

fn read(table: &str) -> Vec<Command> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential");
    let text = std::fs::read_to_string(format!("{folder}/{table}")).unwrap();
    toml::from_str::<CommandFile>(&text).unwrap().command
}

pub(super) fn differences() -> Vec<Difference> {
    let file: DifferenceFile = toml::from_str(include_str!("../../differential/differences.toml")).unwrap();
    file.difference
}

impl Command {
    /// The options of `docker run` for the start of the program.
    pub(super) fn docker_options(&self) -> Vec<String> {
        let workdir = self.workdir.as_ref().map(|path| format!("--workdir={path}"));
        let entrypoint = self
            .entrypoint
            .as_ref()
            .map(|program| format!("--entrypoint={program}"));
        let stdin = self.stdin.as_ref().map(|_| "--interactive".to_owned());
        [workdir, entrypoint, stdin].into_iter().flatten().collect()
    }

    /// The same in an offer; null where the image decides.
    pub(super) fn start(&self) -> Value {
        let mut start = serde_json::Map::new();
        start.extend(
            self.workdir
                .iter()
                .map(|path| ("workdir".to_owned(), json!(path))),
        );
        start.extend(
            self.entrypoint
                .iter()
                .map(|program| ("entrypoint".to_owned(), json!(program))),
        );
        start.extend(self.stdin.iter().map(|_| ("stdin".to_owned(), json!("stdin"))));
        match start.is_empty() {
            true => Value::Null,
            false => start.into(),
        }
    }

    /// A script for `bash`, which an image's entry point starts where it has one.
    pub(super) fn shell(script: &str, has_entrypoint: bool) -> Self {
        let shell: &[&str] = if has_entrypoint { &[] } else { &["bash"] };
        let run = shell.iter().copied().chain(["-c", script]);
        Self {
            name: "a variant".to_owned(),
            image: String::new(),
            run: run.map(str::to_owned).collect(),
            workdir: None,
            entrypoint: None,
            stdin: None,
            differs: None,
            through: Through::Executor,
        }
    }
}

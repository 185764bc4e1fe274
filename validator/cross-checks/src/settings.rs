//! The `[cross_checks]` section of a validator's configuration.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use muster_process::config::Problem;
use muster_protocol::ExecutorClass;
use serde::Deserialize;

/// A share of everything, in millionths.
const ALL_PPM: u32 = 1_000_000;
/// The most own jobs of one coldkey a day.
const MOST_OWN_JOBS: u32 = 1_000;
/// The most programs of the list.
const MOST_PROGRAMS: usize = 256;
/// The place of the drawn number in the arguments and the environment of a program.
pub const NUMBER_PLACE: &str = "{number}";

/// The configuration of cross-checks. `[cross_checks]` in the validator's commented default explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrossCheckSettings {
    /// The share of completed deterministic jobs that is run again, in millionths.
    pub share_ppm: u32,
    /// Reports of cheating of one account within 24 hours for which a job is run again.
    pub reports_per_day: u32,
    /// The validator's own deterministic jobs that each coldkey gets in a day, on average.
    pub own_jobs_per_day: u32,
    /// The programs of those jobs, by a name for the log.
    pub programs: BTreeMap<String, OwnProgram>,
}

impl Default for CrossCheckSettings {
    fn default() -> Self {
        Self {
            share_ppm: 20_000,
            reports_per_day: 5,
            own_jobs_per_day: 4,
            programs: BTreeMap::new(),
        }
    }
}

/// A program whose outputs follow from its inputs alone, on every machine of its class.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnProgram {
    /// The class of executor that it needs.
    pub class: ExecutorClass,
    /// The reference of the image, as users write it.
    pub image: String,
    /// The arguments of the image's entry point. The drawn number stands in place of each `{number}`.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables, whose values may have `{number}` too.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// The folder in the container whose files come back with the result.
    #[serde(default)]
    pub artifacts_dir: Option<String>,
    /// The file under `/volume` that holds drawn bytes; without it the program has no inputs but the number.
    #[serde(default)]
    pub input_file: Option<String>,
    /// The longest time that the program takes on a machine of its class, in seconds.
    #[serde(default = "usual_seconds")]
    pub seconds: u64,
}

const fn usual_seconds() -> u64 {
    60
}

impl CrossCheckSettings {
    /// All problems of these settings. `path` is the name of the section.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.share_ppm > ALL_PPM {
            problems.push(Problem::at(
                format!("{path}.share_ppm"),
                "must be at most 1000000",
            ));
        }
        if self.own_jobs_per_day > MOST_OWN_JOBS {
            problems.push(Problem::at(
                format!("{path}.own_jobs_per_day"),
                format!("must be at most {MOST_OWN_JOBS}"),
            ));
        }
        if self.programs.len() > MOST_PROGRAMS {
            problems.push(Problem::at(
                format!("{path}.programs"),
                format!("must be at most {MOST_PROGRAMS}"),
            ));
        }
        for (name, program) in &self.programs {
            problems.extend(program.problem(&format!("{path}.programs.{name}")));
        }
        problems
    }
}

impl OwnProgram {
    fn problem(&self, path: &str) -> Option<Problem> {
        let texts = self.args.iter().chain(self.env.values());
        let is_drawn = self.input_file.is_some() || texts.into_iter().any(|text| text.contains(NUMBER_PLACE));
        if !is_drawn {
            // Its output would be the same each time, so a miner could keep it.
            let text = "needs drawn inputs: input_file, or {number} in its args or env";
            return Some(Problem::at(path.to_owned(), text));
        }
        let file = self.input_file.as_deref().unwrap_or("input");
        if file.is_empty() || file.starts_with('/') || file.split('/').any(|part| part == "..") {
            let text = "must be a path below /volume, without a leading / and without ..";
            return Some(Problem::at(format!("{path}.input_file"), text));
        }
        if self.image.is_empty() {
            return Some(Problem::at(format!("{path}.image"), "must name an image"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_drawn_inputs_and_a_path_that_leads_out_are_refused() {
        let problems = |program: &str| {
            let text = format!("[programs.p]\nclass = \"always_on.test\"\nimage = \"alpine\"\n{program}");
            let settings: CrossCheckSettings = toml::from_str(&text).unwrap();
            settings.problems("cross_checks").len()
        };
        assert_eq!(problems("args = [\"{number}\"]"), 0);
        assert_eq!(problems("[programs.p.env]\nSEED = \"{number}\""), 0);
        assert_eq!(problems("input_file = \"in/data\""), 0);
        assert_eq!(problems("args = [\"7\"]"), 1, "a miner could keep its output");
        assert_eq!(problems("input_file = \"../data\""), 1);
    }
}

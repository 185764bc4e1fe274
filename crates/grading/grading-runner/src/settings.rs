//! The part of a validator's configuration that is about grading.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use muster_grading::floors::FloorsFile;
use muster_grading::{Bounds, Course};
use muster_process::config::Problem;
use muster_protocol::{ExecutorClass, ImageId, Timestamp};
use muster_response_proof::HashScheme;
use muster_session_pool::Service;
use muster_session_pool::whitelist::{EngineKind, Listen};
use serde::Deserialize;

/// The configuration of grading. `[grading]` in the validator's commented default explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Blocks between two batches, on average; 0 for none but those that the operator asks for.
    pub every_blocks: u64,
    /// Seconds to come to the barrier, beyond the spin-up time of the slowest class.
    pub gather_s: u64,
    /// Executors of one miner in a batch, at most.
    pub of_one: u32,
    /// Executors in a batch, at most.
    pub executors: u32,
    /// Milliseconds by which an executor's clock may differ.
    pub skew_ms: u64,
    /// Days for which the evidence of a batch is kept.
    pub keep_days: u32,
    /// A file with floors of classes; those that it does not name have what is stated.
    pub floors: Option<PathBuf>,
    /// What each class is challenged with; a class that is not named is not graded.
    pub images: BTreeMap<ExecutorClass, Grader>,
}

/// The grader's image for a class.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grader {
    /// The image, by the digest of its configuration.
    pub image: ImageId,
    /// The name by which an engine that has no such image pulls it.
    #[serde(default)]
    pub reference: Option<String>,
    /// Arguments of its entry point.
    #[serde(default)]
    pub args: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let Bounds { of_one, executors } = Bounds::default();
        Self {
            every_blocks: 360,
            gather_s: 120,
            of_one,
            executors,
            skew_ms: 5_000,
            keep_days: 14,
            floors: None,
            images: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// How large a batch may become.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            of_one: self.of_one,
            executors: self.executors,
        }
    }

    /// What each class that is graded has to prove.
    ///
    /// # Errors
    /// The file of floors cannot be used; why, in words.
    pub fn courses(&self) -> Result<Vec<Course>, String> {
        let file = match &self.floors {
            None => FloorsFile::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
                let read = FloorsFile::parse(&text);
                read.map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        Ok(self
            .images
            .keys()
            .filter_map(|class| file.course(*class))
            .collect())
    }

    /// How long executors are waited for.
    pub(crate) fn gather(&self) -> Duration {
        Duration::from_secs(self.gather_s)
    }

    /// What ended before this is forgotten at `now`.
    pub(crate) fn kept_since(&self, now: Timestamp) -> Timestamp {
        let kept = i64::from(self.keep_days) * 24 * 3_600 * 1_000_000;
        Timestamp::from_micros(now.micros().saturating_sub(kept))
    }

    /// What is run to challenge executors, one for each class that is graded.
    pub fn services(&self) -> impl Iterator<Item = Service> {
        self.images.keys().filter_map(|class| self.service(*class))
    }

    /// What is run to challenge an executor of this class.
    pub fn service(&self, class: ExecutorClass) -> Option<Service> {
        let grader = self.images.get(&class)?;
        Some(Service {
            model: "muster-grader".to_owned(),
            image: grader.image,
            reference: grader.reference.clone(),
            weights: None,
            engine: EngineKind::Other,
            scheme: HashScheme::RawHttp,
            health: "/health".to_owned(),
            listen: Listen::Socket("http.sock".to_owned()),
            class,
            args: grader.args.clone(),
            env: IndexMap::new(),
            input_price: 0,
            output_price: 0,
        })
    }

    /// Everything that is wrong with it, under `path`.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, number) in [
            ("gather_s", self.gather_s),
            ("of_one", u64::from(self.of_one)),
            ("executors", u64::from(self.executors)),
            ("keep_days", u64::from(self.keep_days)),
        ] {
            if number == 0 {
                problems.push(Problem::at(format!("{path}.{key}"), "must be at least 1"));
            }
        }
        if let Err(why) = self.courses() {
            problems.push(Problem::at(format!("{path}.floors"), why));
        }
        if self.of_one > self.executors {
            problems.push(Problem::at(format!("{path}.of_one"), "must be at most executors"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_kept_for_so_many_days() {
        let settings = Settings::default();
        let now = Timestamp::from_secs(15 * 86_400);
        assert_eq!(settings.kept_since(now), Timestamp::from_secs(86_400));
    }

    #[test]
    fn a_file_of_floors_that_cannot_be_used_is_a_problem_of_the_configuration() {
        let folder = std::env::temp_dir().join(format!("muster-floors-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("floors.json");
        let mut settings = Settings {
            floors: Some(file.clone()),
            ..Settings::default()
        };
        let grader = Grader {
            image: ImageId(muster_protocol::Digest::of(b"grader")),
            reference: None,
            args: vec![],
        };
        let class = ExecutorClass::AlwaysOnCpu8c16Gb;
        settings.images.insert(class, grader);
        let problems = || {
            settings
                .problems("grading")
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        std::fs::remove_file(&file).ok();
        assert!(problems()[0].contains("cannot be read"), "{:?}", problems());
        std::fs::write(&file, r#"{"format": "muster-floors/1", "classes": [7]}"#).unwrap();
        assert!(problems()[0].contains("grading.floors"), "{:?}", problems());
        let mut floors = FloorsFile::default();
        floors.add(class, muster_hardware_proof::grade::MachineRuns::default());
        floors.classes[0].machines.clear();
        floors.classes[0].stated.int8 = 300_000;
        std::fs::write(&file, floors.to_text()).unwrap();
        assert_eq!(problems(), Vec::<String>::new());
        assert_eq!(settings.courses().unwrap()[0].floors.least.int8, 300_000);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

//! The `[grading]` section of a validator's configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use muster_grading::thresholds::ThresholdsFile;
use muster_grading::{BatchBounds, GradeSpec};
use muster_process::config::Problem;
use muster_protocol::{ExecutorClass, ImageId, Timestamp};
use muster_response_proof::HashScheme;
use muster_scoring::ObservationKind;
use muster_session_pool::Service;
use muster_session_pool::whitelist::{EngineKind, ListenAddress};
use serde::Deserialize;

/// The milliseconds over which the instant of a probe is spread (`docs/adr/0074`).
const PROBE_SPREAD_MS: u64 = 5_000;

/// The configuration of grading. `[grading]` in the validator's commented default explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The average number of blocks between two announced batches; 0 if only the operator begins them.
    pub every_blocks: u64,
    /// The average number of blocks between two unannounced probes of the subnet, each by a drawn validator; 0 if this
    /// validator makes none. Validators of one subnet need the same value.
    pub probe_every_blocks: u64,
    /// Seconds from the lease of an executor, beyond the spin-up time of its class, to the challenge of an unannounced
    /// probe; at least 1. Up to five seconds are added at random.
    pub probe_startup_s: u64,
    /// Before an announced batch, one miner in this many is drawn that serves sessions. Its sessions are drained, and
    /// its executors prove their class in full. 0 draws only miners that serve more sessions than they proved before.
    pub full_course_one_in: u32,
    /// Seconds to reach the barrier, beyond the spin-up time of the slowest class; at least 1.
    pub gather_s: u64,
    /// Seconds for which a miner is asked again whose executors work for users, before they are excused. The executors
    /// that are ready wait meanwhile.
    pub at_work_s: u64,
    /// The largest number of executors of one miner in a batch; at least 1.
    pub of_one: u32,
    /// The largest number of executors in a batch; at least `of_one`.
    pub executors: u32,
    /// Milliseconds by which an executor's clock may differ from the validator's.
    pub skew_ms: u64,
    /// Days for which the evidence of a batch is kept; at least 1.
    pub keep_days: u32,
    /// A file with thresholds of classes. Classes that it does not name have the stated thresholds.
    pub floors: Option<PathBuf>,
    /// The grader image of each class. A class without an image is not graded.
    pub images: BTreeMap<ExecutorClass, GraderImage>,
}

/// The grader image of one class.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraderImage {
    /// The image, named by the digest of its configuration.
    pub image: ImageId,
    /// The name by which a container engine pulls the image if it does not have it.
    #[serde(default)]
    pub reference: Option<String>,
    /// The arguments of the image's entry point.
    #[serde(default)]
    pub args: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let BatchBounds {
            per_miner: of_one,
            executors,
        } = BatchBounds::default();
        Self {
            every_blocks: 360,
            probe_every_blocks: 360,
            probe_startup_s: 10,
            full_course_one_in: 4,
            gather_s: 120,
            at_work_s: 24,
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
    /// The largest size of a batch.
    pub fn bounds(&self) -> BatchBounds {
        BatchBounds {
            per_miner: self.of_one,
            executors: self.executors,
        }
    }

    /// The grade specification of each graded class.
    ///
    /// # Errors
    /// The file of thresholds cannot be used, for this reason, as text.
    pub fn grade_specs(&self) -> Result<Vec<GradeSpec>, String> {
        let file = match &self.floors {
            None => ThresholdsFile::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
                let read = ThresholdsFile::parse(&text);
                read.map_err(|error| format!("{}: {error}", path.display()))?
            }
        };
        Ok(self
            .images
            .keys()
            .filter_map(|class| file.grade_spec(*class))
            .collect())
    }

    /// The time that executors have to reach the barrier of a batch, beyond the slowest spin-up time. `random` is
    /// uniform: it spreads the instant of a probe over five seconds.
    pub(crate) fn gather_time(&self, kind: ObservationKind, random: u64) -> Duration {
        match kind {
            ObservationKind::Announced => Duration::from_secs(self.gather_s),
            ObservationKind::Unannounced => {
                let spread_ms = random.checked_rem(PROBE_SPREAD_MS).unwrap_or(0);
                Duration::from_secs(self.probe_startup_s) + Duration::from_millis(spread_ms)
            }
        }
    }

    /// Whether any block may begin a batch.
    pub(crate) fn is_drawn_by_blocks(&self) -> bool {
        !self.images.is_empty() && (self.every_blocks > 0 || self.probe_every_blocks > 0)
    }

    /// At `now`, the evidence of batches that ended before the returned time is deleted.
    pub(crate) fn evidence_cutoff(&self, now: Timestamp) -> Timestamp {
        let kept = i64::from(self.keep_days) * 24 * 3_600 * 1_000_000;
        Timestamp::from_micros(now.micros().saturating_sub(kept))
    }

    /// The grader services, one for each graded class.
    pub fn services(&self) -> impl Iterator<Item = Service> {
        self.images.keys().filter_map(|class| self.service(*class))
    }

    /// The grader service that is run on an executor of this class, if the class is graded.
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
            listen: ListenAddress::Socket("http.sock".to_owned()),
            class,
            args: grader.args.clone(),
            env: IndexMap::new(),
            input_price: 0,
            output_price: 0,
            // Grading answers no user: its sessions are paid by their time.
            input_tokens_per_s: 0,
            output_tokens_per_s: 0,
            tokenizer: None,
        })
    }

    /// All faults of these settings, named under `path`.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, number) in [
            ("gather_s", self.gather_s),
            ("probe_startup_s", self.probe_startup_s),
            ("of_one", u64::from(self.of_one)),
            ("executors", u64::from(self.executors)),
            ("keep_days", u64::from(self.keep_days)),
        ] {
            if number == 0 {
                problems.push(Problem::at(format!("{path}.{key}"), "must be at least 1"));
            }
        }
        if let Err(why) = self.grade_specs() {
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
        assert_eq!(settings.evidence_cutoff(now), Timestamp::from_secs(86_400));
    }

    #[test]
    fn a_probe_comes_within_five_seconds_after_its_startup_time() {
        let settings = Settings::default();
        let probe = |random| {
            settings
                .gather_time(ObservationKind::Unannounced, random)
                .as_millis()
        };
        assert_eq!((probe(0), probe(4_999), probe(5_000)), (10_000, 14_999, 10_000));
        assert!((10_000..15_000).contains(&probe(u64::MAX)));
        assert_eq!(
            settings.gather_time(ObservationKind::Announced, 7),
            Duration::from_secs(120)
        );
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
        let grader = GraderImage {
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
        let mut floors = ThresholdsFile::default();
        floors.add_runs(class, muster_hardware_proof::grade::MachineRuns::default());
        floors.classes[0].machines.clear();
        floors.classes[0].stated.int8 = 300_000;
        std::fs::write(&file, floors.to_text()).unwrap();
        assert_eq!(problems(), Vec::<String>::new());
        assert_eq!(settings.grade_specs().unwrap()[0].thresholds.least.int8, 300_000);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

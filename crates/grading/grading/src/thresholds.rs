//! An operator's file of thresholds: for some classes, the stated values and the honest runs of machines that are known
//! to be of the class. Other classes have the thresholds that are stated in the program.

use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName};
use muster_hardware_proof::grade::tolerance::{LEAST_MACHINES, LEAST_RUNS};
use muster_hardware_proof::grade::{Calibration, Component, MachineRuns, stated_calibrations};
use muster_protocol::ExecutorClass;
use serde::{Deserialize, Serialize};

use crate::grade_spec::GradeSpec;

/// The format and version of the file.
pub const FORMAT: &str = "muster-floors/1";

/// The longest name of a machine, in characters.
const MAX_NAME: usize = 100;
/// The largest number of runs of one component of one machine.
const MAX_RUNS: usize = 1_000;
/// The longest time limit that may follow from a threshold, in microseconds.
const LONGEST_US: u64 = 900_000_000;

/// A file of thresholds. The file format and the key `grading.floors` call them floors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThresholdsFile {
    /// The format and version, which must be [`FORMAT`].
    pub format: String,
    /// The calibrations, one for each class whose thresholds the operator sets.
    pub classes: Vec<Calibration>,
}

/// A fault in a file of thresholds.
#[derive(Debug, thiserror::Error)]
pub enum ThresholdsError {
    /// The text is not JSON, or has other fields.
    #[error("the text is not a file of floors: {0}; `muster grade self --write-floors FILE` writes one")]
    Text(#[from] serde_json::Error),
    /// The file has another format or version.
    #[error("the file's format is {0:?}, this version reads {FORMAT:?}")]
    Format(String),
    /// A class is listed twice.
    #[error("class {0} is listed twice: put the machines of both under one")]
    Twice(ExecutorClass),
    /// The threshold of int8 is 0, so the class would prove no computing.
    #[error("class {0}: stated.int8 must be at least 1: every class proves that it computes")]
    NoRate(ExecutorClass),
    /// Only one of memory and bandwidth is 0, but one proof measures both.
    #[error("class {0}: stated.memory and stated.bandwidth are one proof: both must be 0, or neither")]
    HalfAWalk(ExecutorClass),
    /// The proof that follows from a threshold is too large or too slow.
    #[error("class {class}: {component:?} of {threshold} is impossible: {why}")]
    Unaskable {
        /// The class with the fault.
        class: ExecutorClass,
        /// The component with the fault.
        component: Component,
        /// Its threshold, in the unit of the component.
        threshold: u64,
        /// The fault as text.
        why: String,
    },
    /// A machine has no name, or one that is too long.
    #[error(
        "class {0}: every machine needs a name of 1 to {MAX_NAME} characters: runs of one name are of one machine"
    )]
    Name(ExecutorClass),
    /// A machine has a run of 0, or too many runs.
    #[error("class {class}: machine {machine:?} has a run of 0, or more than {MAX_RUNS} runs of one kind")]
    Runs {
        /// The class of the machine.
        class: ExecutorClass,
        /// The name of the machine.
        machine: String,
    },
}

impl Default for ThresholdsFile {
    fn default() -> Self {
        Self {
            format: FORMAT.to_owned(),
            classes: Vec::new(),
        }
    }
}

impl ThresholdsFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The first fault in the file.
    pub fn parse(text: &str) -> Result<Self, ThresholdsError> {
        let file: Self = serde_json::from_str(text)?;
        if file.format != FORMAT {
            return Err(ThresholdsError::Format(file.format));
        }
        let mut seen = Vec::new();
        for calibration in &file.classes {
            let class = calibration.class;
            if seen.contains(&class) {
                return Err(ThresholdsError::Twice(class));
            }
            seen.push(class);
            check_calibration(calibration)?;
        }
        Ok(file)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        // Numbers and texts can always be serialised.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The grade specification of a class: by this file if it names the class, else with the stated thresholds.
    pub fn grade_spec(&self, class: ExecutorClass) -> Option<GradeSpec> {
        match self.calibration(class) {
            Some(calibration) => Some(GradeSpec::from_thresholds(calibration.thresholds())),
            None => GradeSpec::for_class(class),
        }
    }

    /// The calibration of a class, if the file has one.
    pub fn calibration(&self, class: ExecutorClass) -> Option<&Calibration> {
        self.classes.iter().find(|calibration| calibration.class == class)
    }

    /// Adds runs of a machine to those that the file has. A class that is new in the file begins with its stated
    /// thresholds.
    pub fn add_runs(&mut self, class: ExecutorClass, runs: MachineRuns) {
        if self.calibration(class).is_none() {
            self.classes.extend(
                stated_calibrations()
                    .into_iter()
                    .find(|stated| stated.class == class),
            );
        }
        let Some(calibration) = self
            .classes
            .iter_mut()
            .find(|calibration| calibration.class == class)
        else {
            return;
        };
        match calibration
            .machines
            .iter_mut()
            .find(|machine| machine.machine == runs.machine)
        {
            Some(known) => {
                known.int8.extend(runs.int8);
                known.fp16.extend(runs.fp16);
                known.bandwidth.extend(runs.bandwidth);
            }
            None => calibration.machines.push(runs),
        }
    }

    /// Describes the thresholds of a class and whether they are measured, as text.
    pub fn describe(&self, class: ExecutorClass) -> String {
        let Some(calibration) = self.calibration(class) else {
            return "stated; nothing is measured".to_owned();
        };
        let thresholds = calibration.thresholds();
        let least = thresholds.least;
        let state = if thresholds.provisional {
            format!(
                "provisional: a threshold is measured once {LEAST_MACHINES} machines have {LEAST_RUNS} runs each; {} machines are known",
                calibration.machines.len()
            )
        } else {
            "measured".to_owned()
        };
        format!(
            "int8 {}, fp16 {}, memory {} MiB, bandwidth {} ({state})",
            least.int8, least.fp16, least.memory, least.bandwidth
        )
    }
}

fn check_calibration(calibration: &Calibration) -> Result<(), ThresholdsError> {
    let class = calibration.class;
    if calibration.stated.int8 == 0 {
        return Err(ThresholdsError::NoRate(class));
    }
    if (calibration.stated.memory == 0) != (calibration.stated.bandwidth == 0) {
        return Err(ThresholdsError::HalfAWalk(class));
    }
    for machine in &calibration.machines {
        let name = machine.machine.trim();
        if name.is_empty() || machine.machine.chars().count() > MAX_NAME {
            return Err(ThresholdsError::Name(class));
        }
        let all = [&machine.int8, &machine.fp16, &machine.bandwidth];
        if all.iter().any(|runs| runs.len() > MAX_RUNS || runs.contains(&0)) {
            return Err(ThresholdsError::Runs {
                class,
                machine: machine.machine.clone(),
            });
        }
    }
    let grade_spec = GradeSpec::from_thresholds(calibration.thresholds());
    let anybody = ChallengeIdentity {
        batch: BatchId([0; 16]),
        executor: ExecutorName([0; 32]),
        nonce: ChallengeNonce([0; 32]),
    };
    let mut memory = None;
    for trial in &grade_spec.trials {
        let rate = trial.shape.component();
        let unaskable = |component, why| ThresholdsError::Unaskable {
            class,
            component,
            threshold: grade_spec.thresholds.least.get(component),
            why,
        };
        match trial.shape.challenge_spec(anybody, memory) {
            Ok(spec) => memory = spec.walk_memory().or(memory),
            Err(error) => {
                let component = match rate {
                    // An impossible walk has a memory that is too large or too small.
                    Component::Bandwidth | Component::Memory => Component::Memory,
                    Component::Int8 | Component::Fp16 => rate,
                };
                return Err(unaskable(component, error.to_string()));
            }
        }
        if trial.commit_us > LONGEST_US {
            let seconds = trial.commit_us / 1_000_000;
            let why = format!("a machine that just reaches it would take up to {seconds} s; raise it");
            return Err(unaskable(rate, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnCpu8c16Gb;

    fn runs(machine: &str, rate: u64) -> MachineRuns {
        MachineRuns {
            machine: machine.to_owned(),
            int8: vec![rate, rate + 1, rate + 2],
            fp16: vec![],
            bandwidth: vec![rate / 100; 3],
        }
    }

    #[test]
    fn floors_are_measured_once_there_are_enough_machines_and_stated_until_then() {
        let mut file = ThresholdsFile::default();
        assert_eq!(file.grade_spec(CLASS), GradeSpec::for_class(CLASS));
        for number in 0..5 {
            let measured = file
                .calibration(CLASS)
                .is_some_and(|known| !known.thresholds().provisional);
            assert!(!measured, "{number} machines");
            file.add_runs(CLASS, runs(&format!("host {number}"), 900_000));
        }
        let grade_spec = file.grade_spec(CLASS).unwrap();
        let least = grade_spec.thresholds.least;
        assert!(!grade_spec.thresholds.provisional && file.describe(CLASS).contains("(measured)"));
        assert!((700_000..900_000).contains(&least.int8), "{least:?}");
        assert_eq!(
            least.memory,
            GradeSpec::for_class(CLASS).unwrap().thresholds.least.memory,
            "always stated"
        );
        // Other classes keep their thresholds.
        assert_eq!(
            file.grade_spec(ExecutorClass::AlwaysOnTest),
            GradeSpec::for_class(ExecutorClass::AlwaysOnTest)
        );
        // More runs of the same machine do not count as another machine.
        file.add_runs(CLASS, runs("host 1", 900_000));
        assert_eq!(
            (
                file.calibration(CLASS).unwrap().machines.len(),
                file.calibration(CLASS).unwrap().machines[1].int8.len()
            ),
            (5, 6)
        );
        assert_eq!(ThresholdsFile::parse(&file.to_text()).unwrap(), file);
    }

    #[test]
    fn faults_of_a_thresholds_file_are_named() {
        let class = r#"{"class": "always_on.cpu.8c.16gb", "stated": {"int8": 200000, "fp16": 0, "memory": 8192, "bandwidth": 1000}}"#;
        let file = |classes: &str| format!(r#"{{"format": "muster-floors/1", "classes": [{classes}]}}"#);
        ThresholdsFile::parse(&file(class)).unwrap();
        let with = |from: &str, to: &str| file(&class.replace(from, to));
        let machine = |machine: &str| with("1000}}", &format!("1000}}, \"machines\": [{machine}]}}"));
        let cases = [
            (
                "a thousand".to_owned(),
                "not a file of floors: expected value at line 1 column 1",
            ),
            (with("int8", "int9"), "unknown field `int9`"),
            (with("cpu.8c", "cpu.9c"), "not a file of floors"),
            (
                file(class).replace("floors/1", "floors/2"),
                "the file's format is \"muster-floors/2\"",
            ),
            (
                file(&format!("{class}, {class}")),
                "class always_on.cpu.8c.16gb is listed twice",
            ),
            (with("200000", "0"), "stated.int8 must be at least 1"),
            (with("8192", "0"), "are one proof"),
            (
                with("200000", "1"),
                "Int8 of 1 is impossible: a machine that just reaches it would take",
            ),
            (with("8192", "99999999999"), "Memory of 99999999999 is impossible"),
            (
                machine(r#"{"machine": " ", "int8": [1]}"#),
                "every machine needs a name",
            ),
            (
                machine(r#"{"machine": "one", "int8": [5, 0]}"#),
                "machine \"one\" has a run of 0",
            ),
        ];
        for (text, said) in cases {
            let error = ThresholdsFile::parse(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}

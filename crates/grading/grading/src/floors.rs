//! The floors of classes as an operator keeps them in a file: what is stated, and the honest runs of machines that are known to be of the
//! class. Whatever class the file does not name has the floors that are stated here.

use muster_hardware_proof::grade::tolerance::{LEAST_MACHINES, LEAST_RUNS};
use muster_hardware_proof::grade::{Calibration, Component, MachineRuns, stated};
use muster_hardware_proof::keys::{BatchId, ExecutorName, Identity, Nonce};
use muster_protocol::ExecutorClass;
use serde::{Deserialize, Serialize};

use crate::course::Course;

/// The version of the file.
pub const FORMAT: &str = "muster-floors/1";

/// The longest name of a machine.
const MAX_NAME: usize = 100;
/// Runs of one component of one machine, at most.
const MAX_RUNS: usize = 1_000;
/// The longest that one proof may take at its floor.
const LONGEST_US: u64 = 900_000_000;

/// Floors of classes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloorsFile {
    /// [`FORMAT`].
    pub format: String,
    /// One for each class that is not to have what is stated without a file.
    pub classes: Vec<Calibration>,
}

/// What is wrong with a file of floors.
#[derive(Debug, thiserror::Error)]
pub enum FloorsError {
    /// No JSON, or not these fields.
    #[error("it is no file of floors: {0}; `muster grade self --write-floors FILE` writes one")]
    Text(#[from] serde_json::Error),
    /// Another version.
    #[error("its format is {0:?}, this version reads {FORMAT:?}")]
    Format(String),
    /// A class stands in it twice.
    #[error("class {0} stands in it twice: put the machines of both under one")]
    Twice(ExecutorClass),
    /// A class would be graded without computing anything.
    #[error("class {0}: stated.int8 must be at least 1: every class proves that it computes")]
    NoRate(ExecutorClass),
    /// A memory and its bandwidth are one proof.
    #[error("class {0}: stated.memory and stated.bandwidth are one proof: both are 0, or neither")]
    HalfAWalk(ExecutorClass),
    /// The proof that follows from a floor cannot be asked for.
    #[error("class {class}: {component:?} of {floor} cannot be asked for: {why}")]
    Unaskable {
        /// Which class.
        class: ExecutorClass,
        /// Which floor.
        component: Component,
        /// The floor.
        floor: u64,
        /// Why not.
        why: String,
    },
    /// A machine without a name, or with an endless one.
    #[error(
        "class {0}: every machine needs a name of 1 to {MAX_NAME} characters: runs of one name are of one machine"
    )]
    Name(ExecutorClass),
    /// Runs that are none.
    #[error("class {class}: machine {machine:?} has a run of 0, or more than {MAX_RUNS} runs of one kind")]
    Runs {
        /// Which class.
        class: ExecutorClass,
        /// Whose.
        machine: String,
    },
}

impl Default for FloorsFile {
    fn default() -> Self {
        Self {
            format: FORMAT.to_owned(),
            classes: Vec::new(),
        }
    }
}

impl FloorsFile {
    /// Reads and checks one.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, FloorsError> {
        let file: Self = serde_json::from_str(text)?;
        if file.format != FORMAT {
            return Err(FloorsError::Format(file.format));
        }
        let mut seen = Vec::new();
        for calibration in &file.classes {
            let class = calibration.class;
            if seen.contains(&class) {
                return Err(FloorsError::Twice(class));
            }
            seen.push(class);
            check(calibration)?;
        }
        Ok(file)
    }

    /// As it is kept.
    pub fn to_text(&self) -> String {
        // Numbers and texts always have a JSON form.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// What a class has to prove.
    pub fn course(&self, class: ExecutorClass) -> Option<Course> {
        match self.of(class) {
            Some(calibration) => Some(Course::with(calibration.floors())),
            None => Course::of(class),
        }
    }

    /// What stands in it about a class.
    pub fn of(&self, class: ExecutorClass) -> Option<&Calibration> {
        self.classes.iter().find(|calibration| calibration.class == class)
    }

    /// Puts runs of a machine beside those that it has of it. A class that is new here begins with what is stated without a file.
    pub fn add(&mut self, class: ExecutorClass, runs: MachineRuns) {
        if self.of(class).is_none() {
            self.classes
                .extend(stated().into_iter().find(|stated| stated.class == class));
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

    /// Whether the floors of a class are measured, in words.
    pub fn standing(&self, class: ExecutorClass) -> String {
        let Some(calibration) = self.of(class) else {
            return "stated; nothing is measured".to_owned();
        };
        let floors = calibration.floors();
        let least = floors.least;
        let state = if floors.provisional {
            format!(
                "provisional: a floor is measured once {LEAST_MACHINES} machines have {LEAST_RUNS} runs each, {} are known",
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

fn check(calibration: &Calibration) -> Result<(), FloorsError> {
    let class = calibration.class;
    if calibration.stated.int8 == 0 {
        return Err(FloorsError::NoRate(class));
    }
    if (calibration.stated.memory == 0) != (calibration.stated.bandwidth == 0) {
        return Err(FloorsError::HalfAWalk(class));
    }
    for machine in &calibration.machines {
        let name = machine.machine.trim();
        if name.is_empty() || machine.machine.chars().count() > MAX_NAME {
            return Err(FloorsError::Name(class));
        }
        let all = [&machine.int8, &machine.fp16, &machine.bandwidth];
        if all.iter().any(|runs| runs.len() > MAX_RUNS || runs.contains(&0)) {
            return Err(FloorsError::Runs {
                class,
                machine: machine.machine.clone(),
            });
        }
    }
    let course = Course::with(calibration.floors());
    let anybody = Identity {
        batch: BatchId([0; 16]),
        executor: ExecutorName([0; 32]),
        nonce: Nonce([0; 32]),
    };
    for trial in &course.trials {
        let rate = trial.shape.component();
        let unaskable = |component, why| FloorsError::Unaskable {
            class,
            component,
            floor: course.floors.least.get(component),
            why,
        };
        if let Err(error) = trial.shape.spec(anybody) {
            let component = match rate {
                // What a walk cannot be is too large or too small.
                Component::Bandwidth | Component::Memory => Component::Memory,
                Component::Int8 | Component::Fp16 => rate,
            };
            return Err(unaskable(component, error.to_string()));
        }
        if trial.commit_us > LONGEST_US {
            let seconds = trial.commit_us / 1_000_000;
            let why = format!("who just reaches it would be waited for for {seconds} s; raise it");
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
        let mut file = FloorsFile::default();
        assert_eq!(file.course(CLASS), Course::of(CLASS));
        for number in 0..5 {
            let measured = file.of(CLASS).is_some_and(|known| !known.floors().provisional);
            assert!(!measured, "{number} machines");
            file.add(CLASS, runs(&format!("host {number}"), 900_000));
        }
        let course = file.course(CLASS).unwrap();
        let least = course.floors.least;
        assert!(!course.floors.provisional && file.standing(CLASS).contains("(measured)"));
        assert!((700_000..900_000).contains(&least.int8), "{least:?}");
        assert_eq!(
            least.memory,
            Course::of(CLASS).unwrap().floors.least.memory,
            "always stated"
        );
        // Other classes have what they had.
        assert_eq!(
            file.course(ExecutorClass::AlwaysOnTest),
            Course::of(ExecutorClass::AlwaysOnTest)
        );
        // More runs of one machine are no further machine.
        file.add(CLASS, runs("host 1", 900_000));
        assert_eq!(
            (
                file.of(CLASS).unwrap().machines.len(),
                file.of(CLASS).unwrap().machines[1].int8.len()
            ),
            (5, 6)
        );
        assert_eq!(FloorsFile::parse(&file.to_text()).unwrap(), file);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let class = r#"{"class": "always_on.cpu.8c.16gb", "stated": {"int8": 200000, "fp16": 0, "memory": 8192, "bandwidth": 1000}}"#;
        let file = |classes: &str| format!(r#"{{"format": "muster-floors/1", "classes": [{classes}]}}"#);
        FloorsFile::parse(&file(class)).unwrap();
        let with = |from: &str, to: &str| file(&class.replace(from, to));
        let machine = |machine: &str| with("1000}}", &format!("1000}}, \"machines\": [{machine}]}}"));
        let cases = [
            (
                "a thousand".to_owned(),
                "no file of floors: expected value at line 1 column 1",
            ),
            (with("int8", "int9"), "unknown field `int9`"),
            (with("cpu.8c", "cpu.9c"), "no file of floors"),
            (
                file(class).replace("floors/1", "floors/2"),
                "its format is \"muster-floors/2\"",
            ),
            (
                file(&format!("{class}, {class}")),
                "class always_on.cpu.8c.16gb stands in it twice",
            ),
            (with("200000", "0"), "stated.int8 must be at least 1"),
            (with("8192", "0"), "are one proof"),
            (
                with("200000", "1"),
                "Int8 of 1 cannot be asked for: who just reaches it would be waited for",
            ),
            (
                with("8192", "99999999999"),
                "Memory of 99999999999 cannot be asked for",
            ),
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
            let error = FloorsFile::parse(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}

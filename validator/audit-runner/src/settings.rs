//! The `[audit]` section of a validator's configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use muster_audit::{Calibration, DETECTION_ANSWERS, GAIN_PER_MILLE, Statistic};
use muster_process::config::Problem;
use muster_protocol::ImageId;
use muster_response_proof::MAX_SHARE_PPM;
use muster_session_pool::Service;
use serde::Deserialize;

use crate::phases::PhaseObserver;
use crate::reference::scoring_engine::{ReferenceEngine, mismatch};

/// The longest time from the end of a bucket to its draw, with a margin.
const COMMIT_TIME: Duration = Duration::from_secs(300);

/// The longest time from the end of an answer to its draw, with a wide margin.
const DRAW_TIME: Duration = Duration::from_secs(3_600);

/// The configuration of spot checks. `[audit]` in the validator's commented default explains every key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The share of answers that is audited, in millionths; absent: the share at which cheating does not pay.
    pub share_ppm: Option<u32>,
    /// The share of an answer's pay that a cheat saves, in thousandths.
    pub gain_per_mille: u64,
    /// The most audited answers, times the share that was cheated in, until the cheats that are policed are found.
    pub detection: u64,
    /// Prompts of its own that the validator asks in each bucket, for each model that has sessions.
    pub own_prompts: u32,
    /// A file of such prompts, one in a line; absent: those that the model has written, and the built-in ones.
    pub prompts: Option<PathBuf>,
    /// Prompts that a model is asked to write on a reference at each audit, where there is no file.
    pub written_prompts: u32,
    /// The longest answer to an own prompt, in tokens.
    pub own_tokens: u32,
    /// Seconds over which the own prompts of a bucket are spread.
    pub own_spread_s: u64,
    /// Answers that are gathered before a reference is started for them.
    pub gather_answers: usize,
    /// Hours after which fewer answers suffice.
    pub gather_h: u64,
    /// Seconds within which a reference has to serve.
    pub start_s: u64,
    /// Seconds that a reference may run.
    pub run_s: u64,
    /// Seconds within which a reference has to score one answer.
    pub score_s: u64,
    /// Days of answers that one verdict rests on.
    pub window_days: u64,
    /// Whether another validator's verdicts are adopted only if it shows a test of its own pipeline that convicted a
    /// planted cheat within fourteen days.
    pub require_self_test: bool,
    /// Fresh answers that an appeal is judged by.
    pub appeal_answers: u64,
    /// The calibration of each model, by the model's name in the whitelist. A model without one is not audited.
    pub calibrations: BTreeMap<String, PathBuf>,
    /// The calibration of the answers whose requests name no seed, by the model's name in the whitelist: of models
    /// whose engine draws by seeds of its own. Verdicts by it are `weak` at most.
    pub unseeded_calibrations: BTreeMap<String, PathBuf>,
    /// The image that scores a model's answers where the whitelisted image cannot, by the model's name there.
    pub reference_engines: BTreeMap<String, ReferenceEngine>,
    /// A second engine build of each model, which confirms convictions. Without one, a second machine does.
    pub second_engines: BTreeMap<String, SecondEngine>,
    /// The test of the spot checks with cheats that the validator plants itself.
    pub self_test: SelfTestSettings,
    /// Observes the phases of audits; no key of the configuration. Tests end a validator in one of them.
    #[serde(skip)]
    pub observer: PhaseObserver,
}

/// Another build of a model's engine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondEngine {
    /// The image, named by the digest of its configuration.
    pub image: ImageId,
    /// The name by which a container engine pulls the image if it does not have it.
    #[serde(default)]
    pub reference: Option<String>,
    /// The arguments of the image's entry point.
    #[serde(default)]
    pub args: Vec<String>,
}

/// The test of the spot checks themselves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SelfTestSettings {
    /// Days between two tests of a model; with 0, only the operator's order begins one.
    pub every_days: u64,
    /// Prompts of a test.
    pub answers: u32,
    /// The cheaper engine of each model, by the model's name in the whitelist. A model without one is not tested.
    pub cheats: BTreeMap<String, PlantedCheat>,
}

impl Default for SelfTestSettings {
    fn default() -> Self {
        Self {
            every_days: 7,
            answers: 256,
            cheats: BTreeMap::new(),
        }
    }
}

/// A cheaper engine of a model, with which the validator's own miner answers a part of a test.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlantedCheat {
    /// The arguments of the whitelisted image's entry point with which the image runs the cheaper engine: the session
    /// attests the image, as a cheating miner's does.
    pub args: Vec<String>,
    /// The share of answers that the cheaper engine gives, in millionths.
    pub share_ppm: u32,
}

impl Default for PlantedCheat {
    fn default() -> Self {
        Self {
            args: Vec::new(),
            share_ppm: 100_000,
        }
    }
}

impl PlantedCheat {
    /// The service of the cheaper engine under the name of the honest one.
    pub(crate) fn service(&self, honest: &Service) -> Service {
        Service {
            args: self.args.clone(),
            ..honest.clone()
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            share_ppm: None,
            gain_per_mille: GAIN_PER_MILLE,
            detection: DETECTION_ANSWERS,
            own_prompts: 1,
            prompts: None,
            written_prompts: 64,
            own_tokens: 1_024,
            own_spread_s: 240,
            gather_answers: 100,
            gather_h: 12,
            start_s: 600,
            run_s: 3_600,
            score_s: 120,
            window_days: 7,
            require_self_test: true,
            appeal_answers: 100,
            calibrations: BTreeMap::new(),
            unseeded_calibrations: BTreeMap::new(),
            reference_engines: BTreeMap::new(),
            second_engines: BTreeMap::new(),
            self_test: SelfTestSettings::default(),
            observer: PhaseObserver::default(),
        }
    }
}

impl Settings {
    /// All problems of these settings. `path` is the name of the section.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let at = |key: &str| format!("{path}.{key}");
        for (key, number) in [
            ("gain_per_mille", self.gain_per_mille),
            ("detection", self.detection),
            ("start_s", self.start_s),
            ("run_s", self.run_s),
            ("score_s", self.score_s),
            ("window_days", self.window_days),
            ("appeal_answers", self.appeal_answers),
        ] {
            if number == 0 {
                problems.push(Problem::at(at(key), "must be at least 1"));
            }
        }
        if self.share_ppm.is_some_and(|ppm| ppm > MAX_SHARE_PPM) {
            problems.push(Problem::at(at("share_ppm"), "must be at most 1000000"));
        }
        if self.self_test.answers == 0 {
            problems.push(Problem::at(at("self_test.answers"), "must be at least 1"));
        }
        for (model, cheat) in &self.self_test.cheats {
            if !(1..=MAX_SHARE_PPM).contains(&cheat.share_ppm) {
                let key = format!("{path}.self_test.cheats.{model}.share_ppm");
                problems.push(Problem::at(key, "must be between 1 and 1000000"));
            }
        }
        if self.gather_answers == 0 {
            problems.push(Problem::at(at("gather_answers"), "must be at least 1"));
        }
        if self.start_s >= self.run_s {
            problems.push(Problem::at(at("start_s"), "must be less than run_s"));
        }
        for (model, file) in &self.calibrations {
            let problem = match read_calibration(file) {
                Ok(calibration) => mismatch(self.reference_engines.get(model), &calibration),
                Err(error) => Some(error),
            };
            problems
                .extend(problem.map(|problem| Problem::at(format!("{path}.calibrations.{model}"), problem)));
        }
        for (model, file) in &self.unseeded_calibrations {
            let problem = match read_calibration(file) {
                Ok(calibration) if calibration.statistic != Statistic::Surprise => {
                    Some("its statistic is not `surprise`, the one that needs no seed".to_owned())
                }
                Ok(unseeded) => self.unseeded_mismatch(model, path, &unseeded),
                Err(error) => Some(error),
            };
            let key = format!("{path}.unseeded_calibrations.{model}");
            problems.extend(problem.map(|problem| Problem::at(key, problem)));
        }
        if let Some(file) = &self.prompts
            && let Err(error) = read_prompts(file)
        {
            problems.push(Problem::at(at("prompts"), error));
        }
        problems
    }

    /// Why the calibration of a model's answers without seeds is never used; `None` if it is. `path` is the name of the
    /// section.
    fn unseeded_mismatch(&self, model: &str, path: &str, unseeded: &Calibration) -> Option<String> {
        let Some(file) = self.calibrations.get(model) else {
            return Some(format!(
                "the model has no calibration with seeds beside it: name one in {path}.calibrations, or this one there"
            ));
        };
        // A file that cannot be read is named by its own key.
        let seeded = read_calibration(file).ok()?;
        (!unseeded.is_unseeded_of(&seeded)).then(|| {
            format!(
                "it is not of the image, model and reference of the calibration in {path}.calibrations.{model}, or that \
                 one needs no seeds either: measure both with the same images"
            )
        })
    }

    /// The problem with sessions of the gateway's that serve for so long; `None` if there is none. An audit shows a
    /// session from its first answer on, so all of its answers have to be audited within the window.
    pub fn session_problem(&self, path: &str, session: Duration) -> Option<Problem> {
        let needed = session
            .saturating_add(self.gather_age())
            .saturating_add(DRAW_TIME);
        (needed > self.window()).then(|| {
            let text = "must cover gateway.session_s, gather_h and one hour together: sessions that were opened before it \
                        are not audited";
            Problem::at(format!("{path}.window_days"), text)
        })
    }

    /// The calibration of a model; `None` if it has none that can be read. The check of the configuration names the
    /// defects of a file.
    pub fn calibration(&self, model: &str) -> Option<Calibration> {
        read_calibration(self.calibrations.get(model)?).ok()
    }

    /// The calibration of a model's answers whose seeds nobody knows; `None` as for [`Self::calibration`].
    pub fn unseeded_calibration(&self, model: &str) -> Option<Calibration> {
        read_calibration(self.unseeded_calibrations.get(model)?).ok()
    }

    /// The prompts that may be asked more than once: those of the operator's file, or the built-in ones.
    pub(crate) fn own_texts(&self) -> Vec<String> {
        let read = self.prompts.as_ref().and_then(|file| read_prompts(file).ok());
        read.unwrap_or_else(muster_audit::own_prompts::built_in)
    }

    /// The service that confirms what a reference with this service has found: another build of the engine if one is
    /// configured, the same one otherwise.
    pub fn second_service(&self, first: &Service) -> Service {
        match self.second_engines.get(&first.model) {
            None => first.clone(),
            Some(second) => Service {
                image: second.image,
                reference: second.reference.clone(),
                args: second.args.clone(),
                ..first.clone()
            },
        }
    }

    /// The age at which gathered answers wait no longer for more.
    pub const fn gather_age(&self) -> Duration {
        Duration::from_secs(self.gather_h.saturating_mul(3_600))
    }

    /// The longest time from the choice of a session until its own prompts are asked, with a wide margin: its header,
    /// the draw block and the pauses.
    pub(crate) const fn own_time(&self) -> Duration {
        COMMIT_TIME.saturating_add(Duration::from_secs(self.own_spread_s))
    }

    /// The time whose answers one verdict rests on.
    pub const fn window(&self) -> Duration {
        Duration::from_secs(self.window_days.saturating_mul(86_400))
    }
}

fn read_calibration(file: &PathBuf) -> Result<Calibration, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the calibration {} cannot be read: {error}", file.display()))?;
    Calibration::parse(&text).map_err(|error| format!("{} is no calibration: {error}", file.display()))
}

fn read_prompts(file: &PathBuf) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the prompts {} cannot be read: {error}", file.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let prompts: Vec<String> = lines.map(str::to_owned).collect();
    if prompts.is_empty() {
        return Err(format!(
            "{} has no prompts: one in a line is needed",
            file.display()
        ));
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_shorter_than_the_time_whose_answers_are_judged() {
        let of = |window_days, hours: u64| {
            let settings = Settings {
                window_days,
                ..Settings::default()
            };
            let session = Duration::from_secs(hours * 3_600);
            settings.session_problem("audit", session).is_some()
        };
        assert!(!of(7, 1), "the default");
        assert!(!of(1, 11), "with 12 hours of gathering, and one until the draw");
        assert!(of(1, 12));
    }

    #[test]
    fn every_defect_is_named_with_its_key() {
        assert_eq!(Settings::default().problems("audit"), []);
        let broken = Settings {
            share_ppm: Some(1_000_001),
            gather_answers: 0,
            start_s: 10,
            run_s: 10,
            calibrations: [("tiny".to_owned(), PathBuf::from("/nonexistent"))].into(),
            prompts: Some(PathBuf::from("/nonexistent")),
            self_test: SelfTestSettings {
                answers: 0,
                cheats: [(
                    "tiny".to_owned(),
                    PlantedCheat {
                        share_ppm: 0,
                        ..PlantedCheat::default()
                    },
                )]
                .into(),
                ..SelfTestSettings::default()
            },
            ..Settings::default()
        };
        let found: Vec<String> = broken.problems("audit").iter().map(ToString::to_string).collect();
        let all = found.join("\n");
        for key in [
            "share_ppm",
            "gather_answers",
            "start_s",
            "calibrations.tiny",
            "prompts",
            "self_test.answers",
            "self_test.cheats.tiny.share_ppm",
        ] {
            assert!(all.contains(&format!("audit.{key}")), "{key}: {all}");
        }
        assert_eq!(found.len(), 7, "{all}");
    }
}

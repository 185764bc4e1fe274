//! The plan of a model's references: the services that they serve and the sampler that they replay.

use muster_audit::{Calibration, KnownAnswer};
use muster_session_pool::Service;
use muster_session_pool::whitelist::{EngineKind, ListenAddress};

use crate::reference::scoring_engine::{Sampling, mismatch};
use crate::runner_state::RunnerState;
use crate::settings::Settings;

/// The whitelisted service of a model, and the calibration of its image.
///
/// # Errors
/// There is none, or the calibration is of another image: what to configure, as text.
pub(crate) fn calibrated_service(state: &RunnerState, model: &str) -> Result<(Service, Calibration), String> {
    let listed = state.services.iter().find(|service| service.model == model);
    let service = listed.cloned().ok_or("the whitelist has no such model")?;
    let calibration = state
        .settings
        .calibration(model)
        .ok_or("the model has no calibration: [audit.calibrations] names one")?;
    if calibration.engine != service.image.0 {
        return Err(format!(
            "the calibration is of the image {}, and the whitelist has {}: measure the whitelisted image, and name its \
             calibration in [audit.calibrations]",
            calibration.engine, service.image.0
        ));
    }
    Ok((service, calibration))
}

/// All that a model's references follow from.
#[derive(Clone, Debug)]
pub(crate) struct ReferencePlan {
    /// The service of the first reference.
    pub(crate) service: Service,
    pub(crate) sampling: Sampling,
    /// Answers of the whitelisted image by which a reference shows that it replays the sampler.
    pub(crate) known_answers: Vec<KnownAnswer>,
}

impl ReferencePlan {
    /// The plan for a whitelisted service by its calibration.
    ///
    /// # Errors
    /// The calibration is not one of the configured reference and sampler: what to configure, as text.
    pub(crate) fn new(
        settings: &Settings,
        listed: &Service,
        calibration: &Calibration,
    ) -> Result<Self, String> {
        let service = settings.reference_service(listed);
        let sampling = settings.sampling(&listed.model);
        if let Some(problem) = mismatch(settings.reference_engines.get(&listed.model), calibration) {
            return Err(problem);
        }
        if calibration.reference_engine() != service.image.0 {
            return Err(format!(
                "its calibration is of the reference {}, and the reference's image is {}: \
                 [audit.reference_engines] names the image with which the calibration was made",
                calibration.reference_engine(),
                service.image.0
            ));
        }
        Ok(Self {
            service,
            sampling,
            known_answers: calibration.known_answers.clone(),
        })
    }

    /// The plan for the reference that confirms.
    pub(crate) fn second(&self, settings: &Settings) -> Self {
        Self {
            service: settings.second_service(&self.service),
            ..self.clone()
        }
    }
}

impl Settings {
    /// The sampler of a model's answers.
    pub(crate) fn sampling(&self, model: &str) -> Sampling {
        Sampling::of(self.reference_engines.get(model))
    }

    /// The service of the reference that scores the answers of a whitelisted service.
    pub fn reference_service(&self, listed: &Service) -> Service {
        match self.reference_engines.get(&listed.model) {
            None => listed.clone(),
            Some(engine) => Service {
                image: engine.image,
                reference: engine.reference.clone(),
                args: engine.args.clone(),
                env: Default::default(),
                engine: EngineKind::Reference,
                scheme: Default::default(),
                health: "/health".to_owned(),
                listen: ListenAddress::Socket("http.sock".to_owned()),
                ..listed.clone()
            },
        }
    }

    /// The services that references of these whitelisted ones need beside them: other images, and second builds.
    pub fn reference_services(&self, listed: &[Service]) -> Vec<Service> {
        let of = |service: &Service| {
            let first = self.reference_service(service);
            let second = self.second_service(&first);
            let own = self
                .reference_engines
                .contains_key(&service.model)
                .then_some(first);
            let other = self.second_engines.contains_key(&service.model).then_some(second);
            [own, other]
        };
        listed.iter().flat_map(of).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use muster_audit::{
        EngineSampler, REFERENCED_CALIBRATION_FORMAT, ReferenceBuild, SamplerEngine, Statistic,
    };
    use muster_protocol::{Digest, ImageId};
    use serde_json::{Value, json};

    use super::*;

    fn listed() -> Service {
        serde_json::from_value(json!({
            "model": "tiny", "image": ImageId(Digest::of(b"llama.cpp")), "engine": "llama-cpp", "scheme": "text",
            "class": "always_on.test", "args": ["/muster/http.sock"], "env": {"A": "b"}, "health": "/ready",
            "input_tokens_per_s": 1, "output_tokens_per_s": 1,
        }))
        .unwrap()
    }

    fn settings(sampler: Value) -> Settings {
        let engine = json!({
            "image": ImageId(Digest::of(b"reference")), "args": ["--socket", "/muster/http.sock"], "sampler": sampler,
        });
        Settings {
            reference_engines: [("tiny".to_owned(), serde_json::from_value(engine).unwrap())].into(),
            ..Settings::default()
        }
    }

    fn llama_cpp() -> Settings {
        settings(json!({"engine": "llama.cpp", "version": "b11549", "defaults": {"temperature": 0.6}}))
    }

    fn calibration() -> Calibration {
        let measured = include_str!("../../../../tests/vectors/audit-calibration.json");
        Calibration {
            format: REFERENCED_CALIBRATION_FORMAT.to_owned(),
            engine: listed().image.0,
            reference: Some(ReferenceBuild {
                engine: Digest::of(b"reference"),
                arguments: Digest::of(b""),
            }),
            sampler: Some(EngineSampler {
                engine: SamplerEngine::LlamaCpp,
                version: "b11549".to_owned(),
            }),
            known_answers: vec![KnownAnswer {
                request: r#"{"seed":1}"#.to_owned(),
                prompt: vec![1],
                output: vec![2],
            }],
            ..Calibration::parse(measured).unwrap()
        }
    }

    #[test]
    fn the_reference_has_the_models_class_and_nothing_else_of_the_whitelisted_image() {
        let reference = llama_cpp().reference_service(&listed());
        assert_eq!(
            (reference.image.0, reference.health.as_str()),
            (Digest::of(b"reference"), "/health")
        );
        assert_eq!(reference.engine, EngineKind::Reference);
        assert_eq!((reference.env.len(), &reference.class), (0, &listed().class));
        assert_ne!(reference.scheme, listed().scheme);
        assert_eq!(Settings::default().reference_service(&listed()), listed());
        let needed = llama_cpp().reference_services(&[listed()]);
        assert_eq!(
            needed,
            [reference],
            "miners are not asked for the second build that nobody configured"
        );
        assert_eq!(Settings::default().reference_services(&[listed()]), []);
    }

    #[test]
    fn a_plan_needs_a_calibration_of_the_same_reference_sampler_and_version() {
        let plan = ReferencePlan::new(&llama_cpp(), &listed(), &calibration()).unwrap();
        assert_eq!(plan.known_answers, calibration().known_answers);
        let Sampling::Engine(sampler) = &plan.sampling else {
            panic!("{plan:?}")
        };
        assert_eq!(
            sampler.defaults(),
            [("temperature".to_owned(), json!(0.6))].into()
        );
        let refused = |settings: &Settings, alter: &dyn Fn(&mut Calibration)| {
            let mut changed = calibration();
            alter(&mut changed);
            ReferencePlan::new(settings, &listed(), &changed).unwrap_err()
        };
        let other_image = refused(&llama_cpp(), &|one| {
            one.reference.as_mut().unwrap().engine = one.engine
        });
        assert!(
            other_image.contains("[audit.reference_engines] names the image"),
            "{other_image}"
        );
        let other_version = refused(&llama_cpp(), &|one| {
            "b1".clone_into(&mut one.sampler.as_mut().unwrap().version)
        });
        assert!(other_version.contains("llama.cpp b1"), "{other_version}");
        let unproven = refused(&llama_cpp(), &|one| one.known_answers.clear());
        assert!(unproven.contains("known answers"), "{unproven}");
        let seedless = |one: &mut Calibration| (one.statistic, one.sampler) = (Statistic::Surprise, None);
        let misplaced = refused(&llama_cpp(), &seedless);
        assert!(misplaced.contains("[audit.unseeded_calibrations]"), "{misplaced}");
        let own = refused(&llama_cpp(), &|one| one.reference = None);
        assert!(own.contains("scores its own answers"), "{own}");
        let without = refused(&Settings::default(), &|_| ());
        assert!(without.contains("has to name it"), "{without}");
        // Without a known version there are no seeds, so only a calibration without seeds fits.
        let unknown = settings(Value::Null);
        assert!(refused(&unknown, &|_| ()).contains("no sampler"));
        let mut weak = calibration();
        seedless(&mut weak);
        let plan = ReferencePlan::new(&unknown, &listed(), &weak).unwrap();
        assert_eq!(plan.sampling, Sampling::Unknown);
    }

    #[test]
    fn a_configuration_names_every_calibration_that_does_not_fit() {
        let folder = std::env::temp_dir().join(format!("muster-references-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("calibration.json");
        std::fs::write(&file, calibration().to_text()).unwrap();
        let named = || [("tiny".to_owned(), file.clone())].into();
        let mut fits = llama_cpp();
        fits.calibrations = named();
        assert_eq!(fits.problems("audit"), []);
        let mut broken = Settings {
            calibrations: named(),
            unseeded_calibrations: named(),
            ..Settings::default()
        };
        broken.reference_engines.clear();
        let found: Vec<String> = broken.problems("audit").iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("audit.calibrations.tiny"), "{found:?}");
        assert!(found[1].contains("audit.unseeded_calibrations.tiny"), "{found:?}");
        // A calibration without seeds is used beside one with seeds of the same images alone.
        let other = folder.join("unseeded.json");
        let mut unseeded = calibration();
        (unseeded.statistic, unseeded.sampler) = (Statistic::Surprise, None);
        std::fs::write(&other, unseeded.to_text()).unwrap();
        fits.unseeded_calibrations = [("tiny".to_owned(), other.clone())].into();
        assert_eq!(fits.problems("audit"), []);
        unseeded.engine = Digest::of(b"another");
        std::fs::write(&other, unseeded.to_text()).unwrap();
        let found: Vec<String> = fits.problems("audit").iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("measure both with the same images"),
            "{found:?}"
        );
        fits.calibrations.clear();
        let found: Vec<String> = fits.problems("audit").iter().map(ToString::to_string).collect();
        assert!(
            found[0].contains("has no calibration with seeds beside it"),
            "{found:?}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

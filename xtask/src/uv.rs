//! uv, which makes Python environments and builds wheels, in an environment of its own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{cache, tool::quietly};

/// The version of uv, which makes an environment in a tenth of pip's time.
pub(crate) const UV: &str = "0.13.9";

/// uv, in an environment of its own.
pub(crate) fn installer() -> anyhow::Result<PathBuf> {
    let environment = cache::make_once("python", &format!("uv-{UV}"), |folder| {
        quietly(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        let mut pip = Command::new(interpreter_in(folder));
        pip.args([
            "-m",
            "pip",
            "install",
            "--no-input",
            "--disable-pip-version-check",
            "--quiet",
        ]);
        quietly(pip.arg(format!("uv=={UV}"))).map(drop)
    })?;
    Ok(environment.join("bin/uv"))
}

/// A command of uv, which uses this machine's Python and trusts the certificates that this machine trusts.
pub(crate) fn uv(program: &Path, command: &str) -> Command {
    let mut uv = Command::new(program);
    uv.args(["--quiet", "--native-tls", "--no-python-downloads", command]);
    uv
}

/// The version of this machine's Python. An environment points at the interpreter that made it and breaks with it.
pub(crate) fn python_version() -> anyhow::Result<String> {
    let told = quietly(
        Command::new("python3").args(["-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]),
    )?;
    Ok(told.trim().to_owned())
}

/// The interpreter of an environment.
pub(crate) fn interpreter_in(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

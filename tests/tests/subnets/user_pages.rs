//! The pages below `docs/users`: a shell runs their blocks of commands, each page in a folder of its own.
//!
//! The image that the pages name comes from a registry, and so do the packages that one of them installs. Tests have
//! neither, so an image of this machine's Python takes its place, and a file the package's.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use muster_tests::{PYTHON_IMAGE, RunningSubnet, muster, program_from_env, python_image, run};

use super::python_client::build_wheel;

/// The image that the pages run.
const NAMED: &str = "python:3.13-slim";
/// The image that a page builds.
const BUILT: &str = "my-image";
/// The line of that image which wants a network, and the lines in its place.
const INSTALLS: &str = "RUN pip install --no-cache-dir -r requirements.txt";
const COPIES: &str = r#"RUN ["python", "-c", "import os; os.mkdir('/packages'); open('/packages/six.py', 'w').close()"]
ENV PYTHONPATH=/packages"#;

pub(crate) fn every_block_of_the_users_pages_runs(subnet: &RunningSubnet) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(python_image()).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/users");
    let mut pages: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pages.sort();
    let python = program_from_env("MUSTER_TEST_CLIENT_PYTHON").unwrap();
    let wheels = tempfile::tempdir().unwrap();
    let wheel = build_wheel(&python, wheels.path());
    let mut tried = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = blocks_of(&text);
        if !blocks.is_empty() {
            tried += 1;
            run_page(subnet, &page.display().to_string(), &blocks, (&python, &wheel));
        }
    }
    assert!(tried >= 7, "{tried} pages have commands");
}

/// The blocks of commands of a page.
fn blocks_of(page: &str) -> Vec<String> {
    let parts = page.split("\n```sh\n").skip(1);
    parts
        .filter_map(|part| Some(part.split_once("\n```")?.0.to_owned()))
        .collect()
}

/// Runs the blocks of a page. `python` there is the interpreter `python` with the package in `wheel`.
fn run_page(subnet: &RunningSubnet, page: &str, blocks: &[String], (python, wheel): (&Path, &Path)) {
    let here = tempfile::tempdir().unwrap();
    let programs = tempfile::tempdir().unwrap();
    symlink(muster().unwrap(), programs.path().join("muster")).unwrap();
    let called = programs.path().join("python");
    std::fs::write(&called, format!("#!/bin/sh\nexec {} \"$@\"\n", python.display())).unwrap();
    std::fs::set_permissions(&called, Permissions::from_mode(0o755)).unwrap();
    let built = format!("muster-page-{}", std::process::id());
    let script = blocks
        .join("\n")
        .replace(INSTALLS, COPIES)
        .replace(NAMED, PYTHON_IMAGE)
        .replace(BUILT, &built);
    let path = std::env::var("PATH").unwrap();
    let ended = run(Command::new("bash")
        .args(["-euxo", "pipefail", "-c", &script])
        .current_dir(here.path())
        .env("PATH", format!("{}:{path}", programs.path().display()))
        .env("PYTHONPATH", wheel)
        .env("MUSTER_DIR", subnet.folder()))
    .unwrap();
    if script.contains(&built) {
        // An image that was not built is none to remove.
        let _ = run(Command::new("docker").args(["rmi", "-f", &built]));
    }
    assert_eq!(ended.code, Some(0), "{page}: {ended:?}");
}

#[cfg(test)]
mod tests {
    use super::blocks_of;

    #[test]
    fn blocks_of_commands_are_found_and_others_are_not() {
        let page = "# P\n\n```sh\na\nb\n```\n\n```python\nc\n```\n\n```sh\nd\n```\n";
        assert_eq!(blocks_of(page), ["a\nb", "d"]);
    }
}

//! Images of the tests' own: small unique ones, and the probe.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use muster_containers::{ContainerEngine, ImageArchive, ImageContent, ImageFile};
use uuid::Uuid;

/// An image that no other test and no other run has, of about this many incompressible bytes.
pub(crate) fn unique(bytes: usize) -> anyhow::Result<(String, ImageArchive)> {
    let tag = format!("muster/engine-test:{}", Uuid::new_v4());
    let mut contents = Vec::with_capacity(bytes + 16);
    while contents.len() < bytes.max(16) {
        contents.extend_from_slice(Uuid::new_v4().as_bytes());
    }
    let file = ImageFile {
        path: "/filler".into(),
        mode: 0o644,
        contents,
    };
    let content = ImageContent {
        tag: tag.clone(),
        files: vec![file],
        entrypoint: vec!["/filler".into()],
        ..ImageContent::default()
    };
    Ok((tag, ImageArchive::new(&content)?))
}

/// The static probe, built from this checkout. Cargo builds it in the first call only.
pub(crate) fn probe_program() -> anyhow::Result<PathBuf> {
    super::build_static("muster-image-probe", "probe")
}

/// Loads the image of the probe.
pub(crate) async fn load_probe(engine: &ContainerEngine) -> anyhow::Result<ImageArchive> {
    let archive = tokio::task::spawn_blocking(|| -> anyhow::Result<ImageArchive> {
        let program = ImageFile {
            path: "/probe".into(),
            mode: 0o755,
            contents: std::fs::read(probe_program()?)?,
        };
        let content = ImageContent {
            tag: "muster/engine-test-probe:latest".into(),
            files: vec![program],
            entrypoint: vec!["/probe".into()],
            ..ImageContent::default()
        };
        Ok(ImageArchive::new(&content)?)
    })
    .await??;
    engine.load(archive.bytes.clone()).await?;
    Ok(archive)
}

/// Debian's Python and shell and a package installed by pip, run by root: built from this machine's own packages in
/// seconds, and kept by the engine.
pub(crate) async fn python(engine: &ContainerEngine) -> anyhow::Result<muster_containers::LocalImage> {
    let name = "muster/engine-test-python:2";
    if engine.find_image(name).await?.is_none() {
        let archive = tokio::task::spawn_blocking(python_root).await??;
        let docker = bollard::Docker::connect_with_defaults()?.with_timeout(muster_testbed::patience());
        let options = bollard::query_parameters::CreateImageOptions {
            from_src: Some("-".into()),
            repo: Some("muster/engine-test-python".into()),
            tag: Some("2".into()),
            ..Default::default()
        };
        let mut answers =
            Box::pin(docker.create_image(Some(options), Some(bollard::body_full(archive.into())), None));
        while let Some(answer) = futures_util::StreamExt::next(&mut answers).await {
            answer?;
        }
    }
    engine
        .find_image(name)
        .await?
        .context("the engine has lost the image")
}

/// The Debian packages of Python, a shell and everyday commands.
const PACKAGES: [&str; 6] = ["base-files", "bash", "coreutils", "dash", "libgomp1", "python3"];
/// Files that no package lists because the installation made them.
const MADE: [&str; 9] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/passwd",
    "/etc/group",
    "/etc/ld.so.cache",
    "/usr/bin/sh",
    "/tmp",
];

/// The image's files as a tar archive.
fn python_root() -> anyhow::Result<Vec<u8>> {
    super::require("dpkg-query");
    super::require("python3");
    let mut paths: BTreeSet<String> = MADE.iter().map(|&path| path.to_owned()).collect();
    for package in closure()? {
        let listed = output(Command::new("dpkg").args(["--listfiles", &package]))?;
        paths.extend(listed.lines().filter(|path| path.starts_with('/')).map(real));
    }
    paths.retain(|path| {
        path != "/." && !path.starts_with("/usr/share/doc") && Path::new(path).symlink_metadata().is_ok()
    });
    let work = tempfile::tempdir()?;
    let (list, made) = (work.path().join("list"), work.path().join("made.tar"));
    std::fs::write(&list, paths.into_iter().collect::<Vec<_>>().join("\n"))?;
    let made_text = made.display().to_string();
    output(
        Command::new("tar")
            .args([
                "--create",
                "--no-recursion",
                "--absolute-names",
                "--file",
                &made_text,
                "--files-from",
            ])
            .arg(&list),
    )?;
    let root = work.path().join("root");
    let packages = root.join("usr/local/lib/python3.11/dist-packages");
    std::fs::create_dir_all(&packages)?;
    output(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--only-binary=:all:",
                "--target",
            ])
            .arg(&packages)
            .arg("six"),
    )?;
    output(
        Command::new("tar")
            .args([
                "--append",
                "--file",
                &made_text,
                "--owner=0",
                "--group=0",
                "--directory",
            ])
            .arg(&root)
            .arg("usr/local/lib/python3.11"),
    )?;
    Ok(std::fs::read(made)?)
}

/// Resolves the links among the folders of a path: Debian's packages still write `/lib` for `/usr/lib`.
fn real(path: &str) -> String {
    let path = Path::new(path);
    let above = path.parent().and_then(|above| above.canonicalize().ok());
    match (above, path.file_name()) {
        (Some(above), Some(name)) => above.join(name).display().to_string(),
        (_, None | Some(_)) => path.display().to_string(),
    }
}

/// The packages and their installed dependencies.
fn closure() -> anyhow::Result<BTreeSet<String>> {
    let known = output(Command::new("dpkg-query").args([
        "--show",
        "--showformat",
        "${Package}\t${Pre-Depends},${Depends}\n",
    ]))?;
    let known: HashMap<&str, &str> = known.lines().filter_map(|line| line.split_once('\t')).collect();
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = PACKAGES.to_vec();
    while let Some(package) = open.pop() {
        let Some(needs) = known.get(package) else { continue };
        if !found.insert(package.to_owned()) {
            continue;
        }
        let names = needs.split([',', '|']);
        open.extend(names.map(|need| need.trim().split([' ', ':', '(']).next().unwrap_or_default()));
    }
    Ok(found)
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", printed.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

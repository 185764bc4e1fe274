//! The programs of a release, built so that their bytes do not depend on the folder.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::{tool::quietly, workspace::Workspace};

/// The programs that come with `muster`, which it starts itself or puts into images. Users do not call them.
pub(super) const COMPANIONS: [&str; 6] = [
    "muster-devchain",
    "muster-hold",
    "muster-grader",
    "hello",
    "cheating_grader",
    "swapping_engine",
];

/// The programs of a release.
pub(super) struct Programs {
    /// `muster` itself.
    pub(super) muster: PathBuf,
    /// Those of [`COMPANIONS`], in their order.
    pub(super) companions: Vec<PathBuf>,
    /// The version of the C library that they were linked with, which is the oldest that they start with.
    pub(super) glibc: String,
}

/// The profile of a build, and the options of cargo that choose it.
struct Profile {
    /// The folder's name below that of the target.
    folder: &'static str,
    options: &'static [&'static str],
}

const DEVELOPMENT: Profile = Profile {
    folder: "debug",
    options: &[],
};
const DIST: Profile = Profile {
    folder: "dist",
    options: &["--profile", "dist"],
};
/// The chain's workspace has no profile of its own for it.
const RELEASE: Profile = Profile {
    folder: "release",
    options: &["--release"],
};

// === impl Programs ===

impl Programs {
    /// Builds them; a development build takes the artefacts of `cargo build` where it can.
    pub(super) fn build(workspace: &Workspace, development: bool) -> anyhow::Result<Self> {
        let target = machine();
        let glibc = glibc_version()?;
        if development {
            return Self::build_for_development(workspace, &target, glibc);
        }
        let folder = workspace.target().join("dist-build");
        // With mapped paths cargo gives artefacts of other flags the same names, so static programs have their own.
        let static_folder = workspace.target().join("dist-build-static");
        let flags = Flags::new(workspace.root(), workspace.target());
        let build = |cargo: &mut Command, profile: &Profile, is_static: bool| {
            flags.give(cargo, is_static);
            cargo.args(profile.options).args(["--target", &target]);
            cargo.env(
                "CARGO_TARGET_DIR",
                if is_static { &static_folder } else { &folder },
            );
            run(cargo)
        };
        let built = |profile: &Profile| folder.join(&target).join(profile.folder);
        let mut cargo = workspace.cargo();
        // Without the features that only tests want.
        cargo.args([
            "build",
            "-p",
            "muster",
            "--no-default-features",
            "--bin",
            "muster",
        ]);
        build(&mut cargo, &DIST, false)?;
        let mut cargo = workspace.cargo();
        cargo
            .current_dir(workspace.root().join("devchain"))
            .args(["build", "--bin", "muster-devchain"]);
        build(&mut cargo, &RELEASE, false)?;
        let mut cargo = workspace.cargo();
        add_images(cargo.arg("build"));
        build(&mut cargo, &DIST, true)?;
        Ok(Self {
            muster: built(&DIST).join("muster"),
            companions: companions(&built(&RELEASE), &static_folder.join(&target).join(DIST.folder)),
            glibc,
        })
    }

    fn build_for_development(workspace: &Workspace, target: &str, glibc: String) -> anyhow::Result<Self> {
        let mut cargo = workspace.cargo();
        run(cargo.args(["build", "--workspace", "--bins"]))?;
        let mut cargo = workspace.devchain_cargo();
        run(cargo.args(["build", "--bin", "muster-devchain"]))?;
        let mut cargo = workspace.cargo();
        add_images(cargo.arg("build"));
        // As `muster up` builds them, so that nothing is compiled twice.
        run(cargo
            .args(["--target", target])
            .env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
        let built = workspace.target().join(DEVELOPMENT.folder);
        let images = workspace.target().join(target).join(DEVELOPMENT.folder);
        Ok(Self {
            muster: built.join("muster"),
            companions: companions(&built, &images),
            glibc,
        })
    }

    /// A line that says the sizes of the programs.
    pub(super) fn sizes(&self) -> anyhow::Result<String> {
        let mut sizes = Vec::new();
        for program in std::iter::once(&self.muster).chain(&self.companions) {
            let bytes = fs::metadata(program)
                .with_context(|| format!("{} was not built", program.display()))?
                .len();
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            sizes.push(format!("{name} {:.1} MB", f64::from(u32::try_from(bytes)?) / 1e6));
        }
        Ok(sizes.join(", "))
    }
}

/// Builds `muster-grader`, a small program with crates of ours, from the checkout in a folder, which has its target
/// folder inside.
pub(super) fn build_small_program(workspace: &Workspace, folder: &Path) -> anyhow::Result<PathBuf> {
    let (machine, target) = (machine(), folder.join("target"));
    let mut cargo = workspace.cargo();
    Flags::new(folder, &target).give(&mut cargo, true);
    cargo
        .current_dir(folder)
        .args([
            "build",
            "-p",
            "muster-image-grader",
            "--bin",
            "muster-grader",
            "--target",
            &machine,
        ])
        .args(DIST.options)
        .env("CARGO_TARGET_DIR", &target);
    run(&mut cargo)?;
    Ok(target.join(machine).join(DIST.folder).join("muster-grader"))
}

/// The paths of the companions: the chain in `chain`, the others in `images`.
fn companions(chain: &Path, images: &Path) -> Vec<PathBuf> {
    let path = |name: &&str| match *name {
        "muster-devchain" => chain.join(name),
        "cheating_grader" | "swapping_engine" => images.join("examples").join(name),
        _ => images.join(name),
    };
    COMPANIONS.iter().map(path).collect()
}

/// Names the companions that run in images, which are linked statically.
fn add_images(cargo: &mut Command) {
    cargo
        .args(["-p", "muster-image-hello", "-p", "muster-image-grader"])
        .args(["-p", "muster-hold", "--bins"])
        .args(["--example", "cheating_grader", "--example", "swapping_engine"]);
}

/// The flags that map the folders of this machine to names.
struct Flags {
    rust: String,
    c: String,
}

// === impl Flags ===

impl Flags {
    fn new(root: &Path, target: &Path) -> Self {
        let home = env::var_os("CARGO_HOME").map_or_else(
            || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo"),
            PathBuf::from,
        );
        // The last one that fits is taken, so the target folder, which may lie in the checkout, comes last.
        Self::mapping(&[(root, "/muster"), (&home, "/cargo"), (target, "/target")])
    }

    fn mapping(folders: &[(&Path, &str)]) -> Self {
        let flags = |option: &str| {
            let all = folders
                .iter()
                .map(|(folder, name)| format!("{option}={}={name}", folder.display()));
            all.collect::<Vec<_>>().join(" ")
        };
        Self {
            rust: format!("{} -Cstrip=symbols", flags("--remap-path-prefix")),
            c: flags("-ffile-prefix-map"),
        }
    }

    fn give(&self, cargo: &mut Command, is_static: bool) {
        let linked = if is_static {
            " -Ctarget-feature=+crt-static"
        } else {
            ""
        };
        cargo
            .env("RUSTFLAGS", format!("{}{linked}", self.rust))
            .env("CFLAGS", &self.c)
            .env("CXXFLAGS", &self.c)
            // Cargo mixes the path of the linting wrapper into the names of symbols. Lints are for development.
            .env("RUSTC_WORKSPACE_WRAPPER", "")
            .env("CARGO_INCREMENTAL", "0");
    }
}

fn machine() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

/// The version of this machine's C library, `2.36`.
fn glibc_version() -> anyhow::Result<String> {
    let printed = quietly(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let version = printed.trim().strip_prefix("glibc ");
    Ok(version.context("this machine has no glibc")?.to_owned())
}

fn run(cargo: &mut Command) -> anyhow::Result<()> {
    let status = cargo.status().context("start cargo")?;
    ensure!(status.success(), "cargo ended with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_inside_another_is_mapped_by_the_flag_that_comes_last() {
        let flags = Flags::mapping(&[
            (Path::new("/work"), "/muster"),
            (Path::new("/work/target"), "/target"),
        ]);
        assert_eq!(
            flags.rust,
            "--remap-path-prefix=/work=/muster --remap-path-prefix=/work/target=/target -Cstrip=symbols"
        );
        assert_eq!(
            flags.c,
            "-ffile-prefix-map=/work=/muster -ffile-prefix-map=/work/target=/target"
        );
    }

    #[test]
    fn each_companion_is_where_its_build_leaves_it() {
        let paths = companions(Path::new("/chain"), Path::new("/images"));
        assert_eq!(paths.len(), COMPANIONS.len());
        assert_eq!(paths[0], Path::new("/chain/muster-devchain"));
        assert_eq!(paths[1], Path::new("/images/muster-hold"));
        assert_eq!(paths[4], Path::new("/images/examples/cheating_grader"));
    }
}

//! Stand-ins for CUDA on a machine without it: PTX made of the prover's kernels, and a libcuda to link with.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, bail, ensure};
use cargo_metadata::MetadataCommand;
use sha2::{Digest, Sha256};

use crate::workspace::Workspace;

/// The folder of the kernels, and what is made of them there.
pub(crate) const KERNELS: &str = "images/grader-cuda/kernels/";
pub(crate) const PTX: &str = "kernels.ptx";
/// Before the digest of the kernels in the first line of the PTX.
pub(crate) const DIGEST: &str = "// made by `cargo xtask ptx` of kernels with sha256 ";

/// The compiler, from the Python package index; together they are 280 MB.
const COMPILER: [&str; 4] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
];
/// No instruction of the kernels is younger, so that drivers from CUDA 11.1 on read it; the compiler itself writes 9.0.
/// ptxas refuses what the version does not have.
const VERSION: &str = "7.1";
/// The cards that the assembler reports on: A100, RTX 3090, RTX 4090, H100, B200, RTX 5090.
const CARDS: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// Whether a file of the folder is compiled into the PTX.
pub(crate) fn is_kernel(name: &str) -> bool {
    name.ends_with(".cu") || name.ends_with(".cuh")
}

/// The digest of the kernels: names and texts, in the order of the names.
pub(crate) fn digest<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut hash = Sha256::new();
    for (name, text) in files {
        hash.update(format!("{name} {}\n", text.len()));
        hash.update(text);
    }
    hex::encode(hash.finalize())
}

/// `cargo xtask ptx`: compiles the kernels and prints what the assembler makes of them.
pub(crate) fn ptx(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let folder = workspace.root().join(KERNELS);
    let tools = compiler(&workspace.target().join("nvcc"))?;
    let made = workspace.target().join("kernels.ptx");
    let mut nvcc = Command::new(tools.join("nvcc"));
    nvcc.args([
        "--ptx",
        "-arch=compute_80",
        "--fmad=false",
        "-std=c++17",
        "-O3",
        "-o",
    ])
    .arg(&made)
    .arg("kernels.cu")
    .current_dir(&folder);
    output(&mut nvcc)?;
    let ptx = finished(&fs::read_to_string(&made)?, &digest_of(&folder)?)?;
    fs::write(&made, &ptx)?;
    println!("| kernel | {} |", CARDS.join(" | "));
    println!("|---|{}", "---|".repeat(CARDS.len()));
    let mut columns = Vec::new();
    for card in CARDS {
        let mut ptxas = Command::new(tools.join("ptxas"));
        ptxas
            .args(["-v", "-o", "/dev/null", &format!("-arch={card}")])
            .arg(&made);
        columns.push(registers(&output(&mut ptxas)?)?);
    }
    for (kernel, _) in columns.first().into_iter().flatten() {
        let used = columns.iter().filter_map(|column| {
            let (_, registers) = column.iter().find(|(name, _)| name == kernel)?;
            Some(registers.to_string())
        });
        println!("| `{kernel}` | {} |", used.collect::<Vec<_>>().join(" | "));
    }
    fs::write(folder.join(PTX), ptx).context("write the PTX")?;
    println!("wrote {KERNELS}{PTX}");
    Ok(ExitCode::SUCCESS)
}

fn digest_of(folder: &Path) -> anyhow::Result<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if is_kernel(&name) {
            files.push((name.clone(), fs::read_to_string(folder.join(name))?));
        }
    }
    files.sort();
    Ok(digest(
        files.iter().map(|(name, text)| (name.as_str(), text.as_str())),
    ))
}

/// The compiler's text without remarks and with the version and the digest.
fn finished(text: &str, digest: &str) -> anyhow::Result<String> {
    let mut out = format!("{DIGEST}{digest}\n");
    let mut versions = 0;
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
    {
        // The compiler marks where inline assembly begins and ends.
        if line.trim_start().starts_with("//") {
            continue;
        }
        if line.starts_with(".version ") {
            versions += 1;
            writeln!(out, ".version {VERSION}")?;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    ensure!(versions == 1, "the compiler's text has {versions} versions");
    Ok(out)
}

/// Registers of each kernel, from what `ptxas -v` prints. Memory in place of registers is an error: a kernel that
/// spills is slow.
fn registers(said: &str) -> anyhow::Result<Vec<(String, u32)>> {
    let mut found = Vec::new();
    let mut kernel = None;
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().map(str::to_owned);
        }
        if line.contains("spill stores")
            && !line.contains("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
        {
            bail!("{} spills: {}", kernel.unwrap_or_default(), line.trim());
        }
        if let Some((_, rest)) = line.split_once("Used ")
            && let Some(count) = rest.split(' ').next()
        {
            let name = kernel.take().context("registers of no kernel")?;
            found.push((name, count.parse().context("a number of registers")?));
        }
    }
    found.sort();
    Ok(found)
}

/// The folder of nvcc and ptxas, installed if it is not there yet.
fn compiler(folder: &Path) -> anyhow::Result<PathBuf> {
    let python = folder.join("bin/python");
    let complete = folder.join(".complete");
    if !complete.exists() {
        output(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(folder),
        )?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
            .args(COMPILER);
        output(&mut pip)?;
        fs::write(&complete, "")?;
    }
    let packages =
        output(Command::new(&python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))?;
    Ok(Path::new(packages.trim()).join("nvidia/cu13/bin"))
}

/// `cargo xtask libcuda`: prints the folder for `CUDA_LIBRARY_PATH`.
pub(crate) fn print_stand_in(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    println!("{}", stub(workspace)?.display());
    Ok(ExitCode::SUCCESS)
}

/// A folder for `CUDA_LIBRARY_PATH` with a libcuda that has every function and no device.
pub(crate) fn stub(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target().join("cuda-stub");
    let libraries = folder.join("lib64");
    fs::create_dir_all(&libraries)?;
    let declared = declarations(workspace)?;
    let functions = functions(&declared);
    ensure!(
        functions.len() > 100,
        "cust_raw declares {} functions: look again",
        functions.len()
    );
    let mut source = String::from("/* 100 is CUDA_ERROR_NO_DEVICE. */\n");
    for name in functions {
        writeln!(source, "int {name}(void) {{ return 100; }}")?;
    }
    fs::write(folder.join("stub.c"), source)?;
    let library = libraries.join("libcuda.so.1");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(&library)
        .arg(folder.join("stub.c"));
    output(&mut gcc)?;
    // The linker looks for this name; the program then asks for the other one.
    fs::copy(&library, libraries.join("libcuda.so"))?;
    Ok(folder)
}

/// The declarations of the driver's functions in the crate that `cust` uses.
fn declarations(workspace: &Workspace) -> anyhow::Result<String> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace.root().join("images/grader-cuda/Cargo.toml"))
        .exec()
        .context("ask cargo where cust_raw lies")?;
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == "cust_raw");
    let manifest = &package
        .context("cust_raw is no dependency any more")?
        .manifest_path;
    let source = manifest.with_file_name("src").join("cuda.rs");
    fs::read_to_string(&source).with_context(|| format!("read {source}"))
}

fn functions(declarations: &str) -> BTreeSet<&str> {
    declarations
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("pub fn ")?.split('(').next())
        .filter(|name| name.starts_with("cu"))
        .collect()
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let done = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(
        done.status.success(),
        "{command:?} ended with {}:\n{said}",
        done.status
    );
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compilers_text_gets_a_version_and_loses_its_remarks() {
        let text = "//\n// Generated\n\n.version 9.0\n.target sm_80\n\t// begin inline asm\n\tadd;\n";
        let made = finished(text, "ab").unwrap();
        assert_eq!(
            made,
            format!("{DIGEST}ab\n.version {VERSION}\n.target sm_80\n\tadd;\n")
        );
        assert!(finished("add;\n", "ab").is_err());
    }

    #[test]
    fn registers_are_read_and_spills_refused() {
        let said = "ptxas info    : Compiling entry function 'walk' for 'sm_80'\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 115 registers, used 0 barriers\n";
        assert_eq!(registers(said).unwrap(), [("walk".to_owned(), 115)]);
        let spilled = said.replace("0 bytes spill loads", "8 bytes spill loads");
        assert!(
            registers(&spilled)
                .unwrap_err()
                .to_string()
                .contains("walk spills")
        );
    }

    #[test]
    fn only_functions_of_the_driver_are_declared() {
        let text = "    pub fn cuInit(Flags: u32) -> CUresult;\n    pub fn other();\npub type cuX = u32;\n";
        assert_eq!(functions(text).into_iter().collect::<Vec<_>>(), ["cuInit"]);
    }

    #[test]
    fn a_digest_tells_names_texts_and_their_borders_apart() {
        let of = |files: &[(&'static str, &'static str)]| digest(files.iter().copied());
        assert_ne!(of(&[("a", "1"), ("b", "2")]), of(&[("a", "12"), ("b", "")]));
        assert_ne!(of(&[("a", "1")]), of(&[("b", "1")]));
    }
}

//! Programs that nobody here wrote: OpenAI's Python client, and llama.cpp's server on the same weights.

use std::path::{Path, PathBuf};
use std::process::Command;

use candle_core::quantized::GgmlDType;

use crate::client::Server;
use crate::support;

/// A Python with the packages of tests/python/requirements.txt. Without it these tests are ignored and not passed.
fn python() -> PathBuf {
    std::env::var_os("MUSTER_TEST_OPENAI_PYTHON")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .expect("MUSTER_TEST_OPENAI_PYTHON names a Python with the packages of tests/python/requirements.txt")
}

fn run(python: &Path, script: &str, arguments: &[&Path]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/python")
        .join(script);
    let output = Command::new(python).arg(script).args(arguments).output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

#[test]
#[ignore = "needs MUSTER_TEST_OPENAI_PYTHON; `cargo xtask test` makes that Python and runs this"]
fn the_official_client_is_served() {
    let python = python();
    let server = Server::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model"), &[]).unwrap();
    run(&python, "openai_client.py", &[&server.socket]);
}

#[test]
#[ignore = "needs MUSTER_TEST_OPENAI_PYTHON; `cargo xtask test` makes that Python and runs this"]
fn llama_cpp_says_the_same() {
    let python = python();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    let folder = tempfile::tempdir().unwrap();
    for kind in ["f32", "f16", "q8_0"] {
        let file = folder.path().join(format!("{kind}.gguf"));
        run(&python, "to_gguf.py", &[&model, &file, Path::new(kind)]);
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(model.join(name), folder.path().join(name)).unwrap();
        }
        let server = Server::of(&file, &[]).unwrap();
        run(&python, "llama_cpp.py", &[&server.socket, &file, Path::new(kind)]);
    }
}

#[test]
#[ignore = "needs MUSTER_TEST_OPENAI_PYTHON; `cargo xtask test` makes that Python and runs this"]
fn the_made_up_model_is_written_as_the_gguf_library_reads_it() {
    let python = python();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    std::fs::write(&file, support::gguf(GgmlDType::Q8_0).unwrap()).unwrap();
    let code = "import gguf, sys; print(len(gguf.GGUFReader(sys.argv[1]).tensors))";
    let output = Command::new(python)
        .arg("-c")
        .arg(code)
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "20",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

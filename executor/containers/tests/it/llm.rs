//! The reference engine for language models as a job's image: the program alone, its weights as a volume named by
//! digest, no network, a socket in a folder of its own.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use muster_containers::image_archive::list_images;
use muster_containers::image_folders::UNSEEN;
use muster_containers::sandbox::{Bind, Gpus, ResourceLimits, Root, RunAs, Sandbox};
use muster_containers::{ContainerEngine, LocalImage};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use uuid::Uuid;

use crate::support::{LABEL, engine, host_files, until};

#[path = "../../examples/pack.rs"]
#[expect(dead_code, reason = "its main is for the command line")]
mod pack;

const ALLOWANCE: ResourceLimits = ResourceLimits {
    nano_cpus: 2_000_000_000,
    memory: 512 << 20,
    shm: 8 << 20,
    tmpfs: 8 << 20,
    pids: 64,
    disk: 8 << 20,
};

/// The static program, which `cargo xtask test` builds in a workspace of its own.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("MUSTER_TEST_LLM") {
        return named.into();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("llm");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = ["release", "debug"].map(|profile| target.join(&triple).join(profile).join("muster-llm"));
    let found = built.into_iter().find(|program| program.is_file());
    found.expect("this test needs muster-llm: `cargo xtask test` builds it, MUSTER_TEST_LLM names it")
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/llm/model")
}

/// The model's id, as the program computes it outside of any container.
fn id_of(program: &Path) -> anyhow::Result<String> {
    let output = Command::new(program)
        .arg("id")
        .arg("--model")
        .arg(model())
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Loads the image that the documented command writes.
async fn load(engine: &ContainerEngine, program: &Path) -> anyhow::Result<(String, LocalImage)> {
    let tag = format!("muster/engine-test-llm:{}", Uuid::new_v4());
    let folder = tempfile::tempdir()?;
    let (archive, mark) = (folder.path().join("llm.tar"), folder.path().join("mark"));
    // The mark makes the image unique, so that two runs of this test on one engine do not remove each other's image.
    std::fs::write(&mark, &tag)?;
    let id = pack::pack(arguments(&[
        &tag,
        &archive.display().to_string(),
        &format!("/muster-llm={}", program.display()),
        &format!("/mark={}", mark.display()),
        "--",
        "serve",
        "--socket",
        "/socket/llm.sock",
    ]))?;
    engine.load(std::fs::read(&archive)?).await?;
    let image = engine.find_image(&tag).await?.context("it was loaded")?;
    ensure!(image.id.to_string() == id, "its id is the one that was printed");
    Ok((tag, image))
}

fn arguments(given: &[&str]) -> impl Iterator<Item = String> {
    given
        .iter()
        .map(|argument| (*argument).to_owned())
        .collect::<Vec<_>>()
        .into_iter()
}

#[test]
fn the_command_that_packs_names_the_content_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("program"), "one").unwrap();
    std::fs::write(at("other"), "two").unwrap();
    let packed = |tag: &str, file: &str, last: &str| {
        let (out, file) = (at(&format!("{tag}.tar")), format!("/program={}", at(file)));
        let id = pack::pack(arguments(&[&format!("x/{tag}:1"), &out, &file, "--", last])).unwrap();
        let found = list_images(Path::new(&out)).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].id.to_string(),
            id,
            "as whoever reads the archive computes it"
        );
        assert_eq!(found[0].tags, [format!("x/{tag}:1")]);
        id
    };
    let id = packed("a", "program", "serve");
    assert_eq!(packed("b", "program", "serve"), id, "the tag is no part of it");
    assert_ne!(packed("c", "other", "serve"), id);
    assert_ne!(packed("d", "program", "id"), id);
    for wrong in [
        &["x"][..],
        &["x:1", "/nowhere/at/all"],
        &["x:1", "/tmp/x", "no-equals-sign"],
    ] {
        assert!(pack::pack(arguments(wrong)).is_err(), "{wrong:?}");
    }
}

fn bind(source: &Path, target: &str, writable: bool) -> Bind {
    Bind {
        source: source.to_owned(),
        target: target.to_owned(),
        writable,
    }
}

async fn create(
    engine: &ContainerEngine,
    image: &LocalImage,
    sockets: &Path,
    expected: &str,
) -> anyhow::Result<String> {
    let name = format!("muster-llm-{}", Uuid::new_v4());
    let model = model().canonicalize()?;
    let sandbox = Sandbox {
        image,
        command: None,
        environment: vec![("MUSTER_LLM_EXPECT", expected)],
        binds: vec![bind(&model, "/model", false), bind(sockets, "/socket", true)],
        host_files: host_files(),
        labels: HashMap::from([(LABEL.to_owned(), String::new())]),
        image_folders: &UNSEEN,
        image_files: Path::new("/"),
        allowance: ALLOWANCE,
        runtime: "",
        gpus: Gpus::None,
        run_as: RunAs::Nobody,
        root: Root::ReadOnly,
    };
    engine.create(&name, sandbox.container()?).await?;
    Ok(name)
}

/// Makes a request over the socket; returns the document of the answer.
async fn ask(socket: &Path, head: &str, body: &str) -> anyhow::Result<Value> {
    let mut stream = tokio::net::UnixStream::connect(socket).await?;
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (_, document) = answer.split_once("\r\n\r\n").context("no body")?;
    Ok(serde_json::from_str(document)?)
}

#[tokio::test]
async fn llm_image_serves_and_scores_its_volume_without_a_network() {
    let (engine, program) = (engine().await, program());
    let id = id_of(&program).unwrap();
    let (tag, image) = load(&engine, &program).await.unwrap();
    let sockets = tempfile::tempdir().unwrap();
    std::fs::set_permissions(sockets.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let name = create(&engine, &image, sockets.path(), &id).await.unwrap();
    engine.start(&name).await.unwrap();
    let socket = sockets.path().join("llm.sock");
    until("it listens", || async {
        ask(&socket, "GET /health", "").await.is_ok()
    })
    .await;
    let models = ask(&socket, "GET /v1/models", "").await.unwrap();
    assert_eq!(models["data"][0]["digest"], id);

    let asked =
        json!({"prompt": "fn main() {", "max_tokens": 24, "seed": 5, "return_token_ids": true}).to_string();
    let answer = ask(&socket, "POST /v1/completions", &asked).await.unwrap();
    let choice = &answer["choices"][0];
    let judged = json!({
        "prompt_token_ids": choice["prompt_token_ids"], "token_ids": choice["token_ids"], "seed": 5,
    });
    let scores = ask(&socket, "POST /v1/score", &judged.to_string()).await.unwrap();
    let tokens = scores["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), choice["token_ids"].as_array().unwrap().len());
    assert!(
        tokens
            .iter()
            .all(|token| token["margin"].as_f64().unwrap() < 0.05)
    );
    engine.remove(&name).await.unwrap();
    engine.remove_tag(&tag).await.unwrap();
}

#[tokio::test]
async fn llm_image_refuses_weights_of_another_digest() {
    let (engine, program) = (engine().await, program());
    let (tag, image) = load(&engine, &program).await.unwrap();
    let sockets = tempfile::tempdir().unwrap();
    let name = create(&engine, &image, sockets.path(), &"0".repeat(64))
        .await
        .unwrap();
    let mut output = engine.attach(&name).await.unwrap();
    engine.start(&name).await.unwrap();
    let mut text = Vec::new();
    while let Some(Ok(piece)) = output.next().await {
        text.extend_from_slice(&piece.into_bytes());
    }
    assert_ne!(engine.wait(&name).await.unwrap(), 0);
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("the model is"), "{text}");
    engine.remove(&name).await.unwrap();
    engine.remove_tag(&tag).await.unwrap();
}

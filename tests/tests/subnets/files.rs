//! The file store through real processes: kills on both sides of an upload, and what is left afterwards.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::io::Write as _;
use std::net::TcpStream;

use anyhow::{Context as _, Result};
use muster_testbed::wait_for;
use muster_tests::RunningSubnet;
use serde_json::Value;

const MIB: usize = 1024 * 1024;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Bytes in which every part is recognised.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Sends the beginning of an upload and stops in the middle; the connection stays open.
fn begin(url: &str, first: &[u8], total: usize) -> Result<TcpStream> {
    let rest = url.strip_prefix("http://").context("no http")?;
    let (address, path) = rest.split_once('/').context("no path")?;
    let mut socket = TcpStream::connect(address)?;
    let last = total - 1;
    write!(
        socket,
        "PUT /{path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {total}\r\nContent-Range: bytes 0-{last}/{total}\r\n\r\n"
    )?;
    socket.write_all(first)?;
    Ok(socket)
}

/// The offset of an upload by `HEAD`; `None` while the facilitator is being restarted.
fn offset(url: &str) -> Result<Option<usize>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    muster_process::tls::install_provider();
    let asked = runtime.block_on(async { reqwest::Client::new().head(url).send().await });
    let Ok(answer) = asked else { return Ok(None) };
    let value = answer.headers().get("upload-offset");
    Ok(value.and_then(|value| value.to_str().ok()?.parse().ok()))
}

pub(crate) fn killing_the_facilitator_in_the_middle_of_an_upload_loses_nothing_acknowledged(
    subnet: &RunningSubnet,
) {
    let content = noise(40 * MIB);
    let path = subnet.folder().join("big.bin");
    std::fs::write(&path, &content).unwrap();

    // A first try that is killed in the middle, server side: what `HEAD` had reported is still there.
    let place = serde_json::json!({"name": "big.bin", "size": content.len(), "sha256": sha256(&path)});
    let file = announce(subnet, &place).unwrap();
    let url = file["upload_url"].as_str().unwrap();
    let socket = begin(url, &content[..20 * MIB], content.len()).unwrap();
    let acknowledged = wait_for("two segments", || {
        anyhow::Ok(offset(url)?.filter(|offset| *offset >= 16 * MIB))
    })
    .unwrap();
    let before = subnet.pid("facilitator").unwrap();
    subnet.kill("facilitator").unwrap();
    drop(socket);
    wait_for("another facilitator", || {
        anyhow::Ok(subnet.pid("facilitator").ok().filter(|pid| *pid != before))
    })
    .unwrap();
    let kept = wait_for("its answer", || offset(url)).unwrap();
    assert!(
        kept >= acknowledged,
        "{kept} after {acknowledged} had been acknowledged"
    );

    // The command goes on where it was and ends with the same bytes.
    let put = subnet
        .muster(&["files", "put", path.to_str().unwrap(), "--json"])
        .unwrap();
    assert_eq!(put.code, Some(0), "{put:?}");
    let put = json(&put.stdout);
    assert_eq!(put["file"]["id"], file["id"]);
    assert_eq!(put["known"], kept, "{put}");
    let back = subnet.folder().join("back.bin");
    let got = subnet
        .muster(&[
            "files",
            "get",
            file["id"].as_str().unwrap(),
            "--to",
            back.to_str().unwrap(),
        ])
        .unwrap();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(std::fs::read(&back).unwrap() == content);

    let id = file["id"].as_str().unwrap();
    assert_eq!(subnet.muster(&["files", "rm", id]).unwrap().code, Some(0));
    let gone = subnet.muster(&["files", "show", id]).unwrap();
    assert_eq!(gone.code, Some(1), "{gone:?}");
}

fn sha256(path: &std::path::Path) -> String {
    muster_protocol::Digest::of(&std::fs::read(path).unwrap()).hex()
}

/// Announces a file as a program of a user's own would, with a key.
fn announce(subnet: &RunningSubnet, place: &Value) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let wallet = subnet.folder().join("wallets");
    let path = muster_identity::wallet::WalletPath::new(wallet, "user", "default");
    let pair = muster_identity::wallet::load_hotkey(&path)?;
    let url = format!("http://{}", subnet.field("facilitator")?);
    muster_process::tls::install_provider();
    runtime.block_on(async {
        let clock = std::sync::Arc::new(muster_process::SystemClock::new());
        let client =
            muster_client::Client::connect(&url, muster_client::Credential::hotkey(pair), clock).await?;
        let file = client
            .create_file(&serde_json::from_value(place.clone())?)
            .await?;
        Ok(serde_json::to_value(file)?)
    })
}

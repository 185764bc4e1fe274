//! Archives and texts that are refused before they cost anything, and other users of a role's machine.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_identity::Keypair;
use muster_tests::{Layout, Parts, Role, User, muster, run, shell_image};
use serde_json::json;
use tokio::runtime::Runtime;

use super::support::{file_job, run_job};

/// A zip archive without an entry that claims to have forty million.
fn bomb() -> Vec<u8> {
    let claimed = 40_000_000_u64.to_le_bytes();
    let mut bytes = vec![0; 64];
    let directory = 64_u64;
    bytes.extend(b"PK\x06\x06");
    bytes.extend(44_u64.to_le_bytes());
    bytes.extend([45, 0, 45, 0]);
    bytes.extend([0; 8]);
    bytes.extend(claimed);
    bytes.extend(claimed);
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(directory.to_le_bytes());
    bytes.extend(b"PK\x06\x07");
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(directory.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0; 4]);
    bytes.extend([0xff; 12]);
    bytes.extend([0; 2]);
    bytes
}

#[test]
fn an_archive_of_millions_of_claims_fails_its_job_alone_and_a_store_that_others_read_starts_no_role() {
    let runtime = Runtime::new().unwrap();
    let image = runtime.block_on(shell_image("")).unwrap();
    let layout = Layout {
        executors: 1,
        ..Layout::default()
    };
    let mut parts = Parts::start(&layout).unwrap();
    let login = User::login(parts.address(Role::Facilitator), parts.keys().user.clone());
    let user = runtime.block_on(login).unwrap();
    let volume = json!({"volumes": [{"volume_type": "inline", "contents": STANDARD.encode(bomb())}]});
    let bombed = file_job(&parts, image, volume).unwrap();
    let shown = run_job(&parts, &runtime, &user, &bombed).unwrap();
    assert!(!shown.contains("\"completed\""), "{shown}");
    assert!(
        shown.contains("more than 100000 files and folders") && shown.contains("\"fault\":\"user\""),
        "{shown}"
    );
    let plain = file_job(&parts, image, json!({})).unwrap();
    let shown = run_job(&parts, &runtime, &user, &plain).unwrap();
    assert!(shown.contains("\"completed\""), "the next job runs: {shown}");

    let url = parts.store(Role::Validator).to_owned();
    let file = url
        .trim_start_matches("sqlite:")
        .trim_start_matches("//")
        .to_owned();
    let file = file.split('?').next().unwrap();
    parts.kill(Role::Validator).unwrap();
    let mode = |mode| std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    let refused = parts.begin(Role::Validator).unwrap_err().to_string();
    assert!(refused.contains(file) && refused.contains("chmod"), "{refused}");
    mode(0o600);
    parts.begin(Role::Validator).unwrap();
}

/// Answers each request with this nonce, and returns all that was asked once nobody connects any more.
fn answer_with(nonce: &str, listener: &TcpListener) -> String {
    let (mut socket, _): (TcpStream, _) = listener.accept().unwrap();
    let mut asked = String::new();
    let mut piece = [0; 4_096];
    while !asked.contains("\r\n\r\n") {
        let read = socket.read(&mut piece).unwrap();
        asked.push_str(&String::from_utf8_lossy(piece.get(..read).unwrap()));
    }
    let body = json!({ "nonce": nonce }).to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all((head + &body).as_bytes()).unwrap();
    asked
}

#[test]
fn a_facilitator_whose_nonce_is_another_text_gets_no_signature() {
    let folder = tempfile::tempdir().unwrap();
    let wallets = folder.path().join("wallets");
    let made = run(Command::new(muster().unwrap())
        .args(["wallet", "new", "me", "--wallets"])
        .arg(&wallets));
    assert_eq!(made.unwrap().code, Some(0));
    let somebody = Keypair::from_uri("//Validator").unwrap().hotkey();
    for text in [
        // A frame by which a validator greets a miner, and a receipt.
        format!("{{\"message_type\":\"V0AuthenticateRequest\",\"validator_hotkey\":\"{somebody}\"}}"),
        format!(
            "{{\"job_uuid\":\"x\",\"miner_hotkey\":\"{somebody}\",\"receipt_type\":\"JobFinishedReceipt\"}}"
        ),
        "<Bytes>hello</Bytes>".to_owned(),
        String::new(),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn({
            let text = text.clone();
            move || {
                let asked = answer_with(&text, &listener);
                listener.set_nonblocking(true).unwrap();
                (asked, listener)
            }
        });
        let mut list = Command::new(muster().unwrap());
        list.args(["job", "ls", "--facilitator", &url, "--wallet", "me", "--wallets"])
            .arg(&wallets);
        list.arg("--dir").arg(folder.path());
        let refused = run(&mut list).unwrap();
        assert_ne!(refused.code, Some(0), "{refused:?}");
        let (asked, listener) = serving.join().unwrap();
        assert!(asked.starts_with("GET /auth/nonce"), "{asked}");
        let more = listener.accept().map(|_| ()).unwrap_err();
        assert_eq!(
            more.kind(),
            std::io::ErrorKind::WouldBlock,
            "nothing was sent after {text:?}"
        );
    }
}

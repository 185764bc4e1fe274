//! Listeners under slow, silent and many connections, and under wrong credentials.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use muster_process::{Clock as _, SystemClock};
use muster_protocol::JobId;
use muster_testbed::{patience, until, wait_for};
use muster_tests::{Layout, Parts, Role, User};
use serde_json::json;
use tokio::net::TcpSocket;

/// A subnet with one executor.
fn small() -> Layout {
    Layout {
        executors: 1,
        ..Layout::default()
    }
}

/// Stops a role, changes the text of its settings, and does what is to be done before it starts again.
fn restart_with(
    parts: &mut Parts,
    role: Role,
    change: impl FnOnce(String) -> String,
    between: impl FnOnce() -> Result<()>,
) -> Result<()> {
    parts.kill(role)?;
    let file = parts.config_file(role);
    let settings = std::fs::read_to_string(&file)?;
    std::fs::write(&file, change(settings))?;
    between()?;
    parts.begin(role)
}

/// A subnet in which the settings of a role end with these lines.
fn parts_with(role: Role, table: &str) -> Result<Parts> {
    let mut parts = Parts::start(&small())?;
    restart_with(
        &mut parts,
        role,
        |settings| format!("{settings}\n{table}\n"),
        || Ok(()),
    )?;
    Ok(parts)
}

/// Connects to a address from an address of this machine.
fn connect_from(source: [u8; 4], address: SocketAddr) -> Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(IpAddr::from(source), 0))?;
        socket.connect(address).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience()))?;
    stream.set_write_timeout(Some(patience()))?;
    Ok(stream)
}

/// Asks for the health of a role, once; the answer, or nothing if the address hangs up.
fn ask_health(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A address that has hung up already takes no request.
    let _ = stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn is_served(source: [u8; 4], address: SocketAddr) -> Result<bool> {
    Ok(ask_health(&mut connect_from(source, address)?).starts_with("HTTP/1.1 200"))
}

/// Waits until the address has hung up.
fn read_to_end(stream: &mut TcpStream) -> Result<String> {
    let mut text = Vec::new();
    stream
        .read_to_end(&mut text)
        .context("the address does not hang up")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn one_address_cannot_take_all_connections_of_a_listener() {
    let bounds = "[http]\nconnections = 64\nconnections_per_address = 4";
    let roles = [Role::Facilitator, Role::Miner, Role::Validator];
    let mut parts = Parts::start(&small()).unwrap();
    for role in roles {
        let add = |settings| format!("{settings}\n{bounds}\n");
        restart_with(&mut parts, role, add, || Ok(())).unwrap();
    }
    for role in roles {
        let address = parts.address(role);
        let attacker = [127, 0, 0, 9];
        let mut held: Vec<_> = (0..4).map(|_| connect_from(attacker, address).unwrap()).collect();
        assert!(!is_served(attacker, address).unwrap(), "{}", role.name());
        assert!(is_served([127, 0, 0, 8], address).unwrap(), "{}", role.name());
        let last = held.last_mut().unwrap();
        assert!(ask_health(last).starts_with("HTTP/1.1 200"), "{}", role.name());
    }
}

/// Opens a websocket and sends nothing on it.
fn open_websocket(source: [u8; 4], address: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut stream = connect_from(source, address)?;
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer == "HTTP/1.1 101", "{answer}");
    Ok(stream)
}

#[test]
fn websockets_that_do_not_greet_keep_their_places() {
    let bounds = "[http]\nconnections = 64\nconnections_per_address = 4";
    let parts = parts_with(Role::Miner, bounds).unwrap();
    let address = parts.address(Role::Miner);
    let path = format!("/v0.1/validator_interface/{}", parts.keys().validator.hotkey());
    let attacker = [127, 0, 0, 9];
    let held: Vec<_> = (0..4)
        .map(|_| open_websocket(attacker, address, &path).unwrap())
        .collect();
    assert!(!is_served(attacker, address).unwrap());
    assert!(is_served([127, 0, 0, 8], address).unwrap());
    drop(held);
    wait_for("the places of closed websockets", || {
        anyhow::Ok(is_served(attacker, address)?.then_some(()))
    })
    .unwrap();
}

#[test]
fn silent_and_trickling_clients_are_hung_up_on() {
    // The shortest times that an operator can set; the defaults are 30 and 60 seconds.
    let mut parts = Parts::start(&small()).unwrap();
    for role in [Role::Facilitator, Role::Miner, Role::Validator] {
        let add = |settings| format!("{settings}\n[http]\nhead_s = 1\nbody_s = 1\nstall_s = 1\n");
        restart_with(&mut parts, role, add, || Ok(())).unwrap();
    }
    let head = "POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{";
    let facilitator = parts.address(Role::Facilitator);
    let mut waiting: Vec<_> = [
        (facilitator, ""),
        (facilitator, "GET / HTTP/1.1\r\nHost"),
        (facilitator, head),
        (
            facilitator,
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0",
        ),
        (parts.address(Role::Miner), ""),
        (parts.address(Role::Validator), "GET /health HTTP/1.1\r\nX: "),
    ]
    .into_iter()
    .map(|(address, beginning)| {
        let mut stream = connect_from([127, 0, 0, 9], address).unwrap();
        stream.write_all(beginning.as_bytes()).unwrap();
        stream
    })
    .collect();
    for stream in &mut waiting {
        let answer = read_to_end(stream).unwrap();
        assert!(!answer.contains("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn wrong_keys_of_one_address_are_paced() {
    let parts = parts_with(Role::Facilitator, "").unwrap();
    let address = parts.address(Role::Facilitator);
    let status = |source: [u8; 4], key: usize| {
        let mut stream = connect_from(source, address).unwrap();
        let head = format!(
            "GET /api/v1/jobs/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer msk_{key:064x}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        read_to_end(&mut stream).unwrap()
    };
    let answers: Vec<_> = (0..200).map(|key| status([127, 0, 0, 9], key)).collect();
    let stopped = answers
        .iter()
        .position(|answer| answer.starts_with("HTTP/1.1 429"));
    // Some more than a minute's worth, because the guesses take time.
    assert!(stopped.is_some_and(|guesses| guesses >= 60), "{stopped:?}");
    assert!(status([127, 0, 0, 8], 7).starts_with("HTTP/1.1 401"));
}

#[test]
fn a_stranger_cannot_run_a_grading_batch() {
    let parts = Parts::start(&small()).unwrap();
    let address = parts.address(Role::Validator);
    for credential in ["", "Authorization: Bearer 0\r\n", "Authorization: Bearer \r\n"] {
        let mut stream = connect_from([127, 0, 0, 1], address).unwrap();
        let head = format!(
            "POST /v0/batches HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{credential}Content-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let answer = read_to_end(&mut stream).unwrap();
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let token = parts.config_file(Role::Validator).with_extension("token");
    let mode = std::fs::metadata(token).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A miner's address on the chain that lies in the validator's own network.
#[test]
fn a_validator_does_not_dial_into_its_own_network() {
    let inside = TcpListener::bind("127.0.0.1:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let layout = Layout {
        miner_announces: Some(inside.local_addr().unwrap()),
        ..small()
    };
    let mut parts = Parts::start(&layout).unwrap();
    let forbid = |settings: String| settings.replace("[\"127.0.0.0/8\"]", "[]");
    // The subnet's own validator may dial loopback, and may have done so.
    let forget = || {
        while inside.accept().is_ok() {}
        Ok(())
    };
    restart_with(&mut parts, Role::Validator, forbid, forget).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let job = runtime.block_on(submit(&parts)).unwrap();
    let reason = wait_for("the route of the job", || {
        let mut stream = connect_from([127, 0, 0, 1], parts.address(Role::Validator))?;
        let head = format!("GET /v0/jobs/{job}/route HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let answer = read_to_end(&mut stream)?;
        anyhow::Ok(answer.contains("excluded").then_some(answer))
    })
    .unwrap();
    assert!(reason.contains("bad_axon"), "{reason}");
    let dialled = inside.accept();
    assert!(dialled.is_err(), "the validator dialled {dialled:?}");
}

/// Submits a small job as the subnet's user.
async fn submit(parts: &Parts) -> Result<JobId> {
    let facilitator = parts.address(Role::Facilitator);
    let user = User::login(facilitator, parts.keys().user.clone()).await?;
    let job = serde_json::from_value(json!({
        "target_validator_hotkey": parts.keys().validator.hotkey().to_string(),
        "executor_class": "always_on.test",
        "docker_image": "busybox",
        "args": ["true"],
        "download_time_limit": 5,
        "execution_time_limit": 5,
        "streaming_start_time_limit": 0,
        "upload_time_limit": 5,
    }))?;
    // Until the validator has come back to its facilitator no job is taken.
    let look = async || user.submit(&job, SystemClock::new().now()).await.ok();
    Ok(until("a facilitator that takes the job", look).await)
}

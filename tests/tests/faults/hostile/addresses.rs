//! Jobs whose data leads back to the machine that runs them, by its own public address.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use muster_tests::{Layout, Parts, Role, User, run, shell_image};
use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use tokio::runtime::Runtime;

use super::support::{file_job, run_job};

/// A public address, which is this machine's own in the test's network and nobody else's there.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);

/// Moves this thread, and everything that it starts, into a network of its own.
fn enter_network_with(address: Ipv4Addr) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("this test needs root")?;
    for words in [
        "link set lo up".to_owned(),
        format!("address add {address}/32 dev lo"),
    ] {
        let done = run(Command::new("ip").args(words.split(' ')))?;
        ensure!(done.code == Some(0), "ip {words}: {}", done.stderr);
    }
    Ok(())
}

#[test]
fn a_jobs_data_neither_comes_from_the_machines_own_public_address_nor_goes_there() {
    enter_network_with(PUBLIC).unwrap();
    let runtime = Runtime::new().unwrap();
    let image = runtime.block_on(shell_image("")).unwrap();
    let layout = Layout {
        executors: 1,
        ..Layout::default()
    };
    let parts = Parts::start(&layout).unwrap();
    // Each executor reads its settings when it is started for a job.
    let file = parts.folder().join("executor.toml");
    let settings = std::fs::read_to_string(&file).unwrap();
    let listing = "allow = [\"127.0.0.1\"]";
    assert!(settings.contains(listing), "{settings}");
    std::fs::write(&file, settings.replace(listing, "allow = []")).unwrap();

    // A service behind the machine's firewall: on every interface, and reached by the machine alone.
    let inside = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    inside.set_nonblocking(true).unwrap();
    let url = format!(
        "http://{}/secret",
        SocketAddr::from((PUBLIC, inside.local_addr().unwrap().port()))
    );
    let user = runtime
        .block_on(User::login(
            parts.address(Role::Facilitator),
            parts.keys().user.clone(),
        ))
        .unwrap();
    let input = json!({"volumes": [{"volume_type": "single_file", "url": url, "relative_path": "file"}]});
    let output =
        json!({"uploads": [{"output_upload_type": "single_file_put", "url": url, "relative_path": "file"}]});
    for data in [input, output] {
        let job = file_job(&parts, image, data.clone()).unwrap();
        let shown = run_job(&parts, &runtime, &user, &job).unwrap();
        assert!(
            shown.contains("no address on the public Internet"),
            "{data}: {shown}"
        );
        let asked = inside.accept().map(|_| ()).unwrap_err();
        assert_eq!(asked.kind(), ErrorKind::WouldBlock, "{data}: nobody connected");
    }
}

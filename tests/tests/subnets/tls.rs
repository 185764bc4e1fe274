//! TLS between the roles of a whole subnet: the miner by the chain, the facilitator and the gateway by an authority.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::process::Command;

use muster_process::certificate::{SelfSigned, key_pem, make_self_signed};
use muster_testbed::wait_for;
use muster_tests::{Output, RunningSubnet, muster, run, shell_image};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Writes a new certificate of this machine with its key; the certificate is its own authority.
fn renew(folder: &Path) -> reqwest::Certificate {
    let SelfSigned { identity, pem } = make_self_signed(&["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.join("key.pem"), key_pem(&identity.key).unwrap()).unwrap();
    std::fs::write(folder.join("certificate.pem"), &pem).unwrap();
    reqwest::Certificate::from_pem(pem.as_bytes()).unwrap()
}

/// Changes a role's configuration, and restarts the role.
fn reconfigure(subnet: &RunningSubnet, role: &str, change: impl FnOnce(&mut toml::Table)) {
    let file = subnet.folder().join(format!("config/{role}.toml"));
    let mut config: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    change(&mut config);
    std::fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
    subnet.restart(role).unwrap();
}

/// Gives a role the certificate in a folder.
fn secure(config: &mut toml::Table, folder: &Path) {
    let path = |name: &str| toml::Value::from(folder.join(name).display().to_string());
    let mut tls = toml::Table::new();
    tls.insert("certificate".to_owned(), path("certificate.pem"));
    tls.insert("key".to_owned(), path("key.pem"));
    // The commands of `muster up` know the address without TLS.
    tls.insert("allow_plain".to_owned(), true.into());
    let http = config.entry("http").or_insert_with(|| toml::Table::new().into());
    http.as_table_mut().unwrap().insert("tls".to_owned(), tls.into());
}

fn view(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap()
}

fn get(runtime: &Runtime, root: &reqwest::Certificate, url: &str) -> Result<u16, reqwest::Error> {
    let client = reqwest::Client::builder()
        .tls_certs_only([root.clone()])
        .build()
        .unwrap();
    runtime.block_on(async { Ok(client.get(url).send().await?.status().as_u16()) })
}

#[test]
fn every_role_speaks_tls_and_certificates_are_renewed_while_a_job_runs() {
    muster_process::tls::install_provider();
    let (runtime, files) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let root = renew(files.path());
    let authority = files.path().join("authority.pem");
    std::fs::copy(files.path().join("certificate.pem"), &authority).unwrap();
    let subnet = RunningSubnet::start_among(&[], &[("SSL_CERT_FILE", &authority)]).unwrap();
    reconfigure(&subnet, "facilitator", |config| secure(config, files.path()));
    let mut address = String::new();
    reconfigure(&subnet, "validator", |config| {
        secure(config, files.path());
        let facilitator = config["facilitator"].as_table_mut().unwrap();
        let url = facilitator["url"]
            .as_str()
            .unwrap()
            .replacen("ws://", "wss://", 1);
        address = url
            .replacen("wss://", "https://", 1)
            .replace("/ws/v0/", "/health");
        facilitator.insert("url".to_owned(), url.into());
    });
    let connected = || {
        let state = subnet.validator_state()?;
        anyhow::Ok((state["facilitator"]["state"] == "connected").then_some(()))
    };
    wait_for("the validator at its facilitator over TLS", connected).unwrap();
    assert_eq!(get(&runtime, &root, &address).unwrap(), 200);
    // The miner refuses what comes without TLS, so the validator reaches it by its certificate.
    reconfigure(&subnet, "miner", |config| {
        let tls = config["tls"].as_table_mut().unwrap();
        tls.insert("refuse_plain".to_owned(), true.into());
    });

    let shell = runtime.block_on(shell_image("")).unwrap();
    let id = subnet.begin_held(shell, &[]).unwrap();
    // Every certificate is replaced while the job runs.
    let config = subnet.folder().join("config/miner.toml");
    let rotated = run(Command::new(muster().unwrap())
        .args(["miner", "rotate-certificate", "--config"])
        .arg(config))
    .unwrap();
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    let renewed = renew(files.path());
    wait_for("the renewed certificate", || {
        anyhow::Ok(get(&runtime, &renewed, &address).is_ok().then_some(()))
    })
    .unwrap();
    let digest = rotated
        .stdout
        .split_whitespace()
        .find(|word| word.contains("sha256:"))
        .unwrap();
    let digest = digest.trim_end_matches([';', ',']).to_owned();
    wait_for("the announcement of the miner's new certificate", || {
        let log = subnet.log("miner");
        anyhow::Ok(log.contains(&format!("certificate={digest}")).then_some(()))
    })
    .unwrap();
    let (ended, _) = subnet.end_held(&id).unwrap();
    assert_eq!(
        ended["status_history"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["status"] == "accepted")
            .count(),
        1
    );
    // And the next job finds the miner by its new certificate.
    let image = subnet.demo_image();
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../LICENSE-MIT");
    let words = [
        "job",
        "run",
        "--json",
        image,
        "--input",
        &format!("licence.txt={text}"),
        "--",
        "words",
    ];
    let ran = subnet.muster(&words).unwrap();
    assert_eq!(
        ran.code,
        Some(0),
        "{ran:?}\n{}\n{}",
        subnet.log("validator"),
        subnet.log("miner")
    );

    // The doctor holds all of it against the chain.
    let config = subnet.folder().join("config/miner.toml");
    let doctor = run(Command::new(muster().unwrap())
        .args(["doctor", "--for", "miner", "--json", "--config"])
        .arg(config))
    .unwrap();
    let report = view(&doctor);
    let state_of = |check: &str| {
        let verdicts = report["verdicts"].as_array().unwrap().iter();
        verdicts
            .clone()
            .find(|verdict| verdict["check"] == check)
            .unwrap()["state"]
            .clone()
    };
    for check in ["registration", "announcement", "certificate", "reachable"] {
        assert_eq!(state_of(check), "fine", "{check}: {report}");
    }
}

//! A validator that is killed (signal 9) while a machine of the unregistered miner starts a reference.
//!
//! The demonstration's model answers and scores nothing, so its audits end without a verdict. The test looks at
//! processes: machines that a command brings up and ends, and audits that a process leaves.

use muster_testbed::wait_for;
use muster_tests::RunningSubnet;
use serde_json::{Value, json};

use super::trusted_subnet::{TrustedSubnet, read_toml, write_toml};

const MODEL: &str = "parrot";

/// The audits of the validator, newest first.
fn runs(this: &TrustedSubnet) -> Vec<Value> {
    let listed = this.subnet.muster(&["audit", "ls", "--json"]).unwrap();
    let said: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
    said["runs"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_validator_that_is_killed_while_a_reference_starts_leaves_no_machine_and_no_verdict() {
    let mut this = TrustedSubnet::start(RunningSubnet::start().unwrap());
    this.kill_miner();
    this.provision_executors();
    this.begin_miner();
    let path = this.path("config/validator.toml");
    let mut config = read_toml(&path);
    let services = config["gateway"]["services"].as_array().unwrap();
    let service = services.iter().find(|service| service["model"] == MODEL).unwrap();
    let text = include_str!("../../../vectors/audit-calibration.json");
    let mut calibration: Value = serde_json::from_str(text).unwrap();
    calibration["engine"] = service["image"].clone();
    let file = this.path("calibration.json");
    std::fs::write(&file, calibration.to_string()).unwrap();
    config["audit"] = json!({
        "share_ppm": 1_000_000, "own_prompts": 0, "gather_answers": 1, "calibrations": {MODEL: file},
    });
    write_toml(&path, &config);
    this.name_it_to_the_validator();

    let said = this
        .subnet
        .muster(&["chat", MODEL, "-m", "one two three"])
        .unwrap();
    assert_eq!(said.code, Some(0), "{said:?}\n{}", this.logs());
    // The answer is drawn some blocks later, and a machine is asked for.
    let up = wait_for("a machine of a reference", || {
        anyhow::Ok(this.machines().into_iter().next())
    });
    let killed = up.unwrap();
    let before = this.subnet.pid("validator").unwrap();
    this.subnet.kill("validator").unwrap();
    wait_for("the validator's next process", || {
        anyhow::Ok(
            this.subnet
                .pid("validator")
                .is_ok_and(|pid| pid != before)
                .then_some(()),
        )
    })
    .unwrap();

    // The next process ends the audit, releases its machine, and audits the answer again.
    let audited = wait_for("the next audit", || {
        let runs = runs(&this);
        anyhow::Ok((runs.len() >= 2 && runs.iter().all(|run| !run["ended_at"].is_null())).then_some(runs))
    });
    let runs = audited.unwrap();
    let oldest = runs.last().unwrap();
    assert_eq!(oldest["reason"], "the validator was restarted", "{runs:?}");
    assert!(runs.iter().all(|run| run["verdict"].is_null()), "{runs:?}");
    let reason = runs[0]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("it failed its test"),
        "the model scores nothing: {runs:?}"
    );
    let audits = this.subnet.validator_page("/v0/audits").unwrap();
    assert_eq!(audits["audits"], json!([]), "{audits}");

    wait_for("the release of every machine", || {
        anyhow::Ok(this.machines().is_empty().then_some(()))
    })
    .unwrap();
    let (provisioned, released) = (this.fleet_calls("provision"), this.fleet_calls("release"));
    assert!(
        provisioned.contains(&killed) && provisioned.len() >= 2,
        "{provisioned:?}"
    );
    assert!(
        provisioned.iter().all(|name| released.contains(name)),
        "{provisioned:?} {released:?}\n{}",
        this.logs()
    );
}

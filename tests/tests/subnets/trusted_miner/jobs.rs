//! Users' jobs and the validator's checks on the unregistered miner.

use muster_testbed::wait_for;
use muster_tests::{RunningSubnet, another_shell_image, section, shell_image};

use super::cheating_engine;
use super::trusted_subnet::{TrustedSubnet, view};

/// The arguments of a job that counts the words of a text.
fn words(subnet: &RunningSubnet) -> [&'static str; 6] {
    let input = concat!("licence.txt=", env!("CARGO_MANIFEST_DIR"), "/../LICENSE-MIT");
    ["--json", subnet.demo_image(), "--input", input, "--", "words"]
}

#[test]
fn the_unregistered_miner_runs_jobs_and_checks_and_outlives_its_death() {
    let subnet = RunningSubnet::start().unwrap();
    section("before there is one, the refusal says what to do", || {
        let run = ["job", "run", "--on-trusted-miner"];
        let refused = subnet
            .muster(&[run.as_slice(), &words(&subnet)].concat())
            .unwrap();
        assert_ne!(refused.code, Some(0));
        assert!(refused.stdout.contains("keeps no trusted miner"), "{refused:?}");
    });
    let mut this = TrustedSubnet::start(subnet);
    section("jobs and checks run on it and outlive its death", || {
        jobs_and_checks_run_on_the_unregistered_miner_and_outlive_its_death(&mut this);
    });
    section(
        "a wrong output of a deterministic job is found, and an honest miner agrees",
        || {
            a_wrong_output_of_a_deterministic_job_is_found_and_an_honest_one_agrees(&this);
        },
    );
    section(
        "killed, it leaves no provisioned machine, and its job goes on",
        || {
            a_killed_miner_leaves_no_provisioned_machine_and_its_job_goes_on(&mut this);
        },
    );
}

fn jobs_and_checks_run_on_the_unregistered_miner_and_outlive_its_death(this: &mut TrustedSubnet) {
    let words = words(&this.subnet);
    let trusted_words = [["--on-trusted-miner"].as_slice(), &words].concat();
    let own = this.key.hotkey().to_string();
    let job = this.run_job(&trusted_words);
    assert_eq!(this.miners_of(&job), [own.as_str()], "{}", this.logs());
    let receipts =
        &job["status_history"].as_array().unwrap().last().unwrap()["metadata"]["muster"]["receipts"];
    let finished = receipts.as_array().unwrap().last().unwrap();
    assert_eq!(finished["payload"]["score_str"], "0.000000", "{finished}");
    // An ordinary job still goes to the subnet.
    let ordinary = this.run_job(&words);
    assert_eq!(this.miners_of(&ordinary), [this.subnet.field("miner").unwrap()]);

    // The validator opens a session there on its own behalf, and closes it.
    let check = ["validator", "check-trusted-miner", "--json", "parrot"];
    let checked = this.subnet.muster(&check).unwrap();
    assert_eq!(checked.code, Some(0), "{checked:?}\n{}", this.logs());
    assert_eq!(view(&checked)["miner"], own, "{checked:?}");
    let unknown = this
        .subnet
        .muster(&["validator", "check-trusted-miner", "no-model"])
        .unwrap();
    assert!(unknown.stderr.contains("no-model"), "{unknown:?}");

    // The miner is killed while a job counts, and started again: the job runs once and its output is whole.
    let id = this.begin_held();
    this.kill_miner();
    this.begin_miner();
    this.end_held(&id);
}

fn a_killed_miner_leaves_no_provisioned_machine_and_its_job_goes_on(this: &mut TrustedSubnet) {
    this.kill_miner();
    this.provision_executors();
    this.begin_miner();
    let id = this.begin_held();
    assert_eq!(this.machines(), [format!("muster-{id}")]);
    this.kill_miner();
    this.begin_miner();
    this.end_held(&id);
    // The validator's own check provisions a machine, and gives it back.
    let checked = this
        .subnet
        .muster(&["validator", "check-trusted-miner", "parrot"])
        .unwrap();
    assert_eq!(checked.code, Some(0), "{checked:?}\n{}", this.logs());
    wait_for("the release of every machine", || {
        anyhow::Ok(this.machines().is_empty().then_some(()))
    })
    .unwrap();
    let provisioned = this.fleet_calls("provision");
    assert_eq!(provisioned.len(), 2, "{provisioned:?}\n{}", this.logs());
    let released = this.fleet_calls("release");
    assert!(
        provisioned.iter().all(|name| released.contains(name)),
        "{released:?}"
    );
    // The record goes once the command that releases the machine has ended.
    wait_for("the end of every record", || {
        let mut records = std::fs::read_dir(this.path("trusted-provisioned"))?;
        let is_left = records.any(|entry| {
            let name = entry.unwrap().file_name();
            name.to_string_lossy().ends_with(".json")
        });
        anyhow::Ok((!is_left).then_some(()))
    })
    .unwrap();
}

fn a_wrong_output_of_a_deterministic_job_is_found_and_an_honest_one_agrees(this: &TrustedSubnet) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let shell = runtime.block_on(shell_image("")).unwrap();
    let args = ["--deterministic", "--json", shell, "--", "-c", "echo right"];
    let honest = this.run_job(&args);
    assert_eq!(honest["stdout"], "right\n");
    let verdict = this.verdict_of(&honest);
    assert_eq!(
        (&verdict["state"], &verdict["origin"]),
        (&"agrees".into(), &"drawn".into()),
        "{verdict}"
    );

    // From here on the miner's engine runs another program than the one that it is given.
    let socket = this.path("cheating.sock");
    cheating_engine::serve(&socket, "echo right", "echo wrong");
    this.replace_engine(&socket);
    let cheated = this.run_job(&args);
    assert_eq!(cheated["stdout"], "wrong\n", "{}", this.logs());
    let verdict = this.verdict_of(&cheated);
    assert_eq!(verdict["state"], "differs", "{verdict}\n{}", this.logs());
    assert_eq!(verdict["outputs"][0]["name"], "stdout", "{verdict}");
    assert_ne!(verdict["outputs"][0]["job"], verdict["outputs"][0]["trusted"]);
    let shown = this
        .subnet
        .muster(&["job", "check", cheated["uuid"].as_str().unwrap()])
        .unwrap();
    assert!(shown.stdout.contains("differs stdout"), "{shown:?}");
    let checks = this.subnet.validator_page("/v0/audits/cross-checks").unwrap();
    assert_eq!(
        checks["coldkeys"].as_array().map(Vec::len),
        Some(0),
        "users' jobs are no evidence about a miner: {checks}"
    );
    // The program may tell machines apart, so no further check of the image counts.
    let again = this.run_job(&args);
    let verdict = this.verdict_of(&again);
    assert_eq!(verdict["state"], "unproven", "{verdict}\n{}", this.logs());
    let reason = verdict["reason"].as_str().unwrap();
    assert!(reason.contains("tell machines apart"), "{verdict}");

    // Of a job that declares nothing the user learns by a report, for which it runs on the validator's miner, too.
    let another = runtime.block_on(another_shell_image("")).unwrap();
    let plain = ["--json", another, "--", "-c", "echo right"];
    let reported = this.run_job(&plain);
    let trusted = this.run_job(&[&["--on-trusted-miner"], plain.as_slice()].concat());
    assert_eq!(
        (&reported["stdout"], &trusted["stdout"]),
        (&"wrong\n".into(), &"right\n".into())
    );
    let (job, compared) = (
        reported["uuid"].as_str().unwrap(),
        trusted["uuid"].as_str().unwrap(),
    );
    let told = this
        .subnet
        .muster(&["job", "report", job, "--trusted", compared, "--details", "no"])
        .unwrap();
    assert_eq!(told.code, Some(0), "{told:?}");
    let verdict = this.verdict_of(&reported);
    assert_eq!(
        (&verdict["state"], &verdict["origin"]),
        (&"differs".into(), &"reported".into()),
        "{verdict}"
    );
}

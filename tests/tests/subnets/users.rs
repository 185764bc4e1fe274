//! The users' commands through real processes: jobs with files, watched while they run, cancelled, fetched; keys.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::process::{Command, Stdio};

use muster_testbed::wait_for;
use muster_tests::{Output, RunningSubnet, muster, run};
use nix::sys::signal::{Signal, kill};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use nix::unistd::Pid;
use serde_json::Value;

fn json(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A command of a user of this subnet, in a folder of its own.
fn command(subnet: &RunningSubnet, args: &[&str]) -> Command {
    let (command, rest) = args.split_at(2);
    let mut called = Command::new(muster().unwrap());
    called.args(command).arg("--dir").arg(subnet.folder()).args(rest);
    called
}

pub(crate) fn a_job_takes_files_of_this_machine_and_brings_files_back(subnet: &RunningSubnet) {
    let here = tempfile::tempdir().unwrap();
    // More than travels inside a request, so that it goes through the store.
    let words = "apple pear ".repeat(200_000);
    std::fs::write(here.path().join("words.txt"), &words).unwrap();
    std::fs::create_dir_all(here.path().join("texts/deep")).unwrap();
    std::fs::write(here.path().join("texts/a.txt"), "plum").unwrap();
    std::fs::write(here.path().join("texts/deep/b.txt"), "plum plum").unwrap();
    let args = [
        "job",
        "run",
        subnet.demo_image(),
        "--input",
        "big.txt=words.txt",
        "--input",
        "more=texts",
        "--via",
        "store",
        "--output",
        "words.json",
        "--",
        "words",
    ];
    let ran = run(command(subnet, &args).current_dir(here.path())).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", subnet.log("facilitator"));
    assert!(ran.stdout.contains("200000  apple"), "{ran:?}");
    let counted = std::fs::read(here.path().join("words.json")).unwrap();
    let counted: Value = serde_json::from_slice(&counted).unwrap();
    assert_eq!(counted["words"], 400_003, "{counted}");

    // Once more: nothing is sent again.
    let id = json(&subnet.muster(&["files", "ls", "--json"]).unwrap());
    assert_eq!(id.as_array().unwrap().len(), 3, "two inputs and an output: {id}");
    let put = command(
        subnet,
        &["files", "put", "words.txt", "--name", "big.txt", "--json"],
    );
    let again = json(&run({ put }.current_dir(here.path())).unwrap());
    assert_eq!(again["known"], words.len(), "{again}");
}

pub(crate) fn a_folder_goes_there_and_back_with_modes_links_and_names(subnet: &RunningSubnet) {
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    std::fs::create_dir_all(at("work/hollow")).unwrap();
    std::fs::write(at("work/data"), "data").unwrap();
    std::fs::write(at("run"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(at("run"), std::fs::Permissions::from_mode(0o755)).unwrap();
    // A file of the user's by the name of an output.
    std::fs::write(at("last"), "mine").unwrap();
    for via in ["inline", "store"] {
        let call = |force: &[&str]| {
            let job = ["job", "run", subnet.demo_image(), "--via", via, "--save", via];
            let inputs = ["--input", "./run=run", "--input", "work/=work"];
            let outputs = [
                "--output",
                "./results",
                "--output",
                "/output/last",
                "--output",
                ".",
            ];
            let program = ["--", "probe", "tree"];
            let args = [&job[..], &inputs, &outputs, force, &program].concat();
            run(command(subnet, &args).current_dir(here.path())).unwrap()
        };
        std::fs::create_dir(at(via)).unwrap();
        std::fs::copy(at("last"), at(via).join("last")).unwrap();
        let refused = call(&[]);
        assert_eq!(refused.code, Some(125), "{refused:?}");
        assert!(
            refused.stderr.contains("E0051") && refused.stderr.contains("nothing runs"),
            "{refused:?}"
        );
        let ran = call(&["--force"]);
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", subnet.log("miner"));
        let of = |name: &str| format!("{via}/{name}");
        assert_eq!(mode(&of("results/run")), 0o755);
        assert_eq!(mode(&of("results/work/data")), 0o644);
        assert_eq!(mode(&of("results/key")), 0o600);
        assert!(at(&of("results/work/hollow")).is_dir() && at(&of("results/empty")).is_dir());
        let link = std::fs::read_link(at(&of("results/empty/inside"))).unwrap();
        assert_eq!(link.to_str(), Some("../run"));
        assert!(
            !at(&of("results/outside")).is_symlink() && ran.stderr.contains("outside"),
            "{ran:?}"
        );
        let latin = std::ffi::OsStr::from_bytes(b"r\xe9sultat");
        assert_eq!(
            std::fs::read_to_string(at(&of("results")).join(latin)).unwrap(),
            "latin"
        );
        // Of the three outputs, two have this place: the link by its contents, and then among all of `/output`.
        assert!(ran.stderr.contains("replaced what was here"), "{ran:?}");
        assert_eq!(std::fs::read_to_string(at(&of("last"))).unwrap(), "#!/bin/sh\n");
        assert!(!at(&of("stdout.txt")).exists());
        let names = || std::fs::read_dir(at(via)).unwrap().count();
        let before = names();
        fetched_again_it_is_the_same(subnet, &at(via));
        assert_eq!(names(), before, "no part and no scratch stays");
    }
}

/// Fetches the newest job's outputs into the folder that has them, and again where one of them was changed.
fn fetched_again_it_is_the_same(subnet: &RunningSubnet, folder: &std::path::Path) {
    let newest = json(&subnet.muster(&["job", "ls", "--limit", "1", "--json"]).unwrap());
    let id = newest[0]["uuid"].as_str().unwrap().to_owned();
    let get = |force: &[&str]| {
        let to = ["job", "get", &id, "--json", "--save", folder.to_str().unwrap()];
        subnet.muster(&[&to[..], force].concat()).unwrap()
    };
    let again = get(&[]);
    assert_eq!(again.code, Some(0), "{again:?}");
    let written = json(&again);
    let written = written.as_array().unwrap();
    assert!(written.len() > 2, "{written:?}");
    assert!(
        written.iter().all(|one| one["placed"] == "unchanged"),
        "{written:?}"
    );
    std::fs::write(folder.join("last"), "mine").unwrap();
    let kept = get(&[]);
    assert_eq!(kept.code, Some(1), "{kept:?}");
    for word in [
        "E0051",
        "last is here already, with other contents",
        "--force",
        "--save",
    ] {
        assert!(kept.stderr.contains(word), "{word}: {kept:?}");
    }
    assert_eq!(std::fs::read_to_string(folder.join("last")).unwrap(), "mine");
    assert_eq!(get(&["--force"]).code, Some(0));
    assert_eq!(
        std::fs::read_to_string(folder.join("last")).unwrap(),
        "#!/bin/sh\n"
    );
}

pub(crate) fn a_detached_job_is_listed_followed_and_fetched(subnet: &RunningSubnet) {
    let here = tempfile::tempdir().unwrap();
    let count = || {
        json(&subnet.muster(&["job", "ls", "--json"]).unwrap())
            .as_array()
            .unwrap()
            .len()
    };
    let before = count();
    let started = subnet
        .muster(&[
            "job",
            "run",
            subnet.demo_image(),
            "--detach",
            "--",
            "probe",
            "exit",
            "3",
        ])
        .unwrap();
    let id = started.stdout.trim().to_owned();
    let followed = subnet.muster(&["job", "logs", &id, "--follow"]).unwrap();
    assert_eq!(followed.code, Some(3), "{followed:?}");

    let input = here.path().join("a.txt");
    std::fs::write(&input, "kiwi kiwi").unwrap();
    let input = format!("a.txt={}", input.display());
    let args = [
        "job",
        "run",
        subnet.demo_image(),
        "--detach",
        "--json",
        "--name",
        "kiwis",
        "--input",
        &input,
        "--output",
        "words.json",
        "--",
        "words",
    ];
    let job = json(&subnet.muster(&args).unwrap());
    let id = job["uuid"].as_str().unwrap();
    subnet.wait_for_status(id, "completed").unwrap();
    for reference in [id, &id[..13], "kiwis"] {
        let logs = subnet.muster(&["job", "logs", reference]).unwrap();
        assert!(logs.stdout.contains("2  kiwi"), "{reference}: {logs:?}");
    }
    let waited = subnet.muster(&["job", "wait", "kiwis", "--json"]).unwrap();
    assert_eq!(waited.code, Some(0), "{waited:?}");
    let waited = json(&waited);
    assert_eq!(
        (&waited["state"], &waited["exit_code"], &waited["fault"]),
        (&"done".into(), &0.into(), &"nobody".into())
    );
    assert!(waited["miner"].is_string(), "{waited}");
    let unknown = subnet.muster(&["job", "show", "no-such-job", "--json"]).unwrap();
    let told: Value = serde_json::from_str(unknown.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(told["error"]["code"], "E0053", "{unknown:?}");
    let save = here.path().join("result");
    let got = subnet
        .muster(&["job", "get", id, "--json", "--save", save.to_str().unwrap()])
        .unwrap();
    assert_eq!(got.code, Some(0), "{got:?}");
    let counted: Value = serde_json::from_slice(&std::fs::read(save.join("words.json")).unwrap()).unwrap();
    assert_eq!(counted["words"], 2);
    assert_eq!(count(), before + 2);
    let listed = subnet.muster(&["job", "ls", "--limit", "1"]).unwrap().stdout;
    assert!(listed.contains(id) && listed.contains("done"), "{listed}");
    // The offer follows the ends of the jobs by a few seconds.
    wait_for("an offer of two free executors", || {
        let told = json(&subnet.muster(&["subnet", "--json"])?);
        let offer = &told["results"][0]["classes"][0];
        let is_free = offer["executors"] == 2 && offer["free"] == 2 && offer["waiting"] == 0;
        anyhow::Ok(is_free.then_some(()))
    })
    .unwrap();
    miners_are_shown(subnet);
    let offers = subnet.muster(&["subnet"]).unwrap().stdout;
    assert!(offers.contains("starts now"), "{offers}");
    let inspected =
        run(Command::new("docker").args(["inspect", "--format", "{{.Id}}", subnet.demo_image()])).unwrap();
    let shown = subnet.muster(&["job", "show", id]).unwrap().stdout;
    let was = format!("  was    {}", inspected.stdout.trim());
    assert!(
        shown.contains(&was),
        "a name may mean another image tomorrow: {was} is not in {shown}"
    );
}

/// The specs that came with the results are shown as the miner's claims, at both addresses.
fn miners_are_shown(subnet: &RunningSubnet) {
    let listed = wait_for("the validator's list of miners", || {
        let listed = subnet.validator_page("/v0/miners")?;
        anyhow::Ok(Some(listed).filter(|listed| listed["miners"][0]["claims"]["specs"][0]["cores"].is_u64()))
    })
    .unwrap();
    let miner = listed["miners"][0]["miner"].as_str().unwrap();
    wait_for("the miner's manifest on the chain", || {
        let page = subnet.validator_page("/v0/subnet")?;
        let neuron = page["neurons"].as_array().and_then(|neurons| {
            let mut neurons = neurons.iter();
            neurons.find(|neuron| neuron["hotkey"] == miner).cloned()
        });
        anyhow::Ok(neuron.filter(|neuron| neuron["stated"] == serde_json::json!({"always_on.test": 2})))
    })
    .unwrap();
    let shown = wait_for("the miner at the facilitator", || {
        let shown = subnet.muster(&["miner", "show", miner])?;
        anyhow::Ok(Some(shown.stdout).filter(|shown| shown.contains("specs of always_on.test")))
    })
    .unwrap();
    for part in [
        miner,
        "offers 2 x always_on.test",
        "claimed by the miner, checked by nobody",
        " cores ",
    ] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    let json = json(&subnet.muster(&["miner", "show", miner, "--json"]).unwrap());
    assert_eq!(
        json["results"][0]["claims"]["offers"],
        listed["miners"][0]["claims"]["offers"]
    );
}

pub(crate) fn ctrl_c_cancels_the_job_and_waits_for_its_end(subnet: &RunningSubnet) {
    let mut called = command(
        subnet,
        &[
            "job",
            "run",
            subnet.demo_image(),
            "--timeout",
            "10m",
            "--",
            "probe",
            "sleep",
            "600",
        ],
    );
    let before = json(&subnet.muster(&["job", "ls", "--json"]).unwrap());
    let before = before[0]["uuid"].as_str().unwrap_or_default().to_owned();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut running = called
        .stdout(Stdio::null())
        .stderr(log.reopen().unwrap())
        .spawn()
        .unwrap();
    let id = wait_for("the job", || {
        let jobs = json(&subnet.muster(&["job", "ls", "--json"])?);
        let newest = jobs[0]["uuid"].as_str().map(str::to_owned);
        anyhow::Ok(newest.filter(|newest| *newest != before))
    })
    .unwrap();
    subnet.wait_for_status(&id, "volumes_ready").unwrap();
    kill(
        Pid::from_raw(i32::try_from(running.id()).unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let ended = wait_for("the end of the command", || anyhow::Ok(running.try_wait()?)).unwrap();
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(ended.code(), Some(130), "{said}");
    assert!(said.contains(&format!("cancelling job {id}")), "{said}");
    let job = subnet.job(&id).unwrap();
    let last = job["status_history"].as_array().unwrap().last().unwrap();
    assert!(
        ["failed", "horde_failed", "rejected"].contains(&last["status"].as_str().unwrap()),
        "{last}"
    );
}

/// Starts a job that keeps its executor for ten minutes, and returns its id.
pub(crate) fn a_long_job_runs(subnet: &RunningSubnet) -> String {
    let started = subnet
        .muster(&[
            "job",
            "run",
            subnet.demo_image(),
            "--detach",
            "--timeout",
            "10m",
            "--",
            "probe",
            "sleep",
            "600",
        ])
        .unwrap();
    let id = started.stdout.trim().to_owned();
    subnet.wait_for_status(&id, "volumes_ready").unwrap();
    id
}

pub(crate) fn the_job_still_runs(subnet: &RunningSubnet, id: &str) {
    let job = subnet.job(id).unwrap();
    let last = job["status_history"].as_array().unwrap().last().unwrap();
    assert_eq!(last["status"], "volumes_ready", "{job}");
}

pub(crate) fn a_jobs_output_is_seen_while_it_runs(subnet: &RunningSubnet) {
    let id = a_long_job_runs(subnet);
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut following = command(subnet, &["job", "logs", &id, "--follow"])
        .stdout(log.reopen().unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the job's output", || {
        let text = std::fs::read_to_string(log.path())?;
        anyhow::Ok(text.contains("sleeping for 600 s").then_some(()))
    })
    .unwrap();
    let job = subnet.job(&id).unwrap();
    let last = job["status_history"].as_array().unwrap().last().unwrap();
    assert_eq!(last["status"], "volumes_ready", "it still runs");
    let cancelled = subnet.muster(&["job", "cancel", &id]).unwrap();
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    let code = wait_for("the end of the job", || anyhow::Ok(following.try_wait()?)).unwrap();
    assert_eq!(code.code(), Some(125), "the program did not end by itself");
}

/// Standard output comes byte for byte: more than a live view passes on, and bytes that are no text. Where it cannot be
/// written, the command says so.
pub(crate) fn the_output_of_a_program_comes_whole_into_a_file(subnet: &RunningSubnet) {
    let line = [vec![b'x'; 79], vec![b'\n']].concat();
    let lines = [line.repeat(250_000), b"end\n".to_vec()].concat();
    let long = [16_383, 16_384, 40_000].map(|length| [vec![b'x'; length - 1], vec![b'\n']].concat());
    let once = [long.concat(), (0..=u8::MAX).collect()].concat();
    for (program, expected) in [(["print", "20000000"], lines), (["bytes", "0"], once.repeat(2))] {
        let args = [
            "job",
            "run",
            subnet.demo_image(),
            "--",
            "probe",
            program[0],
            program[1],
        ];
        let (file, told) = (
            tempfile::NamedTempFile::new().unwrap(),
            tempfile::NamedTempFile::new().unwrap(),
        );
        let ended = command(subnet, &args)
            .stdout(file.reopen().unwrap())
            .stderr(told.reopen().unwrap())
            .status()
            .unwrap();
        let told = String::from_utf8_lossy(&std::fs::read(told.path()).unwrap()).into_owned();
        assert_eq!(ended.code(), Some(0), "{told}");
        assert!(
            std::fs::read(file.path()).unwrap() == expected,
            "{program:?}: {told}"
        );
        let id = told.lines().find_map(|line| line.strip_prefix("job ")).unwrap();
        let logs = command(subnet, &["job", "logs", id]).output().unwrap();
        assert!(logs.stdout == expected, "{program:?}");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let failed = command(subnet, &["job", "logs", id])
            .stdout(full)
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(failed.code(), Some(1), "{program:?}");
    }
}

pub(crate) fn an_api_key_opens_what_the_hotkey_owns_until_it_is_revoked(subnet: &RunningSubnet) {
    let home = tempfile::tempdir().unwrap();
    let made = json(&subnet.muster(&["keys", "new", "laptop", "--json"]).unwrap());
    let key = made["key"].as_str().unwrap();
    assert!(key.starts_with("msk_"), "{made}");

    // Another machine: no subnet, no wallet, only the key.
    let elsewhere = |args: &[&str]| {
        let mut called = Command::new(muster().unwrap());
        called
            .args(args)
            .current_dir(home.path())
            .env("HOME", home.path())
            .env("XDG_CONFIG_HOME", home.path());
        called
    };
    let url = format!("http://{}", subnet.field("facilitator").unwrap());
    assert_eq!(made["facilitator"], url);
    let validator = subnet.field("validator").unwrap();
    let refused =
        run(elsewhere(&["job", "ls", "--facilitator", &url]).env("MUSTER_API_KEY", "msk_wrong")).unwrap();
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("E0011"), "{}", refused.stderr);
    let nobody = run(&mut elsewhere(&["job", "ls", "--facilitator", &url])).unwrap();
    assert!(
        nobody.stderr.contains("E0033") && nobody.stderr.contains("muster login"),
        "{nobody:?}"
    );

    let login = ["login", "--facilitator", &url, "--validator", validator];
    let logged = run(elsewhere(&login).env("MUSTER_API_KEY", key)).unwrap();
    assert_eq!(logged.code, Some(0), "{logged:?}");
    let file = home.path().join("muster/login.toml");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    std::fs::write(home.path().join("a.txt"), "fig fig fig").unwrap();
    let image = subnet.demo_image();
    let args = [
        "job",
        "run",
        image,
        "--input",
        "a.txt=a.txt",
        "--via",
        "store",
        "--output",
        "words.json",
        "--",
        "words",
    ];
    let ran = run(&mut elsewhere(&args)).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("3  fig"), "{ran:?}");
    assert!(home.path().join("words.json").exists());

    let id = made["id"].as_str().unwrap();
    let listed = subnet.muster(&["keys", "ls"]).unwrap().stdout;
    assert!(listed.contains(id) && !listed.contains(key), "{listed}");
    assert_eq!(subnet.muster(&["keys", "rm", id]).unwrap().code, Some(0));
    let revoked = run(&mut elsewhere(&["job", "ls"])).unwrap();
    assert_eq!(revoked.code, Some(1), "{revoked:?}");
    assert_eq!(run(&mut elsewhere(&["login", "--forget"])).unwrap().code, Some(0));
    assert!(!file.exists());
}

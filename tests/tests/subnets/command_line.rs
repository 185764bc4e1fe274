//! The binary as a person meets it: configurations, wallets, mistakes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::Command;

use muster_tests::{Output, free_address, muster, run};

fn call(args: &[&str]) -> Output {
    run(Command::new(muster().unwrap()).args(args)).unwrap()
}

#[test]
fn every_role_prints_a_configuration_that_it_accepts() {
    let folder = tempfile::tempdir().unwrap();
    for role in ["facilitator", "validator", "miner", "executor"] {
        let printed = call(&[role, "--print-config"]);
        assert_eq!(printed.code, Some(0), "{role}: {printed:?}");
        // With one more key that is wrong, that key is all it complains of.
        let file = folder.path().join(role);
        std::fs::write(&file, format!("nonsense = 1\n{}", printed.stdout)).unwrap();
        let mut args = vec![role, "--config", file.to_str().unwrap()];
        if role == "executor" {
            let token = "11111111-2222-4333-8444-555555555555-11111111-2222-4333-8444-555555555555";
            args.extend(["--miner-address", "ws://127.0.0.1:1", "--token", token]);
        }
        let refused = call(&args);
        assert_eq!(refused.code, Some(64), "{role}: {refused:?}");
        assert!(
            refused.stderr.contains("nonsense") && refused.stderr.contains("E0002"),
            "{role}: {}",
            refused.stderr
        );
        assert!(!refused.stderr.contains("line 2"), "{role}: {}", refused.stderr);
    }
}

#[test]
fn every_error_of_a_configuration_is_named_before_anything_binds() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("miner.toml");
    std::fs::write(&file, "bnid = \"127.0.0.1:1\"\nbind = 7\nnonsense = true\n").unwrap();
    let refused = call(&["miner", "--config", file.to_str().unwrap()]);
    assert_eq!(refused.code, Some(64), "{refused:?}");
    for word in ["E0002", "bnid", "bind", "nonsense"] {
        assert!(
            refused.stderr.contains(word),
            "{word} is missing: {}",
            refused.stderr
        );
    }
}

#[test]
fn an_operators_command_makes_no_store_and_names_the_one_that_it_misses() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = elsewhere.path().join("miner.toml");
    std::fs::write(&config, "[standing]\nbind = \"127.0.0.1:8093\"\n").unwrap();
    for args in [
        &["audits"][..],
        &["rotate-certificate"],
        &["drain"],
        &["drain", "node7"],
        &["--executors"],
        &["--enroll"],
        &["--revoke", "ab"],
    ] {
        for (config, folder) in [(None, here.path()), (Some(&config), elsewhere.path())] {
            let mut command = Command::new(muster().unwrap());
            command.arg("miner").args(args).current_dir(here.path());
            if let Some(config) = config {
                command.arg("--config").arg(config);
            }
            let refused = run(&mut command).unwrap();
            assert_eq!(refused.code, Some(1), "{args:?}: {refused:?}");
            let store = folder.canonicalize().unwrap().join("miner.db");
            let named = [store.to_str().unwrap(), "E0052"];
            assert!(
                named.iter().all(|word| refused.stderr.contains(word)),
                "{args:?}: {refused:?}"
            );
        }
    }
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

#[test]
fn a_drain_that_reaches_no_running_role_fails_and_leaves_no_wish() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (bind, work_dir) = (free_address().unwrap(), at("work"));
    let membership = at("executor-membership.json");
    std::fs::write(at("miner.toml"), format!("bind = \"{bind}\"\n")).unwrap();
    std::fs::write(at("miner.db"), "").unwrap();
    std::fs::write(at("executor.toml"), format!("work_dir = {work_dir:?}\n")).unwrap();
    let drain = |role: &str, host: &[&str]| {
        let config = at(&format!("{role}.toml"));
        let args = [&[role, "drain", "--config", config.to_str().unwrap()], host].concat();
        let refused = call(&args);
        assert_eq!(refused.code, Some(1), "{role}: {refused:?}");
        refused.stderr
    };
    for host in [&[][..], &["node7"]] {
        let told = drain("miner", host);
        assert!(told.contains(&format!("no miner answers at {bind}")), "{told}");
    }
    assert!(!at("miner").exists());
    let told = drain("executor", &[]);
    assert!(
        told.contains(membership.to_str().unwrap()) && told.contains("nothing was changed"),
        "{told}"
    );
    assert!(!work_dir.exists());
}

#[test]
fn a_wallet_is_made_once_and_shown_without_its_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let made = call(&["wallet", "new", "alice", "--wallets", root, "--json"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let shown = call(&["wallet", "show", "alice", "--wallets", root, "--json"]);
    assert_eq!(shown.stdout, made.stdout);
    let secret = std::fs::read_to_string(folder.path().join("alice/hotkeys/default")).unwrap();
    let secret: serde_json::Value = serde_json::from_str(&secret).unwrap();
    assert!(!shown.stdout.contains(secret["secretSeed"].as_str().unwrap()));
    let again = call(&["wallet", "new", "alice", "--wallets", root]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("E0006"), "{}", again.stderr);
}

#[test]
fn an_error_code_is_explained() {
    let page = call(&["explain", "e0001"]);
    assert!(page.stdout.contains("apt-get install"), "{page:?}");
    assert_eq!(call(&["explain", "E9999"]).code, Some(64));
}

#[test]
fn without_an_engine_the_way_to_get_one_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(muster().unwrap());
    command
        .args(["up", "--demo", "--dir"])
        .arg(folder.path())
        .env("DOCKER_HOST", "unix:///nonexistent/docker.sock");
    let refused = run(&mut command).unwrap();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for word in ["E0001", "apt-get install", "dockerd"] {
        assert!(
            refused.stderr.contains(word),
            "{word} is missing: {}",
            refused.stderr
        );
    }
}

#[test]
fn a_machine_is_examined_and_every_complaint_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let doctor = |who: &str, engine: &str| {
        let mut command = Command::new(muster().unwrap());
        command.args(["doctor", "--json", "--for", who, "--dir", dir, "--disk", dir]);
        command
            .env("DOCKER_HOST", engine)
            .env("XDG_CONFIG_HOME", dir)
            .env("HOME", dir);
        let output = run(&mut command).unwrap();
        let report: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        (output.code, report)
    };
    let (code, report) = doctor("miner", "unix:///nonexistent/docker.sock");
    assert_eq!(code, Some(1), "{report}");
    let verdicts = report["verdicts"].as_array().unwrap();
    let checks: Vec<_> = verdicts
        .iter()
        .map(|verdict| verdict["check"].as_str().unwrap())
        .collect();
    for check in [
        "engine",
        "disk",
        "clock",
        "ports",
        "gpu",
        "chain",
        "facilitator",
        "login",
    ] {
        assert!(checks.contains(&check), "{check} is missing: {report}");
    }
    let engine = verdicts
        .iter()
        .find(|verdict| verdict["check"] == "engine")
        .unwrap();
    assert_eq!(
        (&engine["state"], &engine["code"]),
        (&"failure".into(), &"E0001".into())
    );
    assert!(engine["advice"].as_str().unwrap().contains("apt-get install"));
    assert!(report["facts"]["disk"]["free"].as_u64().unwrap() > 0);

    // Somebody who only submits jobs needs no engine, but somebody to be.
    let (code, report) = doctor("user", "unix:///nonexistent/docker.sock");
    assert_eq!(code, Some(1));
    let failing: Vec<_> = report["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|verdict| verdict["state"] == "failure")
        .map(|verdict| verdict["check"].as_str().unwrap())
        .collect();
    assert_eq!(failing, ["login"], "{report}");
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = call(&["completions", shell, "--static"]);
        assert_eq!(script.code, Some(0), "{shell}");
        for word in ["muster", "cancel", "doctor"] {
            assert!(script.stdout.contains(word), "{shell} lacks {word}");
        }
        let asking = call(&["completions", shell]);
        assert_eq!(asking.code, Some(0), "{shell}");
        assert!(asking.stdout.contains("MUSTER_COMPLETE"), "{shell}: {asking:?}");
    }
}

/// A user who is not logged in completes words all the same, and reads no error.
#[test]
fn a_tab_completes_commands_and_never_prints_an_error() {
    let home = tempfile::tempdir().unwrap();
    let tab = |words: &str, at: usize| {
        // bash hands the function the command, the word and the one before it.
        let script = format!(
            "source <({} completions bash); COMP_WORDS=({words}); COMP_CWORD={at}; COMP_TYPE=9; \
             _clap_complete_muster muster \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"; \
             echo \"${{COMPREPLY[*]}}\"",
            muster().unwrap().display()
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir(home.path());
        let ended = run(bash.env("HOME", home.path())).unwrap();
        assert_eq!(
            (ended.code, ended.stderr.as_str()),
            (Some(0), ""),
            "{words}: {ended:?}"
        );
        ended.stdout.trim().to_owned()
    };
    assert_eq!(tab("muster jo", 1), "job");
    assert!(tab("muster job run --out", 3).contains("--output"));
    assert_eq!(tab("muster job show 3f", 3), "", "nobody is logged in");
    assert_eq!(tab("muster chat t", 2), "");
}

#[test]
fn mistakes_in_a_jobs_arguments_are_named_before_anything_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    for (args, word) in [
        (["--output", "/etc/passwd"], "--save"),
        (["--output", "a=ftp://x"], "PUT"),
        (["--input", "../a=b"], "/volume"),
        (["--input", "a=/nonexistent/file"], "/nonexistent/file"),
        (["--env", "=A"], "=A"),
        (["--timeout", "1w"], "15m"),
    ] {
        let mut all = vec!["job", "run", "image", "--dir", dir];
        all.extend(args);
        let refused = call(&all);
        // 2 where the words cannot be read, and else what is not the program's.
        assert!(matches!(refused.code, Some(125 | 2)), "{args:?}: {refused:?}");
        assert!(refused.stderr.contains(word), "{args:?}: {}", refused.stderr);
    }
}

#[test]
fn a_users_command_without_a_subnet_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let refused = call(&[
        "job",
        "run",
        "--dir",
        folder.path().to_str().unwrap(),
        "--wallets",
        "/nonexistent",
        "image",
    ]);
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("E0006") || refused.stderr.contains("muster up"),
        "{}",
        refused.stderr
    );
}

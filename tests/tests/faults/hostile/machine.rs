//! A user against the machine of an executor: its network, its images, its disk.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use muster_testbed::wait_for;
use muster_tests::{Registry, RunningSubnet, run, shell_image};
use serde_json::Value;

/// Changes lines of the executors' configuration, which each of them reads when it is started for a job.
fn configure(subnet: &RunningSubnet, change: impl FnOnce(&mut toml::Table)) {
    let path = subnet.folder().join("config/executor.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut table: toml::Table = toml::from_str(&text).unwrap();
    change(&mut table);
    std::fs::write(&path, toml::to_string(&table).unwrap()).unwrap();
}

/// The settings of images as a careful operator has them: nothing is listed.
fn list_nothing(table: &mut toml::Table) {
    let images = table
        .get_mut("images")
        .and_then(toml::Value::as_table_mut)
        .unwrap();
    images.remove("allow");
    images.remove("local");
}

/// The end of a job.
#[derive(Debug)]
struct Ran {
    /// The exit code of the command that ran it.
    code: Option<i32>,
    /// The output of the job's program.
    printed: String,
    /// The last status as the facilitator reports it, which repeats no argument of the job.
    end: String,
}

/// Runs a job to its end.
fn job(subnet: &RunningSubnet, image: &str, words: &[&str]) -> Ran {
    let args = [&["job", "run", image, "--json", "--"], words].concat();
    let ran = subnet.muster(&args).unwrap();
    // A job that was refused at once has no view.
    let view: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    let history = view.get("status_history").and_then(Value::as_array);
    Ran {
        code: ran.code,
        printed: view
            .get("stdout")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
        end: history
            .and_then(|history| history.last())
            .unwrap_or(&Value::Null)
            .to_string(),
    }
}

/// The folders of jobs that executors of the subnet have left.
fn left(subnet: &RunningSubnet) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(subnet.folder().join("data/executor"));
    let entries = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).collect()
}

#[test]
fn no_job_sends_the_engine_into_the_miners_network_or_runs_the_operators_images() {
    let subnet = RunningSubnet::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let own = runtime.block_on(shell_image("")).unwrap();
    let engine = runtime
        .block_on(muster_executor::ContainerEngine::connect(""))
        .unwrap();
    let id = runtime.block_on(engine.find_image(own)).unwrap().unwrap().id;
    configure(&subnet, list_nothing);
    let inside = TcpListener::bind("127.0.0.1:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let address = inside.local_addr().unwrap();
    for registry in [address.to_string(), format!("localhost:{}", address.port())] {
        let refused = job(&subnet, &format!("{registry}/x/y:1"), &[]);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert!(
            refused.end.contains("may not fetch") && refused.end.contains("E0008"),
            "{refused:?}"
        );
    }
    let asked = inside.accept().map(|_| ()).unwrap_err();
    assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock, "nobody connected");

    // The operator's image is no job's: neither by its id nor by a name that leads elsewhere.
    let refused = job(&subnet, &id.to_string(), &["-c", "echo stolen"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.end.contains("E0008"), "{refused:?}");
    assert_eq!(refused.printed, "");
}

#[test]
fn files_without_a_name_and_folders_without_an_end_are_bounded_and_leave_nothing() {
    let subnet = RunningSubnet::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let image = runtime.block_on(shell_image("")).unwrap();
    configure(&subnet, |table| {
        let limits = toml::toml! { disk_mib = 64 };
        table.insert("limits".to_owned(), toml::Value::Table(limits));
        let volumes = toml::toml! { max_mib = 16 };
        table.insert("volumes".to_owned(), toml::Value::Table(volumes));
        table.insert("log_mib".to_owned(), toml::Value::Integer(4));
    });
    let hidden = "b=/bin/busybox; exec 3>/output/hidden; $b rm /output/hidden; \
        while $b dd if=/dev/zero bs=1M count=16 >&3 2>/dev/null; do :; done; echo full; $b sleep 60";
    let stopped = job(&subnet, image, &["-c", hidden]);
    assert_ne!(stopped.code, Some(0), "{stopped:?}");
    assert!(
        stopped.end.contains("disk") || stopped.end.contains("wrote"),
        "{stopped:?}"
    );

    let nested = "b=/bin/busybox; cd /output; i=0; \
        while [ $i -lt 5000 ]; do $b mkdir d && cd d || exit 9; i=$((i+1)); done; echo deep";
    let ended = job(&subnet, image, &["-c", nested]);
    // The shell gives up where a path is too long for the kernel, unless the disk is full before.
    let is_bounded = ["File name too long", "disk"]
        .iter()
        .any(|why| ended.end.contains(why));
    assert!(ended.printed == "deep\n" || is_bounded, "{ended:?}");
    wait_for("the end of the jobs' folders", || {
        anyhow::Ok(left(&subnet).is_empty().then_some(()))
    })
    .unwrap();
    let mounts = run(&mut Command::new("mount")).unwrap().stdout;
    let folder = subnet.folder().display().to_string();
    assert!(!mounts.contains(&folder), "{mounts}");

    let ran = job(&subnet, image, &["-c", "echo still here"]);
    assert_eq!(
        (ran.code, ran.printed.as_str()),
        (Some(0), "still here\n"),
        "{ran:?}"
    );
}

#[test]
fn an_image_that_is_too_large_is_its_users_fault_and_no_layer_of_it_comes() {
    let subnet = RunningSubnet::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let registry = Registry::start().unwrap();
    let large = runtime.block_on(registry.publish(8 << 20)).unwrap();
    let small = runtime.block_on(registry.publish(1 << 10)).unwrap();
    configure(&subnet, |table| {
        let images = table
            .get_mut("images")
            .and_then(toml::Value::as_table_mut)
            .unwrap();
        images.insert("max_mib".to_owned(), toml::Value::Integer(4));
        images.remove("local");
    });
    let name = |place: &str| format!("{}/{place}", registry.address());
    let refused = job(&subnet, &name(&large.place), &["-c", "echo ran"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.end.contains("larger than the 4 MiB"), "{refused:?}");
    assert_eq!(refused.printed, "");
    let engine = runtime
        .block_on(muster_executor::ContainerEngine::connect(""))
        .unwrap();
    let left = runtime
        .block_on(engine.find_image(&large.id.to_string()))
        .unwrap();
    assert!(left.is_none(), "the image stayed");

    let ran = job(&subnet, &name(&small.place), &["-c", "echo ran"]);
    assert_eq!((ran.code, ran.printed.as_str()), (Some(0), "ran\n"), "{ran:?}");
}

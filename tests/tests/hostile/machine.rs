//! A user against the machine of an executor: its network, its images, its disk.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use muster_tests::{Registry, RunningSubnet, run, shell_image, wait_for};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);

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

/// Runs a job to its end; the exit code of the command and the job as it printed it.
fn job(subnet: &RunningSubnet, image: &str, words: &[&str]) -> (Option<i32>, String) {
    let args = [&["job", "run", image, "--json", "--"], words].concat();
    let ran = subnet.muster(&args).unwrap();
    (ran.code, format!("{}{}", ran.stdout, ran.stderr))
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
        let (code, told) = job(&subnet, &format!("{registry}/x/y:1"), &[]);
        assert_ne!(code, Some(0), "{told}");
        assert!(told.contains("may not fetch") && told.contains("E0008"), "{told}");
    }
    let asked = inside.accept().map(|_| ()).unwrap_err();
    assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock, "nobody connected");

    // The operator's image is no job's: neither by its id nor by a name that leads elsewhere.
    let (code, told) = job(&subnet, &id.to_string(), &["-c", "echo stolen"]);
    assert_ne!(code, Some(0), "{told}");
    assert!(told.contains("E0008") && !told.contains("stolen\\n"), "{told}");
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
    let (code, told) = job(&subnet, image, &["-c", hidden]);
    assert_ne!(code, Some(0), "{told}");
    assert!(told.contains("disk") || told.contains("wrote"), "{told}");

    let nested = "b=/bin/busybox; cd /output; i=0; \
        while [ $i -lt 5000 ]; do $b mkdir d && cd d || exit 9; i=$((i+1)); done; echo deep";
    let (_, told) = job(&subnet, image, &["-c", nested]);
    assert!(told.contains("deep") || told.contains("disk"), "{told}");
    wait_for("the end of the jobs' folders", PATIENCE, || {
        Ok(left(&subnet).is_empty().then_some(()))
    })
    .unwrap();
    let mounts = run(&mut Command::new("mount")).unwrap().stdout;
    let folder = subnet.folder().display().to_string();
    assert!(!mounts.contains(&folder), "{mounts}");

    let (code, told) = job(&subnet, image, &["-c", "echo still here"]);
    assert_eq!(code, Some(0), "{told}");
    let view: Value = serde_json::from_str(told.lines().collect::<String>().as_str()).unwrap_or_default();
    assert!(told.contains("still here"), "{view}");
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
    let (code, told) = job(&subnet, &name(&large.place), &["-c", "echo ran"]);
    assert_ne!(code, Some(0), "{told}");
    assert!(
        told.contains("larger than the 4 MiB") && !told.contains("ran\\n"),
        "{told}"
    );
    let engine = runtime
        .block_on(muster_executor::ContainerEngine::connect(""))
        .unwrap();
    let left = runtime
        .block_on(engine.find_image(&large.id.to_string()))
        .unwrap();
    assert!(left.is_none(), "the image stayed");

    let (code, told) = job(&subnet, &name(&small.place), &["-c", "echo ran"]);
    assert_eq!(code, Some(0), "{told}");
}

//! Metrics, dashboards and alerts: they agree with one another, with the catalogue, and with what a running subnet
//! exports to Debian's Prometheus.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use muster_process::telemetry::catalogue::{LabelValues, MetricEntry, MetricKind, MetricRole, all_metrics};
use muster_testbed::{patience, wait_for};
use muster_tests::{IMAGES_OF_TESTS, Output, RunningSubnet, free_address, muster, run};
use serde_json::Value;

/// The metrics of a process that no dashboard shows: nobody watches them rise.
const NOT_SHOWN: [&str; 2] = ["process_virtual_memory_bytes", "process_start_time_seconds"];

/// Names of earlier releases whose units promtool finds wanting.
const OLD_UNITS: [&str; 3] = [
    "_cpu_permille",
    "_gpu_utilisation_percent",
    "_gpu_power_milliwatts",
];

fn operations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations")
}

fn promtool(args: &[&str], folder: &Path) -> Output {
    run(Command::new("promtool").args(args).current_dir(folder)).unwrap()
}

/// The names of our metrics in an expression of PromQL.
fn names_in(expression: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // Labels hold the roles' names, which are no metrics.
    let mut bare = String::new();
    let mut quoted = false;
    for c in expression.chars() {
        quoted ^= c == '"';
        bare.push(if quoted { ' ' } else { c });
    }
    let words = bare.split(|c| !is_name(c));
    let ours = words.filter(|word| word.starts_with("muster_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}

/// The entry of the catalogue for a series' name, which may be a part of a histogram.
fn entry_of(name: &str) -> Option<&'static MetricEntry> {
    all_metrics().find(|entry| match entry.kind {
        MetricKind::Histogram => ["_bucket", "_sum", "_count"]
            .iter()
            .any(|part| name.strip_suffix(part) == Some(entry.name)),
        MetricKind::Counter | MetricKind::Gauge => name == entry.name,
    })
}

/// The rules of `alerts.yml`: the name and the text of each.
fn alerts() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(operations().join("alerts.yml")).unwrap();
    let rules = text.split("- alert: ").skip(1);
    rules
        .map(|rule| (rule.lines().next().unwrap().trim().to_owned(), rule.to_owned()))
        .collect()
}

/// The expressions of a role's dashboard.
fn dashboard(role: MetricRole) -> Vec<String> {
    let path = operations().join(format!("dashboards/{}.json", role.name()));
    let board: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(board["uid"], format!("muster-{}", role.name()));
    let panels = board["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    expressions.collect()
}

/// An expression as Grafana sends it for all instances.
fn filled(expression: &str) -> String {
    expression.replace("$instance", ".*")
}

#[test]
fn the_alerts_are_valid_and_fire_as_their_tests_say() {
    let checked = promtool(&["check", "rules", "alerts.yml"], &operations());
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let tested = promtool(&["test", "rules", "alerts_test.yml"], &operations());
    assert_eq!(tested.code, Some(0), "{tested:?}");
}

#[test]
fn every_alert_asks_for_metrics_that_exist_and_has_its_section_in_the_runbook() {
    let runbook = std::fs::read_to_string(operations().join("runbook.md")).unwrap();
    let sections: BTreeSet<_> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(str::to_owned)
        .collect();
    let alerts = alerts();
    assert!(alerts.len() > 20, "the file was not read as it is written");
    let named: BTreeSet<_> = alerts.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(
        sections, named,
        "sections of the runbook on the left, alerts on the right"
    );
    for (name, rule) in &alerts {
        let expression = rule.split("annotations:").next().unwrap();
        for metric in names_in(expression) {
            assert!(
                entry_of(&metric).is_some(),
                "{name} asks for {metric}, which nothing exports"
            );
        }
        let link = format!("runbook.md#{}", name.to_lowercase());
        assert!(rule.contains(&link), "{name} does not lead to its section");
    }
}

#[test]
fn every_dashboard_shows_all_metrics_of_its_role_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    for role in MetricRole::ALL {
        let expressions = dashboard(role);
        let mut shown = BTreeSet::new();
        let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
        for (number, expression) in expressions.iter().enumerate() {
            for name in names_in(expression) {
                let entry = entry_of(&name).unwrap_or_else(|| panic!("{role:?} asks for {name}"));
                assert!(entry.is_of(role), "the dashboard of {role:?} asks for {name}");
                shown.insert(entry.name);
            }
            let quoted = serde_json::to_string(&filled(expression)).unwrap();
            rules += &format!("      - record: panel:expression:{number}\n        expr: {quoted}\n");
        }
        for entry in all_metrics().filter(|entry| entry.is_of(role)) {
            let is_shown = shown.contains(entry.name) || NOT_SHOWN.contains(&entry.name);
            assert!(is_shown, "no panel of {role:?} shows {}", entry.name);
        }
        std::fs::write(folder.path().join("rules.yml"), rules).unwrap();
        let checked = promtool(&["check", "rules", "rules.yml"], folder.path());
        assert_eq!(checked.code, Some(0), "{role:?}: {checked:?}");
    }
}

/// A process that ends when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(url: &str) -> String {
    let told = run(Command::new("curl").args([
        "-sS",
        "--fail-with-body",
        "--max-time",
        &patience().as_secs().to_string(),
        url,
    ]))
    .unwrap();
    assert_eq!(told.code, Some(0), "{url}: {told:?}");
    told.stdout
}

/// The part of a scrape about one metric: its type, and the labels of each of its series.
#[derive(Default)]
struct Scraped {
    kind: String,
    has_help: bool,
    series: Vec<BTreeMap<String, String>>,
}

/// Reads the text format, as far as our own exporter writes it.
fn read_scrape(text: &str) -> BTreeMap<String, Scraped> {
    let mut found: BTreeMap<String, Scraped> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        match (words.next().unwrap(), line.starts_with('#')) {
            ("#", true) => {
                let (what, name) = (words.next().unwrap(), words.next().unwrap());
                let entry = found.entry(name.to_owned()).or_default();
                match what {
                    "TYPE" => entry.kind = words.next().unwrap().to_owned(),
                    "HELP" => entry.has_help = true,
                    other => panic!("{other}: {line}"),
                }
            }
            (_, _) => {
                let (name, labels) = match line.split_once('{') {
                    Some((name, rest)) => (name, rest.rsplit_once('}').unwrap().0),
                    None => (line.split(' ').next().unwrap(), ""),
                };
                let labels = labels
                    .split("\",")
                    .filter(|label| !label.is_empty())
                    .map(|label| {
                        let (name, value) = label.split_once("=\"").unwrap();
                        (name.to_owned(), value.trim_end_matches('"').to_owned())
                    });
                let name = entry_of(name)
                    .unwrap_or_else(|| panic!("{name} is not in the catalogue"))
                    .name;
                found
                    .entry(name.to_owned())
                    .or_default()
                    .series
                    .push(labels.collect());
            }
        }
    }
    found
}

/// Compares a role's scrape with the catalogue: nothing is missing, nothing is extra, and every label is known.
fn compare(role: MetricRole, text: &str) {
    let found = read_scrape(text);
    for (name, scraped) in &found {
        let entry = all_metrics().find(|entry| entry.name == name).unwrap();
        assert!(entry.is_of(role), "{role:?} exports {name}");
        assert_eq!(scraped.kind, entry.kind.name(), "{name}");
        assert!(scraped.has_help, "{name} has no HELP");
        for series in &scraped.series {
            let mut known: BTreeSet<_> = entry.labels.iter().map(|label| label.name).collect();
            if series.contains_key("le") {
                known.insert("le");
            }
            let shown: BTreeSet<_> = series.keys().map(String::as_str).collect();
            assert_eq!(shown, known, "{name}: labels");
            for label in entry.labels {
                if let LabelValues::OneOf(values) = label.values {
                    let value = series[label.name].as_str();
                    assert!(values.contains(&value), "{name}: {}={value}", label.name);
                }
            }
        }
    }
    for entry in all_metrics().filter(|entry| entry.is_of(role) && entry.needs.is_empty()) {
        let there = found
            .get(entry.name)
            .is_some_and(|scraped| !scraped.series.is_empty());
        assert!(there, "{role:?} does not export {}:\n{text}", entry.name);
    }
    let linted =
        muster_tests::run_with_input(Command::new("promtool").args(["check", "metrics"]), text).unwrap();
    let complaints: Vec<_> = linted
        .stderr
        .lines()
        .chain(linted.stdout.lines())
        .filter(|line| !OLD_UNITS.iter().any(|old| line.contains(old)))
        .collect();
    assert_eq!(complaints, [""; 0], "promtool's complaints about {role:?}");
}

/// A subnet whose only executor is a persistent one, with the address of each role's metrics.
struct MeasuredSubnet {
    subnet: RunningSubnet,
    _executor: Running,
    /// By the roles' names.
    metrics: BTreeMap<&'static str, String>,
}

impl MeasuredSubnet {
    fn start() -> Self {
        let standing = free_address().unwrap();
        let arguments = ["--executors", "0", "--persistent", &standing.to_string()];
        let subnet = RunningSubnet::start_with(&arguments).unwrap();
        let folder = subnet.folder().to_owned();
        let config = folder.join("measured-executor.toml");
        let (work_dir, membership) = (folder.join("measured-work"), folder.join("membership.json"));
        let text = format!(
            "work_dir = {work_dir:?}\nstop_grace_s = 1\n[standing]\nmembership = {membership:?}\ncapacity = 2\n{IMAGES_OF_TESTS}"
        );
        std::fs::write(&config, text).unwrap();
        let invited = run(Command::new(muster().unwrap())
            .args(["miner", "--config"])
            .arg(folder.join("config/miner.toml"))
            .args(["--enrol", "--capacity", "2"]))
        .unwrap();
        let executor = |args: &[&str]| {
            let mut command = Command::new(muster().unwrap());
            command.args(["executor", "--config"]).arg(&config).args(args);
            command
        };
        let token = invited.stdout.trim().to_owned();
        let enrolled = run(&mut executor(&["--name", "box-1", "--enrol", &token])).unwrap();
        assert_eq!(enrolled.code, Some(0), "{enrolled:?}");
        let own: SocketAddr = free_address().unwrap();
        let log = std::fs::File::create(folder.join("logs/measured.log")).unwrap();
        let running = executor(&["--persistent", "--metrics", &own.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let state: Value =
            serde_json::from_slice(&std::fs::read(folder.join("subnet.json")).unwrap()).unwrap();
        let further = &state["further_metrics"];
        let metrics = BTreeMap::from([
            ("facilitator", further["facilitator"].as_str().unwrap().to_owned()),
            ("validator", state["metrics"].as_str().unwrap().to_owned()),
            ("miner", further["miner"].as_str().unwrap().to_owned()),
            ("executor", own.to_string()),
        ]);
        Self {
            subnet,
            _executor: Running(running),
            metrics,
        }
    }

    /// Starts Prometheus with the scrape jobs of the documentation and our alerts; returns its address.
    fn scraped(&self) -> (Running, String) {
        let folder = self.subnet.folder();
        let mut config = String::from("global: {scrape_interval: 1s, evaluation_interval: 1s}\n");
        let rules = operations().join("alerts.yml").canonicalize().unwrap();
        config += &format!("rule_files: [{rules:?}]\nscrape_configs:\n");
        for (role, address) in &self.metrics {
            config +=
                &format!("  - job_name: muster-{role}\n    static_configs: [{{targets: [{address:?}]}}]\n");
        }
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        let address = free_address().unwrap().to_string();
        let log = std::fs::File::create(folder.join("logs/prometheus.log")).unwrap();
        let running = Command::new("prometheus")
            .arg(format!(
                "--config.file={}",
                folder.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("prometheus").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        (Running(running), address)
    }
}

/// The series that Prometheus has for an expression now.
fn query(prometheus: &str, expression: &str) -> anyhow::Result<Vec<Value>> {
    let asked = run(Command::new("curl")
        .args([
            "-sS",
            "--max-time",
            &patience().as_secs().to_string(),
            "--get",
            "--data-urlencode",
        ])
        .arg(format!("query={expression}"))
        .arg(format!("http://{prometheus}/api/v1/query")))?;
    let Ok(told) = serde_json::from_str::<Value>(&asked.stdout) else {
        return Ok(Vec::new());
    };
    anyhow::ensure!(told["status"] == "success", "{expression}: {told}");
    Ok(told["data"]["result"].as_array().cloned().unwrap_or_default())
}

/// Waits until the first series of an expression has at least this value.
fn wait_for_value(prometheus: &str, expression: &str, least: f64) {
    wait_for(&format!("{expression} of {least}"), || {
        let found = query(prometheus, expression)?;
        let value = found.first().and_then(|series| series["value"][1].as_str());
        let value: f64 = value.unwrap_or("0").parse()?;
        anyhow::Ok((value >= least).then_some(()))
    })
    .unwrap();
}

#[test]
fn prometheus_scrapes_all_roles_of_a_subnet_and_finds_what_the_catalogue_lists() {
    let measured = MeasuredSubnet::start();
    let (subnet, metrics) = (&measured.subnet, &measured.metrics);
    let (_prometheus, address) = measured.scraped();
    wait_for_value(&address, "count(up{job=~\"muster-.+\"} == 1)", 4.0);
    let done = subnet
        .muster(&["job", "run", subnet.demo_image(), "--", "probe", "exit", "0"])
        .unwrap();
    assert_eq!(done.code, Some(0), "{done:?}\n{}", subnet.log("validator"));
    let failed = subnet
        .muster(&["job", "run", subnet.demo_image(), "--", "probe", "exit", "3"])
        .unwrap();
    assert_eq!(failed.code, Some(3), "{failed:?}");
    let chat = subnet.muster(&["chat", "parrot", "-m", "hello"]).unwrap();
    assert_eq!(chat.code, Some(0), "{chat:?}\n{}", subnet.log("validator"));

    // The same two jobs at every role on their way, by outcome and fault.
    for expression in [
        "muster_facilitator_jobs_ended_total{outcome=\"completed\",fault=\"nobody\"}",
        "muster_facilitator_jobs_ended_total{outcome=\"failed\",fault=\"user\"}",
        "muster_validator_jobs_ended_total{outcome=\"failed\",fault=\"user\"}",
        "muster_validator_attempts_ended_total{outcome=\"completed\",fault=\"nobody\"}",
        "muster_miner_leases_ended_total{end=\"finished\"}",
        "muster_miner_leases_ended_total{end=\"failed\"}",
        "muster_executor_jobs_ended_total{outcome=\"finished\",fault=\"nobody\"}",
        "muster_executor_jobs_ended_total{outcome=\"failed\",fault=\"user\"}",
        "muster_executor_stage_seconds_count{stage=\"run\"}",
        "muster_miner_receipts_total{kind=\"finished\"}",
        "muster_gateway_responses_total{verdict=\"proven\"}",
        "muster_sealed_responses_total",
        "muster_validator_facilitator_connected",
        "muster_validator_chain_block",
        "muster_validator_miners{state=\"usable\"}",
        "muster_executor_engine_reachable",
        "muster_executor_miner_connected",
        "muster_miner_validators{state=\"connected\"}",
        "sum(muster_miner_executors{kind=\"persistent\"}) / 2",
        "muster_facilitator_validators",
        "muster_facilitator_requests_total{surface=\"api\",code=\"2xx\"}",
        "muster_facilitator_requests_total{surface=\"models\",code=\"2xx\"}",
    ] {
        wait_for_value(&address, expression, 1.0);
    }
    for role in MetricRole::ALL {
        compare(role, &get(&format!("http://{}/metrics", metrics[role.name()])));
        for expression in dashboard(role) {
            query(&address, &filled(&expression)).unwrap();
        }
    }
    let firing = query(&address, "ALERTS{alertstate=\"firing\"}").unwrap();
    assert_eq!(firing, Vec::<Value>::new(), "a healthy subnet");
}

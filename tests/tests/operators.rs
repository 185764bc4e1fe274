//! The operators' pages of a validator and of a miner: over plain sockets and in a browser.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_tests::{
    IMAGES_OF_TESTS, RunningSubnet, free_address, muster, program_from_env, python, run, wait_for,
};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);

/// The folder that pictures of the pages are kept in, if somebody wants them.
const PICTURES: &str = "MUSTER_TEST_PICTURES";

/// A role's operator's address and the file of its token.
struct OperatedRole {
    url: String,
    token: PathBuf,
}

impl OperatedRole {
    fn of(subnet: &RunningSubnet, name: &str) -> Self {
        let state = std::fs::read(subnet.folder().join("subnet.json")).unwrap();
        let state: Value = serde_json::from_slice(&state).unwrap();
        let token = match name {
            "validator" => "data/validator.token".to_owned(),
            other => format!("data/{other}-operator.token"),
        };
        Self {
            url: format!("http://{}", state["operators"][name].as_str().unwrap()),
            token: subnet.folder().join(token),
        }
    }

    fn secret(&self) -> String {
        std::fs::read_to_string(&self.token).unwrap().trim().to_owned()
    }

    /// The head and the body of the answer to a request with these arguments of curl.
    fn curl(&self, path: &str, args: &[&str]) -> (String, String) {
        let asked = run(Command::new("curl")
            .args(["-sS", "-i", "--max-time", "10"])
            .args(args)
            .arg(format!("{}{path}", self.url)))
        .unwrap();
        assert_eq!(asked.code, Some(0), "{asked:?}");
        let (head, body) = asked.stdout.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_owned())
    }
}

const PAGE: [&str; 2] = ["-H", "Accept: text/html"];

/// Checks the rules of the operator's address of every role.
fn check_gate(role: &OperatedRole, paths: &[&str]) {
    let secret = role.secret();
    for path in paths {
        let (head, _) = role.curl(path, &PAGE);
        assert!(
            head.contains("303 see other") && head.contains("location: /sign-in"),
            "{path}: {head}"
        );
        assert!(
            head.contains("content-security-policy: default-src 'none'"),
            "{head}"
        );
    }
    let (head, body) = role.curl("/v0/state", &[]);
    assert!(
        head.contains("401 unauthorized") && body.contains("operator's token"),
        "{head}\n{body}"
    );
    let (head, _) = role.curl(
        "/v0/state",
        &["-H", &format!("Authorization: Bearer {}", "0".repeat(64))],
    );
    assert!(head.contains("401 unauthorized"), "{head}");
    let (head, body) = role.curl("/v0/state", &["-H", &format!("Authorization: Bearer {secret}")]);
    assert!(head.contains("200 ok"), "{head}");
    assert!(serde_json::from_str::<Value>(&body).unwrap().is_object());

    let (head, _) = role.curl("/sign-in", &["-d", "token=wrong"]);
    assert!(
        head.contains("401 unauthorized") && !head.contains("set-cookie"),
        "{head}"
    );
    let form = format!("token={secret}");
    let (head, _) = role.curl("/sign-in", &["-d", &form, "-H", "Sec-Fetch-Site: cross-site"]);
    assert!(head.contains("403 forbidden"), "{head}");
    let (head, _) = role.curl("/sign-in", &["-d", &form]);
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    assert!(
        cookie.contains("httponly") && cookie.contains("samesite=strict"),
        "{cookie}"
    );
    assert!(!cookie.contains(&secret), "the cookie must not be the token");
    let cookie = format!("Cookie: {}", cookie.split(';').next().unwrap());
    for path in paths {
        let (head, body) = role.curl(path, &["-H", &cookie, "-H", "Accept: text/html"]);
        assert!(
            head.contains("200 ok") && head.contains("cache-control: no-store"),
            "{path}: {head}"
        );
        assert!(body.contains("<h1>") && !body.contains(&secret), "{path}: {body}");
    }
    let (head, _) = role.curl("/sign-out", &["-H", &cookie, "-X", "POST"]);
    assert!(
        head.contains("303 see other") && head.contains("max-age=0"),
        "{head}"
    );
    let (head, _) = role.curl("/", &["-H", &cookie, "-H", "Accept: text/html"]);
    assert!(
        head.contains("location: /sign-in"),
        "the session has ended: {head}"
    );
}

#[test]
fn operators_pages_want_the_token_and_change_nothing() {
    let subnet = RunningSubnet::start().unwrap();
    let validator = OperatedRole::of(&subnet, "validator");
    let miner = OperatedRole::of(&subnet, "miner");
    let key = subnet.field("miner").unwrap();
    let of_miner = format!("/miners/{key}");
    check_gate(
        &validator,
        &[
            "/",
            "/jobs",
            "/grading",
            "/weights",
            "/sessions",
            "/audits",
            &of_miner,
        ],
    );
    check_gate(&miner, &["/", "/leases", "/declines", "/earnings", "/grades"]);
    // A call that changes something is not passed on, not even for the operator.
    let bearer = format!("Authorization: Bearer {}", validator.secret());
    for path in ["/v0/batches", "/v0/collateral/slashes"] {
        let (head, _) = validator.curl(
            path,
            &[
                "-X",
                "POST",
                "-H",
                &bearer,
                "-H",
                "Content-Type: application/json",
                "-d",
                "{}",
            ],
        );
        assert!(head.contains("405 method not allowed"), "{path}: {head}");
    }
    // The subnet in numbers is for everybody, and names nobody but the validator.
    let body = wait_for("the subnet in numbers", PATIENCE, || {
        let (head, body) = validator.curl("/subnet", &PAGE);
        assert!(head.contains("200 ok"), "{head}");
        Ok(Some(body).filter(|body| body.contains("always_on.test")))
    })
    .unwrap();
    assert!(!body.contains(key), "{body}");

    // A lease that runs, and its end.
    let args = [
        "job",
        "run",
        subnet.demo_image(),
        "--detach",
        "--",
        "probe",
        "sleep",
        "60",
    ];
    let started = subnet.muster(&args).unwrap();
    let id = started.stdout.trim().to_owned();
    let status = || {
        let bearer = format!("Authorization: Bearer {}", miner.secret());
        let (_, body) = miner.curl("/v0/state", &["-H", &bearer]);
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let running = wait_for("a lease that runs", PATIENCE, || {
        let status = status();
        Ok(Some(status).filter(|status| status["leases"][0]["state"] == "runs"))
    })
    .unwrap();
    assert_eq!(running["started"]["busy"], 1, "{running}");
    let ended = subnet.muster(&["job", "cancel", &id]).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    wait_for("the end of the lease", PATIENCE, || {
        let status = status();
        let is_over = status["leases"] == Value::Array(vec![]) && status["ended"][0]["attempt"].is_string();
        Ok(is_over.then_some(()))
    })
    .unwrap();
}

/// A process that ends when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Enrolls an executor, and starts it.
fn start_executor(subnet: &RunningSubnet) -> Running {
    let folder = subnet.folder();
    let config = folder.join("enrolled-executor.toml");
    let (work_dir, membership) = (folder.join("enrolled-work"), folder.join("membership.json"));
    let text = format!(
        "work_dir = {work_dir:?}\nstop_grace_s = 1\n[standing]\nmembership = {membership:?}\ncapacity = 1\n{IMAGES_OF_TESTS}"
    );
    std::fs::write(&config, text).unwrap();
    let invited = run(Command::new(muster().unwrap())
        .args(["miner", "--config"])
        .arg(folder.join("config/miner.toml"))
        .arg("--enrol"))
    .unwrap();
    let executor = |args: &[&str]| {
        let mut command = Command::new(muster().unwrap());
        command.args(["executor", "--config"]).arg(&config).args(args);
        command
    };
    let enrolled = run(&mut executor(&[
        "--name",
        "box-1",
        "--enrol",
        invited.stdout.trim(),
    ]))
    .unwrap();
    assert_eq!(enrolled.code, Some(0), "{enrolled:?}");
    let log = std::fs::File::create(folder.join("logs/enrolled.log")).unwrap();
    let mut command = executor(&["--standing"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Running(command.spawn().unwrap())
}

/// Runs a job whose image has a name of markup that is wider than any window. The refusal repeats the name, so the
/// words come to the miner, the validator and the user.
fn run_hostile_job(subnet: &RunningSubnet) {
    let image = format!(
        "<script>alert(1)</script><img/src=x/onerror=alert(2)>{}",
        "W".repeat(300)
    );
    let ran = subnet.muster(&["job", "run", &image, "--", "x"]).unwrap();
    assert_ne!(ran.code, Some(0), "{ran:?}");
}

/// Has the validator grade the miner's executors, so that it states something about them.
fn grade(subnet: &RunningSubnet) {
    let graded = wait_for("a batch", PATIENCE, || {
        let graded = subnet.muster(&["grade", "run"])?;
        Ok((!graded.stderr.contains("no miner announces an executor")).then_some(graded))
    });
    let graded = graded.unwrap();
    assert_eq!(graded.code, Some(0), "{graded:?}\n{}", subnet.log("validator"));
}

#[test]
fn a_browser_reads_the_operators_pages() {
    let selenium = program_from_env("MUSTER_TEST_BROWSER_PYTHON").unwrap();
    let standing = free_address().unwrap().to_string();
    let subnet = RunningSubnet::start_with(&["--executors", "1", "--standing", &standing]).unwrap();
    let _executor = start_executor(&subnet);
    for code in ["0", "3"] {
        let args = ["job", "run", subnet.demo_image(), "--", "probe", "exit", code];
        subnet.muster(&args).unwrap();
    }
    run_hostile_job(&subnet);
    grade(&subnet);
    let folder = tempfile::tempdir().unwrap();
    let pictures = std::env::var_os(PICTURES).map_or_else(|| folder.path().to_owned(), PathBuf::from);
    let (validator, miner) = (
        OperatedRole::of(&subnet, "validator"),
        OperatedRole::of(&subnet, "miner"),
    );
    let ran = python(
        &selenium,
        "browser_looks_at_operators_pages.py",
        &[
            &validator.url,
            &miner.url,
            validator.token.to_str().unwrap(),
            miner.token.to_str().unwrap(),
            pictures.to_str().unwrap(),
        ],
    )
    .unwrap();
    assert_eq!(
        ran.code,
        Some(0),
        "{ran:?}\n{}\n{}",
        subnet.log("validator"),
        subnet.log("miner")
    );
    let told: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(told["checked"].as_array().unwrap().len(), 16, "{told}");
}

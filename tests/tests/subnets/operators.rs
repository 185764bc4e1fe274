//! The operators' pages of a validator and of a miner over plain sockets, and their commands of the first day.
//! `browser` looks at the pages.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::path::PathBuf;
use std::process::Command;

use muster_testbed::{patience, wait_for};
use muster_tests::{RunningSubnet, run};
use serde_json::Value;

/// A role's operator's address and the file of its token.
pub(crate) struct OperatedRole {
    pub(crate) url: String,
    pub(crate) token: PathBuf,
}

impl OperatedRole {
    pub(crate) fn of(subnet: &RunningSubnet, name: &str) -> Self {
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
            .args(["-sS", "-i", "--max-time", &patience().as_secs().to_string()])
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

pub(crate) fn operators_pages_want_the_token_and_change_nothing(subnet: &RunningSubnet) {
    let validator = OperatedRole::of(subnet, "validator");
    let miner = OperatedRole::of(subnet, "miner");
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
    let body = wait_for("the subnet in numbers", || {
        let (head, body) = validator.curl("/subnet", &PAGE);
        assert!(head.contains("200 ok"), "{head}");
        anyhow::Ok(Some(body).filter(|body| body.contains("always_on.test")))
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
    let running = wait_for("a lease that runs", || {
        let status = status();
        anyhow::Ok(Some(status).filter(|status| status["leases"][0]["state"] == "runs"))
    })
    .unwrap();
    assert_eq!(running["started"]["busy"], 1, "{running}");
    let ended = subnet.muster(&["job", "cancel", &id]).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    wait_for("the end of the lease", || {
        let status = status();
        let mut ended = status["ended"].as_array().into_iter().flatten();
        let is_over = status["leases"] == Value::Array(vec![]) && ended.any(|lease| lease["attempt"] == id);
        anyhow::Ok(is_over.then_some(()))
    })
    .unwrap();
}

/// An account that nobody has funded: the development account `//Ferdie`.
const COLDKEY: &str = "5CiPPseXPECbkjWCa6MnjNokrgYjMqmKndv2rSnekmSK2DjL";

pub(crate) fn a_coldkey_is_funded_on_the_local_chain_and_on_no_other(subnet: &RunningSubnet) {
    let fund = |more: &[&str]| {
        let args = ["wallet", "fund", COLDKEY, "--json"];
        subnet.muster(&[&args[..], more].concat()).unwrap()
    };
    let funded = fund(&["--amount", "0.5"]);
    assert_eq!(funded.code, Some(0), "{funded:?}");
    let told: Value = serde_json::from_str(&funded.stdout).unwrap();
    assert_eq!(
        (&told["sent_rao"], &told["balance_rao"]),
        (&500_000_000.into(), &500_000_000.into()),
        "{told}"
    );
    let facilitator = format!("ws://{}", subnet.field("facilitator").unwrap());
    for (chain, why) in [
        ("ws://192.0.2.1:9944", "not on this machine"),
        ("wss://chain.example:443", "no development chain"),
        (facilitator.as_str(), "does not know the method dev_heads"),
    ] {
        let refused = fund(&["--chain", chain]);
        assert_eq!(refused.code, Some(64), "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}

pub(crate) fn a_route_is_explained_by_the_references_of_a_job(subnet: &RunningSubnet) {
    let args = [
        "job",
        "run",
        "--name",
        "routed",
        subnet.demo_image(),
        "--",
        "words",
    ];
    let ended = subnet.muster(&args).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let by_name = subnet.muster(&["route", "explain", "routed"]).unwrap();
    assert_eq!(by_name.code, Some(0), "{by_name:?}");
    let id = by_name.stdout.split(' ').next().unwrap();
    for reference in [id, &id[..8], "@last"] {
        let explained = subnet.muster(&["route", "explain", reference]).unwrap();
        assert_eq!(explained.stdout, by_name.stdout, "{reference}: {explained:?}");
    }
    let nobody = subnet.muster(&["route", "explain", "nobodys-job"]).unwrap();
    assert!(nobody.stderr.contains("E0053"), "{nobody:?}");
}

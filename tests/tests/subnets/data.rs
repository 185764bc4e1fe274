//! A job's data through a whole subnet: inputs inline, from S3 and from the hub; outputs by PUT and POST to S3. The
//! user is ComputeHorde's own SDK, S3 is moto.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "sections of a test fail as tests do"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use muster_tests::{RunningSubnet, program_from_env, python, sdk_interpreters};
use serde_json::{Value, json};

/// The stores, which end with this.
struct Stores {
    process: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Stores {
    fn start(interpreter: &std::path::Path) -> anyhow::Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/s3_and_hub.py");
        let mut process = Command::new(interpreter)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let missing = || anyhow::anyhow!("a stream is missing");
        Ok(Self {
            ask: process.stdin.take().ok_or_else(missing)?,
            answers: BufReader::new(process.stdout.take().ok_or_else(missing)?),
            process,
        })
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn held(&mut self) -> anyhow::Result<Value> {
        self.ask.write_all(b"held\n")?;
        self.line()
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn inputs_come_from_everywhere_and_outputs_go_where_the_user_signed(subnet: &RunningSubnet) {
    let moto = program_from_env("MUSTER_TEST_MOTO_PYTHON").unwrap();
    let mut stores = Stores::start(&moto).unwrap();
    let places = stores.line().unwrap();
    // An executor is started for each job, and reads this then. The operator must permit servers on this machine.
    let config = subnet.folder().join("config/executor.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    // Its last table permits the facilitator alone.
    let (text, _) = text.split_once("[transfer]").unwrap();
    let kept = subnet.folder().join("inputs");
    let transfer = format!(
        "\n[transfer]\nallow = [\"127.0.0.1\"]\nhub = {}\ncache_dir = {kept:?}\n",
        places["hub"]
    );
    std::fs::write(&config, text.to_owned() + &transfer).unwrap();

    for sdk in sdk_interpreters().unwrap() {
        move_data(subnet, &sdk, &places, &mut stores);
    }
}

fn move_data(subnet: &RunningSubnet, sdk: &Path, places: &Value, stores: &mut Stores) {
    let facilitator = format!("http://{}", subnet.field("facilitator").unwrap());
    let wallets = subnet.folder().join("wallets");
    let ran = python(
        sdk,
        "sdk_moves_data.py",
        &[
            &facilitator,
            subnet.field("validator").unwrap(),
            wallets.to_str().unwrap(),
            "user",
            "default",
            subnet.demo_image(),
            &places.to_string(),
        ],
    )
    .unwrap();
    let logs = || format!("{}\n{}\n{}", ran.stdout, ran.stderr, subnet.log("miner"));
    assert_eq!(ran.code, Some(0), "{}", logs());
    let job: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(job["status"], "completed", "{}", logs());
    let stdout = job["stdout"].as_str().unwrap();
    assert!(
        stdout.starts_with("9 words (3 distinct) in 3 files\n"),
        "inline, fetched and of the hub, without what the pattern leaves out: {stdout}"
    );

    let held = stores.held().unwrap();
    assert_eq!(
        held["printed.txt"],
        json!(stdout),
        "the job's standard output is among its outputs"
    );
    let words: Value = serde_json::from_str(held["words.json"].as_str().unwrap()).unwrap();
    assert_eq!(words["top"][0], json!({"word": "hub", "count": 4}));
    // The answers of the servers, as the SDK reads them.
    let etag = &job["results"]["/output/words.json"]["headers"]["etag"];
    assert!(etag.as_str().is_some_and(|etag| etag.starts_with('"')), "{job}");
    assert!(
        job["results"]["/output/stdout.txt"]["headers"].is_object(),
        "{job}"
    );
}

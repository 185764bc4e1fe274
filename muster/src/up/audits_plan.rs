//! The parts of a local subnet that the demonstration of spot checks adds: a model, a miner that serves it with cheaper
//! weights, and a miner of the validator's own whose machines exist only while they score.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use muster_executor::image_archive::{ArchiveError, ImageArchive, ImageContent, ImageFile};
use muster_identity::Keypair;
use muster_local_subnet::programs::ModelPrograms;
use muster_local_subnet::subnet_folder::Layout;
use muster_protocol::{ImageId, MinerKey, ValidatorKey};
use serde_json::{Value, json};

/// In a demonstration, the seconds for what an idle machine does in a few and a busy one in minutes.
pub(crate) const LONG_S: u64 = 600;
/// The model of the demonstration.
pub(crate) const MODEL: &str = "tiny";
/// The miner that cheats, by the name of its process.
pub(crate) const CHEAT: &str = "miner-2";
/// The validator's own miner, by the name of its process and wallet.
pub(crate) const TRUSTED: &str = "trusted";
/// The validator's own prompts in each bucket, and the longest answer to one, in tokens. Two buckets fill an audit.
/// More prompts would go on in the buckets after it and keep the engines at work for an audit that nobody waits for.
const OWN_PROMPTS: u32 = 20;
const OWN_TOKENS: u32 = 64;
/// The answers of both miners together for which machines are provisioned.
const GATHERED_ANSWERS: u32 = 40;
/// One block in this many draws a batch of grading: a demonstration of a day sees none. A batch counts in the scores of
/// the sixteen times as many blocks after it, so that the capacity that the operator's batch has proven is paid to the
/// end, however long the audits take.
pub(crate) const EVERY_BLOCKS: u64 = 100_000_000;
/// The arguments of the engine in a session.
const ARGUMENTS: [&str; 4] = ["--socket", "/muster/http.sock", "--name", MODEL];
/// Machines of the validator's own miner at once: a reference and the one that confirms it.
const MACHINES: u32 = 2;

/// Starts and ends machines of the validator's own miner, each of them a process here, and notes every call.
const FLEET: &str = r#"set -e
cd "$(dirname "$0")"
echo "$1 $EXECUTOR_NAME" >> calls
if [ "$1" = provision ]; then
    shift
    setsid "$@" < /dev/null > "$EXECUTOR_NAME.log" 2>&1 &
    echo $! > "$EXECUTOR_NAME.pid"
else
    [ -e "$EXECUTOR_NAME.pid" ] || exit 0
    kill -TERM -- "-$(cat "$EXECUTOR_NAME.pid")" 2> /dev/null || true
    while kill -0 -- "-$(cat "$EXECUTOR_NAME.pid")" 2> /dev/null; do sleep 0.1; done
    rm "$EXECUTOR_NAME.pid"
    echo "released $EXECUTOR_NAME" >> calls
fi
"#;

/// The demonstration's part of a subnet.
pub(crate) struct AuditsPlan {
    /// The key of the validator's own miner.
    pub(crate) trusted: Keypair,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The whitelisted image of the model.
    pub(crate) image: ImageId,
    /// The image that the cheating miner's engine runs for it.
    pub(crate) cheating_image: ImageId,
    /// Another build of the engine, which confirms what a reference has found: the machine is the same one here.
    pub(crate) second_image: ImageId,
}

/// The parts of the trusted miner's configuration that it shares with the subnet's other roles.
pub(crate) struct TrustedMinerTerms {
    /// The only validator that it serves.
    pub(crate) validator: ValidatorKey,
    pub(crate) wallet: Value,
    /// The address of its database.
    pub(crate) store: String,
    /// The program and arguments that start an executor.
    pub(crate) executor_command: Vec<PathBuf>,
}

/// The image of an engine with the model.
///
/// # Errors
/// A file of the model cannot be read, or the archive cannot be made.
pub(crate) fn model_image(
    tag: &str,
    program: &std::path::Path,
    programs: &ModelPrograms,
    arguments: &[&str],
) -> anyhow::Result<ImageArchive> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let mut files = vec![ImageFile {
        path: "/muster-llm".to_owned(),
        mode: 0o755,
        contents: read(program)?,
    }];
    for entry in std::fs::read_dir(&programs.folder).context("cannot read the model's folder")? {
        let entry = entry.context("cannot read the model's folder")?;
        files.push(ImageFile {
            path: format!("/model/{}", entry.file_name().to_string_lossy()),
            mode: 0o644,
            contents: read(&entry.path())?,
        });
    }
    let entrypoint = ["/muster-llm", "serve"].iter().chain(arguments);
    let content = ImageContent {
        tag: tag.to_owned(),
        files,
        entrypoint: entrypoint.map(|word| (*word).to_owned()).collect(),
        ..ImageContent::default()
    };
    ImageArchive::new(&content).map_err(|error: ArchiveError| error.into())
}

/// The folder of the script that starts and ends machines, and of the calls that it noted.
pub(crate) fn fleet_folder(layout: &Layout) -> PathBuf {
    layout.data("fleet")
}

/// Writes that script, and the calibration as one of this image.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn write_files(layout: &Layout, programs: &ModelPrograms, image: ImageId) -> anyhow::Result<()> {
    let folder = fleet_folder(layout);
    std::fs::create_dir_all(&folder).context("cannot make the folder of the machines")?;
    // Calls of an earlier run.
    let _ = std::fs::remove_file(folder.join("calls"));
    std::fs::write(folder.join("fleet.sh"), FLEET).context("cannot write the script of the machines")?;
    let text = std::fs::read_to_string(&programs.calibration).context("cannot read the calibration")?;
    let mut calibration: Value = serde_json::from_str(&text).context("the calibration is damaged")?;
    if let Some(stated) = calibration.as_object_mut() {
        stated.insert("engine".to_owned(), json!(image));
    }
    std::fs::write(calibration_file(layout), calibration.to_string()).context("cannot write the calibration")
}

fn calibration_file(layout: &Layout) -> PathBuf {
    layout.data("calibration.json")
}

impl AuditsPlan {
    /// The whitelist's entry of the model.
    pub(crate) fn service(&self) -> Value {
        json!({
            "model": MODEL,
            "image": self.image,
            "engine": "reference",
            "listen": {"socket": "http.sock"},
            "class": "always_on.test",
            "args": ARGUMENTS,
            "input_price": 100_000,
            "output_price": 400_000,
            "input_tokens_per_s": 1_000,
            "output_tokens_per_s": 20,
        })
    }

    /// The validator's sections.
    pub(crate) fn sections(&self, layout: &Layout) -> [(&'static str, Value); 2] {
        let trusted = json!({"hotkey": self.trusted.hotkey().to_string(), "address": self.address});
        let audit = json!({
            "share_ppm": 1_000_000,
            "own_prompts": OWN_PROMPTS,
            "own_tokens": OWN_TOKENS,
            // The demo's blocks are short, and its one audit shall be over soon.
            "own_spread_s": 0,
            "written_prompts": 0,
            "gather_answers": GATHERED_ANSWERS,
            "score_s": LONG_S,
            "calibrations": {MODEL: calibration_file(layout)},
            "second_engines": {MODEL: {"image": self.second_image, "args": ARGUMENTS}},
        });
        [("trusted_miner", trusted), ("audit", audit)]
    }

    /// The configuration of the validator's own miner.
    pub(crate) fn trusted_miner(&self, layout: &Layout, terms: TrustedMinerTerms) -> Value {
        let script = fleet_folder(layout).join("fleet.sh");
        let call = |action: &str| vec!["sh".to_owned(), script.display().to_string(), action.to_owned()];
        let mut provision = call("provision");
        provision.extend(
            terms
                .executor_command
                .iter()
                .map(|part| part.display().to_string()),
        );
        json!({
            "registered": false,
            "validators": [terms.validator],
            "bind": self.address,
            "ready_file": layout.ready(TRUSTED),
            "wallet": terms.wallet,
            "store": terms.store,
            "receipts_dir": layout.data("trusted-receipts"),
            "drain_file": layout.data("trusted-drain"),
            "standing": {"roll": layout.data("trusted-standing")},
            "tls": {"certificate": layout.data("trusted-tls").join("port.pem")},
            "executor": {
                "class": "always_on.test",
                "count": MACHINES,
                "startup_s": LONG_S,
                "provisioned": layout.data("trusted-provisioned"),
                "provision": provision,
                "release": call("release"),
            },
        })
    }

    /// The miner's key as the validator names it.
    pub(crate) fn key(&self) -> MinerKey {
        MinerKey(self.trusted.hotkey())
    }
}

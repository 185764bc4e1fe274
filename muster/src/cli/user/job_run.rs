//! `muster job run`: its options, and the texts below its help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, ValueEnum};
use muster_job_spec::options::{MachineOptions, TermsOptions, duration};
use muster_protocol::{ExecutorClass, JobName, JobReference};

use super::FacilitatorOptions;

/// The line below the short help.
pub(super) const RUN_NOTE: &str = "`muster job run --help` has every option, the exit codes and examples.";

/// Leaves options that few jobs need to `--help`.
pub(super) fn keep_short_help_short(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "dir" | "validator" | "api_key" | "wallets" | "hotkey" => arg.hide_short_help(true),
        _ => arg,
    }
}

/// The text below the whole help.
pub(super) const RUN_EXAMPLES: &str = "Examples:
  muster job run python:3.13-slim -- python -c 'print(6 * 7)'
  echo one two | muster job run -i - python:3.13-slim -- python -c 'import sys; print(sys.stdin.read().upper())'
  muster job run muster/hello:latest --input text.txt=notes.txt -- words
  muster job run python:3.13-slim --input data=./data --output model.bin --timeout 30m -- python /volume/data/train.py
  muster job run --spec job.toml
  muster job run IMAGE --input big.bin=https://host/big.bin --output out.bin='https://bucket/out.bin?X-Amz-Signature=…'

Inputs lie under /volume. Files and folders in /output are delivered where --output says, small files in /artifacts come
back inside the result. A program may write below /output, /volume, /tmp, /var/tmp, /run and its home folder. There is
no network in the container. Ctrl-C cancels the job.

Exit codes:
  the program's own, where the program ended by itself
  124  the job's time limit ended the program
  125  anything else ended the job: the subnet, the facilitator, a lost input, an option that cannot be used
  130  Ctrl-C
  2    the command line cannot be read
A program may use these codes, too: with --json, `exit_code` is the program's own or null, and `fault` names the party.
With --json, an error of the command itself is a line of JSON on standard error: {\"error\": {\"code\", \"message\",
\"exit_code\"}}.";

/// The way in which inputs of this machine travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// Up to 1 MiB inside the request, more through the file store.
    Auto,
    /// Inside the request, up to 8 MiB: every facilitator takes that.
    Inline,
    /// Through the facilitator's file store.
    Store,
}

/// How much of a job is printed as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JsonForm {
    /// Without the contents of inline inputs and the signatures of URLs.
    Short,
    /// All that the facilitator tells.
    Full,
}

/// The options that say what a job is: neither a file that describes a job nor an earlier job has them beside it.
const OF_ONE_JOB: [&str; 32] = [
    "image",
    "registry_user",
    "registry_password_stdin",
    "image_archive",
    "inputs",
    "outputs",
    "env",
    "env_files",
    "class",
    "gpus",
    "memory",
    "workdir",
    "entrypoint",
    "timeout",
    "download_timeout",
    "upload_timeout",
    "on_trusted_miner",
    "image_time_limit",
    "priority",
    "queue_time",
    "metrics",
    "deterministic",
    "checkpoint",
    "every",
    "best",
    "signal",
    "fatal",
    "stall",
    "webhook",
    "artifacts",
    "via",
    "command",
];

/// `muster job run`: the options of every day first, the others under a heading each.
#[derive(Debug, Args)]
pub(crate) struct JobRun {
    /// The image: a name, a name with a digest, or an image id.
    #[arg(required_unless_present_any = ["image_archive", "spec", "again"], conflicts_with = "image_archive")]
    pub(crate) image: Option<String>,
    /// An input: PATH under /volume = a file, a folder or a URL. Repeatable.
    ///
    /// A URL is fetched by the executor. PATH=- is what this command reads from standard input.
    ///
    /// `-i -` gives that to the program's own standard input, and `-i -=SOURCE` a file or a URL.
    ///
    /// Both lie at /volume/stdin, too. Without them the program's standard input is empty.
    #[arg(
        long = "input",
        short = 'i',
        value_name = "PATH=SOURCE",
        allow_hyphen_values = true
    )]
    pub(crate) inputs: Vec<String>,
    /// An output: a file or a folder under /output, fetched here. Repeatable.
    ///
    /// `.` is all of /output, '*.csv' all files that match, 1,000 at most. With a URL it is put there instead, a folder
    /// (`FOLDER/`) as a tar archive.
    ///
    /// No file of yours is overwritten without --force.
    #[arg(long = "output", short = 'o', value_name = "PATH[=URL]")]
    pub(crate) outputs: Vec<String>,
    /// A variable of the environment. Repeatable.
    ///
    /// NAME alone has the value that it has here, and is left out where it is not set.
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// A file of variables, one a line. Repeatable.
    ///
    /// A line is `NAME=VALUE` or `NAME`; empty ones and those that begin with # are passed over. --env goes before it.
    #[arg(long = "env-file", value_name = "FILE")]
    pub(crate) env_files: Vec<PathBuf>,
    /// A name for the job, by which other commands find it.
    ///
    /// A later job of the same name takes it over.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<JobName>,
    /// The kind of executor.
    #[arg(long, default_value = "always_on.test")]
    pub(crate) class: ExecutorClass,
    /// How long the program may run: 90, 90s, 15m, 1h30m.
    ///
    /// Then it gets the signal TERM, and is killed some seconds later.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// The folder for outputs and artifacts.
    ///
    /// Outputs go to the current folder by default, artifacts nowhere.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) save: Option<PathBuf>,
    /// Let results replace files here of other contents.
    #[arg(long)]
    pub(crate) force: bool,
    /// Run an earlier job again.
    ///
    /// With its image, program, inputs, outputs and limits. Only --name, --resume-from and the options that may stand
    /// beside --spec may stand beside it.
    #[arg(long, value_name = "JOB", conflicts_with_all = OF_ONE_JOB)]
    pub(crate) again: Option<JobReference>,
    /// A file that describes the whole job.
    ///
    /// Only --set, --detach, --quiet, --json, --save, --retries, --force and the facilitator's options may stand
    /// beside it.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_ONE_JOB,
        conflicts_with_all = ["name", "again", "resume_from"])]
    pub(crate) spec: Option<PathBuf>,
    /// With --spec: a value in place of the file's. Repeatable.
    ///
    /// KEY is a key of the file, behind its section and a dot: timeout=2h, env.MODE=fast.
    ///
    /// A parameter needs no section: epochs=20.
    #[arg(
        long = "set",
        value_name = "KEY=VALUE",
        requires = "spec",
        hide_short_help = true
    )]
    pub(crate) sets: Vec<String>,
    /// Do not wait: print the job's id.
    #[arg(long, short = 'd')]
    pub(crate) detach: bool,
    /// Print what the program prints, and errors, and nothing else.
    #[arg(long, short = 'q')]
    pub(crate) quiet: bool,
    /// Print the job as JSON when it has ended, and nothing else on stdout.
    ///
    /// `--json=full` has the contents of inline inputs and signed URLs, too.
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true,
        default_missing_value = "short", hide_possible_values = true)]
    pub(crate) json: Option<JsonForm>,
    /// How often to submit it anew if others fail it.
    ///
    /// A job that fails by another's fault than yours before its program has printed anything. The subnet itself tries
    /// several miners before a job fails.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, help_heading = "Limits",
        value_parser = clap::value_parser!(u32).range(0..=10))]
    pub(crate) retries: u32,
    /// How long inputs may take to get there; by default by their size.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Limits", hide_short_help = true)]
    pub(crate) download_timeout: Option<Duration>,
    /// How long outputs may take to be delivered; by default 30s, 5m if there are any.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Limits", hide_short_help = true)]
    pub(crate) upload_timeout: Option<Duration>,
    /// Your user name at the image's registry.
    ///
    /// For an image that not everybody may read.
    #[arg(
        long,
        value_name = "NAME",
        requires = "registry_password_stdin",
        conflicts_with = "image_archive",
        help_heading = "Images",
        hide_short_help = true
    )]
    pub(crate) registry_user: Option<String>,
    /// Read the password for --registry-user from standard input.
    ///
    /// Or a token. Only the job's validator and the miners that are offered the job can read it.
    #[arg(
        long,
        requires = "registry_user",
        help_heading = "Images",
        hide_short_help = true
    )]
    pub(crate) registry_password_stdin: bool,
    /// An image of your own, as `docker save IMAGE > FILE` writes it.
    ///
    /// Also packed by gzip or zstd, or an OCI layout.
    ///
    /// It goes through the facilitator's file store: at most `files.max_file_mib` (16,384), and your account's room,
    /// `files.quota_mib` (20,480).
    ///
    /// An executor takes at most `images.max_mib` (51,200).
    #[arg(long, value_name = "FILE", help_heading = "Images")]
    pub(crate) image_archive: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) terms: TermsOptions,
    #[command(flatten)]
    pub(crate) machine: MachineOptions,
    /// Run it on the trusted miner, if the validator keeps one.
    #[arg(long, help_heading = "Routing")]
    pub(crate) on_trusted_miner: bool,
    /// A URL that the facilitator tells the job's end: a signed POST (see `muster webhook`).
    #[arg(long, value_name = "URL", help_heading = "Routing", hide_short_help = true)]
    pub(crate) webhook: Option<String>,
    /// Folder in the container whose small files come back inside the result.
    ///
    /// At most 1,000 of less than 1,000,000 bytes each, by default 8 MiB together (`artifacts.max_total_mib` of the
    /// executor).
    ///
    /// Standard error names those that were left out.
    #[arg(
        long,
        default_value = "/artifacts",
        value_name = "FOLDER",
        help_heading = "Routing",
        hide_short_help = true
    )]
    pub(crate) artifacts: String,
    /// The way in which inputs of this machine travel.
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        help_heading = "Routing",
        hide_short_help = true
    )]
    pub(crate) via: Via,
    #[command(flatten)]
    pub(crate) access: FacilitatorOptions,
    /// The arguments of the image's entry point.
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

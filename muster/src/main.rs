//! `muster`: every role and every tool of the subnet in one binary. Nothing lives here but parsing, printing, and `up`.

mod chat;
mod cli;
mod doctor;
mod facilitator_access;
mod failure;
mod files;
mod grade;
mod job;
mod job_display;
mod job_inputs;
mod job_text;
mod login;
mod proof;
mod roles;
mod saved_login;
mod subnet;
mod up;
mod validator;
mod wallet;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, Parser as _};
use muster_process::{SharedClock, SystemClock, Tasks};
use muster_protocol::ErrorCode;

use crate::cli::{Cli, Command, Completions};
use crate::failure::{Failure, Result};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = runtime.map_err(Failure::from).and_then(|runtime| {
        let ended = runtime.block_on(run(cli.command));
        // A read of standard input cannot be interrupted; everything that matters has been waited for.
        runtime.shutdown_background();
        ended
    });
    ended.unwrap_or_else(|failure| failure.report())
}

async fn run(command: Command) -> Result<ExitCode> {
    muster_process::tls::install_provider();
    let clock: SharedClock = Arc::new(SystemClock::default());
    let tasks = Tasks::new();
    match command {
        Command::Up(args) => up::run(args, tasks, clock).await,
        Command::Facilitator(args) => roles::facilitator(args, tasks, clock).await,
        Command::Validator(args) => roles::validator(args, tasks, clock).await,
        Command::Miner(args) => roles::miner(args, tasks, clock).await,
        Command::Executor(args) => roles::executor(args, tasks, clock).await,
        Command::Job(command) => job::run(*command, clock).await,
        Command::Subnet(args) => subnet::run(args, clock).await,
        Command::Route(command) => validator::run(command).await,
        Command::Chat(args) => chat::run(args, clock).await,
        Command::Proof(command) => proof::run(command, clock).await,
        Command::Session(command) => proof::sessions(command).await,
        Command::Grade(command) => grade::run(command).await,
        Command::Files(command) => files::run(*command, clock).await,
        Command::Login(args) => login::login(args, clock).await,
        Command::Keys(command) => login::keys(command, clock).await,
        Command::Doctor(args) => doctor::run(args, clock).await,
        Command::Completions(args) => completions(&args),
        Command::Wallet(command) => wallet::run(command),
        Command::Explain { code } => explain(&code),
    }
}

fn completions(args: &Completions) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "muster", &mut script);
    print::raw(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

fn explain(text: &str) -> Result<ExitCode> {
    let found = ErrorCode::ALL
        .iter()
        .find(|code| code.code().eq_ignore_ascii_case(text));
    let Some(code) = found else {
        let known: Vec<_> = ErrorCode::ALL
            .iter()
            .map(|code| format!("{code}  {}", code.title()))
            .collect();
        return Err(Failure::usage(format_args!(
            "no error {text:?}; known are:\n  {}",
            known.join("\n  ")
        )));
    };
    print::raw(code.page());
    Ok(ExitCode::SUCCESS)
}

/// The one place that writes to the terminal. A reader that goes away (`muster … | head`) is no error.
mod print {
    use std::fmt::Arguments;
    use std::io::Write as _;

    /// A line of what was asked for.
    pub(crate) fn line(text: Arguments<'_>) {
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    /// Text of what was asked for, as it is.
    pub(crate) fn raw(text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// A line beside what was asked for.
    pub(crate) fn problem(text: Arguments<'_>) {
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }

    /// Bytes of what was asked for, as they are and at once.
    pub(crate) fn bytes_beside(text: &str) {
        let mut out = std::io::stderr().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// A table of what was asked for, without lines around it.
    pub(crate) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(head);
        for row in rows {
            table.add_row(row);
        }
        for text in table.lines() {
            line(format_args!("{}", text.trim_end()));
        }
    }

    /// A number of bytes as people say it.
    pub(crate) fn size(bytes: u64) -> String {
        indicatif::HumanBytes(bytes).to_string()
    }
}

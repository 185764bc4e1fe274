//! `muster`: every role and every tool of the subnet in one binary. Nothing lives here but commands and `up`.

mod account;
mod audit;
mod backup;
mod chat;
mod cli;
mod completion;
mod doctor;
mod drain;
mod executor_registry;
mod explain;
mod facilitator_access;
mod files;
mod forward;
mod grade;
mod job;
mod job_inputs;
mod login;
mod man_pages;
mod miner_view;
mod proof;
mod proven_exchange;
mod role_config;
mod roles;
mod saved_login;
mod score;
mod served_models;
mod subnet;
mod top;
mod up;
mod validator;
mod wallet;
mod webhook;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use muster_process::{SharedClock, SystemClock, Tasks};
use muster_terminal::{failure, print};

use crate::cli::{Cli, Command, Miner, MinerCommand};
use crate::failure::{Failure, Result};

fn main() -> ExitCode {
    if completion::answer_shell() {
        return ExitCode::SUCCESS;
    }
    let code = match Cli::try_parse() {
        Ok(cli) => run_to_end(cli.command),
        // An error of the arguments goes to standard error; help and version were asked for.
        Err(told) if told.use_stderr() => refuse_arguments(told),
        Err(asked) => {
            print::by(|| asked.print());
            ExitCode::SUCCESS
        }
    };
    print::stdout_failure().unwrap_or(code)
}

/// Prints why the arguments cannot be read, for a command with `--json` as JSON.
fn refuse_arguments(mut told: clap::Error) -> ExitCode {
    let words: Vec<String> = words_of_command().collect();
    cli::explain_in_own_words(&mut told, &words);
    if asks_for_json(words.into_iter()) {
        return Failure::unreadable_arguments(&told.render().to_string()).report(true);
    }
    // Standard error that cannot be written is nothing that could be told.
    let _ = told.print();
    ExitCode::from(u8::try_from(told.exit_code()).unwrap_or(u8::MAX))
}

fn run_to_end(command: Command) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = runtime.map_err(Failure::from).and_then(|runtime| {
        let ended = runtime.block_on(run_while_read(command));
        // A read of standard input cannot be interrupted; everything that matters has been waited for.
        runtime.shutdown_background();
        ended
    });
    ended.unwrap_or_else(|failure| failure.report(asks_for_json(words_of_command())))
}

fn words_of_command() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// Whether one of the options is `--json`: then errors are JSON, too.
fn asks_for_json(args: impl Iterator<Item = String>) -> bool {
    args.take_while(|word| word != "--")
        .any(|word| word == "--json" || word.starts_with("--json="))
}

/// Runs a command. One that follows something for its user ends with its standard output, as `… | head` expects;
/// others finish what they began, and their exit code tells.
async fn run_while_read(command: Command) -> Result<ExitCode> {
    let follows = matches!(command, Command::Job(_) | Command::Chat(_) | Command::Files(_));
    tokio::select! {
        biased;
        ended = run(command) => ended,
        () = print::until_stdout_fails(), if follows => Ok(ExitCode::FAILURE),
    }
}

async fn run(command: Command) -> Result<ExitCode> {
    muster_process::tls::install_provider();
    let clock: SharedClock = Arc::new(SystemClock::default());
    let tasks = Tasks::new();
    match command {
        Command::Up(args) => up::run(args, tasks, clock).await,
        Command::Facilitator(args) => roles::facilitator(args, tasks, clock).await,
        Command::Validator(args) => match args.command {
            Some(command) => validator::operate(command).await,
            None => roles::validator(args.role, tasks, clock).await,
        },
        Command::Miner(Miner {
            command: Some(MinerCommand::Show(args)),
            ..
        }) => miner_view::show(*args, clock).await,
        Command::Miner(args) => roles::miner(args, tasks, clock).await,
        Command::Executor(args) => roles::executor(args, tasks, clock).await,
        Command::Job(command) => job::run(*command, clock).await,
        Command::Subnet(args) => subnet::run(args, clock).await,
        Command::Top(args) => top::run(*args, tasks, clock).await,
        Command::Route(command) => validator::run(command, clock).await,
        Command::Chat(args) => chat::run(args, clock).await,
        Command::Forward(args) => forward::run(args, clock).await,
        Command::Proof(command) => proof::run(command, clock).await,
        Command::Session(command) => proof::sessions(command).await,
        Command::Grade(command) => grade::run(command).await,
        Command::Score(command) => score::run(command).await,
        Command::Audit(command) => audit::run(command).await,
        Command::Simulate(args) => score::run_simulate(&args),
        Command::Files(command) => files::run(*command, clock).await,
        Command::Login(args) => login::login(args, clock).await,
        Command::Keys(command) => login::keys(command, clock).await,
        Command::Webhook(command) => webhook::run(command, clock).await,
        Command::Account(command) => account::run(command, clock).await,
        Command::Doctor(args) => doctor::run(args, clock).await,
        Command::Completions(args) => completion::run(args, clock).await,
        Command::ManPages { folder } => man_pages::write(&folder),
        Command::Backup(args) => backup::backup(args, clock).await,
        Command::Restore(args) => backup::restore(args, clock).await,
        Command::Wallet(command) => wallet::run(command).await,
        Command::Explain { code } => explain::run(&code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_json_where_the_command_is_asked_for_json_and_not_its_program() {
        for (words, expected) in [
            ("muster job run --json alpine", true),
            ("muster job show --json=full @last", true),
            ("muster job run alpine -- --json", false),
            ("muster job run --json-lines", false),
        ] {
            assert_eq!(
                asks_for_json(words.split(' ').map(str::to_owned)),
                expected,
                "{words}"
            );
        }
    }
}

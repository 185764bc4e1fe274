//! `muster account`: what one's account holds, and its deletion.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Context as _;
use muster_process::SharedClock;
use muster_protocol::account_api::AccountView;
use muster_terminal::print;

use crate::cli::Account;
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};

/// `muster account`.
pub(crate) async fn run(command: Account, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Account::Show(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            let view = client.account().await.map_err(client_failure)?;
            if args.json {
                print::line(format_args!("{}", serde_json::to_string(&view)?));
            } else {
                print::line(format_args!("{}", describe(&view)));
            }
        }
        Account::Delete(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            let view = client.account().await.map_err(client_failure)?;
            let typed = match args.confirm {
                Some(typed) => typed,
                None => ask(&view)?,
            };
            if typed.trim() != view.account {
                return Err(Failure::usage(format_args!(
                    "nothing was deleted: the name is not {}",
                    view.account
                )));
            }
            let deleted = client
                .delete_account(&view.account)
                .await
                .map_err(client_failure)?;
            if args.json {
                print::line(format_args!("{}", serde_json::to_string(&deleted)?));
            } else {
                print::line(format_args!("deleted {}", deleted.account));
                for (table, rows) in &deleted.deleted {
                    print::line(format_args!("  {rows} {table}"));
                }
                print::line(format_args!("these stay:"));
                for stays in &deleted.stays {
                    print::line(format_args!("  {stays}"));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(view: &AccountView) -> String {
    format!(
        "account {}: {} jobs ({} open), {} files, {} API keys",
        view.account, view.jobs, view.open_jobs, view.files, view.keys
    )
}

/// Asks for the account's name on the terminal.
fn ask(view: &AccountView) -> Result<String> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format_args!(
            "deleting an account needs its name: --confirm {}",
            view.account
        )));
    }
    print::problem(format_args!(
        "{}\nall of it is deleted and cannot be brought back. Type the account's name to delete it:",
        describe(view)
    ));
    let mut typed = String::new();
    std::io::stdin()
        .read_line(&mut typed)
        .context("cannot read the answer from the terminal")?;
    Ok(typed)
}

//! `muster wallet`: wallet files, and coins of a local chain.

pub(crate) mod fund;

use std::process::ExitCode;

use muster_identity::wallet::{self, ColdkeyStorage, WalletPath};
use muster_protocol::{ErrorCode, Hotkey};
use muster_terminal::print;
use serde::Serialize;

use crate::cli::{Wallet, WalletArgs};
use crate::failure::{Failure, Result};

/// The public part of a wallet.
#[derive(Serialize)]
struct WalletView {
    name: String,
    hotkey_name: String,
    hotkey: Hotkey,
    coldkey: Option<Hotkey>,
    path: String,
}

/// Runs a subcommand of `muster wallet`.
pub(crate) async fn run(command: Wallet) -> Result<ExitCode> {
    let unusable = |error| Failure::new(ErrorCode::WalletUnusable, error);
    let args = match command {
        Wallet::New(args) => {
            let made = wallet::create(&path(&args), ColdkeyStorage::PhraseOnly).map_err(unusable)?;
            if let Some(phrase) = made.coldkey_phrase {
                // Beside the result: whoever pipes the addresses into a file must not pipe the phrase with them.
                print::problem(format_args!(
                    "the coldkey's secret phrase is kept nowhere; write it down:\n  {phrase}"
                ));
            }
            args
        }
        Wallet::Show(args) => args,
        Wallet::Fund(args) => return fund::fund(args).await,
    };
    let path = path(&args);
    let keys = wallet::read_public_keys(&path).map_err(unusable)?;
    let shown = WalletView {
        path: path.hotkey_file().map_err(unusable)?.display().to_string(),
        name: args.name,
        hotkey_name: args.hotkey,
        hotkey: keys.hotkey,
        coldkey: keys.coldkey,
    };
    if args.json {
        print::line(format_args!("{}", serde_json::to_string(&shown)?));
        return Ok(ExitCode::SUCCESS);
    }
    print::line(format_args!("wallet {} hotkey {}", shown.name, shown.hotkey_name));
    print::line(format_args!("  hotkey   {}", shown.hotkey));
    if let Some(coldkey) = shown.coldkey {
        print::line(format_args!("  coldkey  {coldkey}"));
    }
    print::line(format_args!("  file     {}", shown.path));
    Ok(ExitCode::SUCCESS)
}

fn path(args: &WalletArgs) -> WalletPath {
    let root = args.wallets.clone().unwrap_or(WalletPath::default().root);
    WalletPath::new(root, &args.name, &args.hotkey)
}

//! `muster wallet new` and `muster wallet show`.

use std::process::ExitCode;

use muster_identity::wallet::{self, WalletPath};
use muster_protocol::{ErrorCode, Hotkey};
use serde::Serialize;

use crate::cli::{Wallet, WalletArgs};
use crate::door::default_wallets;
use crate::failure::{Failure, Result};
use crate::print;

/// What may be shown of a wallet.
#[derive(Serialize)]
struct Shown {
    name: String,
    hotkey_name: String,
    hotkey: Hotkey,
    path: String,
}

/// Dispatches.
pub(crate) fn run(command: Wallet) -> Result<ExitCode> {
    let unusable = |error| Failure::new(ErrorCode::WalletUnusable, error);
    let (args, hotkey) = match command {
        Wallet::New(args) => {
            let made = wallet::create(&path(&args)).map_err(unusable)?;
            (args, made.0.hotkey())
        }
        Wallet::Show(args) => {
            let key = wallet::load_hotkey(&path(&args)).map_err(unusable)?;
            (args, key.hotkey())
        }
    };
    let shown = Shown {
        path: path(&args).hotkey_file().display().to_string(),
        name: args.name,
        hotkey_name: args.hotkey,
        hotkey,
    };
    if args.json {
        print::line(format_args!("{}", serde_json::to_string(&shown)?));
    } else {
        print::line(format_args!("wallet {} hotkey {}", shown.name, shown.hotkey_name));
        print::line(format_args!("  address {}", shown.hotkey));
        print::line(format_args!("  file    {}", shown.path));
    }
    Ok(ExitCode::SUCCESS)
}

fn path(args: &WalletArgs) -> WalletPath {
    WalletPath {
        root: args.wallets.clone().unwrap_or_else(default_wallets),
        name: args.name.clone(),
        hotkey: args.hotkey.clone(),
    }
}

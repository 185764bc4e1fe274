//! `muster login` and `muster keys`: who one is.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::Context as _;
use muster_client::{ClientError, Credential};
use muster_identity::wallet::WalletPath;
use muster_process::SharedClock;
use muster_protocol::account_api::{ApiKey, CreateKey};
use muster_terminal::{key_text, print};
use reqwest::StatusCode;
use serde::Serialize;
use serde_json::json;

use crate::cli::{Keys, Login};
use crate::facilitator_access::{self, FacilitatorAccess, client_failure};
use crate::failure::{Failure, Result};
use crate::saved_login::SavedLogin;

/// Longer than any key.
const MAX_KEY: u64 = 4_096;

/// `muster login`.
pub(crate) async fn login(mut args: Login, clock: SharedClock) -> Result<ExitCode> {
    if args.forget {
        let was = SavedLogin::forget()?;
        if args.json {
            print::line(format_args!("{}", json!({"forgotten": was})));
        } else {
            let said = if was {
                "forgotten"
            } else {
                "nothing was remembered"
            };
            print::line(format_args!("{said}"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.web {
        return print_web_link(&args, clock).await;
    }
    if args.api_key_stdin {
        let mut key = String::new();
        std::io::stdin()
            .take(MAX_KEY)
            .read_to_string(&mut key)
            .context("cannot read the key from standard input")?;
        if key.trim().is_empty() {
            return Err(Failure::usage("standard input holds no key"));
        }
        args.access.api_key = Some(key.trim().to_owned());
        args.access.wallet.wallet = None;
        args.access.wallet.wallets = None;
    }
    let target = facilitator_access::resolve(&args.access)?;
    let client = target.connect(clock).await?;
    // A hotkey has logged in by now; a key is shown with the first request.
    if let Err(error) = client.jobs(1, 1).await {
        // A key may lack the right to read jobs; every key may see its account.
        let is_forbidden =
            matches!(&error, ClientError::Refused { status, .. } if *status == StatusCode::FORBIDDEN);
        if !is_forbidden {
            return Err(client_failure(error));
        }
        client.account().await.map_err(client_failure)?;
    }
    let remembered = remember(&target);
    let file = remembered.write()?;
    let as_whom = match &target.credential {
        Credential::Hotkey(pair) => format!("hotkey {}", pair.hotkey()),
        Credential::Key(_) => "an API key".to_owned(),
    };
    if args.json {
        let shown = json!({
            "facilitator": remembered.facilitator, "validator": remembered.validator, "as": as_whom, "file": file,
        });
        print::line(format_args!("{shown}"));
    } else {
        print::line(format_args!(
            "logged in at {} with {as_whom}",
            remembered.facilitator
        ));
        if remembered.validator.is_none() {
            print::line(format_args!(
                "  no validator is remembered: jobs need --validator"
            ));
        }
        print::line(format_args!("  remembered in {}", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a link that signs a browser in. Nothing is remembered.
async fn print_web_link(args: &Login, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let link = client.create_web_link().await.map_err(client_failure)?;
    if args.json {
        print::line(format_args!("{}", serde_json::to_string(&link)?));
    } else {
        print::line(format_args!("{}", link.url));
        print::problem(format_args!(
            "open it in a browser before {}; it works once",
            link.expires_at
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn remember(target: &FacilitatorAccess) -> SavedLogin {
    let api_key = match &target.credential {
        Credential::Hotkey(_) => None,
        Credential::Key(key) => Some(key.clone()),
    };
    let wallet = target.wallet.as_ref().map(|path| WalletPath {
        // Commands run in other folders later.
        root: path.root.canonicalize().unwrap_or_else(|_| path.root.clone()),
        name: path.name.clone(),
        hotkey: path.hotkey.clone(),
    });
    SavedLogin {
        facilitator: target.facilitator.clone(),
        validator: target.validator,
        api_key,
        wallet,
    }
}

/// A key that was made, with the URL of the facilitator that takes it.
#[derive(Serialize)]
struct MadeKey<'a> {
    #[serde(flatten)]
    key: &'a ApiKey,
    facilitator: &'a str,
}

/// `muster keys`.
pub(crate) async fn keys(command: Keys, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Keys::New(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            let new = CreateKey {
                name: args.name,
                account: args.account,
                rights: (!args.rights.is_empty()).then_some(args.rights),
                days: args.days,
            };
            let made = client.create_key(&new).await.map_err(client_failure)?;
            let is_bound = new.rights.is_some() || new.days.is_some();
            if is_bound && made.rights.is_empty() {
                // An older facilitator made a key that may do everything and never ends.
                client.revoke_key(&made.id).await.map_err(client_failure)?;
                return Err(Failure::usage(
                    "the facilitator is too old for --rights and --days; the key that it made was revoked",
                ));
            }
            if args.json {
                let made = MadeKey {
                    key: &made,
                    facilitator: client.base(),
                };
                print::line(format_args!("{}", serde_json::to_string(&made)?));
            } else {
                print::line(format_args!("{}", made.key.as_deref().unwrap_or_default()));
                print::problem(format_args!(
                    "key {} ({}) opens the account {} at {}{}; it is shown this once, keep it like a password",
                    made.id,
                    made.name,
                    made.account,
                    client.base(),
                    key_text::bounds(&made)
                ));
            }
        }
        Keys::Ls(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            let keys = client.keys().await.map_err(client_failure)?;
            if args.json {
                print::line(format_args!("{}", serde_json::to_string(&keys)?));
            } else {
                let row = |key: &ApiKey| {
                    let (id, name, account) = (key.id.clone(), key.name.clone(), key.account.clone());
                    let ends = key.expires_at.map(|end| end.to_string()).unwrap_or_default();
                    vec![
                        id,
                        name,
                        account,
                        key_text::rights(key),
                        key.created_at.to_string(),
                        ends,
                    ]
                };
                let columns = ["id", "name", "account", "rights", "made", "ends"];
                print::table(&columns, keys.iter().map(row));
            }
        }
        Keys::Rm(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            client.revoke_key(&args.id).await.map_err(client_failure)?;
            if args.json {
                print::line(format_args!("{}", json!({"revoked": args.id})));
            } else {
                print::line(format_args!("revoked {}", args.id));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

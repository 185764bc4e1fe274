//! `muster login` and `muster keys`: who one is.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use muster_client::Credential;
use muster_identity::wallet::WalletPath;
use muster_process::SharedClock;
use muster_protocol::ValidatorKey;
use muster_protocol::rest::{ApiKey, CreateKey};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::{Keys, Login};
use crate::door::{self, Target, failed};
use crate::failure::{Failure, Result};
use crate::print;

/// Longer than any key.
const MAX_KEY: u64 = 4_096;

/// What `muster login` keeps: `login.toml` in this user's configuration folder, which nobody else may read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// URL, without a slash at the end.
    pub(crate) facilitator: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) validator: Option<ValidatorKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) api_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// Which wallet signs; its key stays in its own file.
    pub(crate) wallet: Option<WalletPath>,
}

// === impl Remembered ===

impl Remembered {
    fn file() -> anyhow::Result<PathBuf> {
        let own = std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty());
        let folder = match own {
            Some(folder) => PathBuf::from(folder),
            None => {
                PathBuf::from(std::env::var_os("HOME").context("neither XDG_CONFIG_HOME nor HOME is set")?)
                    .join(".config")
            }
        };
        Ok(folder.join("muster").join("login.toml"))
    }

    /// What was remembered; `None` if nothing was.
    pub(crate) fn read() -> anyhow::Result<Option<Self>> {
        // A user without a home has nothing remembered.
        let Ok(file) = Self::file() else { return Ok(None) };
        match fs::read_to_string(&file) {
            Ok(text) => {
                let known = toml::from_str(&text).with_context(|| {
                    format!(
                        "{} is damaged; `muster login --forget` removes it",
                        file.display()
                    )
                })?;
                Ok(Some(known))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Keeps it, in one step.
    fn write(&self) -> anyhow::Result<PathBuf> {
        let file = Self::file()?;
        let folder = file.parent().context("no folder")?;
        let mut make = fs::DirBuilder::new();
        make.recursive(true).mode(0o700);
        make.create(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.as_file().set_permissions(fs::Permissions::from_mode(0o600))?;
        new.write_all(toml::to_string(self)?.as_bytes())?;
        new.persist(&file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    fn forget() -> anyhow::Result<bool> {
        let file = Self::file()?;
        match fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot remove {}", file.display())),
        }
    }
}

/// `muster login`.
pub(crate) async fn login(mut args: Login, clock: SharedClock) -> Result<ExitCode> {
    if args.forget {
        let was = Remembered::forget()?;
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
    if args.api_key_stdin {
        let mut key = String::new();
        std::io::stdin()
            .take(MAX_KEY)
            .read_to_string(&mut key)
            .context("cannot read the key from standard input")?;
        if key.trim().is_empty() {
            return Err(Failure::usage("standard input holds no key"));
        }
        args.door.api_key = Some(key.trim().to_owned());
        args.door.wallet.wallet = None;
        args.door.wallet.wallets = None;
    }
    let target = door::open(&args.door)?;
    let client = target.connect(clock).await?;
    // A hotkey has logged in by now; a key is shown with the first request.
    client.jobs(1, 1).await.map_err(failed)?;
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

fn remember(target: &Target) -> Remembered {
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
    Remembered {
        facilitator: target.facilitator.clone(),
        validator: target.validator,
        api_key,
        wallet,
    }
}

/// `muster keys`.
pub(crate) async fn keys(command: Keys, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Keys::New(args) => {
            let client = door::open(&args.door)?.connect(clock).await?;
            let new = CreateKey {
                name: args.name,
                account: args.account,
            };
            let made = client.create_key(&new).await.map_err(failed)?;
            if args.json {
                print::line(format_args!("{}", serde_json::to_string(&made)?));
            } else {
                print::line(format_args!("{}", made.key.as_deref().unwrap_or_default()));
                print::problem(format_args!(
                    "key {} ({}) opens the account {}; it is shown this once, keep it like a password",
                    made.id, made.name, made.account
                ));
            }
        }
        Keys::Ls(args) => {
            let client = door::open(&args.door)?.connect(clock).await?;
            let keys = client.keys().await.map_err(failed)?;
            if args.json {
                print::line(format_args!("{}", serde_json::to_string(&keys)?));
            } else {
                let row = |key: &ApiKey| {
                    let (id, name, account) = (key.id.clone(), key.name.clone(), key.account.clone());
                    vec![id, name, account, key.created_at.to_string()]
                };
                print::table(&["id", "name", "account", "made"], keys.iter().map(row));
            }
        }
        Keys::Rm(args) => {
            let client = door::open(&args.door)?.connect(clock).await?;
            client.revoke_key(&args.id).await.map_err(failed)?;
            if args.json {
                print::line(format_args!("{}", json!({"revoked": args.id})));
            } else {
                print::line(format_args!("revoked {}", args.id));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

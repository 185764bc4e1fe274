//! Whom a user's command talks to, and as whom: its own options first, then the local subnet of this folder, then what
//! `muster login` remembered.

use std::path::PathBuf;

use muster_client::{Client, Credential};
use muster_identity::wallet::{self, WalletPath};
use muster_process::{Coded as _, SharedClock};
use muster_protocol::{ErrorCode, ValidatorKey};

use crate::cli::user::{Door, WalletName};
use crate::failure::{Failure, Result};
use crate::saved_login::Remembered;
use crate::up::state::Subnet;

/// Everything that a user's command may know.
pub(crate) struct Target {
    /// URL of the facilitator.
    pub(crate) facilitator: String,
    /// Who routes jobs, if anything says so.
    pub(crate) validator: Option<ValidatorKey>,
    /// In whose name.
    pub(crate) credential: Credential,
    /// The wallet that it came from.
    pub(crate) wallet: Option<WalletPath>,
}

/// Puts the options together.
pub(crate) fn open(door: &Door) -> Result<Target> {
    let subnet = Subnet::read(&door.dir)?;
    let remembered = Remembered::read()?;
    let facilitator = door
        .facilitator
        .clone()
        .or_else(|| subnet.as_ref().map(Subnet::facilitator_url))
        .or_else(|| remembered.as_ref().map(|known| known.facilitator.clone()))
        .ok_or_else(|| {
            nobody(format_args!(
                "no facilitator: give --facilitator URL, log in with `muster login`, or run `muster up` here first ({} has no \
                 subnet)",
                door.dir.display()
            ))
        })?;
    let facilitator = facilitator.trim_end_matches('/').to_owned();
    // A key is shown to nobody but the facilitator that it was remembered for.
    let remembered = remembered.filter(|known| known.facilitator == facilitator);
    let subnet = subnet.filter(|subnet| subnet.facilitator_url() == facilitator);
    let validator = door
        .validator
        .or_else(|| subnet.as_ref().map(|subnet| subnet.validator))
        .or_else(|| remembered.as_ref().and_then(|known| known.validator));
    let (credential, wallet) = credential(door, subnet.as_ref(), remembered.as_ref())?;
    Ok(Target {
        facilitator,
        validator,
        credential,
        wallet,
    })
}

impl Target {
    /// Connects.
    pub(crate) async fn connect(&self, clock: SharedClock) -> Result<Client> {
        Client::connect(&self.facilitator, self.credential.clone(), clock)
            .await
            .map_err(failed)
    }

    /// Who routes jobs; a job must name one.
    pub(crate) fn router(&self) -> Result<ValidatorKey> {
        self.validator.ok_or_else(|| {
            Failure::usage(
                "no validator to route the job: give --validator ADDRESS, or have it remembered: `muster login --validator \
                 ADDRESS`; the facilitator's operator knows the addresses",
            )
        })
    }
}

/// A client's error with its code.
pub(crate) fn failed(error: muster_client::ClientError) -> Failure {
    Failure::coded(error.code(), error)
}

fn nobody(message: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::NotLoggedIn, anyhow::anyhow!("{message}"))
}

fn credential(
    door: &Door,
    subnet: Option<&Subnet>,
    remembered: Option<&Remembered>,
) -> Result<(Credential, Option<WalletPath>)> {
    let signing = |path: WalletPath| {
        let pair =
            wallet::load_hotkey(&path).map_err(|error| Failure::new(ErrorCode::WalletUnusable, error))?;
        Ok((Credential::hotkey(pair), Some(path)))
    };
    let named = door.wallet.wallet.is_some() || door.wallet.wallets.is_some();
    if named {
        return signing(wallet_path(&door.wallet, subnet));
    }
    if let Some(key) = &door.api_key {
        return Ok((Credential::key(key.trim()), None));
    }
    if subnet.is_some() {
        return signing(wallet_path(&door.wallet, subnet));
    }
    if let Some(known) = remembered {
        if let Some(key) = &known.api_key {
            return Ok((Credential::key(key.as_str()), None));
        }
        if let Some(wallet) = &known.wallet {
            return signing(wallet.clone());
        }
    }
    let usual = wallet_path(&door.wallet, None);
    if usual.hotkey_file().is_ok_and(|file| file.exists()) {
        return signing(usual);
    }
    Err(nobody(
        "nobody is logged in: `muster login`, or set MUSTER_API_KEY, or name a wallet with --wallet",
    ))
}

fn wallet_path(name: &WalletName, subnet: Option<&Subnet>) -> WalletPath {
    let official = WalletPath::default();
    let local = subnet.filter(|_| name.wallets.is_none());
    let named: Option<PathBuf> = name
        .wallets
        .clone()
        .or_else(|| local.map(|subnet| subnet.wallets.clone()));
    let owner = if local.is_some() { "user" } else { &official.name };
    WalletPath::new(
        named.unwrap_or(official.root),
        name.wallet.as_deref().unwrap_or(owner),
        &name.hotkey,
    )
}

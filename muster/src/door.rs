//! Whom a user's command talks to: its own options first, then the local subnet of this folder.

use muster_identity::Keypair;
use muster_identity::wallet::WalletPath;
use muster_protocol::{ErrorCode, ValidatorKey};

use crate::cli::{Door, WalletName};
use crate::failure::{Failure, Result};
use crate::up::state::Subnet;

/// Everything a user's command needs to know.
pub(crate) struct Target {
    /// URL of the facilitator.
    pub(crate) facilitator: String,
    /// Who routes jobs.
    pub(crate) validator: ValidatorKey,
    /// The user's key.
    pub(crate) user: Keypair,
}

/// Puts the options together.
pub(crate) fn open(door: &Door) -> Result<Target> {
    let subnet = Subnet::read(&door.dir)?;
    let from_subnet = |what: &str| {
        Failure::usage(format_args!(
            "no {what}: give --{what}, or run `muster up` here first ({} has no subnet)",
            door.dir.display()
        ))
    };
    let facilitator = door
        .facilitator
        .clone()
        .or_else(|| subnet.as_ref().map(|s| s.facilitator_url()))
        .ok_or_else(|| from_subnet("facilitator"))?;
    let validator = door
        .validator
        .or_else(|| subnet.as_ref().map(|s| s.validator))
        .ok_or_else(|| from_subnet("validator"))?;
    let path = wallet_path(&door.wallet, subnet.as_ref());
    let user = muster_identity::wallet::load_hotkey(&path)
        .map_err(|error| Failure::new(ErrorCode::WalletUnusable, error))?;
    Ok(Target {
        facilitator,
        validator,
        user,
    })
}

fn wallet_path(name: &WalletName, subnet: Option<&Subnet>) -> WalletPath {
    let official = WalletPath::default();
    let local = subnet.filter(|_| name.wallets.is_none());
    let named = name
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

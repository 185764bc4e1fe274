//! The facilitator and the identity of a user's command: its own options first, then the local subnet of this folder,
//! then the saved login.

use std::path::PathBuf;

use muster_client::{Client, ClientError, Credential, FacilitatorUrl};
use muster_identity::wallet::{self, WalletPath};
use muster_process::{Coded as _, SharedClock};
use muster_protocol::{ErrorCode, ValidatorKey};

use crate::cli::user::{FacilitatorOptions, WalletName};
use crate::failure::{Failure, Result};
use crate::saved_login::SavedLogin;
use muster_local_subnet::subnet_folder::LocalSubnet;

/// Everything that a user's command may know.
pub(crate) struct FacilitatorAccess {
    /// URL of the facilitator.
    pub(crate) facilitator: FacilitatorUrl,
    /// The validator that routes jobs, if one is named anywhere.
    pub(crate) validator: Option<ValidatorKey>,
    /// The credential of the user.
    pub(crate) credential: Credential,
    /// The wallet that it came from.
    pub(crate) wallet: Option<WalletPath>,
    /// The folder of the local subnet whose facilitator it is.
    pub(crate) local: Option<PathBuf>,
}

/// Puts the options together.
pub(crate) fn resolve(options: &FacilitatorOptions) -> Result<FacilitatorAccess> {
    let subnet = LocalSubnet::read(&options.dir)?;
    let remembered = SavedLogin::read()?;
    let of_subnet = subnet.as_ref().map(|subnet| subnet.facilitator_url().parse());
    let of_subnet: Option<FacilitatorUrl> = of_subnet.transpose().map_err(anyhow::Error::from)?;
    let facilitator = options
        .facilitator
        .clone()
        .or_else(|| of_subnet.clone())
        .or_else(|| remembered.as_ref().map(|known| known.facilitator.clone()))
        .ok_or_else(|| {
            not_logged_in(format_args!(
                "no facilitator: give --facilitator URL, log in with `muster login`, or run `muster up` here first ({} has no \
                 subnet; --dir or MUSTER_DIR names the folder of one elsewhere)",
                options.dir.display()
            ))
        })?;
    // A key is shown only to the facilitator that it was saved for.
    let remembered = remembered.filter(|known| known.facilitator == facilitator);
    let subnet = subnet.filter(|_| of_subnet.as_ref() == Some(&facilitator));
    let validator = options
        .validator
        .or_else(|| subnet.as_ref().map(|subnet| subnet.validator))
        .or_else(|| remembered.as_ref().and_then(|known| known.validator));
    let (credential, wallet) = credential(options, subnet.as_ref(), remembered.as_ref())?;
    let local = subnet.is_some().then(|| options.dir.clone());
    Ok(FacilitatorAccess {
        facilitator,
        validator,
        credential,
        wallet,
        local,
    })
}

impl FacilitatorAccess {
    /// Connects to the facilitator and logs in.
    pub(crate) async fn connect(&self, clock: SharedClock) -> Result<Client> {
        Client::connect(self.facilitator.as_str(), self.credential.clone(), clock)
            .await
            .map_err(|error| match (&error, &self.local) {
                (ClientError::Unreachable { .. }, Some(folder)) => Failure::coded(
                    error.code(),
                    anyhow::Error::new(error).context(format!(
                        "the subnet of {} does not run, or is not ready yet; `muster up` starts it",
                        folder.display()
                    )),
                ),
                _ => client_failure(error),
            })
    }
}

/// A client's error with its code.
pub(crate) fn client_failure(error: muster_client::ClientError) -> Failure {
    Failure::coded(error.code(), error)
}

fn not_logged_in(message: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::NotLoggedIn, anyhow::anyhow!("{message}"))
}

fn credential(
    options: &FacilitatorOptions,
    subnet: Option<&LocalSubnet>,
    remembered: Option<&SavedLogin>,
) -> Result<(Credential, Option<WalletPath>)> {
    let signing = |path: WalletPath| {
        let pair =
            wallet::load_hotkey(&path).map_err(|error| Failure::new(ErrorCode::WalletUnusable, error))?;
        Ok((Credential::hotkey(pair), Some(path)))
    };
    let named = options.wallet.wallet.is_some() || options.wallet.wallets.is_some();
    if named {
        return signing(wallet_path(&options.wallet, subnet));
    }
    if let Some(key) = &options.api_key {
        return Ok((Credential::key(key.trim()), None));
    }
    if subnet.is_some() {
        return signing(wallet_path(&options.wallet, subnet));
    }
    if let Some(known) = remembered {
        if let Some(key) = &known.api_key {
            return Ok((Credential::key(key.as_str()), None));
        }
        if let Some(wallet) = &known.wallet {
            return signing(wallet.clone());
        }
    }
    let usual = wallet_path(&options.wallet, None);
    if usual.hotkey_file().is_ok_and(|file| file.exists()) {
        return signing(usual);
    }
    Err(not_logged_in(
        "nobody is logged in: `muster login`, or set MUSTER_API_KEY, or name a wallet with --wallet",
    ))
}

fn wallet_path(name: &WalletName, subnet: Option<&LocalSubnet>) -> WalletPath {
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

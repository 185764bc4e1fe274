//! `muster wallet fund`: coins of a local development chain, from its account whose key everybody knows.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use muster_chain::ChainClient;
use muster_identity::Keypair;
use muster_identity::wallet::WalletPath;
use muster_local_subnet::subnet_folder::LocalSubnet;
use muster_protocol::{ErrorCode, Hotkey, Rao};
use muster_terminal::print;
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use crate::cli::WalletFund;
use crate::failure::{Failure, Result};

/// The account of every development chain, whose key is published. `muster up` gives it a million TAO.
pub(crate) const WELL_KNOWN: &str = "//Alice";
/// The time limit of the question whether it is a development chain.
const PATIENCE: Duration = Duration::from_secs(10);
/// The rao of a TAO.
const TAO: u64 = 1_000_000_000;

/// Sends coins to a coldkey.
pub(crate) async fn fund(args: WalletFund) -> Result<ExitCode> {
    let url = match args.chain {
        Some(url) => url,
        None => local_chain(&args.dir)?,
    };
    let asked = development_chain(&url)?;
    let to = coldkey(&args.whom, args.wallets)?;
    require_development_chain(&url, asked).await?;
    let unreachable = |error: muster_chain::ChainError| Failure::coded(error.code(), error);
    let chain = ChainClient::connect(&url).await.map_err(unreachable)?;
    let from = Keypair::from_uri(WELL_KNOWN).context("the well-known account has no key")?;
    let sent = chain
        .transfer(&from, &to, args.amount)
        .await
        .map_err(unreachable)?;
    let balance = chain.balance(&to).await.map_err(unreachable)?;
    if args.json {
        let told = json!({ "coldkey": to, "sent_rao": sent.amount.0, "block": sent.block.0, "balance_rao": balance.0 });
        print::line(format_args!("{told}"));
        return Ok(ExitCode::SUCCESS);
    }
    print::line(format_args!(
        "{to} got {} TAO in block {} and has {} TAO",
        tao(sent.amount),
        sent.block.0,
        tao(balance)
    ));
    Ok(ExitCode::SUCCESS)
}

fn local_chain(folder: &std::path::Path) -> Result<String> {
    let subnet = LocalSubnet::read(folder)?;
    subnet.map(|subnet| subnet.chain_url()).ok_or_else(|| {
        Failure::usage(format_args!(
            "no chain: run `muster up` here first, or name its folder with --dir ({} has no subnet)",
            folder.display()
        ))
    })
}

/// The address at which the chain's own methods are asked, if the chain is one of this machine.
fn development_chain(url: &str) -> Result<Url> {
    let refused = |why: &str| {
        Failure::usage(format_args!(
            "{url} {why}: only the development chain of `muster up` has an account whose key everybody knows. On \
             another chain the owner of the coldkey buys or is sent TAO"
        ))
    };
    let mut asked = Url::parse(url).map_err(|_| refused("is no address of a chain, ws://HOST:PORT"))?;
    if asked.scheme() != "ws" {
        return Err(refused(
            "is no development chain, which has an address ws://HOST:PORT",
        ));
    }
    let host = asked.host_str().unwrap_or_default();
    let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    if host != "localhost" && !ip.is_some_and(|ip| ip.is_loopback()) {
        return Err(refused("is not on this machine"));
    }
    asked
        .set_scheme("http")
        .map_err(|()| refused("cannot be asked"))?;
    Ok(asked)
}

/// Asks for a method that only a development chain has.
async fn require_development_chain(url: &str, asked: Url) -> Result {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?;
    let question = json!({ "jsonrpc": "2.0", "id": 1, "method": "dev_heads", "params": [] });
    let answer = client.post(asked).json(&question).send().await;
    let answer = answer.map_err(|error| {
        let error = anyhow::Error::new(error.without_url()).context(format!("no chain answers at {url}"));
        Failure::new(ErrorCode::ChainUnreachable, error)
    })?;
    let body: Value = answer.json().await.unwrap_or_default();
    if body.get("result").is_some_and(Value::is_object) {
        return Ok(());
    }
    Err(Failure::usage(format_args!(
        "the chain at {url} is no development chain: it does not know the method dev_heads. Nothing was sent"
    )))
}

/// The account that an ss58 address is, or the coldkey of a wallet by its name.
fn coldkey(whom: &str, wallets: Option<std::path::PathBuf>) -> Result<Hotkey> {
    #[derive(Deserialize)]
    struct PublicKey {
        #[serde(rename = "ss58Address")]
        address: Hotkey,
    }
    if let Ok(address) = whom.parse() {
        return Ok(address);
    }
    let official = WalletPath::default();
    let path = WalletPath::new(wallets.unwrap_or(official.root), whom, official.hotkey);
    let unusable = |error: anyhow::Error| Failure::new(ErrorCode::WalletUnusable, error);
    let file = path.coldkeypub_file().map_err(|error| unusable(error.into()))?;
    let text = std::fs::read_to_string(&file).with_context(|| {
        format!(
            "{whom} is neither an ss58 address nor a wallet: cannot read {}, the public part of its coldkey",
            file.display()
        )
    });
    let key: PublicKey = serde_json::from_str(&text.map_err(unusable)?)
        .with_context(|| format!("{} holds no public key", file.display()))
        .map_err(unusable)?;
    Ok(key.address)
}

/// An amount in TAO, exactly.
fn tao(amount: Rao) -> String {
    let (whole, part) = (amount.0 / TAO, amount.0 % TAO);
    let part = format!("{part:09}");
    match part.trim_end_matches('0') {
        "" => whole.to_string(),
        part => format!("{whole}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_chain_of_this_machine_is_asked() {
        for (url, asked) in [
            ("ws://127.0.0.1:9944", "http://127.0.0.1:9944/"),
            ("ws://localhost:9944", "http://localhost:9944/"),
            ("ws://[::1]:9944", "http://[::1]:9944/"),
        ] {
            assert_eq!(development_chain(url).unwrap().as_str(), asked);
        }
        for (url, why) in [
            (
                "wss://entrypoint-finney.opentensor.ai:443",
                "no development chain",
            ),
            ("ws://192.168.1.7:9944", "not on this machine"),
            ("ws://localhost.example:9944", "not on this machine"),
            ("finney", "no address of a chain"),
        ] {
            let refused = development_chain(url).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains(url), "{refused}");
        }
    }

    #[test]
    fn a_coldkey_is_named_by_its_address_or_by_its_wallet() {
        let key = Keypair::from_uri(WELL_KNOWN).unwrap().hotkey();
        assert_eq!(coldkey(&key.to_string(), None).unwrap(), key);
        let folder = tempfile::tempdir().unwrap();
        let wallets = || Some(folder.path().to_owned());
        let missing = coldkey("mine", wallets()).unwrap_err().to_string();
        assert!(
            missing.contains("neither an ss58 address nor a wallet"),
            "{missing}"
        );
        std::fs::create_dir(folder.path().join("mine")).unwrap();
        let public = json!({ "ss58Address": key, "accountId": "0x00" });
        std::fs::write(folder.path().join("mine/coldkeypub.txt"), public.to_string()).unwrap();
        assert_eq!(coldkey("mine", wallets()).unwrap(), key);
    }

    #[test]
    fn amounts_are_printed_exactly() {
        for (rao, text) in [(0, "0"), (TAO, "1"), (1_500_000_000, "1.5"), (1, "0.000000001")] {
            assert_eq!(tao(Rao(rao)), text);
        }
    }
}

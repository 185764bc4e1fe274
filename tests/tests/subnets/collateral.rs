//! Collateral end to end: a validator's process, a local chain, a real EVM, and the operator's commands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use alloy_primitives::keccak256;
use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k256::ecdsa::SigningKey;
use muster_chain::{BlockNumber, ChainClient, ChainError, EvmAssociation, Netuid, Rao, Uid};
use muster_collateral::{
    CollateralSource, Deposit, Evidence, EvmAddress, EvmCollateral, EvmDirectory, EvmSettings, MinerAccount,
    SlashEnd, SlashOrder,
};
use muster_identity::Keypair;
use muster_identity::wallet::{ColdkeyStorage, WalletPath, create};
use muster_process::SystemClock;
use muster_protocol::{Hotkey, MinerKey};
use muster_testbed::{patience, wait_for};
use muster_tests::{Output, RunningChain, RunningEvm, muster, run};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const NETUID: Netuid = Netuid(1);
const TAO: u64 = 1_000_000_000;
/// A hundredth of a TAO, which the validators here ask for, in rao.
const REQUIRED: u64 = 10_000_000;

/// A validator's process on a chain with four miners: One and Two have the same coldkey, Three and Four each their own.
struct Rig {
    runtime: Runtime,
    chain: RunningChain,
    client: Arc<ChainClient>,
    folder: tempfile::TempDir,
    validator: Option<Child>,
    /// The validator's hotkey.
    hotkey: Keypair,
    /// The hotkey of the collateral account.
    account: Keypair,
}

fn key(name: &str) -> Result<Keypair> {
    Ok(Keypair::from_uri(&format!("//{name}"))?)
}

fn wallet(folder: &Path, name: &str) -> WalletPath {
    WalletPath {
        root: folder.join("wallets"),
        name: name.to_owned(),
        hotkey: "default".to_owned(),
    }
}

impl Rig {
    fn new() -> Result<Self> {
        muster_process::tls::install_provider();
        let folder = tempfile::tempdir()?;
        let made = |name| create(&wallet(folder.path(), name), ColdkeyStorage::PhraseOnly);
        let (hotkey, account) = (made("validator")?.hotkey, made("collateral")?.hotkey);
        let neuron = |hotkey: Hotkey, coldkey: Hotkey, permit: bool| {
            json!({ "netuid": NETUID.0, "hotkey": hotkey.to_string(), "coldkey": coldkey.to_string(),
                    "stake": 1_000 * TAO, "permit": permit })
        };
        let miner =
            |name: &str, cold: &str| anyhow::Ok(neuron(key(name)?.hotkey(), key(cold)?.hotkey(), false));
        let spec = json!({
            "stake_threshold": TAO,
            "subnets": [{ "netuid": NETUID.0, "tempo": 1_000 }],
            "balances": {
                key("Cold")?.hotkey().to_string(): 100 * TAO,
                account.hotkey().to_string(): TAO,
            },
            "neurons": [
                neuron(hotkey.hotkey(), hotkey.hotkey(), true),
                miner("One", "Cold")?, miner("Two", "Cold")?, miner("Three", "Cold3")?, miner("Four", "Cold4")?,
            ],
        });
        let path = folder.path().join("spec.json");
        std::fs::write(&path, spec.to_string())?;
        let path = path.to_str().context("a path in UTF-8")?;
        let chain = RunningChain::start(&["--block-time-ms", "100", "--spec", path])?;
        let runtime = Runtime::new()?;
        let client = runtime.block_on(ChainClient::connect(chain.url()))?;
        Ok(Self {
            runtime,
            chain,
            client,
            folder,
            validator: None,
            hotkey,
            account,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the validator with this section `[collateral]`.
    fn start(&mut self, collateral: &str) -> Result<()> {
        let _ = std::fs::remove_file(self.path("ready.json"));
        let shown = |name: &str| self.path(name).display().to_string();
        let config = format!(
            r#"
bind = "127.0.0.1:0"
ready_file = "{ready}"
operator_token = "{token}"
store = "sqlite:{store}"
[wallet]
root = "{wallets}"
name = "validator"
hotkey = "default"
[chain]
url = "{url}"
[facilitator]
url = "ws://127.0.0.1:9/ws/v0/"
{collateral}
"#,
            ready = shown("ready.json"),
            token = shown("operator.token"),
            store = shown("validator.db"),
            wallets = shown("wallets"),
            url = self.chain.url(),
        );
        std::fs::write(self.path("validator.toml"), config)?;
        let log = std::fs::File::create(self.path("validator.log"))?;
        let validator = Command::new(muster()?)
            .args(["validator", "--config"])
            .arg(self.path("validator.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.validator = Some(validator);
        wait_for("the validator", || anyhow::Ok(self.address().ok())).map(drop)
    }

    fn address(&self) -> Result<String> {
        let ready: Value = serde_json::from_slice(&std::fs::read(self.path("ready.json"))?)?;
        Ok(ready
            .get("address")
            .and_then(Value::as_str)
            .context("an address")?
            .to_owned())
    }

    /// Kills the validator, as a power cut does.
    fn kill(&mut self) -> Result<()> {
        if let Some(mut validator) = self.validator.take() {
            validator.kill()?;
            validator.wait()?;
        }
        Ok(())
    }

    /// Runs a command of the operator.
    fn operate(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(muster()?);
        command
            .arg("validator")
            .args(args)
            .args(["--state", &self.address()?]);
        run(&mut command)
    }

    fn slash(&self, miner: &str, amount: &str, evidence: &str) -> Result<Output> {
        let (miner, token) = (key(miner)?.hotkey().to_string(), self.path("operator.token"));
        let evidence = self.path(evidence);
        let (token, evidence) = (
            token.to_str().context("UTF-8")?,
            evidence.to_str().context("UTF-8")?,
        );
        let url = "https://example.org/evidence";
        self.operate(&[
            "slash",
            &miner,
            "--amount",
            amount,
            "--evidence",
            evidence,
            "--url",
            url,
            "--token-file",
            token,
            "--yes",
            "--json",
        ])
    }

    /// A miner as the validator shows it: its deposit in rao, `null` if it has none, and the verdict.
    fn shown(&self, miner: &str) -> Result<(Value, String)> {
        let page = self.page()?;
        let hotkey = key(miner)?.hotkey().to_string();
        let miners = page.get("miners").and_then(Value::as_array).context("miners")?;
        let found = miners
            .iter()
            .find(|row| row.get("miner").and_then(Value::as_str) == Some(&hotkey));
        let Some(found) = found else {
            return Ok((Value::Null, "absent".to_owned()));
        };
        let amount = found.pointer("/deposit/amount").cloned().unwrap_or_default();
        Ok((
            amount,
            found
                .get("verdict")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
        ))
    }

    fn page(&self) -> Result<Value> {
        let shown = self.operate(&["collateral", "--json"])?;
        serde_json::from_str(&shown.stdout).with_context(|| format!("{shown:?}"))
    }

    fn wait_for(&self, miner: &str, deposit: &Value, verdict: &str) -> Result<()> {
        let expected = (deposit.clone(), verdict.to_owned());
        let mut last = None;
        let found = wait_for(&format!("{miner} with {expected:?}"), || {
            let shown = self.shown(miner)?;
            let is_it = shown == expected;
            last = Some(shown);
            anyhow::Ok(is_it.then_some(()))
        });
        found.with_context(|| format!("last shown: {last:?}; {}", self.page().unwrap_or_default()))
    }

    fn transfer(&self, from: &Keypair, to: Hotkey, rao: u64) -> Result<()> {
        self.runtime.block_on(self.client.transfer(from, &to, Rao(rao)))?;
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn answer(output: &Output) -> Result<Value> {
    ensure!(output.code == Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))
}

/// A refusal, in the operator's words.
fn assert_refused(output: &Output, words: &str) {
    assert_ne!(output.code, Some(0), "{output:?}");
    assert!(output.stderr.contains(words), "{words} in {output:?}");
}

#[test]
fn transfers_feed_the_book_and_a_slash_is_paid_out_once_across_a_killed_validator() -> Result<()> {
    let mut rig = Rig::new()?;
    let (cold, sink) = (key("Cold")?, key("Sink")?.hotkey());
    let account = rig.account.hotkey();
    let section = format!(
        "[collateral]\nsource = \"ledger\"\ninterval_s = 1\n[collateral.ledger]\naccount = \"{account}\"\n\
         slashed_to = \"{sink}\"\nfrom_block = 1\nwallet = {{ root = \"{}\", name = \"collateral\", hotkey = \"default\" }}\n",
        rig.path("wallets").display()
    );
    // A transfer before the validator's first start counts from the configured block on.
    rig.transfer(&cold, account, 10_000_000)?;
    rig.start(&section)?;
    rig.wait_for("One", &json!(5_000_000), "too_little")?;
    rig.wait_for("Three", &json!(0), "too_little")?;

    // One coldkey's deposit is shared by its two miners.
    rig.transfer(&cold, account, 30_000_000)?;
    rig.wait_for("One", &json!(20_000_000), "enough")?;
    rig.wait_for("Two", &json!(20_000_000), "enough")?;
    rig.wait_for("Three", &json!(0), "too_little")?;

    std::fs::write(rig.path("evidence.json"), "it cheated")?;
    std::fs::write(rig.path("more.json"), "it cheated again")?;
    let first = answer(&rig.slash("One", "0.006", "evidence.json")?)?;
    assert_eq!(
        (&first["slash"], &first["earlier"]),
        (&json!("done"), &json!(false)),
        "{first}"
    );
    rig.wait_for("Two", &json!(17_000_000), "enough")?;
    let again = answer(&rig.slash("One", "0.006", "evidence.json")?)?;
    assert_eq!(
        (&again["slash"], &again["earlier"]),
        (&json!("done"), &json!(true)),
        "{again}"
    );
    let paid = |rig: &Rig| rig.runtime.block_on(rig.client.balance(&sink));
    assert_eq!(paid(&rig)?, Rao(6_000_000));
    assert_refused(&rig.slash("One", "1", "more.json")?, "cannot be taken");
    assert_refused(&rig.slash("One", "0", "more.json")?, "zero");

    // Transfers that come while the validator is away are booked afterwards, and none is booked twice.
    rig.kill()?;
    rig.transfer(&cold, account, 6_000_000)?;
    rig.start(&section)?;
    rig.wait_for("One", &json!(20_000_000), "enough")?;
    let page = rig.page()?;
    assert_eq!(page["slashes"].as_array().map(Vec::len), Some(1), "{page}");
    assert_eq!(paid(&rig)?, Rao(6_000_000));

    // A transfer back is a return of collateral.
    let account = rig.account.clone();
    rig.transfer(&account, cold.hotkey(), 36_000_000)?;
    rig.wait_for("One", &json!(2_000_000), "too_little")
}

/// A wallet's signature that associates the key's address with a hotkey, as ComputeHorde's script makes it.
fn association(key: &SigningKey, hotkey: &Hotkey, block: u64) -> Result<[u8; 65]> {
    let mut message = hotkey.as_bytes().to_vec();
    message.extend(keccak256(block.to_le_bytes()));
    let personal = [b"\x19Ethereum Signed Message:\n64".as_slice(), &message].concat();
    let (signature, parity) = key.sign_prehash_recoverable(keccak256(personal).as_slice())?;
    let mut bytes = [0; 65];
    bytes[..64].copy_from_slice(&signature.to_bytes());
    bytes[64] = 27 + u8::from(parity.is_y_odd());
    Ok(bytes)
}

/// The address in its text form, as bytes.
fn address_bytes(text: &str) -> Result<[u8; 20]> {
    let mut bytes = [0; 20];
    hex::decode_to_slice(text.trim_start_matches("0x"), &mut bytes)?;
    Ok(bytes)
}

/// Associates a miner with the EVM's account of this index.
fn associate(rig: &Rig, evm: &RunningEvm, miner: &str, account: u8) -> Result<()> {
    let mut secret = [0; 32];
    secret[31] = account + 1;
    let (miner, address) = (key(miner)?, address_bytes(evm.account(account.into())?)?);
    let signature = association(&SigningKey::from_slice(&secret)?, &miner.hotkey(), 3)?;
    let call = rig
        .client
        .associate_evm_key(&miner, NETUID, address, BlockNumber(3), signature);
    rig.runtime.block_on(call)?;
    Ok(())
}

#[test]
fn a_contract_on_a_real_evm_is_read_and_slashed_and_its_outage_is_never_enough() -> Result<()> {
    let mut rig = Rig::new()?;
    // The key 0x46…46 and its address.
    std::fs::write(
        rig.path("trustee.json"),
        json!({ "private_key": "46".repeat(32) }).to_string(),
    )?;
    let mut evm = RunningEvm::start(NETUID.0, "0x9d8A62f656a8d1615C1294fd71e9CFb3E4855A4F")?;
    // The contract's address comes from the chain.
    let commitment = json!({ "contract": { "address": evm.contract() } }).to_string();
    let committed = rig.client.commit_text(&rig.hotkey, NETUID, &commitment);
    rig.runtime.block_on(committed)?;
    // One and Two show the same account, Three its own, Four none.
    for (miner, account) in [("One", 1), ("Two", 1), ("Three", 2)] {
        associate(&rig, &evm, miner, account)?;
    }
    let section = |urls: &[String], chain_id: u64| {
        format!(
            "[collateral]\nsource = \"evm\"\nrpc_urls = {urls:?}\nchain_id = {chain_id}\nrequired_rao = {REQUIRED}\n\
             interval_s = 1\nmax_age_s = 6\nrequest_s = 5\nreceipt_s = 30\nkey_file = \"{}\"\n",
            rig.path("trustee.json").display()
        )
    };
    // The first node is away; the second answers.
    let urls = ["http://127.0.0.1:9".to_owned(), evm.url()];
    let (right, wrong) = (section(&urls, evm.chain_id()), section(&urls[1..], 964));
    rig.start(&right)?;
    rig.wait_for("One", &json!(0), "too_little")?;
    rig.runtime.block_on(async {
        evm.deposit(1, 24_000_000 * 1_000_000_000).await?;
        evm.deposit(2, REQUIRED * 1_000_000_000).await
    })?;
    rig.wait_for("One", &json!(12_000_000), "enough")?;
    rig.wait_for("Two", &json!(12_000_000), "enough")?;
    rig.wait_for("Three", &json!(REQUIRED), "enough")?;
    rig.wait_for("Four", &Value::Null, "no_account")?;

    std::fs::write(rig.path("evidence.json"), "it cheated")?;
    std::fs::write(rig.path("more.json"), "it cheated again")?;
    let done = answer(&rig.slash("Three", "0.005", "evidence.json")?)?;
    assert_eq!(
        (&done["slash"], &done["earlier"]),
        (&json!("done"), &json!(false)),
        "{done}"
    );
    rig.wait_for("Three", &json!(5_000_000), "too_little")?;
    let again = answer(&rig.slash("Three", "0.005", "evidence.json")?)?;
    assert_eq!(
        (&again["earlier"], &again["reference"]),
        (&json!(true), &done["reference"]),
        "{again}"
    );
    assert_refused(&rig.slash("Three", "0.006", "more.json")?, "cannot be taken");
    assert_refused(&rig.slash("Four", "0.005", "more.json")?, "no EVM address");
    let page = rig.page()?;
    assert_eq!(
        page["slashes"][0]["md5"], "0fe4e21e3356559f1d58efb10d3c924c",
        "{page}"
    );
    assert!(page["slashes"][0].get("plan").is_none(), "{page}");

    // The node dies: the last reading counts for a while, and then nobody has enough.
    evm.kill()?;
    let failure = |rig: &Rig| anyhow::Ok(rig.page()?.pointer("/collateral/failure").cloned());
    wait_for("the failure", || {
        anyhow::Ok(failure(&rig)?.filter(|said| !said.is_null()))
    })?;
    for miner in ["One", "Two", "Three", "Four"] {
        let unknown = || anyhow::Ok((rig.shown(miner)?.1 == "unknown").then_some(()));
        wait_for("an unknown collateral", unknown)?;
    }
    assert_refused(&rig.slash("One", "0.005", "more.json")?, "no EVM node answers");

    // A validator that starts during the outage knows nothing, and reports that.
    rig.kill()?;
    rig.start(&right)?;
    wait_for("the failure", || {
        anyhow::Ok(failure(&rig)?.filter(|said| !said.is_null()))
    })?;
    for miner in ["One", "Two", "Three", "Four"] {
        assert_eq!(rig.shown(miner)?, (Value::Null, "unknown".to_owned()));
    }

    // A node of another chain is no source, and the operator reads which one is wrong.
    rig.kill()?;
    let other = RunningEvm::start(NETUID.0, "0x9d8A62f656a8d1615C1294fd71e9CFb3E4855A4F")?;
    rig.start(&wrong.replace(&urls[1], &other.url()))?;
    let said = wait_for("the failure", || {
        anyhow::Ok(failure(&rig)?.filter(|said| !said.is_null()))
    })?;
    assert!(said.to_string().contains("collateral.chain_id"), "{said}");
    assert_eq!(rig.shown("One")?.1, "unknown");
    Ok(())
}

/// A chain's facts about the EVM, for tests of the source alone.
#[derive(Debug)]
struct Facts(BTreeMap<Uid, EvmAssociation>);

impl EvmDirectory for Facts {
    fn associations(&self) -> BoxFuture<'_, Result<BTreeMap<Uid, EvmAssociation>, ChainError>> {
        async { Ok(self.0.clone()) }.boxed()
    }

    fn contract(&self) -> BoxFuture<'_, Result<Option<EvmAddress>, ChainError>> {
        async { Ok(None) }.boxed()
    }
}

#[test]
fn a_plan_is_carried_out_once_and_one_whose_place_was_taken_fails_for_good() -> Result<()> {
    muster_process::tls::install_provider();
    let runtime = Runtime::new()?;
    let folder = tempfile::tempdir()?;
    let key_file = |name: &str, digits: &str| -> Result<PathBuf> {
        let path = folder.path().join(name);
        std::fs::write(&path, digits.repeat(32))?;
        Ok(path)
    };
    let (trustee, stranger) = (key_file("trustee", "46")?, key_file("stranger", "47")?);
    let evm = RunningEvm::start(NETUID.0, "0x9d8A62f656a8d1615C1294fd71e9CFb3E4855A4F")?;
    runtime.block_on(evm.deposit(1, 24_000_000 * 1_000_000_000))?;
    let settings = EvmSettings {
        rpc_urls: vec![evm.url().parse()?],
        chain_id: evm.chain_id(),
        contract: Some(evm.contract().parse()?),
        key_file: Some(trustee),
        max_fee: Rao(REQUIRED),
        request: patience(),
        receipt: patience(),
    };
    let association = EvmAssociation {
        address: address_bytes(evm.account(1)?)?,
        block: BlockNumber(5),
    };
    let source = |settings: EvmSettings| {
        let facts = Arc::new(Facts([(Uid(0), association)].into()));
        EvmCollateral::new(settings, NETUID, facts, Arc::new(SystemClock::new()))
    };
    let miner = MinerAccount {
        uid: Uid(0),
        miner: MinerKey(key("One")?.hotkey()),
        owner: key("Cold")?.hotkey(),
        registered: BlockNumber(1),
    };
    let order = |evidence: &[u8]| SlashOrder {
        miner: miner.miner,
        amount: Rao(5_000_000),
        evidence: Evidence::of(evidence),
        url: String::new(),
    };
    let good = source(settings.clone())?;
    let held = || anyhow::Ok(runtime.block_on(good.read(&[miner]))?.remove(&miner.miner));
    let plan = |evidence: &[u8]| runtime.block_on(good.plan_slash(&order(evidence), &[miner]));
    // Both have the account's next place, because neither was sent.
    let (one, two) = (plan(b"one")?, plan(b"two")?);
    assert_eq!(
        held()?,
        Some(Deposit::Held {
            amount: Rao(24_000_000)
        }),
        "a plan changes nothing"
    );
    for _ in 0..2 {
        let end = runtime.block_on(good.carry_out(&one))?;
        assert_eq!(
            end,
            SlashEnd::Done {
                reference: one.reference.clone()
            }
        );
        assert_eq!(
            held()?,
            Some(Deposit::Held {
                amount: Rao(19_000_000)
            })
        );
    }
    let end = runtime.block_on(good.carry_out(&two))?;
    assert!(
        matches!(&end, SlashEnd::Failed { reason } if reason.contains("took the place")),
        "{end:?}"
    );
    assert_eq!(
        held()?,
        Some(Deposit::Held {
            amount: Rao(19_000_000)
        })
    );

    let refused = |change: &dyn Fn(&mut EvmSettings)| -> Result<String> {
        let mut settings = settings.clone();
        change(&mut settings);
        let plan = runtime.block_on(source(settings)?.plan_slash(&order(b"three"), &[miner]));
        Ok(plan
            .map(|plan| plan.summary)
            .expect_err("it is refused")
            .to_string())
    };
    let strange = refused(&|settings| settings.key_file = Some(stranger.clone()))?;
    assert!(strange.contains("only the trustee may slash"), "{strange}");
    assert!(refused(&|settings| settings.max_fee = Rao(1))?.contains("max_fee_rao"));
    assert!(refused(&|settings| settings.key_file = None)?.contains("collateral.key_file"));
    let elsewhere = Some(EvmAddress::from([9; 20]));
    assert!(refused(&|settings| settings.contract = elsewhere)?.contains("there is no contract"));
    assert!(refused(&|settings| settings.contract = None)?.contains("no collateral contract is known"));
    Ok(())
}

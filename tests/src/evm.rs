//! A real EVM of its own for a test: py-evm behind JSON-RPC, with a contract of ComputeHorde's collateral interface.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::subnet::program_from_env;

/// The variable that names the Python with py-evm.
const VARIABLE: &str = "MUSTER_TEST_EVM_PYTHON";

/// An EVM that runs until it is dropped.
#[derive(Debug)]
pub struct RunningEvm {
    process: Child,
    facts: EvmFacts,
}

/// The node's own words once it serves.
#[derive(Debug, Deserialize)]
struct EvmFacts {
    contract: String,
    chain_id: u64,
    accounts: Vec<String>,
    port: u16,
}

impl RunningEvm {
    /// Starts one on a free port, with a contract for this subnet and this trustee, which gets one TAO for fees.
    ///
    /// # Errors
    /// There is no Python with py-evm, or the node does not come up.
    pub fn start(netuid: u16, trustee: &str) -> Result<Self> {
        let mut process = Command::new(program_from_env(VARIABLE)?)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/python/evm_node.py"))
            .args(["0", &netuid.to_string(), trustee])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the EVM")?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut line)?;
        let facts = serde_json::from_str(&line).with_context(|| format!("the EVM said {line:?}"))?;
        Ok(Self { process, facts })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.facts.port)
    }

    /// The contract's address.
    pub fn contract(&self) -> &str {
        &self.facts.contract
    }

    /// The id of its chain.
    pub fn chain_id(&self) -> u64 {
        self.facts.chain_id
    }

    /// The address of an account with money. Its private key is the number `index + 1`.
    ///
    /// # Errors
    /// There is no such account.
    pub fn account(&self, index: usize) -> Result<&str> {
        let account = self.facts.accounts.get(index);
        account.map(String::as_str).context("the EVM has fewer accounts")
    }

    /// Deposits an amount of wei from one of the accounts.
    ///
    /// # Errors
    /// The node refuses it.
    pub async fn deposit(&self, account: usize, wei: u64) -> Result<()> {
        // The selector of `deposit()`.
        let call = json!({
            "from": self.account(account)?, "to": self.contract(), "data": "0xd0e30db0",
            "value": format!("{wei:#x}"), "gas": "0x30d40",
        });
        self.call("eth_sendTransaction", json!([call])).await.map(drop)
    }

    /// Calls a method of its JSON-RPC.
    ///
    /// # Errors
    /// It does not answer, or with an error.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let client = reqwest::Client::builder().no_proxy().build()?;
        let sent = client.post(self.url()).json(&request).send().await?;
        let mut answer: Value = sent.json().await?;
        ensure!(answer.get("error").is_none(), "{method}: {answer}");
        Ok(answer.get_mut("result").map(Value::take).unwrap_or_default())
    }

    /// Kills the node, as a power cut does.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for RunningEvm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

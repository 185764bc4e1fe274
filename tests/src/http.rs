//! The HTTP client of all looks of a test. It is made once: a client reads every certificate that the machine trusts
//! when it is made, and a test looks some hundred times.

use std::sync::OnceLock;

use anyhow::Result;
use muster_testbed::patience;
use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Sends a request and reads the JSON of its answer, whatever its status is.
///
/// # Errors
/// Nobody answers, or the answer is no JSON.
pub(crate) fn answer_of(request: impl FnOnce(&Client) -> RequestBuilder) -> Result<Value> {
    let (runtime, client) = client()?;
    runtime.block_on(async { Ok(request(client).send().await?.json().await?) })
}

fn client() -> Result<&'static (Runtime, Client)> {
    static CLIENT: OnceLock<(Runtime, Client)> = OnceLock::new();
    if let Some(made) = CLIENT.get() {
        return Ok(made);
    }
    muster_process::tls::install_provider();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // No connection is kept: the role behind it may have been killed since the last look.
    let client = Client::builder()
        .timeout(patience())
        .pool_max_idle_per_host(0)
        .build()?;
    Ok(CLIENT.get_or_init(|| (runtime, client)))
}

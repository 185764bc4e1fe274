//! A websocket proxy in front of the chain that spoils its answers as the test demands.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use muster_process::Tasks;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{accept_async, connect_async};

/// The change that the proxy makes to the chain's answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spoil {
    /// The proxy passes nothing on.
    pub(crate) silent: bool,
    /// New heads are held back, so the last finalised one stays the same.
    pub(crate) stalled: bool,
    /// This number is added to the version of the runtime.
    pub(crate) newer: u8,
    /// Answers with bytes are cut, swapped and changed by this seed.
    pub(crate) garbage: Option<u64>,
    /// The runtime's names are changed, as in the metadata of another kind of chain.
    pub(crate) foreign: bool,
    /// New connections are refused, and the old ones end.
    pub(crate) down: bool,
}

/// The counters of a proxy.
#[derive(Debug, Default)]
struct Seen {
    spoil: Spoil,
    head: Option<Value>,
    metadata: usize,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) url: String,
    seen: Arc<Mutex<Seen>>,
    tasks: Tasks,
}

impl Proxy {
    pub(crate) async fn open(to: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let proxy = Self {
            url: format!("ws://{}", listener.local_addr()?),
            seen: Arc::default(),
            tasks: Tasks::new(),
        };
        let (seen, tasks, to) = (Arc::clone(&proxy.seen), proxy.tasks.clone(), to.to_owned());
        drop(proxy.tasks.spawn("proxy", async move {
            while let Ok((socket, _)) = listener.accept().await {
                if lock(&seen).spoil.down {
                    continue;
                }
                drop(tasks.spawn("proxied", pass(socket, to.clone(), Arc::clone(&seen))));
            }
        }));
        Ok(proxy)
    }

    pub(crate) fn spoil(&self, spoil: Spoil) {
        lock(&self.seen).spoil = spoil;
    }

    /// How often the metadata was asked for.
    pub(crate) fn metadata(&self) -> usize {
        lock(&self.seen).metadata
    }
}

fn lock(seen: &Mutex<Seen>) -> parking_lot::MutexGuard<'_, Seen> {
    seen.lock()
}

async fn pass(socket: TcpStream, to: String, seen: Arc<Mutex<Seen>>) {
    let (Ok(below), Ok((above, _))) = (accept_async(socket).await, connect_async(to).await) else {
        return;
    };
    let ((mut out, mut ask), (mut up, mut answers)) = (below.split(), above.split());
    let (mut versions, mut heads) = (BTreeSet::new(), BTreeSet::new());
    loop {
        tokio::select! {
            asked = ask.next() => {
                let Some(Ok(asked)) = asked else { return };
                if let Ok(call) = serde_json::from_slice::<Value>(&asked.clone().into_data()) {
                    let (id, method) = (call["id"].to_string(), call["method"].as_str().unwrap_or_default());
                    let what = call["params"][0].as_str().unwrap_or_default();
                    if what == "Core_version" {
                        versions.insert(id);
                    } else if method == "chain_getFinalizedHead" {
                        heads.insert(id);
                    } else if method == "state_getMetadata" || what.starts_with("Metadata_metadata_at") {
                        lock(&seen).metadata += 1;
                    }
                }
                if up.send(asked).await.is_err() { return }
            }
            answer = answers.next() => {
                let Some(Ok(answer)) = answer else { return };
                let spoil = lock(&seen).spoil.clone();
                if spoil.down { return }
                let Some(answer) = spoilt(answer, &spoil, &seen, &mut versions, &mut heads) else { continue };
                if out.send(answer).await.is_err() { return }
            }
        }
    }
}

fn spoilt(
    answer: Message,
    spoil: &Spoil,
    seen: &Mutex<Seen>,
    versions: &mut BTreeSet<String>,
    heads: &mut BTreeSet<String>,
) -> Option<Message> {
    if spoil.silent {
        return None;
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(&answer.clone().into_data()) else {
        return Some(answer);
    };
    let id = value["id"].to_string();
    if value.get("method").is_some() && spoil.stalled {
        return None;
    }
    if spoil.foreign
        && let Some(text) = value["result"].as_str()
    {
        let mut text = text.to_owned();
        for (ours, theirs) in [
            ("SubtensorModule", "SomethingForeign"),
            ("SubnetInfoRuntimeApi", "AnotherRuntimeInterf"),
        ] {
            // Names of the same length, so that every length beside them stays right.
            text = text.replace(&hex::encode(ours), &hex::encode(&theirs[..ours.len()]));
        }
        value["result"] = text.into();
    }
    if heads.remove(&id) {
        let mut seen = lock(seen);
        match (&seen.head, spoil.stalled) {
            (Some(head), true) => value["result"] = head.clone(),
            (_, _) => seen.head = Some(value["result"].clone()),
        }
    } else if versions.remove(&id)
        && let Some(text) = value["result"].as_str()
    {
        // Two names, the authoring version, then the version that is meant.
        let mut bytes = hex_bytes(text)?;
        let (spec, imp) = (usize::from(*bytes.first()? >> 2), 0);
        let second = usize::from(*bytes.get(1 + spec)? >> 2) + imp;
        let at = 2 + spec + second + 4;
        *bytes.get_mut(at)? = bytes.get(at)?.wrapping_add(spoil.newer);
        value["result"] = to_hex(&bytes).into();
    } else if let (Some(seed), Some(text)) = (spoil.garbage, value["result"].as_str())
        && let Some(mut bytes) = hex_bytes(text)
        && bytes.len() > 32
    {
        // A small generator of its own, so that the seed determines everything.
        let mut state = seed | 1;
        let mut draw = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap_or(0) % bound.max(1)
        };
        for _ in 0..=draw(8) {
            let at = draw(bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte = u8::try_from(draw(256)).unwrap_or(0);
            }
        }
        if draw(2) == 0 {
            bytes.truncate(draw(bytes.len()));
        }
        value["result"] = to_hex(&bytes).into();
    }
    Some(Message::text(value.to_string()))
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    hex::decode(text.strip_prefix("0x")?).ok()
}

fn to_hex(bytes: &[u8]) -> String {
    format!("0x{}", hex::encode(bytes))
}

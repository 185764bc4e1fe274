//! A node for each test, a client of it, and signed transactions.

use codec::Encode;
use jsonrpsee::core::ClientError;
use jsonrpsee::core::client::{ClientT, Subscription, SubscriptionClientT};
use jsonrpsee::core::params::{ArrayParams, ObjectParams};
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee_ws_client::{WsClient, WsClientBuilder};
use muster_devchain::clock::Clock;
use muster_devchain::node::{Node, Options};
use muster_devchain::server::{Limits, Running, serve};
use muster_devchain::spec::Spec;
use muster_devchain_runtime::subtensor::{self, SubtensorTransactionExtension};
use muster_devchain_runtime::types::NetUid;
use muster_devchain_runtime::{
    CheckNonce, Nonce, Runtime, RuntimeCall, SLOT_DURATION_MS, TxExtension, UncheckedExtrinsic, VERSION,
};
use muster_devchain_store::Store;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sp_core::{Bytes, H256};
use sp_io::hashing::blake2_256;
use sp_keyring::Sr25519Keyring;
use sp_runtime::generic::Era;
use sp_runtime::{MultiAddress, MultiSignature};
use std::time::Duration;

/// The patience of all tests of Muster (tests/testbed/src/wait.rs): this workspace depends on no crate of the other
/// one.
pub(crate) fn patience() -> Duration {
    let seconds = std::env::var("MUSTER_TEST_PATIENCE");
    Duration::from_secs(seconds.map_or(240, |seconds| seconds.parse().unwrap()))
}

/// Blocks twelve seconds apart, final at once.
pub(crate) fn options() -> Options {
    Options::new(Clock::steps(SLOT_DURATION_MS))
}

/// A node that is being served.
pub(crate) struct Chain {
    pub(crate) node: Node,
    running: Running,
}

impl Chain {
    /// The default specification.
    pub(crate) async fn start() -> Self {
        Self::start_with(Spec::development().unwrap()).await
    }

    pub(crate) async fn start_with(spec: Spec) -> Self {
        Self::start_limited(spec, options(), Limits::default()).await
    }

    pub(crate) async fn start_limited(spec: Spec, options: Options, limits: Limits) -> Self {
        let store = Store::temporary().unwrap();
        let node = Node::open(&spec.genesis().unwrap(), store, options).unwrap();
        let running = serve(&node, 0, limits).await.unwrap();
        Self { node, running }
    }

    pub(crate) async fn client(&self) -> Client {
        self.try_client().await.unwrap()
    }

    /// A connection, unless the node refuses it.
    pub(crate) async fn try_client(&self) -> Result<Client, ClientError> {
        Client::connect(&format!("ws://{}", self.running.address)).await
    }

    /// A transaction of this chain.
    pub(crate) fn sign(&self, key: Sr25519Keyring, nonce: Nonce, call: impl Into<RuntimeCall>) -> Bytes {
        self.sign_with_tip(key, nonce, call, 0)
    }

    pub(crate) fn sign_with_tip(
        &self,
        key: Sr25519Keyring,
        nonce: Nonce,
        call: impl Into<RuntimeCall>,
        tip: u64,
    ) -> Bytes {
        sign(self.node.genesis(), key, nonce, call.into(), tip)
    }
}

/// A transaction of the chain with a genesis.
pub(crate) fn sign(genesis: H256, key: Sr25519Keyring, nonce: Nonce, call: RuntimeCall, tip: u64) -> Bytes {
    let extension: TxExtension = (
        frame_system::CheckNonZeroSender::new(),
        frame_system::CheckSpecVersion::new(),
        frame_system::CheckTxVersion::new(),
        frame_system::CheckGenesis::new(),
        frame_system::CheckMortality::from(Era::Immortal),
        CheckNonce(nonce),
        frame_system::CheckWeight::new(),
        pallet_transaction_payment::ChargeTransactionPayment::from(tip),
        SubtensorTransactionExtension::default(),
    );
    // A signature covers these values beside the transaction itself; an immortal one begins at genesis.
    let implicit = (
        VERSION.spec_version,
        VERSION.transaction_version,
        genesis,
        genesis,
    );
    let payload = (&call, &extension, implicit).encode();
    let payload = if payload.len() > 256 {
        blake2_256(&payload).to_vec()
    } else {
        payload
    };
    let signature = MultiSignature::Sr25519(key.sign(&payload));
    let who = MultiAddress::Id(key.to_account_id());
    Bytes(UncheckedExtrinsic::new_signed(call, who, signature, extension).encode())
}

/// Alice's weights on subnet 1: all of it on Bob.
pub(crate) fn weights() -> subtensor::Call<Runtime> {
    subtensor::Call::set_weights {
        netuid: NetUid(1),
        dests: vec![1],
        weights: vec![1],
        version_key: 0,
    }
}

/// A client's connection.
pub(crate) struct Client(WsClient);

impl Client {
    pub(crate) async fn connect(url: &str) -> Result<Self, ClientError> {
        let builder = WsClientBuilder::default()
            .max_request_size(64 * 1024 * 1024)
            .max_response_size(64 * 1024 * 1024)
            .request_timeout(patience());
        Ok(Self(builder.build(url).await?))
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    /// A call whose connection may break.
    pub(crate) async fn attempt(&self, method: &str, params: Value) -> Result<Value, ClientError> {
        self.0.request(method, array(&params)).await
    }

    /// Parameters as an array or an object.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        params: Value,
    ) -> Result<T, ErrorObjectOwned> {
        let result = if let Value::Object(fields) = &params {
            let mut params = ObjectParams::new();
            fields
                .iter()
                .for_each(|(name, value)| params.insert(name, value).unwrap());
            self.0.request(method, params).await
        } else {
            self.0.request(method, array(&params)).await
        };
        result.map_err(|error| {
            let ClientError::Call(error) = error else {
                panic!("{method}: {error}")
            };
            error
        })
    }

    pub(crate) async fn subscribe(
        &self,
        method: &str,
        params: Value,
        end: &str,
    ) -> Result<Subscription<Value>, ClientError> {
        self.0.subscribe(method, array(&params), end).await
    }

    pub(crate) async fn seal(&self, n: u32) -> H256 {
        let sealed: Value = self.call("dev_seal", json!([n])).await.unwrap();
        serde_json::from_value(sealed["hash"].clone()).unwrap()
    }
}

fn array(params: &Value) -> ArrayParams {
    let mut array = ArrayParams::new();
    params
        .as_array()
        .unwrap()
        .iter()
        .for_each(|value| array.insert(value).unwrap());
    array
}

/// The next value of a subscription.
pub(crate) async fn next(subscription: &mut Subscription<Value>) -> Value {
    subscription.next().await.unwrap().unwrap()
}

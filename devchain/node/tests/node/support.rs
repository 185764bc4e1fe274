//! A node for each test, a client of it, and signed transactions.

use codec::Encode;
use jsonrpsee::core::ClientError;
use jsonrpsee::core::client::{ClientT, Subscription, SubscriptionClientT};
use jsonrpsee::core::params::{ArrayParams, ObjectParams};
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::ws_client::{WsClient, WsClientBuilder};
use muster_devchain::clock::Clock;
use muster_devchain::node::Node;
use muster_devchain::server::{Running, serve};
use muster_devchain::spec::Spec;
use muster_devchain_runtime::subtensor::{self, SubtensorTransactionExtension};
use muster_devchain_runtime::types::NetUid;
use muster_devchain_runtime::{
    CheckNonce, Nonce, Runtime, RuntimeCall, TxExtension, UncheckedExtrinsic, VERSION,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sp_core::{Bytes, H256};
use sp_io::hashing::blake2_256;
use sp_keyring::Sr25519Keyring;
use sp_runtime::generic::Era;
use sp_runtime::{MultiAddress, MultiSignature};

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
        let node = Node::new(&spec.genesis().unwrap(), Clock::Steps).unwrap();
        let running = serve(&node, 0).await.unwrap();
        Self { node, running }
    }

    pub(crate) async fn client(&self) -> Client {
        Client(
            WsClientBuilder::default()
                .build(format!("ws://{}", self.running.address))
                .await
                .unwrap(),
        )
    }

    /// A transaction of this chain.
    pub(crate) fn sign(&self, key: Sr25519Keyring, nonce: Nonce, call: impl Into<RuntimeCall>) -> Bytes {
        let call = call.into();
        let extension: TxExtension = (
            frame_system::CheckNonZeroSender::new(),
            frame_system::CheckSpecVersion::new(),
            frame_system::CheckTxVersion::new(),
            frame_system::CheckGenesis::new(),
            frame_system::CheckMortality::from(Era::Immortal),
            CheckNonce(nonce),
            frame_system::CheckWeight::new(),
            pallet_transaction_payment::ChargeTransactionPayment::from(0),
            SubtensorTransactionExtension::default(),
        );
        // What a signature covers beside the transaction itself; an immortal one begins at genesis.
        let genesis = self.node.genesis();
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

/// A connection.
pub(crate) struct Client(WsClient);

impl Client {
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

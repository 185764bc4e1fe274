//! Signs a call, submits it and waits until it is final. Every kind of failure is a distinct error.
//!
//! A submitted call may be lost sight of: the endpoint went away, or forgot it. It is then searched by its hash in the
//! finalised blocks that may hold it; a signature is valid for 32 blocks. Its fate is unknown only if those blocks
//! cannot be read either. This module never submits a call twice.

use muster_identity::{Keypair, SigningMessage};
use muster_protocol::{BlockNumber, Rao};
use subxt::config::substrate::{AccountId32, H256, MultiSignature};
use subxt::config::{DefaultExtrinsicParamsBuilder, SubstrateConfig};
use subxt::error::{BackendError, DispatchError, ExtrinsicError, RpcError, TransactionProgressError};
use subxt::ext::scale_value::Composite;
use subxt::transactions::Signer;
use tokio::time::timeout;

use crate::call_encoding::Call;
use crate::call_rejection::CallRejection;
use crate::chain_reader::ChainClient;
use crate::endpoint_pool::{AtBlock, ChainHead, Endpoint};
use crate::error::ChainError;
use crate::scale_value::number;

type EventFields = Vec<(String, subxt::dynamic::Value)>;

/// Blocks for which a signature is valid: a power of two, as the chain wants it.
const MORTAL: u64 = 32;

/// Signs extrinsics with one of our keys.
struct KeySigner<'a>(&'a Keypair);

impl Signer<SubstrateConfig> for KeySigner<'_> {
    fn account_id(&self) -> AccountId32 {
        AccountId32(*self.0.hotkey().as_bytes())
    }

    fn sign(&self, payload: &[u8]) -> MultiSignature {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the chain's client, and the payload is what its library encoded"
        )]
        let message = SigningMessage::extrinsic(payload);
        MultiSignature::Sr25519(*self.0.sign(&message).as_bytes())
    }
}

/// A call that is final and succeeded.
#[derive(Debug)]
pub(crate) struct IncludedCall {
    /// The block that holds the call.
    pub(crate) block: BlockNumber,
    /// The call's events: pallet, name, fields.
    events: Vec<(String, String, EventFields)>,
}

impl IncludedCall {
    /// The fields of the first event of this name.
    pub(crate) fn event(&self, pallet: &str, name: &str) -> Option<&EventFields> {
        let found = self.events.iter().find(|(p, n, _)| p == pallet && n == name);
        found.map(|(_, _, fields)| fields)
    }

    /// The fee that the signer paid; 0 where the chain states none.
    pub(crate) fn fee(&self) -> Rao {
        let fields = self.event("TransactionPayment", "TransactionFeePaid");
        let fee = fields.and_then(|fields| fields.iter().find(|(name, _)| name == "actual_fee"));
        Rao(fee.and_then(|(_, fee)| number(fee)).unwrap_or(0))
    }
}

impl ChainClient {
    /// Submits a call and waits until it is final. One call at a time: see [`ChainClient`].
    pub(crate) async fn submit(&self, key: &Keypair, call: Call) -> Result<IncludedCall, ChainError> {
        self.submit_by(key, call, None).await
    }

    /// Submits a call that no block after `last` may hold, and waits until it is final.
    pub(crate) async fn submit_by(
        &self,
        key: &Keypair,
        call: Call,
        last: Option<BlockNumber>,
    ) -> Result<IncludedCall, ChainError> {
        let _turn = self.submitting.lock().await;
        self.endpoint.submit(key, call, last).await
    }
}

impl Endpoint {
    /// Submits a call and waits until it is final and has succeeded. No block after `last` may hold it: it is not
    /// signed if its signature would be valid for longer.
    async fn submit(
        &self,
        key: &Keypair,
        call: Call,
        last: Option<BlockNumber>,
    ) -> Result<IncludedCall, ChainError> {
        let name = call.name;
        let payload = call.payload();
        let signer = KeySigner(key);
        let (head, signed) = self
            .ask("sign a call", |head: ChainHead| {
                let (payload, signer) = (&payload, &signer);
                async move {
                    let valid_through = head.at.block_number().saturating_add(MORTAL);
                    if last.is_some_and(|last| valid_through > last.0) {
                        return Err(ChainError::Refused {
                            call: name,
                            refusal: CallRejection::TooLate,
                        });
                    }
                    let mut transactions = head.at.transactions();
                    let params = DefaultExtrinsicParamsBuilder::new().mortal(MORTAL).build();
                    let signed = transactions.create_signed(payload, signer, params);
                    let signed = self.read(&head, "sign a call", signed).await?;
                    Ok((head, signed))
                }
            })
            .await?;
        let hash = signed.hash();
        let from = head.at.block_number();

        let lost = match timeout(self.timeouts.read, signed.submit_and_watch()).await {
            Err(_) => ChainError::Unconfirmed {
                call: name,
                cause: None,
            },
            Ok(Err(error)) => unless_rejected(pool_error(name, error))?,
            Ok(Ok(progress)) => match timeout(self.timeouts.finality, progress.wait_for_finalized()).await {
                Err(_) => ChainError::Unconfirmed {
                    call: name,
                    cause: None,
                },
                Ok(Err(error)) => lost_progress(name, error),
                Ok(Ok(in_block)) => {
                    let block = in_block.block_hash();
                    match self.find_in_block(&head, name, hash, block).await {
                        Ok(Some(done)) => return done,
                        Ok(None) => ChainError::Unconfirmed {
                            call: name,
                            cause: None,
                        },
                        Err(error) => ChainError::Unconfirmed {
                            call: name,
                            cause: Some(Box::new(error)),
                        },
                    }
                }
            },
        };
        self.report_lost(head.index).await;
        tracing::warn!(call = name, %hash, "lost sight of a call; looking for it in the finalised blocks");
        let search = self.search_finalised(name, hash, from);
        match timeout(self.timeouts.finality, search).await {
            Ok(Ok(Some(done))) => done,
            Ok(Ok(None) | Err(_)) | Err(_) => Err(lost),
        }
    }

    /// Searches a call in the finalised blocks after `from`, until its signature has expired.
    async fn search_finalised(
        &self,
        call: &'static str,
        hash: H256,
        from: u64,
    ) -> Result<Option<Result<IncludedCall, ChainError>>, ChainError> {
        const DOING: &str = "look for a call";
        let mut next = from.saturating_add(1);
        loop {
            let head = self.head(DOING).await?;
            let last = head.at.block_number().min(from.saturating_add(MORTAL));
            while next <= last {
                let at = self.read(&head, DOING, head.link.api.at_block(next)).await?;
                if let Some(done) = self.search_block(&head, &at, call, hash).await? {
                    return Ok(Some(done));
                }
                next = next.saturating_add(1);
            }
            if next > from.saturating_add(MORTAL) {
                return Ok(Some(Err(ChainError::Refused {
                    call,
                    refusal: CallRejection::NeverIncluded,
                })));
            }
            self.pause().await;
        }
    }

    async fn find_in_block(
        &self,
        head: &ChainHead,
        call: &'static str,
        hash: H256,
        block: H256,
    ) -> Result<Option<Result<IncludedCall, ChainError>>, ChainError> {
        let at = self
            .read(head, "read a block", head.link.api.at_block(block))
            .await?;
        self.search_block(head, &at, call, hash).await
    }

    /// The fate of a call in this block; `None` if the block does not hold it.
    async fn search_block(
        &self,
        head: &ChainHead,
        at: &AtBlock,
        call: &'static str,
        hash: H256,
    ) -> Result<Option<Result<IncludedCall, ChainError>>, ChainError> {
        const DOING: &str = "read a block";
        let answer = |error: &dyn std::fmt::Display| ChainError::Answer {
            doing: DOING,
            what: error.to_string(),
        };
        let extrinsics = at.extrinsics();
        let extrinsics = self.read(head, DOING, extrinsics.fetch()).await?;
        for extrinsic in extrinsics.iter() {
            let extrinsic = extrinsic.map_err(|error| answer(&error))?;
            if extrinsic.hash() != hash {
                continue;
            }
            let events = self.read(head, DOING, extrinsic.events()).await?;
            let mut told = Vec::new();
            for event in events.iter() {
                let event = event.map_err(|error| answer(&error))?;
                if (event.pallet_name(), event.event_name()) == ("System", "ExtrinsicFailed") {
                    let metadata = at.metadata();
                    let reason = DispatchError::decode_from(event.field_bytes(), metadata)
                        .map_err(|error| answer(&error))?;
                    return Ok(Some(Err(ChainError::Refused {
                        call,
                        refusal: from_dispatch(&reason),
                    })));
                }
                // No decision depends on an event that does not decode.
                let fields = match event.decode_fields_unchecked_as::<Composite<()>>() {
                    Ok(Composite::Named(fields)) => fields,
                    Ok(Composite::Unnamed(values)) => {
                        values.into_iter().map(|value| (String::new(), value)).collect()
                    }
                    Err(_) => Vec::new(),
                };
                told.push((
                    event.pallet_name().to_owned(),
                    event.event_name().to_owned(),
                    fields,
                ));
            }
            return Ok(Some(Ok(IncludedCall {
                block: BlockNumber(at.block_number()),
                events: told,
            })));
        }
        Ok(None)
    }
}

/// A rejection is final; an unknown fate must be looked up.
fn unless_rejected(error: ChainError) -> Result<ChainError, ChainError> {
    if matches!(error, ChainError::Unconfirmed { .. }) {
        Ok(error)
    } else {
        Err(error)
    }
}

/// The meaning of an error of the submission itself.
fn pool_error(call: &'static str, error: ExtrinsicError) -> ChainError {
    if let ExtrinsicError::ErrorSubmittingTransaction(BackendError::Rpc(RpcError::ClientError(
        subxt::rpcs::Error::User(said),
    ))) = &error
    {
        let data = said.data.as_ref().map(|data| data.get());
        return ChainError::Refused {
            call,
            refusal: CallRejection::from_pool(said.code, &said.message, data),
        };
    }
    ChainError::Unconfirmed {
        call,
        cause: Some(Box::new(error)),
    }
}

/// A call that the pool accepted, and whose progress can no longer be watched.
fn lost_progress(call: &'static str, error: TransactionProgressError) -> ChainError {
    // A pool's "dropped" or "invalid" concerns that pool only: another node may still include the call in a block.
    ChainError::Unconfirmed {
        call,
        cause: Some(Box::new(error)),
    }
}

fn from_dispatch(error: &DispatchError) -> CallRejection {
    if let DispatchError::Module(module) = error
        && let Ok(details) = module.details()
    {
        return CallRejection::from_pallet(details.pallet.name(), &details.variant.name);
    }
    CallRejection::Other(error.to_string())
}

//! Signing a call, handing it in and waiting until it is final, with every way in which that can fail told apart.

use muster_identity::Keypair;
use subxt::config::SubstrateConfig;
use subxt::error::{
    BackendError, DispatchError, ExtrinsicError, RpcError, TransactionEventsError,
    TransactionFinalizedSuccessError, TransactionProgressError,
};
use subxt::transactions::DefaultParams;
use tokio::time::timeout;

use crate::calls::Call;
use crate::endpoint::Endpoint;
use crate::error::ChainError;
use crate::refusal::Refusal;
use crate::signer::KeySigner;

type Params = subxt::config::DefaultExtrinsicParams<SubstrateConfig>;

impl Endpoint {
    /// Submits a call and waits until it is final and has succeeded.
    pub(crate) async fn submit(&self, key: &Keypair, call: Call) -> Result<(), ChainError> {
        let name = call.name;
        let head = self.head("submit a call").await?;
        let payload = call.payload();
        let signer = KeySigner(key);
        let mut transactions = head.transactions();
        let signed = transactions.create_signed(&payload, &signer, Params::default_params());
        let signed = self.read("sign a call", signed).await?;

        let lost = |cause| ChainError::Unconfirmed { call: name, cause };
        let submitted = timeout(self.patience.read, signed.submit_and_watch())
            .await
            .map_err(|_| lost(None))?;
        let progress = submitted.map_err(|error| refused_by_pool(name, error))?;
        let done = timeout(self.patience.finality, progress.wait_for_finalized_success()).await;
        match done.map_err(|_| lost(None))? {
            Ok(_events) => Ok(()),
            Err(error) => Err(refused_by_block(name, error)),
        }
    }
}

/// What it means that handing in failed.
fn refused_by_pool(call: &'static str, error: ExtrinsicError) -> ChainError {
    if let ExtrinsicError::ErrorSubmittingTransaction(BackendError::Rpc(RpcError::ClientError(
        subxt::rpcs::Error::User(said),
    ))) = &error
    {
        let data = said.data.as_ref().map(|data| data.get());
        return ChainError::Refused {
            call,
            refusal: Refusal::from_pool(said.code, &said.message, data),
        };
    }
    ChainError::Unconfirmed {
        call,
        cause: Some(Box::new(error)),
    }
}

/// What it means that a call which the pool took did not succeed.
fn refused_by_block(call: &'static str, error: TransactionFinalizedSuccessError) -> ChainError {
    if let TransactionFinalizedSuccessError::SuccessError(TransactionEventsError::ExtrinsicFailed(reason)) =
        &error
    {
        return ChainError::Refused {
            call,
            refusal: from_dispatch(reason),
        };
    }
    if let TransactionFinalizedSuccessError::FinalizationError(
        TransactionProgressError::TransactionStatusError(status),
    ) = &error
    {
        return ChainError::Refused {
            call,
            refusal: Refusal::Other(status.to_string()),
        };
    }
    ChainError::Unconfirmed {
        call,
        cause: Some(Box::new(error)),
    }
}

fn from_dispatch(error: &DispatchError) -> Refusal {
    if let DispatchError::Module(module) = error
        && let Ok(details) = module.details()
    {
        return Refusal::from_pallet(details.pallet.name(), &details.variant.name);
    }
    Refusal::Other(error.to_string())
}

//! Errors as Substrate nodes number them.

use crate::block::Panicked;
use crate::node::Missing;
use crate::rejection::Rejection;
use jsonrpsee::types::ErrorObjectOwned;
use sp_core::H256;
use sp_runtime::transaction_validity::InvalidTransaction;

const VERIFICATION: i32 = 1002;
const INVALID: i32 = 1010;
const UNKNOWN: i32 = 1011;
const BANNED: i32 = 1012;
const ALREADY_IMPORTED: i32 = 1013;
const TOO_LOW_PRIORITY: i32 = 1014;
const DROPPED: i32 = 1016;
const CLIENT: i32 = 4003;
const INTERNAL: i32 = -32603;
const PARAMS: i32 = -32602;

fn error(code: i32, message: impl Into<String>) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(code, message, None::<()>)
}

fn error_with(code: i32, message: &str, data: &str) -> ErrorObjectOwned {
    ErrorObjectOwned::owned(code, message, Some(data))
}

pub(super) fn missing(missing: &Missing, hash: Option<H256>) -> ErrorObjectOwned {
    match missing {
        Missing::Block => error(
            CLIENT,
            format!("Client error: UnknownBlock: header for {hash:?} not found"),
        ),
        Missing::Discarded(hash) => error(
            CLIENT,
            format!("Client error: UnknownBlock: State already discarded for {hash:?}"),
        ),
        Missing::Store(cause) => internal(cause),
    }
}

pub(super) fn no_such_export(method: &str) -> ErrorObjectOwned {
    error(
        CLIENT,
        format!("Client error: Execution failed: Other: Exported method {method} is not found"),
    )
}

pub(super) fn panicked() -> ErrorObjectOwned {
    error(
        CLIENT,
        "Client error: Execution failed: the runtime panicked; were the arguments encoded for this method?",
    )
}

pub(super) fn internal(cause: &impl std::fmt::Display) -> ErrorObjectOwned {
    error(INTERNAL, format!("Internal error: {cause}"))
}

pub(super) fn params(problem: impl Into<String>) -> ErrorObjectOwned {
    error(PARAMS, problem)
}

impl From<Panicked> for ErrorObjectOwned {
    fn from(_: Panicked) -> Self {
        panicked()
    }
}

impl From<Rejection> for ErrorObjectOwned {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Undecodable(cause) => error(VERIFICATION, format!("Verification Error: {cause}")),
            Rejection::Panicked => error(VERIFICATION, "Verification Error: the runtime panicked"),
            Rejection::Invalid(InvalidTransaction::Custom(number)) => {
                error_with(INVALID, "Invalid Transaction", &format!("Custom error: {number}"))
            }
            Rejection::Invalid(invalid) => error_with(INVALID, "Invalid Transaction", invalid.into()),
            Rejection::Unknown(unknown) => {
                error_with(UNKNOWN, "Unknown Transaction Validity", unknown.into())
            }
            Rejection::Known(hash) => error_with(
                ALREADY_IMPORTED,
                "Transaction Already Imported",
                &format!("{hash:?}"),
            ),
            Rejection::Banned => error(BANNED, "Transaction is temporarily banned"),
            Rejection::Priority { old, new } => error_with(
                TOO_LOW_PRIORITY,
                &format!("Priority is too low: ({old} vs {new})"),
                "The transaction has too low priority to replace another transaction already in the pool.",
            ),
            Rejection::Full => error_with(
                DROPPED,
                "Immediately Dropped",
                "The transaction couldn't enter the pool because of the limit",
            ),
        }
    }
}

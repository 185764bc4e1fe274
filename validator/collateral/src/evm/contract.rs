//! The interface of ComputeHorde's collateral contract: calls, answers and the names of its errors. Pure.
//!
//! The signatures are those of `src/Collateral.sol` in `bactensor/collateral-contracts`, read on 23 November 2026 at
//! commit 4f23d94.

use alloy_primitives::{Address, U256};
use alloy_sol_types::{Revert, SolCall, SolError, SolInterface, sol};
use muster_protocol::Rao;

sol! {
    /// The functions that a validator calls, and the errors with which the contract reverts.
    interface Collateral {
        function NETUID() external view returns (uint16);
        function TRUSTEE() external view returns (address);
        function collaterals(address miner) external view returns (uint256);
        function slashCollateral(address miner, uint256 amount, string url, bytes16 urlContentMd5Checksum) external;

        error AmountZero();
        error BeforeDenyTimeout();
        error InsufficientAmount();
        error InvalidDepositMethod();
        error NotTrustee();
        error PastDenyTimeout();
        error ReclaimAmountTooLarge();
        error ReclaimAmountTooSmall();
        error ReclaimNotFound();
        error TransferFailed();
    }
}

/// Wei in one rao: the chain's EVM counts 18 digits after the point, and the chain itself nine.
const WEI_PER_RAO: u64 = 1_000_000_000;

/// The whole rao in an amount of wei, at most all that 64 bits hold.
pub(crate) fn rao_of_wei(wei: U256) -> Rao {
    let rao = wei.checked_div(U256::from(WEI_PER_RAO)).unwrap_or_default();
    Rao(u64::try_from(rao).unwrap_or(u64::MAX))
}

/// An amount of rao in wei.
pub(crate) fn wei_of_rao(rao: Rao) -> U256 {
    U256::from(rao.0).saturating_mul(U256::from(WEI_PER_RAO))
}

/// The bytes of the call that takes `amount` of a miner's deposit and burns it.
pub(crate) fn slash_call(miner: Address, amount: Rao, url: &str, md5: [u8; 16]) -> Vec<u8> {
    Collateral::slashCollateralCall {
        miner,
        amount: wei_of_rao(amount),
        url: url.to_owned(),
        urlContentMd5Checksum: md5.into(),
    }
    .abi_encode()
}

/// The name of the error with which a call was reverted; `None` for data that is no error of the contract.
pub(crate) fn name_revert(data: &[u8]) -> Option<String> {
    if let Ok(error) = Collateral::CollateralErrors::abi_decode(data) {
        return Some(explain(&error).to_owned());
    }
    let plain = Revert::abi_decode(data).ok()?;
    Some(sanitize(&plain.reason))
}

/// Each error as an operator reads it.
fn explain(error: &Collateral::CollateralErrors) -> &'static str {
    use Collateral::CollateralErrors as E;
    match error {
        E::AmountZero(_) => "AmountZero: the amount is zero",
        E::BeforeDenyTimeout(_) => "BeforeDenyTimeout: the time to deny the reclaim is not over",
        E::InsufficientAmount(_) => "InsufficientAmount: the miner has deposited less than this amount",
        E::InvalidDepositMethod(_) => "InvalidDepositMethod: deposits go through deposit() only",
        E::NotTrustee(_) => "NotTrustee: the key is not the contract's trustee",
        E::PastDenyTimeout(_) => "PastDenyTimeout: the time to deny the reclaim is over",
        E::ReclaimAmountTooLarge(_) => "ReclaimAmountTooLarge: more than is deposited",
        E::ReclaimAmountTooSmall(_) => "ReclaimAmountTooSmall: less than the contract's minimum",
        E::ReclaimNotFound(_) => "ReclaimNotFound: there is no such reclaim",
        E::TransferFailed(_) => "TransferFailed: the contract could not send the amount",
    }
}

/// The longest text of a contract or a node that is shown to people, in characters.
const MAX_SHOWN: usize = 200;

/// A text of a contract or a node without control characters, shortened.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use alloy_primitives::hex;

    use super::*;

    /// Selectors as `abi.json` of the same commit gives them, computed with eth-utils 6.0.0.
    #[test]
    fn selectors_are_those_of_the_published_contract() {
        assert_eq!(Collateral::collateralsCall::SELECTOR, COLLATERALS);
        assert_eq!(Collateral::NETUIDCall::SELECTOR, NETUID);
        assert_eq!(Collateral::TRUSTEECall::SELECTOR, TRUSTEE);
        assert_eq!(Collateral::slashCollateralCall::SELECTOR, SLASH);
        assert_eq!(Collateral::NotTrustee::SELECTOR, NOT_TRUSTEE);
    }

    const COLLATERALS: [u8; 4] = hex!("eeb97d3b");
    const NETUID: [u8; 4] = hex!("06016f71");
    const TRUSTEE: [u8; 4] = hex!("881cf23b");
    const SLASH: [u8; 4] = hex!("3d5899ab");
    const NOT_TRUSTEE: [u8; 4] = hex!("5aa309bb");

    #[test]
    fn amounts_are_rounded_down_to_whole_rao_and_never_wrap() {
        assert_eq!(rao_of_wei(U256::from(1_999_999_999_u64)), Rao(1));
        assert_eq!(rao_of_wei(U256::from(999_999_999_u64)), Rao(0));
        assert_eq!(rao_of_wei(U256::MAX), Rao(u64::MAX));
        assert_eq!(rao_of_wei(wei_of_rao(Rao(u64::MAX))), Rao(u64::MAX));
    }

    #[test]
    fn a_revert_is_named() {
        let named = name_revert(&Collateral::NotTrustee {}.abi_encode()).unwrap();
        assert!(named.starts_with("NotTrustee"), "{named}");
        let plain = Revert {
            reason: "no\u{1b}[2J".repeat(100),
        }
        .abi_encode();
        let shown = name_revert(&plain).unwrap();
        assert!(shown.len() <= MAX_SHOWN && !shown.contains('\u{1b}'), "{shown}");
        assert_eq!(name_revert(&[1, 2, 3]), None);
        assert_eq!(name_revert(&[]), None);
    }
}

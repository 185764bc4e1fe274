//! Nonces for hotkeys without a balance. FRAME's own check refuses accounts that nobody pays for; on the public chain a
//! hotkey holds nothing and still signs calls that are free.

use crate::{Nonce, Runtime, RuntimeCall, RuntimeOrigin};
use codec::{Decode, DecodeWithMemTracking, Encode};
use frame_support::dispatch::{DispatchInfo, Pays};
use frame_support::weights::Weight;
use scale_info::TypeInfo;
use sp_runtime::traits::{AsSystemOriginSigner, Implication, TransactionExtension, ValidateResult};
use sp_runtime::transaction_validity::{
    InvalidTransaction, TransactionLongevity, TransactionSource, TransactionValidityError, ValidTransaction,
};

type Account = frame_system::Account<Runtime>;

/// The signer's nonce. Clients know the extension by its identifier, which is FRAME's.
#[derive(Encode, Decode, DecodeWithMemTracking, Clone, PartialEq, Eq, Debug, TypeInfo)]
pub struct CheckNonce(#[codec(compact)] pub Nonce);

impl TransactionExtension<RuntimeCall> for CheckNonce {
    const IDENTIFIER: &'static str = "CheckNonce";
    type Implicit = ();
    /// The signer, where there is one.
    type Val = Option<crate::AccountId>;
    type Pre = ();

    fn weight(&self, _call: &RuntimeCall) -> Weight {
        Weight::zero()
    }

    fn validate(
        &self,
        origin: RuntimeOrigin,
        _call: &RuntimeCall,
        info: &DispatchInfo,
        _len: usize,
        _implicit: (),
        _implication: &impl Implication,
        _source: TransactionSource,
    ) -> ValidateResult<Self::Val, RuntimeCall> {
        let Some(who) = origin.as_system_origin_signer().cloned() else {
            return Ok((ValidTransaction::default(), None, origin));
        };
        let account = Account::get(&who);
        if info.pays_fee == Pays::Yes && account.providers == 0 && account.sufficients == 0 {
            return Err(InvalidTransaction::Payment.into());
        }
        if self.0 < account.nonce {
            return Err(InvalidTransaction::Stale.into());
        }
        let validity = ValidTransaction {
            priority: 0,
            requires: if account.nonce < self.0 {
                vec![(&who, self.0.saturating_sub(1)).encode()]
            } else {
                vec![]
            },
            provides: vec![(&who, self.0).encode()],
            longevity: TransactionLongevity::MAX,
            propagate: true,
        };
        Ok((validity, Some(who), origin))
    }

    fn prepare(
        self,
        who: Self::Val,
        _origin: &RuntimeOrigin,
        _call: &RuntimeCall,
        _info: &DispatchInfo,
        _len: usize,
    ) -> Result<(), TransactionValidityError> {
        let Some(who) = who else { return Ok(()) };
        if self.0 > Account::get(&who).nonce {
            return Err(InvalidTransaction::Future.into());
        }
        Account::mutate(&who, |account| account.nonce = self.0.saturating_add(1));
        Ok(())
    }
}

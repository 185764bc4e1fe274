//! The reasons for which the chain rejects a call, in a block or already in the pool.

use std::fmt;

/// A reason for which the chain rejects a call, with advice on what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallRejection {
    /// The hotkey has no uid on the subnet.
    NotRegistered,
    /// The validator has no permit.
    NoValidatorPermit,
    /// The last weights are too recent.
    WeightsTooFast,
    /// The version key is older than the subnet's.
    WeightVersionKey,
    /// The hotkey's stake is below the minimum for setting weights.
    StakeTooLow,
    /// The subnet accepts weights by commit and reveal only.
    CommitRevealEnabled,
    /// The call has fewer weights than the subnet demands.
    TooFewWeights,
    /// One weight is a larger share than the subnet allows.
    MaxWeightExceeded,
    /// A weight names a uid that does not exist, or one uid twice.
    InvalidUid,
    /// The subnet does not exist.
    NoSuchSubnet,
    /// The address is of a kind that cannot be served.
    InvalidAddress,
    /// The last announcement is too recent.
    ServingTooFast,
    /// The hotkey is registered already.
    AlreadyRegistered,
    /// The subnet accepts no registration now.
    RegistrationClosed,
    /// The coldkey cannot pay.
    BalanceTooLow,
    /// The signature does not fit this chain, mostly because another chain is behind the address.
    BadSignature,
    /// A transaction of the same account with the same number is known.
    NonceUsed,
    /// The pool accepted the call, and no block included it before its signature expired.
    NeverIncluded,
    /// The call was not submitted: its signature would be valid for longer than the caller allows, or the chain has
    /// taken another one since the caller decided.
    TooLate,
    /// The subnet accepts weights without a commit.
    CommitRevealDisabled,
    /// The epoch in which to reveal has not begun.
    RevealTooEarly,
    /// The epoch in which to reveal is over.
    RevealExpired,
    /// The chain knows no commit with this hash.
    NoCommit,
    /// Too many commits of this hotkey wait for their reveal.
    TooManyCommits,
    /// The chain accepts timelocked commits of another version.
    CommitVersion,
    /// The beacon has already published the round that a timelocked commit names.
    RevealRoundOver,
    /// The commit cannot be revealed in this epoch: it is too early or too late.
    NotRevealTime,
    /// The lists of a call that reveals several commits differ in length.
    UnequalLists,
    /// The chain did not understand the call and states no reason.
    BadRequest,
    /// Any other reason, in the chain's own words.
    Other(String),
}

impl CallRejection {
    /// The rejection for an error of a pallet.
    pub fn from_pallet(pallet: &str, error: &str) -> Self {
        match error {
            "HotKeyNotRegisteredInSubNet" | "HotKeyNotRegisteredInNetwork" => Self::NotRegistered,
            "NeuronNoValidatorPermit" => Self::NoValidatorPermit,
            "SettingWeightsTooFast" | "CommittingWeightsTooFast" => Self::WeightsTooFast,
            "IncorrectWeightVersionKey" => Self::WeightVersionKey,
            "NotEnoughStakeToSetWeights" => Self::StakeTooLow,
            "CommitRevealEnabled" => Self::CommitRevealEnabled,
            "WeightVecLengthIsLow" => Self::TooFewWeights,
            "MaxWeightExceeded" => Self::MaxWeightExceeded,
            "UidVecContainInvalidOne" | "DuplicateUids" | "UidsLengthExceedUidsInSubNet" => Self::InvalidUid,
            "MechanismDoesNotExist" | "SubnetNotExists" | "SubNetworkDoesNotExist" => Self::NoSuchSubnet,
            "InvalidIpType" | "InvalidIpAddress" | "InvalidPort" => Self::InvalidAddress,
            "ServingRateLimitExceeded" => Self::ServingTooFast,
            "HotKeyAlreadyRegisteredInSubNet" => Self::AlreadyRegistered,
            "SubNetRegistrationDisabled"
            | "TooManyRegistrationsThisBlock"
            | "TooManyRegistrationsThisInterval"
            | "NoNeuronIdAvailable" => Self::RegistrationClosed,
            "NotEnoughBalanceToStake"
            | "BalanceWithdrawalError"
            | "InsufficientBalance"
            | "NotExpendable" => Self::BalanceTooLow,
            "CommitRevealDisabled" => Self::CommitRevealDisabled,
            "RevealTooEarly" => Self::RevealTooEarly,
            "ExpiredWeightCommit" => Self::RevealExpired,
            "NoWeightsCommitFound" | "InvalidRevealCommitHashNotMatch" => Self::NoCommit,
            "TooManyUnrevealedCommits" => Self::TooManyCommits,
            "IncorrectCommitRevealVersion" => Self::CommitVersion,
            "InvalidRevealRound" => Self::RevealRoundOver,
            "InputLengthsUnequal" => Self::UnequalLists,
            other => Self::Other(format!("{pallet}.{other}")),
        }
    }

    /// The rejection for a JSON-RPC error of a submission: 1010 and its kin.
    ///
    /// Nodes put the reason into `data`, as text (`Custom error: 12`) or as a debugging form (`Custom(12)`).
    pub fn from_pool(code: i32, message: &str, data: Option<&str>) -> Self {
        let detail = data.unwrap_or_default().trim_matches('"');
        if let Some(number) = custom_code(detail).or_else(|| custom_code(message)) {
            return Self::from_custom(number);
        }
        let says = |words: &[&str]| {
            words
                .iter()
                .any(|word| detail.contains(word) || message.contains(word))
        };
        if says(&["bad signature", "BadProof"]) {
            Self::BadSignature
        } else if says(&["outdated", "Stale", "Already Imported", "Priority is too low"]) {
            Self::NonceUsed
        } else if says(&["pay some fees", "Payment"]) {
            Self::BalanceTooLow
        } else if detail.is_empty() {
            Self::Other(format!("{message} ({code})"))
        } else {
            Self::Other(format!("{message} ({code}): {detail}"))
        }
    }

    /// The public chain's numbers for rejections by its transaction extension.
    fn from_custom(number: u8) -> Self {
        match number {
            1 => Self::StakeTooLow,
            6 => Self::WeightsTooFast,
            10 => Self::NotRegistered,
            11 | 13 => Self::InvalidAddress,
            12 => Self::ServingTooFast,
            15 => Self::RevealRoundOver,
            16 => Self::NoCommit,
            // One number means both too early and too late; the caller's commit shows which.
            17 => Self::NotRevealTime,
            18 => Self::UnequalLists,
            255 => Self::BadRequest,
            other => Self::Other(format!("Custom error: {other}")),
        }
    }

    /// The chain's name for the reason.
    pub fn name(&self) -> &str {
        match self {
            Self::NotRegistered => "HotKeyNotRegisteredInSubNet",
            Self::NoValidatorPermit => "NeuronNoValidatorPermit",
            Self::WeightsTooFast => "SettingWeightsTooFast",
            Self::WeightVersionKey => "IncorrectWeightVersionKey",
            Self::StakeTooLow => "NotEnoughStakeToSetWeights",
            Self::CommitRevealEnabled => "CommitRevealEnabled",
            Self::TooFewWeights => "WeightVecLengthIsLow",
            Self::MaxWeightExceeded => "MaxWeightExceeded",
            Self::InvalidUid => "UidVecContainInvalidOne",
            Self::NoSuchSubnet => "SubnetNotExists",
            Self::InvalidAddress => "InvalidIpAddress",
            Self::ServingTooFast => "ServingRateLimitExceeded",
            Self::AlreadyRegistered => "HotKeyAlreadyRegisteredInSubNet",
            Self::RegistrationClosed => "SubNetRegistrationDisabled",
            Self::BalanceTooLow => "NotEnoughBalance",
            Self::BadSignature => "BadProof",
            Self::NonceUsed => "Stale",
            Self::NeverIncluded => "NeverIncluded",
            Self::TooLate => "TooLate",
            Self::CommitRevealDisabled => "CommitRevealDisabled",
            Self::RevealTooEarly => "RevealTooEarly",
            Self::RevealExpired => "ExpiredWeightCommit",
            Self::NoCommit => "NoWeightsCommitFound",
            Self::TooManyCommits => "TooManyUnrevealedCommits",
            Self::CommitVersion => "IncorrectCommitRevealVersion",
            Self::RevealRoundOver => "InvalidRevealRound",
            Self::NotRevealTime => "CommitBlockNotInRevealRange",
            Self::UnequalLists => "InputLengthsUnequal",
            Self::BadRequest => "BadRequest",
            Self::Other(name) => name,
        }
    }

    /// Advice on what to do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotRegistered => "register the hotkey on this subnet",
            Self::NoValidatorPermit => "the hotkey needs more stake than the weakest validator",
            Self::WeightsTooFast => "try again after the subnet's weights rate limit",
            Self::WeightVersionKey => "the subnet asks for newer software: update",
            Self::StakeTooLow => "the hotkey needs more stake to set weights at all",
            Self::CommitRevealEnabled => "weights of this subnet must be committed and revealed",
            Self::TooFewWeights => "the subnet asks for weights on more miners",
            Self::MaxWeightExceeded => "spread the weights: one share is too large",
            Self::InvalidUid => "read the metagraph again: a uid does not exist or is named twice",
            Self::NoSuchSubnet => "check the netuid",
            Self::InvalidAddress => "serve a public address and a port other than 0",
            Self::ServingTooFast => "try again after the subnet's serving rate limit",
            Self::AlreadyRegistered => "no action is needed",
            Self::RegistrationClosed => "try again in a later block",
            Self::BalanceTooLow => "the account needs more TAO",
            Self::BadSignature => "check that the address leads to the chain you mean",
            Self::NonceUsed => "another program signs with this key: try again",
            Self::NeverIncluded => "no block took it in time: try again",
            Self::TooLate => "the chain went on since the call was decided: decide again",
            Self::CommitRevealDisabled => "the subnet takes weights directly now: set them",
            Self::RevealTooEarly => "wait for the epoch after the commit's",
            Self::RevealExpired => "the commit is void: commit anew in the next window",
            Self::NoCommit => "the commit is not on this chain: commit anew in the next window",
            Self::TooManyCommits => "wait until older commits have expired",
            Self::CommitVersion => "the chain expects another format: update",
            Self::RevealRoundOver => "check this machine's clock, and commit anew to a later round",
            Self::NotRevealTime => "reveal in the epoch after the commit's; later, commit anew",
            Self::UnequalLists => "this program made a call that no chain takes: report it",
            Self::BadRequest => "the chain may expect another format: update",
            Self::Other(_) => "look the name up in the chain's documentation",
        }
    }
}

impl fmt::Display for CallRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.hint())
    }
}

/// The number in `Custom error: 12` or `Custom(12)`.
fn custom_code(text: &str) -> Option<u8> {
    let after = ["Custom error: ", "Custom("]
        .into_iter()
        .find_map(|mark| text.split_once(mark))?
        .1;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_says_it_in_words_or_in_a_debugging_form() {
        let pool = |data| CallRejection::from_pool(1010, "Invalid Transaction", Some(data));
        assert_eq!(pool("\"Custom error: 1\""), CallRejection::StakeTooLow);
        assert_eq!(pool("Invalid(Custom(12))"), CallRejection::ServingTooFast);
        assert_eq!(
            pool("Transaction has a bad signature"),
            CallRejection::BadSignature
        );
        assert_eq!(pool("Transaction is outdated"), CallRejection::NonceUsed);
        assert_eq!(
            pool("Custom error: 77"),
            CallRejection::Other("Custom error: 77".into())
        );
        assert_eq!(
            pool("Custom error: 999"),
            CallRejection::Other("Invalid Transaction (1010): Custom error: 999".into())
        );
        assert_eq!(
            CallRejection::from_pool(1014, "Priority is too low: (1 vs 1)", None),
            CallRejection::NonceUsed
        );
        assert_eq!(
            CallRejection::from_pool(1016, "Immediately Dropped", None),
            CallRejection::Other("Immediately Dropped (1016)".into())
        );
    }

    #[test]
    fn every_number_of_the_pool_has_a_name() {
        let names = [
            (1, "NotEnoughStakeToSetWeights"),
            (6, "SettingWeightsTooFast"),
            (10, "HotKeyNotRegisteredInSubNet"),
            (11, "InvalidIpAddress"),
            (12, "ServingRateLimitExceeded"),
            (13, "InvalidIpAddress"),
            (15, "InvalidRevealRound"),
            (16, "NoWeightsCommitFound"),
            (17, "CommitBlockNotInRevealRange"),
            (18, "InputLengthsUnequal"),
            (255, "BadRequest"),
        ];
        for (number, name) in names {
            let data = format!("Custom error: {number}");
            let refusal = CallRejection::from_pool(1010, "Invalid Transaction", Some(&data));
            assert!(!matches!(refusal, CallRejection::Other(_)), "{number}");
            assert_eq!(refusal.name(), name);
        }
    }

    #[test]
    fn an_unknown_error_keeps_its_name() {
        let refusal = CallRejection::from_pallet("SubtensorModule", "NewRule");
        assert_eq!(refusal.name(), "SubtensorModule.NewRule");
        assert!(
            CallRejection::from_pallet("SubtensorModule", "NeuronNoValidatorPermit")
                .to_string()
                .contains("stake")
        );
    }
}

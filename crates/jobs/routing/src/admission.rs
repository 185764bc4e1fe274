//! Whether a validator accepts a job that a facilitator hands over, with a reason that the user can read.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_protocol::job::{BoundedFields, OverLimit, find_over_limits};
use muster_protocol::status::{JobRejectionReason, ParticipantType};
use muster_protocol::wire::facilitator::{RejectionDetails, SignatureScope, UserJobRequest};
use muster_protocol::{Hotkey, Timestamp, UserKey};

/// The users whose jobs are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedUsers {
    /// Every user with a valid signature.
    Any,
    /// The validator itself and these users.
    Listed(BTreeSet<UserKey>),
}

/// The operator's rules about jobs: the users and the facilitators that sign for accounts whose jobs are accepted, and
/// whether there is a miner for those that must run on the validator's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRules {
    /// The users whose jobs are accepted, whether they sign them or a facilitator signs for them.
    pub users: AllowedUsers,
    /// The facilitators that may sign jobs for their accounts.
    pub facilitators: BTreeSet<UserKey>,
    /// Whether the validator keeps a trusted miner.
    pub trusted_miner: bool,
}

impl From<AllowedUsers> for UserRules {
    /// These users, no facilitator, and no trusted miner.
    fn from(users: AllowedUsers) -> Self {
        Self {
            users,
            facilitators: BTreeSet::new(),
            trusted_miner: false,
        }
    }
}

/// The store's reason why a request cannot become a new job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorRequest {
    /// The store has the job's id: the facilitator repeats itself.
    Job,
    /// The store has the user's signature (signatory and time) under another job's id.
    Signature,
    /// The store has deleted signatures of this time, so it cannot know.
    Forgotten,
    /// The store has an attempt of another job, or its receipt, under the job's id, which the first attempt would bear.
    Attempt,
}

/// How far the time inside a user's signature may lie from the validator's clock. The store forgets a signature only
/// once it is older than `max_age`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureAge {
    /// The limit for the past.
    pub max_age: Duration,
    /// The limit for the future, because clocks differ.
    pub max_ahead: Duration,
}

/// The result of checking the signatures of a request, which the caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureCheck {
    /// The user signed the job, and its terms where it has any.
    Holds,
    /// The user did not sign these fields.
    Wrong,
    /// The user signed the job, but not these terms for it.
    WrongTerms,
    /// The user signed the job this many seconds ago, which is too long.
    Old(u64),
    /// The user signed the job this many seconds ahead of the validator's clock, which is too far.
    Ahead(u64),
}

impl SignatureAge {
    /// The result of checking a signature that holds: whether its time (Unix nanoseconds) lies within the limits at
    /// `now`.
    pub fn check(&self, timestamp_ns: i64, now: Timestamp) -> SignatureCheck {
        let age = i128::from(now.micros()) * 1_000 - i128::from(timestamp_ns);
        let beyond = |distance: i128, limit: Duration| {
            let nanos = u128::try_from(distance).unwrap_or(0);
            let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
            (nanos > limit.as_nanos()).then_some(seconds)
        };
        match (beyond(age, self.max_age), beyond(-age, self.max_ahead)) {
            (Some(seconds), _) => SignatureCheck::Old(seconds),
            (None, Some(seconds)) => SignatureCheck::Ahead(seconds),
            (None, None) => SignatureCheck::Holds,
        }
    }
}

/// A fault of a request, as text for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// The signature does not hold, or its signatory may not submit the job.
    Submitter(String),
    /// No miner could run the job.
    Limits(String),
}

impl RequestFault {
    /// The refusal for the user.
    pub fn into_refusal(self) -> RejectionDetails {
        match self {
            Self::Submitter(message) => refusal(JobRejectionReason::InvalidSignature, message),
            Self::Limits(message) => refusal(JobRejectionReason::NoMinerForJob, message),
        }
    }
}

/// The answer to a request that the store knows.
#[derive(Clone, Debug, PartialEq)]
pub enum PriorAnswer {
    /// Report the job's status again.
    Repeat,
    /// Refuse the job, with these details for the user.
    Refuse(RejectionDetails),
}

/// Checks the request itself, whatever the store knows of it.
///
/// The checks go from the user to the job, so that a stolen key reveals nothing about the limits.
///
/// # Errors
/// The first fault of the request.
pub fn check_request(
    request: &UserJobRequest,
    signature: SignatureCheck,
    rules: &UserRules,
    me: Hotkey,
) -> Result<(), RequestFault> {
    check_signature(request, signature)
        .and_then(|()| check_submitter(request, rules, me))
        .map_err(RequestFault::Submitter)?;
    check_limits(request, rules.trusted_miner).map_err(RequestFault::Limits)
}

/// Decides about a request that the store knows. `fault` is the request's own fault: a repeated job has its status
/// reported in spite of it, and a fault of the submitter is named before what the store knows.
pub fn resolve_prior(prior: PriorRequest, fault: Option<RequestFault>) -> PriorAnswer {
    let (reason, message) = match prior {
        PriorRequest::Job => return PriorAnswer::Repeat,
        PriorRequest::Signature => (
            JobRejectionReason::InvalidSignature,
            "this signature was used for another job; sign again with the present time",
        ),
        PriorRequest::Forgotten => (
            JobRejectionReason::InvalidSignature,
            "this validator has deleted its records of signatures of that time; sign again with the present time",
        ),
        PriorRequest::Attempt => (
            JobRejectionReason::NoMinerForJob,
            "the job's id is that of another job's attempt; submit the job under a new id",
        ),
    };
    PriorAnswer::Refuse(match fault {
        Some(fault @ RequestFault::Submitter(_)) => fault.into_refusal(),
        Some(RequestFault::Limits(_)) | None => refusal(reason, message.to_owned()),
    })
}

fn refusal(reason: JobRejectionReason, message: String) -> RejectionDetails {
    RejectionDetails {
        rejected_by: ParticipantType::Validator,
        reason,
        message,
        context: None,
    }
}

fn check_signature(request: &UserJobRequest, signature: SignatureCheck) -> Result<(), String> {
    match request.signature.signature_scope {
        SignatureScope::SignedFields => {}
        SignatureScope::FullRequest => return Err("a job is signed with the scope SignedFields".to_owned()),
    }
    Err(match signature {
        SignatureCheck::Holds => return Ok(()),
        SignatureCheck::Wrong => {
            "the user's signature does not hold for these fields; sign the job again".to_owned()
        }
        SignatureCheck::WrongTerms => {
            "the terms are not signed by the job's user for this job; sign the terms again".to_owned()
        }
        SignatureCheck::Old(seconds) => {
            format!(
                "the job was signed {seconds} s ago, which is too long; sign it again, and check your clock"
            )
        }
        SignatureCheck::Ahead(seconds) => {
            format!("the job's signature is {seconds} s ahead of the validator's clock; check your clock")
        }
    })
}

/// Checks that the signatory may submit jobs, and the account for which it signed.
///
/// A facilitator answers for accounts that are names. An account that is a hotkey could have signed itself, so it is
/// accepted only where its own signature would be.
fn check_submitter(request: &UserJobRequest, rules: &UserRules, me: Hotkey) -> Result<(), String> {
    let signatory = request.signature.signatory;
    let is_facilitator = rules.facilitators.contains(&signatory);
    if !is_facilitator && !is_allowed(signatory, &rules.users, me) {
        return Err(
            "this validator does not take jobs of this user; ask its operator to list the hotkey".to_owned(),
        );
    }
    match request.signed_for() {
        Some(account) => match account.parse::<UserKey>() {
            Ok(user) if !is_allowed(user, &rules.users, me) => Err(format!(
                "this validator does not take jobs of the account {user}; ask its operator to list the hotkey"
            )),
            Ok(_) | Err(_) => Ok(()),
        },
        None if is_facilitator => Err(
            "the facilitator signed this job without naming its account; submit the job again, or ask the \
             facilitator's operator for a newer version"
                .to_owned(),
        ),
        None => Ok(()),
    }
}

fn is_allowed(user: UserKey, users: &AllowedUsers, me: Hotkey) -> bool {
    match users {
        AllowedUsers::Any => true,
        AllowedUsers::Listed(keys) => user.0 == me || keys.contains(&user),
    }
}

/// Checks the limits outside which no miner could run the job, or its receipts would be invalid.
fn check_limits(request: &UserJobRequest, trusted_miner: bool) -> Result<(), String> {
    let mut over = find_over_limits(&BoundedFields::from(request));
    if let Some(extension) = &request.muster {
        over.extend(extension.find_over_limits(&request.docker_image));
    }
    if !over.is_empty() {
        return Err(over
            .iter()
            .map(OverLimit::to_string)
            .collect::<Vec<_>>()
            .join(" "));
    }
    if request.on_trusted_miner && !trusted_miner {
        return Err(
            "this validator keeps no trusted miner; submit the job without on_trusted_miner".to_owned(),
        );
    }
    let details = request.streaming_details.as_ref();
    if details.is_some_and(|details| details.muster.is_some()) {
        // A miner attests and is paid by these terms, so they come only from this validator's whitelist.
        return Err("only this validator may set the terms of a sealed session".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_protocol::job::MAX_JOB_SECS;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::{hotkey, request};

    /// A request with a signature that holds, to a validator with the hotkey 0.
    fn check(request: &UserJobRequest, rules: &UserRules) -> Result<(), RequestFault> {
        check_request(request, SignatureCheck::Holds, rules, hotkey(0))
    }

    fn reason(checked: Result<(), RequestFault>) -> (JobRejectionReason, String) {
        let details = checked.unwrap_err().into_refusal();
        (details.reason, details.message)
    }

    fn any_user() -> UserRules {
        AllowedUsers::Any.into()
    }

    #[test]
    fn a_signature_is_good_between_its_limits() {
        let age = SignatureAge {
            max_age: Duration::from_secs(60),
            max_ahead: Duration::from_secs(5),
        };
        let now = Timestamp::from_secs(1_000);
        let at = |secs: i64, nanos: i64| age.check(secs * 1_000_000_000 + nanos, now);
        assert_eq!(at(1_000, 0), SignatureCheck::Holds);
        assert_eq!(at(940, 0), SignatureCheck::Holds);
        assert_eq!(at(940, -1), SignatureCheck::Old(60));
        assert_eq!(at(1_005, 0), SignatureCheck::Holds);
        assert_eq!(at(1_005, 1), SignatureCheck::Ahead(5));
        assert_eq!(age.check(i64::MIN, now), SignatureCheck::Old(9_223_373_036));
        assert_eq!(age.check(i64::MAX, now), SignatureCheck::Ahead(9_223_371_036));
    }

    #[test]
    fn a_listed_user_with_a_good_signature_is_admitted() {
        let users = AllowedUsers::Listed([UserKey(hotkey(7))].into()).into();
        assert_eq!(check(&request(), &users), Ok(()));
        assert_eq!(check(&request(), &any_user()), Ok(()));
        let nobody = AllowedUsers::Listed(BTreeSet::new()).into();
        let own_key = check_request(&request(), SignatureCheck::Holds, &nobody, hotkey(7));
        assert_eq!(own_key, Ok(()));
    }

    /// A job that hotkey 7 signed for an account.
    fn signed_for(account: &str) -> UserJobRequest {
        let mut request = request();
        request.muster = serde_json::from_value(json!({ "account": account })).unwrap();
        request
    }

    #[test]
    fn a_facilitator_signs_for_names_and_for_hotkeys_that_are_listed_themselves() {
        let rules = UserRules {
            users: AllowedUsers::Listed([UserKey(hotkey(3))].into()),
            facilitators: [UserKey(hotkey(7))].into(),
            trusted_miner: false,
        };
        let refusal = |request: &UserJobRequest, rules: &UserRules| reason(check(request, rules)).1;
        let (listed, stranger) = (hotkey(3).to_string(), hotkey(4).to_string());
        assert_eq!(check(&signed_for("alice"), &rules), Ok(()));
        assert_eq!(check(&signed_for(&listed), &rules), Ok(()));
        let past_the_list = refusal(&signed_for(&stranger), &rules);
        assert!(past_the_list.contains("jobs of the account"), "{past_the_list}");
        // A facilitator that is listed as a user, as before, is no way past the list either.
        let as_user = UserRules::from(AllowedUsers::Listed([UserKey(hotkey(7))].into()));
        assert_eq!(check(&signed_for("alice"), &as_user), Ok(()));
        let past_the_list = refusal(&signed_for(&listed), &as_user);
        assert!(past_the_list.contains("jobs of the account"), "{past_the_list}");
        // A facilitator is no user: its own jobs are those of an account that it does not name.
        for unnamed in [request(), signed_for(&hotkey(7).to_string())] {
            let message = refusal(&unnamed, &rules);
            assert!(message.contains("without naming its account"), "{message}");
        }
        assert_eq!(check(&signed_for(&stranger), &any_user()), Ok(()));
    }

    #[test]
    fn a_refused_submitter_learns_the_fault() {
        let nobody = AllowedUsers::Listed(BTreeSet::new()).into();
        let mut full = request();
        full.signature.signature_scope = SignatureScope::FullRequest;
        let signed = |signature| check_request(&request(), signature, &any_user(), hotkey(0));
        let cases = [
            (signed(SignatureCheck::Wrong), "does not hold"),
            (check(&request(), &nobody), "does not take jobs"),
            (signed(SignatureCheck::Old(7)), "signed 7 s ago"),
            (signed(SignatureCheck::Ahead(8)), "8 s ahead"),
            (signed(SignatureCheck::WrongTerms), "sign the terms again"),
            (check(&full, &any_user()), "scope SignedFields"),
        ];
        for (checked, words) in cases {
            let (reason, message) = reason(checked);
            assert_eq!(reason, JobRejectionReason::InvalidSignature);
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn a_known_request_is_repeated_or_refused_with_the_reason() {
        let submitter = || Some(RequestFault::Submitter("a stranger".to_owned()));
        let limits = || Some(RequestFault::Limits("too long".to_owned()));
        for fault in [None, submitter(), limits()] {
            assert_eq!(resolve_prior(PriorRequest::Job, fault), PriorAnswer::Repeat);
        }
        let refused = |prior, fault| match resolve_prior(prior, fault) {
            PriorAnswer::Refuse(details) => (details.reason, details.message),
            PriorAnswer::Repeat => panic!("{prior:?} is no repetition"),
        };
        let signature = JobRejectionReason::InvalidSignature;
        let cases = [
            (PriorRequest::Signature, signature, "used for another job"),
            (PriorRequest::Forgotten, signature, "deleted its records"),
            (
                PriorRequest::Attempt,
                JobRejectionReason::NoMinerForJob,
                "under a new id",
            ),
        ];
        for (prior, reason, words) in cases {
            for fault in [None, limits()] {
                let (code, message) = refused(prior, fault);
                assert_eq!(code, reason);
                assert!(message.contains(words), "{message}");
            }
            assert_eq!(refused(prior, submitter()), (signature, "a stranger".to_owned()));
        }
    }

    #[test]
    fn limits_that_no_miner_could_keep_are_named() {
        type Breaking = fn(&mut UserJobRequest);
        let broken: [(Breaking, &str); 12] = [
            (|r| r.execution_time_limit = u64::MAX, "thirty days"),
            (|r| r.execution_time_limit = 0, "at least one second"),
            (|r| r.docker_image.clear(), "docker_image"),
            (|r| r.docker_image = "a b".to_owned(), "docker_image"),
            (|r| r.docker_image = "a/../b".to_owned(), "docker_image"),
            (|r| r.docker_image = "a\u{7}b".to_owned(), "docker_image"),
            (|r| r.args = vec![String::new(); 5_000], "entries"),
            (|r| r.args = vec!["x".repeat(2 << 20)], "bytes"),
            (|r| r.args = vec!["a\0b".to_owned()], "NUL"),
            (|r| r.on_trusted_miner = true, "trusted miner"),
            (
                |r| {
                    let terms = json!({"terms": {"image_time_limit": 0}});
                    r.muster = serde_json::from_value(terms).unwrap();
                },
                "image_time_limit",
            ),
            (
                |r| r.muster = serde_json::from_value(json!({"account": "a b"})).unwrap(),
                "account",
            ),
        ];
        for (spoil, words) in broken {
            let mut request = request();
            spoil(&mut request);
            let (_, message) = reason(check(&request, &any_user()));
            assert!(message.contains(words), "{message}");
        }
        let mut request = request();
        request.env.insert("A=B".to_owned(), String::new());
        assert!(reason(check(&request, &any_user())).1.contains("'='"));
    }

    #[test]
    fn a_job_for_the_trusted_miner_is_admitted_where_there_is_one() {
        let mut request = request();
        request.on_trusted_miner = true;
        let decide = |trusted_miner| {
            let rules = UserRules {
                trusted_miner,
                ..AllowedUsers::Any.into()
            };
            check(&request, &rules)
        };
        assert_eq!(decide(true), Ok(()));
        let (code, message) = reason(decide(false));
        assert_eq!(code, JobRejectionReason::NoMinerForJob);
        assert!(
            message.contains("submit the job without on_trusted_miner"),
            "{message}"
        );
    }

    #[test]
    fn a_user_sets_no_terms_of_a_sealed_session() {
        let mut direct = request();
        let details = json!({"public_key": "a certificate"});
        direct.streaming_details = serde_json::from_value(details.clone()).unwrap();
        assert_eq!(check(&direct, &any_user()), Ok(()));
        let mut sealed = details;
        sealed["muster"] = json!({
            "model": "m", "image": format!("sha256:{}", "0".repeat(64)), "scheme": "text", "health": "/",
            "input_price": 0, "output_price": 0,
        });
        direct.streaming_details = serde_json::from_value(sealed).unwrap();
        let (_, message) = reason(check(&direct, &any_user()));
        assert!(message.contains("sealed session"), "{message}");
    }

    proptest! {
        #[test]
        fn a_request_without_a_signature_that_holds_is_refused(
            check in 0usize..3, listed: bool, full: bool, seconds: [u64; 4], trusted: bool,
            trusted_miner: bool,
        ) {
            let check = [SignatureCheck::Holds, SignatureCheck::Wrong, SignatureCheck::WrongTerms][check];
            let keys = if listed { [UserKey(hotkey(7))].into() } else { BTreeSet::new() };
            let users = UserRules { trusted_miner, ..AllowedUsers::Listed(keys).into() };
            let mut request = request();
            [request.download_time_limit, request.execution_time_limit, request.upload_time_limit,
                request.streaming_start_time_limit] = seconds;
            request.on_trusted_miner = trusted;
            if full { request.signature.signature_scope = SignatureScope::FullRequest; }
            if check_request(&request, check, &users, hotkey(0)).is_ok() {
                prop_assert!(check == SignatureCheck::Holds && listed && !full);
                prop_assert!(trusted_miner || !trusted);
                prop_assert!(seconds.iter().map(|s| u128::from(*s)).sum::<u128>() <= u128::from(MAX_JOB_SECS));
            }
        }
    }
}

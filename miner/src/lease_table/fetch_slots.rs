//! The slots in which executors fetch images. A lease that fetches takes a slot instead of an executor, so that a slow
//! registry keeps no executor from other jobs. Slots are bounded for each account and each registry, so that neither
//! can take all of them. Pure.

use std::collections::HashMap;

use muster_protocol::AttemptId;

/// The bounds on fetches at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchRules {
    /// Fetches in all.
    pub slots: u32,
    /// Fetches of one account.
    pub per_account: u32,
    /// Fetches from one registry.
    pub per_registry: u32,
    /// Leases that wait for a slot without keeping an executor. A further one keeps its executor while it waits.
    pub waiting: u32,
}

/// One lease that fetches its image, or waits for a slot to do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FetchRequest<'a> {
    pub(crate) attempt: AttemptId,
    pub(crate) account: &'a str,
    pub(crate) registry: &'a str,
    /// Whether the lease has a slot.
    pub(crate) granted: bool,
}

impl FetchRules {
    /// The leases that get a slot now, given all of them, those that have waited longest first. A lease whose account
    /// or registry is at its bound is passed over, and keeps its place. The last free slot goes to an account that has
    /// none, so that two accounts cannot hold them all.
    pub(crate) fn grant(&self, requests: &[FetchRequest<'_>]) -> Vec<AttemptId> {
        let (mut all, mut accounts, mut registries) = (0_u32, HashMap::new(), HashMap::new());
        for request in requests.iter().filter(|request| request.granted) {
            all = all.saturating_add(1);
            add(&mut accounts, request.account);
            add(&mut registries, request.registry);
        }
        let mut granted = Vec::new();
        for request in requests.iter().filter(|request| !request.granted) {
            let of = |counts: &HashMap<&str, u32>, key: &str| counts.get(key).copied().unwrap_or(0);
            let own = of(&accounts, request.account);
            let is_last = all.saturating_add(1) == self.slots;
            if all < self.slots
                && own < self.per_account
                && (own == 0 || !is_last)
                && of(&registries, request.registry) < self.per_registry
            {
                all = all.saturating_add(1);
                add(&mut accounts, request.account);
                add(&mut registries, request.registry);
                granted.push(request.attempt);
            }
        }
        granted
    }

    /// Leases that fetch or wait for a slot without keeping an executor, at most.
    pub(crate) fn places(&self) -> u32 {
        self.slots.saturating_add(self.waiting)
    }
}

fn add<'a>(counts: &mut HashMap<&'a str, u32>, key: &'a str) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const RULES: FetchRules = FetchRules {
        slots: 4,
        per_account: 2,
        per_registry: 3,
        waiting: 2,
    };

    fn request<'a>(number: u128, account: &'a str, registry: &'a str, granted: bool) -> FetchRequest<'a> {
        FetchRequest {
            attempt: AttemptId::from_uuid(Uuid::from_u128(number)),
            account,
            registry,
            granted,
        }
    }

    #[test]
    fn an_account_at_its_bound_delays_nobody_behind_it() {
        let asked = [
            request(1, "a", "tarpit", true),
            request(2, "a", "tarpit", true),
            request(3, "a", "elsewhere", false),
            request(4, "b", "tarpit", false),
            request(5, "c", "tarpit", false),
            request(6, "c", "elsewhere", false),
        ];
        let granted: Vec<u128> = RULES
            .grant(&asked)
            .iter()
            .map(|attempt| attempt.as_uuid().as_u128())
            .collect();
        assert_eq!(granted, [4, 6], "a is at its bound, and so is the tarpit after 4");
    }

    #[test]
    fn two_accounts_leave_a_slot_for_a_third() {
        let numbers = |asked: &[FetchRequest<'_>]| {
            let granted = RULES.grant(asked).into_iter();
            granted
                .map(|attempt| attempt.as_uuid().as_u128())
                .collect::<Vec<_>>()
        };
        let mut asked: Vec<_> = (0..8)
            .map(|number| request(number, ["a", "b"][number as usize % 2], "x", false))
            .collect();
        let rules = FetchRules {
            per_registry: 4,
            ..RULES
        };
        let granted = rules.grant(&asked);
        assert_eq!(granted.len(), 3, "of four slots");
        for one in &mut asked {
            one.granted = granted.contains(&one.attempt);
        }
        asked.push(request(9, "c", "y", false));
        assert_eq!(numbers(&asked), [9]);
    }

    proptest! {
        #[test]
        fn no_bound_is_passed_and_no_slot_stays_empty_without_a_reason(
            asked in prop::collection::vec((0_usize..4, 0_usize..3, any::<bool>()), 0..24),
        ) {
            const NAMES: [&str; 4] = ["a", "b", "c", "d"];
            let mut held = 0;
            let requests: Vec<_> = asked
                .iter()
                .enumerate()
                .map(|(number, (account, registry, granted))| {
                    // Only as many are granted as one table could have granted.
                    let granted = *granted && held == 0;
                    held += u32::from(granted);
                    request(number as u128, NAMES[*account], NAMES[*registry], granted)
                })
                .collect();
            let new = RULES.grant(&requests);
            let running: Vec<_> = requests
                .iter()
                .filter(|one| one.granted || new.contains(&one.attempt))
                .collect();
            let of = |key: &dyn Fn(&FetchRequest<'_>) -> bool| running.iter().filter(|one| key(one)).count() as u32;
            prop_assert!(of(&|_| true) <= RULES.slots);
            for one in &requests {
                let (account, registry) = (of(&|other| other.account == one.account), of(&|other| other.registry == one.registry));
                prop_assert!(account <= RULES.per_account && registry <= RULES.per_registry);
                let runs = one.granted || new.contains(&one.attempt);
                let all = of(&|_| true);
                let is_kept_free = account > 0 && all + 1 == RULES.slots;
                prop_assert!(
                    runs || all == RULES.slots || is_kept_free || account == RULES.per_account
                        || registry == RULES.per_registry
                );
            }
        }
    }
}

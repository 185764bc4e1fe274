//! Which miner gets a job: a pure, repeatable choice with a reason for everyone who was passed over.
//!
//! Nothing here is random. Miners that are equal in what is known of them are ordered by a hash of the job's id and
//! their hotkey, so that work spreads over jobs and anyone can recompute the order of one job.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use muster_chain::{Metagraph, Uid};
use muster_protocol::job::{Fault, Outcome};
use muster_protocol::{Digest, ExecutorClass, Hotkey, JobId, Manifest, MinerKey};
use serde::Serialize;
use serde_json::{Value, json};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The job; it also seeds the order among equals.
    pub job: JobId,
    /// The kind of executor.
    pub class: ExecutorClass,
    /// Miners that had their attempt at this job already.
    pub tried: BTreeSet<MinerKey>,
}

/// What this validator knows of a miner beyond the metagraph.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Attempts of ours that are under way there, by class.
    pub open: BTreeMap<ExecutorClass, u32>,
    /// Attempts that ended lately by the miner's fault or with its connection lost.
    pub incidents: u32,
    /// Attempts that ended lately by somebody else's fault, as the miner says.
    pub excuses: u32,
    /// What it last announced; `None` before the first connection.
    pub manifest: Option<Manifest>,
}

impl Standing {
    fn open_of(&self, class: ExecutorClass) -> u32 {
        self.open.get(&class).copied().unwrap_or(0)
    }

    fn open_total(&self) -> u32 {
        self.open.values().copied().fold(0, u32::saturating_add)
    }
}

/// A miner that may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its place in the subnet.
    pub uid: Uid,
    /// Who it is.
    pub miner: MinerKey,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Why a miner is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Exclusion {
    /// It has announced no address on the chain.
    NoAxon,
    /// Its address cannot be dialled: unspecified, multicast, or port 0.
    BadAxon,
    /// It is this validator itself.
    OwnHotkey,
    /// It had its attempt at this job.
    AlreadyTried,
    /// Its last manifest has no executor of the class.
    ClassNotOffered,
    /// All its executors of the class are at work for this validator.
    Busy {
        /// Attempts under way.
        open: u32,
        /// Executors announced.
        capacity: u32,
    },
    /// It failed too many attempts lately.
    LostLately {
        /// How many.
        incidents: u32,
    },
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAxon => f.write_str("no axon on the chain"),
            Self::BadAxon => f.write_str("its axon is not an address that can be dialled"),
            Self::OwnHotkey => f.write_str("it is this validator's own hotkey"),
            Self::AlreadyTried => f.write_str("it was already asked for this job"),
            Self::ClassNotOffered => f.write_str("its manifest has no executor of this class"),
            Self::Busy { open, capacity } => {
                write!(f, "{open} of its {capacity} executors are at work for us")
            }
            Self::LostLately { incidents } => write!(f, "it failed {incidents} attempts lately"),
        }
    }
}

/// A miner that was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Its place in the subnet.
    pub uid: Uid,
    /// Who it is.
    pub miner: MinerKey,
    /// Why.
    pub reason: Exclusion,
}

/// The whole answer: every neuron of the metagraph is in exactly one of the two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// In the order in which they are to be asked.
    pub candidates: Vec<Candidate>,
    /// Everyone else, by uid.
    pub excluded: Vec<Excluded>,
}

impl Route {
    /// The exclusions as they travel to the user in a rejection's context.
    pub fn explain(&self) -> Value {
        let rows = self.excluded.iter().map(|excluded| {
            json!({ "uid": excluded.uid.0, "miner": excluded.miner, "reason": excluded.reason.to_string() })
        });
        rows.collect()
    }
}

/// What the end of an attempt leaves on its miner's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Clean,
    /// It failed by somebody else's fault, as the miner says. Enough of these never leave a miner out, or users' mistakes
    /// would; they put it behind its equals, so that excuses earn it neither pay nor jobs.
    Excuse,
    /// It failed by the miner's fault, or with its connection lost. Enough of these leave a miner out.
    Incident,
}

/// Judges the end of an attempt. A refusal leaves no mark: a busy miner says so honestly.
pub fn mark(outcome: &Outcome) -> Mark {
    match outcome {
        Outcome::Completed(_) | Outcome::Rejected(_) | Outcome::Failed(_) => Mark::Clean,
        Outcome::HordeFailed(_) if outcome.is_excuse() => Mark::Excuse,
        Outcome::HordeFailed(_) => match outcome.fault() {
            Fault::Miner | Fault::Executor | Fault::Network => Mark::Incident,
            Fault::Nobody | Fault::User | Fault::Validator | Fault::Facilitator => Mark::Clean,
        },
    }
}

/// Orders the miners of `metagraph` for `wish`.
///
/// `max_incidents` is the number of recent incidents from which a miner is left out. Among the rest the one with fewer
/// incidents comes first, then the one with fewer excuses, then the one with less work of ours, then the hash.
pub fn route(
    wish: &Wish,
    metagraph: &Metagraph,
    me: Hotkey,
    standings: &BTreeMap<MinerKey, Standing>,
    max_incidents: u32,
) -> Route {
    let unknown = Standing::default();
    let mut route = Route::default();
    let mut ranked = Vec::new();
    for neuron in &metagraph.neurons {
        let miner = MinerKey(neuron.hotkey);
        let standing = standings.get(&miner).unwrap_or(&unknown);
        match consider(wish, miner, neuron.axon, me, standing, max_incidents) {
            Ok(address) => {
                let rank = (
                    standing.incidents,
                    standing.excuses,
                    standing.open_total(),
                    tie_break(wish.job, miner),
                );
                ranked.push((
                    rank,
                    Candidate {
                        uid: neuron.uid,
                        miner,
                        address,
                    },
                ));
            }
            Err(reason) => route.excluded.push(Excluded {
                uid: neuron.uid,
                miner,
                reason,
            }),
        }
    }
    ranked.sort_by_key(|(rank, candidate)| (*rank, candidate.uid.0));
    route.excluded.sort_by_key(|excluded| excluded.uid.0);
    route.candidates = ranked.into_iter().map(|(_, candidate)| candidate).collect();
    route
}

/// The reasons in the order in which they are told: what the miner can mend itself comes first.
fn consider(
    wish: &Wish,
    miner: MinerKey,
    axon: Option<SocketAddr>,
    me: Hotkey,
    standing: &Standing,
    max_incidents: u32,
) -> Result<SocketAddr, Exclusion> {
    if miner.0 == me {
        return Err(Exclusion::OwnHotkey);
    }
    let address = axon.ok_or(Exclusion::NoAxon)?;
    if !can_be_dialled(address) {
        return Err(Exclusion::BadAxon);
    }
    if wish.tried.contains(&miner) {
        return Err(Exclusion::AlreadyTried);
    }
    if let Some(manifest) = &standing.manifest {
        let capacity = manifest.count(wish.class);
        let open = standing.open_of(wish.class);
        if capacity == 0 {
            return Err(Exclusion::ClassNotOffered);
        }
        if open >= capacity {
            return Err(Exclusion::Busy { open, capacity });
        }
    }
    if standing.incidents >= max_incidents {
        return Err(Exclusion::LostLately {
            incidents: standing.incidents,
        });
    }
    Ok(address)
}

fn can_be_dialled(address: SocketAddr) -> bool {
    let broadcast = match address.ip() {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast() && !broadcast
}

fn tie_break(job: JobId, miner: MinerKey) -> Digest {
    let mut seed = job.as_uuid().as_bytes().to_vec();
    seed.extend_from_slice(miner.0.as_bytes());
    Digest::of(&seed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{hotkey, job, metagraph, miner};

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn wish(seed: u128) -> Wish {
        Wish {
            job: job(seed),
            class: CLASS,
            tried: BTreeSet::new(),
        }
    }

    fn axon(port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    #[test]
    fn every_exclusion_names_its_reason() {
        let full = Standing {
            open: [(CLASS, 2)].into(),
            manifest: Some(Manifest::new([(CLASS, 2)])),
            ..Standing::default()
        };
        let other = Standing {
            manifest: Some(Manifest::new([(ExecutorClass::AlwaysOnLlmA6000, 2)])),
            ..Standing::default()
        };
        let lost = Standing {
            incidents: 3,
            ..Standing::default()
        };
        let standings = [(miner(4), full), (miner(5), other), (miner(6), lost)].into();
        let neurons = [
            (0, axon(1)),
            (1, None),
            (2, axon(0)),
            (3, axon(1)),
            (4, axon(1)),
            (5, axon(1)),
            (6, axon(1)),
            (7, axon(7)),
        ];
        let mut wish = wish(1);
        wish.tried.insert(miner(3));
        let route = route(&wish, &metagraph(&neurons), hotkey(0), &standings, 3);
        let reasons: Vec<_> = route.excluded.iter().map(|e| (e.uid.0, e.reason)).collect();
        let expected = vec![
            (0, Exclusion::OwnHotkey),
            (1, Exclusion::NoAxon),
            (2, Exclusion::BadAxon),
            (3, Exclusion::AlreadyTried),
            (4, Exclusion::Busy { open: 2, capacity: 2 }),
            (5, Exclusion::ClassNotOffered),
            (6, Exclusion::LostLately { incidents: 3 }),
        ];
        assert_eq!(reasons, expected);
        assert_eq!(route.candidates.len(), 1);
        assert_eq!(route.explain()[1]["reason"], "no axon on the chain");
    }

    #[test]
    fn the_reliable_come_before_the_full_of_excuses_and_the_idle_before_the_busy() {
        let standings = [
            (
                miner(1),
                Standing {
                    incidents: 1,
                    ..Standing::default()
                },
            ),
            (
                miner(2),
                Standing {
                    open: [(CLASS, 4)].into(),
                    ..Standing::default()
                },
            ),
            (
                miner(4),
                Standing {
                    excuses: 99,
                    ..Standing::default()
                },
            ),
        ]
        .into();
        let neurons = [(1, axon(1)), (2, axon(2)), (3, axon(3)), (4, axon(4))];
        let route = route(&wish(9), &metagraph(&neurons), hotkey(0), &standings, 3);
        let order: Vec<_> = route.candidates.iter().map(|c| c.uid.0).collect();
        assert_eq!(order, [3, 2, 4, 1], "excuses leave nobody out");
    }

    #[test]
    fn equals_share_the_work_over_many_jobs() {
        let neurons = [(1, axon(1)), (2, axon(2)), (3, axon(3)), (4, axon(4))];
        let metagraph = metagraph(&neurons);
        let mut first = BTreeMap::<u16, u32>::new();
        for seed in 0..400 {
            let route = route(&wish(seed), &metagraph, hotkey(0), &BTreeMap::new(), 3);
            *first.entry(route.candidates[0].uid.0).or_default() += 1;
        }
        assert!(first.values().all(|count| (50..150).contains(count)), "{first:?}");
    }

    proptest! {
        #[test]
        fn every_neuron_is_placed_once_and_the_answer_does_not_depend_on_their_order(
            ports in proptest::collection::vec(proptest::option::of(0u16..3), 0..12),
            incidents in proptest::collection::vec(0u32..5, 12),
            open in proptest::collection::vec(0u32..4, 12),
            seed in any::<u128>(),
        ) {
            let mut neurons: Vec<_> = ports.iter().enumerate()
                .map(|(uid, port)| (u8::try_from(uid).unwrap(), port.and_then(axon))).collect();
            let standings: BTreeMap<_, _> = incidents.iter().zip(&open).enumerate().map(|(uid, (&incidents, &open))| {
                let manifest = Some(Manifest::new([(CLASS, 2)]));
                (miner(u8::try_from(uid).unwrap()), Standing { incidents, excuses: open, open: [(CLASS, open)].into(), manifest })
            }).collect();
            let one = route(&wish(seed), &metagraph(&neurons), hotkey(0), &standings, 3);
            neurons.reverse();
            let two = route(&wish(seed), &metagraph(&neurons), hotkey(0), &standings, 3);
            prop_assert_eq!(&one, &two);
            prop_assert_eq!(one.candidates.len() + one.excluded.len(), neurons.len());
            for candidate in &one.candidates {
                prop_assert!(candidate.miner != miner(0) && candidate.address.port() != 0);
            }
        }
    }
}

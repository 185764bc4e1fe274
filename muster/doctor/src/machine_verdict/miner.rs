//! Verdicts over a miner's configuration: its registration, its announcement, its certificate, its port, its pools.

use std::net::SocketAddr;

use crate::machine_verdict::is_example;
use crate::machine_verdict::machine_facts::{DialFacts, MinerFacts, PoolFacts};
use crate::machine_verdict::verdict::{Severity, Verdict};

/// Every verdict, in the order in which one would mend things.
pub(crate) fn judge(miner: &MinerFacts) -> Vec<Verdict> {
    let mut verdicts = vec![registration(miner)];
    if miner.registered == Some(true) {
        verdicts.push(announcement(miner));
        verdicts.push(certificate(miner));
    }
    verdicts.push(port(miner));
    verdicts.extend(miner.dials.iter().map(dial));
    verdicts.extend(miner.pools.iter().map(pool));
    verdicts
}

fn registration(miner: &MinerFacts) -> Verdict {
    const CHECK: &str = "registration";
    let netuid = miner.netuid;
    let Some(hotkey) = &miner.hotkey else {
        let why = miner.error.as_deref().unwrap_or("no wallet was read");
        return Verdict::new(
            CHECK,
            Severity::Failure,
            format!("the miner's hotkey cannot be used: {why}"),
        )
        .advising("set [wallet] in its configuration, or make one: `btcli wallet create`");
    };
    match miner.registered {
        Some(true) => Verdict::fine(CHECK, format!("{hotkey} is registered in subnet {netuid}")),
        Some(false) => Verdict::new(
            CHECK,
            Severity::Failure,
            format!("{hotkey} is not registered in subnet {netuid}, so no validator looks for it"),
        )
        .advising(format!(
            "`btcli subnet register --netuid {netuid}`, or set chain.netuid"
        )),
        None => {
            let why = miner.error.as_deref().unwrap_or("the chain was not asked");
            let says = format!("whether {hotkey} is registered is not known: {why}");
            Verdict::new(CHECK, Severity::Warning, says).advising("set chain.url to an endpoint that answers")
        }
    }
}

fn announcement(miner: &MinerFacts) -> Verdict {
    const CHECK: &str = "announcement";
    const ADVICE: &str = "start the miner: it announces by itself, and says in its log why it cannot";
    let address = &miner.address;
    match &miner.chain_address {
        Some(told) if told == address => Verdict::fine(CHECK, format!("the chain tells validators {told}")),
        Some(told) => Verdict::new(
            CHECK,
            Severity::Warning,
            format!("the chain tells validators {told}, and the configuration has {address}"),
        )
        .advising(ADVICE),
        None => Verdict::new(
            CHECK,
            Severity::Warning,
            "the chain tells validators no address of this miner",
        )
        .advising(ADVICE),
    }
}

fn certificate(miner: &MinerFacts) -> Verdict {
    const CHECK: &str = "certificate";
    match (&miner.certificate, &miner.chain_certificate) {
        (Some(own), Some(told)) if own == told => {
            Verdict::fine(CHECK, format!("validators know the miner's certificate, {own}"))
        }
        (Some(own), Some(told)) => Verdict::new(
            CHECK,
            Severity::Failure,
            format!("the chain tells validators the certificate {told}, and the miner's file has {own}"),
        )
        .advising(
            "start the miner, or wait until it has announced the new one; validators refuse every other",
        ),
        (Some(_), None) => Verdict::new(
            CHECK,
            Severity::Warning,
            "the chain tells validators no certificate",
        )
        .advising("start the miner: it announces its certificate with its address"),
        (None, Some(told)) => Verdict::new(
            CHECK,
            Severity::Failure,
            format!("the chain tells validators the certificate {told}, and the miner has none"),
        )
        .advising(
            "start the miner, which announces what it has; or bring tls.certificate back from a backup",
        ),
        (None, None) => Verdict::new(CHECK, Severity::Note, "the miner has no certificate yet")
            .advising("it makes one at its first start, unless tls.enabled is false"),
    }
}

fn port(miner: &MinerFacts) -> Verdict {
    const CHECK: &str = "reachable";
    let address = &miner.address;
    if is_example(address) {
        let says =
            format!("the configuration announces {address}, which is still the example; it was not dialled");
        return Verdict::new(CHECK, Severity::Failure, says)
            .advising("set announce to the address of this machine at which validators reach it");
    }
    match &miner.unanswered {
        None => Verdict::fine(
            CHECK,
            format!("the miner answers at {address}, asked from here; ask from another machine too"),
        ),
        Some(why) => Verdict::new(
            CHECK,
            Severity::Warning,
            format!("the miner does not answer at {address}: {why}"),
        )
        .advising(
            "start it; forward the port to it, as TCP: a proxy that ends TLS shows another certificate",
        ),
    }
}

/// The address that executors dial, asked from this machine.
fn dial(dial: &DialFacts) -> Verdict {
    const CHECK: &str = "dial";
    let DialFacts { address, .. } = dial;
    let pools = dial.pools.join(", ");
    if is_example(address) {
        let says = format!(
            "the executors of {pools} are to dial {address}, which is still the example; it was not dialled"
        );
        return Verdict::new(CHECK, Severity::Failure, says)
            .advising("set dial of the pool, or executor.dial, to an address of this miner that they reach");
    }
    if dial.is_from_elsewhere && is_this_machine_only(address) {
        let says = format!("the executors of {pools} are to dial {address}, which only this machine reaches");
        return Verdict::new(CHECK, Severity::Warning, says)
            .advising("set dial of the pool, or executor.dial, unless they run on this machine");
    }
    match &dial.unanswered {
        None => Verdict::fine(
            CHECK,
            format!("the miner answers at {address}, which the executors of {pools} dial, asked from here"),
        ),
        Some(why) => Verdict::new(
            CHECK,
            Severity::Warning,
            format!("the miner does not answer at {address}, which the executors of {pools} dial: {why}"),
        )
        .advising("start it; dial is a port of this miner, and wss:// is the certificate of its own port"),
    }
}

/// Whether an address is one of loopback, or of no machine.
fn is_this_machine_only(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let socket: Result<SocketAddr, _> = rest.trim_end_matches('/').parse();
    match socket {
        Ok(socket) => socket.ip().is_loopback() || socket.ip().is_unspecified(),
        Err(_) => rest.starts_with("localhost:"),
    }
}

fn pool(pool: &PoolFacts) -> Verdict {
    const CHECK: &str = "pool";
    let PoolFacts {
        name, engine, count, ..
    } = pool;
    match pool.places {
        Some(0) => Verdict::new(
            CHECK,
            Severity::Warning,
            format!("{engine} has no machine for an executor of the pool {name}"),
        )
        .advising("do its machines run, and do they have what the pool asks for (GPUs, processors, memory)?"),
        Some(places) if places < *count => Verdict::new(
            CHECK,
            Severity::Note,
            format!("{engine} holds {places} executors of the pool {name}, which allows {count}"),
        ),
        Some(_) => Verdict::fine(
            CHECK,
            format!("{engine} holds the {count} executors of the pool {name}"),
        ),
        None => {
            let why = pool.error.as_deref().unwrap_or("it was not asked");
            let says = format!("{engine} cannot start executors of the pool {name}: {why}");
            Verdict::new(CHECK, Severity::Failure, says)
                .advising(format!("docs/operations/{engine}.md has the engine's set-up"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> MinerFacts {
        MinerFacts {
            hotkey: Some("5F…".to_owned()),
            netuid: 3,
            registered: Some(true),
            address: "198.18.0.7:8092".to_owned(),
            chain_address: Some("198.18.0.7:8092".to_owned()),
            certificate: Some("sha256:aa".to_owned()),
            chain_certificate: Some("sha256:aa".to_owned()),
            pools: vec![PoolFacts {
                name: "h100".to_owned(),
                engine: "slurm".to_owned(),
                count: 8,
                places: Some(8),
                error: None,
            }],
            dials: vec![DialFacts {
                pools: vec!["h100".to_owned()],
                address: "ws://198.18.0.7:8092".to_owned(),
                is_from_elsewhere: true,
                unanswered: None,
            }],
            ..MinerFacts::default()
        }
    }

    fn state_of(miner: &MinerFacts, check: &str) -> Severity {
        let verdicts = judge(miner);
        for verdict in &verdicts {
            let is_told = !verdict.advice.is_empty() || verdict.state <= Severity::Note;
            assert!(is_told, "{verdict:?}");
        }
        verdicts
            .iter()
            .find(|verdict| verdict.check == check)
            .unwrap()
            .state
    }

    #[test]
    fn a_miner_that_is_well_is_fine() {
        assert!(
            judge(&well())
                .iter()
                .all(|verdict| verdict.state == Severity::Fine)
        );
    }

    #[test]
    fn a_hotkey_has_to_be_registered() {
        for (registered, expected) in [(Some(false), Severity::Failure), (None, Severity::Warning)] {
            let miner = MinerFacts { registered, ..well() };
            assert_eq!(state_of(&miner, "registration"), expected);
            assert!(judge(&miner).iter().all(|verdict| verdict.check != "certificate"));
        }
        let nobody = MinerFacts::default();
        assert_eq!(state_of(&nobody, "registration"), Severity::Failure);
    }

    #[test]
    fn the_chain_and_the_miner_must_agree() {
        let mut miner = well();
        miner.chain_address = Some("198.51.100.1:8092".to_owned());
        miner.chain_certificate = Some("sha256:bb".to_owned());
        miner.unanswered = Some("refused".to_owned());
        assert_eq!(state_of(&miner, "announcement"), Severity::Warning);
        assert_eq!(state_of(&miner, "certificate"), Severity::Failure);
        assert_eq!(state_of(&miner, "reachable"), Severity::Warning);
        miner.certificate = None;
        assert_eq!(state_of(&miner, "certificate"), Severity::Failure);
        miner.chain_certificate = None;
        assert_eq!(state_of(&miner, "certificate"), Severity::Note);
        (miner.certificate, miner.chain_address) = (Some("sha256:aa".to_owned()), None);
        assert_eq!(state_of(&miner, "certificate"), Severity::Warning);
        assert_eq!(state_of(&miner, "announcement"), Severity::Warning);
    }

    #[test]
    fn a_pool_says_what_its_engine_has() {
        for (places, expected) in [
            (Some(9), Severity::Fine),
            (Some(7), Severity::Note),
            (Some(0), Severity::Warning),
            (None, Severity::Failure),
        ] {
            let mut miner = well();
            miner.pools[0].places = places;
            assert_eq!(state_of(&miner, "pool"), expected, "{places:?}");
        }
    }

    #[test]
    fn the_address_that_executors_dial_is_judged() {
        for (address, is_from_elsewhere, unanswered, expected) in [
            ("wss://198.18.0.7:8092", true, None, Severity::Fine),
            ("wss://198.18.0.7:8092", true, Some("refused"), Severity::Warning),
            ("ws://127.0.0.1:8092", true, None, Severity::Warning),
            ("ws://0.0.0.0:8092/", true, None, Severity::Warning),
            ("ws://127.0.0.1:8092", false, None, Severity::Fine),
            ("ws://miner.example:8092", true, None, Severity::Failure),
        ] {
            let mut miner = well();
            miner.dials[0] = DialFacts {
                pools: vec!["h100".to_owned()],
                address: address.to_owned(),
                is_from_elsewhere,
                unanswered: unanswered.map(str::to_owned),
            };
            assert_eq!(state_of(&miner, "dial"), expected, "{address}");
        }
    }

    #[test]
    fn an_announced_example_is_named_as_one() {
        let mut miner = well();
        miner.address = "203.0.113.7:8092".to_owned();
        assert_eq!(state_of(&miner, "reachable"), Severity::Failure);
    }
}

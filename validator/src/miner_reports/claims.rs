//! Each miner's machines: the facts that grading proved, and beside them what the miner claims.

use std::collections::BTreeMap;

use muster_chain::Metagraph;
use muster_grading::judgement::Judgement;
use muster_grading_runner::store::{GradeRow, GradingStore};
use muster_protocol::wire::machines::{
    ClaimedOffer, ClaimedSpecs, MachineLoad, MachinesNotice, MinerClaims, MinerNotice, ProvenClass,
};
use muster_protocol::{ExecutorClass, MinerKey};
use muster_store::StoreError;
use parking_lot::Mutex;

/// The newest grades that are read for all miners together.
const MAX_GRADES: u32 = 4_096;

/// Miners' claims about their machines since this process began. Only miners of the subnet are dialled, so their
/// number bounds the board.
#[derive(Debug, Default)]
pub(crate) struct ClaimBoard(Mutex<BTreeMap<MinerKey, ClaimedMachines>>);

#[derive(Clone, Debug, Default)]
struct ClaimedMachines {
    specs: BTreeMap<ExecutorClass, ClaimedSpecs>,
    machines: Vec<MachineLoad>,
}

impl ClaimBoard {
    /// Notes the specs of a machine that ran an attempt.
    pub(crate) fn note_specs(&self, miner: MinerKey, specs: ClaimedSpecs) {
        let mut board = self.0.lock();
        let claimed = board.entry(miner).or_default();
        claimed.specs.insert(specs.class, specs);
    }

    /// Notes the load of a miner's machines.
    pub(crate) fn note_machines(&self, miner: MinerKey, notice: MachinesNotice) {
        let mut board = self.0.lock();
        board.entry(miner).or_default().machines = notice.bound().machines;
    }

    /// Forgets miners outside the subnet.
    pub(crate) fn forget(&self, keep: impl Fn(&MinerKey) -> bool) {
        self.0.lock().retain(|miner, _| keep(miner));
    }

    fn claims(&self, miner: MinerKey, offers: Vec<ClaimedOffer>) -> MinerClaims {
        let claimed = self.0.lock().get(&miner).cloned().unwrap_or_default();
        let claims = MinerClaims {
            offers,
            specs: claimed.specs.into_values().collect(),
            machines: claimed.machines,
        };
        claims.bound()
    }
}

/// The facts and claims about each miner of the subnet that has any, by the miners' uids; nothing before the chain
/// has answered. `offers_of` are the executors that a miner offers now.
///
/// # Errors
/// The store of grades fails.
pub(crate) async fn list_miners(
    metagraph: Option<&Metagraph>,
    claims: &ClaimBoard,
    offers_of: impl Fn(MinerKey) -> Vec<ClaimedOffer>,
    grading: &GradingStore,
) -> Result<Vec<MinerNotice>, StoreError> {
    let Some(metagraph) = metagraph else {
        return Ok(Vec::new());
    };
    let mut proven = fold_grades(&grading.newest_grades(MAX_GRADES).await?);
    let miners = metagraph.neurons.iter().map(|neuron| MinerKey(neuron.hotkey));
    let notices = miners.map(|miner| MinerNotice {
        miner,
        proven: proven.remove(&miner).unwrap_or_default(),
        claims: claims.claims(miner, offers_of(miner)),
    });
    let is_known =
        |notice: &MinerNotice| !notice.proven.is_empty() || notice.claims != MinerClaims::default();
    Ok(notices.filter(is_known).collect())
}

/// The newest batch of each class of each miner, from grades of which the newest come first.
fn fold_grades(grades: &[GradeRow]) -> BTreeMap<MinerKey, Vec<ProvenClass>> {
    let mut found: BTreeMap<MinerKey, Vec<ProvenClass>> = BTreeMap::new();
    for grade in grades {
        let Some(class) = grade.class else { continue };
        let (challenged, proven) = match &grade.judgement {
            Judgement::Proven { .. } | Judgement::Serving { .. } => (1, 1),
            Judgement::Zero { .. } => (1, 0),
            // It was not challenged, or nothing was found out.
            Judgement::Excused { .. } | Judgement::Void { .. } => (0, 0),
        };
        let classes = found.entry(grade.miner).or_default();
        match classes.iter_mut().find(|known| known.class == class) {
            Some(known) if known.block == grade.block => {
                known.challenged = known.challenged.saturating_add(challenged);
                known.proven = known.proven.saturating_add(proven);
            }
            // An older batch.
            Some(_) => {}
            None => classes.push(ProvenClass {
                class,
                challenged,
                proven,
                block: grade.block,
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Hotkey, Timestamp};

    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn miner(seed: u8) -> MinerKey {
        MinerKey(Hotkey::from_bytes([seed; 32]))
    }

    fn grade(seed: u8, block: u64, judgement: Judgement) -> GradeRow {
        GradeRow {
            batch: block.to_string(),
            block,
            place: 0,
            miner: miner(seed),
            class: Some(CLASS),
            index: 0,
            said: judgement.to_string(),
            judgement,
        }
    }

    #[test]
    fn only_the_newest_batch_counts_and_an_excuse_proves_nothing() {
        let zero = || Judgement::Zero { reasons: vec![] };
        let excused = || Judgement::Excused {
            said: String::new(),
            by: None,
        };
        let grades = [
            grade(1, 9, zero()),
            grade(1, 9, excused()),
            grade(2, 8, excused()),
            grade(1, 7, zero()),
        ];
        let found = fold_grades(&grades);
        let proven = |challenged, block| ProvenClass {
            class: CLASS,
            challenged,
            proven: 0,
            block,
        };
        assert_eq!(found[&miner(1)], [proven(1, 9)]);
        assert_eq!(found[&miner(2)], [proven(0, 8)]);
    }

    #[test]
    fn claims_are_kept_by_class_until_the_miner_leaves() {
        let board = ClaimBoard::default();
        let specs = |cores| ClaimedSpecs {
            class: CLASS,
            told_at: Timestamp::from_secs(1),
            cpu: String::new(),
            cores,
            memory: 0,
            disk: 0,
            os: "\u{1b}[2J".to_owned(),
            gpus: vec![],
        };
        board.note_specs(miner(1), specs(8));
        board.note_specs(miner(1), specs(16));
        let offers = vec![ClaimedOffer {
            class: CLASS,
            executors: 2,
        }];
        let claims = board.claims(miner(1), offers.clone());
        assert_eq!(
            (claims.offers, claims.specs.len(), claims.specs[0].cores),
            (offers, 1, 16)
        );
        assert_eq!(claims.specs[0].os, "[2J");
        board.forget(|_| false);
        assert_eq!(board.claims(miner(1), vec![]), MinerClaims::default());
    }
}

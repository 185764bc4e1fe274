//! A [`Prover`] of kernels: the rounds of a CHAIN, the walks of a WALK, their openings.

mod chain;
mod walk;

use muster_hardware_proof::chain::{ChainSpec, Place};
use muster_hardware_proof::merkle::{Hash, Tree};
use muster_hardware_proof::prover::{Prover, ProverError, Watch, all_cores};
use muster_hardware_proof::walk::{StepPlace, WalkSpec};

use crate::device::{Device, Fault};
use crate::kernels::Kernels;
use chain::Chain;
use walk::Filled;

/// How much is asked of a device at once: enough to fill it, little enough that a challenge that was called off ends soon.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Bytes of C in a band of rows, two of which are at work; of hashes that an opening of walks keeps.
    pub panel_bytes: u64,
    /// Applications of the one-way function in a launch of `labels`.
    pub applications: u64,
    /// Bytes that a launch of `walk` reads.
    pub bytes_read: u64,
    /// Leaves that a launch of `walk_again` walks.
    pub leaves_again: u32,
}

impl Pace {
    /// Everything in several pieces, however small it is: bands in both lanes, runs of words and of leaves, openings in turns.
    pub const PIECES: Self = Self {
        panel_bytes: 128 << 10,
        applications: 1 << 10,
        bytes_read: 1 << 20,
        leaves_again: 1,
    };
}

impl Default for Pace {
    /// For data-centre cards: a tenth of a second or less each. *Estimated, not measured.*
    fn default() -> Self {
        Self {
            panel_bytes: 256 << 20,
            applications: 1 << 31,
            bytes_read: 64 << 30,
            leaves_again: 512,
        }
    }
}

/// A prover on a device.
pub struct DeviceProver<D: Device> {
    kernels: Kernels<D>,
    pace: Pace,
    chain: Option<Chain<D>>,
    memory: Option<Filled<D>>,
}

impl<D: Device> DeviceProver<D> {
    /// Uses this device.
    pub fn new(device: D, pace: Pace) -> Self {
        Self {
            kernels: Kernels(device),
            pace,
            chain: None,
            memory: None,
        }
    }

    /// Goes on at another pace, from the next challenge on.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// The device and its kernels.
    pub fn kernels(&self) -> &Kernels<D> {
        &self.kernels
    }
}

impl<D: Device> Prover for DeviceProver<D> {
    fn chain_start(&mut self, spec: &ChainSpec, watch: &dyn Watch) -> Result<(), ProverError> {
        self.chain = None;
        stop(watch)?;
        let mut started = Chain::start(&self.kernels, spec, &self.pace);
        // An earlier challenge's memory is only in the way of a chain that is not bound to it.
        if matches!(started, Err(ProverError::TooLarge(_)))
            && spec.binding().is_none()
            && self.memory.is_some()
        {
            self.memory = None;
            started = Chain::start(&self.kernels, spec, &self.pace);
        }
        self.chain = Some(started?);
        Ok(())
    }

    fn chain_round(&mut self, round: u32, previous: &Hash, watch: &dyn Watch) -> Result<Hash, ProverError> {
        let chain = self.chain.as_mut().ok_or(ProverError::OutOfOrder("a round"))?;
        chain.round(&self.kernels, self.memory.as_ref(), round, previous, watch)
    }

    fn chain_open(
        &mut self,
        places: &[Place],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError> {
        let chain = self.chain.as_ref().ok_or(ProverError::OutOfOrder("an opening"))?;
        chain.open(&self.kernels, self.memory.as_ref(), places, out, watch)
    }

    fn fill(&mut self, spec: &WalkSpec, watch: &dyn Watch) -> Result<(), ProverError> {
        // A chain bound to the old memory has no meaning any more, and all room is needed.
        self.chain = None;
        self.memory = None;
        self.memory = Some(Filled::fill(&self.kernels, spec, &self.pace, watch)?);
        Ok(())
    }

    fn walk(&mut self, seed: &[u8; 32], watch: &dyn Watch) -> Result<Hash, ProverError> {
        let memory = self.memory.as_mut().ok_or(ProverError::OutOfOrder("a walk"))?;
        memory.walk(&self.kernels, &self.pace, seed, watch)
    }

    fn walk_open(
        &mut self,
        places: &[StepPlace],
        out: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<(), ProverError> {
        let memory = self
            .memory
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        memory.open(&self.kernels, &self.pace, places, out, watch)
    }
}

/// Takes memory; `what` does not fit if there is no room.
fn room<D: Device>(kernels: &Kernels<D>, bytes: u64, what: &'static str) -> Result<D::Memory, ProverError> {
    kernels.0.allocate(bytes.max(1)).map_err(|fault| match fault {
        Fault::NoRoom(_) => ProverError::TooLarge(what),
        other @ (Fault::Missing(_) | Fault::Failed(..) | Fault::Outside(..)) => failed(other),
    })
}

fn failed(fault: Fault) -> ProverError {
    ProverError::Device(Box::new(fault))
}

fn stop(watch: &dyn Watch) -> Result<(), ProverError> {
    if watch.cancelled() {
        return Err(ProverError::Cancelled);
    }
    Ok(())
}

/// Reads hashes.
fn hashes<D: Device>(
    kernels: &Kernels<D>,
    from: &D::Memory,
    at: u64,
    count: u64,
) -> Result<Vec<Hash>, ProverError> {
    let mut found = vec![[0; 32]; count as usize];
    kernels
        .0
        .read(from, at, found.as_flattened_mut())
        .map_err(failed)?;
    Ok(found)
}

/// A tree over each bottom, on all cores: with SHA-256 in hardware a tree over 32,768 hashes takes milliseconds, and an opening has
/// up to 256 of them.
fn trees(bottoms: Vec<Vec<Hash>>) -> Vec<Tree> {
    let each = bottoms.len().div_ceil(all_cores().get()).max(1);
    std::thread::scope(|scope| {
        let pieces: Vec<_> = bottoms
            .chunks(each)
            .map(|piece| scope.spawn(|| piece.iter().cloned().map(Tree::over).collect::<Vec<_>>()))
            .collect();
        pieces
            .into_iter()
            .flat_map(|piece| {
                piece
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

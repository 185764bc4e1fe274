//! A [`Prover`] made of kernels: the rounds of a MATMUL, the walks of a WALK, and their openings.

mod matmul;
mod memory_walk;

use muster_hardware_proof::matmul::{EntryPosition, MatmulSpec};
use muster_hardware_proof::memory_walk::{StepPosition, WalkSpec};
use muster_hardware_proof::merkle::{Hash, MerkleTree};
use muster_hardware_proof::prover::{Prover, ProverError, WorkObserver, available_threads};

use crate::device_interface::{Device, DeviceError};
use crate::kernels::Kernels;
use matmul::StartedMatmul;
use memory_walk::FilledMemory;

/// The sizes of launches: large enough to use the whole device, small enough that cancelled work ends soon.
#[derive(Debug, Clone, Copy)]
pub struct LaunchSizes {
    /// Bytes of C in a band of rows, of which two are in use. Also bytes of hashes that an opening of walks keeps.
    pub panel_bytes: u64,
    /// Applications of the one-way function per launch of `labels`.
    pub applications: u64,
    /// Bytes read per launch of `walk`.
    pub bytes_read: u64,
    /// Leaves per launch of `walk_again`.
    pub leaves_again: u32,
}

impl LaunchSizes {
    /// Small launches, which cut even small challenges into several pieces: bands in both lanes, runs of words and of
    /// leaves.
    pub const PIECES: Self = Self {
        panel_bytes: 128 << 10,
        applications: 1 << 10,
        bytes_read: 1 << 20,
        leaves_again: 1,
    };
}

impl Default for LaunchSizes {
    /// For data-centre cards: at most a tenth of a second per launch. *Estimated, not measured.*
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
    sizes: LaunchSizes,
    matmul: Option<StartedMatmul<D>>,
    memory: Option<FilledMemory<D>>,
}

impl<D: Device> DeviceProver<D> {
    /// A prover that uses this device.
    pub fn new(device: D, sizes: LaunchSizes) -> Self {
        Self {
            kernels: Kernels(device),
            sizes,
            matmul: None,
            memory: None,
        }
    }

    /// Changes the sizes of launches from the next challenge on.
    pub fn set_launch_sizes(&mut self, sizes: LaunchSizes) {
        self.sizes = sizes;
    }

    /// The device and its kernels.
    pub fn kernels(&self) -> &Kernels<D> {
        &self.kernels
    }
}

impl<D: Device> Prover for DeviceProver<D> {
    fn start_matmul(&mut self, spec: &MatmulSpec, watch: &dyn WorkObserver) -> Result<(), ProverError> {
        self.matmul = None;
        stop_if_cancelled(watch)?;
        let mut started = StartedMatmul::start(&self.kernels, spec, &self.sizes);
        // The memory of an earlier challenge is not needed if the products are not bound to it.
        if matches!(started, Err(ProverError::TooLarge(_)))
            && spec.binding().is_none()
            && self.memory.is_some()
        {
            self.memory = None;
            started = StartedMatmul::start(&self.kernels, spec, &self.sizes);
        }
        self.matmul = Some(started?);
        Ok(())
    }

    fn compute_round(
        &mut self,
        round: u32,
        previous: &Hash,
        watch: &dyn WorkObserver,
    ) -> Result<Hash, ProverError> {
        let matmul = self.matmul.as_mut().ok_or(ProverError::OutOfOrder("a round"))?;
        matmul.round(&self.kernels, self.memory.as_ref(), round, previous, watch)
    }

    fn open_entries(
        &mut self,
        places: &[EntryPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let matmul = self
            .matmul
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        matmul.open(&self.kernels, self.memory.as_ref(), places, out, watch)
    }

    fn fill_memory(&mut self, spec: &WalkSpec, watch: &dyn WorkObserver) -> Result<(), ProverError> {
        // Products bound to the old memory are useless now, and the new memory needs all room.
        self.matmul = None;
        self.memory = None;
        self.memory = Some(FilledMemory::fill(&self.kernels, spec, &self.sizes, watch)?);
        Ok(())
    }

    fn run_walks(&mut self, seed: &[u8; 32], watch: &dyn WorkObserver) -> Result<Hash, ProverError> {
        let memory = self.memory.as_mut().ok_or(ProverError::OutOfOrder("a walk"))?;
        memory.walk(&self.kernels, &self.sizes, seed, watch)
    }

    fn open_steps(
        &mut self,
        places: &[StepPosition],
        out: &mut Vec<u8>,
        watch: &dyn WorkObserver,
    ) -> Result<(), ProverError> {
        let memory = self
            .memory
            .as_ref()
            .ok_or(ProverError::OutOfOrder("an opening"))?;
        memory.open(&self.kernels, &self.sizes, places, out, watch)
    }
}

/// Allocates memory. The error names `what` if there is no room.
fn allocate<D: Device>(
    kernels: &Kernels<D>,
    bytes: u64,
    what: &'static str,
) -> Result<D::Memory, ProverError> {
    kernels.0.allocate(bytes.max(1)).map_err(|fault| match fault {
        DeviceError::NoRoom(_) => ProverError::TooLarge(what),
        other @ (DeviceError::Missing(_) | DeviceError::Failed(..) | DeviceError::Outside(..)) => {
            device_error(other)
        }
    })
}

fn device_error(fault: DeviceError) -> ProverError {
    ProverError::Device(Box::new(fault))
}

fn stop_if_cancelled(watch: &dyn WorkObserver) -> Result<(), ProverError> {
    if watch.is_cancelled() {
        return Err(ProverError::Cancelled);
    }
    Ok(())
}

/// Reads `count` hashes from a memory.
fn read_hashes<D: Device>(
    kernels: &Kernels<D>,
    from: &D::Memory,
    at: u64,
    count: u64,
) -> Result<Vec<Hash>, ProverError> {
    let mut found = vec![[0; 32]; count as usize];
    kernels
        .0
        .read(from, at, found.as_flattened_mut())
        .map_err(device_error)?;
    Ok(found)
}

/// Builds a tree over each bottom, on all cores. With SHA-256 in hardware, a tree over 32,768 hashes takes
/// milliseconds, and an opening has up to 256 trees.
fn build_trees(bottoms: Vec<Vec<Hash>>) -> Vec<MerkleTree> {
    let each = bottoms.len().div_ceil(available_threads().get()).max(1);
    std::thread::scope(|scope| {
        let pieces: Vec<_> = bottoms
            .chunks(each)
            .map(|piece| scope.spawn(|| piece.iter().cloned().map(MerkleTree::build).collect::<Vec<_>>()))
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

//! One function per kernel, which checks that all memories are large enough.

use muster_hardware_proof::chacha::Key;
use muster_hardware_proof::merkle::LEAF;
use muster_hardware_proof::spec::NumberFormat;

use crate::device_interface::{Argument, Device, DeviceError, Kernel, Lane, TILE_ROWS, within};

/// The length in bytes of a hash, and of a walk's state.
pub const HASH: u64 = 32;

/// Consecutive rows under one key: `struct Span` of `rows.cuh`.
#[derive(Debug, Clone, Copy)]
pub struct RowSpan {
    /// The key of the rows.
    pub key: Key,
    /// The key of the addresses of the blocks that are XORed over the rows.
    pub bound: Key,
    /// The stream of the first row.
    pub first: u64,
}

impl RowSpan {
    /// The size on the device in bytes.
    pub const BYTES: usize = 72;

    /// The bytes on the device.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = self
            .key
            .0
            .into_iter()
            .chain(self.bound.0)
            .chain(self.first.to_le_bytes());
        for (place, byte) in bytes.iter_mut().zip(parts) {
            *place = byte;
        }
        bytes
    }
}

/// The memory whose blocks are XORed over the beginning of every row.
#[derive(Debug)]
pub struct BoundMemory<'a, M> {
    /// The filled memory on the device.
    pub memory: &'a M,
    /// The number of its blocks.
    pub blocks: u64,
    /// The number of blocks over each row.
    pub per_row: u32,
}

/// A position in a memory, as an offset in hashes.
pub type HashOffset<'a, M> = (&'a M, u64);

/// The kernels on a device.
#[derive(Debug)]
pub struct Kernels<D>(pub D);

impl<D: Device> Kernels<D> {
    fn needs(&self, kernel: Kernel, memory: &D::Memory, at: u64, bytes: u64) -> Result<(), DeviceError> {
        within(kernel.name(), self.0.length(memory), at, bytes)
    }

    /// The number of blocks with one thread for each of `items`.
    fn blocks(kernel: Kernel, items: u64) -> Result<u32, DeviceError> {
        u32::try_from(items.div_ceil(u64::from(kernel.threads())))
            .ok()
            // The largest grid along its first side.
            .filter(|blocks| *blocks < 1 << 31)
            .ok_or(DeviceError::Outside(kernel.name(), items))
    }

    fn bound<'a>(
        &self,
        kernel: Kernel,
        bound: Option<&BoundMemory<'a, D::Memory>>,
        row_bytes: u64,
    ) -> Result<[Argument<'a, D::Memory>; 3], DeviceError> {
        let Some(bound) = bound else {
            return Ok([Argument::Null, Argument::Long(1), Argument::Word(0)]);
        };
        self.needs(kernel, bound.memory, 0, bound.blocks.saturating_mul(LEAF as u64))?;
        let bytes = bound.per_row.saturating_mul(LEAF as u32);
        within(kernel.name(), row_bytes, 0, u64::from(bytes))?;
        Ok([
            Argument::At(bound.memory, 0),
            Argument::Long(bound.blocks),
            Argument::Word(bytes),
        ])
    }

    /// Generates `count` consecutive rows of n entries at the beginning of `out`.
    ///
    /// # Errors
    /// A memory is too small, or the device fails.
    pub fn rows(
        &self,
        lane: Lane,
        span: &RowSpan,
        (numbers, n, count): (NumberFormat, u64, u32),
        bound: Option<&BoundMemory<'_, D::Memory>>,
        out: &D::Memory,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::Rows;
        let row_bytes = n * numbers.width() as u64;
        self.needs(kernel, out, 0, u64::from(count) * row_bytes)?;
        let [memory, blocks, bytes] = self.bound(kernel, bound, row_bytes)?;
        let span = span.to_bytes();
        let arguments = [
            Argument::Bytes(&span),
            Argument::Word(count),
            Argument::Word((row_bytes / 64) as u32),
            Argument::Word(u32::from(numbers == NumberFormat::Fp16)),
            memory,
            blocks,
            bytes,
            Argument::At(out, 0),
        ];
        let grid = Self::blocks(kernel, u64::from(count) * row_bytes / 64)?;
        // SAFETY: the arguments of `rows`; `out` holds all rows and the memory all of its blocks, as checked above.
        unsafe { self.0.launch(lane, kernel, grid, &arguments) }
    }

    /// Generates the first row of each of `count` spans at the beginning of `out`.
    ///
    /// # Errors
    /// A memory is too small, or the device fails.
    pub fn drawn_rows(
        &self,
        lane: Lane,
        spans: &D::Memory,
        (numbers, n, count): (NumberFormat, u64, u32),
        bound: Option<&BoundMemory<'_, D::Memory>>,
        out: &D::Memory,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::DrawnRows;
        let row_bytes = n * numbers.width() as u64;
        self.needs(kernel, spans, 0, u64::from(count) * RowSpan::BYTES as u64)?;
        self.needs(kernel, out, 0, u64::from(count) * row_bytes)?;
        let [memory, blocks, bytes] = self.bound(kernel, bound, row_bytes)?;
        let arguments = [
            Argument::At(spans, 0),
            Argument::Word(count),
            Argument::Word((row_bytes / 64) as u32),
            Argument::Word(u32::from(numbers == NumberFormat::Fp16)),
            memory,
            blocks,
            bytes,
            Argument::At(out, 0),
        ];
        let grid = Self::blocks(kernel, u64::from(count) * row_bytes / 64)?;
        // SAFETY: the arguments of `drawn_rows`; lengths as checked above.
        unsafe { self.0.launch(lane, kernel, grid, &arguments) }
    }

    /// Multiplies `rows` rows, a multiple of [`TILE_ROWS`], by the n columns of `b`.
    ///
    /// # Errors
    /// A memory is too small, a side is not a multiple of a block's tile, or the device fails.
    pub fn product(
        &self,
        lane: Lane,
        (numbers, n, rows): (NumberFormat, u64, u32),
        a: &D::Memory,
        b: &D::Memory,
        c: &D::Memory,
    ) -> Result<(), DeviceError> {
        let kernel = match numbers {
            NumberFormat::Int8 => Kernel::ProductInt8,
            NumberFormat::Fp16 => Kernel::ProductFp16,
        };
        let columns = u64::from(kernel.tile_columns());
        if !n.is_multiple_of(columns) || n > 1 << 16 || !rows.is_multiple_of(TILE_ROWS) {
            return Err(DeviceError::Outside(kernel.name(), n));
        }
        let row_bytes = n * numbers.width() as u64;
        self.needs(kernel, a, 0, u64::from(rows) * row_bytes)?;
        self.needs(kernel, b, 0, n * row_bytes)?;
        self.needs(kernel, c, 0, u64::from(rows) * n * 4)?;
        let tiles = rows / TILE_ROWS;
        let arguments = [
            Argument::At(a, 0),
            Argument::At(b, 0),
            Argument::At(c, 0),
            Argument::Word(row_bytes as u32),
            Argument::Word(n as u32),
            Argument::Word(tiles),
        ];
        // SAFETY: the arguments of both products; lengths and divisibility as checked above.
        unsafe {
            self.0
                .launch(lane, kernel, tiles * (n / columns) as u32, &arguments)
        }
    }

    /// Hashes `count` leaves of 1 KiB.
    ///
    /// # Errors
    /// A memory is too small, or the device fails.
    pub fn leaves(
        &self,
        lane: Lane,
        data: &D::Memory,
        count: u64,
        (hashes, at): HashOffset<'_, D::Memory>,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::Leaves;
        self.needs(kernel, data, 0, count.saturating_mul(LEAF as u64))?;
        self.needs(kernel, hashes, at * HASH, count * HASH)?;
        let arguments = [
            Argument::At(data, 0),
            Argument::Long(count),
            Argument::At(hashes, at * HASH),
        ];
        // SAFETY: the arguments of `leaves`; lengths as checked above.
        unsafe {
            self.0
                .launch(lane, kernel, Self::blocks(kernel, count)?, &arguments)
        }
    }

    fn nodes(
        &self,
        lane: Lane,
        (below, at): HashOffset<'_, D::Memory>,
        count: u64,
        (above, to): HashOffset<'_, D::Memory>,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::Nodes;
        self.needs(kernel, below, at * HASH, 2 * count * HASH)?;
        self.needs(kernel, above, to * HASH, count * HASH)?;
        let arguments = [
            Argument::At(below, at * HASH),
            Argument::Long(count),
            Argument::At(above, to * HASH),
        ];
        // SAFETY: the arguments of `nodes`; lengths as checked above, and the callers' places do not overlap.
        unsafe {
            self.0
                .launch(lane, kernel, Self::blocks(kernel, count)?, &arguments)
        }
    }

    /// Hashes `levels` levels of trees, at least one, above `count` hashes at `from`. The last level goes to `to`, the
    /// levels between to the beginning of `scratch` (room for `count` hashes).
    ///
    /// # Errors
    /// A memory is too small, or the device fails.
    pub fn climb(
        &self,
        lane: Lane,
        from: HashOffset<'_, D::Memory>,
        (count, levels): (u64, u32),
        scratch: &D::Memory,
        to: HashOffset<'_, D::Memory>,
    ) -> Result<(), DeviceError> {
        let (mut below, mut count, mut free) = (from, count, 0);
        for level in 1..=levels {
            count /= 2;
            let above = if level == levels { to } else { (scratch, free) };
            self.nodes(lane, below, count, above)?;
            free += count;
            below = above;
        }
        Ok(())
    }

    /// Computes words `first` to `first + count - 1` of a memory at their positions.
    ///
    /// # Errors
    /// The memory is too small, or the device fails.
    pub fn labels(
        &self,
        lane: Lane,
        key: &Key,
        (first, count): (u64, u64),
        work: u32,
        memory: &D::Memory,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::Labels;
        self.needs(kernel, memory, first.saturating_mul(64), count.saturating_mul(64))?;
        let arguments = [
            Argument::Bytes(&key.0),
            Argument::Long(first),
            Argument::Long(count),
            Argument::Word(work),
            Argument::At(memory, 0),
        ];
        // SAFETY: the arguments of `labels`; lengths as checked above.
        unsafe {
            self.0
                .launch(lane, kernel, Self::blocks(kernel, count)?, &arguments)
        }
    }

    /// Computes the first states of `count` walks: of those in `walks`, or else of the walks from 0 on.
    ///
    /// # Errors
    /// A memory is too small, or the device fails.
    pub fn walk_start(
        &self,
        lane: Lane,
        key: &Key,
        walks: Option<&D::Memory>,
        count: u32,
        states: &D::Memory,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::WalkStart;
        let all = u64::from(count);
        let walks = match walks {
            None => Argument::Null,
            Some(walks) => {
                self.needs(kernel, walks, 0, all * 4)?;
                Argument::At(walks, 0)
            }
        };
        self.needs(kernel, states, 0, all * HASH)?;
        let arguments = [
            Argument::Bytes(&key.0),
            walks,
            Argument::Word(count),
            Argument::At(states, 0),
        ];
        // SAFETY: the arguments of `walk_start`; lengths as checked above.
        unsafe {
            self.0
                .launch(lane, kernel, Self::blocks(kernel, all)?, &arguments)
        }
    }

    /// Runs leaves `first` to `first + count - 1` of `walks` walks of `2^levels` leaves. `stack` has `levels + 1` times
    /// `walks` hashes.
    ///
    /// # Errors
    /// A memory is too small, a leaf is beyond the last one, or the device fails.
    pub fn walk(
        &self,
        lane: Lane,
        (memory, blocks): (&D::Memory, u64),
        (walks, levels): (u32, u32),
        (first, count): (u32, u32),
        states: &D::Memory,
        stack: &D::Memory,
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::Walk;
        within(kernel.name(), 1 << levels, u64::from(first), u64::from(count))?;
        self.needs(kernel, memory, 0, blocks.saturating_mul(LEAF as u64))?;
        let all = u64::from(walks) * HASH;
        self.needs(kernel, states, 0, all)?;
        self.needs(kernel, stack, 0, u64::from(levels + 1) * all)?;
        let arguments = [
            Argument::At(memory, 0),
            Argument::Long(blocks),
            Argument::Word(walks),
            Argument::Word(first),
            Argument::Word(count),
            Argument::At(states, 0),
            Argument::At(stack, 0),
        ];
        let grid = Self::blocks(kernel, u64::from(walks))?;
        // SAFETY: the arguments of `walk`; lengths as checked above, and a stack of 2^levels leaves is never higher.
        unsafe { self.0.launch(lane, kernel, grid, &arguments) }
    }

    /// Runs leaves `first` to `first + count - 1` of the drawn walks again.
    ///
    /// # Errors
    /// A memory is too small, a leaf is beyond the last one, or the device fails.
    pub fn walk_again(
        &self,
        lane: Lane,
        (memory, blocks): (&D::Memory, u64),
        drawn: &DrawnWalks<'_, D::Memory>,
        (first, count): (u32, u32),
    ) -> Result<(), DeviceError> {
        let kernel = Kernel::WalkAgain;
        let draws = u64::from(drawn.count);
        within(
            kernel.name(),
            u64::from(drawn.leaves),
            u64::from(first),
            u64::from(count),
        )?;
        self.needs(kernel, memory, 0, blocks.saturating_mul(LEAF as u64))?;
        self.needs(kernel, drawn.walks, 0, draws * 4)?;
        self.needs(kernel, drawn.wanted, 0, draws * 4)?;
        self.needs(kernel, drawn.states, 0, draws * HASH)?;
        self.needs(kernel, drawn.hashes, 0, draws * u64::from(drawn.leaves) * HASH)?;
        self.needs(kernel, drawn.kept, 0, draws * 2 * LEAF as u64)?;
        let arguments = [
            Argument::At(memory, 0),
            Argument::Long(blocks),
            Argument::At(drawn.walks, 0),
            Argument::At(drawn.wanted, 0),
            Argument::Word(drawn.count),
            Argument::Word(drawn.leaves),
            Argument::Word(first),
            Argument::Word(count),
            Argument::At(drawn.states, 0),
            Argument::At(drawn.hashes, 0),
            Argument::At(drawn.kept, 0),
        ];
        let grid = Self::blocks(kernel, draws)?;
        // SAFETY: the arguments of `walk_again`; lengths as checked above.
        unsafe { self.0.launch(lane, kernel, grid, &arguments) }
    }
}

/// Walks that are run again for an opening.
#[derive(Debug)]
pub struct DrawnWalks<'a, M> {
    /// The number of walks.
    pub count: u32,
    /// The number of leaves of each walk.
    pub leaves: u32,
    /// The numbers of the walks.
    pub walks: &'a M,
    /// The number of the wanted leaf of each walk.
    pub wanted: &'a M,
    /// The present states of the walks.
    pub states: &'a M,
    /// Receives the hashes of all leaves, walk after walk.
    pub hashes: &'a M,
    /// Receives the leaf before the wanted one and the wanted one, 1 KiB each, walk after walk.
    pub kept: &'a M,
}

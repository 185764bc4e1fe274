//! The interface of a device: memory, copies, and launches in two lanes.

/// An error of a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no such device, or it cannot run the kernels.
    #[error("no device to prove with: {0}")]
    Missing(String),
    /// The device does not have this many bytes of memory left.
    #[error("the device has no room for {0} bytes")]
    NoRoom(u64),
    /// The driver reported an error.
    #[error("the device failed to {0}")]
    Failed(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// A kernel or a copy would reach beyond a memory. This is a defect of the caller.
    #[error("{0} would reach beyond a memory of {1} bytes")]
    Outside(&'static str, u64),
}

/// A queue of work. Work in one lane runs in order; the two lanes run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The lane of even numbers.
    Even,
    /// The lane of odd numbers.
    Odd,
}

impl Lane {
    /// Both lanes, the even one first.
    pub const BOTH: [Self; 2] = [Self::Even, Self::Odd];

    /// The lane of a piece of work: the two lanes alternate.
    pub fn of(number: u64) -> Self {
        if number.is_multiple_of(2) {
            Self::Even
        } else {
            Self::Odd
        }
    }
}

/// The kernels of `kernels/kernels.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Generates consecutive rows.
    Rows,
    /// Generates drawn rows.
    DrawnRows,
    /// Multiplies int8 matrices.
    ProductInt8,
    /// Multiplies fp16 matrices.
    ProductFp16,
    /// Hashes leaves of 1 KiB.
    Leaves,
    /// Hashes pairs of hashes.
    Nodes,
    /// Computes the words of a WALK's memory.
    Labels,
    /// Computes the first states of walks.
    WalkStart,
    /// Runs all walks.
    Walk,
    /// Runs single walks again.
    WalkAgain,
}

impl Kernel {
    /// All kernels, each once.
    pub const ALL: [Self; 10] = [
        Self::Rows,
        Self::DrawnRows,
        Self::ProductInt8,
        Self::ProductFp16,
        Self::Leaves,
        Self::Nodes,
        Self::Labels,
        Self::WalkStart,
        Self::Walk,
        Self::WalkAgain,
    ];

    /// The name in the PTX.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::DrawnRows => "drawn_rows",
            Self::ProductInt8 => "product_int8",
            Self::ProductFp16 => "product_fp16",
            Self::Leaves => "leaves",
            Self::Nodes => "nodes",
            Self::Labels => "labels",
            Self::WalkStart => "walk_start",
            Self::Walk => "walk",
            Self::WalkAgain => "walk_again",
        }
    }

    /// Threads per block, as in the kernel's `KERNEL(…)`.
    pub fn threads(self) -> u32 {
        match self {
            Self::Rows | Self::DrawnRows | Self::ProductInt8 | Self::ProductFp16 | Self::Labels => 256,
            Self::Leaves | Self::Nodes | Self::WalkStart | Self::Walk => 128,
            Self::WalkAgain => 32,
        }
    }

    /// Columns of a product that one block computes; 0 for other kernels.
    pub fn tile_columns(self) -> u32 {
        match self {
            Self::ProductInt8 => 256,
            Self::ProductFp16 => 128,
            Self::Rows
            | Self::DrawnRows
            | Self::Leaves
            | Self::Nodes
            | Self::Labels
            | Self::WalkStart
            | Self::Walk
            | Self::WalkAgain => 0,
        }
    }

    /// Bytes of shared memory of a launch: four stages of 64 bytes for each row and column of a block's tile.
    pub fn shared_bytes(self) -> u32 {
        match self.tile_columns() {
            0 => 0,
            columns => 4 * 64 * (TILE_ROWS + columns),
        }
    }
}

/// Rows of a product that one block computes.
pub const TILE_ROWS: u32 = 128;

/// An argument of a kernel, of the type in its declaration.
#[derive(Debug)]
pub enum Argument<'a, M> {
    /// A pointer to a memory, plus this offset in bytes.
    At(&'a M, u64),
    /// A null pointer.
    Null,
    /// A `u32`.
    Word(u32),
    /// A `u64`.
    Long(u64),
    /// A structure by value.
    Bytes(&'a [u8]),
}

/// A device. Rust cannot access its memories directly, only through these functions.
pub trait Device: Send {
    /// A piece of the device's memory, freed when dropped.
    type Memory: Send;

    /// Describes the device, for reports.
    fn describe(&self) -> String;

    /// Bytes of memory that can be allocated now.
    ///
    /// # Errors
    /// The driver reports an error.
    fn free(&self) -> Result<u64, DeviceError>;

    /// Allocates memory of at least one byte, with arbitrary contents.
    ///
    /// # Errors
    /// There is no room.
    fn allocate(&self, bytes: u64) -> Result<Self::Memory, DeviceError>;

    /// The size of a memory in bytes.
    fn length(&self, memory: &Self::Memory) -> u64;

    /// Copies to the device. No kernel that uses those bytes may be running.
    ///
    /// # Errors
    /// The memory is too small, or the driver reports an error.
    fn write(&self, to: &Self::Memory, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Waits for both lanes and copies from the device.
    ///
    /// # Errors
    /// The memory is too small, or the driver reports an error, possibly of an earlier launch.
    fn read(&self, from: &Self::Memory, at: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies `bytes` bytes from one memory to another on the device and waits for the copy.
    ///
    /// # Errors
    /// A memory is too small, or the driver reports an error.
    fn copy(&self, from: &Self::Memory, to: &Self::Memory, bytes: u64) -> Result<(), DeviceError>;

    /// Queues a launch of `blocks` blocks in a lane and does not wait for it.
    ///
    /// # Errors
    /// The driver reports an error.
    ///
    /// # Safety
    /// The arguments must be those of the kernel. The memories must contain everything that it accesses until the lane
    /// has been waited for.
    unsafe fn launch(
        &self,
        lane: Lane,
        kernel: Kernel,
        blocks: u32,
        arguments: &[Argument<'_, Self::Memory>],
    ) -> Result<(), DeviceError>;

    /// Waits for all work of a lane.
    ///
    /// # Errors
    /// One of its launches failed.
    fn wait(&self, lane: Lane) -> Result<(), DeviceError>;
}

/// Checks that `bytes` bytes from `at` on are inside a memory of `length` bytes.
///
/// # Errors
/// They are not. `what` names the kernel or the copy in the error.
pub fn within(what: &'static str, length: u64, at: u64, bytes: u64) -> Result<(), DeviceError> {
    match at.checked_add(bytes) {
        Some(end) if end <= length => Ok(()),
        Some(_) | None => Err(DeviceError::Outside(what, length)),
    }
}

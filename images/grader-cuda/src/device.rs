//! What a device is asked for: memory, copies, launches in two lanes.

/// Why a device did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// There is no such device, or not one that can run the kernels.
    #[error("no device to prove with: {0}")]
    Missing(String),
    /// The device has not so much memory left.
    #[error("the device has no room for {0} bytes")]
    NoRoom(u64),
    /// The driver reports an error.
    #[error("the device failed to {0}")]
    Failed(&'static str, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// A kernel was asked to reach beyond a memory; a defect of the caller's.
    #[error("{0} would reach beyond a memory of {1} bytes")]
    Outside(&'static str, u64),
}

/// Work in one lane is done in order; work in two lanes side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The first.
    Even,
    /// The second.
    Odd,
}

impl Lane {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Even, Self::Odd];

    /// Lanes in turn.
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
    /// Rows that follow one another.
    Rows,
    /// Rows from anywhere.
    DrawnRows,
    /// The product of int8.
    ProductInt8,
    /// The product of fp16.
    ProductFp16,
    /// Hashes of leaves.
    Leaves,
    /// Hashes of pairs of hashes.
    Nodes,
    /// The words of a WALK's memory.
    Labels,
    /// First states.
    WalkStart,
    /// Walks.
    Walk,
    /// Single walks again.
    WalkAgain,
}

impl Kernel {
    /// All of them.
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

    /// Its name in the PTX.
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

    /// Threads of a block, as in its `KERNEL(…)`.
    pub fn threads(self) -> u32 {
        match self {
            Self::Rows | Self::DrawnRows | Self::ProductInt8 | Self::ProductFp16 | Self::Labels => 256,
            Self::Leaves | Self::Nodes | Self::WalkStart | Self::Walk => 128,
            Self::WalkAgain => 32,
        }
    }

    /// Columns of a block's part of a product; 0 for all others.
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

    /// Shared memory that a launch asks for: four stages of 64 bytes of each row and column of a part of a product.
    pub fn shared_bytes(self) -> u32 {
        match self.tile_columns() {
            0 => 0,
            columns => 4 * 64 * (TILE_ROWS + columns),
        }
    }
}

/// Rows of a block's part of a product.
pub const TILE_ROWS: u32 = 128;

/// An argument of a kernel, as its declaration in the source has it.
#[derive(Debug)]
pub enum Argument<'a, M> {
    /// A pointer this far into a memory.
    At(&'a M, u64),
    /// A null pointer.
    Null,
    /// `u32`.
    Word(u32),
    /// `u64`.
    Long(u64),
    /// A structure by value.
    Bytes(&'a [u8]),
}

/// A device. Its memories are not Rust's: what lies in them is only reached through these functions.
pub trait Device: Send {
    /// A piece of its memory; given back when dropped.
    type Memory: Send;

    /// What it is, for reports.
    fn describe(&self) -> String;

    /// Bytes that can be allocated now.
    ///
    /// # Errors
    /// The driver reports one.
    fn free(&self) -> Result<u64, Fault>;

    /// Takes memory, at least one byte; what is in it is anything.
    ///
    /// # Errors
    /// No room.
    fn allocate(&self, bytes: u64) -> Result<Self::Memory, Fault>;

    /// How large it is.
    fn length(&self, memory: &Self::Memory) -> u64;

    /// Copies to the device. Not to be called while a kernel that uses those bytes is at work.
    ///
    /// # Errors
    /// The memory is smaller, or the driver reports an error.
    fn write(&self, to: &Self::Memory, at: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Waits for both lanes and copies from the device.
    ///
    /// # Errors
    /// The memory is smaller, or the driver reports an error, of an earlier launch too.
    fn read(&self, from: &Self::Memory, at: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Copies `bytes` from one memory to another on the device and waits for it.
    ///
    /// # Errors
    /// A memory is smaller, or the driver reports an error.
    fn copy(&self, from: &Self::Memory, to: &Self::Memory, bytes: u64) -> Result<(), Fault>;

    /// Puts a launch of `blocks` blocks into a lane and does not wait for it.
    ///
    /// # Errors
    /// The driver reports one.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and the memories hold all that it reaches until the lane has been waited for.
    unsafe fn launch(
        &self,
        lane: Lane,
        kernel: Kernel,
        blocks: u32,
        arguments: &[Argument<'_, Self::Memory>],
    ) -> Result<(), Fault>;

    /// Waits for a lane.
    ///
    /// # Errors
    /// What any of its launches failed with.
    fn wait(&self, lane: Lane) -> Result<(), Fault>;
}

/// Checks that `bytes` bytes from `at` on lie in a memory of `length`.
///
/// # Errors
/// They do not; `what` names who wanted them.
pub fn within(what: &'static str, length: u64, at: u64, bytes: u64) -> Result<(), Fault> {
    match at.checked_add(bytes) {
        Some(end) if end <= length => Ok(()),
        Some(_) | None => Err(Fault::Outside(what, length)),
    }
}

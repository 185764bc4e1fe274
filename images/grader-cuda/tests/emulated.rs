//! Runs the kernels' source on the processor with the prover for cards, and compares it with the golden vectors and the
//! verifier.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_hardware_proof::InstructionSet;
use muster_hardware_proof::chacha::{self, Key};
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName};
use muster_hardware_proof::matmul::{MatmulShape, MatmulSpec};
use muster_hardware_proof::memory_walk::{StepPosition, WalkShape, WalkSpec};
use muster_hardware_proof::prover::{
    CpuProver, NoObserver, Prover as _, ProverError, WorkObserver, available_threads,
};
use muster_hardware_proof::spec::NumberFormat;
use muster_image_grader_cuda::bench::{self, BenchOptions};
use muster_image_grader_cuda::check::{self, ConversationSizes};
use muster_image_grader_cuda::device_interface::{
    Argument, Device as _, DeviceError, Kernel, Lane, TILE_ROWS,
};
use muster_image_grader_cuda::emulator::{CopyTiming, Emulator, EmulatorMemory};
use muster_image_grader_cuda::kernels::{Kernels, RowSpan};
use muster_image_grader_cuda::prover::{DeviceProver, LaunchSizes};

fn prover(copies: CopyTiming, sizes: LaunchSizes) -> DeviceProver<Emulator> {
    DeviceProver::new(Emulator::new(copies, 1 << 30), sizes)
}

/// A clock that advances with every reading.
fn clock() -> impl Fn() -> Duration {
    let ticks = AtomicU64::new(0);
    move || Duration::from_millis(ticks.fetch_add(1, Ordering::Relaxed))
}

fn identity() -> ChallengeIdentity {
    ChallengeIdentity {
        batch: BatchId([1; 16]),
        executor: ExecutorName([2; 32]),
        nonce: ChallengeNonce([5; 32]),
    }
}

fn matmul(numbers: NumberFormat, log2_n: u8, rounds: u16) -> MatmulSpec {
    let shape = MatmulShape {
        numbers,
        log2_n,
        rounds,
        entries: 64,
    };
    MatmulSpec::new(identity(), shape, None).unwrap()
}

fn walk(log2_leaves: u8) -> WalkSpec {
    let shape = WalkShape {
        blocks: 300,
        work: 2,
        log2_walks: 5,
        log2_leaves,
        draws: 128,
    };
    WalkSpec::new(identity(), shape).unwrap()
}

#[test]
fn the_golden_vectors_with_copies_as_late_as_they_may_be() {
    let held = check::check_golden_vectors(&mut prover(CopyTiming::Late, LaunchSizes::default())).unwrap();
    assert_eq!(held.len(), 4);
}

#[test]
fn the_golden_vectors_in_pieces_with_copies_as_early_as_they_may_be() {
    check::check_golden_vectors(&mut prover(CopyTiming::Early, LaunchSizes::PIECES)).unwrap();
}

#[test]
fn a_validator_passes_whole_conversations() {
    let sizes = ConversationSizes {
        log2_n: 8,
        blocks: 2_000,
        work: 3,
        log2_walks: 6,
        log2_leaves: 3,
    };
    let verdicts = check::run_conversations(
        &mut prover(CopyTiming::Late, LaunchSizes::PIECES),
        &sizes,
        &clock(),
    )
    .unwrap();
    assert_eq!(verdicts.len(), 3);
}

/// The products are long enough along k that fp16 sums are moved to integers twice, and they have several tiles.
#[test]
fn a_longer_product_of_either_kind_has_the_right_entries() {
    for (numbers, n) in [(NumberFormat::Int8, 512), (NumberFormat::Fp16, 2048)] {
        let kernels = Kernels(Emulator::new(CopyTiming::Late, 1 << 30));
        let (row_bytes, rows) = (n * numbers.width(), 128);
        let take = |bytes: usize| kernels.0.allocate(bytes as u64).unwrap();
        let (a, b, c) = (take(rows * row_bytes), take(n * row_bytes), take(rows * n * 4));
        let span = |key| RowSpan {
            key: Key([key; 32]),
            bound: Key([0; 32]),
            first: 40,
        };
        let shape = (numbers, n as u64, rows as u32);
        kernels.rows(Lane::Even, &span(1), shape, None, &a).unwrap();
        kernels
            .rows(Lane::Even, &span(2), (numbers, n as u64, n as u32), None, &b)
            .unwrap();
        let columns = first_columns(&kernels, shape, [&a, &b, &c]);
        let mut found = vec![0; rows * n * 4];
        kernels.0.read(&c, 0, &mut found).unwrap();
        // A prime step reaches every row and column of a tile.
        for entry in (0..rows * n).step_by(101) {
            let (row, column) = (entry / n, entry % n);
            if column >= columns {
                continue;
            }
            let expected = dot(numbers, row_bytes, (1, 40 + row as u64), (2, 40 + column as u64));
            let place = found[entry * 4..].first_chunk().copied().unwrap();
            assert_eq!(i32::from_le_bytes(place), expected, "{numbers:?} {row} {column}");
        }
    }
}

/// Computes two tiles of a product, because the emulator takes seconds for all tiles. Returns the number of their
/// columns.
#[expect(unsafe_code, reason = "fewer tiles than the product has")]
fn first_columns(
    kernels: &Kernels<Emulator>,
    (numbers, n, rows): (NumberFormat, u64, u32),
    [a, b, c]: [&EmulatorMemory; 3],
) -> usize {
    let kernel = match numbers {
        NumberFormat::Int8 => Kernel::ProductInt8,
        NumberFormat::Fp16 => Kernel::ProductFp16,
    };
    let arguments = [
        Argument::At(a, 0),
        Argument::At(b, 0),
        Argument::At(c, 0),
        Argument::Word(n as u32 * numbers.width() as u32),
        Argument::Word(n as u32),
        Argument::Word(rows / TILE_ROWS),
    ];
    // SAFETY: as `Kernels::product`, whose memories these are.
    unsafe { kernels.0.launch(Lane::Even, kernel, 2, &arguments) }.unwrap();
    2 * kernel.tile_columns() as usize
}

/// The inner product of two generated rows, computed entry by entry.
fn dot(numbers: NumberFormat, bytes: usize, a: (u8, u64), b: (u8, u64)) -> i32 {
    let row = |(key, stream): (u8, u64)| {
        let mut row = vec![0; bytes];
        chacha::fill_keystream(&Key([key; 32]), stream, &mut row);
        match numbers {
            NumberFormat::Int8 => row
                .iter()
                .map(|byte| i32::from(byte.cast_signed()))
                .collect::<Vec<_>>(),
            NumberFormat::Fp16 => row
                .as_chunks::<2>()
                .0
                .iter()
                .map(|word| i32::from(i16::from_le_bytes(*word) >> 7))
                .collect(),
        }
    };
    row(a).iter().zip(row(b)).map(|(x, y)| x * y).sum()
}

/// Tests walks of one leaf and of many, and every border of a leaf.
#[test]
fn walks_and_their_openings_are_the_processors() {
    for log2_leaves in [0, 3] {
        let spec = walk(log2_leaves);
        let (mut ours, mut reference) = (
            prover(CopyTiming::Late, LaunchSizes::PIECES),
            CpuProver::new(InstructionSet::best(), available_threads()),
        );
        ours.fill_memory(&spec, &NoObserver).unwrap();
        reference.fill_memory(&spec, &NoObserver).unwrap();
        let root = ours.run_walks(&[6; 32], &NoObserver).unwrap();
        assert_eq!(root, reference.run_walks(&[6; 32], &NoObserver).unwrap());
        let places: Vec<_> = (0..spec.steps())
            .map(|step| StepPosition {
                walk: (step % 32) as u32,
                step,
            })
            .collect();
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        ours.open_steps(&places, &mut found, &NoObserver).unwrap();
        reference.open_steps(&places, &mut expected, &NoObserver).unwrap();
        assert_eq!(found, expected);
    }
}

#[test]
fn challenges_without_room_or_with_wrong_sizes_are_refused_by_name() {
    let small = Emulator::new(CopyTiming::Late, 100 << 10);
    let mut ours = DeviceProver::new(small, LaunchSizes::PIECES);
    let refused = ours.fill_memory(&walk(0), &NoObserver);
    assert!(
        matches!(refused, Err(ProverError::TooLarge("memory"))),
        "{refused:?}"
    );
    let refused = ours.start_matmul(&matmul(NumberFormat::Int8, 10, 1), &NoObserver);
    assert!(
        matches!(refused, Err(ProverError::TooLarge("matrices"))),
        "{refused:?}"
    );
    let mut ours = prover(CopyTiming::Late, LaunchSizes::PIECES);
    assert!(matches!(
        ours.run_walks(&[0; 32], &NoObserver),
        Err(ProverError::OutOfOrder(_))
    ));
    assert!(matches!(
        ours.compute_round(0, &[0; 32], &NoObserver),
        Err(ProverError::OutOfOrder(_))
    ));
    ours.start_matmul(&matmul(NumberFormat::Int8, 8, 2), &NoObserver)
        .unwrap();
    assert!(matches!(
        ours.compute_round(1, &[0; 32], &NoObserver),
        Err(ProverError::OutOfOrder(_))
    ));
    ours.fill_memory(&walk(0), &NoObserver).unwrap();
    ours.run_walks(&[0; 32], &NoObserver).unwrap();
    let outside = StepPosition { walk: 32, step: 0 };
    let refused = ours.open_steps(&[outside], &mut Vec::new(), &NoObserver);
    assert!(matches!(refused, Err(ProverError::OutOfOrder(_))), "{refused:?}");
}

/// Cancels the work at the n-th query.
struct After(AtomicU64);

impl WorkObserver for After {
    fn is_cancelled(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

#[test]
fn work_that_is_called_off_stops_between_launches_and_can_begin_anew() {
    let mut ours = prover(CopyTiming::Late, LaunchSizes::PIECES);
    let stopped = ours.fill_memory(&walk(3), &After(AtomicU64::new(3)));
    assert!(matches!(stopped, Err(ProverError::Cancelled)), "{stopped:?}");
    let spec = matmul(NumberFormat::Int8, 8, 1);
    ours.start_matmul(&spec, &NoObserver).unwrap();
    let stopped = ours.compute_round(0, &[0; 32], &After(AtomicU64::new(2)));
    assert!(matches!(stopped, Err(ProverError::Cancelled)), "{stopped:?}");
    let root = ours.compute_round(0, &[0; 32], &NoObserver).unwrap();
    let mut reference = CpuProver::new(InstructionSet::best(), available_threads());
    reference.start_matmul(&spec, &NoObserver).unwrap();
    assert_eq!(root, reference.compute_round(0, &[0; 32], &NoObserver).unwrap());
}

#[test]
fn no_kernel_is_asked_to_reach_beyond_its_memories() {
    let kernels = Kernels(Emulator::new(CopyTiming::Late, 1 << 20));
    let small = kernels.0.allocate(1_000).unwrap();
    let outside = |result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Outside(..))), "{result:?}")
    };
    let shape = (NumberFormat::Int8, 256, 128);
    outside(kernels.product(Lane::Even, shape, &small, &small, &small));
    outside(kernels.product(Lane::Even, (NumberFormat::Int8, 256, 100), &small, &small, &small));
    outside(kernels.leaves(Lane::Even, &small, 1, (&small, 0)));
    outside(kernels.climb(Lane::Even, (&small, 0), (64, 1), &small, (&small, 0)));
    outside(kernels.walk(Lane::Even, (&small, 1), (1, 0), (0, 1), &small, &small));
    outside(kernels.0.write(&small, 999, &[0; 2]));
    outside(kernels.0.read(&small, u64::MAX, &mut [0; 2]));
}

#[test]
fn every_kernel_stands_in_the_ptx() {
    let ptx = include_str!("../kernels/kernels.ptx");
    for kernel in Kernel::ALL {
        let entry = format!(".visible .entry {}(", kernel.name());
        let (_, rest) = ptx.split_once(&entry).unwrap();
        let threads = format!(".maxntid {}", kernel.threads());
        assert!(
            rest.lines().take(40).any(|line| line.starts_with(&threads)),
            "{entry} {threads}"
        );
    }
}

#[test]
fn a_benchmark_of_the_emulator_fills_its_table() {
    let options = BenchOptions {
        log2_n: 8,
        rounds: 1,
        blocks: 200,
        work: 2,
        log2_walks: 4,
        log2_leaves: 1,
        copy_bytes: 1 << 10,
        repeat: 1,
    };
    let rival = |_, _| Ok(0.5);
    let report = bench::run(
        &mut prover(CopyTiming::Late, LaunchSizes::PIECES),
        &options,
        &clock(),
        Some(&rival),
    )
    .unwrap();
    let table = report.to_string();
    for line in [
        "int8 against cuBLASLt",
        "MATMUL fp16",
        "walks against the copy",
        "suggested WALK",
    ] {
        assert!(table.contains(line), "{table}");
    }
}

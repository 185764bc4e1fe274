//! Measures a card, as a table for `docs/grading-cuda.md`.

use std::fmt;
use std::time::Duration;

use anyhow::Context as _;
use muster_hardware_proof::chacha::Key;
use muster_hardware_proof::challenge_keys::{BatchId, ChallengeIdentity, ChallengeNonce, ExecutorName};
use muster_hardware_proof::matmul::{MatmulShape, MatmulSpec};
use muster_hardware_proof::memory_walk::{LEAF_STATES, WalkShape, WalkSpec};
use muster_hardware_proof::merkle::LEAF;
use muster_hardware_proof::prover::{NoObserver, Prover as _};
use muster_hardware_proof::spec::{NumberFormat, WORDS_PER_BLOCK};

use crate::device_interface::{Device, Lane, TILE_ROWS};
use crate::kernels::{HASH, Kernels, RowSpan};
use crate::prover::DeviceProver;
use crate::suggest::{self, CardRates, WalkSuggestion};

/// Multiplies matrices of side n with another library and returns the seconds of one product.
pub type ReferenceProduct<'a> = dyn Fn(NumberFormat, u64) -> anyhow::Result<f64> + 'a;

/// The sizes of the measurements.
#[derive(Debug, Clone, Copy)]
pub struct BenchOptions {
    /// log₂ of the side of the products.
    pub log2_n: u8,
    /// The number of rounds of a MATMUL.
    pub rounds: u16,
    /// The number of 1 KiB blocks of the memory for the fill and the walks.
    pub blocks: u64,
    /// Applications of the one-way function per word of memory.
    pub work: u32,
    /// log₂ of the number of walks.
    pub log2_walks: u8,
    /// log₂ of the number of leaves of each walk.
    pub log2_leaves: u8,
    /// The size in bytes of the copy with which the walks are compared.
    pub copy_bytes: u64,
    /// The number of runs of each measurement, of which the median counts.
    pub repeat: usize,
}

/// The results of all measurements.
#[derive(Debug)]
pub struct BenchReport {
    device: String,
    lines: Vec<(String, String)>,
    suggestion: WalkSuggestion,
}

impl BenchReport {
    fn line(&mut self, what: impl Into<String>, value: impl Into<String>) {
        self.lines.push((what.into(), value.into()));
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {} | |", self.device)?;
        writeln!(f, "|---|---|")?;
        for (what, value) in &self.lines {
            writeln!(f, "| {what} | {value} |")?;
        }
        let WalkSuggestion {
            shape,
            fill_s,
            walk_s,
            extra_s,
        } = &self.suggestion;
        writeln!(
            f,
            "| suggested WALK | {} GiB, t = {}, 2^{} walks of 32·2^{} steps |",
            (shape.blocks * LEAF as u64) >> 30,
            shape.work,
            shape.log2_walks,
            shape.log2_leaves
        )?;
        writeln!(
            f,
            "| … which takes | fill {fill_s:.1} s, walks {walk_s:.1} s, {extra_s:.1} s more without 1 % of the memory |"
        )
    }
}

/// Runs all measurements on one device, with the caller's clock.
///
/// # Errors
/// The device fails, or has no room for the measurements.
pub fn run<D: Device>(
    prover: &mut DeviceProver<D>,
    options: &BenchOptions,
    clock: &dyn Fn() -> Duration,
    rival: Option<&ReferenceProduct<'_>>,
) -> anyhow::Result<BenchReport> {
    let free = prover.kernels().0.free()?;
    let mut report = BenchReport {
        device: prover.kernels().0.describe(),
        lines: Vec::new(),
        suggestion: suggest::suggest_walk(&CardRates {
            free,
            applications: 1.0,
            read: 1.0,
        }),
    };
    let bench = Bench { options, clock };
    for numbers in [NumberFormat::Int8, NumberFormat::Fp16] {
        bench.products(prover, numbers, rival, &mut report)?;
    }
    let copied = bench.copy(prover.kernels())?;
    let (applications, read) = bench.walk(prover)?;
    report.line(
        "applications of the one-way function",
        format!("{:.3}·10⁹ /s", applications / 1e9),
    );
    report.line("walks read", format!("{:.1} GB/s", read / 1e9));
    report.line(
        "device copy, both directions counted",
        format!("{:.1} GB/s", copied / 1e9),
    );
    report.line("walks against the copy", format!("{:.2}", read / copied));
    report.suggestion = suggest::suggest_walk(&CardRates {
        free,
        applications,
        read,
    });
    Ok(report)
}

struct Bench<'a> {
    options: &'a BenchOptions,
    clock: &'a dyn Fn() -> Duration,
}

impl Bench<'_> {
    /// The median time of the runs in seconds, after one run that does not count.
    fn seconds(&self, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        work()?;
        let mut times = Vec::new();
        for _ in 0..self.options.repeat.max(1) {
            let before = (self.clock)();
            work()?;
            times.push((self.clock)().saturating_sub(before).as_secs_f64().max(1e-9));
        }
        times.sort_unstable_by(f64::total_cmp);
        times
            .get(times.len() / 2)
            .copied()
            .context("nothing was measured")
    }

    /// Measures the parts of a MATMUL's round, the product of another library, and whole rounds.
    fn products<D: Device>(
        &self,
        prover: &mut DeviceProver<D>,
        numbers: NumberFormat,
        rival: Option<&ReferenceProduct<'_>>,
        report: &mut BenchReport,
    ) -> anyhow::Result<()> {
        let name = match numbers {
            NumberFormat::Int8 => "int8",
            NumberFormat::Fp16 => "fp16",
        };
        let n = 1u64 << self.options.log2_n;
        let operations = 2.0 * (n as f64).powi(3);
        let alone = self.parts(prover.kernels(), (name, numbers, n), report)?;
        if let Some(rival) = rival {
            match rival(numbers, n) {
                Ok(seconds) => {
                    report.line(
                        format!("cuBLASLt {name}, n = {n}"),
                        format!("{:.1} TOPS", operations / seconds / 1e12),
                    );
                    report.line(
                        format!("{name} against cuBLASLt"),
                        format!("{:.2}", seconds / alone),
                    );
                }
                Err(error) => report.line(format!("cuBLASLt {name}"), format!("{error:#}")),
            }
        }
        let shape = MatmulShape {
            numbers,
            log2_n: self.options.log2_n,
            rounds: self.options.rounds,
            entries: 256,
        };
        let spec = MatmulSpec::new(identity(), shape, None)?;
        let seconds = self.seconds(|| {
            prover.start_matmul(&spec, &NoObserver)?;
            let mut previous = [0; 32];
            for round in 0..u32::from(self.options.rounds) {
                previous = prover.compute_round(round, &previous, &NoObserver)?;
            }
            Ok(())
        })?;
        report.line(
            format!("MATMUL {name}, {} rounds with all hashing", self.options.rounds),
            format!("{:.1} TOPS", spec.operations() as f64 / seconds / 1e12),
        );
        Ok(())
    }

    /// Measures rows, product and hashes of leaves separately over a band. Returns the seconds of a whole product.
    fn parts<D: Device>(
        &self,
        kernels: &Kernels<D>,
        (name, numbers, n): (&str, NumberFormat, u64),
        report: &mut BenchReport,
    ) -> anyhow::Result<f64> {
        let rows = (1u64 << 28 >> self.options.log2_n >> 2).clamp(u64::from(TILE_ROWS), n) as u32;
        let row_bytes = n * numbers.width() as u64;
        let device = &kernels.0;
        let (a, b) = (
            device.allocate(u64::from(rows) * row_bytes)?,
            device.allocate(n * row_bytes)?,
        );
        let c = device.allocate(u64::from(rows) * n * 4)?;
        let leaves = u64::from(rows) * n / 256;
        let hashes = device.allocate(leaves * HASH)?;
        let lane = Lane::Even;
        let span = |key| RowSpan {
            key: Key([key; 32]),
            bound: Key([0; 32]),
            first: 0,
        };
        kernels.rows(lane, &span(1), (numbers, n, n as u32), None, &b)?;
        let made = self.seconds(|| {
            kernels.rows(lane, &span(2), (numbers, n, rows), None, &a)?;
            Ok(device.wait(lane)?)
        })?;
        let multiplied = self.seconds(|| {
            kernels.product(lane, (numbers, n, rows), &a, &b, &c)?;
            Ok(device.wait(lane)?)
        })?;
        let hashed = self.seconds(|| {
            kernels.leaves(lane, &c, leaves, (&hashes, 0))?;
            Ok(device.wait(lane)?)
        })?;
        let share = n as f64 / f64::from(rows);
        let operations = 2.0 * (n as f64).powi(3);
        report.line(
            format!("{name}: rows generated"),
            format!("{:.1} GB/s", f64::from(rows) * row_bytes as f64 / made / 1e9),
        );
        report.line(
            format!("{name}: product, n = {n}, bands of {rows}"),
            format!("{:.1} TOPS", operations / (multiplied * share) / 1e12),
        );
        report.line(
            format!("{name}: leaves hashed"),
            format!("{:.1} GB/s", leaves as f64 * LEAF as f64 / hashed / 1e9),
        );
        Ok(multiplied * share)
    }

    /// Bytes per second that a copy on the device reads and writes.
    fn copy<D: Device>(&self, kernels: &Kernels<D>) -> anyhow::Result<f64> {
        let bytes = self.options.copy_bytes;
        let (from, to) = (kernels.0.allocate(bytes)?, kernels.0.allocate(bytes)?);
        let seconds = self.seconds(|| Ok(kernels.0.copy(&from, &to, bytes)?))?;
        Ok(2.0 * bytes as f64 / seconds)
    }

    /// Applications of the one-way function per second, and bytes that walks read per second.
    fn walk<D: Device>(&self, prover: &mut DeviceProver<D>) -> anyhow::Result<(f64, f64)> {
        let BenchOptions {
            blocks,
            work,
            log2_walks,
            log2_leaves,
            ..
        } = *self.options;
        let shape = WalkShape {
            blocks,
            work,
            log2_walks,
            log2_leaves,
            draws: 128,
        };
        let spec = WalkSpec::new(identity(), shape)?;
        let filled = self.seconds(|| Ok(prover.fill_memory(&spec, &NoObserver)?))?;
        let walked = self.seconds(|| {
            prover.run_walks(&[7; 32], &NoObserver)?;
            Ok(())
        })?;
        let applications = (blocks * WORDS_PER_BLOCK) as f64 * f64::from(work);
        let reads = ((LEAF_STATES << log2_leaves) << log2_walks) as f64;
        Ok((applications / filled, reads * LEAF as f64 / walked))
    }
}

fn identity() -> ChallengeIdentity {
    ChallengeIdentity {
        batch: BatchId([8; 16]),
        executor: ExecutorName([8; 32]),
        nonce: ChallengeNonce([8; 32]),
    }
}

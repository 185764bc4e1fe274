//! cuBLASLt, where it can be found: what `bench` holds the products against.
//!
//! Loaded by name, because an image need not have it. Constants and layouts are those of `cublasLt.h`, which has kept them since
//! CUDA 11.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use libloading::Library;
use muster_hardware_proof::spec::Numbers;

use crate::cuda::{Cuda, Memory};
use crate::device::{Device as _, Lane};

const NAMES: [&str; 4] = [
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "libcublasLt.so.11",
    "libcublasLt.so",
];
const WORKSPACE: u64 = 64 << 20;

const TRANSPOSE_A: c_int = 3;
const MOST_WORKSPACE: c_int = 1;
const TRANSPOSED: c_int = 1;

/// `CUBLAS_COMPUTE_*` and `CUDA_R_*` of a kind of numbers: what it computes in, what its entries are, what its sums are.
fn types(numbers: Numbers) -> (c_int, c_int, c_int) {
    match numbers {
        Numbers::Int8 => (72, 3, 10),
        Numbers::Fp16 => (68, 2, 0),
    }
}

type Handle = *mut c_void;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type DescribeProduct = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int;
type SetAttribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int;
type DescribeMatrix = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int;
type Choose = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Heuristic,
    *mut c_int,
) -> c_int;
type Multiply = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const [u64; 8],
    *mut c_void,
    usize,
    *mut c_void,
) -> c_int;

/// The library.
pub struct CublasLt(Library);

/// What the library made; given back in the end.
struct Made<'a> {
    library: &'a CublasLt,
    handle: Handle,
    destroy: &'static str,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if let Ok(destroy) = self.library.symbol::<Destroy>(self.destroy) {
            // SAFETY: made by the function that belongs to `destroy`, and used by nobody any more.
            unsafe { destroy(self.handle) };
        }
    }
}

impl CublasLt {
    /// Loads it, if the loader finds it.
    pub fn find() -> Option<Self> {
        // SAFETY: its initialisers do no more than those of any library of the toolkit.
        NAMES
            .iter()
            .find_map(|name| unsafe { Library::new(name) }.ok())
            .map(Self)
    }

    fn symbol<T: Copy>(&self, name: &str) -> anyhow::Result<T> {
        // SAFETY: `T` is the type that cublasLt.h declares under this name.
        let symbol = unsafe { self.0.get::<T>(name.as_bytes()) };
        Ok(*symbol.with_context(|| format!("the library has no {name}"))?)
    }

    fn make(
        &self,
        what: &'static str,
        destroy: &'static str,
        create: impl FnOnce(*mut Handle) -> c_int,
    ) -> anyhow::Result<Made<'_>> {
        let mut handle = null_mut();
        done(what, create(&raw mut handle))?;
        Ok(Made {
            library: self,
            handle,
            destroy,
        })
    }

    fn set(&self, name: &'static str, of: &Made<'_>, attribute: c_int, bytes: &[u8]) -> anyhow::Result<()> {
        let set: SetAttribute = self.symbol(name)?;
        // SAFETY: the attribute is copied from as many bytes as are named.
        done(name, unsafe {
            set(of.handle, attribute, bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Seconds of one product of side n with the algorithm that the library prefers: the median of `repeat` runs, after one that
    /// does not count.
    ///
    /// # Errors
    /// The library fails or has no algorithm, or the card has no room for the matrices.
    pub fn seconds(
        &self,
        cuda: &Cuda,
        (numbers, n): (Numbers, u64),
        repeat: usize,
        clock: &dyn Fn() -> Duration,
    ) -> anyhow::Result<f64> {
        let matmul = self.prepare(cuda, numbers, n)?;
        let multiply: Multiply = self.symbol("cublasLtMatmul")?;
        matmul.run(cuda, multiply)?;
        let mut times = Vec::new();
        for _ in 0..repeat.max(1) {
            let before = clock();
            matmul.run(cuda, multiply)?;
            times.push(clock().saturating_sub(before).as_secs_f64());
        }
        times.sort_unstable_by(f64::total_cmp);
        times
            .get(times.len() / 2)
            .copied()
            .context("nothing was measured")
    }

    /// Allocates the matrices and describes their product to the library.
    fn prepare(&self, cuda: &Cuda, numbers: Numbers, n: u64) -> anyhow::Result<Matmul<'_>> {
        let (compute, entry, sum) = types(numbers);
        let (create, describe): (Create, DescribeProduct) = (
            self.symbol("cublasLtCreate")?,
            self.symbol("cublasLtMatmulDescCreate")?,
        );
        let matrix: DescribeMatrix = self.symbol("cublasLtMatrixLayoutCreate")?;
        // The kernels' own arrangement: rows of A and columns of B lie whole, so A is given as the transpose of its columns.
        let a = cuda.allocate(n * n * numbers.width() as u64)?;
        let b = cuda.allocate(n * n * numbers.width() as u64)?;
        let (c, workspace) = (cuda.allocate(n * n * 4)?, cuda.allocate(WORKSPACE)?);
        // SAFETY: each function writes one handle to the place it is given.
        let library = self.make("cublasLtCreate", "cublasLtDestroy", |to| unsafe { create(to) })?;
        let product = self.make(
            "cublasLtMatmulDescCreate",
            "cublasLtMatmulDescDestroy",
            |to| unsafe { describe(to, compute, sum) },
        )?;
        let layout = |kind| {
            self.make(
                "cublasLtMatrixLayoutCreate",
                "cublasLtMatrixLayoutDestroy",
                |to| unsafe { matrix(to, kind, n, n, n as i64) },
            )
        };
        let (entries, sums) = (layout(entry)?, layout(sum)?);
        self.set(
            "cublasLtMatmulDescSetAttribute",
            &product,
            TRANSPOSE_A,
            &TRANSPOSED.to_ne_bytes(),
        )?;
        let algorithm = self.choose(&library, &product, &entries, &sums)?;
        Ok(Matmul {
            product,
            entries,
            sums,
            library,
            a,
            b,
            c,
            workspace,
            algorithm,
            one: match numbers {
                Numbers::Int8 => 1,
                Numbers::Fp16 => 1f32.to_bits(),
            },
        })
    }

    /// The algorithm that the library prefers for a product.
    fn choose(
        &self,
        library: &Made<'_>,
        product: &Made<'_>,
        entries: &Made<'_>,
        sums: &Made<'_>,
    ) -> anyhow::Result<[u64; 8]> {
        let (prefer, choose): (Create, Choose) = (
            self.symbol("cublasLtMatmulPreferenceCreate")?,
            self.symbol("cublasLtMatmulAlgoGetHeuristic")?,
        );
        let preference = self.make(
            "cublasLtMatmulPreferenceCreate",
            "cublasLtMatmulPreferenceDestroy",
            // SAFETY: the function writes one handle to the place it is given.
            |to| unsafe { prefer(to) },
        )?;
        self.set(
            "cublasLtMatmulPreferenceSetAttribute",
            &preference,
            MOST_WORKSPACE,
            &WORKSPACE.to_ne_bytes(),
        )?;
        let mut found = Heuristic {
            algorithm: [0; 8],
            workspace: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut count = 0;
        // SAFETY: all handles are alive; room for one result is named.
        let chosen = unsafe {
            choose(
                library.handle,
                product.handle,
                entries.handle,
                entries.handle,
                sums.handle,
                sums.handle,
                preference.handle,
                1,
                &raw mut found,
                &raw mut count,
            )
        };
        done("cublasLtMatmulAlgoGetHeuristic", chosen)?;
        ensure!(count > 0, "cuBLASLt has no algorithm for this product");
        Ok(found.algorithm)
    }
}

/// A product that is described to the library and can be run.
struct Matmul<'a> {
    // Dropped in this order: the descriptions go before the library's handle.
    product: Made<'a>,
    entries: Made<'a>,
    sums: Made<'a>,
    library: Made<'a>,
    a: Memory,
    b: Memory,
    c: Memory,
    workspace: Memory,
    algorithm: [u64; 8],
    /// The bits of 1 in the type of the sums; the bits of 0 are 0 in each type.
    one: u32,
}

impl Matmul<'_> {
    /// Multiplies once and waits for the product.
    fn run(&self, cuda: &Cuda, multiply: Multiply) -> anyhow::Result<()> {
        let (one, zero) = (self.one, 0u32);
        let [a, b, c] = [self.a.address()?, self.b.address()?, self.c.address()?];
        // SAFETY: the matrices and the workspace are as large as the layouts say and alive until the stream has been waited for.
        let status = unsafe {
            multiply(
                self.library.handle,
                self.product.handle,
                (&raw const one).cast(),
                a as *const c_void,
                self.entries.handle,
                b as *const c_void,
                self.entries.handle,
                (&raw const zero).cast(),
                c as *const c_void,
                self.sums.handle,
                c as *mut c_void,
                self.sums.handle,
                &raw const self.algorithm,
                self.workspace.address()? as *mut c_void,
                WORKSPACE as usize,
                cuda.stream(Lane::Even).as_inner().cast(),
            )
        };
        done("cublasLtMatmul", status)?;
        Ok(cuda.wait(Lane::Even)?)
    }
}

fn done(what: &str, status: c_int) -> anyhow::Result<()> {
    ensure!(status == 0, "{what} failed with status {status}");
    Ok(())
}

//! cuBLASLt, with which `bench` compares the products if the library is installed.
//!
//! It is loaded by name, because an image need not have it. Constants and layouts are those of `cublasLt.h`, which are
//! unchanged since CUDA 11.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use libloading::Library;
use muster_hardware_proof::spec::NumberFormat;

use crate::cuda_card::{CardMemory, Cuda};
use crate::device_interface::{Device as _, Lane};

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

/// `CUBLAS_COMPUTE_*` and `CUDA_R_*` for a format of numbers: the types of the computation, of its entries and of its
/// sums.
fn types(numbers: NumberFormat) -> (c_int, c_int, c_int) {
    match numbers {
        NumberFormat::Int8 => (72, 3, 10),
        NumberFormat::Fp16 => (68, 2, 0),
    }
}

type Handle = *mut c_void;

/// An algorithm that the library suggests: `cublasLtMatmulHeuristicResult_t` of its header.
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type CreateHandle = unsafe extern "C" fn(*mut Handle) -> c_int;
type DestroyHandle = unsafe extern "C" fn(Handle) -> c_int;
type DescribeProduct = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int;
type SetAttribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int;
type DescribeMatrix = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int;
type ChooseAlgorithm = unsafe extern "C" fn(
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
type MultiplyMatrices = unsafe extern "C" fn(
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

/// The loaded library.
pub struct CublasLt(Library);

/// An object of the library, destroyed when dropped.
struct LibraryHandle<'a> {
    library: &'a CublasLt,
    handle: Handle,
    destroy: &'static str,
}

impl Drop for LibraryHandle<'_> {
    fn drop(&mut self) {
        if let Ok(destroy) = self.library.symbol::<DestroyHandle>(self.destroy) {
            // SAFETY: the handle was made by the function that belongs to `destroy`, and is no longer used.
            unsafe { destroy(self.handle) };
        }
    }
}

impl CublasLt {
    /// Loads the library if it is installed.
    pub fn find() -> Option<Self> {
        // SAFETY: the initialisers of the library are those of the CUDA toolkit.
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
    ) -> anyhow::Result<LibraryHandle<'_>> {
        let mut handle = null_mut();
        check_status(what, create(&raw mut handle))?;
        Ok(LibraryHandle {
            library: self,
            handle,
            destroy,
        })
    }

    fn set(
        &self,
        name: &'static str,
        of: &LibraryHandle<'_>,
        attribute: c_int,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let set: SetAttribute = self.symbol(name)?;
        // SAFETY: the attribute is copied from as many bytes as are named.
        check_status(name, unsafe {
            set(of.handle, attribute, bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Seconds of one product of side n with the algorithm that the library prefers: the median of `repeat` runs, after
    /// one that does not count.
    ///
    /// # Errors
    /// The library fails or has no algorithm, or the card has no room for the matrices.
    pub fn seconds(
        &self,
        cuda: &Cuda,
        (numbers, n): (NumberFormat, u64),
        repeat: usize,
        clock: &dyn Fn() -> Duration,
    ) -> anyhow::Result<f64> {
        let matmul = self.prepare(cuda, numbers, n)?;
        let multiply: MultiplyMatrices = self.symbol("cublasLtMatmul")?;
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
    fn prepare(&self, cuda: &Cuda, numbers: NumberFormat, n: u64) -> anyhow::Result<PreparedProduct<'_>> {
        let (compute, entry, sum) = types(numbers);
        let (create, describe): (CreateHandle, DescribeProduct) = (
            self.symbol("cublasLtCreate")?,
            self.symbol("cublasLtMatmulDescCreate")?,
        );
        let matrix: DescribeMatrix = self.symbol("cublasLtMatrixLayoutCreate")?;
        // The same layout as for our kernels: rows of A and columns of B are contiguous, so A is passed as a transposed
        // matrix.
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
        Ok(PreparedProduct {
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
                NumberFormat::Int8 => 1,
                NumberFormat::Fp16 => 1f32.to_bits(),
            },
        })
    }

    /// The algorithm that the library prefers for a product.
    fn choose(
        &self,
        library: &LibraryHandle<'_>,
        product: &LibraryHandle<'_>,
        entries: &LibraryHandle<'_>,
        sums: &LibraryHandle<'_>,
    ) -> anyhow::Result<[u64; 8]> {
        let (prefer, choose): (CreateHandle, ChooseAlgorithm) = (
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
        // SAFETY: all handles are alive, and the call is given the room for one result.
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
        check_status("cublasLtMatmulAlgoGetHeuristic", chosen)?;
        ensure!(count > 0, "cuBLASLt has no algorithm for this product");
        Ok(found.algorithm)
    }
}

/// A product that is described to the library and can be run.
struct PreparedProduct<'a> {
    // Dropped in this order: the descriptions go before the library's handle.
    product: LibraryHandle<'a>,
    entries: LibraryHandle<'a>,
    sums: LibraryHandle<'a>,
    library: LibraryHandle<'a>,
    a: CardMemory,
    b: CardMemory,
    c: CardMemory,
    workspace: CardMemory,
    algorithm: [u64; 8],
    /// The bits of 1 in the type of the sums; the bits of 0 are 0 in each type.
    one: u32,
}

impl PreparedProduct<'_> {
    /// Multiplies once and waits for the product.
    fn run(&self, cuda: &Cuda, multiply: MultiplyMatrices) -> anyhow::Result<()> {
        let (one, zero) = (self.one, 0u32);
        let [a, b, c] = [self.a.address()?, self.b.address()?, self.c.address()?];
        // SAFETY: the matrices and the workspace are as large as the layouts state and alive until the stream has been
        // waited for.
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
        check_status("cublasLtMatmul", status)?;
        Ok(cuda.wait(Lane::Even)?)
    }
}

fn check_status(what: &str, status: c_int) -> anyhow::Result<()> {
    ensure!(status == 0, "{what} failed with status {status}");
    Ok(())
}

//! The device, through the driver and `cust`.

use std::ffi::c_void;
use std::sync::Arc;

use cust::context::{Context, CurrentContext};
use cust::device::{Device as Card, DeviceAttribute};
use cust::error::CudaError;
use cust::function::Function;
use cust::memory::{CopyDestination as _, DeviceBuffer, mem_get_info};
use cust::module::Module;
use cust::stream::{Stream, StreamFlags};
use cust::sys;

use crate::device::{Argument, Device, Fault, Kernel, Lane, within};

/// All kernels, for cards from compute capability 8.0 on: the driver compiles them for its own.
const PTX: &str = include_str!("../kernels/kernels.ptx");

/// A card, its kernels and two streams.
pub struct Cuda {
    // Dropped in this order: what lives in the context goes before it.
    streams: [Stream; 2],
    module: Module,
    context: Arc<Context>,
    name: String,
}

/// Memory of the card.
pub struct Memory {
    buffer: Option<DeviceBuffer<u8>>,
    context: Arc<Context>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Memory is given back in its context, by whatever thread it happens to be. A driver that fails here fails the next call.
        let _ = CurrentContext::set_current(&*self.context);
        drop(self.buffer.take());
    }
}

impl Memory {
    fn buffer(&self) -> Result<&DeviceBuffer<u8>, Fault> {
        self.buffer.as_ref().ok_or(Fault::NoRoom(0))
    }

    /// Its address on the card.
    pub(crate) fn address(&self) -> Result<u64, Fault> {
        Ok(self.buffer()?.as_device_ptr().as_raw())
    }

    fn length(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64)
    }
}

/// What the driver reports. `cust` would ask the driver for a text, and panic where it has none.
#[derive(Debug, thiserror::Error)]
#[error("the driver reports {0:?}")]
struct Reported(CudaError);

fn failed(doing: &'static str) -> impl Fn(CudaError) -> Fault {
    move |error| Fault::Failed(doing, Box::new(Reported(error)))
}

impl Cuda {
    /// Opens the card `ordinal` and compiles the kernels for it.
    ///
    /// # Errors
    /// There is none, it is too old, or the driver reports an error.
    pub fn open(ordinal: u32) -> Result<Self, Fault> {
        let missing = |error: CudaError| {
            Fault::Missing(format!(
                "{}; is the container given a card, and its driver's libcuda.so.1?",
                Reported(error)
            ))
        };
        cust::init(cust::CudaFlags::empty()).map_err(missing)?;
        let card = Card::get_device(ordinal).map_err(missing)?;
        let asked = failed("say what it is");
        let attribute = |which| card.get_attribute(which).map_err(&asked);
        let major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
        let minor = attribute(DeviceAttribute::ComputeCapabilityMinor)?;
        let name = card.name().map_err(&asked)?;
        if major < 8 {
            return Err(Fault::Missing(format!(
                "{name} has compute capability {major}.{minor}, the kernels need 8.0"
            )));
        }
        let context = Arc::new(Context::new(card).map_err(failed("make a context"))?);
        let module = Module::from_ptx(PTX, &[]).map_err(failed("compile the kernels"))?;
        let stream = || Stream::new(StreamFlags::DEFAULT, None).map_err(failed("make a stream"));
        let cuda = Self {
            streams: [stream()?, stream()?],
            module,
            context,
            name: format!("{name}, compute capability {major}.{minor}"),
        };
        for kernel in Kernel::ALL {
            cuda.prepare(kernel)?;
        }
        Ok(cuda)
    }

    /// Finds a kernel, and permits it the shared memory beyond the 48 KiB that need no permission.
    fn prepare(&self, kernel: Kernel) -> Result<(), Fault> {
        let function = self.function(kernel)?;
        if kernel.shared_bytes() == 0 {
            return Ok(());
        }
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to the module that is held here.
        let result =
            unsafe { sys::cuFuncSetAttribute(function.to_raw(), attribute, kernel.shared_bytes() as i32) };
        if result == sys::cudaError_enum::CUDA_SUCCESS {
            return Ok(());
        }
        Err(Fault::Missing(format!(
            "{} has less shared memory than the {} KiB of {}",
            self.name,
            kernel.shared_bytes() >> 10,
            kernel.name()
        )))
    }

    fn function(&self, kernel: Kernel) -> Result<Function<'_>, Fault> {
        self.module
            .get_function(kernel.name())
            .map_err(failed("find a kernel"))
    }

    fn enter(&self) -> Result<(), Fault> {
        CurrentContext::set_current(&*self.context).map_err(failed("enter its context"))
    }

    /// The stream of a lane.
    pub(crate) fn stream(&self, lane: Lane) -> &Stream {
        let [even, odd] = &self.streams;
        match lane {
            Lane::Even => even,
            Lane::Odd => odd,
        }
    }
}

impl Device for Cuda {
    type Memory = Memory;

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn free(&self) -> Result<u64, Fault> {
        self.enter()?;
        let (free, _) = mem_get_info().map_err(failed("say how much memory it has"))?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, Fault> {
        self.enter()?;
        // SAFETY: bytes of any value are bytes; kernels and copies write what is read.
        let buffer = unsafe { DeviceBuffer::uninitialized(bytes as usize) };
        let buffer = buffer.map_err(|error| {
            if matches!(error, CudaError::OutOfMemory) {
                Fault::NoRoom(bytes)
            } else {
                failed("allocate")(error)
            }
        })?;
        Ok(Memory {
            buffer: Some(buffer),
            context: Arc::clone(&self.context),
        })
    }

    fn length(&self, memory: &Memory) -> u64 {
        memory.length()
    }

    fn write(&self, to: &Memory, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        within("a copy", to.length(), at, bytes.len() as u64)?;
        self.enter()?;
        let at = at as usize;
        let mut place = to.buffer()?.index(at..at + bytes.len());
        place.copy_from(bytes).map_err(failed("take a copy"))
    }

    fn read(&self, from: &Memory, at: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        within("a copy", from.length(), at, bytes.len() as u64)?;
        for lane in Lane::BOTH {
            self.wait(lane)?;
        }
        let at = at as usize;
        let place = from.buffer()?.index(at..at + bytes.len());
        place.copy_to(bytes).map_err(failed("give a copy"))
    }

    fn copy(&self, from: &Memory, to: &Memory, bytes: u64) -> Result<(), Fault> {
        within("a copy", from.length(), 0, bytes)?;
        within("a copy", to.length(), 0, bytes)?;
        self.enter()?;
        let source = from.buffer()?.index(..bytes as usize);
        let mut place = to.buffer()?.index(..bytes as usize);
        place.copy_from(&source).map_err(failed("copy"))?;
        // A copy within the card does not wait for itself.
        CurrentContext::synchronize().map_err(failed("copy"))
    }

    unsafe fn launch(
        &self,
        lane: Lane,
        kernel: Kernel,
        blocks: u32,
        arguments: &[Argument<'_, Memory>],
    ) -> Result<(), Fault> {
        self.enter()?;
        let mut values: Vec<u64> = arguments.iter().map(word).collect::<Result<_, _>>()?;
        let pointers: Vec<*mut c_void> = arguments
            .iter()
            .zip(&mut values)
            .map(|(argument, value)| match argument {
                Argument::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
                Argument::At(..) | Argument::Null | Argument::Word(_) | Argument::Long(_) => {
                    std::ptr::from_mut(value).cast()
                }
            })
            .collect();
        let function = self.function(kernel)?;
        let (threads, shared) = (kernel.threads(), kernel.shared_bytes());
        // SAFETY: the caller promises that the arguments are the kernel's; the driver copies them before it returns.
        let launched = unsafe {
            self.stream(lane)
                .launch(&function, blocks, threads, shared, &pointers)
        };
        launched.map_err(failed("launch a kernel"))
    }

    fn wait(&self, lane: Lane) -> Result<(), Fault> {
        self.enter()?;
        self.stream(lane)
            .synchronize()
            .map_err(failed("finish what it was asked"))
    }
}

/// The bits of an argument that is no structure.
fn word(argument: &Argument<'_, Memory>) -> Result<u64, Fault> {
    Ok(match argument {
        Argument::At(memory, at) => memory.address()? + at,
        Argument::Word(word) => u64::from(*word),
        Argument::Long(long) => *long,
        Argument::Null | Argument::Bytes(_) => 0,
    })
}

//! A CUDA card as a device, through the driver and `cust`.

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

use crate::device_interface::{Argument, Device, DeviceError, Kernel, Lane, within};

/// All kernels, for cards of compute capability 8.0 and later. The driver compiles them for its card.
const PTX: &str = include_str!("../kernels/kernels.ptx");

/// A card, its kernels and two streams.
pub struct Cuda {
    // The fields are dropped in this order: the context goes last.
    streams: [Stream; 2],
    module: Module,
    context: Arc<Context>,
    name: String,
}

/// Memory of the card.
pub struct CardMemory {
    buffer: Option<DeviceBuffer<u8>>,
    context: Arc<Context>,
}

impl Drop for CardMemory {
    fn drop(&mut self) {
        // The buffer must be freed in its context, on any thread. If the driver fails here, its next call fails too.
        let _ = CurrentContext::set_current(&*self.context);
        drop(self.buffer.take());
    }
}

impl CardMemory {
    fn buffer(&self) -> Result<&DeviceBuffer<u8>, DeviceError> {
        self.buffer.as_ref().ok_or(DeviceError::NoRoom(0))
    }

    /// The address on the card.
    pub(crate) fn address(&self) -> Result<u64, DeviceError> {
        Ok(self.buffer()?.as_device_ptr().as_raw())
    }

    fn length(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64)
    }
}

/// An error of the driver. `cust` would ask the driver for a text and panic if there is none.
#[derive(Debug, thiserror::Error)]
#[error("the driver reports {0:?}")]
struct Reported(CudaError);

fn failed(doing: &'static str) -> impl Fn(CudaError) -> DeviceError {
    move |error| DeviceError::Failed(doing, Box::new(Reported(error)))
}

impl Cuda {
    /// Opens the card `ordinal` and compiles the kernels for it.
    ///
    /// # Errors
    /// There is no such card, it is too old, or the driver reports an error.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        let missing = |error: CudaError| {
            DeviceError::Missing(format!(
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
            return Err(DeviceError::Missing(format!(
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

    /// Finds a kernel and permits its shared memory, which needs permission above 48 KiB.
    fn prepare(&self, kernel: Kernel) -> Result<(), DeviceError> {
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
        Err(DeviceError::Missing(format!(
            "{} has less shared memory than the {} KiB of {}",
            self.name,
            kernel.shared_bytes() >> 10,
            kernel.name()
        )))
    }

    fn function(&self, kernel: Kernel) -> Result<Function<'_>, DeviceError> {
        self.module
            .get_function(kernel.name())
            .map_err(failed("find a kernel"))
    }

    fn enter(&self) -> Result<(), DeviceError> {
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
    type Memory = CardMemory;

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn free(&self) -> Result<u64, DeviceError> {
        self.enter()?;
        let (free, _) = mem_get_info().map_err(failed("say how much memory it has"))?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: u64) -> Result<CardMemory, DeviceError> {
        self.enter()?;
        // SAFETY: bytes of any value are bytes; kernels and copies write what is read.
        let buffer = unsafe { DeviceBuffer::uninitialized(bytes as usize) };
        let buffer = buffer.map_err(|error| {
            if matches!(error, CudaError::OutOfMemory) {
                DeviceError::NoRoom(bytes)
            } else {
                failed("allocate")(error)
            }
        })?;
        Ok(CardMemory {
            buffer: Some(buffer),
            context: Arc::clone(&self.context),
        })
    }

    fn length(&self, memory: &CardMemory) -> u64 {
        memory.length()
    }

    fn write(&self, to: &CardMemory, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        within("a copy", to.length(), at, bytes.len() as u64)?;
        self.enter()?;
        let at = at as usize;
        let mut place = to.buffer()?.index(at..at + bytes.len());
        place.copy_from(bytes).map_err(failed("take a copy"))
    }

    fn read(&self, from: &CardMemory, at: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        within("a copy", from.length(), at, bytes.len() as u64)?;
        for lane in Lane::BOTH {
            self.wait(lane)?;
        }
        let at = at as usize;
        let place = from.buffer()?.index(at..at + bytes.len());
        place.copy_to(bytes).map_err(failed("give a copy"))
    }

    fn copy(&self, from: &CardMemory, to: &CardMemory, bytes: u64) -> Result<(), DeviceError> {
        within("a copy", from.length(), 0, bytes)?;
        within("a copy", to.length(), 0, bytes)?;
        self.enter()?;
        let source = from.buffer()?.index(..bytes as usize);
        let mut place = to.buffer()?.index(..bytes as usize);
        place.copy_from(&source).map_err(failed("copy"))?;
        // A copy within the card is asynchronous.
        CurrentContext::synchronize().map_err(failed("copy"))
    }

    unsafe fn launch(
        &self,
        lane: Lane,
        kernel: Kernel,
        blocks: u32,
        arguments: &[Argument<'_, CardMemory>],
    ) -> Result<(), DeviceError> {
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

    fn wait(&self, lane: Lane) -> Result<(), DeviceError> {
        self.enter()?;
        self.stream(lane)
            .synchronize()
            .map_err(failed("finish what it was asked"))
    }
}

/// The bits of an argument that is not a structure.
fn word(argument: &Argument<'_, CardMemory>) -> Result<u64, DeviceError> {
    Ok(match argument {
        Argument::At(memory, at) => memory.address()? + at,
        Argument::Word(word) => u64::from(*word),
        Argument::Long(long) => *long,
        Argument::Null | Argument::Bytes(_) => 0,
    })
}

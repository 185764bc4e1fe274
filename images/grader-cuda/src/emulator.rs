//! Runs the kernels on the processor, as a [`Device`] for tests.

use std::ffi::{CString, c_char, c_int, c_void};

use crate::device_interface::{Argument, Device, DeviceError, Kernel, Lane, within};

unsafe extern "C" {
    fn muster_emulate(
        name: *const c_char,
        blocks: u32,
        threads: u32,
        shared: u32,
        eager: c_int,
        arguments: *mut *mut c_void,
    ) -> c_int;
}

/// The time at which an asynchronous copy happens. It makes no difference to a correct kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyTiming {
    /// When the copy is issued.
    Early,
    /// When the copy is waited for.
    Late,
}

/// A device that runs on the processor.
#[derive(Debug)]
pub struct Emulator {
    copies: CopyTiming,
    room: u64,
}

impl Emulator {
    /// An emulator with `room` bytes of memory.
    pub fn new(copies: CopyTiming, room: u64) -> Self {
        Self { copies, room }
    }
}

/// A memory of the emulator, in words of 16 bytes because kernels load 16 bytes at once. It is a raw pointer because
/// the kernels access it outside of Rust.
#[derive(Debug)]
pub struct EmulatorMemory {
    start: *mut u128,
    words: usize,
    bytes: u64,
}

// SAFETY: a memory has one owner, and the emulator's launches end before they return.
unsafe impl Send for EmulatorMemory {}

impl Drop for EmulatorMemory {
    fn drop(&mut self) {
        // SAFETY: `allocate` made the pointer from a boxed slice of this many words.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.words)) });
    }
}

impl EmulatorMemory {
    fn at(&self, at: u64) -> *mut u8 {
        self.start.cast::<u8>().wrapping_add(at as usize)
    }
}

impl Device for Emulator {
    type Memory = EmulatorMemory;

    fn describe(&self) -> String {
        "emulator".to_owned()
    }

    fn free(&self) -> Result<u64, DeviceError> {
        Ok(self.room)
    }

    fn allocate(&self, bytes: u64) -> Result<EmulatorMemory, DeviceError> {
        if bytes > self.room {
            return Err(DeviceError::NoRoom(bytes));
        }
        // A pattern instead of zeros shows bytes that were never written.
        let words = vec![u128::MAX / 3; bytes.div_ceil(16).max(1) as usize].into_boxed_slice();
        let count = words.len();
        Ok(EmulatorMemory {
            start: Box::into_raw(words).cast(),
            words: count,
            bytes,
        })
    }

    fn length(&self, memory: &EmulatorMemory) -> u64 {
        memory.bytes
    }

    fn write(&self, to: &EmulatorMemory, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        within("a copy", to.bytes, at, bytes.len() as u64)?;
        // SAFETY: within the memory, as just checked; nothing else accesses it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.at(at), bytes.len()) };
        Ok(())
    }

    fn read(&self, from: &EmulatorMemory, at: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        within("a copy", from.bytes, at, bytes.len() as u64)?;
        // SAFETY: as for `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.at(at), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(&self, from: &EmulatorMemory, to: &EmulatorMemory, bytes: u64) -> Result<(), DeviceError> {
        within("a copy", from.bytes, 0, bytes)?;
        within("a copy", to.bytes, 0, bytes)?;
        // SAFETY: within both memories, as just checked; `copy` permits that they are the same.
        unsafe { std::ptr::copy(from.at(0), to.at(0), bytes as usize) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        _lane: Lane,
        kernel: Kernel,
        blocks: u32,
        arguments: &[Argument<'_, EmulatorMemory>],
    ) -> Result<(), DeviceError> {
        let mut values: Vec<u64> = arguments.iter().map(word).collect();
        let mut pointers: Vec<*mut c_void> = arguments
            .iter()
            .zip(&mut values)
            .map(|(argument, value)| match argument {
                Argument::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
                Argument::At(..) | Argument::Null | Argument::Word(_) | Argument::Long(_) => {
                    std::ptr::from_mut(value).cast()
                }
            })
            .collect();
        let name = CString::new(kernel.name())
            .map_err(|error| DeviceError::Failed("name a kernel", error.into()))?;
        let early = c_int::from(self.copies == CopyTiming::Early);
        // SAFETY: the caller promises that the arguments are the kernel's; each pointer outlives the call.
        let known = unsafe {
            muster_emulate(
                name.as_ptr(),
                blocks,
                kernel.threads(),
                kernel.shared_bytes(),
                early,
                pointers.as_mut_ptr(),
            )
        };
        if known == 0 {
            Ok(())
        } else {
            Err(DeviceError::Missing(format!(
                "the emulator has no kernel {}",
                kernel.name()
            )))
        }
    }

    fn wait(&self, _lane: Lane) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// The bits of an argument that is not a structure.
fn word(argument: &Argument<'_, EmulatorMemory>) -> u64 {
    match argument {
        Argument::At(memory, at) => memory.at(*at) as u64,
        Argument::Word(word) => u64::from(*word),
        Argument::Long(long) => *long,
        Argument::Null | Argument::Bytes(_) => 0,
    }
}

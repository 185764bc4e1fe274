//! The kernels on the processor: a [`Device`] for tests.

use std::ffi::{CString, c_char, c_int, c_void};

use crate::device::{Argument, Device, Fault, Kernel, Lane, within};

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

/// When an asynchronous copy happens. A right kernel does not notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// As soon as it is asked for.
    Early,
    /// Not before it is waited for.
    Late,
}

/// A processor that plays the device.
#[derive(Debug)]
pub struct Emulator {
    copies: Copies,
    room: u64,
}

impl Emulator {
    /// With this much memory.
    pub fn new(copies: Copies, room: u64) -> Self {
        Self { copies, room }
    }
}

/// Memory of the emulator: 16-byte words, because kernels load as many at once. What the kernels do with it is outside of Rust's sight,
/// hence a pointer.
#[derive(Debug)]
pub struct Memory {
    start: *mut u128,
    words: usize,
    bytes: u64,
}

// SAFETY: one owner; the emulator's launches end before they return.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made of a boxed slice of as many words in `allocate`.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.words)) });
    }
}

impl Memory {
    fn at(&self, at: u64) -> *mut u8 {
        self.start.cast::<u8>().wrapping_add(at as usize)
    }
}

impl Device for Emulator {
    type Memory = Memory;

    fn describe(&self) -> String {
        "emulator".to_owned()
    }

    fn free(&self) -> Result<u64, Fault> {
        Ok(self.room)
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, Fault> {
        if bytes > self.room {
            return Err(Fault::NoRoom(bytes));
        }
        // A pattern, so that what was never written is not zero by chance.
        let words = vec![u128::MAX / 3; bytes.div_ceil(16).max(1) as usize].into_boxed_slice();
        let count = words.len();
        Ok(Memory {
            start: Box::into_raw(words).cast(),
            words: count,
            bytes,
        })
    }

    fn length(&self, memory: &Memory) -> u64 {
        memory.bytes
    }

    fn write(&self, to: &Memory, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        within("a copy", to.bytes, at, bytes.len() as u64)?;
        // SAFETY: within the memory, as just checked; nobody else touches it while this runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.at(at), bytes.len()) };
        Ok(())
    }

    fn read(&self, from: &Memory, at: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        within("a copy", from.bytes, at, bytes.len() as u64)?;
        // SAFETY: as for `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.at(at), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(&self, from: &Memory, to: &Memory, bytes: u64) -> Result<(), Fault> {
        within("a copy", from.bytes, 0, bytes)?;
        within("a copy", to.bytes, 0, bytes)?;
        // SAFETY: within both memories, as just checked; `copy` allows that they are one.
        unsafe { std::ptr::copy(from.at(0), to.at(0), bytes as usize) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        _lane: Lane,
        kernel: Kernel,
        blocks: u32,
        arguments: &[Argument<'_, Memory>],
    ) -> Result<(), Fault> {
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
        let name =
            CString::new(kernel.name()).map_err(|error| Fault::Failed("name a kernel", error.into()))?;
        let early = c_int::from(self.copies == Copies::Early);
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
            Err(Fault::Missing(format!(
                "the emulator has no kernel {}",
                kernel.name()
            )))
        }
    }

    fn wait(&self, _lane: Lane) -> Result<(), Fault> {
        Ok(())
    }
}

/// The bits of an argument that is no structure.
fn word(argument: &Argument<'_, Memory>) -> u64 {
    match argument {
        Argument::At(memory, at) => memory.at(*at) as u64,
        Argument::Word(word) => u64::from(*word),
        Argument::Long(long) => *long,
        Argument::Null | Argument::Bytes(_) => 0,
    }
}

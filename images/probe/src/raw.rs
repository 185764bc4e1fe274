//! Three system calls for which no crate has safe wrappers: the only `unsafe` code outside the processor-specific code.
//!
//! Each call takes numbers, or one buffer that outlives the call and whose length is passed with it.

use std::io;

/// A system call to try.
pub(crate) enum KernelCall {
    /// `bpf(BPF_MAP_CREATE)`: an array of one number.
    Bpf,
    /// `io_uring_setup` with room for eight entries.
    IoUring,
    /// `keyctl(KEYCTL_GET_KEYRING_ID)` of the session's keyring, made if need be.
    Keyring,
}

/// Makes the call. Returns its result if the kernel allowed it.
pub(crate) fn make_call(call: &KernelCall) -> io::Result<i64> {
    // From the kernel's uapi/linux/bpf.h: map type 2 is an array; then key size, value size, entries, flags.
    let map: [u32; 18] = {
        let mut map = [0; 18];
        map[..4].copy_from_slice(&[2, 4, 4, 1]);
        map
    };
    // `struct io_uring_params`, which the kernel fills in.
    let mut parameters = [0_u32; 30];
    let (number, arguments): (libc::c_long, [usize; 3]) = match call {
        KernelCall::Bpf => (libc::SYS_bpf, [0, map.as_ptr() as usize, size_of_val(&map)]),
        KernelCall::IoUring => (libc::SYS_io_uring_setup, [8, parameters.as_mut_ptr() as usize, 0]),
        // KEYCTL_GET_KEYRING_ID is 0, KEY_SPEC_SESSION_KEYRING is -3.
        KernelCall::Keyring => (libc::SYS_keyctl, [0, usize::MAX - 2, 1]),
    };
    #[expect(
        unsafe_code,
        reason = "no safe wrapper exists; the buffers live above and the kernel writes no further than their length"
    )]
    // SAFETY: the pointers lead to `map` (read, its length is passed) and `parameters` (120 bytes, the size of the
    // structure); the third call takes numbers only.
    let answer = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

//! The system calls of this crate that have no safe wrapper: making a TAP interface, giving system calls up, ending threads, setting the
//! environment.

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Updater, ioctl, opcode};

const NAME_BYTES: usize = 16;
/// `linux/if_tun.h`: Ethernet frames, without a driver header before each.
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const TUNSETIFF: rustix::ioctl::Opcode = opcode::write::<c_int>(b'T', 202);

/// `struct ifreq` of `linux/if.h` as TUNSETIFF uses it.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

/// Sets environment variables of this process. False, and nothing is set, if it has other threads.
pub(crate) fn set_variables(variables: &[(&str, &Path)]) -> bool {
    if !std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1) {
        return false;
    }
    // SAFETY: this is the only thread, so no other one reads the environment meanwhile.
    variables.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
    true
}

/// Restricts the calling thread to the system calls read, write and exit (seccomp(2), strict mode). Any other call kills it.
pub(crate) fn give_up_system_calls() -> io::Result<()> {
    // SAFETY: it takes two numbers and touches no memory of ours.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the calling thread only. No destructor runs.
pub(crate) fn exit_thread() -> ! {
    loop {
        // SAFETY: exit(2) of a thread takes a number and does not return; what the thread had borrowed stays borrowed for ever.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Ends this process's main thread alone, as pthread_exit(3) would there. It must not be the calling thread.
pub fn exit_main_thread() -> io::Result<()> {
    extern "C" fn exit(_signal: c_int) {
        exit_thread();
    }
    let handler = exit as extern "C" fn(c_int);
    // SAFETY: the handler makes one system call, which is safe in a handler of signals (signal-safety(7)).
    if unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    let process = std::process::id();
    // SAFETY: sends a signal to the thread whose id is the process's, and touches no memory.
    match unsafe { libc::syscall(libc::SYS_tgkill, process, process, libc::SIGUSR1) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a TAP interface in the network namespace of the calling thread. Each read of the file descriptor returns a frame that the kernel sends, each
/// write is a frame that it receives; neither blocks. Closing the file descriptor removes the interface.
pub(crate) fn tap(name: &str) -> io::Result<OwnedFd> {
    let fd = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags: IFF_TAP | IFF_NO_PI, rest: [0; 22] };
    if name.len() >= NAME_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq` of 40 bytes, which is what `request` is, and keeps no pointer to it.
    let update = unsafe { Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request) };
    // SAFETY: as above; the file descriptor is one of /dev/net/tun, whose driver gives the number this meaning.
    unsafe { ioctl(&fd, update) }?;
    Ok(fd)
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

//! The probes. A successful probe describes its result; a failed one gives the kernel's reason.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, setsid};

use crate::raw;

/// The time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const MIB: usize = 1 << 20;

/// An action that is forbidden to jobs; [`Probe::tries`] describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    HostLoopback,
    Gateway,
    Dns,
    Metadata,
    OtherContainer,
    EngineSocket,
    Mount,
    Unshare,
    Ptrace,
    Bpf,
    IoUring,
    Keyctl,
    Vsock,
    RawSocket,
    PacketSocket,
    AfAlg,
    MakeDevice,
    OpenDevice,
    WriteRoot,
    Memory,
    Cpu,
    Pids,
    Disk,
    Outlive,
}

impl Probe {
    pub(crate) const ALL: [Self; 24] = [
        Self::HostLoopback,
        Self::Gateway,
        Self::Dns,
        Self::Metadata,
        Self::OtherContainer,
        Self::EngineSocket,
        Self::Mount,
        Self::Unshare,
        Self::Ptrace,
        Self::Bpf,
        Self::IoUring,
        Self::Keyctl,
        Self::Vsock,
        Self::RawSocket,
        Self::PacketSocket,
        Self::AfAlg,
        Self::MakeDevice,
        Self::OpenDevice,
        Self::WriteRoot,
        Self::Memory,
        Self::Cpu,
        Self::Pids,
        Self::Disk,
        Self::Outlive,
    ];

    /// The name on the command line and in the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HostLoopback => "host-loopback",
            Self::Gateway => "gateway",
            Self::Dns => "dns",
            Self::Metadata => "metadata",
            Self::OtherContainer => "other-container",
            Self::EngineSocket => "engine-socket",
            Self::Mount => "mount",
            Self::Unshare => "unshare",
            Self::Ptrace => "ptrace",
            Self::Bpf => "bpf",
            Self::IoUring => "io-uring",
            Self::Keyctl => "keyctl",
            Self::Vsock => "vsock",
            Self::RawSocket => "raw-socket",
            Self::PacketSocket => "packet-socket",
            Self::AfAlg => "af-alg",
            Self::MakeDevice => "make-device",
            Self::OpenDevice => "open-device",
            Self::WriteRoot => "write-root",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Disk => "disk",
            Self::Outlive => "outlive",
        }
    }

    /// The action as text, for the report.
    pub(crate) const fn tries(self) -> &'static str {
        match self {
            Self::HostLoopback => "to connect to a port that listens on the machine's 127.0.0.1",
            Self::Gateway => "to connect to a port that listens on the address of the containers' gateway",
            Self::Dns => "to ask a name server on the machine a question by UDP",
            Self::Metadata => {
                "to find a route to 169.254.169.254, where clouds answer questions about the machine"
            }
            Self::OtherContainer => "to connect to a port of another container",
            Self::EngineSocket => "to connect to /var/run/docker.sock",
            Self::Mount => "to mount a tmpfs",
            Self::Unshare => "to make namespaces of its own: user, mount and network",
            Self::Ptrace => "to trace another process of its own user",
            Self::Bpf => "to make a bpf map",
            Self::IoUring => "to set up an io_uring",
            Self::Keyctl => "to get at the session's keyring",
            Self::Vsock => "to open an AF_VSOCK socket, which leads to the machine's hypervisor",
            Self::RawSocket => "to open a raw IP socket",
            Self::PacketSocket => "to open an AF_PACKET socket",
            Self::AfAlg => "to open an AF_ALG socket, which leads into the kernel's ciphers",
            Self::MakeDevice => "to make a node for the machine's memory with mknod",
            Self::OpenDevice => "to read the kernel's log from /dev/kmsg",
            Self::WriteRoot => "to write a file into the root folder",
            Self::Memory => "to use twice the memory it may",
            Self::Cpu => "to use more than three times the processor time it may",
            Self::Pids => "to start twice the threads it may",
            Self::Disk => {
                "to write twice into /tmp what fits there, and the same into /etc/hosts, /etc/hostname and /etc/resolv.conf"
            }
            Self::Outlive => "to leave a process in a session of its own behind when it ends",
        }
    }

    /// Tries the action. `argument` is an address, an amount or a mark, depending on the probe.
    pub(crate) fn run(self, argument: &str) -> Result<String, String> {
        match self {
            Self::HostLoopback | Self::Gateway | Self::OtherContainer => connect(argument),
            Self::Dns => query_dns(argument),
            Self::Metadata => find_route("169.254.169.254:80"),
            Self::EngineSocket => UnixStream::connect("/var/run/docker.sock")
                .map(|_| "connected".to_owned())
                .map_err(error_text),
            Self::Mount => mount_tmpfs(),
            Self::Unshare => {
                unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
                    .map(|()| "namespaces made".to_owned())
                    .map_err(errno_text)
            }
            Self::Ptrace => trace_child(),
            Self::Bpf => try_kernel_call(&raw::KernelCall::Bpf, "map made"),
            Self::IoUring => try_kernel_call(&raw::KernelCall::IoUring, "ring set up"),
            Self::Keyctl => try_kernel_call(&raw::KernelCall::Keyring, "keyring found"),
            Self::Vsock => open_socket(AddressFamily::Vsock, SockType::Stream),
            Self::RawSocket => open_socket(AddressFamily::Inet, SockType::Raw),
            Self::PacketSocket => open_socket(AddressFamily::Packet, SockType::Raw),
            Self::AfAlg => open_socket(AddressFamily::Alg, SockType::SeqPacket),
            Self::MakeDevice => mknod("/tmp/mem", SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 1))
                .map(|()| "node made".to_owned())
                .map_err(errno_text),
            Self::OpenDevice => fs::File::open("/dev/kmsg")
                .map(|_| "opened".to_owned())
                .map_err(error_text),
            Self::WriteRoot => fs::write("/written", "x")
                .map(|()| "written".to_owned())
                .map_err(error_text),
            Self::Memory => Ok(use_memory(parse_amount(argument)?)),
            Self::Cpu => use_processors(parse_amount(argument)?),
            Self::Pids => start_threads(parse_amount(argument)?),
            Self::Disk => fill_files(parse_amount(argument)?),
            Self::Outlive => leave_behind(argument),
        }
    }
}

fn error_text(error: io::Error) -> String {
    error.to_string()
}

fn errno_text(error: Errno) -> String {
    io::Error::from(error).to_string()
}

fn parse_amount(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is not an amount"))
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address"))
}

fn connect(to: &str) -> Result<String, String> {
    TcpStream::connect_timeout(&parse_address(to)?, CONNECT_TIMEOUT)
        .map(|_| "connected".to_owned())
        .map_err(error_text)
}

fn query_dns(server: &str) -> Result<String, String> {
    // A question for the addresses of "muster.test", as RFC 1035 lays it out.
    let question = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x06muster\x04test\0\0\x01\0\x01";
    let ask = || -> io::Result<usize> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        socket.send_to(question, server)?;
        socket.recv(&mut [0; 512])
    };
    ask()
        .map(|bytes| format!("answered with {bytes} bytes"))
        .map_err(error_text)
}

/// Connects a datagram socket, which sends nothing: the kernel only looks for a route.
fn find_route(to: &str) -> Result<String, String> {
    UdpSocket::bind("0.0.0.0:0")
        .and_then(|socket| socket.connect(parse_address(to).map_err(io::Error::other)?))
        .map(|()| "there is a route".to_owned())
        .map_err(error_text)
}

fn mount_tmpfs() -> Result<String, String> {
    fs::create_dir_all("/tmp/mounted").map_err(error_text)?;
    mount(
        Some("tmpfs"),
        "/tmp/mounted",
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .map(|()| "mounted".to_owned())
    .map_err(errno_text)
}

/// Traces another process of the same program, which waits for it.
fn trace_child() -> Result<String, String> {
    let program = std::env::current_exe().map_err(error_text)?;
    let mut child = Command::new(program)
        .arg("wait")
        .stdin(Stdio::piped())
        .spawn()
        .map_err(error_text)?;
    let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
    let traced = ptrace::attach(Pid::from_raw(pid));
    // The child is killed whether it is traced or not.
    let _ = child.kill();
    let _ = child.wait();
    traced.map(|()| "attached".to_owned()).map_err(errno_text)
}

fn try_kernel_call(call: &raw::KernelCall, got: &str) -> Result<String, String> {
    raw::make_call(call).map(|_| got.to_owned()).map_err(error_text)
}

fn open_socket(family: AddressFamily, kind: SockType) -> Result<String, String> {
    let protocol = (family == AddressFamily::Inet).then_some(nix::sys::socket::SockProtocol::Icmp);
    socket(family, kind, SockFlag::empty(), protocol)
        .map(|_| "opened".to_owned())
        .map_err(errno_text)
}

/// If there is a bound, the kernel ends this process before it can report.
fn use_memory(mebibytes: usize) -> String {
    let blocks: Vec<Vec<u8>> = (0..mebibytes).map(|_| vec![1; MIB]).collect();
    format!("{} MiB used", std::hint::black_box(blocks).len())
}

/// Measures how many thousandths of a processor eight threads get in 1.5 s. More than `bound` is a success of the
/// probe.
fn use_processors(bound: usize) -> Result<String, String> {
    let now = |clock| clock_gettime(clock).map(Duration::from).map_err(errno_text);
    let (wall, used) = (
        now(ClockId::CLOCK_MONOTONIC)?,
        now(ClockId::CLOCK_PROCESS_CPUTIME_ID)?,
    );
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while now(ClockId::CLOCK_MONOTONIC)
                    .is_ok_and(|time| time < wall + Duration::from_millis(1_500))
                {
                    std::hint::black_box([0_u8; 4_096]);
                }
            });
        }
    });
    let wall = now(ClockId::CLOCK_MONOTONIC)?.saturating_sub(wall);
    let used = now(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.saturating_sub(used);
    let thousandths =
        usize::try_from(used.as_micros() * 1_000 / wall.as_micros().max(1)).unwrap_or(usize::MAX);
    let words = format!("{thousandths} thousandths of a processor");
    if thousandths > bound {
        Ok(words)
    } else {
        Err(words)
    }
}

fn start_threads(count: usize) -> Result<String, String> {
    let (ended, wait) = std::sync::mpsc::sync_channel::<()>(0);
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let mut started = 0;
    let outcome = loop {
        if started == count {
            break Ok(format!("{started} threads"));
        }
        let wait = std::sync::Arc::clone(&wait);
        let thread = std::thread::Builder::new().stack_size(64 * 1024).spawn(move || {
            // Ends when the other end is dropped.
            drop(wait.lock().map(|wait| wait.recv()));
        });
        match thread {
            Ok(_) => started += 1,
            Err(error) => break Err(format!("{error} after {started} threads")),
        }
    };
    drop(ended);
    outcome
}

/// Fills a new file, and the files that an engine makes in every container. One that takes it all is enough.
fn fill_files(mebibytes: usize) -> Result<String, String> {
    let (mut written, mut refused) = (Vec::new(), Vec::new());
    for path in ["/tmp/filler", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] {
        match fill_file(path, mebibytes) {
            Ok(()) => written.push(path),
            Err(reason) => refused.push(format!("{path}: {reason}")),
        }
    }
    if written.is_empty() {
        return Err(refused.join("; "));
    }
    Ok(format!(
        "{mebibytes} MiB written into each of {}",
        written.join(", ")
    ))
}

/// Appends to a file, and takes what was written away again: without a sandbox it may be a file of the machine's own.
fn fill_file(path: &str, mebibytes: usize) -> Result<(), String> {
    let existed = fs::exists(path).map_err(error_text)?;
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(error_text)?;
    let before = file.metadata().map_err(error_text)?.len();
    let mut write = || -> io::Result<()> {
        for _ in 0..mebibytes {
            file.write_all(&[7; MIB])?;
        }
        file.sync_all()
    };
    let written = write();
    file.set_len(before).map_err(error_text)?;
    if !existed {
        fs::remove_file(path).map_err(error_text)?;
    }
    written.map_err(error_text)
}

/// Starts a process that starts another one in a new session and then ends, so the second process is no child of ours.
/// Only an observer outside can see whether it lives on, by `mark` on its command line.
fn leave_behind(mark: &str) -> Result<String, String> {
    let program = std::env::current_exe().map_err(error_text)?;
    let status = Command::new(program)
        .args(["leave", mark])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(error_text)?;
    if status.success() {
        Ok("left behind".to_owned())
    } else {
        Err(format!("the process in between ended with {status}"))
    }
}

/// The process in between, which starts the one that is left behind.
pub(crate) fn leave(mark: &str) -> io::Result<()> {
    setsid()?;
    let program = std::env::current_exe()?;
    Command::new(program).args(["linger", mark]).spawn().map(|_| ())
}

/// The process that is left behind. It lives for a minute.
pub(crate) fn linger() {
    #[expect(
        clippy::disallowed_methods,
        reason = "this program has no clock but the machine's, and this process only has to live on"
    )]
    std::thread::sleep(Duration::from_secs(60));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_probe_has_a_name_of_its_own() {
        let names: BTreeSet<_> = Probe::ALL.iter().map(|probe| probe.name()).collect();
        assert_eq!(names.len(), Probe::ALL.len());
        assert!(Probe::ALL.iter().all(|probe| probe.tries().starts_with("to ")));
    }

    #[test]
    fn nothing_listens_where_nothing_listens() {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert!(
            Probe::HostLoopback
                .run(&port.to_string())
                .unwrap_err()
                .contains("refused")
        );
        assert!(
            Probe::Gateway
                .run("nowhere")
                .unwrap_err()
                .contains("not an address")
        );
        assert!(Probe::Memory.run("much").unwrap_err().contains("not an amount"));
    }

    #[test]
    fn probes_of_bounds_succeed_where_there_are_none() {
        assert_eq!(Probe::Memory.run("3").unwrap(), "3 MiB used");
        assert_eq!(Probe::Pids.run("3").unwrap(), "3 threads");
        assert!(Probe::Cpu.run("0").unwrap().contains("thousandths"));
    }
}

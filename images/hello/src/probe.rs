//! Reports from inside a job's sandbox what the job can and cannot do.
//!
//! The executor's tests run these probes through the real container engine.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

/// The bytes that [`Probe::Blocks`] writes at a time.
const PRINTED_BLOCK: usize = 64 * 1024;

/// One action to try, parsed from the arguments after `probe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Ends with this exit code after a line on stdout and one on stderr.
    Exit(u8),
    /// Leaves a file in `/artifacts` and one in `/output`, and then does as [`Self::Exit`].
    Leave(u8),
    /// Copies all inputs into the folder `/output/results` with their modes and links, adds an empty folder, a private
    /// file and a file whose name is not UTF-8, and links `/output/last` to the file `run` among them.
    Tree,
    /// Prints a line and then sleeps this many seconds.
    Sleep(u64),
    /// Prints each of these words on a line of its own, as it is, and then sleeps this many seconds.
    Say(u64, Vec<String>),
    /// Prints about this many bytes in lines of 80.
    Print(u64),
    /// Prints about this many bytes in writes of 64 KiB: no lines, and each with a number of its own at its beginning.
    Blocks(u64),
    /// Prints lines of lengths at which engines cut them, and bytes that are no text, without an end of the last line,
    /// to both streams; sleeps this many seconds, and prints them again.
    Bytes(u64),
    /// Reads at most this many bytes from standard input, and prints how many came and their checksum.
    Read(u64),
    /// Writes this many mebibytes into `/output`.
    Fill(u64),
    /// Allocates and touches this many mebibytes.
    Allocate(u64),
    /// Reports this many steps of a training run, in the file that `MUSTER_PROGRESS` names and on stdout.
    Train(u32),
    /// Counts this many steps further than the checkpoint that it begins from, saves after each, and ends with this
    /// code.
    Save(u32, u8),
    /// Prints a description of its environment as one JSON object.
    Surroundings,
}

impl Probe {
    /// Reads the arguments, for example `["exit", "3"]`.
    pub fn parse(words: &[String]) -> Option<Self> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Some(match words.as_slice() {
            ["exit", code] => Self::Exit(code.parse().ok()?),
            ["leave", code] => Self::Leave(code.parse().ok()?),
            ["tree"] => Self::Tree,
            ["sleep", seconds] => Self::Sleep(seconds.parse().ok()?),
            ["say", seconds, said @ ..] => Self::Say(
                seconds.parse().ok()?,
                said.iter().map(|&word| word.to_owned()).collect(),
            ),
            ["print", bytes] => Self::Print(bytes.parse().ok()?),
            ["blocks", bytes] => Self::Blocks(bytes.parse().ok()?),
            ["bytes", seconds] => Self::Bytes(seconds.parse().ok()?),
            ["read"] => Self::Read(u64::MAX),
            ["read", bytes] => Self::Read(bytes.parse().ok()?),
            ["fill", mebibytes] => Self::Fill(mebibytes.parse().ok()?),
            ["allocate", mebibytes] => Self::Allocate(mebibytes.parse().ok()?),
            ["train", steps] => Self::Train(steps.parse().ok()?),
            ["save", steps, code] => Self::Save(steps.parse().ok()?, code.parse().ok()?),
            ["surroundings"] => Self::Surroundings,
            _ => return None,
        })
    }

    /// Tries the action.
    ///
    /// # Errors
    /// Output cannot be written.
    pub fn run(&self, out: &mut impl Write, err: &mut impl Write) -> io::Result<ExitCode> {
        match self {
            Self::Exit(code) => {
                writeln!(out, "about to exit with {code}")?;
                writeln!(err, "as I was told")?;
                return Ok(ExitCode::from(*code));
            }
            Self::Leave(code) => {
                fs::write("/artifacts/partial.txt", "half an artifact")?;
                fs::write("/output/left.txt", "half an output")?;
                return Self::Exit(*code).run(out, err);
            }
            Self::Tree => leave_tree()?,
            Self::Sleep(seconds) => {
                writeln!(out, "sleeping for {seconds} s")?;
                out.flush()?;
                sleep(Duration::from_secs(*seconds));
            }
            Self::Say(seconds, words) => {
                for word in words {
                    writeln!(out, "{word}")?;
                }
                out.flush()?;
                sleep(Duration::from_secs(*seconds));
            }
            Self::Print(bytes) => {
                let line = [b'x'; 79];
                for _ in 0..bytes / 80 {
                    out.write_all(&line)?;
                    out.write_all(b"\n")?;
                }
                out.write_all(b"end\n")?;
            }
            Self::Blocks(bytes) => {
                let mut block = vec![b'x'; PRINTED_BLOCK];
                for number in 0..bytes / PRINTED_BLOCK as u64 {
                    block.splice(..20, format!("{number:020}").into_bytes());
                    out.write_all(&block)?;
                }
                out.write_all(b"end\n")?;
            }
            Self::Bytes(seconds) => {
                for pause in [*seconds, 0] {
                    out.write_all(&awkward_bytes())?;
                    out.flush()?;
                    err.write_all(&awkward_bytes())?;
                    err.flush()?;
                    sleep(Duration::from_secs(pause));
                }
            }
            Self::Read(bytes) => writeln!(out, "{}", describe_input(io::stdin().take(*bytes))?)?,
            Self::Fill(mebibytes) => {
                let mut file = fs::File::create("/output/filler")?;
                let block = vec![7; 1 << 20];
                for _ in 0..*mebibytes {
                    file.write_all(&block)?;
                }
                file.sync_all()?;
                sleep(Duration::from_secs(3_600));
            }
            Self::Allocate(mebibytes) => {
                let blocks: Vec<Vec<u8>> = (0..*mebibytes).map(|_| vec![1; 1 << 20]).collect();
                writeln!(out, "touched {} MiB", blocks.len())?;
            }
            Self::Train(steps) => train(*steps, out)?,
            Self::Save(steps, code) => {
                save(*steps, out)?;
                return Ok(ExitCode::from(*code));
            }
            Self::Surroundings => writeln!(out, "{}", surroundings())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// How many bytes an input has, and their checksum: FNV-1a of 64 bits.
fn describe_input(mut from: impl Read) -> io::Result<String> {
    let (mut count, mut sum) = (0_usize, 0xcbf2_9ce4_8422_2325_u64);
    let mut block = vec![0; PRINTED_BLOCK];
    loop {
        let read = from.read(&mut block)?;
        if read == 0 {
            return Ok(format!("{count} bytes, checksum {sum:016x}"));
        }
        count += read;
        for byte in block.get(..read).unwrap_or_default() {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The bytes that [`Probe::Bytes`] prints at a time: lines of 16,383, 16,384 and 40,000 bytes, and every byte once.
fn awkward_bytes() -> Vec<u8> {
    let lines = [16_383, 16_384, 40_000].map(|length| [vec![b'x'; length - 1], vec![b'\n']].concat());
    let every: Vec<u8> = (0..=u8::MAX).collect();
    [lines.concat(), every].concat()
}

fn leave_tree() -> io::Result<()> {
    let results = Path::new("/output/results");
    copy_tree(Path::new("/volume"), results)?;
    fs::create_dir(results.join("empty"))?;
    fs::write(results.join(OsStr::from_bytes(b"r\xe9sultat")), "latin")?;
    fs::write(results.join("key"), "private")?;
    fs::set_permissions(results.join("key"), fs::Permissions::from_mode(0o600))?;
    symlink("../run", results.join("empty/inside"))?;
    symlink("/etc/hostname", results.join("outside"))?;
    symlink("/output/results/run", "/output/last")
}

/// Copies a folder with its files' modes; links stay links.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&path, &copy)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&path)?, &copy)?;
        } else {
            fs::copy(&path, &copy)?;
        }
    }
    Ok(())
}

/// A loss that halves with each step, five steps a second. A line of the file that is no JSON is among the others.
fn train(steps: u32, out: &mut impl Write) -> io::Result<()> {
    let path = std::env::var("MUSTER_PROGRESS").map_err(io::Error::other)?;
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "warming up")?;
    for step in 1..=steps {
        let loss = 0.5_f64.powi(i32::try_from(step).unwrap_or(i32::MAX));
        let line = json!({"step": step, "steps": steps, "metrics": {"loss": loss}});
        writeln!(file, "{line}")?;
        writeln!(out, "step {step}: accuracy={:.3}", 1.0 - loss)?;
        out.flush()?;
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Counts on from the checkpoint in `MUSTER_RESUME`, two steps a second. Beside its checkpoints it leaves what no
/// checkpoint may be.
fn save(steps: u32, out: &mut impl Write) -> io::Result<()> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (folder, resumed) = (variable("MUSTER_CHECKPOINT_DIR"), variable("MUSTER_RESUME"));
    let began: u32 = match resumed.as_str() {
        "" => 0,
        path => fs::read_to_string(path)?
            .trim()
            .parse()
            .map_err(io::Error::other)?,
    };
    let (attempt, scale, every) = (
        variable("MUSTER_ATTEMPT"),
        variable("MUSTER_BATCH_SCALE"),
        variable("MUSTER_CHECKPOINT_EVERY"),
    );
    writeln!(out, "attempt {attempt} scale {scale} every {every} from {began}")?;
    out.flush()?;
    std::os::unix::fs::symlink("/etc/passwd", format!("{folder}/link"))?;
    fs::File::create(format!("{folder}/sparse"))?.set_len(1 << 42)?;
    let mut report = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(variable("MUSTER_PROGRESS"))?;
    for step in began + 1..=began + steps {
        sleep(Duration::from_millis(500));
        let path = format!("{folder}/step-{step}");
        fs::write(format!("{path}.tmp"), step.to_string())?;
        fs::rename(format!("{path}.tmp"), &path)?;
        writeln!(
            report,
            "{}",
            json!({"step": step, "checkpoint": path, "metrics": {"loss": 1.0 / f64::from(step)}})
        )?;
    }
    writeln!(out, "saved {}", began + steps)
}

#[expect(
    clippy::disallowed_methods,
    reason = "this program has one thread and no clock but the machine's"
)]
fn sleep(span: Duration) {
    std::thread::sleep(span);
}

/// Describes interfaces, identity and capabilities, and whether some forbidden actions work.
fn surroundings() -> Value {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    let public = SocketAddr::from(([1, 1, 1, 1], 53));
    let connected = TcpStream::connect_timeout(&public, Duration::from_secs(2));
    json!({
        "interfaces": names_in("/sys/class/net"),
        "connect": connected.map(|_| ()).map_err(|error| error.to_string()).err(),
        "effective_capabilities": field("CapEff"),
        "bounding_capabilities": field("CapBnd"),
        "no_new_privileges": field("NoNewPrivs"),
        "seccomp": field("Seccomp"),
        "write_root": attempt("/probe"),
        "write_etc": attempt("/etc/probe"),
        "write_tmp": attempt("/tmp/probe"),
        "write_home": attempt("/root/probe"),
        "write_volume": attempt("/volume/probe"),
        "write_output": attempt("/output/probe"),
        "home": names_in("/root"),
        "docker_socket": fs::exists("/var/run/docker.sock").unwrap_or(false),
        "threads": std::thread::spawn(|| 1).join().is_ok(),
        "environment": std::env::vars().filter(|(name, _)| name != "PATH").collect::<std::collections::BTreeMap<_, _>>(),
    })
}

/// `None` if a file can be written there, else the error.
fn attempt(path: &str) -> Option<String> {
    fs::write(path, "x").err().map(|error| error.to_string())
}

fn names_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_or_refused() {
        let parse = |line: &str| Probe::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("exit 3"), Some(Probe::Exit(3)));
        assert_eq!(parse("leave 3"), Some(Probe::Leave(3)));
        assert_eq!(parse("tree"), Some(Probe::Tree));
        assert_eq!(parse("surroundings"), Some(Probe::Surroundings));
        for bad in ["", "exit", "exit 256", "exit -1", "dance 3", "print x"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_input_is_described_by_its_length_and_its_checksum() {
        // The test vectors of FNV-1a.
        for (text, told) in [
            ("", "0 bytes, checksum cbf29ce484222325"),
            ("a", "1 bytes, checksum af63dc4c8601ec8c"),
            ("foobar", "6 bytes, checksum 85944171f73967e8"),
        ] {
            assert_eq!(describe_input(text.as_bytes()).unwrap(), told);
        }
    }

    #[test]
    fn printing_prints_about_as_much_as_asked() {
        let mut out = Vec::new();
        Probe::Print(800).run(&mut out, &mut Vec::new()).unwrap();
        assert_eq!(out.len(), 804);
        out.clear();
        Probe::Blocks(200_000).run(&mut out, &mut Vec::new()).unwrap();
        assert_eq!(out.len(), 3 * PRINTED_BLOCK + 4);
        assert!(out.starts_with(b"00000000000000000000xx") && out.ends_with(b"xxend\n"));
    }
}

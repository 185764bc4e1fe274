//! A job's inputs from a URL into its folder: two gigabytes in an archive, against curl and unzip.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, ensure};
use muster_bench::{Direction, Report, Row, take_turns, timed};
use muster_job_data::volumes::UnpackLimits;
use muster_job_data::{Fetcher, Settings};
use muster_process::SystemClock;
use muster_protocol::volume::{VolumePart, ZipUrlVolume};
use tokio_util::sync::CancellationToken;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

const FILES: u64 = 8;
const FILE_BYTES: u64 = 256 << 20;
const ROUNDS: usize = 3;

fn main() -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    let archive = root.path().join("volume.zip");
    pack(&archive)?;
    let packed = fs::metadata(&archive)?.len();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/volume.zip", listener.local_addr()?);
    let served = archive.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that leaves is no concern of the server's.
            let _ = serve(stream, &served);
        }
    });
    let before = peak_kib()?;
    let turns = take_turns(
        ROUNDS,
        || ours(&url, &root.path().join("ours")),
        || theirs(&url, &root.path().join("theirs")),
    )?;
    let peak = peak_kib()?;
    let row = Row::against(
        "fetching and unpacking a volume of 2 GiB",
        "s",
        Direction::LowerIsBetter,
        "curl, then unzip",
        turns,
    );
    Report {
        rows: vec![row],
        notes: vec![
            format!(
                "{FILES} files of {} MiB, {} MiB packed, from this machine's loopback",
                FILE_BYTES >> 20,
                packed >> 20
            ),
            format!(
                "peak memory of the process with ours: {} MiB ({} MiB before the first round)",
                peak >> 10,
                before >> 10
            ),
        ],
    }
    .print()
}

/// Numbers in text: packs to about half, like most data that people send.
fn pack(path: &Path) -> anyhow::Result<()> {
    let mut zip = ZipWriter::new(BufWriter::new(File::create(path)?));
    let mut state = 1_u64;
    for file in 0..FILES {
        zip.start_file(format!("part-{file}/data.txt"), SimpleFileOptions::default())?;
        let mut written = 0;
        while written < FILE_BYTES {
            let mut block = Vec::with_capacity(1 << 20);
            while block.len() < 1 << 20 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                writeln!(block, "{state:015x}")?;
            }
            block.truncate(1 << 20);
            zip.write_all(&block)?;
            written += block.len() as u64;
        }
    }
    zip.finish()?.flush()?;
    Ok(())
}

fn serve(mut stream: TcpStream, path: &Path) -> io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nETag: \"v\"\r\nConnection: close\r\n\r\n"
    )?;
    io::copy(&mut file, &mut stream)?;
    Ok(())
}

/// Seconds, as an executor does it; nothing is kept, for curl keeps nothing.
fn ours(url: &str, folder: &Path) -> anyhow::Result<f64> {
    fs::create_dir(folder)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let settings = Settings {
        allow: vec!["127.0.0.1".to_owned()],
        cache_mib: 0,
        ..Settings::default()
    };
    let fetcher = Fetcher::new(settings, Arc::new(SystemClock::default()))?;
    let part = VolumePart::ZipUrl(ZipUrlVolume {
        contents: url.to_owned(),
        relative_path: None,
    });
    let limits = UnpackLimits {
        bytes: 4 << 30,
        entries: 1_000,
    };
    let target = folder.join("volume");
    let called_off = CancellationToken::new();
    let (placed, spent) = timed(|| runtime.block_on(fetcher.place(vec![part], &target, limits, &called_off)));
    placed?;
    finish(&target, folder)?;
    Ok(spent.as_secs_f64())
}

/// The time of the peer in seconds.
fn theirs(url: &str, folder: &Path) -> anyhow::Result<f64> {
    fs::create_dir(folder)?;
    let (archive, target) = (folder.join("volume.zip"), folder.join("volume"));
    let (done, spent) = timed(|| -> anyhow::Result<()> {
        let fetched = Command::new("curl")
            .args(["--silent", "--fail", "--output"])
            .arg(&archive)
            .arg(url)
            .status()?;
        ensure!(fetched.success(), "curl failed");
        let unpacked = Command::new("unzip")
            .arg("-q")
            .arg(&archive)
            .arg("-d")
            .arg(&target)
            .status()?;
        ensure!(unpacked.success(), "unzip failed");
        fs::remove_file(&archive)?;
        Ok(())
    });
    done?;
    finish(&target, folder)?;
    Ok(spent.as_secs_f64())
}

/// Everything must be there; then it makes room.
fn finish(target: &Path, folder: &Path) -> anyhow::Result<()> {
    for file in 0..FILES {
        let len = fs::metadata(target.join(format!("part-{file}/data.txt")))?.len();
        ensure!(len == FILE_BYTES, "a file has {len} bytes");
    }
    Ok(fs::remove_dir_all(folder)?)
}

/// The most memory this process ever had, in KiB.
fn peak_kib() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

//! A Docker engine that lies about one image: it passes everything on to the real engine, and swaps the id of one
//! image for that of another. An executor on such an engine attests the first image and runs the second, which is
//! what a cheating miner would do. `muster up --demo` runs it to show that a validator finds out. No shipped program
//! contains this.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Parser;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Bytes that are read at once.
const BUFFER: usize = 64 << 10;

/// Passes requests on to a Docker engine, with one image in place of another.
#[derive(Debug, Parser)]
struct Arguments {
    /// The Unix socket on which executors find this engine.
    #[arg(long)]
    socket: PathBuf,
    /// The real engine: `unix:///path` or `tcp://host:port`.
    #[arg(long, env = "DOCKER_HOST", default_value = "unix:///var/run/docker.sock")]
    engine: String,
    /// The id of the image that executors ask for, in hexadecimal digits.
    #[arg(long, value_name = "ID")]
    asked: String,
    /// The id of the image that they get.
    #[arg(long, value_name = "ID")]
    given: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (asked, given) = (arguments.asked.into_bytes(), arguments.given.into_bytes());
    // The lengths of messages do not change, so nothing else in them has to.
    ensure!(asked.len() == given.len(), "both ids must have the same length");
    // A socket of an earlier run.
    let _ = std::fs::remove_file(&arguments.socket);
    let listener = UnixListener::bind(&arguments.socket)
        .with_context(|| format!("cannot listen on {}", arguments.socket.display()))?;
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.context("the listener failed")?;
        let (engine, asked, given) = (arguments.engine.clone(), asked.clone(), given.clone());
        // A connection that fails shows on the executor's side.
        connections.spawn(async move {
            if let Some(path) = engine.strip_prefix("unix://") {
                let (read, write) = UnixStream::connect(path).await?.into_split();
                pass(client, read, write, &asked, &given).await
            } else {
                let address = engine.strip_prefix("tcp://").unwrap_or(&engine);
                let (read, write) = TcpStream::connect(address).await?.into_split();
                pass(client, read, write, &asked, &given).await
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Passes one connection on in both directions.
async fn pass(
    client: UnixStream,
    from_engine: impl AsyncRead + Unpin,
    to_engine: impl AsyncWrite + Unpin,
    asked: &[u8],
    given: &[u8],
) -> std::io::Result<()> {
    let (from_client, to_client) = client.into_split();
    tokio::try_join!(
        swap(from_client, to_engine, asked, given),
        swap(from_engine, to_client, given, asked),
    )?;
    Ok(())
}

/// Copies a stream with `one` replaced by `other`. An occurrence that is split between two reads stays: the engine's
/// answers begin with the id of their image.
async fn swap(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    one: &[u8],
    other: &[u8],
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        let read = buffer.get_mut(..length).unwrap_or_default();
        for at in 0..read.len() {
            if let Some(found) = read.get_mut(at..at + one.len())
                && *found == *one
            {
                found.copy_from_slice(other);
            }
        }
        to.write_all(read).await?;
    }
}

//! `muster files`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_client::files::USUAL_FILE;
use muster_process::SharedClock;
use muster_protocol::ErrorCode;
use muster_protocol::rest::FileView;
use muster_terminal::job_display::LiveDisplay;
use muster_terminal::print;
use serde_json::json;

use crate::cli::Files;
use crate::cli::user::{FileId, FilesGet, FilesLs, FilesPut};
use crate::facilitator_access::{self, client_failure};
use crate::failure::{Failure, Result};
use crate::job::local_place::{Coming, Overwrite, PlaceError, Placed, is_there, put_fetched};

const PAGE: u32 = 100;

/// Runs a subcommand of `muster files`.
pub(crate) async fn run(command: Files, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Files::Put(args) => put(args, clock).await?,
        Files::Ls(args) => ls(args, clock).await?,
        Files::Show(args) => show(args, clock).await?,
        Files::Get(args) => get(args, clock).await?,
        Files::Rm(args) => rm(args, clock).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn put(args: FilesPut, clock: SharedClock) -> Result {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let own = args
        .file
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = args
        .name
        .or(own)
        .ok_or_else(|| Failure::usage("give the file a name with --name"))?;
    let live = LiveDisplay::new(clock.now(), args.json);
    let sent = client
        .send_file(&args.file, &name, live.transfer(&name))
        .await
        .map_err(client_failure)?;
    if args.json {
        print::line(format_args!(
            "{}",
            json!({"file": sent.file, "known": sent.known})
        ));
        return Ok(());
    }
    let size = sent.file.size.unwrap_or_default();
    print::line(format_args!("{}", sent.file.id));
    if sent.known >= size && size > 0 {
        live.print_line(&format!("  {name} lies there already, {}", print::size(size)));
    } else if sent.known > 0 {
        live.print_line(&format!(
            "  {name}, {}; the first {} had come earlier",
            print::size(size),
            print::size(sent.known)
        ));
    } else {
        live.print_line(&format!("  {name}, {}", print::size(size)));
    }
    Ok(())
}

async fn ls(args: FilesLs, clock: SharedClock) -> Result {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let wanted = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut files = Vec::new();
    for page in 1.. {
        let found = client
            .files(page, args.limit.min(PAGE))
            .await
            .map_err(client_failure)?;
        files.extend(found.results);
        if found.next.is_none() || files.len() >= wanted {
            break;
        }
    }
    files.truncate(wanted);
    if args.json {
        print::line(format_args!("{}", serde_json::to_string_pretty(&files)?));
        return Ok(());
    }
    let row = |file: &FileView| {
        vec![
            file.id.clone(),
            file.name.clone(),
            file.size.map_or_else(|| "?".to_owned(), print::size),
            state(file),
            file.created_at.to_string(),
        ]
    };
    print::table(&["id", "name", "size", "state", "made"], files.iter().map(row));
    Ok(())
}

fn state(file: &FileView) -> String {
    if file.complete {
        "whole".to_owned()
    } else if file.received > 0 {
        format!("{} have come", print::size(file.received))
    } else {
        "expected".to_owned()
    }
}

async fn show(args: FileId, clock: SharedClock) -> Result {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let file = client.file(&args.id).await.map_err(client_failure)?;
    if args.json {
        print::line(format_args!("{}", serde_json::to_string_pretty(&file)?));
        return Ok(());
    }
    print::line(format_args!("file      {}", file.id));
    print::line(format_args!("name      {}", file.name));
    let size = file.size.map_or_else(|| "not known yet".to_owned(), print::size);
    print::line(format_args!("size      {size}, {}", state(&file)));
    if let Some(sha256) = &file.sha256 {
        print::line(format_args!("sha256    {sha256}"));
    }
    print::line(format_args!("made      {}", file.created_at));
    print::line(format_args!("download  {}", file.download_url));
    print::line(format_args!("upload    {}", file.upload_url));
    print::line(format_args!("  both URLs hold until {}", file.expires_at));
    Ok(())
}

async fn get(args: FilesGet, clock: SharedClock) -> Result {
    let client = facilitator_access::resolve(&args.access)?
        .connect(clock.clone())
        .await?;
    let file = client.file(&args.id).await.map_err(client_failure)?;
    // The announcer of the file chose its name: only its last part is used.
    let own = Path::new(&file.name).file_name().map(PathBuf::from);
    let to = args
        .to
        .or(own)
        .ok_or_else(|| Failure::usage("the file's name is no name here: say where to write it with --to"))?;
    let live = LiveDisplay::new(clock.now(), args.json);
    let overwrite = Overwrite::by(args.force);
    let (bytes, placed) = if is_there(&to, Coming::File(&file), overwrite).map_err(not_placed)? {
        (file.size.unwrap_or_default(), Placed::Unchanged)
    } else {
        let fetched = client
            .fetch_beside(&file, &to, USUAL_FILE, live.transfer(&file.name))
            .await
            .map_err(client_failure)?;
        let placed = put_fetched(&fetched.path, &to, overwrite).map_err(not_placed)?;
        (fetched.bytes, placed)
    };
    if args.json {
        print::line(format_args!(
            "{}",
            json!({"to": to, "bytes": bytes, "sha256": file.sha256, "placed": placed})
        ));
    } else {
        let note = placed.note();
        live.print_line(&format!("  {} ({}{note})", to.display(), print::size(bytes)));
    }
    Ok(())
}

fn not_placed(error: PlaceError) -> Failure {
    match error {
        PlaceError::Taken(places) => Failure::new(
            ErrorCode::PlaceTaken,
            anyhow::anyhow!("{places}: name another place with --to, or replace it with --force"),
        ),
        error @ PlaceError::Io { .. } => error.into(),
    }
}

async fn rm(args: FileId, clock: SharedClock) -> Result {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    client.delete_file(&args.id).await.map_err(client_failure)?;
    if args.json {
        print::line(format_args!("{}", json!({"deleted": args.id})));
    } else {
        print::line(format_args!("deleted {}", args.id));
    }
    Ok(())
}

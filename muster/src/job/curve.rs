//! `muster job curve`: the metrics of a job as curves, in the terminal or as a picture.

use std::process::ExitCode;

use anyhow::Context as _;
use muster_curves::{describe_report, draw_svg};
use muster_monitor::curve::{draw_text, terminal_width};
use muster_process::SharedClock;
use muster_protocol::rest::JobMetricsView;
use muster_terminal::print;

use crate::cli::user::JobCurve;
use crate::facilitator_access::{self, client_failure};
use crate::failure::Result;

/// The words below the curves.
const DENSITY: &str = "the points are the newest values about every ten seconds, and at the program's end; curves of \
                       machine/… are the executor's, and `--metric NAME` leaves them out";

/// The size of a curve in columns and lines, where the terminal does not report its width.
const SIZE: (u16, u16) = (80, 16);

pub(super) async fn curve(args: JobCurve, clock: SharedClock) -> Result<ExitCode> {
    let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
    let id = client.find_job(&args.id).await.map_err(client_failure)?;
    let JobMetricsView { newest, mut series } = client.job_metrics(id).await.map_err(client_failure)?;
    if !args.metrics.is_empty() {
        series.retain(|series| args.metrics.contains(&series.name));
    }
    if args.json {
        let view = JobMetricsView { newest, series };
        print::line(format_args!("{}", serde_json::to_string_pretty(&view)?));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = args.svg {
        let svg = draw_svg(&format!("job {id}"), &series);
        std::fs::write(&file, svg).with_context(|| format!("{} cannot be written", file.display()))?;
        let count = match series.len() {
            1 => "1 curve".to_owned(),
            count => format!("{count} curves"),
        };
        print::line(format_args!("{count} in {}", file.display()));
        return Ok(ExitCode::SUCCESS);
    }
    if series.is_empty() {
        let hint = "a program reports metrics by lines of JSON in $MUSTER_PROGRESS, and `muster job run --metric` finds \
                    them in its output";
        print::problem(format_args!("job {id} has no such metrics; {hint}"));
    }
    let (width, height) = SIZE;
    let width = terminal_width().unwrap_or(width);
    for one in &series {
        print::line(format_args!("{}\n", draw_text(one, width, height)));
    }
    if !series.is_empty() {
        print::problem(format_args!("{DENSITY}"));
    }
    if let Some(state) = newest {
        print::line(format_args!("{}", describe_report(&state.report)));
    }
    Ok(ExitCode::SUCCESS)
}

//! The page of one job: its steps with their times, the party at fault, its output, its files and its receipts.

use maud::{Markup, html};
use muster_protocol::rest::{JobMetricsView, JobView, QueuedJob};
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::checks::JobCheck;
use muster_protocol::{StageTime, Timestamp};

use crate::checked_receipts::CheckedReceipt;
use crate::frame::{Section, Visitor, page, token};
use crate::jobs::took;
use crate::status::{badge, of_job};
use crate::text::{bytes, limit, number, plain, shorten, span, time, utc};
use crate::{
    job_check, job_completion, job_cost, job_curves, job_failure, job_output, job_route, job_timeline,
};

/// The width of the drawing of the steps, in its own units.
const TIMELINE: f64 = 1_000.0;

/// The width of a step that took no time.
const LEAST_BAR: f64 = 8.0;

/// The facts about a job beside its view.
#[derive(Clone, Copy, Debug)]
pub struct JobFindings<'a> {
    /// The metrics that its program reported.
    pub metrics: &'a JobMetricsView,
    /// The receipts that came with its end.
    pub receipts: &'a [CheckedReceipt],
    /// The stages of its way with their depths.
    pub way: &'a [(usize, StageTime)],
    /// The finding of its validator by running it again, if it has reported one.
    pub check: Option<&'a JobCheck>,
}

/// The page. The parts with `data-swap` are replaced by the script when the status changes.
pub fn render(visitor: &Visitor<'_>, view: &JobView, found: &JobFindings<'_>) -> String {
    let JobFindings {
        metrics,
        receipts,
        way,
        check,
    } = *found;
    let id = view.uuid.to_string();
    let open = !view.last_status().is_terminal();
    let body = html! {
        div data-job-page=(id) data-open[open] data-statuses=(view.status_history.len()) {
            (head(visitor, view, open, receipts))
            div.columns {
                div.wide-column {
                    (job_curves::section(metrics, visitor.now))
                    (job_output::section(view))
                    div #way-of-job data-swap { (job_timeline::section(way, receipts)) }
                }
                aside #side data-swap aria-label="Details of the job" {
                    (steps(view, visitor.now))
                    @if let Some(check) = check { (job_check::section(check, visitor.now)) }
                    (job_route::section(view, receipts))
                    (outputs(view))
                    @if let Some(report) = &view.completion { (job_completion::section(report)) }
                    (artifacts(view))
                    (receipt_list(receipts))
                    (request(view))
                }
            }
        }
    };
    page(
        &format!("Job {}", id.chars().take(8).collect::<String>()),
        Section::Jobs,
        visitor,
        &body,
    )
}

fn head(visitor: &Visitor<'_>, view: &JobView, open: bool, receipts: &[CheckedReceipt]) -> Markup {
    let id = view.uuid.to_string();
    html! {
        div #head data-swap {
            div.title {
                h1 { "Job " span.mono { (id.chars().take(8).collect::<String>()) } " " (badge(&of_job(view))) }
                div.actions {
                    a.button href=(format!("/jobs/new?from={id}")) { "Run again" }
                    @if open {
                        details.confirm {
                            summary.button { "Cancel" }
                            form method="post" action=(format!("/jobs/{id}/cancel")) {
                                (token(visitor))
                                button.danger type="submit" { "Cancel the job" }
                            }
                        }
                    }
                }
            }
            @if let Some(outcome) = view.failure() { (job_failure::section(&outcome)) }
            @if let Some(place) = view.queue.as_deref().filter(|_| open) { (queue_place(place, visitor.now)) }
            p.progress #progress data-progress hidden {}
            dl.facts {
                div { dt { "Class" } dd.mono { (view.executor_class) } }
                div { dt { "Validator" } dd.mono title=(view.target_validator_hotkey) {
                    (shorten(&view.target_validator_hotkey.to_string()))
                } }
                div { dt { "Created" } dd { (time(view.created_at, visitor.now)) } }
                div { dt { "Took" } dd data-took data-since=[open.then_some(view.created_at)] { (took(view, visitor.now)) } }
                @if let Some(cost) = job_cost::of_receipts(receipts) {
                    div { dt { "Cost" } dd title="by the finished receipts with both signatures" { (cost) } }
                }
                @if !view.tag.is_empty() { div { dt { "Name" } dd.mono.break { (plain(&view.tag)) } } }
                div.long { dt { "Id" } dd.mono.break { (id) } }
                div.long { dt { "Image" } dd.mono.break { (plain(&view.docker_image)) } }
                @if let Some(image) = &view.image {
                    div.long { dt { "Image that ran" } dd.mono.break { (image.id) } }
                    @if let Some(manifest) = image.manifest {
                        div.long { dt { "Manifest" } dd.mono.break { (manifest) } }
                    }
                }
            }
        }
    }
}

fn queue_place(place: &QueuedJob, now: Timestamp) -> Markup {
    html! {
        p.queue {
            "Waits for an executor: place " (number(place.position)) " of " (number(place.waiting))
            " for " span.mono { (place.class) }
            @if let Some(start) = place.estimated_start { ", starts " (time(start, now)) }
            @if !place.why.is_empty() { "; " (plain(&place.why)) }
        }
    }
}

fn steps(view: &JobView, now: Timestamp) -> Markup {
    let begun = view.created_at;
    let open = !view.last_status().is_terminal();
    let end = if open { now } else { view.last_update };
    let whole = end.since(begun).as_secs_f64().max(0.001);
    let place = |at: Timestamp| (at.since(begun).as_secs_f64() / whole * TIMELINE).min(TIMELINE);
    let ends = view.status_history.iter().skip(1).map(|entry| entry.created_at);
    let ends: Vec<_> = ends.chain([end]).collect();
    html! {
        section aria-labelledby="steps" {
            h2 #steps { "Steps" }
            table.steps {
                thead.unseen { tr { th scope="col" { "Step" } th scope="col" { "After" } th scope="col" { "Share" } } }
                tbody {
                    @for (entry, next) in view.status_history.iter().zip(ends) {
                        tr {
                            th scope="row" { (entry.status.step()) }
                            td.n title=(format!("{} UTC", utc(entry.created_at))) {
                                "+" (span(entry.created_at.since(begun)))
                            }
                            td.bar {
                                svg viewBox="0 0 1000 8" preserveAspectRatio="none" height="8" width="100%" role="img"
                                    aria-label=(format!("lasted {}", span(next.since(entry.created_at)))) {
                                    rect.track x="0" y="3" width="1000" height="2" {}
                                    rect.fill x=(format!("{:.0}", place(entry.created_at).min(TIMELINE - LEAST_BAR))) y="0" height="8"
                                        width=(format!("{:.0}", (place(next) - place(entry.created_at)).max(LEAST_BAR))) {}
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn outputs(view: &JobView) -> Markup {
    if view.uploads.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="outputs" {
            h2 #outputs { "Outputs" }
            ul.plain {
                @for upload in &view.uploads {
                    @let path = upload.relative_path();
                    li {
                        span.mono.break { (plain(path)) } " "
                        @if upload.is_folder() { span.dim { "as a folder (tar) " } }
                        @if upload.is_pattern() { span.dim { "as an archive (tar) " } }
                        @if let Some(file) = job_output::stored_file(upload) {
                            a href=(format!("/files/{file}/download")) { "Download" }
                        } @else {
                            span.dim { "at your own address" }
                            @if let Some(answer) = view.upload_results.get(path) {
                                details { summary { "Its answer" } p.mono.break { (plain(&first_part(answer))) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The beginning of the answer of a stranger's server.
fn first_part(answer: &str) -> String {
    answer.chars().take(2_000).collect()
}

fn artifacts(view: &JobView) -> Markup {
    if view.artifacts.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="artifacts" {
            h2 #artifacts { "Artifacts" }
            ul.plain {
                @for (at, (path, contents)) in view.artifacts.iter().enumerate() {
                    // Base64 has four characters for three bytes.
                    @let size = u64::try_from(contents.len()).unwrap_or_default() / 4 * 3;
                    li {
                        a.mono.break href=(format!("/jobs/{}/artifacts/{at}", view.uuid)) { (plain(path)) }
                        " " span.dim { "about " (bytes(size)) }
                    }
                }
            }
        }
    }
}

fn receipt_list(receipts: &[CheckedReceipt]) -> Markup {
    if receipts.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="receipts" {
            h2 #receipts { "Receipts" }
            ul.plain {
                @for CheckedReceipt { receipt, is_valid } in receipts {
                    @let payload = &receipt.payload;
                    li {
                        details {
                            summary {
                                (payload.kind()) " "
                                @if *is_valid { span.good { "both signatures hold" } }
                                @else { span.bad { "a signature does not hold" } }
                            }
                            dl.facts {
                                div { dt { "Attempt" } dd.mono.break { (payload.attempt()) } }
                                div { dt { "Time" } dd { (utc(payload.timestamp())) " UTC" } }
                                div { dt { "Validator" } dd.mono.break { (payload.validator()) } }
                                div { dt { "Miner" } dd.mono.break { (payload.miner()) } }
                            }
                        }
                    }
                }
            }
            p.help { "The server has checked the signatures just now." }
        }
    }
}

/// The request as it was sent.
fn request(view: &JobView) -> Markup {
    html! {
        section aria-labelledby="request" {
            h2 #request { "Request" }
            dl.facts {
                div { dt { "Command" } dd.mono.break {
                    @if view.args.is_empty() { span.dim { "the image's own" } }
                    @for word in &view.args { span.word { (plain(word)) } " " }
                } }
                @for (name, value) in &view.env {
                    div { dt.mono { (plain(name)) } dd.mono.break { (plain(value)) } }
                }
                @for volume in &view.volumes {
                    div { dt { "Input" } dd.mono.break { (plain(volume_path(volume))) } }
                }
                div { dt { "Limits" } dd {
                    "inputs " (limit(view.download_time_limit)) ", program " (limit(view.execution_time_limit))
                    ", outputs " (limit(view.upload_time_limit))
                } }
            }
        }
    }
}

/// The path of an input below `/volume`.
fn volume_path(volume: &VolumePart) -> &str {
    match volume {
        VolumePart::Inline(inline) => inline
            .relative_path
            .as_deref()
            .unwrap_or("files inside the request"),
        VolumePart::ZipUrl(zip) => zip.relative_path.as_deref().unwrap_or("an archive"),
        VolumePart::SingleFile(file) => &file.relative_path,
        VolumePart::HuggingfaceVolume(hub) => &hub.repo_id,
    }
}

//! The list of jobs.

use maud::{Markup, html};
use muster_protocol::rest::{JobPage, JobView};
use muster_protocol::{JobStatus, Timestamp};

use crate::PagePart;
use crate::frame::{Section, Visitor, page, part, scroll};
use crate::status::{badge, of_job};
use crate::text::{number, plain, span, time};

/// A choice of jobs by their statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChoice {
    /// The jobs of every status.
    All,
    /// The jobs that have not ended.
    Open,
    /// The jobs that succeeded.
    Completed,
    /// The jobs that failed, by whosever fault.
    Failed,
}

/// The list, as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobListQuery {
    /// The chosen jobs.
    pub choice: JobChoice,
    /// The page, from 1.
    pub page: u64,
}

/// The jobs on a page.
pub const PAGE_SIZE: u64 = 25;

// === impl JobChoice, JobListQuery ===

impl JobChoice {
    const ALL: [(Self, &'static str); 4] = [
        (Self::All, "All"),
        (Self::Open, "Open"),
        (Self::Completed, "Done"),
        (Self::Failed, "Failed"),
    ];

    /// The choice with this name in an address; every job for another name.
    pub fn parse(name: &str) -> Self {
        match name {
            "open" => Self::Open,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            _ => Self::All,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Open => "open",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    fn has(self, status: JobStatus) -> bool {
        match self {
            Self::All => false,
            Self::Open => !status.is_terminal(),
            Self::Completed => status == JobStatus::Completed,
            Self::Failed => status.is_terminal() && status != JobStatus::Completed,
        }
    }
}

impl JobListQuery {
    /// The query of the API for this list; it begins with `?`.
    pub fn api_query(self) -> String {
        let mut query = format!("?page={}&page_size={PAGE_SIZE}", self.page);
        let statuses = JobStatus::ALL
            .iter()
            .filter(|status| **status != JobStatus::Unknown);
        for status in statuses.filter(|status| self.choice.has(**status)) {
            query.push_str("&status=");
            query.push_str(status.as_str());
        }
        if self.choice == JobChoice::Open {
            query.push_str("&status=queued");
        }
        query
    }

    fn link(self) -> String {
        match (self.choice, self.page) {
            (JobChoice::All, 1) => "/jobs".to_owned(),
            (JobChoice::All, page) => format!("/jobs?page={page}"),
            (choice, 1) => format!("/jobs?status={}", choice.name()),
            (choice, page) => format!("/jobs?status={}&page={page}", choice.name()),
        }
    }
}

/// The list as HTML.
pub fn render(visitor: &Visitor<'_>, query: JobListQuery, found: &PagePart<JobPage>) -> String {
    let body = html! {
        div.title { h1 { "Jobs" } a.button.main href="/jobs/new" { "New job" } }
        nav.choices aria-label="Filter by status" {
            @for (choice, name) in JobChoice::ALL {
                a href=(JobListQuery { choice, page: 1 }.link())
                    aria-current=[(choice == query.choice).then_some("page")] { (name) }
            }
        }
        (part(found, |found| html! {
            (table(&found.results, visitor.now))
            (pager(query, found.count))
        }))
    };
    page("Jobs", Section::Jobs, visitor, &body)
}

/// A table of jobs. The script keeps the statuses of the open ones current.
pub(crate) fn table(jobs: &[JobView], now: Timestamp) -> Markup {
    if jobs.is_empty() {
        return html! {
            p.empty { "No jobs. " a href="/jobs/new" { "Start one" } ", or run " code { "muster job run IMAGE" } "." }
        };
    }
    let table = html! {
        table data-live-jobs {
            thead { tr {
                th scope="col" { "Job" }
                th scope="col" { "Status" }
                th scope="col" { "Image" }
                th.wide scope="col" { "Class" }
                th.n.wide scope="col" { "Took" }
                th.n scope="col" { "Created" }
            } }
            tbody { @for job in jobs { (row(job, now)) } }
        }
    };
    scroll("Jobs", &table)
}

fn row(job: &JobView, now: Timestamp) -> Markup {
    let id = job.uuid.to_string();
    let open = !job.last_status().is_terminal();
    html! {
        tr data-job=(id) data-open[open] {
            th scope="row" { a.mono href=(format!("/jobs/{id}")) title=(id) { (id.chars().take(8).collect::<String>()) } }
            td { (badge(&of_job(job))) }
            td.image title=(plain(&job.docker_image)) {
                (plain(&job.docker_image))
                @if !job.args.is_empty() { " " span.dim { (command_start(&job.args)) } }
            }
            td.mono.wide { (job.executor_class) }
            td.n.wide data-took data-since=[open.then_some(job.created_at)] { (took(job, now)) }
            td.n { (time(job.created_at, now)) }
        }
    }
}

/// The time from the job's acceptance to its end, or until now.
pub fn took(job: &JobView, now: Timestamp) -> String {
    let end = if job.last_status().is_terminal() {
        job.last_update
    } else {
        now
    };
    span(end.since(job.created_at))
}

/// The beginning of a command in one line.
fn command_start(args: &[String]) -> String {
    let line = plain(&args.join(" ")).replace(['\n', '\t'], " ");
    line.chars().take(60).collect()
}

fn pager(query: JobListQuery, count: u64) -> Markup {
    let last = count.div_ceil(PAGE_SIZE).max(1);
    let to = |page| JobListQuery { page, ..query }.link();
    html! {
        nav.pager aria-label="Pages" {
            @if query.page > 1 { a rel="prev" href=(to(query.page.saturating_sub(1))) { "Newer" } }
            span { (number(count)) " jobs, page " (number(query.page)) " of " (number(last)) }
            @if query.page < last { a rel="next" href=(to(query.page.saturating_add(1))) { "Older" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_names_its_statuses_to_the_api() {
        let query = |choice| JobListQuery { choice, page: 2 }.api_query();
        assert_eq!(query(JobChoice::All), "?page=2&page_size=25");
        assert_eq!(
            query(JobChoice::Completed),
            "?page=2&page_size=25&status=completed"
        );
        let failed = query(JobChoice::Failed);
        assert!(
            failed.ends_with("&status=rejected&status=failed&status=horde_failed"),
            "{failed}"
        );
        let open = query(JobChoice::Open);
        assert!(
            open.contains("&status=sent&") && open.ends_with("&status=queued"),
            "{open}"
        );
        assert!(!open.contains("completed") && !open.contains("unknown"));
        for (choice, _) in JobChoice::ALL {
            assert_eq!(JobChoice::parse(choice.name()), choice);
        }
    }
}

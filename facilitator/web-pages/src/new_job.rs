//! The form of a new job, empty or filled in from an earlier job.

use maud::{Markup, html};
use muster_protocol::rest::{FilePage, JobView, SubnetCapacity};

use muster_protocol::upload::{FileUpload, WHOLE_OUTPUT};
use muster_protocol::volume::VolumePart;

use crate::PagePart;
use crate::frame::{Section, Visitor, page, problem, token};
use crate::job_output::{stored_file, stored_file_of};
use crate::text::bytes;

/// The fields of the form as text, as a browser sends them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobForm {
    /// The reference of the image.
    pub image: String,
    /// The command, quoted as for a shell.
    pub command: String,
    /// The validator and the class with a slash between.
    pub target: String,
    /// The time limit of the program, in minutes.
    pub minutes: String,
    /// Environment variables, `KEY=VALUE`, one on each line.
    pub env: String,
    /// Inputs, `PATH=URL` or `PATH=file:ID`, one on each line.
    pub inputs: String,
    /// Outputs, a path below `/output` on each line.
    pub outputs: String,
    /// The job whose inputs that no form can show are taken over, or empty.
    pub from: String,
}

/// The contents of the page of a new job.
#[derive(Debug)]
pub struct NewJobPage<'a> {
    /// The fields as they are filled in.
    pub form: &'a JobForm,
    /// The validators and classes to choose from.
    pub subnet: &'a PagePart<SubnetCapacity>,
    /// The files that can be inputs.
    pub files: &'a PagePart<FilePage>,
    /// A name drawn for the form: sent twice, it makes one job.
    pub request_name: &'a str,
    /// The reason why the last try failed.
    pub problem: Option<&'a str>,
}

/// The time limit of a new form, in minutes.
const USUAL_MINUTES: &str = "10";

// === impl JobForm ===

impl JobForm {
    /// An empty form.
    pub fn empty() -> Self {
        Self {
            minutes: USUAL_MINUTES.to_owned(),
            ..Self::default()
        }
    }

    /// The form of a job like this one. `command` is the job's command, quoted as for a shell. `None` if a form cannot
    /// hold the job's texts: a field of a browser has no control characters, and a variable has one line.
    ///
    /// Inputs of the store are named by their files, whose signed addresses may have ended by now. Inputs inside the
    /// request, archives and models of a hub cannot be shown in the form: [`Self::from`] takes them over.
    pub fn of_job(view: &JobView, command: String) -> Option<Self> {
        let one_line = |text: &str| !text.contains(char::is_control);
        let variables = view
            .env
            .iter()
            .all(|(name, value)| one_line(name) && one_line(value));
        let paths = view.uploads.iter().all(|upload| one_line(upload.relative_path()));
        let words = command.chars().all(|c| !c.is_control() || c == '\n' || c == '\t');
        if !(variables && paths && words && one_line(&view.docker_image)) {
            return None;
        }
        let lines = |all: Vec<String>| all.join("\n");
        let env = view.env.iter().map(|(name, value)| format!("{name}={value}"));
        let inputs = view.volumes.iter().filter_map(|volume| match volume {
            VolumePart::SingleFile(file) => Some(match stored_file_of(&file.url, "content") {
                Some(id) => format!("{}=file:{id}", file.relative_path),
                None => format!("{}={}", file.relative_path, file.url),
            }),
            VolumePart::Inline(_) | VolumePart::ZipUrl(_) | VolumePart::HuggingfaceVolume(_) => None,
        });
        let inputs: Vec<_> = inputs.collect();
        if !inputs.iter().all(|line| one_line(line)) {
            return None;
        }
        let takes_over = inputs.len() < view.volumes.len();
        let outputs = view.uploads.iter().filter(|upload| stored_file(upload).is_some());
        Some(Self {
            image: view.docker_image.clone(),
            command,
            target: format!("{}/{}", view.target_validator_hotkey, view.executor_class),
            minutes: view.execution_time_limit.div_ceil(60).to_string(),
            env: lines(env.collect()),
            inputs: lines(inputs),
            outputs: lines(
                outputs
                    .filter_map(|upload| output_line(upload, &view.uploads))
                    .collect(),
            ),
            from: if takes_over {
                view.uuid.to_string()
            } else {
                String::new()
            },
        })
    }
}

/// The line of the form for an upload; `None` for a folder that is the alternative of a file.
fn output_line(upload: &FileUpload, all: &[FileUpload]) -> Option<String> {
    let path = upload.relative_path();
    let is_file = |other: &FileUpload| !other.is_folder() && other.relative_path() == path;
    match upload.is_folder() {
        true if all.iter().any(is_file) => None,
        true if path == WHOLE_OUTPUT => Some(path.to_owned()),
        true => Some(format!("{path}/")),
        false => Some(path.to_owned()),
    }
}

/// The page of a new job as HTML.
pub fn render(visitor: &Visitor<'_>, content: &NewJobPage<'_>) -> String {
    let body = html! {
        h1 { "New job" }
        @if let Some(reason) = content.problem { (problem(reason)) }
        form.stack.job-form method="post" action="/jobs" {
            (token(visitor))
            input type="hidden" name="request_name" value=(content.request_name);
            (fields(content))
            div { button.main type="submit" { "Start" } }
        }
        details.spec {
            summary { "From a specification" }
            form.stack method="post" action="/jobs/spec" {
                (token(visitor))
                input type="hidden" name="request_name" value=(content.request_name);
                label for="spec" { "JSON, as " code { "POST /api/v1/job-docker/" } " takes it" }
                textarea #spec.mono name="spec" rows="12" spellcheck="false" required {}
                div { button type="submit" { "Start" } }
            }
        }
    };
    page("New job", Section::Jobs, visitor, &body)
}

fn fields(content: &NewJobPage<'_>) -> Markup {
    let form = content.form;
    html! {
        label for="image" { "Image" }
        input #image.mono name="image" required value=(form.image) placeholder="python:3.13-slim" spellcheck="false"
            autocomplete="off";
        label for="command" { "Command" }
        textarea #command.mono name="command" rows="2" placeholder="python /volume/train.py --epochs 3" spellcheck="false"
            aria-describedby="command-help" { (form.command) }
        p #command-help.help { "Words as for a shell: quotes hold words together. Empty: the image's own command." }
        (target(content))
        label for="minutes" { "Time limit of the program, minutes" }
        input #minutes.short name="minutes" type="number" min="1" max="10080" required value=(form.minutes);
        label for="inputs" { "Inputs" }
        textarea #inputs.mono name="inputs" rows="3" spellcheck="false" placeholder="data.csv=https://…"
            aria-describedby="inputs-help" { (form.inputs) }
        p #inputs-help.help {
            "One on each line: " code { "PATH=URL" } ", or " code { "PATH=file:ID" }
            " for one of your files. They lie below " code { "/volume" } "."
        }
        (file_choices(content.files))
        @if !form.from.is_empty() {
            label.check {
                input type="checkbox" name="from" value=(form.from) checked;
                " also the inputs of job " span.mono { (form.from.chars().take(8).collect::<String>()) }
                " that lay inside its request or in archives"
            }
        }
        label for="outputs" { "Outputs" }
        textarea #outputs.mono name="outputs" rows="2" spellcheck="false" placeholder="model.bin"
            aria-describedby="outputs-help" { (form.outputs) }
        p #outputs-help.help {
            "One path below " code { "/output" } " on each line. They go to your files, also when the job fails. Small "
            "files that the program leaves in " code { "/artifacts" } " come with the result."
        }
        label for="env" { "Environment" }
        textarea #env.mono name="env" rows="2" spellcheck="false" placeholder="KEY=VALUE" { (form.env) }
    }
}

fn target(content: &NewJobPage<'_>) -> Markup {
    let form = content.form;
    let choices: Vec<(String, String)> = match content.subnet {
        Ok(subnet) => subnet
            .results
            .iter()
            .flat_map(|validator| {
                validator.classes.iter().map(move |offer| {
                    let key = validator.validator.to_string();
                    let watched = offer.has_watched_disks().then_some(", some with a watched disk");
                    let name = format!(
                        "{} — {} of {} free{}, validator {}",
                        offer.class,
                        offer.free,
                        offer.executors,
                        watched.unwrap_or_default(),
                        crate::text::shorten(&key)
                    );
                    (format!("{key}/{}", offer.class), name)
                })
            })
            .collect(),
        Err(_) => Vec::new(),
    };
    let listed = choices.iter().any(|(value, _)| *value == form.target);
    html! {
        label for="target" { "Class of executor" }
        @if choices.is_empty() && form.target.is_empty() {
            input #target.mono name="target" required placeholder="VALIDATOR/CLASS" spellcheck="false"
                aria-describedby="target-help";
            p #target-help.help {
                @match content.subnet {
                    Ok(_) => "No validator has told what its miners offer. Name one as VALIDATOR/CLASS.",
                    Err(reason) => (reason),
                }
            }
        } @else {
            select #target name="target" required {
                @if !listed && !form.target.is_empty() { option value=(form.target) selected { (form.target) } }
                @for (value, name) in &choices {
                    option value=(value) selected[*value == form.target] { (name) }
                }
            }
        }
    }
}

fn file_choices(files: &PagePart<FilePage>) -> Markup {
    let Ok(found) = files else { return html! {} };
    let complete: Vec<_> = found.results.iter().filter(|file| file.complete).collect();
    if complete.is_empty() {
        return html! {};
    }
    html! {
        details {
            summary { "Your newest files" }
            ul.plain.pick {
                @for file in complete {
                    li {
                        button.quiet.mono type="button" data-add-input=(format!("{}=file:{}", file.name, file.id)) {
                            (file.name)
                        }
                        " " span.dim { (bytes(file.size.unwrap_or_default())) " · file:" (file.id) }
                    }
                }
            }
        }
    }
}

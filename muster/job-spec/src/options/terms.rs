//! The options of `muster job run` that become the job's terms.

use std::time::Duration;

use clap::Args;
use muster_job_metrics::MetricRules;
use muster_protocol::job::{ArchiveSource, JobTerms, MetricNameError, MetricRule, Priority, ResumeSource};

use crate::options::checkpoints::CheckpointOptions;
use crate::options::duration;
use crate::options::start::StartOptions;

/// Terms of a job, which ComputeHorde's fields cannot hold. A facilitator or validator that does not know terms refuses
/// the job.
#[derive(Debug, Args)]
pub struct TermsOptions {
    /// How long the executor may take to fetch the image; by default 30m.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Limits", hide_short_help = true)]
    pub image_time_limit: Option<Duration>,
    /// How long the job may wait for an executor.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Limits")]
    pub queue_time: Option<Duration>,
    /// The checkpoints that the program leaves.
    #[command(flatten)]
    pub checkpoints: CheckpointOptions,
    /// How the program is started.
    #[command(flatten)]
    pub start: StartOptions,
    /// The place among your own waiting jobs: 1 (last) to 10 (first).
    ///
    /// By default 5.
    #[arg(long, value_name = "N", help_heading = "Routing")]
    pub priority: Option<Priority>,
    /// A metric in the output: its name, and a regular expression whose first group is the number. Repeatable.
    #[arg(long = "metric", value_name = "NAME=REGEX", value_parser = metric_rule, help_heading = "Routing",
        hide_short_help = true)]
    pub metrics: Vec<MetricRule>,
    /// The outputs follow from the inputs alone: the validator may run the job again on its own miner and compare.
    #[arg(long, help_heading = "Routing", hide_short_help = true)]
    pub deterministic: bool,
}

/// Reads `NAME=REGEX`.
fn metric_rule(text: &str) -> Result<MetricRule, String> {
    let (name, pattern) = text
        .split_once('=')
        .ok_or("write NAME=REGEX, such as loss='loss: ([0-9.]+)'")?;
    let rule = MetricRule {
        name: name.parse().map_err(|error: MetricNameError| error.to_string())?,
        pattern: pattern.to_owned(),
    };
    MetricRules::compile(std::slice::from_ref(&rule)).map_err(|error| error.to_string())?;
    Ok(rule)
}

impl TermsOptions {
    /// The terms; none where no option was given and the image lies in no archive, so that the job is one that every
    /// facilitator takes. `stdin` is the input for the program's standard input.
    pub fn terms(
        &self,
        image_archive: Option<ArchiveSource>,
        resume_from: Option<ResumeSource>,
        stdin: Option<String>,
    ) -> Option<JobTerms> {
        let terms = JobTerms {
            image_time_limit: self.image_time_limit.map(|limit| limit.as_secs()),
            priority: self.priority.unwrap_or_default(),
            queue_time_limit: self.queue_time.map(|limit| limit.as_secs()),
            image_archive,
            metrics: self.metrics.clone(),
            deterministic: self.deterministic,
            checkpoints: self.checkpoints.terms(resume_from),
            start: self.start.start(stdin),
        };
        (self.priority.is_some() || terms != JobTerms::default()).then_some(terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_a_name_and_a_pattern_that_can_be_used() {
        let rule = metric_rule("loss=loss=([0-9.]+)").unwrap();
        assert_eq!(
            (rule.name.as_str(), rule.pattern.as_str()),
            ("loss", "loss=([0-9.]+)")
        );
        for (wrong, why) in [
            ("loss", "NAME=REGEX"),
            ("a b=x", "name"),
            ("loss=(", "unclosed group"),
        ] {
            let error = metric_rule(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_job_without_options_has_no_terms() {
        let mut options = TermsOptions {
            image_time_limit: None,
            priority: None,
            queue_time: None,
            metrics: vec![],
            deterministic: false,
            checkpoints: CheckpointOptions::default(),
            start: StartOptions::default(),
        };
        assert_eq!(options.terms(None, None, None), None);
        options.priority = Some(Priority::default());
        assert_eq!(options.terms(None, None, None), Some(JobTerms::default()));
        options.image_time_limit = Some(Duration::from_secs(60));
        options.queue_time = Some(Duration::from_secs(7));
        let terms = options.terms(None, None, None).unwrap();
        assert_eq!(
            (terms.image_time_limit, terms.queue_time_limit),
            (Some(60), Some(7))
        );
    }
}

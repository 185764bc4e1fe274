//! `muster job run --spec`: a job that a file describes.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use clap::Parser;

use crate::cli::user::JobRun;
use crate::failure::{Failure, Result};

/// The options that a file stands for, read as those of the command line are.
#[derive(Debug, Parser)]
struct SpecOptions {
    #[command(flatten)]
    job: JobRun,
}

/// The job that the file describes, if the options name one; what may stand beside it stays.
pub(super) fn expand(args: JobRun) -> Result<JobRun> {
    let Some(file) = &args.spec else {
        return Ok(args);
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let words = muster_job_spec::read(&text, &args.sets, folder).map_err(|faults| {
        let lines: String = faults.iter().map(|fault| format!("\n  {fault}")).collect();
        Failure::usage(anyhow!("{} describes no job:{lines}", file.display()))
    })?;
    let options = SpecOptions::try_parse_from(std::iter::once("job".to_owned()).chain(words))
        .map_err(|error| Failure::usage(anyhow!("{}: {error}", file.display())))?;
    Ok(JobRun {
        spec: None,
        detach: args.detach,
        quiet: args.quiet,
        retries: args.retries,
        json: args.json,
        save: args.save.or(options.job.save),
        force: args.force,
        access: args.access,
        ..options.job
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    /// The options that [`expand`] takes from the command line.
    const BESIDE: [&str; 15] = [
        "spec",
        "sets",
        "save",
        "force",
        "detach",
        "quiet",
        "retries",
        "json",
        "dir",
        "facilitator",
        "validator",
        "api_key",
        "wallets",
        "wallet",
        "hotkey",
    ];

    #[test]
    fn every_option_either_stands_beside_a_file_or_is_refused_there() {
        let command = SpecOptions::command();
        let find = |id: &str| command.get_arguments().find(|arg| arg.get_id() == id);
        let refused: Vec<&str> = command
            .get_arg_conflicts_with(find("spec").unwrap())
            .into_iter()
            .map(|arg| arg.get_id().as_str())
            .collect();
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            let stands = BESIDE.contains(&id);
            assert_ne!(stands, refused.contains(&id), "--{id} would be silently dropped");
        }
        for id in BESIDE {
            assert!(find(id).is_some(), "{id}");
        }
    }

    #[test]
    fn an_option_that_the_file_should_name_is_an_error_and_a_default_is_none() {
        let parse = |more: &[&str]| {
            let words = ["job", "--spec", "job.toml"]
                .into_iter()
                .chain(more.iter().copied());
            SpecOptions::try_parse_from(words)
        };
        for more in [
            &["--timeout", "2h"][..],
            &["--resume-from", "11111111-2222-4333-8444-555555555555:3"],
            &["--via", "auto"],
            &["--deterministic"],
        ] {
            assert_eq!(
                parse(more).unwrap_err().kind(),
                ErrorKind::ArgumentConflict,
                "{more:?}"
            );
        }
        let beside = [
            "--save", "here", "--force", "--detach", "--json", "--hotkey", "h", "--set", "a=b",
        ];
        parse(&beside).unwrap();
    }
}

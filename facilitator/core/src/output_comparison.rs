//! The comparison of a job's outputs with those of the same job on the trusted miner. Pure.

use std::collections::BTreeSet;

use muster_protocol::job::ProgramStart;
use muster_protocol::rest::{ComparedOutput, ComparisonVerdict, JobView, OutputComparison};
use muster_protocol::{Digest, JobStatus};

/// The most names of outputs that the reason lists.
const MAX_NAMED: usize = 8;

/// Compares the outputs of a job that was reported with those of `trusted`, which is to be the same job on the trusted
/// miner.
pub fn compare_outputs(reported: &JobView, trusted: &JobView) -> OutputComparison {
    let not_compared = |reason: String| OutputComparison {
        verdict: ComparisonVerdict::NotCompared,
        reason,
        outputs: Vec::new(),
    };
    if !trusted.on_trusted_miner {
        return not_compared(
            "the second job did not ask for the trusted miner, so its result is worth no more than the first"
                .to_owned(),
        );
    }
    if reported.target_validator_hotkey != trusted.target_validator_hotkey {
        return not_compared("the jobs went to different validators".to_owned());
    }
    if let Some(field) = differing_field(reported, trusted) {
        return not_compared(format!("the jobs differ in {field}, so their outputs may differ"));
    }
    for (job, name) in [
        (reported, "the reported job"),
        (trusted, "the job on the trusted miner"),
    ] {
        if job.last_status() != JobStatus::Completed {
            return not_compared(format!(
                "{name} has not completed: its status is {}",
                job.last_status()
            ));
        }
    }
    judge(compared_outputs(reported, trusted))
}

/// The first field in which two jobs differ that decides what their programs do.
fn differing_field(one: &JobView, other: &JobView) -> Option<&'static str> {
    let fields = [
        ("executor_class", one.executor_class == other.executor_class),
        ("docker_image", one.docker_image == other.docker_image),
        ("args", one.args == other.args),
        ("env", one.env == other.env),
        ("volumes", one.volumes == other.volumes),
        ("artifacts_dir", one.artifacts_dir == other.artifacts_dir),
        ("muster.terms.start", start(one) == start(other)),
    ];
    let differing = fields.into_iter().find(|(_, is_same)| !is_same);
    differing.map(|(field, _)| field)
}

/// How the program of a job is started; `None` where its image decides.
fn start(job: &JobView) -> Option<&ProgramStart> {
    job.muster.as_ref()?.terms.as_ref()?.start.as_ref()
}

fn compared_outputs(one: &JobView, other: &JobView) -> Vec<ComparedOutput> {
    let stdout = ComparedOutput {
        name: "stdout".to_owned(),
        job: Some(Digest::of(one.stdout.as_bytes())),
        trusted_job: Some(Digest::of(other.stdout.as_bytes())),
    };
    let paths: BTreeSet<_> = one.artifacts.keys().chain(other.artifacts.keys()).collect();
    // Base64 of the same bytes is the same text, because executors write it in one way.
    let digest =
        |job: &JobView, path: &String| job.artifacts.get(path).map(|text| Digest::of(text.as_bytes()));
    let artifacts = paths.into_iter().map(|path| ComparedOutput {
        name: path.clone(),
        job: digest(one, path),
        trusted_job: digest(other, path),
    });
    std::iter::once(stdout).chain(artifacts).collect()
}

fn judge(outputs: Vec<ComparedOutput>) -> OutputComparison {
    let differing = outputs.iter().filter(|output| output.job != output.trusted_job);
    let names: Vec<_> = differing.map(|output| output.name.as_str()).collect();
    if names.is_empty() {
        let count = outputs.len();
        return OutputComparison {
            verdict: ComparisonVerdict::Same,
            reason: format!("all outputs are the same ({count} compared)"),
            outputs,
        };
    }
    let named = names.get(..MAX_NAMED).unwrap_or(&names).join(", ");
    let reason = format!(
        "{} of {} outputs differ from those of the trusted miner: {named}",
        names.len(),
        outputs.len()
    );
    OutputComparison {
        verdict: ComparisonVerdict::Differs,
        reason,
        outputs,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(change: impl FnOnce(&mut Value)) -> JobView {
        let mut view = json!({
            "uuid": "11111111-2222-4333-8444-555555555555", "executor_class": "always_on.test",
            "created_at": "2026-11-25T00:00:00Z", "last_update": "2026-11-25T00:00:00Z", "status": "Completed",
            "docker_image": "alpine", "args": ["x"], "env": {}, "use_gpu": false, "stdout": "42\n",
            "artifacts": {"/artifacts/a": "aGk="},
            "target_validator_hotkey": "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY",
            "download_time_limit": 1, "execution_time_limit": 2, "streaming_start_time_limit": 0,
            "upload_time_limit": 3,
            "status_history": [{"status": "completed", "metadata": null, "created_at": "2026-11-25T00:00:00Z"}],
        });
        change(&mut view);
        serde_json::from_value(view).unwrap()
    }

    fn trusted(change: impl FnOnce(&mut Value)) -> JobView {
        view(|view| {
            view["on_trusted_miner"] = json!(true);
            change(view);
        })
    }

    #[test]
    fn same_outputs_are_the_same_and_others_are_named() {
        let same = compare_outputs(
            &view(|_| ()),
            &trusted(|view| view["execution_time_limit"] = json!(9)),
        );
        assert_eq!(same.verdict, ComparisonVerdict::Same, "{}", same.reason);
        assert_eq!(same.outputs.len(), 2);
        let differs = compare_outputs(&view(|view| view["stdout"] = json!("41\n")), &trusted(|_| ()));
        assert_eq!(differs.verdict, ComparisonVerdict::Differs);
        assert_eq!(
            differs.reason,
            "1 of 2 outputs differ from those of the trusted miner: stdout"
        );
        let missing = compare_outputs(&view(|view| view["artifacts"] = json!({})), &trusted(|_| ()));
        assert_eq!(missing.verdict, ComparisonVerdict::Differs);
        assert_eq!(
            (missing.outputs[1].job, missing.outputs[1].trusted_job.is_some()),
            (None, true)
        );
    }

    #[test]
    fn jobs_that_say_nothing_about_each_other_are_not_compared() {
        let cases = [
            (view(|_| ()), view(|_| ()), "did not ask for the trusted miner"),
            (
                view(|_| ()),
                trusted(|view| view["args"] = json!(["y"])),
                "differ in args",
            ),
            (
                view(|view| view["status_history"][0]["status"] = json!("failed")),
                trusted(|_| ()),
                "the reported job has not completed",
            ),
            (
                view(|_| ()),
                trusted(|view| view["status_history"][0]["status"] = json!("accepted")),
                "the job on the trusted miner has not completed",
            ),
        ];
        for (reported, trusted, words) in cases {
            let compared = compare_outputs(&reported, &trusted);
            assert_eq!(compared.verdict, ComparisonVerdict::NotCompared);
            assert!(compared.reason.contains(words), "{}", compared.reason);
        }
    }
}

//! The outputs of a job, by digest, and their comparison with those of another run. Pure.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_protocol::job::{COMPLETION_KEY, CompletionReport};
use muster_protocol::wire::checks::CheckedOutput;
use muster_protocol::wire::facilitator::MinerResponse;
use muster_protocol::wire::miner::JobImage;
use muster_protocol::{Digest, ImageId};
use serde::{Deserialize, Serialize};

/// The name of a program's standard output.
const STDOUT: &str = "stdout";
/// The key of the image that ran, in a result.
const IMAGE_KEY: &str = "image";
/// The folder of outputs in the container.
const OUTPUT: &str = "/output";

/// The outputs of one run of a job, by their SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutputs {
    /// The program's standard output.
    pub stdout: Digest,
    /// The artifacts, by their paths.
    pub files: BTreeMap<String, Digest>,
    /// The files in the folder of outputs, which are those that uploads take, by their paths in the container; `None`
    /// if the miner reported none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<BTreeMap<String, Digest>>,
    /// The id of the image that ran, by the word of its miner; `None` if it told none. It is not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageId>,
}

impl JobOutputs {
    /// The outputs in the result of a job that has completed.
    pub fn of(response: &MinerResponse) -> Self {
        let digest = |contents: &String| match STANDARD.decode(contents) {
            Ok(bytes) => Digest::of(&bytes),
            // No run on the validator's own miner gives such a text, so the file has to differ from every one there.
            Err(_) => Digest::of(format!("muster/no-base64/1{contents}").as_bytes()),
        };
        let artifacts = response.artifacts.iter().flatten();
        let image = response.extra.get(IMAGE_KEY).cloned();
        let image = image.and_then(|image| serde_json::from_value::<JobImage>(image).ok());
        Self {
            image: image.map(|image| image.id),
            stdout: Digest::of(response.docker_process_stdout.as_bytes()),
            files: artifacts
                .map(|(path, contents)| (path.clone(), digest(contents)))
                .collect(),
            listed: response
                .extra
                .get(COMPLETION_KEY)
                .and_then(CompletionReport::read)
                .map(|report| {
                    let files = report.outputs.into_iter();
                    files
                        .map(|file| (format!("{OUTPUT}/{}", file.path), file.sha256))
                        .collect()
                }),
        }
    }

    /// Compares these outputs of a user's job with those of another run: the artifacts, and the files in the folder of
    /// outputs if both miners reported them. Standard output is compared only where neither run has a file: programs
    /// print times there that a deterministic job need not repeat.
    pub fn compare(&self, other: &Self) -> Comparison {
        let mut outputs = compare_files(&self.files, &other.files);
        if let (Some(job), Some(trusted)) = (&self.listed, &other.listed) {
            outputs.extend(compare_files(job, trusted));
        }
        if outputs.is_empty() {
            outputs.push(CheckedOutput {
                name: STDOUT.to_owned(),
                job: Some(self.stdout),
                trusted: Some(other.stdout),
            });
        }
        outputs.sort_by_key(is_same);
        Comparison { outputs }
    }
}

fn compare_files(job: &BTreeMap<String, Digest>, trusted: &BTreeMap<String, Digest>) -> Vec<CheckedOutput> {
    let paths: BTreeSet<&String> = job.keys().chain(trusted.keys()).collect();
    let files = paths.into_iter().map(|path| CheckedOutput {
        name: path.clone(),
        job: job.get(path).copied(),
        trusted: trusted.get(path).copied(),
    });
    files.collect()
}

fn is_same(output: &CheckedOutput) -> bool {
    output.job == output.trusted
}

/// The outputs of two runs beside each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    outputs: Vec<CheckedOutput>,
}

impl Comparison {
    /// Whether every output is the same.
    pub fn agrees(&self) -> bool {
        self.outputs.iter().all(is_same)
    }

    /// The number of outputs that differ, and of all that were compared.
    pub fn counts(&self) -> (usize, usize) {
        let differing = self.outputs.iter().filter(|output| !is_same(output));
        (differing.count(), self.outputs.len())
    }

    /// The outputs, those that differ first.
    pub fn into_outputs(self) -> Vec<CheckedOutput> {
        self.outputs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn outputs(stdout: &str, files: &[(&str, &str)]) -> JobOutputs {
        JobOutputs::of(&MinerResponse {
            docker_process_stdout: stdout.to_owned(),
            artifacts: Some(
                files
                    .iter()
                    .map(|(path, text)| ((*path).to_owned(), STANDARD.encode(text)))
                    .collect(),
            ),
            ..MinerResponse::default()
        })
    }

    #[test]
    fn files_are_compared_by_their_bytes_and_standard_output_only_where_there_is_none() {
        let one = outputs("took 3 s", &[("/artifacts/a", "x"), ("/artifacts/b", "y")]);
        assert_eq!(one.files["/artifacts/a"], Digest::of(b"x"));
        assert!(
            one.compare(&outputs(
                "took 4 s",
                &[("/artifacts/a", "x"), ("/artifacts/b", "y")]
            ))
            .agrees()
        );
        let differs = one.compare(&outputs(
            "took 3 s",
            &[("/artifacts/a", "x"), ("/artifacts/c", "y")],
        ));
        assert_eq!(differs.counts(), (2, 3));
        let outputs_shown = differs.into_outputs();
        let names: Vec<_> = outputs_shown.iter().map(|output| output.name.as_str()).collect();
        assert_eq!(
            names,
            ["/artifacts/b", "/artifacts/c", "/artifacts/a"],
            "those that differ first"
        );
        assert!(outputs("42", &[]).compare(&outputs("42", &[])).agrees());
        let printed = outputs("41", &[]).compare(&outputs("42", &[]));
        assert_eq!(printed.counts(), (1, 1));
        assert!(
            !outputs("42", &[])
                .compare(&outputs("42", &[("/artifacts/a", "")]))
                .agrees()
        );
        let broken = MinerResponse {
            artifacts: Some([("a".to_owned(), "***".to_owned())].into_iter().collect()),
            ..MinerResponse::default()
        };
        assert!(
            !JobOutputs::of(&broken)
                .compare(&outputs("", &[("a", "***")]))
                .agrees()
        );
    }

    /// The outputs of a program that left these files in the folder of outputs, and printed the time.
    fn listed(at: &str, files: &[(&str, &str)]) -> JobOutputs {
        let file = |(path, text): &(&str, &str)| json!({"path": path, "sha256": Digest::of(text.as_bytes()), "bytes": text.len()});
        let report = json!({"outputs": files.iter().map(file).collect::<Vec<_>>()});
        JobOutputs::of(&MinerResponse {
            docker_process_stdout: at.to_owned(),
            extra: [(COMPLETION_KEY.to_owned(), report)].into_iter().collect(),
            ..MinerResponse::default()
        })
    }

    #[test]
    fn files_in_the_folder_of_outputs_are_compared_where_both_miners_told_them() {
        let job = listed("12:00", &[("model.bin", "weights"), ("x", "")]);
        assert!(
            job.compare(&listed("12:01", &[("model.bin", "weights"), ("x", "")]))
                .agrees()
        );
        let differs = job.compare(&listed("12:01", &[("model.bin", "other"), ("x", "")]));
        assert_eq!(differs.counts(), (1, 2));
        assert_eq!(differs.into_outputs()[0].name, "/output/model.bin");
        assert_eq!(
            job.compare(&listed("12:00", &[])).counts(),
            (2, 2),
            "none is told"
        );
        // A miner of ComputeHorde reports nothing, so standard output is all there is.
        assert_eq!(job.compare(&outputs("12:00", &[])).counts(), (0, 1));
        assert_eq!(job.compare(&outputs("12:01", &[])).counts(), (1, 1));
    }

    #[test]
    fn the_image_that_ran_is_read_and_not_compared() {
        let id = Digest::of(b"image");
        let ran = |image: serde_json::Value| {
            JobOutputs::of(&MinerResponse {
                extra: [("image".to_owned(), image)].into_iter().collect(),
                ..MinerResponse::default()
            })
        };
        let with_image = ran(json!({"name": "alpine", "id": id.to_string(), "manifest": null}));
        assert_eq!(with_image.image, Some(ImageId(id)));
        assert_eq!(ran(json!(7)).image, None);
        assert!(with_image.compare(&ran(json!(7))).agrees());
    }

    proptest! {
        #[test]
        fn a_comparison_agrees_exactly_if_the_files_are_the_same(
            one in prop::collection::btree_map("[a-c]", 0_u8..3, 1..4),
            other in prop::collection::btree_map("[a-c]", 0_u8..3, 1..4),
        ) {
            let of = |files: &BTreeMap<String, u8>| JobOutputs {
                stdout: Digest::of(b""),
                files: files.iter().map(|(path, byte)| (path.clone(), Digest::of(&[*byte]))).collect(),
                listed: None,
                image: None,
            };
            prop_assert_eq!(of(&one).compare(&of(&other)).agrees(), one == other);
            prop_assert_eq!(of(&one).compare(&of(&other)).counts(), of(&other).compare(&of(&one)).counts());
        }
    }
}

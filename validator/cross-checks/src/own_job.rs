//! The validator's own deterministic job, written and signed in the form of a user's. Pure.

use std::io::{Cursor, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::SeededNumbers;
use muster_identity::{Keypair, sign_job, sign_terms};
use muster_own_jobs::DISGUISED_NAMESPACE;
use muster_protocol::job::JobTerms;
use muster_protocol::volume::{InlineVolume, MultiVolume, Volume, VolumePart};
use muster_protocol::wire::facilitator::{
    BittensorSignature, JobNew, JobRequestTag, SignatureScope, UserJobRequest, UserSignature,
};
use muster_protocol::wire::muster::JobExtension;
use muster_protocol::{Digest, JobId, Signature, Timestamp, UserKey};
use zip::ZipWriter;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;

use crate::job_form::OutputForm;
use crate::own_draw::{DrawnJob, fill};
use crate::settings::{NUMBER_PLACE, OwnProgram};

/// The tag of the numbers that a job's inputs are.
const INPUTS_TAG: &str = "muster/own-job-inputs/1";

/// The bytes of an archive with one file beside the name, twice, and the contents.
const ARCHIVE_BYTES: usize = 98;

/// Writes and signs the job that was drawn.
///
/// # Errors
/// Its inputs cannot be packed.
pub fn write_own_job(
    drawn: &DrawnJob,
    program: &OwnProgram,
    validator: &Keypair,
    now: Timestamp,
) -> Result<UserJobRequest, ZipError> {
    let form = &drawn.form;
    let mut inputs = SeededNumbers::new(INPUTS_TAG, &drawn.inputs);
    let number = inputs.draw().to_string();
    let filled = |text: &String| text.replace(NUMBER_PLACE, &number);
    let volume = match (&program.input_file, form.input_bytes) {
        (Some(file), Some(bytes)) => {
            let archive = pack(file, bytes, &mut inputs)?;
            Some(if form.is_listed {
                Volume::MultiVolume(MultiVolume {
                    volumes: vec![VolumePart::Inline(archive)],
                })
            } else {
                Volume::Inline(archive)
            })
        }
        (Some(_) | None, Some(_) | None) => None,
    };
    let mut job = UserJobRequest {
        signature: unsigned(validator),
        r#type: JobNew,
        message_type: JobRequestTag,
        uuid: drawn.id,
        job_namespace: Some(DISGUISED_NAMESPACE.to_owned()),
        executor_class: program.class,
        docker_image: program.image.clone(),
        args: program.args.iter().map(filled).collect(),
        env: program
            .env
            .iter()
            .map(|(name, value)| (name.clone(), filled(value)))
            .collect(),
        use_gpu: program.class.has_gpu(),
        volume,
        output_upload: None,
        artifacts_dir: program.artifacts_dir.clone(),
        on_trusted_miner: false,
        download_time_limit: form.download_time_limit,
        execution_time_limit: form.execution_time_limit,
        upload_time_limit: form.upload_time_limit,
        streaming_start_time_limit: form.streaming_start_time_limit,
        streaming_details: None,
        muster: None,
    };
    let terms = (form.account.clone(), form.terms(), form.output.as_ref());
    sign(&mut job, terms, validator, now);
    if form.is_traced {
        job.begin_trace();
    }
    Ok(job)
}

/// The same job for a third coldkey. It has an id of its own, and nothing else that a miner sees differs.
pub fn witness_job(
    original: &UserJobRequest,
    id: JobId,
    validator: &Keypair,
    now: Timestamp,
) -> UserJobRequest {
    let mut job = UserJobRequest {
        uuid: id,
        ..original.clone()
    };
    let output = OutputForm::of(original);
    let terms = (original.account(), original.terms(), output.as_ref());
    sign(&mut job, terms, validator, now);
    if original.traceparent().is_some() {
        job.begin_trace();
    }
    job
}

/// Signs a job as its user, and names the account and the place of the output that its miner is shown.
fn sign(
    job: &mut UserJobRequest,
    (account, terms, output): (String, JobTerms, Option<&OutputForm>),
    validator: &Keypair,
    now: Timestamp,
) {
    job.signature = sign_job(
        validator,
        &job.signed_fields(),
        now.micros().saturating_mul(1_000),
    );
    let signature = sign_terms(validator, &terms, &job.signed_digest());
    // No miner sees the signature of the terms, so none can tell what this is drawn from.
    let drawn = Digest::of(signature.to_base64().as_bytes());
    job.muster = Some(Box::new(JobExtension {
        account: Some(account),
        signature: Some(signature),
        terms: Some(terms),
        output: output.map(|form| form.imitate(job.uuid, drawn, now)),
        ..JobExtension::default()
    }));
}

fn unsigned(validator: &Keypair) -> UserSignature {
    UserSignature {
        signature_type: BittensorSignature,
        signatory: UserKey(validator.hotkey()),
        timestamp_ns: 0,
        signature: Signature::from_bytes([0; 64]),
        signature_scope: SignatureScope::SignedFields,
    }
}

/// An archive of `bytes` bytes with one file of drawn contents, as `muster job run --input` packs it.
fn pack(file: &str, bytes: usize, inputs: &mut SeededNumbers) -> Result<InlineVolume, ZipError> {
    let overhead = ARCHIVE_BYTES.saturating_add(file.len().saturating_mul(2));
    let mut contents = vec![0; bytes.saturating_sub(overhead).max(1)];
    fill(inputs, &mut contents);
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    writer.start_file(file, SimpleFileOptions::default())?;
    writer.write_all(&contents)?;
    let archive = writer.finish()?.into_inner();
    Ok(InlineVolume {
        contents: STANDARD.encode(archive),
        relative_path: None,
    })
}

#[cfg(test)]
mod tests {
    use muster_identity::verify_job;
    use muster_protocol::wire::checkpoints::OutputGrant;
    use muster_protocol::wire::encode;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::job_form::JobForm;
    use crate::own_draw::tests::key;
    use muster_protocol::MinerKey;

    fn now() -> Timestamp {
        Timestamp::from_secs(1_769_000_000)
    }

    fn program(input: &str) -> OwnProgram {
        let text = format!(
            "class = \"always_on.test\"\nimage = \"alpine\"\nargs = [\"sum\", \"{{number}}\"]\nartifacts_dir = \"/out\"\n\
             {input}\n[env]\nN = \"{{number}}\""
        );
        toml::from_str(&text).unwrap()
    }

    /// A job of a user's that has the program's image, with inputs of its own.
    fn users_job(account: &str, contents: Option<String>) -> UserJobRequest {
        let user = Keypair::from_uri("//User").unwrap();
        let drawn = drawn(JobForm {
            account: account.to_owned(),
            ..JobForm::usual(&program(""), &mut SeededNumbers::new("test", b""))
        });
        let mut job = write_own_job(&drawn, &program(""), &user, now()).unwrap();
        job.job_namespace = None;
        job.volume = contents.map(|contents| {
            Volume::Inline(InlineVolume {
                contents,
                relative_path: None,
            })
        });
        job
    }

    fn drawn(form: JobForm) -> DrawnJob {
        DrawnJob {
            id: JobId::from_uuid(uuid::Uuid::from_u128(7)),
            miner: MinerKey(key(1)),
            program: "sum".to_owned(),
            form,
            inputs: [5; 32],
        }
    }

    /// The fields of a job that a miner is sent, without what any two jobs differ in.
    fn seen_fields(job: &UserJobRequest) -> Value {
        let mut value: Value = serde_json::from_str(&encode(job)).unwrap();
        let seen = value.as_object_mut().unwrap();
        for own in ["uuid", "signature", "job_namespace", "args", "env", "volume"] {
            seen.remove(own);
        }
        let extension = seen["muster"].as_object_mut().unwrap();
        extension.remove("signature");
        extension.remove("traceparent");
        value
    }

    #[test]
    fn an_own_job_has_the_form_the_account_and_the_size_of_a_users() {
        for bytes in [150, 4_000, 70_000] {
            let users = users_job("alice", Some(STANDARD.encode(vec![7; bytes])));
            let form = JobForm::of(&users).unwrap();
            let program = program("input_file = \"data.bin\"");
            assert!(form.fits(&program));
            let validator = Keypair::from_uri("//Validator").unwrap();
            let job = write_own_job(&drawn(form), &program, &validator, now()).unwrap();
            assert!(verify_job(&job).is_ok());
            assert_eq!(seen_fields(&job), seen_fields(&users));
            assert_eq!(job.account(), "alice");
            let Some(Volume::Inline(inline)) = &job.volume else {
                panic!("inputs inside the request")
            };
            let packed = STANDARD.decode(&inline.contents).unwrap().len();
            assert!(packed.abs_diff(bytes) <= 64, "{packed} of {bytes}");
            assert_eq!(job.traceparent().is_some(), users.traceparent().is_some());
        }
    }

    #[test]
    fn place_of_the_output_has_the_form_of_a_users_and_a_signature_of_its_own() {
        let place = |job: &UserJobRequest| {
            let url = job
                .muster
                .as_ref()
                .unwrap()
                .output
                .as_ref()
                .unwrap()
                .blocks
                .clone();
            let (place, signature) = url.rsplit_once("&Signature=").unwrap();
            (place.replace(&job.uuid.to_string(), "JOB"), signature.to_owned())
        };
        let mut users = users_job("alice", None);
        let (url, sent) = (format!("http://f/blocks/{}", users.uuid), now().secs());
        let blocks = format!("{url}?Expires={}&Signature={}", sent + 90, "ab".repeat(32));
        users.muster.as_mut().unwrap().output = Some(OutputGrant { blocks });
        let validator = Keypair::from_uri("//Validator").unwrap();
        let form = JobForm::of(&users).unwrap();
        let job = write_own_job(&drawn(form), &program(""), &validator, now()).unwrap();
        let id = JobId::from_uuid(uuid::Uuid::from_u128(8));
        let witness = witness_job(&job, id, &validator, now());
        let (expected, granted) = place(&users);
        let [(own, one), (others, other)] = [&job, &witness].map(place);
        assert_eq!([&own, &others], [&expected, &expected]);
        assert!(one != other && one != granted && one.len() == granted.len());
        assert_eq!(verify_job(&job).is_ok(), verify_job(&witness).is_ok());
    }

    #[test]
    fn the_number_stands_in_arguments_and_environment_and_a_witness_gets_the_same() {
        let validator = Keypair::from_uri("//Validator").unwrap();
        let form = JobForm::of(&users_job("alice", None)).unwrap();
        let job = write_own_job(&drawn(form), &program(""), &validator, now()).unwrap();
        assert_eq!(job.args[1], job.env["N"]);
        assert!(job.args[1].parse::<u64>().is_ok(), "{:?}", job.args);
        let id = JobId::from_uuid(uuid::Uuid::from_u128(8));
        let witness = witness_job(&job, id, &validator, now());
        assert!(verify_job(&witness).is_ok());
        assert_eq!(seen_fields(&witness), seen_fields(&job));
        assert_eq!(
            (witness.uuid, &witness.args, &witness.env, &witness.volume),
            (id, &job.args, &job.env, &job.volume)
        );
        assert_ne!(witness.traceparent(), job.traceparent());
    }

    #[test]
    fn a_job_that_no_own_job_can_look_like_gives_no_form() {
        let mut far = users_job("alice", None);
        far.volume = Some(Volume::ZipUrl(muster_protocol::volume::ZipUrlVolume {
            contents: "http://127.0.0.1/in".to_owned(),
            relative_path: None,
        }));
        assert_eq!(JobForm::of(&far), None);
        let inline = VolumePart::Inline(InlineVolume {
            contents: STANDARD.encode(b"zip"),
            relative_path: None,
        });
        far.volume = Some(Volume::MultiVolume(MultiVolume {
            volumes: vec![inline.clone()],
        }));
        let form = JobForm::of(&far).unwrap();
        assert_eq!((form.input_bytes, form.is_listed), (Some(3), true));
        far.volume = Some(Volume::MultiVolume(MultiVolume {
            volumes: vec![inline; 2],
        }));
        assert_eq!(JobForm::of(&far), None);
        let large = users_job("alice", Some("A".repeat(2 * crate::job_form::MAX_INPUT_BYTES)));
        assert_eq!(JobForm::of(&large), None);
        assert_eq!(
            JobForm::of(&users_job("alice", Some("no base64".to_owned()))),
            None
        );
        let other = UserJobRequest {
            on_trusted_miner: true,
            ..users_job("alice", None)
        };
        assert_eq!(JobForm::of(&other), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn other_seeds_give_other_inputs(one in any::<[u8; 32]>(), other in any::<[u8; 32]>()) {
            prop_assume!(one != other);
            let program = program("input_file = \"data.bin\"");
            let validator = Keypair::from_seed([1; 32]);
            let written = |inputs| {
                let mut numbers = SeededNumbers::new("test", b"");
                let job = DrawnJob { inputs, ..drawn(JobForm::usual(&program, &mut numbers)) };
                write_own_job(&job, &program, &validator, now()).unwrap()
            };
            prop_assert_ne!(&written(one).args, &written(other).args);
            prop_assert_ne!(&written(one).volume, &written(other).volume);
            prop_assert_eq!(&written(one).volume, &written(one).volume);
        }
    }
}

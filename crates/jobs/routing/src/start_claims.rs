//! The miners that lately started a program of an image, and those that said that it cannot be started: one miner's
//! start shows the worth of another owner's claim. Pure, and bounded whatever users and miners send.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::job::Outcome;
use muster_protocol::volume::VolumePart;
use muster_protocol::wire::facilitator::UserJobRequest;
use muster_protocol::{AttemptId, Digest, Hotkey, ImageId, MinerKey, Timestamp, Volume, canonical};
use serde_json::{Value, json};

use crate::{AttemptMark, MarkedJob};

/// How long a start and a claim count.
const WINDOW: Duration = Duration::from_secs(3_600);
/// The most programs that are remembered.
const MAX_PROGRAMS: usize = 4_096;
/// The most claims about a program that wait for a witness.
const MAX_CLAIMS: usize = 16;

/// A program of an image: the image's content, and all that decides at an executor whether it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramKey(Digest);

/// A miner's claim that a program cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartClaim {
    /// The attempt that ended with the claim.
    pub attempt: AttemptId,
    /// The miner that made it.
    pub miner: MinerKey,
    /// The miner's owner.
    owner: Hotkey,
    at: Timestamp,
}

#[derive(Clone, Debug, Default)]
struct ProgramRecord {
    /// The owners whose miners started it, with the last time of each: two of them, because one may be the owner of
    /// the miner that is judged.
    started: Vec<(Hotkey, Timestamp)>,
    claims: Vec<StartClaim>,
    last: Option<Timestamp>,
}

/// The starts and the claims of the last hour.
#[derive(Clone, Debug, Default)]
pub struct StartClaims {
    programs: BTreeMap<ProgramKey, ProgramRecord>,
}

impl ProgramKey {
    /// The key of a job that runs an image of this content. Jobs with the same key start at every executor or at none.
    ///
    /// `None` for a job whose inputs come from elsewhere, or that leaves checkpoints: each executor may find other
    /// files there, so that no start shows anything about another executor's claim.
    pub fn of_job(image: ImageId, request: &UserJobRequest) -> Option<Self> {
        if request.terms().checkpoints.is_some() {
            return None;
        }
        let inputs = match &request.volume {
            None => Vec::new(),
            Some(volume) => inline_inputs(volume)?,
        };
        // The limits decide how far an executor comes before it reports.
        let program = json!({
            "args": request.args,
            "artifacts": request.artifacts_dir,
            "class": request.executor_class,
            "download": request.download_time_limit,
            "env": request.env,
            "execution": request.execution_time_limit,
            "image": image,
            "inputs": inputs,
            "start": request.terms().start,
            "streaming": request.streaming_details.is_some(),
            "streaming_start": request.streaming_start_time_limit,
            "upload": request.upload_time_limit,
        });
        Some(Self(Digest::of(canonical::sorted_compact(&program).as_bytes())))
    }
}

/// The inputs inside a request, each by its place and its digest; `None` if one of them comes from elsewhere.
fn inline_inputs(volume: &Volume) -> Option<Vec<Value>> {
    let named =
        |path: &Option<String>, contents: &str| json!([path, Digest::of(contents.as_bytes()).to_string()]);
    match volume {
        Volume::Inline(inline) => Some(vec![named(&inline.relative_path, &inline.contents)]),
        Volume::ZipUrl(_) | Volume::SingleFile(_) | Volume::HuggingfaceVolume(_) => None,
        Volume::MultiVolume(several) => {
            let parts = several.volumes.iter().map(|part| match part {
                VolumePart::Inline(inline) => Some(named(&inline.relative_path, &inline.contents)),
                VolumePart::ZipUrl(_) | VolumePart::SingleFile(_) | VolumePart::HuggingfaceVolume(_) => None,
            });
            parts.collect()
        }
    }
}

/// Whether an end with this mark is a claim that the start of another owner's miner shows to be wrong: a broken image,
/// or a failure that makes its miner a suspect and that no trial answers. An end that counts as an incident already
/// counts once, and one by another party's fault says nothing about the program.
pub fn is_start_claim(outcome: &Outcome, mark: AttemptMark, job: MarkedJob) -> bool {
    match mark {
        AttemptMark::Suspect => job.suspects_wait_for_witness(),
        AttemptMark::Clean => outcome.is_broken_image(),
        AttemptMark::Done
        | AttemptMark::NoSlot
        | AttemptMark::Unexcused
        | AttemptMark::Excuse
        | AttemptMark::Incident
        | AttemptMark::FailedTrial => false,
    }
}

impl StartClaims {
    /// Whether the miner of another owner than `owner` started the program within the last hour.
    pub fn is_started_elsewhere(&self, program: ProgramKey, owner: Hotkey, now: Timestamp) -> bool {
        self.programs.get(&program).is_some_and(|record| {
            let mut started = record.started.iter();
            started.any(|(by, at)| *by != owner && now.since(*at) < WINDOW)
        })
    }

    /// Notes a claim that a program cannot be started, or a failure of an executor at it.
    pub fn note_claim(
        &mut self,
        program: ProgramKey,
        (attempt, miner, owner): (AttemptId, MinerKey, Hotkey),
        now: Timestamp,
    ) {
        let claims = &mut self.record(program, now).claims;
        claims.retain(|claim| now.since(claim.at) < WINDOW);
        // The oldest goes: a miner that claims much is not spared by that, since each claim is one incident.
        if claims.len() >= MAX_CLAIMS {
            claims.remove(0);
        }
        claims.push(StartClaim {
            attempt,
            miner,
            owner,
            at: now,
        });
    }

    /// Notes that a miner of `owner` started a program. Returns the claims of other owners' miners of the last hour,
    /// which it has shown to be wrong. Each is returned once.
    pub fn note_start(&mut self, program: ProgramKey, owner: Hotkey, now: Timestamp) -> Vec<StartClaim> {
        let record = self.record(program, now);
        record.started.retain(|(by, _)| *by != owner);
        record.started.push((owner, now));
        if record.started.len() > 2 {
            record.started.remove(0);
        }
        let (wrong, kept) = std::mem::take(&mut record.claims)
            .into_iter()
            .filter(|claim| now.since(claim.at) < WINDOW)
            .partition(|claim| claim.owner != owner);
        record.claims = kept;
        wrong
    }

    fn record(&mut self, program: ProgramKey, now: Timestamp) -> &mut ProgramRecord {
        if !self.programs.contains_key(&program) && self.programs.len() >= MAX_PROGRAMS {
            let oldest = self.programs.iter().min_by_key(|(_, record)| record.last);
            let oldest = oldest.map(|(program, _)| *program);
            if let Some(oldest) = oldest {
                self.programs.remove(&oldest);
            }
        }
        let record = self.programs.entry(program).or_default();
        record.last = Some(now);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    const NOW: fn(i64) -> Timestamp = Timestamp::from_secs;

    fn owner(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn attempt(number: u128) -> AttemptId {
        format!("00000000-0000-4000-8000-{number:012x}").parse().unwrap()
    }

    fn program(image: &str) -> ProgramKey {
        ProgramKey::of_job(ImageId(Digest::of(image.as_bytes())), &request()).unwrap()
    }

    /// The key of a job with this change.
    fn key(change: impl FnOnce(&mut UserJobRequest)) -> Option<ProgramKey> {
        let mut request = request();
        change(&mut request);
        ProgramKey::of_job(ImageId(Digest::of(b"a")), &request)
    }

    fn volume(value: Value) -> Option<Volume> {
        Some(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_start_by_another_owner_shows_a_claim_to_be_wrong_once() {
        let mut claims = StartClaims::default();
        let claim = (attempt(1), MinerKey(owner(11)), owner(1));
        claims.note_claim(program("a"), claim, NOW(0));
        assert!(
            claims.note_start(program("a"), owner(1), NOW(1)).is_empty(),
            "his own miner"
        );
        assert!(
            claims.note_start(program("b"), owner(2), NOW(2)).is_empty(),
            "another image"
        );
        let wrong = claims.note_start(program("a"), owner(2), NOW(3));
        assert_eq!(wrong.len(), 1);
        assert_eq!(
            (wrong[0].attempt, wrong[0].miner),
            (attempt(1), MinerKey(owner(11)))
        );
        assert!(claims.note_start(program("a"), owner(3), NOW(4)).is_empty());
        assert!(claims.is_started_elsewhere(program("a"), owner(1), NOW(5)));
    }

    #[test]
    fn starts_and_claims_count_for_an_hour() {
        let mut claims = StartClaims::default();
        claims.note_claim(program("a"), (attempt(1), MinerKey(owner(1)), owner(1)), NOW(0));
        assert!(claims.note_start(program("a"), owner(2), NOW(3_600)).is_empty());
        assert!(claims.is_started_elsewhere(program("a"), owner(1), NOW(7_199)));
        assert!(!claims.is_started_elsewhere(program("a"), owner(1), NOW(7_200)));
        assert!(
            !claims.is_started_elsewhere(program("a"), owner(2), NOW(3_601)),
            "his own"
        );
    }

    #[test]
    fn users_cannot_make_the_record_grow() {
        let mut claims = StartClaims::default();
        for number in 0..10_000 {
            let program = program(&number.to_string());
            for _ in 0..3 {
                claims.note_claim(program, (attempt(1), MinerKey(owner(1)), owner(1)), NOW(number));
            }
        }
        assert_eq!(claims.programs.len(), MAX_PROGRAMS);
        let program = program("one");
        for number in 0..100 {
            let claim = (attempt(number), MinerKey(owner(1)), owner(1));
            claims.note_claim(program, claim, NOW(20_000));
            claims.note_start(
                program,
                owner(u8::try_from(number % 50).unwrap() + 2),
                NOW(20_000),
            );
        }
        let record = &claims.programs[&program];
        assert!(record.claims.len() <= MAX_CLAIMS && record.started.len() <= 2);
    }

    #[test]
    fn commands_that_join_to_one_text_are_apart() {
        let key = |parts: &[&str]| {
            let args: Vec<_> = parts.iter().map(|&part| part.to_owned()).collect();
            key(|request| request.args = args).unwrap()
        };
        assert_ne!(key(&["a b"]), key(&["a", "b"]));
        assert_ne!(key(&["a\n1:b"]), key(&["a", "b"]));
        assert_ne!(key(&[]), key(&[""]));
    }

    #[test]
    fn a_start_with_another_environment_or_other_inputs_shows_nothing() {
        let inline = |contents: &str| volume(json!({ "volume_type": "inline", "contents": contents }));
        let others = [
            key(|request| {
                request.env.insert("PATH".to_owned(), "/x".to_owned());
            }),
            key(|request| request.artifacts_dir = Some("/etc/passwd".to_owned())),
            key(|request| {
                let terms = r#"{"terms":{"start":{"entrypoint":"sh"}}}"#;
                request.muster = serde_json::from_str(terms).unwrap();
            }),
            key(|request| request.volume = inline("QQ==")),
            key(|request| request.volume = inline("Qg==")),
            key(|request| request.download_time_limit = 2),
        ];
        let mut claims = StartClaims::default();
        let claim = (attempt(1), MinerKey(owner(1)), owner(1));
        claims.note_claim(program("a"), claim, NOW(0));
        for (number, other) in others.into_iter().enumerate() {
            let other = other.unwrap();
            assert!(claims.note_start(other, owner(2), NOW(1)).is_empty(), "{number}");
            assert!(!claims.is_started_elsewhere(program("a"), owner(1), NOW(1)));
        }
        assert_eq!(claims.note_start(program("a"), owner(2), NOW(1)).len(), 1);
        assert_ne!(
            key(|request| request.volume = inline("QQ==")),
            key(|request| request.volume = inline("Qg=="))
        );
        let fetched = json!({ "volume_type": "zip_url", "contents": "http://a/b" });
        let mixed = json!({
            "volume_type": "multi_volume",
            "volumes": [{ "volume_type": "inline", "contents": "QQ==" }, fetched],
        });
        for fetched in [fetched, mixed] {
            assert_eq!(
                key(|request| request.volume = volume(fetched)),
                None,
                "a server tells miners apart"
            );
        }
        let order = |names: [&str; 2]| {
            key(|request| {
                request.env = names
                    .map(|name| (name.to_owned(), String::new()))
                    .into_iter()
                    .collect()
            })
        };
        assert_eq!(order(["A", "B"]), order(["B", "A"]));
    }

    #[test]
    fn only_suspects_and_broken_images_without_a_mark_wait_for_a_witness() {
        let done = Outcome::Completed(Box::default());
        for (is_tried, waits) in [(false, true), (true, false)] {
            for mark in AttemptMark::ALL {
                let is_claim = is_start_claim(&done, mark, MarkedJob::Users { is_tried });
                assert_eq!(is_claim, waits && mark == AttemptMark::Suspect);
            }
        }
    }
}

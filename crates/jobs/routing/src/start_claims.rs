//! The miners that lately started a program of an image, and those that said that it cannot be started: one miner's
//! start shows the worth of another owner's claim. Pure, and bounded whatever users and miners send.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::{AttemptId, Digest, Hotkey, ImageId, MinerKey, Timestamp};

/// How long a start and a claim count.
const WINDOW: Duration = Duration::from_secs(3_600);
/// The most programs that are remembered.
const MAX_PROGRAMS: usize = 4_096;
/// The most claims about a program that wait for a witness.
const MAX_CLAIMS: usize = 16;

/// A program of an image: the image's content and the command.
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
    /// The key of an image, by its content, with a command.
    pub fn new(image: ImageId, command: &[String]) -> Self {
        let mut text = image.to_string();
        for part in command {
            text.push_str(&format!("\n{}:{part}", part.len()));
        }
        Self(Digest::of(text.as_bytes()))
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

    const NOW: fn(i64) -> Timestamp = Timestamp::from_secs;

    fn owner(seed: u8) -> Hotkey {
        Hotkey::from_bytes([seed; 32])
    }

    fn attempt(number: u128) -> AttemptId {
        format!("00000000-0000-4000-8000-{number:012x}").parse().unwrap()
    }

    fn program(image: &str) -> ProgramKey {
        ProgramKey::new(ImageId(Digest::of(image.as_bytes())), &["run".to_owned()])
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
        let image = ImageId(Digest::of(b"x"));
        let key = |parts: &[&str]| {
            let command: Vec<_> = parts.iter().map(|&part| part.to_owned()).collect();
            ProgramKey::new(image, &command)
        };
        assert_ne!(key(&["a b"]), key(&["a", "b"]));
        assert_ne!(key(&["a\n1:b"]), key(&["a", "b"]));
        assert_ne!(key(&[]), key(&[""]));
    }
}

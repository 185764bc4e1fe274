//! A small world that makes bundles: a validator that logs and draws, and miners whose answers are measured ones.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_audit::{
    AnswerEvidence, AuditBundle, AuditOutcome, BUNDLE_FORMAT, BucketDraw, BucketEvidence, Calibration,
    Canary, CanaryList, CellCounts, ENTROPY_EDGES, EngineSampler, FalseIds, KnownAnswer, ListCommitment,
    ListHead, LoggedClient, MARGIN_BINS, MARGIN_EDGES, Margin, NoncePeriod, OpenedShare, OpenedText, Origin,
    OwnPromptKey, REFERENCED_CALIBRATION_FORMAT, ReferenceBuild, ReferenceMachine, RevealedNonceKey,
    SamplerEngine, SeededNumbers, SessionEvidence, Statistic, TokenScore, digest_of_ids, root_of_lists,
};
use muster_identity::Keypair;
use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{
    AnswerLeaf, Attestation, AuditShare, BucketHeader, BucketNumber, ClientKey, Envelope, HashScheme,
    NonceInput, Price, RequestNonce, ResponseProof, Sealable, SessionId, StreamEnd, Text, TokenFacts,
    body_digest, hash_chunk, inclusion_path, root_of, seal,
};
use uuid::Uuid;

/// The ids of every prompt's tokens.
const PROMPT_IDS: [u32; 3] = [5, 6, 7];

/// The ids of an answer's tokens.
fn output_ids(sequence: u64, tokens: usize) -> Vec<u32> {
    vec![u32::try_from(sequence).unwrap(); tokens]
}

/// The same calibration as one of a whitelisted image whose sampler another image replays.
pub(crate) fn referenced(calibration: Calibration) -> Calibration {
    let has_seeds = calibration.statistic == Statistic::Margin;
    Calibration {
        format: REFERENCED_CALIBRATION_FORMAT.to_owned(),
        reference: Some(ReferenceBuild {
            engine: Digest::of(b"reference image"),
            arguments: Digest::of(b"reference arguments"),
        }),
        sampler: has_seeds.then(|| EngineSampler {
            engine: SamplerEngine::LlamaCpp,
            version: "b11549".to_owned(),
        }),
        known_answers: if has_seeds {
            vec![KnownAnswer {
                request: r#"{"seed":7,"temperature":0.3}"#.to_owned(),
                prompt: vec![5, 6],
                output: vec![7, 8, 9],
            }]
        } else {
            Vec::new()
        },
        ..calibration
    }
}

/// The measured answers as they look without a seed.
pub(crate) fn unseeded_calibration() -> Calibration {
    let text = include_str!("../../../../../../tests/vectors/audit-engines-surprise.json");
    let measured = Calibration::parse(text).unwrap();
    Calibration {
        model: calibration().model,
        engine: calibration().engine,
        ..referenced(measured)
    }
}

pub(crate) const START: i64 = 1_769_000_000;

/// The measured answers of images/llm's engines.
pub(crate) fn calibration() -> Calibration {
    Calibration::parse(include_str!(
        "../../../../../../tests/vectors/audit-calibration.json"
    ))
    .unwrap()
}

/// The prompts of one answer in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    User,
    Consenting,
    Canary,
}

/// One answer that the world gives: its prompt, and whether the cheaper engine writes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) prompt: Prompt,
    pub(crate) cheats: bool,
    /// The number of the client.
    pub(crate) client: u64,
}

/// Everything that a bundle of the world follows from.
pub(crate) struct World {
    pub(crate) calibration: Calibration,
    /// The calibration of users' answers, which name no seeds; `None` if their seeds are known, too.
    pub(crate) unseeded: Option<Calibration>,
    /// Whether the requests of own prompts name a seed.
    pub(crate) has_seeds: bool,
    /// The name of the engine of cheated answers.
    pub(crate) cheat: &'static str,
    /// The share that is audited, in millionths.
    pub(crate) ppm: u32,
    pub(crate) seed: u64,
    /// Answers in each bucket.
    pub(crate) bucket_answers: usize,
    /// Whether a health check and an answer whose client went away come before each answer.
    pub(crate) has_others: bool,
    /// Whether the words of answers that may be published are in the bundle.
    pub(crate) opens_words: bool,
    /// Whether leaves name the stable pseudonyms of clients, as in the third format.
    pub(crate) is_third_format: bool,
    /// Whether all own prompts have the same salt.
    pub(crate) repeats_salt: bool,
    /// Whether nonces follow from keys that the bundle shows.
    pub(crate) has_nonce_keys: bool,
    /// Further fields of own prompts without a seed, each behind a comma.
    pub(crate) more_fields: &'static str,
    /// The text that stands for the seed in requests of own prompts, if they name one.
    pub(crate) blank: &'static str,
    /// The position of the list that the session was asked before all others, outside of the log. Needs `has_others`.
    pub(crate) asks_before: Option<u64>,
    /// The scheme by which the session signs requests and responses.
    pub(crate) scheme: HashScheme,
    /// Changes the proof of the answer with this number before it is signed.
    pub(crate) alter_proof: fn(usize, &mut ResponseProof),
    /// Changes the proof of the answer to an own prompt after its client was set.
    pub(crate) alter_own: fn(usize, &mut ResponseProof),
    pub(crate) validator: Keypair,
    pub(crate) miner: Keypair,
    pub(crate) session_key: Keypair,
    pub(crate) coldkey: Keypair,
    pub(crate) genesis: Digest,
    pub(crate) netuid: u16,
}

impl World {
    pub(crate) fn new(cheat: &'static str, seed: u64) -> Self {
        Self {
            calibration: calibration(),
            unseeded: None,
            has_seeds: false,
            cheat,
            ppm: 1_000_000,
            seed,
            bucket_answers: 7,
            has_others: false,
            opens_words: false,
            is_third_format: false,
            repeats_salt: false,
            has_nonce_keys: false,
            more_fields: "",
            blank: r#""seed":null"#,
            asks_before: None,
            scheme: HashScheme::RawHttp,
            alter_proof: |_, _| {},
            alter_own: |_, _| {},
            validator: Keypair::from_seed([1; 32]),
            miner: Keypair::from_seed([2; 32]),
            session_key: Keypair::from_seed([3; 32]),
            coldkey: Keypair::from_seed([9; 32]),
            genesis: Digest::of(b"genesis"),
            netuid: 12,
        }
    }

    /// A bundle of these answers, all in one session.
    pub(crate) fn bundle(&self, given: &[Given]) -> AuditBundle {
        let attestation = self.attestation();
        let canaries = self.canaries(given.len());
        let head = self.head(&canaries);
        let (commitment, own_key) = self.commit(COMMITTED, &head);
        let mut numbers = SeededNumbers::new("muster/test-world/1", &self.seed.to_be_bytes());
        let (mut previous, mut sent) = (Digest::of(&attestation.signed_bytes()), 0_u64);
        let (mut answers, mut others) = (Vec::new(), Vec::new());
        let mut equal = BTreeMap::new();
        let mut next = 0;
        for (place, one) in given.iter().enumerate() {
            let clients = [None, Some(Digest::of(b"gone"))];
            for client in clients.into_iter().filter(|_| self.has_others) {
                let asked = self.asks_before.filter(|_| place == 0);
                let proof = ResponseProof {
                    client,
                    gateway_nonce: asked.map(|position| own_key.nonce(&head.digest(), position)),
                    ..self.proof(&attestation, next, previous, one.client, b"", 1)
                };
                let envelope = seal(&proof, &self.session_key);
                previous = envelope.digest();
                next += 1;
                others.push(envelope.to_text());
            }
            let (mut origin, mut request) = origin(one.prompt, &canaries, &mut sent);
            if let Origin::Canary(opened) = &mut origin
                && !self.is_third_format
            {
                opened.list = Some(head.digest());
                if self.calibration.sampler.is_some()
                    && let Some(filled) = own_key.fill_seed(&request, &head.digest(), opened.position)
                {
                    request = filled;
                }
            }
            let unseeded = self.unseeded.as_ref().filter(|_| one.prompt == Prompt::User);
            let tokens = self.tokens(unseeded.unwrap_or(&self.calibration), one.cheats, &mut numbers);
            let mut proof = self.proof(&attestation, next, previous, one.client, &request, tokens.len());
            let key = ClientKey::from_bytes(*Digest::of(&one.client.to_be_bytes()).as_bytes());
            if !self.is_third_format {
                let drawn = Digest::of(&place.to_be_bytes());
                let nonce = RequestNonce::from_bytes(*drawn.as_bytes());
                proof.client = Some(key.pseudonym(&proof.input, &nonce));
            }
            (self.alter_proof)(place, &mut proof);
            let bucket = 4_000 + (place / self.bucket_answers) as u64;
            if let Origin::Canary(opened) = &origin {
                let canary = canaries.next(opened.position).unwrap();
                proof.client = Some(canary.client(&block_hash_of(COMMITTED)));
                proof.client_nonce = canary.client_nonce(&block_hash_of(COMMITTED));
            }
            if self.has_nonce_keys {
                self.derive_nonce(&mut proof, bucket, &mut equal);
            }
            if let Origin::Canary(opened) = &origin {
                if !self.is_third_format {
                    proof.gateway_nonce = Some(own_key.nonce(&head.digest(), opened.position));
                }
                (self.alter_own)(place, &mut proof);
            }
            let envelope = seal(&proof, &self.session_key);
            previous = envelope.digest();
            next += 1;
            let opening = key.opening(&previous, BucketNumber(bucket).day());
            answers.push(AnswerEvidence {
                proof: envelope.to_text(),
                output_tokens: tokens.len() as u64,
                earned: tokens.len() as u64 * 3,
                bucket,
                position: (place % self.bucket_answers) as u64,
                path: Vec::new(),
                words: self.words(one.prompt, &request, &proof, tokens.len()),
                origin,
                outcome: Some(match unseeded {
                    None => AuditOutcome::Scored(vec![Some(tokens.clone()), Some(tokens)]),
                    Some(_) => AuditOutcome::Unseeded(vec![Some(tokens.clone()), Some(tokens)]),
                }),
                cut: false,
                client: (!self.is_third_format).then_some(LoggedClient::Opened(opening)),
                beyond: false,
            });
        }
        let buckets = match self.is_third_format {
            true => self.log(&mut answers, Digest::of(b""), &canaries.root()),
            false => self.log(&mut answers, digest_of(&commitment.header), &root_of([])),
        };
        let mut nonce_keys = Vec::new();
        if self.has_nonce_keys {
            let last =
                NoncePeriod::of_bucket(BucketNumber(4_000 + (given.len() / self.bucket_answers) as u64));
            nonce_keys.extend((332..=last.0).map(|period| self.nonce_key(NoncePeriod(period)).1));
        }
        AuditBundle {
            format: match self.is_third_format {
                true => THIRD_FORMAT.to_owned(),
                false => BUNDLE_FORMAT.to_owned(),
            },
            unseeded: self.unseeded.clone(),
            nonce_keys,
            commitments: vec![commitment],
            genesis: self.genesis,
            netuid: self.netuid,
            validator: ValidatorKey(self.validator.hotkey()),
            coldkey: self.coldkey.hotkey(),
            miners: vec![MinerKey(self.miner.hotkey())],
            model: "tiny".to_owned(),
            references: ["first", "second"].map(|machine| self.reference(machine)).into(),
            calibration: self.calibration.clone(),
            buckets,
            sessions: vec![SessionEvidence {
                attestation: seal(&attestation, &self.miner).to_text(),
                answers,
                others,
                unproven: Vec::new(),
            }],
        }
    }

    /// The list of own prompts of a bundle with so many answers.
    pub(crate) fn canaries(&self, count: usize) -> CanaryList {
        let blank = (!self.is_third_format).then_some(self.blank);
        canaries(count, self.has_seeds, self.repeats_salt, blank, self.more_fields)
    }

    /// The head of a list, all of whose prompts are asked of the world's session.
    pub(crate) fn head(&self, canaries: &CanaryList) -> ListHead {
        ListHead {
            salt: [9; 32],
            session: Digest::of(&self.attestation().signed_bytes()),
            miner: MinerKey(self.miner.hotkey()),
            model: "tiny".to_owned(),
            length: canaries.length(),
            root: canaries.root(),
        }
    }

    /// The commitment to a list by the header of this bucket, and the key of its prompts.
    pub(crate) fn commit(&self, bucket: u64, head: &ListHead) -> (ListCommitment, OwnPromptKey) {
        let canaries = match self.is_third_format {
            true => head.root,
            false => root_of_lists([&head.digest()]),
        };
        let header = self.header(bucket, Digest::of(b""), canaries);
        let block_hash = block_hash_of(bucket);
        let (key, proof) = OwnPromptKey::prove(&self.validator, &header, &block_hash);
        let commitment = ListCommitment {
            header: seal(&header, &self.validator).to_text(),
            block_hash: Some(block_hash),
            key: (!self.is_third_format).then_some(proof),
            lists: match self.is_third_format {
                true => Vec::new(),
                false => vec![head.open()],
            },
        };
        (commitment, key)
    }

    /// The bundle with more headers: before its list one with a list of another miner, behind it one with a list that
    /// was never asked, and after that a list of the same miner that is hidden, and one more of another miner.
    pub(crate) fn with_more_headers(&self, mut bundle: AuditBundle) -> AuditBundle {
        let mut head = self.head(&canaries(3, false, false, None, ""));
        head.salt = [8; 32];
        let mut foreign = head.clone();
        foreign.miner = MinerKey(self.validator.hotkey());
        let sealed = |bucket: u64, previous: Digest, hidden: &ListHead| {
            let header = self.header(bucket, previous, root_of_lists([&hidden.digest()]));
            ListCommitment {
                header: seal(&header, &self.validator).to_text(),
                block_hash: None,
                key: None,
                lists: vec![hidden.seal()],
            }
        };
        let (unasked, _) = self.commit(4_010, &head);
        let hidden = sealed(
            4_011,
            digest_of(&unasked.header),
            &ListHead {
                salt: [7; 32],
                ..head
            },
        );
        let last = sealed(4_012, digest_of(&hidden.header), &foreign);
        bundle
            .commitments
            .insert(0, sealed(COMMITTED - 1, Digest::of(b""), &foreign));
        bundle.commitments.extend([unasked, hidden, last]);
        bundle
    }

    /// The header of a bucket without answers, behind the header with this digest.
    pub(crate) fn header(&self, bucket: u64, previous: Digest, canaries: Digest) -> BucketHeader {
        BucketHeader {
            genesis: self.genesis,
            netuid: self.netuid,
            validator: ValidatorKey(self.validator.hotkey()),
            bucket: BucketNumber(bucket),
            answers: 0,
            root: root_of([]),
            previous,
            shares: 0,
            share_root: root_of([]),
            canaries,
        }
    }

    /// The words of an answer that a bundle opens: its ids, or its response if the session signed none.
    fn words(
        &self,
        prompt: Prompt,
        request: &[u8],
        proof: &ResponseProof,
        tokens: usize,
    ) -> Option<OpenedText> {
        let request = match prompt {
            Prompt::User => return None,
            Prompt::Consenting if proof.tokens.is_none() => return None,
            Prompt::Consenting => Some(STANDARD.encode(request)),
            Prompt::Canary => None,
        };
        let (prompt, output, response) = match proof.tokens {
            Some(_) => (PROMPT_IDS.into(), output_ids(proof.sequence, tokens), None),
            None => {
                let body = STANDARD.encode(response(proof.sequence));
                (Vec::new(), Vec::new(), Some(body))
            }
        };
        self.opens_words.then_some(OpenedText {
            prompt,
            output,
            request,
            response,
        })
    }

    pub(crate) fn nonce_key(&self, period: NoncePeriod) -> ([u8; 32], RevealedNonceKey) {
        let hash = Digest::of(&period.first_block().to_be_bytes());
        RevealedNonceKey::prove(&self.validator, &self.genesis, self.netuid, period, hash)
    }

    /// Gives a proof the nonce of its bucket's period, or of the one before if its number is odd.
    fn derive_nonce(&self, proof: &mut ResponseProof, bucket: u64, equal: &mut BTreeMap<[Digest; 2], u64>) {
        let period = NoncePeriod(NoncePeriod::of_bucket(BucketNumber(bucket)).0 - proof.sequence % 2);
        let client = proof.client.unwrap();
        let ordinal = equal.entry([client, proof.input]).or_default();
        let input = NonceInput {
            attestation: &proof.attestation,
            client: &client,
            client_nonce: proof.client_nonce.as_ref(),
            request: &proof.input,
            ordinal: *ordinal,
        };
        *ordinal += 1;
        proof.gateway_nonce = Some(RequestNonce::derive(&self.nonce_key(period).0, &input));
    }

    fn reference(&self, machine: &str) -> ReferenceMachine {
        ReferenceMachine {
            machine: machine.to_owned(),
            gpu: "none".to_owned(),
            engine: self.calibration.reference_engine(),
        }
    }

    fn attestation(&self) -> Attestation {
        Attestation {
            session: SessionId(Uuid::from_u128(self.seed.into())),
            session_key: self.session_key.hotkey(),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            miner: MinerKey(self.miner.hotkey()),
            audience: ValidatorKey(self.validator.hotkey()),
            server_certificate: Digest::of(b"server certificate"),
            client_certificate: Digest::of(b"client certificate"),
            executor: Text::new("executor-7").unwrap(),
            address: Text::new("203.0.113.7:6006").unwrap(),
            image: ImageId(self.calibration.engine),
            model: Some(self.calibration.model),
            scheme: self.scheme,
            price: Price { input: 1, output: 3 },
            not_before: Timestamp::from_secs(START),
            not_after: Timestamp::from_secs(START + 3_600),
        }
    }

    fn proof(
        &self,
        attestation: &Attestation,
        sequence: u64,
        previous: Digest,
        client: u64,
        request: &[u8],
        tokens: usize,
    ) -> ResponseProof {
        let output = response(sequence);
        ResponseProof {
            session: attestation.session,
            sequence,
            previous,
            job: attestation.job,
            attempt: attestation.attempt,
            audience: attestation.audience,
            client: Some(Digest::of(&client.to_be_bytes())),
            attestation: Digest::of(&attestation.signed_bytes()),
            client_nonce: None,
            gateway_nonce: None,
            method: Text::new("POST").unwrap(),
            path: Text::new("/v1/completions").unwrap(),
            status: 200,
            content_type: Some(Text::new("application/json").unwrap()),
            scheme: self.scheme,
            input: body_digest::digest_input(self.scheme, request),
            output: Digest::of(output.as_bytes()),
            output_bytes: output.len() as u64,
            chunks: root_of([hash_chunk(output.as_bytes())]),
            from: Timestamp::from_secs(START + 1),
            first_byte: None,
            to: Timestamp::from_secs(START + 2),
            tokens: Some(TokenFacts {
                prompt: digest_of_ids(&PROMPT_IDS),
                prompt_count: 3,
                output: digest_of_ids(&output_ids(sequence, tokens)),
                output_count: u32::try_from(tokens).unwrap(),
            }),
            engine: None,
            end: StreamEnd::Completed,
        }
    }

    /// The tokens of a measured answer, by the engine that writes it.
    fn tokens(
        &self,
        calibration: &Calibration,
        cheats: bool,
        numbers: &mut SeededNumbers,
    ) -> Vec<TokenScore> {
        let machines = &calibration.machines;
        let answers = if cheats {
            let named = |one: &&muster_audit::Alternative| one.name == self.cheat;
            &calibration.alternatives.iter().find(named).unwrap().answers
        } else {
            &machines[numbers.below(machines.len())].answers
        };
        tokens_of(&answers[numbers.below(answers.len())])
    }

    /// Logs the answers in buckets: fills their paths, signs the headers, and draws.
    pub(crate) fn log(
        &self,
        answers: &mut [AnswerEvidence],
        mut previous: Digest,
        canaries: &Digest,
    ) -> Vec<BucketEvidence> {
        let mut buckets = Vec::new();
        for of_bucket in answers.chunk_by_mut(|left, right| left.bucket == right.bucket) {
            let leaves: Vec<Digest> = of_bucket.iter().map(leaf).collect();
            for (place, answer) in of_bucket.iter_mut().enumerate() {
                answer.path = inclusion_path(&leaves, place).unwrap();
            }
            let share = AuditShare {
                miner: MinerKey(self.miner.hotkey()),
                model: Text::new("tiny").unwrap(),
                ppm: self.ppm,
            };
            let others = AuditShare {
                miner: MinerKey(self.validator.hotkey()),
                ..share.clone()
            };
            let shares = [others.hash(), share.hash()];
            let bucket = of_bucket[0].bucket;
            let header = BucketHeader {
                genesis: self.genesis,
                netuid: self.netuid,
                validator: ValidatorKey(self.validator.hotkey()),
                bucket: BucketNumber(bucket),
                answers: leaves.len() as u64,
                root: root_of(leaves),
                previous,
                shares: 2,
                share_root: root_of(shares),
                canaries: *canaries,
            };
            let envelope = seal(&header, &self.validator);
            previous = envelope.digest();
            let block_hash = block_hash_of(bucket);
            let (draw, proven) = BucketDraw::prove(&self.validator, &header, &block_hash);
            of_bucket
                .iter_mut()
                .for_each(|answer| hide_undrawn(answer, &draw, self.ppm));
            buckets.push(BucketEvidence {
                header: envelope.to_text(),
                block_hash,
                draw: proven,
                shares: vec![OpenedShare {
                    miner: share.miner,
                    ppm: share.ppm,
                    position: 1,
                    path: inclusion_path(&shares, 1).unwrap(),
                }],
            });
        }
        buckets
    }
}

/// The format before leaves committed to clients.
pub(crate) const THIRD_FORMAT: &str = "muster/audit-bundle/3";

/// The digest of a header's bytes.
pub(crate) fn digest_of(header: &str) -> Digest {
    Envelope::<BucketHeader>::from_text(header).unwrap().digest()
}

/// Hides the client of an answer that is not audited.
fn hide_undrawn(answer: &mut AnswerEvidence, draw: &BucketDraw, ppm: u32) {
    let proof = Envelope::<ResponseProof>::from_text(&answer.proof)
        .unwrap()
        .digest();
    let is_audited = matches!(answer.origin, Origin::Canary(_)) || draw.draws(&proof, ppm);
    if let (Some(LoggedClient::Opened(opening)), false) = (answer.client, is_audited) {
        answer.client = Some(LoggedClient::Sealed(opening.commitment()));
    }
}

/// The bucket whose header commits to the list of own prompts.
pub(crate) const COMMITTED: u64 = 3_999;

/// The hash of a bucket's draw block.
pub(crate) fn block_hash_of(bucket: u64) -> Digest {
    Digest::of(&BucketNumber(bucket).draw_block().to_be_bytes())
}

/// The body of the answer with this number.
fn response(sequence: u64) -> String {
    format!("answer {sequence}")
}

/// Has the answer with this number false ids by both references, which open its response if its words may be opened.
pub(crate) fn make_false(bundle: &mut AuditBundle, number: usize, falsehood: FalseIds) {
    let answer = &mut bundle.sessions[0].answers[number];
    answer.outcome = Some(AuditOutcome::FalseIds(vec![Some(falsehood); 2]));
    if let Some(words) = &mut answer.words {
        words.prompt.clear();
        words.output.clear();
        words.response = Some(STANDARD.encode(response(number as u64)));
    }
}

/// The leaf of an answer.
fn leaf(answer: &AnswerEvidence) -> Digest {
    let envelope = Envelope::<ResponseProof>::from_text(&answer.proof).unwrap();
    let proof = envelope.statement().unwrap();
    AnswerLeaf {
        session: proof.session,
        sequence: proof.sequence,
        proof: envelope.digest(),
        output_tokens: answer.output_tokens,
        earned: answer.earned,
        stratum: match answer.client {
            None => proof.client.unwrap(),
            Some(LoggedClient::Sealed(commitment)) => commitment,
            Some(LoggedClient::Opened(opening)) => opening.commitment(),
        },
    }
    .hash()
}

/// `blank` stands for the seed; without one each request names a seed of its own.
fn canaries(
    count: usize,
    has_seeds: bool,
    repeats_salt: bool,
    blank: Option<&str>,
    more: &str,
) -> CanaryList {
    let seed = |number: usize| match blank {
        None => format!("\"seed\":{number}"),
        Some(blank) => blank.to_owned(),
    };
    let canary = |number: usize| Canary {
        salt: *Digest::of(&(if repeats_salt { 0 } else { number }).to_be_bytes()).as_bytes(),
        request: match has_seeds {
            false => {
                format!("{{\"prompt\":\"canary {number}\",\"return_token_ids\":true{more}}}").into_bytes()
            }
            true => {
                let seed = seed(number);
                format!("{{\"prompt\":\"canary {number}\",\"return_token_ids\":true,{seed}}}").into_bytes()
            }
        },
    };
    CanaryList::new((0..count).map(canary).collect())
}

fn origin(prompt: Prompt, canaries: &CanaryList, sent: &mut u64) -> (Origin, Vec<u8>) {
    match prompt {
        Prompt::User => (Origin::User, b"{\"prompt\":\"private\"}".to_vec()),
        Prompt::Consenting => (Origin::Consenting, b"{\"prompt\":\"public\"}".to_vec()),
        Prompt::Canary => {
            let opened = canaries.open(*sent).unwrap();
            let request = canaries.next(*sent).unwrap().request.clone();
            *sent += 1;
            (Origin::Canary(opened), request)
        }
    }
}

/// Tokens that fall into these cells.
fn tokens_of(cells: &CellCounts) -> Vec<TokenScore> {
    let mut tokens = Vec::new();
    for (entropy, row) in cells.0.iter().enumerate() {
        for (margin, count) in row.iter().enumerate() {
            let token = TokenScore {
                margin: match margin {
                    0 => Margin::Micronats(0),
                    last if last == MARGIN_BINS - 1 => Margin::Impossible,
                    bin => Margin::Micronats(MARGIN_EDGES[bin - 1] + 1),
                },
                entropy: if entropy == 0 {
                    0
                } else {
                    ENTROPY_EDGES[entropy - 1]
                },
            };
            tokens.extend(std::iter::repeat_n(token, usize::try_from(*count).unwrap()));
        }
    }
    tokens
}

/// This many answers, each for a client of its own; `cheats` returns of each whether the cheaper engine writes it.
pub(crate) fn given(count: u64, prompt: Prompt, cheats: impl Fn(u64) -> bool) -> Vec<Given> {
    (0..count)
        .map(|client| Given {
            prompt,
            cheats: cheats(client),
            client,
        })
        .collect()
}

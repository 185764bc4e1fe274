//! The parsers of peers' and users' bytes, each with the property that must hold besides not panicking.

use std::convert::Infallible;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt as _, Full};
use muster_audit::own_prompts::{RequestForm, read_authored};
use muster_audit::{Calibration, OwnPromptKey};
use muster_checkpoints::CheckpointManifest;
use muster_checkpoints::manifest::DOMAIN;
use muster_facilitator_core::list_page::PageQuery;
use muster_facilitator_core::{request_bodies, signature};
use muster_file_store::checkpoint_blocks::{BlockGrant, BlockQuery};
use muster_file_store::{FileId, UrlKey};
use muster_hardware_proof::Evidence;
use muster_hardware_proof::challenge_message::{MessageFrame, ProofSpec};
use muster_http::addresses::AddressRules;
use muster_http::event_stream::LineSplitter;
use muster_http::http1::client::{Dial, Http1Client};
use muster_http::range::{ContentRange, RequestedRange};
use muster_identity::Keypair;
use muster_job_data::job_url::Target as JobUrl;
use muster_job_metrics::progress_line;
use muster_openai::read_fields::FRAME_BYTES;
use muster_openai::text::TextDigest;
use muster_openai::usage_report::{FilteredPart, UsageFilter, with_usage};
use muster_openai::{BodyKind, FieldBounds, FieldReader, TokenBounds, TokenMeter};
use muster_process::Tasks;
use muster_protocol::job::MAX_METRICS;
use muster_protocol::{Digest, Hotkey, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::answer_proof::{AnswerProof, OwnTranscript, check_answer};
use muster_response_proof::comment::CommentScanner;
use muster_response_proof::{
    Attestation, AuditAppeal, BucketHeader, BucketNumber, Envelope, GatewayToken, ResponseProof, Sealable,
    SessionClose,
};
use muster_scoring::ScoringSnapshot;
use muster_scoring::capacity_statements::{CapacityEvidence, StatementContext};

use audit_statements::{AuditEndorsement, HeaderNote, SelfTestStatement};
use registry_json::{Challenge, RegistryManifest};

#[path = "../../crates/foundation/protocol/fuzz/targets.rs"]
mod protocol;

// Parsers that no other crate may call.
#[expect(
    dead_code,
    reason = "the parsers are here, and those who use their results are not"
)]
#[path = "../../crates/jobs/job-data/src/registry_json.rs"]
mod registry_json;

#[expect(dead_code, reason = "as above")]
#[path = "../../crates/jobs/job-data/src/zip_directory.rs"]
mod zip_directory;

// The client of users' programs brings much that no parser needs.
#[path = "../../crates/users/client/src/output_tree.rs"]
mod output_tree;

// Their crate links the chain's client, which takes minutes to compile.
#[expect(dead_code, reason = "as above")]
#[path = "../../validator/verdict-exchange/src/statements.rs"]
mod audit_statements;

/// A parser under test.
pub type Target = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Every parser, by name.
pub fn all() -> Vec<(&'static str, Target)> {
    let texts = protocol::TARGETS
        .iter()
        .map(|&(name, target)| (name, text(target)));
    let ours: Vec<(&'static str, Target)> = vec![
        ("event_lines", Box::new(event_lines)),
        ("range", text(range)),
        ("http1_response", Box::new(http1_response)),
        ("openai_tokens", Box::new(openai_tokens)),
        ("openai_text", Box::new(openai_text)),
        ("read_fields", Box::new(read_fields)),
        ("usage_request", Box::new(usage_request)),
        ("usage_filter", Box::new(usage_filter)),
        ("proof_comment", Box::new(proof_comment)),
        ("attestation", Box::new(envelope::<Attestation>)),
        ("response_proof", Box::new(envelope::<ResponseProof>)),
        ("session_close", Box::new(envelope::<SessionClose>)),
        ("gateway_token", Box::new(envelope::<GatewayToken>)),
        ("bucket_header", Box::new(envelope::<BucketHeader>)),
        ("audit_appeal", Box::new(envelope::<AuditAppeal>)),
        ("audit_endorsement", Box::new(envelope::<AuditEndorsement>)),
        ("audit_header_note", Box::new(envelope::<HeaderNote>)),
        ("audit_self_test", Box::new(envelope::<SelfTestStatement>)),
        ("audit_bundle", text(audit_bundle)),
        ("request_form", Box::new(request_form)),
        ("own_request", Box::new(own_request)),
        ("written_prompt", Box::new(written_prompt)),
        ("answer_proof", Box::new(answer_proof)),
        ("whitelist", Box::new(whitelist)),
        ("challenge", Box::new(challenge)),
        ("evidence", Box::new(evidence)),
        ("batch_file", Box::new(batch_file)),
        ("receipt_page", Box::new(receipt_page)),
        ("capacity_statement", text(capacity_statement)),
        ("scoring_snapshot", text(scoring_snapshot)),
        ("image_reference", text(image_reference)),
        ("image_archive", Box::new(image_archive)),
        ("job_url", text(job_url)),
        ("registry_json", Box::new(registry_answer)),
        ("zip_directory", Box::new(archive_directory)),
        ("output_tree", Box::new(laid_out_tree)),
        ("checkpoint_manifest", Box::new(checkpoint_manifest)),
        ("progress_line", Box::new(program_progress)),
        ("job_spec", text(job_spec)),
        ("invitation", text(invitation)),
        ("request_bodies", Box::new(bodies)),
        ("request_headers", text(request_headers)),
        ("file_id", text(file_id)),
        ("blocks_url", text(blocks_url)),
    ];
    texts.chain(ours).collect()
}

/// A parser of text; bytes that are no UTF-8 are not its business.
fn text(target: fn(&str)) -> Target {
    Box::new(move |data| {
        if let Ok(text) = std::str::from_utf8(data) {
            target(text);
        }
    })
}

/// The cuts of the network change nothing.
fn event_lines(data: &[u8]) {
    let lines = |pieces: &[&[u8]]| {
        let (mut splitter, mut lines) = (LineSplitter::new(64), Vec::new());
        for piece in pieces {
            splitter.push(piece, |line| lines.push(line.to_vec()));
        }
        splitter.finish(|line| lines.push(line.to_vec()));
        lines
    };
    let (head, tail) = data.split_at(data.len() / 2);
    assert_eq!(lines(&[data]), lines(&[head, tail]));
}

/// A range that is served lies inside the file.
fn range(input: &str) {
    const SIZE: u64 = 1_000;
    if let RequestedRange::Part { first, end } = RequestedRange::parse(Some(input), SIZE) {
        assert!(first < end && end <= SIZE);
    }
    let _ = ContentRange::parse(input);
}

/// A peer that answers a request with these bytes and closes.
struct OneAnswer(Bytes);

impl Dial for OneAnswer {
    type Error = Infallible;

    async fn dial(&self) -> Result<muster_http::http1::ByteStream, Infallible> {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let answer = self.0.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "the runtime of one input ends with it, and its tasks too"
        )]
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt as _;
            // The client may hang up first.
            let _ = theirs.write_all(&answer).await;
        });
        Ok(Box::new(ours))
    }
}

/// A response ends: as a whole, or with an error.
fn http1_response(data: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    else {
        return;
    };
    runtime.block_on(async {
        let client = Http1Client::new(Duration::from_secs(1), &Tasks::new());
        let mut request = http::Request::new(Full::new(Bytes::new()));
        request
            .headers_mut()
            .insert(http::header::HOST, HeaderValue::from_static("peer"));
        if let Ok(response) = client
            .send(request, &OneAnswer(Bytes::copy_from_slice(data)))
            .await
        {
            let _ = response.into_body().collect().await;
        }
    });
}

fn openai_tokens(data: &[u8]) {
    for kind in ["text/event-stream", "application/json"] {
        let mut meter = TokenMeter::new(Some(kind), TokenBounds::of(data));
        meter.update(data);
        let _ = meter.usage();
    }
}

/// The cuts of the network change no digest.
fn openai_text(data: &[u8]) {
    for kind in [BodyKind::Events, BodyKind::Json] {
        let (head, tail) = data.split_at(data.len() / 2);
        let digest = |pieces: &[&[u8]]| {
            let mut digest = TextDigest::new(kind)?;
            for piece in pieces {
                digest.update(piece);
            }
            digest.finish()
        };
        assert_eq!(digest(&[data]), digest(&[head, tail]));
    }
}

/// The reduced body of a response has the same fields as the whole one, wherever that was cut, and is hardly longer.
fn read_fields(data: &[u8]) {
    const BOUNDS: FieldBounds = FieldBounds {
        event: 1 << 20,
        kept: 1 << 20,
    };
    let read = |kind, is_chat, pieces: &[&[u8]]| {
        let mut reader = FieldReader::new(kind, is_chat, BOUNDS);
        for piece in pieces {
            reader.update(piece);
        }
        reader.finish()
    };
    let (head, tail) = data.split_at(data.len() / 2);
    for (kind, is_chat) in [
        (BodyKind::Events, false),
        (BodyKind::Events, true),
        (BodyKind::Json, false),
        (BodyKind::Json, true),
    ] {
        let fields = read(kind, is_chat, &[data]);
        assert_eq!(fields, read(kind, is_chat, &[head, tail]));
        if let Some(fields) = fields {
            let reduced = fields.to_body(kind, is_chat);
            assert!(reduced.len() <= data.len() + FRAME_BYTES);
            assert_eq!(read(kind, is_chat, &[&reduced]), Some(fields));
        }
    }
}

/// A request that was changed asks for the tokens, is changed no further, and is otherwise the same.
fn usage_request(data: &[u8]) {
    let Some(changed) = with_usage(data) else {
        return;
    };
    assert_eq!(with_usage(&changed), None);
    let read = |body| serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body);
    if let (Ok(mut before), Ok(mut after)) = (read(data), read(&changed)) {
        let asked = after.remove("stream_options");
        assert_eq!(asked.map(|asked| asked["include_usage"] == true), Some(true));
        before.remove("stream_options");
        assert_eq!(before, after);
    }
}

/// The cuts of the network change nothing of what passes and what is reported, and a report stands where a line begins.
fn usage_filter(data: &[u8]) {
    let filtered = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut body, mut reports) = (Vec::new(), Vec::new());
        let mut filter = UsageFilter::default();
        for piece in pieces {
            filter.push(piece, |part| match part {
                FilteredPart::Body(bytes) => body.extend_from_slice(bytes),
                FilteredPart::Usage(usage) => {
                    assert!(body.is_empty() || body.ends_with(b"\n"));
                    assert!(usage.starts_with('{') && !usage.contains('\n'));
                    reports.push((body.len(), usage.to_owned()));
                }
            });
        }
        body.extend(filter.finish());
        (body, reports)
    };
    let whole = filtered(&mut std::iter::once(data));
    assert!(whole.1.is_empty() == (whole.0 == data));
    let (head, tail) = data.split_at(data.len() / 2);
    assert_eq!(whole, filtered(&mut [head, tail].into_iter()));
    for length in [1, 7] {
        assert_eq!(whole, filtered(&mut data.chunks(length)));
    }
}

fn proof_comment(data: &[u8]) {
    let mut scanner = CommentScanner::default();
    for piece in data.chunks(7) {
        scanner.scan(piece, |_| ());
    }
    assert!(scanner.finish() <= data.len());
}

/// A statement that is read has these signed bytes again.
fn envelope<T: Sealable>(data: &[u8]) {
    if let Ok(envelope) = Envelope::<T>::from_bytes(data) {
        assert_eq!(envelope.to_bytes(), data);
        if let Ok(statement) = envelope.statement() {
            assert_eq!(statement.signed_bytes(), envelope.signed_bytes());
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Envelope::<T>::from_text(text);
    }
}

/// A calibration that is read is written as one that reads the same, and a bundle is replayed or refused.
fn audit_bundle(input: &str) {
    if let Ok(calibration) = Calibration::parse(input) {
        assert_eq!(Calibration::parse(&calibration.to_text()).ok(), Some(calibration));
    }
    let _ = muster_audit::replay(input);
}

/// The form of a request is kept as text that reads the same.
fn request_form(data: &[u8]) {
    if let Some(form) = RequestForm::read(data, false) {
        let text = serde_json::to_string(&form).expect("a form has a JSON text");
        let _ = form.is_measured();
        assert_eq!(serde_json::from_str::<RequestForm>(&text).ok(), Some(form));
    }
}

/// The seed of a position takes the place of a blank, and nothing else of the request changes.
fn own_request(data: &[u8]) {
    let header = BucketHeader {
        genesis: Digest::of(b"genesis"),
        netuid: 1,
        validator: ValidatorKey(Hotkey::from_bytes([1; 32])),
        bucket: BucketNumber(1),
        answers: 0,
        root: Digest::of(b""),
        previous: Digest::of(b""),
        shares: 0,
        share_root: Digest::of(b""),
        canaries: Digest::of(b""),
    };
    static KEY: OnceLock<OwnPromptKey> = OnceLock::new();
    let key = KEY
        .get_or_init(|| OwnPromptKey::prove(&Keypair::from_seed([1; 32]), &header, &Digest::of(b"block")).0);
    if let Some(filled) = key.fill_seed(data, &Digest::of(b"list"), 0) {
        let same = data
            .iter()
            .zip(&filled)
            .take_while(|(one, other)| one == other)
            .count();
        assert!(data.get(same..).is_some_and(|rest| rest.starts_with(b"null")));
        assert!(filled.ends_with(data.get(same + 4..).unwrap_or_default()));
    }
}

/// A prompt that a model has written is asked in one line of JSON, whatever it wrote.
fn written_prompt(data: &[u8]) {
    if let Some(prompt) = read_authored(data) {
        assert!(prompt.is_ascii() && prompt == prompt.trim());
    }
}

/// Statements that no key signed prove no answer, and the words of a stranger are only compared with them.
fn answer_proof(data: &[u8]) {
    let Ok(found) = serde_json::from_slice::<AnswerProof>(data) else {
        return;
    };
    let own = OwnTranscript {
        request: data,
        status: 200,
        content_type: Some("text/event-stream"),
        response: data,
    };
    for own in [None, Some(&own)] {
        let _ = check_answer(&found, &found.id, own, |_, _, _| true);
        let refused = check_answer(&found, &found.id, own, |_, _, _| false);
        assert!(refused.defect.is_some());
    }
}

fn whitelist(data: &[u8]) {
    let _ = serde_json::from_slice::<muster_session_pool::Service>(data);
}

/// A specification that is read is written with the same bytes.
fn challenge(data: &[u8]) {
    let _ = MessageFrame::parse(data);
    if let Ok(spec) = ProofSpec::from_bytes(data) {
        assert_eq!(spec.to_bytes(), data);
    }
}

/// Evidence that is read gives a verdict.
fn evidence(data: &[u8]) {
    if let Ok(evidence) = Evidence::from_bytes(data) {
        assert_eq!(evidence.to_bytes(), data);
    }
}

fn batch_file(data: &[u8]) {
    if let Ok(file) = serde_json::from_slice(data) {
        let _ = muster_grading::replay(
            &file,
            muster_hardware_proof::InstructionSet::best(),
            &|_, _, _| true,
        );
    }
}

fn receipt_page(data: &[u8]) {
    let cut = muster_receipts::cut_lines(data);
    let miner = MinerKey(Hotkey::from_bytes([7; 32]));
    let source = muster_receipts::PageSource::Miner(miner);
    let rules = muster_receipts::ReadingRules {
        source,
        page: 6_000_000,
        permitted: &[ValidatorKey(Hotkey::from_bytes([8; 32]))].into(),
        before_page: Duration::from_secs(3_600),
    };
    let _ = muster_receipts::read_lines(&cut.lines, &rules, Timestamp::from_secs(1_800_000_000));
}

/// A statement needs its signature, and rows follow from whatever evidence can be read.
fn capacity_statement(input: &str) {
    let context = StatementContext {
        genesis: "0xab".to_owned(),
        netuid: 1,
        validator: ValidatorKey(Hotkey::from_bytes([7; 32])),
        cycle: 1,
    };
    assert!(muster_scoring::capacity_statements::check_statement(input, &context).is_err());
    if let Ok(evidence) = serde_json::from_str::<CapacityEvidence>(input) {
        let most = 2 * evidence.miners.len();
        assert!(evidence.rows().len() <= most);
    }
}

/// Any snapshot that can be read can be scored, and its text is read back.
fn scoring_snapshot(input: &str) {
    if let Ok(snapshot) = ScoringSnapshot::parse(input) {
        let _ = muster_scoring::score_cycle(&snapshot);
        assert_eq!(ScoringSnapshot::parse(&snapshot.to_text()).ok(), Some(snapshot));
    }
}

/// A name that is read is written as a name that reads the same.
fn image_reference(input: &str) {
    if let Ok(reference) = input.parse::<muster_protocol::image_reference::ImageReference>() {
        assert_eq!(reference.to_string().parse().as_ref(), Ok(&reference));
    }
}

fn image_archive(data: &[u8]) {
    if let Ok(file) = tempfile::NamedTempFile::new()
        && std::fs::write(file.path(), data).is_ok()
    {
        let _ = muster_containers::image_archive::list_images(file.path());
    }
}

fn job_url(input: &str) {
    let _ = JobUrl::parse(input, &AddressRules::default());
}

/// A challenge leads somewhere, and a token fits into a header.
fn registry_answer(data: &[u8]) {
    let _ = RegistryManifest::parse(data);
    if let Some(token) = registry_json::token(data) {
        assert!(HeaderValue::try_from(format!("Bearer {token}")).is_ok());
    }
    match Challenge::parse(&String::from_utf8_lossy(data)) {
        Some(Challenge::Bearer { realm, .. }) => assert!(!realm.is_empty()),
        Some(Challenge::Basic) | None => {}
    }
}

/// An archive that is opened has no more entries than fit into its bytes.
fn archive_directory(data: &[u8]) {
    const ENTRY: usize = 46;
    if let Ok(archive) = zip_directory::open_archive(std::io::Cursor::new(data), 1_000) {
        assert!(archive.len().saturating_mul(ENTRY) <= data.len());
    }
}

/// An archive of outputs is laid out inside its own folder, or not at all.
fn laid_out_tree(data: &[u8]) {
    if let Ok(dir) = tempfile::tempdir() {
        let _ = output_tree::unpack_tree(data, &dir.path().join("tree"));
        let beside = std::fs::read_dir(dir.path()).map_or(0, Iterator::count);
        assert!(beside <= 1);
    }
}

/// A manifest that is read has these bytes again, and the lengths of its blocks are those of its files. Whole inputs
/// hardly ever begin as manifests do, so each is tried behind that beginning, too.
fn checkpoint_manifest(data: &[u8]) {
    for bytes in [data, &[DOMAIN.as_slice(), data].concat()] {
        if let Ok(manifest) = CheckpointManifest::read(bytes) {
            assert_eq!(manifest.to_bytes(), bytes);
            let again = CheckpointManifest::new(manifest.entries().to_vec());
            assert_eq!(again.as_ref(), Ok(&manifest));
            let blocks = manifest.blocks().map(|(_, length)| u128::from(length));
            assert!(blocks.sum::<u128>() >= u128::from(manifest.bytes()));
            assert!(!manifest.name().is_empty());
        }
    }
}

fn program_progress(data: &[u8]) {
    let (line, _) = progress_line::parse(data);
    assert!(line.metrics.len() <= MAX_METRICS);
    assert!(line.done_permille.is_none_or(|done| done <= 1_000));
}

/// A file gives options, or at least one fault.
fn job_spec(input: &str) {
    match muster_job_spec::read(input, &[], std::path::Path::new("/jobs")) {
        Ok(options) => assert!(!options.is_empty()),
        Err(faults) => assert!(!faults.is_empty()),
    }
}

fn invitation(input: &str) {
    let _ = input.parse::<muster_enrollment::Invitation>();
}

fn bodies(data: &[u8]) {
    let _ = request_bodies::parse_job(data);
    let _ = request_bodies::parse_cheat_report(data);
    let _ = request_bodies::parse_answer_report(data);
    let _ = request_bodies::parse_feedback(data);
    let _ = request_bodies::parse_key_request(data);
    let _ = request_bodies::parse_webhook(data);
}

/// One header or query field on each line.
fn request_headers(input: &str) {
    let (mut headers, mut query) = (HeaderMap::new(), Vec::new());
    for (name, value) in input.lines().filter_map(|line| line.split_once(':')) {
        query.push((name.to_owned(), value.to_owned()));
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.trim().parse()) {
            headers.insert(name, value);
        }
    }
    let _ = signature::read_headers(&headers);
    let _ = PageQuery::parse(&query);
}

/// An id has one text.
fn file_id(input: &str) {
    if let Ok(id) = input.parse::<FileId>() {
        assert_eq!(id.to_string(), input);
    }
}

/// A URL of blocks that is narrowed to an attempt holds the signature of its job no more, and no text is a permission.
fn blocks_url(input: &str) {
    if let Some(narrowed) = muster_checkpoints::attempt_url(input, 7) {
        let (_, signature) = input.rsplit_once("&Signature=").unwrap_or_default();
        assert!(!signature.is_empty() && !narrowed.ends_with(signature));
    }
    let mut parts = input.splitn(4, '&').map(str::to_owned);
    let query = BlockQuery {
        expires: parts.next().unwrap_or_default(),
        signature: parts.next().unwrap_or_default(),
        reader: parts.next(),
        attempt: parts.next(),
    };
    if let Ok(job) = "11111111-2222-4333-8444-555555555555".parse::<JobId>() {
        let key = UrlKey::new(*b"a secret of this target");
        assert_eq!(BlockGrant::read(&key, job, &query, Timestamp::from_secs(0)), None);
    }
}

//! Answers that the check must find proven, and answers that it must refuse for one reason each.

use muster_identity::Keypair;
use muster_protocol::{AttemptId, Digest, JobId, MinerKey, ValidatorKey};
use muster_response_proof::{
    EngineFacts, HashScheme, Price, RequestNonce, SessionId, StreamEnd, TokenFacts, seal,
};

use super::exchange::{
    EVENTS, Exchange, JSON, MINER, PageInput, SESSION, STRANGER, VALIDATOR, at, key, uuid,
};

/// One input of the module.
pub(super) struct GoldenProof {
    pub(super) name: String,
    pub(super) input: Vec<u8>,
    /// Words of the defect that must be found; `None` if the answer is proven.
    pub(super) defect: Option<&'static str>,
}

const ASKED: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"one two"}]}"#;
const ANSWERED: &[u8] =
    b"data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"}}]}\n\ndata: [DONE]\n\n";

/// Bodies of requests: in every form of text that OpenAI's clients send, and without text.
const REQUESTS: [&[u8]; 12] = [
    ASKED,
    br#"{"messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9"},{"type":"image_url","image_url":{"url":"u"}}]}]}"#,
    br#"{"messages":[{"content":null},{"role":"tool","content":{"a":1.50}},{"role":"user"}]}"#,
    br#"{"messages":[]}"#,
    br#"{"prompt":"one"}"#,
    br#"{"prompt":["one","two"]}"#,
    br#"{"prompt":[[1,2],[3]]}"#,
    br#"{"prompt":{"not":"a prompt"}}"#,
    br#"{"input":"one","prompt":null}"#,
    br#"{"messages":7}"#,
    b"no JSON",
    b"",
];

/// Bodies of event streams: every kind of text, choices out of order, line ends, comments, and events that are none.
const STREAMS: [&[u8]; 10] = [
    ANSWERED,
    b"data: {\"choices\":[{\"index\":1,\"delta\":{\"reasoning_content\":\"b\",\"refusal\":\"c\"}},{\"index\":0,\"text\":\"a\"}]}\r\n\r\ndata: [DONE]",
    b"data:{\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{}]}}]}\rdata:{\"choices\":[{\"index\":0,\"message\":{\"content\":\"d\"}}]}\r",
    b": a comment\nevent: e\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\ud83d\\ude00\"}}]}\n\n",
    b"data: {\"choices\":[{\"index\":-1,\"delta\":{\"content\":\"x\"}}]}\n\ndata: {broken\n\n",
    b"data: {\"choices\":[{\"text\":\"a\",\"delta\":{\"content\":\"b\"},\"message\":{\"content\":\"c\"}}]}\n\n",
    b"data: {\"choices\":[]}\n\n",
    b": mus",
    b"data: unfinished",
    b"",
];

const DOCUMENTS: [&[u8]; 4] = [
    br#"{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"one"}},{"index":1,"text":"two"}]}"#,
    br#"{"error":{"message":"no"}}"#,
    b": muster-proof is no comment in a document\n{}",
    b"",
];

/// Every golden proof.
pub(super) fn golden_proofs() -> Vec<GoldenProof> {
    let mut all = proven();
    all.extend(STATEMENTS.map(|(name, change, defect)| {
        let mut exchange = answer();
        change(&mut exchange);
        golden(name, &exchange.shown(), Some(defect))
    }));
    all.extend(INPUTS.map(|(name, change, defect)| {
        let mut shown = answer().shown();
        change(&mut shown);
        golden(name, &shown, Some(defect))
    }));
    all.extend(texts());
    all.extend(unreadable());
    all
}

/// A short answer whose whole bytes are hashed.
pub(super) fn answer() -> Exchange {
    Exchange::new(HashScheme::RawHttp, Some(EVENTS), ASKED, ANSWERED)
}

fn golden(name: &str, shown: &PageInput, defect: Option<&'static str>) -> GoldenProof {
    GoldenProof {
        name: name.to_owned(),
        input: shown.bytes(),
        defect,
    }
}

/// Answers that hold: every body under every scheme, and every field of the statements.
fn proven() -> Vec<GoldenProof> {
    let mut all = Vec::new();
    for scheme in HashScheme::ALL {
        let mut add = |content_type, request: &[u8], body: &[u8]| {
            let exchange = Exchange::new(scheme, content_type, request, body);
            let name = format!(
                "{}: {:?} to {:?}",
                scheme.name(),
                String::from_utf8_lossy(body),
                String::from_utf8_lossy(request)
            );
            all.push(golden(&name, &exchange.shown(), None));
        };
        for request in REQUESTS {
            add(Some(EVENTS), request, ANSWERED);
        }
        for body in STREAMS {
            add(Some(EVENTS), ASKED, body);
        }
        for body in DOCUMENTS {
            add(Some(JSON), ASKED, body);
            add(Some("text/plain"), ASKED, body);
            add(None, ASKED, body);
        }
        add(Some(EVENTS), ASKED, &b"data: a long answer\n\n".repeat(1_000));
    }
    all.extend(StreamEnd::ALL.map(|end| {
        let mut exchange = answer();
        exchange.proof.end = end;
        golden(end.name(), &exchange.shown(), None)
    }));
    all.push(golden("every field", &with_every_field().shown(), None));
    let mut other_type = answer().shown();
    other_type.content_type = Some("Text/Event-Stream; charset=utf-8".to_owned());
    all.push(golden("another parameter of an event stream", &other_type, None));
    let mut earlier = answer().shown();
    earlier.proof.id = earlier.proof.nonce.take().unwrap();
    earlier.id.clone_from(&earlier.proof.id);
    all.push(golden(
        "an earlier release's record, whose id is the nonce",
        &earlier,
        None,
    ));
    let mut text_only = Exchange::new(HashScheme::Text, Some(JSON), ASKED, DOCUMENTS[0]).shown();
    text_only.response = String::from_utf8_lossy(DOCUMENTS[0])
        .replace("\"id\":\"a\"", "\"id\":\"b\"")
        .into();
    all.push(golden("another id beside the same text", &text_only, None));
    all
}

fn with_every_field() -> Exchange {
    let mut exchange = answer();
    exchange.attestation.model = Some(Digest::of(b"weights"));
    exchange.attestation.price = Price {
        input: 1,
        output: u64::MAX,
    };
    exchange.proof.attestation = exchange.attested().digest();
    exchange.proof.client = Some(Digest::of(b"client"));
    exchange.proof.client_nonce = Some(RequestNonce::from_bytes([8; 32]));
    exchange.proof.first_byte = None;
    exchange.proof.sequence = 0;
    exchange.proof.tokens = Some(TokenFacts {
        prompt: Digest::of(b"prompt"),
        prompt_count: 1,
        output: Digest::of(b"output"),
        output_count: u32::MAX,
    });
    exchange.proof.engine = Some(EngineFacts {
        model: Digest::of(b"model"),
        build: Digest::of(b"build"),
        sampling: Digest::of(b"sampling"),
    });
    exchange
}

type StatementChange = (&'static str, fn(&mut Exchange), &'static str);

/// Statements that are signed as they should be, and say something else.
const STATEMENTS: [StatementChange; 16] = [
    (
        "a stranger signs the proof",
        |it| it.signers[1] = STRANGER,
        "the session key did not sign",
    ),
    (
        "a stranger signs the attestation",
        |it| it.signers[0] = STRANGER,
        "did not sign it",
    ),
    (
        "another session",
        |it| it.proof.session = SessionId(uuid(8)),
        "of another session",
    ),
    (
        "another attestation",
        |it| it.proof.attestation = Digest::of(b"x"),
        "another attestation",
    ),
    (
        "another job",
        |it| it.proof.job = JobId::from_uuid(uuid(8)),
        "of another job",
    ),
    (
        "another attempt",
        |it| it.proof.attempt = AttemptId::from_uuid(uuid(8)),
        "of another job",
    ),
    (
        "another audience",
        |it| it.proof.audience = ValidatorKey(key(STRANGER)),
        "for another validator",
    ),
    (
        "another scheme",
        |it| it.proof.scheme = HashScheme::Text,
        "attested for another scheme",
    ),
    (
        "before the attested time",
        |it| {
            it.attestation.not_before = at(101);
            it.proof.attestation = it.attested().digest();
        },
        "outside the time",
    ),
    (
        "after the attested time",
        |it| {
            it.attestation.not_after = at(102);
            it.proof.attestation = it.attested().digest();
        },
        "outside the time",
    ),
    (
        "a first byte before the request",
        |it| it.proof.first_byte = Some(at(99)),
        "run backwards",
    ),
    (
        "a first byte after the end",
        |it| it.proof.first_byte = Some(at(103)),
        "run backwards",
    ),
    (
        "an end before the request",
        |it| it.proof.to = at(99),
        "run backwards",
    ),
    (
        "another request's digest",
        |it| it.proof.input = Digest::of(b"x"),
        "of another request: the body's digest",
    ),
    (
        "another response's digest",
        |it| it.proof.output = Digest::of(b"x"),
        "of another response: the body's digest",
    ),
    (
        "no nonce of the gateway",
        |it| it.proof.gateway_nonce = None,
        "another answer",
    ),
];

type InputChange = (&'static str, fn(&mut PageInput), &'static str);

/// Inputs that were changed after the statements were signed.
const INPUTS: [InputChange; 28] = [
    (
        "another id",
        |it| it.proof.id = "other".to_owned(),
        "another answer",
    ),
    (
        "the page's other id",
        |it| it.id = "other".to_owned(),
        "another answer",
    ),
    (
        "another nonce",
        |it| it.proof.nonce = Some("00".repeat(32)),
        "another answer",
    ),
    (
        "another miner",
        |it| it.proof.miner = MinerKey(key(STRANGER)),
        "another miner",
    ),
    (
        "another validator",
        |it| it.proof.validator = ValidatorKey(key(STRANGER)),
        "another validator",
    ),
    (
        "no proof",
        |it| it.proof.proof = None,
        "without a proof; its gateway says: proven",
    ),
    (
        "no base64",
        |it| it.proof.proof = Some("?".to_owned()),
        "not a signed statement",
    ),
    (
        "no attestation",
        |it| it.proof.attestation = String::new(),
        "not a signed statement",
    ),
    (
        "too short for a signature",
        |it| it.proof.proof = Some("AAAA".to_owned()),
        "not a signed statement",
    ),
    (
        "too long",
        |it| it.proof.attestation = "A".repeat(64 * 1024 + 4),
        "not a signed statement",
    ),
    (
        "a proof as attestation",
        |it| it.proof.attestation = it.proof.proof.clone().unwrap(),
        "do not begin with",
    ),
    (
        "an attestation as proof",
        |it| it.proof.proof = Some(it.proof.attestation.clone()),
        "do not begin with",
    ),
    (
        "a forged attestation",
        |it| {
            let mut forged = answer();
            forged.attestation.model = Some(Digest::of(b"better"));
            let text = seal(&forged.attestation, &Keypair::from_seed([STRANGER; 32]));
            it.proof.attestation = text.to_text();
        },
        "did not sign it",
    ),
    (
        "the miner's own attestation of another session",
        |it| {
            let mut other = answer();
            other.attestation.session_key = key(STRANGER);
            it.proof.attestation = other.attested().to_text();
        },
        "the session key did not sign",
    ),
    (
        "a later version",
        |it| it.sign_other_bytes(|bytes| bytes[22] = b'2'),
        "do not begin with",
    ),
    (
        "a byte more",
        |it| it.sign_other_bytes(|bytes| bytes.push(0)),
        "1 bytes follow",
    ),
    (
        "a byte less",
        |it| it.sign_other_bytes(|bytes| bytes.truncate(bytes.len() - 1)),
        "end within the stream's end",
    ),
    (
        "an unknown end",
        |it| it.sign_other_bytes(|bytes| *bytes.last_mut().unwrap() = 6),
        "the stream's end holds",
    ),
    (
        "an unknown flag",
        |it| it.sign_other_bytes(|bytes| bytes[CLIENT_FLAG] = 2),
        "the client holds",
    ),
    (
        "nothing but the tag",
        |it| it.sign_other_bytes(|bytes| bytes.truncate(23)),
        "end within the session",
    ),
    (
        "another request",
        |it| it.request.push(b' '),
        "of another request: the body's digest",
    ),
    (
        "another status",
        |it| it.status = 201,
        "of another response: the status",
    ),
    (
        "another content type",
        |it| it.content_type = Some(JSON.to_owned()),
        "of another response: the content type",
    ),
    (
        "no content type",
        |it| it.content_type = None,
        "of another response: the content type",
    ),
    (
        "a shorter response",
        |it| it.response.truncate(40),
        "of another response: the length",
    ),
    (
        "a longer response",
        |it| it.response.extend_from_slice(b"data: more\n\n"),
        "of another response: the length",
    ),
    (
        "a changed response",
        |it| it.response[40] ^= 1,
        "of another response: the body's digest",
    ),
    (
        "a comment that is none of Muster's",
        |it| drop(it.response.splice(0..0, *b": other\n")),
        "the length",
    ),
];

/// The place of the flag of the client's pseudonym in the signed bytes: behind the tag, the session, the number, the
/// digest, the job, the attempt and the audience.
const CLIENT_FLAG: usize = 23 + 16 + 8 + 32 + 16 + 16 + 32;

/// Answers whose text was changed, or only the JSON around the text.
fn texts() -> Vec<GoldenProof> {
    let changed = |(name, request, from, to): (&str, &[u8], &str, &str)| {
        let mut shown = Exchange::new(HashScheme::Text, Some(JSON), request, DOCUMENTS[0]).shown();
        shown.response = String::from_utf8_lossy(&shown.response).replace(from, to).into();
        golden(name, &shown, Some("of another response"))
    };
    let mut all: Vec<_> = [
        ("another word", ASKED, "one", "two"),
        ("another order of choices", ASKED, "\"index\":0", "\"index\":2"),
        ("no text", ASKED, "choices", "chances"),
        ("a text of another length", ASKED, "one", "three"),
    ]
    .map(changed)
    .into();
    for (name, asked) in [
        (
            "another role",
            &br#"{"messages":[{"role":"system","content":"one two"}]}"#[..],
        ),
        (
            "another question",
            br#"{"messages":[{"role":"user","content":"one three"}]}"#,
        ),
        ("a question without text", b"{}"),
    ] {
        let mut shown = Exchange::new(HashScheme::Text, Some(EVENTS), ASKED, ANSWERED).shown();
        shown.request = asked.to_vec();
        all.push(golden(name, &shown, Some("of another request")));
    }
    all
}

/// Inputs that are none.
fn unreadable() -> Vec<GoldenProof> {
    let whole = answer().shown().bytes();
    let with_head = |from: &str, to: &str| {
        let (length, rest) = whole.split_at(4);
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        let (head, bodies) = rest.split_at(length);
        let head = String::from_utf8_lossy(head).replace(from, to);
        let length = u32::try_from(head.len()).unwrap().to_le_bytes();
        [length.as_slice(), head.as_bytes(), bodies].concat()
    };
    let address = |seed| key(seed).to_string();
    let mistyped = address(MINER).replace(|letter: char| letter.is_ascii_lowercase(), "z");
    [
        ("nothing", Vec::new()),
        ("no length", vec![1, 0, 0]),
        ("a length beyond the end", b"\xff\xff\xff\xff{}".to_vec()),
        ("an empty head", b"\x02\0\0\0{}".to_vec()),
        ("half a head", whole[..whole.len() / 4].to_vec()),
        (
            "a request beyond the end",
            with_head("\"request_bytes\":", "\"request_bytes\":9"),
        ),
        (
            "a status that is none",
            with_head("\"status\":200", "\"status\":70000"),
        ),
        ("a mistyped address", with_head(&address(MINER), &mistyped)),
        (
            "a key of another form",
            with_head(&address(VALIDATOR), &hex::encode(key(SESSION).as_bytes())),
        ),
        (
            "a time that is none",
            with_head("1970-01-01T00:01:43Z", "1969-01-01T00:01:43Z"),
        ),
        ("a price that is negative", with_head("\"cost\":5", "\"cost\":-5")),
    ]
    .map(|(name, input)| GoldenProof {
        name: name.to_owned(),
        input,
        defect: Some("an input that it cannot read"),
    })
    .into()
}

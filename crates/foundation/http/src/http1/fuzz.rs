//! The parser over a fixed number of seeded inputs: responses of HTTP/1.1, mutated. The same inputs in every run.

use bytes::BytesMut;
use http::Method;

use super::framing::Framing;
use super::head::HeadReader;
use super::header_lines::{MAX_HEAD, MalformedResponse};

/// Inputs of one run; `MUSTER_FUZZ_INPUTS` asks for more.
const INPUTS: usize = 10_000;

/// Responses of every kind of framing, some of them broken.
const SEEDS: &[&str] = &[
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\na: 1\r\nb: 2\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nall of it",
    "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    "\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n\u{1}\u{2}",
    "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\nconnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
];

/// Pieces that readers of HTTP trip over.
const TOKENS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "content-length: ",
    "content-length: 18446744073709551616\r\n",
    "content-length: -1\r\n",
    "transfer-encoding: chunked\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "connection: close\r\n",
    "fffffffffffffff\r\n",
    "10000000000000000\r\n",
    "0\r\n",
    "0x5\r\n",
    ";",
    "\0",
    "é",
    " ",
    ": ",
];

/// xorshift64*: a seed is a whole run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a [u8] {
        from[self.below(from.len())].as_bytes()
    }
}

fn mutate(random: &mut Random) -> Vec<u8> {
    let mut bytes = random.pick(SEEDS).to_vec();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, random.pick(TOKENS).iter().copied())),
            3 => {
                let other = random.pick(SEEDS);
                let from = random.below(other.len() + 1);
                drop(bytes.splice(at.., other[from..].iter().copied()));
            }
            4 => {
                let end = at + random.below(bytes.len() - at + 1);
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            _ => {
                let end = at + random.below(bytes.len() - at + 1);
                drop(bytes.drain(at..end));
            }
        }
    }
    bytes
}

/// A response as it was read, if the connection is closed after it.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    status: u16,
    headers: http::HeaderMap,
    keep_alive: bool,
    body: Vec<u8>,
    trailers: Option<http::HeaderMap>,
    is_whole: bool,
    /// Bytes after the response.
    rest: usize,
}

/// Reads a response in pieces of these lengths; the last length repeats. `None` if its head never ends.
fn read(input: &[u8], lengths: &[usize]) -> Result<Option<Reading>, MalformedResponse> {
    let mut heads = HeadReader::default();
    let mut found: Option<Reading> = None;
    let mut framing = Framing::Over;
    let mut rest = input;
    let mut lengths = lengths.iter().copied();
    let mut length = 1;
    while !rest.is_empty() {
        length = lengths.next().unwrap_or(length);
        let (piece, more) = rest.split_at(length.min(rest.len()));
        rest = more;
        let mut body = BytesMut::new();
        let reading = match &mut found {
            Some(reading) => {
                let own = framing.read(piece, &mut body)?;
                reading.rest += piece.len() - own;
                reading
            }
            None => {
                let Some((head, behind)) = heads.read(piece, &Method::GET)? else {
                    continue;
                };
                framing = head.body;
                let own = framing.read(&behind, &mut body)?;
                assert!(own == behind.len() || framing.is_over());
                found.insert(Reading {
                    status: head.status.as_u16(),
                    headers: head.headers,
                    keep_alive: head.keep_alive,
                    body: Vec::new(),
                    trailers: None,
                    is_whole: false,
                    rest: behind.len() - own,
                })
            }
        };
        reading.body.extend_from_slice(&body);
    }
    Ok(found.map(|reading| Reading {
        is_whole: framing.end_by_close(),
        trailers: framing.take_trailers(),
        ..reading
    }))
}

#[test]
fn no_input_breaks_the_parser_and_cuts_change_nothing() {
    let inputs = std::env::var("MUSTER_FUZZ_INPUTS")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(INPUTS);
    let mut random = Random(0x6d75_7374_6572_0002);
    for round in 0..inputs {
        let input = mutate(&mut random);
        assert!(input.len() < MAX_HEAD, "inputs stay below every bound");
        let lengths: Vec<usize> = (0..random.below(8)).map(|_| 1 + random.below(20)).collect();
        let whole = read(&input, &[input.len().max(1)]);
        let cut = read(&input, &lengths);
        match (&whole, &cut) {
            // A broken head is refused as early as its end or its first bytes allow, so a cut may end before that.
            (Ok(whole), Ok(cut)) => assert_eq!(whole, cut, "round {round}: {input:?}"),
            (Err(_), Err(_)) => {}
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => panic!("round {round}: {whole:?} and {cut:?} of {input:?}"),
        }
    }
}

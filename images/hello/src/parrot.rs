//! `hello parrot SOCKET [PACE]`: a stand-in for a language model, behind OpenAI's interface on a Unix socket. It
//! repeats the words of the last message, one every PACE milliseconds, until it has sent `max_tokens` words. It needs
//! no weights.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

/// The name of the model.
pub const MODEL: &str = "parrot";
const MAX_HEAD: u64 = 64 * 1024;
const MAX_BODY: usize = 16 * 1024 * 1024;
const MAX_WORDS: u64 = 4_096;
const WORDS: u64 = 16;

/// Serves until the process ends.
///
/// # Errors
/// The socket cannot be created.
pub fn serve(socket: &Path, pace: Duration) -> io::Result<ExitCode> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(socket)?;
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            // The client has closed the connection.
            let _ = serve_connection(&stream, pace);
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// One HTTP request.
struct Request {
    method: String,
    path: String,
    body: Vec<u8>,
}

/// A completion, as the request asks for it.
struct CompletionRequest {
    words: Vec<String>,
    prompt: u64,
    stream: bool,
    usage: bool,
    logprobs: bool,
    chat: bool,
}

fn serve_connection(stream: &UnixStream, pace: Duration) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader)? {
        route_request(&request, &mut writer, pace)?;
    }
    Ok(())
}

fn read_request(reader: &mut BufReader<&UnixStream>) -> io::Result<Option<Request>> {
    let mut head = reader.by_ref().take(MAX_HEAD);
    let mut line = String::new();
    if head.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut parts = line.split_whitespace().map(str::to_owned);
    let (method, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut length = 0;
    loop {
        let mut header = String::new();
        head.read_line(&mut header)?;
        let header = header.trim();
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(usize::MAX);
        }
    }
    if length > MAX_BODY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request { method, path, body }))
}

fn route_request(request: &Request, writer: &mut impl Write, pace: Duration) -> io::Result<()> {
    let about = json!({ "id": MODEL, "object": "model", "created": 0, "owned_by": "muster" });
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/health") => write_json(writer, 200, &json!({ "status": "ok" })),
        ("GET", "/v1/models") => write_json(writer, 200, &json!({ "object": "list", "data": [about] })),
        ("POST", "/v1/chat/completions") => answer_completion(request, true, writer, pace),
        ("POST", "/v1/completions") => answer_completion(request, false, writer, pace),
        ("POST", "/v1/embeddings") => {
            let length = u32::try_from(request.body.len()).unwrap_or(u32::MAX);
            let vector =
                json!([{ "object": "embedding", "index": 0, "embedding": [f64::from(length), 0.5] }]);
            let usage = json!({ "prompt_tokens": 1, "total_tokens": 1 });
            let answer = json!({ "object": "list", "model": MODEL, "data": vector, "usage": usage });
            write_json(writer, 200, &answer)
        }
        _other => write_json(writer, 404, &error_body("this path does not exist")),
    }
}

fn error_body(message: &str) -> Value {
    json!({ "error": { "message": message, "type": "invalid_request_error", "param": null, "code": null } })
}

fn answer_completion(
    request: &Request,
    chat: bool,
    writer: &mut impl Write,
    pace: Duration,
) -> io::Result<()> {
    let Some(wish) = parse_completion(&request.body, chat) else {
        return write_json(
            writer,
            400,
            &error_body("a completion needs messages or a prompt"),
        );
    };
    if wish.stream {
        return stream_completion(&wish, writer, pace);
    }
    let text = wish.words.concat();
    let mut choice =
        json!({ "index": 0, "finish_reason": "length", "logprobs": wish.logprobs(0, wish.words.len()) });
    let (key, said) = if chat {
        ("message", json!({ "role": "assistant", "content": text }))
    } else {
        ("text", json!(text))
    };
    if let Some(choice) = choice.as_object_mut() {
        choice.insert(key.to_owned(), said);
    }
    let mut answer = wish.envelope(json!([choice]));
    if let Some(answer) = answer.as_object_mut() {
        answer.insert("usage".to_owned(), wish.usage());
    }
    write_json(writer, 200, &answer)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own, which sleeps for the requested pace"
)]
fn stream_completion(wish: &CompletionRequest, writer: &mut impl Write, pace: Duration) -> io::Result<()> {
    write!(
        writer,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
    )?;
    for (place, word) in wish.words.iter().enumerate() {
        std::thread::sleep(pace);
        let mut choice = json!({ "index": 0, "finish_reason": null, "logprobs": wish.logprobs(place, 1) });
        let (key, said) = match (wish.chat, place) {
            (true, 0) => ("delta", json!({ "role": "assistant", "content": word })),
            (true, _) => ("delta", json!({ "content": word })),
            (false, _) => ("text", json!(word)),
        };
        if let Some(choice) = choice.as_object_mut() {
            choice.insert(key.to_owned(), said);
        }
        write_chunk(writer, &format!("data: {}\n\n", wish.envelope(json!([choice]))))?;
    }
    let mut last = json!({ "index": 0, "finish_reason": "length" });
    if let (true, Some(last)) = (wish.chat, last.as_object_mut()) {
        last.insert("delta".to_owned(), json!({}));
    } else if let Some(last) = last.as_object_mut() {
        last.insert("text".to_owned(), json!(""));
    }
    write_chunk(writer, &format!("data: {}\n\n", wish.envelope(json!([last]))))?;
    if wish.usage {
        let mut event = wish.envelope(json!([]));
        if let Some(event) = event.as_object_mut() {
            event.insert("usage".to_owned(), wish.usage());
        }
        write_chunk(writer, &format!("data: {event}\n\n"))?;
    }
    write_chunk(writer, "data: [DONE]\n\n")?;
    write!(writer, "0\r\n\r\n")?;
    writer.flush()
}

fn write_chunk(writer: &mut impl Write, text: &str) -> io::Result<()> {
    write_flushed(writer, &format!("{:x}\r\n{text}\r\n", text.len()))
}

fn write_json(writer: &mut impl Write, status: u16, body: &Value) -> io::Result<()> {
    let (body, words) = (body.to_string(), if status == 200 { "OK" } else { "Refused" });
    let length = body.len();
    write_flushed(
        writer,
        &format!(
            "HTTP/1.1 {status} {words}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ),
    )
}

/// Writes the text and flushes, so that every word is sent at its time.
fn write_flushed(writer: &mut impl Write, text: &str) -> io::Result<()> {
    writer.write_all(text.as_bytes())?;
    writer.flush()
}

fn parse_completion(body: &[u8], chat: bool) -> Option<CompletionRequest> {
    let asked: Value = serde_json::from_slice(body).ok()?;
    let prompt = if chat {
        let last = asked.get("messages")?.as_array()?.last()?;
        last.get("content")?.as_str()?
    } else {
        asked.get("prompt")?.as_str()?
    };
    let given: Vec<&str> = prompt.split_whitespace().collect();
    let most = asked
        .get("max_tokens")
        .and_then(Value::as_u64)
        .unwrap_or(WORDS)
        .min(MAX_WORDS);
    let said = given.iter().cycle().take(usize::try_from(most).unwrap_or(0));
    let yes = |key: &str| asked.pointer(key).and_then(Value::as_bool).unwrap_or(false);
    Some(CompletionRequest {
        words: said.map(|word| format!("{word} ")).collect(),
        prompt: u64::try_from(given.len()).unwrap_or(u64::MAX),
        stream: yes("/stream"),
        usage: yes("/stream_options/include_usage"),
        logprobs: yes("/logprobs"),
        chat,
    })
}

impl CompletionRequest {
    fn envelope(&self, choices: Value) -> Value {
        let object = match (self.chat, self.stream) {
            (true, true) => "chat.completion.chunk",
            (true, false) => "chat.completion",
            (false, _) => "text_completion",
        };
        json!({ "id": "parrot-0", "object": object, "created": 0, "model": MODEL, "choices": choices })
    }

    fn usage(&self) -> Value {
        let said = u64::try_from(self.words.len()).unwrap_or(u64::MAX);
        json!({
            "prompt_tokens": self.prompt, "completion_tokens": said, "total_tokens": self.prompt.saturating_add(said),
        })
    }

    /// Log-probabilities of 0 for these words.
    fn logprobs(&self, from: usize, count: usize) -> Value {
        if !self.logprobs || !self.chat {
            return Value::Null;
        }
        let sure = |word: &String| {
            let one = json!({ "token": word, "logprob": 0.0, "bytes": word.as_bytes() });
            let mut with_others = one.clone();
            if let Some(with_others) = with_others.as_object_mut() {
                with_others.insert("top_logprobs".to_owned(), json!([one]));
            }
            with_others
        };
        let content: Vec<Value> = self.words.iter().skip(from).take(count).map(sure).collect();
        json!({ "content": content, "refusal": null })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_to(path: &str, body: &Value) -> String {
        let request = Request {
            method: "POST".to_owned(),
            path: path.to_owned(),
            body: body.to_string().into_bytes(),
        };
        let mut written = Vec::new();
        route_request(&request, &mut written, Duration::ZERO).unwrap();
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn it_repeats_what_it_hears() {
        let ask =
            json!({ "messages": [{ "role": "user", "content": "a b" }], "max_tokens": 3, "logprobs": true });
        let answer = response_to("/v1/chat/completions", &ask);
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(body["choices"][0]["message"]["content"], "a b a ");
        assert_eq!(body["usage"]["total_tokens"], 5);
        assert_eq!(
            body["choices"][0]["logprobs"]["content"]
                .as_array()
                .unwrap()
                .len(),
            3
        );
        assert!(response_to("/v1/chat/completions", &json!({})).starts_with("HTTP/1.1 400"));
        assert!(response_to("/v1/nothing", &json!({})).starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn a_stream_is_chunks_of_events_and_an_end() {
        let ask = json!({ "prompt": "a b", "max_tokens": 2, "stream": true, "stream_options": { "include_usage": true } });
        let answer = response_to("/v1/completions", &ask);
        assert_eq!(answer.matches("data: ").count(), 2 + 1 + 1 + 1, "{answer}");
        assert!(answer.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{answer}");
        assert!(answer.contains("\"completion_tokens\":2"));
    }

    #[test]
    fn it_answers_over_its_socket_more_than_once() {
        let folder = std::env::temp_dir().join(format!("parrot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("http.sock");
        let served = socket.clone();
        std::thread::spawn(move || serve(&served, Duration::ZERO).unwrap());
        let mut stream = loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                break stream;
            }
            std::thread::yield_now();
        };
        for _ in 0..2 {
            stream
                .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                .unwrap();
            let mut answer = [0; 128];
            let length = stream.read(&mut answer).unwrap();
            assert!(answer[..length].starts_with(b"HTTP/1.1 200 OK"));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

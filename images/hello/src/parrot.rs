//! `hello parrot SOCKET [PACE]`: a stand-in for a language model, behind OpenAI's interface on a Unix socket. It
//! repeats the words of the last message, one every PACE milliseconds, until it has sent `max_tokens` words. It needs
//! no weights.

mod asked;

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use asked::{AskedCompletion, Choice, ParameterRefusal, field};

/// The name of the model.
pub const MODEL: &str = "parrot";
const MAX_HEAD: u64 = 64 * 1024;
const MAX_BODY: usize = 16 * 1024 * 1024;

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
        ("POST", "/v1/embeddings") => match embed(&request.body) {
            Ok(answer) => write_json(writer, 200, &answer),
            Err(refusal) => write_refusal(writer, &refusal),
        },
        _other => write_json(writer, 404, &error_body("this path does not exist", None)),
    }
}

fn error_body(message: &str, parameter: Option<&str>) -> Value {
    json!({ "error": { "message": message, "type": "invalid_request_error", "param": parameter, "code": null } })
}

fn write_refusal(writer: &mut impl Write, refusal: &ParameterRefusal) -> io::Result<()> {
    write_json(
        writer,
        400,
        &error_body(&refusal.message, Some(refusal.parameter)),
    )
}

/// One vector for each input: the length of its JSON, and a half.
fn embed(body: &[u8]) -> Result<Value, ParameterRefusal> {
    let asked: Value = serde_json::from_slice(body).unwrap_or_default();
    let refuse = |parameter, message: &str| ParameterRefusal {
        parameter,
        message: message.to_owned(),
    };
    if !field(&asked, "dimensions").is_null() {
        return Err(refuse("dimensions", "a vector of this model has two dimensions"));
    }
    let inputs: Vec<&Value> = match field(&asked, "input") {
        Value::Null => return Err(refuse("input", "an embedding needs an `input`")),
        Value::Array(several) if !several.iter().all(Value::is_number) => several.iter().collect(),
        one @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            vec![one]
        }
    };
    let vector = |(index, input): (usize, &&Value)| {
        let length = u16::try_from(input.to_string().len()).unwrap_or(u16::MAX);
        json!({ "object": "embedding", "index": index, "embedding": [f32::from(length), 0.5] })
    };
    let data: Vec<Value> = inputs.iter().enumerate().map(vector).collect();
    let usage = json!({ "prompt_tokens": inputs.len(), "total_tokens": inputs.len() });
    let model = field(&asked, "model").as_str().unwrap_or(MODEL);
    Ok(json!({ "object": "list", "model": model, "data": data, "usage": usage }))
}

fn answer_completion(
    request: &Request,
    chat: bool,
    writer: &mut impl Write,
    pace: Duration,
) -> io::Result<()> {
    let asked = match AskedCompletion::read(&request.body, chat) {
        Ok(asked) => asked,
        Err(refusal) => return write_refusal(writer, &refusal),
    };
    if asked.streams {
        return stream_completion(&asked, writer, pace);
    }
    let choices = asked.choices.iter().enumerate().map(|(index, choice)| {
        let text = choice.words.concat();
        let (key, said) = if chat {
            ("message", json!({ "role": "assistant", "content": text }))
        } else {
            ("text", json!(text))
        };
        json!({
            "index": index, "finish_reason": choice.finish_reason, key: said,
            "logprobs": asked.logprobs_of(choice, 0, choice.words.len()),
        })
    });
    let mut answer = asked.envelope(choices.collect());
    if let Some(answer) = answer.as_object_mut() {
        answer.insert("usage".to_owned(), asked.usage());
    }
    write_json(writer, 200, &answer)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own, which sleeps for the requested pace"
)]
fn stream_completion(asked: &AskedCompletion, writer: &mut impl Write, pace: Duration) -> io::Result<()> {
    write!(
        writer,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
    )?;
    let longest = asked.choices.iter().map(|choice| choice.words.len()).max();
    for place in 0..longest.unwrap_or(0) {
        std::thread::sleep(pace);
        for (index, choice) in asked.choices.iter().enumerate() {
            let Some(word) = choice.words.get(place) else {
                continue;
            };
            let (key, said) = match (asked.is_chat, place) {
                (true, 0) => ("delta", json!({ "role": "assistant", "content": word })),
                (true, _) => ("delta", json!({ "content": word })),
                (false, _) => ("text", json!(word)),
            };
            let logprobs = asked.logprobs_of(choice, place, 1);
            let event = json!({ "index": index, "finish_reason": null, "logprobs": logprobs, key: said });
            write_chunk(writer, &format!("data: {}\n\n", asked.envelope(vec![event])))?;
        }
    }
    for (index, choice) in asked.choices.iter().enumerate() {
        let (key, nothing) = if asked.is_chat {
            ("delta", json!({}))
        } else {
            ("text", json!(""))
        };
        let last = json!({ "index": index, "finish_reason": choice.finish_reason, key: nothing });
        write_chunk(writer, &format!("data: {}\n\n", asked.envelope(vec![last])))?;
    }
    if asked.reports_usage {
        let mut event = asked.envelope(Vec::new());
        if let Some(event) = event.as_object_mut() {
            event.insert("usage".to_owned(), asked.usage());
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

impl AskedCompletion {
    fn envelope(&self, choices: Vec<Value>) -> Value {
        let object = match (self.is_chat, self.streams) {
            (true, true) => "chat.completion.chunk",
            (true, false) => "chat.completion",
            (false, _) => "text_completion",
        };
        json!({ "id": "parrot-0", "object": object, "created": 0, "model": self.model, "choices": choices })
    }

    fn usage(&self) -> Value {
        let (prompt, said) = (self.prompt_words, self.said_words());
        json!({ "prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt.saturating_add(said) })
    }

    /// Log-probabilities of 0 for these words of a choice, with one alternative if any is asked for.
    fn logprobs_of(&self, choice: &Choice, from: usize, count: usize) -> Value {
        let Some(alternatives) = self.logprobs else {
            return Value::Null;
        };
        let words = choice.words.iter().skip(from).take(count);
        if self.is_chat {
            let sure = |word: &String| {
                let one = json!({ "token": word, "logprob": 0.0, "bytes": word.as_bytes() });
                let mut with_others = one.clone();
                if let Some(with_others) = with_others.as_object_mut() {
                    let others = if alternatives > 0 { json!([one]) } else { json!([]) };
                    with_others.insert("top_logprobs".to_owned(), others);
                }
                with_others
            };
            return json!({ "content": words.map(sure).collect::<Vec<_>>(), "refusal": null });
        }
        let before = choice.words.iter().take(from).map(String::len).sum();
        let offsets = words.clone().scan(before, |offset: &mut usize, word| {
            let begin = *offset;
            *offset += word.len();
            Some(begin)
        });
        let tops = words.clone().map(|word| match alternatives {
            0 => Value::Null,
            _ => json!({ word: 0.0 }),
        });
        json!({
            "tokens": words.clone().collect::<Vec<_>>(),
            "token_logprobs": words.clone().map(|_| 0.0).collect::<Vec<_>>(),
            "top_logprobs": tops.collect::<Vec<_>>(),
            "text_offset": offsets.collect::<Vec<_>>(),
        })
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
    fn choices_come_with_their_own_indices_and_ends() {
        let ask = json!({ "messages": [{ "role": "user", "content": "a b" }], "max_tokens": 2, "n": 2, "stop": "b" });
        let answer = response_to("/v1/chat/completions", &ask);
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        for index in 0..2 {
            let choice = &body["choices"][index];
            assert_eq!(choice["index"], index);
            assert_eq!(
                (&choice["message"]["content"], &choice["finish_reason"]),
                (&json!("a "), &json!("stop"))
            );
        }
        let mut ask = ask;
        ask["stream"] = json!(true);
        let answer = response_to("/v1/chat/completions", &ask);
        assert_eq!(
            answer.matches("\"index\":1").count(),
            2,
            "a word and an end: {answer}"
        );
        assert_eq!(answer.matches("\"stop\"").count(), 2, "{answer}");
    }

    #[test]
    fn a_refusal_names_its_parameter_in_openais_form() {
        let ask =
            json!({ "messages": [{ "role": "user", "content": "a" }], "tools": [{ "type": "function" }] });
        let answer = response_to("/v1/chat/completions", &ask);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(body["error"]["param"], "tools");
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }

    #[test]
    fn completions_state_log_probabilities_in_their_older_form() {
        let answer = response_to(
            "/v1/completions",
            &json!({ "prompt": "ab c", "max_tokens": 2, "logprobs": 1 }),
        );
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let logprobs = &body["choices"][0]["logprobs"];
        assert_eq!(logprobs["tokens"], json!(["ab ", "c "]));
        assert_eq!(logprobs["text_offset"], json!([0, 3]));
        assert_eq!(logprobs["top_logprobs"], json!([{ "ab ": 0.0 }, { "c ": 0.0 }]));
    }

    #[test]
    fn each_input_has_a_vector() {
        let answer = response_to("/v1/embeddings", &json!({ "input": ["a", "bcd"] }));
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(
            (&body["data"][1]["index"], &body["data"][1]["embedding"]),
            (&json!(1), &json!([5.0, 0.5]))
        );
        assert!(
            response_to("/v1/embeddings", &json!({ "input": "a", "dimensions": 1 }))
                .starts_with("HTTP/1.1 400")
        );
        assert!(response_to("/v1/embeddings", &json!({})).starts_with("HTTP/1.1 400"));
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

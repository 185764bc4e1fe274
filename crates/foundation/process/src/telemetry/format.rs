//! Log lines with the role that wrote them, for people and for machines.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// `miner 2026-01-21T12:34:56.789012Z  INFO muster_miner: ready address=127.0.0.1:8000`.
pub(super) struct Text {
    role: &'static str,
    inner: Format,
}

impl Text {
    pub(super) fn new(role: &'static str) -> Self {
        Self {
            role,
            inner: format::format(),
        }
    }
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "{} ", self.role)?;
        self.inner.format_event(ctx, writer, event)
    }
}

/// Lines such as `{"role":"miner","timestamp":…}`.
pub(super) struct Json {
    role: &'static str,
    inner: Format<format::Json>,
}

impl Json {
    pub(super) fn new(role: &'static str) -> Self {
        Self {
            role,
            inner: format::format().json().flatten_event(true).with_ansi(false),
        }
    }
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // The library has no constant fields, so the role is inserted at the beginning of its JSON object.
        let mut line = String::new();
        self.inner.format_event(ctx, Writer::new(&mut line), event)?;
        match line.strip_prefix('{') {
            Some(rest) => write!(writer, "{{\"role\":{:?},{rest}", self.role),
            None => writer.write_str(&line),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::fmt::format::JsonFields;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Sink {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    impl Sink {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn log_something() {
        let _span = tracing::info_span!("task", task = "driver").entered();
        tracing::info!(address = "127.0.0.1:1", "ready");
    }

    #[test]
    fn text_lines_begin_with_the_role() {
        let sink = Sink::default();
        let logs = tracing_subscriber::fmt()
            .with_writer(sink.clone())
            .with_ansi(false)
            .event_format(Text::new("miner"))
            .finish();
        tracing::subscriber::with_default(logs, log_something);
        let line = sink.text();
        assert!(line.starts_with("miner 20"), "{line}");
        assert!(line.contains("ready") && line.contains("127.0.0.1:1"), "{line}");
    }

    #[test]
    fn json_lines_are_json_with_the_role() {
        let sink = Sink::default();
        let logs = tracing_subscriber::fmt()
            .with_writer(sink.clone())
            .fmt_fields(JsonFields::new())
            .event_format(Json::new("miner"))
            .finish();
        tracing::subscriber::with_default(logs, log_something);
        let line: serde_json::Value = serde_json::from_str(&sink.text()).unwrap();
        assert_eq!(line["role"], "miner");
        assert_eq!(line["message"], "ready");
        assert_eq!(line["address"], "127.0.0.1:1");
        assert_eq!(line["span"]["task"], "driver");
    }
}

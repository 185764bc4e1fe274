//! Reads the values of a file, and gathers what is wrong with them.

use std::fmt;
use std::ops::RangeInclusive;

use toml::{Table, Value};

use crate::options::duration;

/// One fault of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecFault {
    /// The key, with its table before it; empty for the file as a whole.
    pub key: String,
    /// The fault as text.
    pub reason: String,
}

impl SpecFault {
    /// A fault of the file as a whole.
    pub(crate) fn of_file(reason: &str) -> Self {
        Self {
            key: String::new(),
            reason: reason.trim().to_owned(),
        }
    }
}

impl fmt::Display for SpecFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => f.write_str(&self.reason),
            key => write!(f, "{key}: {}", self.reason),
        }
    }
}

/// The options so far, and the faults.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    pub(crate) words: Vec<String>,
    faults: Vec<SpecFault>,
}

impl Checker {
    /// The options, if nothing is wrong.
    pub(crate) fn finish(self) -> Result<Vec<String>, Vec<SpecFault>> {
        if self.faults.is_empty() {
            Ok(self.words)
        } else {
            Err(self.faults)
        }
    }

    pub(crate) fn fault(&mut self, key: &str, reason: impl Into<String>) {
        self.faults.push(SpecFault {
            key: key.to_owned(),
            reason: reason.into(),
        });
    }

    /// Adds an option with its value.
    pub(crate) fn option(&mut self, name: &str, value: impl Into<String>) {
        self.words.extend([name.to_owned(), value.into()]);
    }

    /// Faults every key of the table that is not known. `above` is the table's own key with a dot, or empty.
    pub(crate) fn refuse_unknown(&mut self, above: &str, table: &Table, known: &[&str]) {
        for key in table.keys().filter(|key| !known.contains(&key.as_str())) {
            let reason = format!("is no key of a job; known are {}", known.join(", "));
            self.fault(&format!("{above}{key}"), reason);
        }
    }

    fn wrong_kind(&mut self, key: &str, wanted: &str, found: &Value) {
        self.fault(key, format!("must be {wanted}, and is {}", kind(found)));
    }

    pub(crate) fn text(&mut self, table: &Table, key: &str) -> Option<String> {
        self.text_at(table, "", key)
    }

    pub(crate) fn text_at(&mut self, table: &Table, above: &str, key: &str) -> Option<String> {
        match table.get(key)? {
            Value::String(text) if text.is_empty() => {
                self.fault(&format!("{above}{key}"), "must not be empty");
                None
            }
            Value::String(text) => Some(text.clone()),
            other @ (Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_)) => {
                self.wrong_kind(&format!("{above}{key}"), "a text", other);
                None
            }
        }
    }

    /// A time such as `20h`, as it is written.
    pub(crate) fn time(&mut self, table: &Table, key: &str) -> Option<String> {
        self.time_at(table, "", key)
    }

    pub(crate) fn time_at(&mut self, table: &Table, above: &str, key: &str) -> Option<String> {
        let text = match table.get(key)? {
            Value::Integer(seconds) => seconds.to_string(),
            Value::String(text) => text.clone(),
            other @ (Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_)) => {
                self.wrong_kind(
                    &format!("{above}{key}"),
                    "a time such as \"90s\", \"15m\" or \"2h\"",
                    other,
                );
                return None;
            }
        };
        match duration(&text) {
            Ok(_) => Some(text),
            Err(reason) => {
                self.fault(&format!("{above}{key}"), reason);
                None
            }
        }
    }

    pub(crate) fn number(&mut self, table: &Table, key: &str, range: RangeInclusive<i64>) -> Option<i64> {
        self.number_at(table, "", key, range)
    }

    pub(crate) fn number_at(
        &mut self,
        table: &Table,
        above: &str,
        key: &str,
        range: RangeInclusive<i64>,
    ) -> Option<i64> {
        match table.get(key)? {
            Value::Integer(number) if range.contains(number) => Some(*number),
            Value::Integer(_) => {
                let reason = format!("must be {} to {}", range.start(), range.end());
                self.fault(&format!("{above}{key}"), reason);
                None
            }
            other @ (Value::String(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_)) => {
                self.wrong_kind(&format!("{above}{key}"), "a whole number", other);
                None
            }
        }
    }

    pub(crate) fn flag(&mut self, table: &Table, key: &str) -> bool {
        match table.get(key) {
            None => false,
            Some(Value::Boolean(flag)) => *flag,
            Some(other) => {
                self.wrong_kind(key, "true or false", other);
                false
            }
        }
    }

    pub(crate) fn texts(&mut self, table: &Table, key: &str) -> Vec<String> {
        let list = match table.get(key) {
            None => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(other) => {
                self.wrong_kind(key, "a list of texts", other);
                return Vec::new();
            }
        };
        let texts: Vec<String> = list
            .iter()
            .filter_map(|item| item.as_str().map(str::to_owned))
            .collect();
        if texts.len() != list.len() {
            self.fault(key, "must be a list of texts alone");
        }
        texts
    }

    /// A table of the file; an empty one if it is not there.
    pub(crate) fn section(&mut self, table: &Table, key: &str) -> Table {
        match table.get(key) {
            None => Table::new(),
            Some(Value::Table(section)) => section.clone(),
            Some(other) => {
                self.wrong_kind(key, "a table", other);
                Table::new()
            }
        }
    }
}

/// The kind of a value, as text.
pub(crate) const fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a time",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

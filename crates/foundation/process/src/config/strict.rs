//! Finds every error of a file although serde stops at the first: the entry at fault is removed and the file is read
//! again.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use super::problem::Problem;

/// The value, if the remaining entries make one, and all problems found on the way.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> (Option<T>, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => {
            problems.push(problem(&error, text, String::new()));
            return (None, problems);
        }
    };
    // Each round removes an entry, so this ends.
    loop {
        match T::deserialize(Deserializer::from(document.clone())) {
            Ok(value) => return (Some(value), problems),
            Err(error) => {
                let struck = error
                    .span()
                    .and_then(|span| strike_table(document.get_mut(), &span));
                let done = struck.is_none();
                problems.push(problem(&error, text, struck.unwrap_or_default()));
                if done {
                    return (None, problems);
                }
            }
        }
    }
}

/// Removes the entry whose key or value lies exactly at `span`; returns its path if there was one.
fn strike_table(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<String> {
    let (key, path, whole) = table.iter_mut().find_map(|(key, value)| {
        let name = key.get_ref();
        if key.span() == *span || value.span() == *span {
            return Some((key.clone(), name.to_string(), true));
        }
        match strike_value(value, span) {
            Found::No => None,
            Found::Inside(rest) => Some((key.clone(), format!("{name}{rest}"), false)),
            // Removing one element of a list would renumber the others, so the whole list is removed.
            Found::Element(rest) => Some((key.clone(), format!("{name}{rest}"), true)),
        }
    })?;
    if whole {
        table.remove(&key);
    }
    Some(path)
}

/// The place of the error below a value.
enum Found {
    No,
    /// The entry was removed; this is the rest of its path.
    Inside(String),
    /// An element of a list is at fault.
    Element(String),
}

fn strike_value(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>) -> Found {
    match value.get_mut() {
        DeValue::Table(table) => match strike_table(table, span) {
            Some(path) => Found::Inside(format!(".{path}")),
            None => Found::No,
        },
        DeValue::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                if item.span() == *span {
                    return Found::Element(format!("[{index}]"));
                }
                match strike_value(item, span) {
                    Found::No => {}
                    Found::Inside(rest) => return Found::Inside(format!("[{index}]{rest}")),
                    Found::Element(rest) => return Found::Element(format!("[{index}]{rest}")),
                }
            }
            Found::No
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => Found::No,
    }
}

fn problem(error: &Error, text: &str, path: String) -> Problem {
    let before = error.span().and_then(|span| text.get(..span.start));
    Problem {
        path,
        line: before.map(|before| before.matches('\n').count() + 1),
        message: reworded(error.message()),
    }
}

/// Rewrites serde's "unknown field `lisen`, expected one of `listen`, `netuid`" so that it names the most similar key.
fn reworded(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return message.to_owned();
    };
    let mut quoted = rest.split('`');
    let written = quoted.next().unwrap_or_default();
    // After the first name every second piece is a name, the others are the words between them.
    let known: Vec<&str> = quoted.skip(1).step_by(2).collect();
    let nearest = known.iter().min_by_key(|name| distance(written, name));
    match nearest {
        Some(name) if distance(written, name) <= written.chars().count().div_ceil(3) => {
            format!("unknown key; is `{name}` meant?")
        }
        Some(_) => format!("unknown key; known here are `{}`", known.join("`, `")),
        None => "unknown key; none are known here".to_owned(),
    }
}

/// The number of characters that must be added, removed, replaced or swapped with their neighbour to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // Rows of the usual table: the one before last, the last, the current.
    let mut older: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut before_a = None;
    for (i, in_a) in a.chars().enumerate() {
        let mut row = vec![i + 1];
        let mut before_b = None;
        for (j, &in_b) in b.iter().enumerate() {
            let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX - 1);
            let mut best = (at(&last, j) + usize::from(in_a != in_b))
                .min(at(&last, j + 1) + 1)
                .min(at(&row, j) + 1);
            if before_a == Some(in_b) && before_b == Some(in_a) {
                best = best.min(at(&older, j - 1) + 1);
            }
            row.push(best);
            before_b = Some(in_b);
        }
        older = std::mem::replace(&mut last, row);
        before_a = Some(in_a);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let pairs = [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("lisen", "listen", 1),
            ("ab", "ba", 1),
            ("url", "uri", 1),
        ];
        for (a, b, steps) in pairs {
            assert_eq!(distance(a, b), steps, "{a} {b}");
        }
        assert_eq!(distance("wieght", "weight"), 1);
        assert!(distance("zebra", "listen") > 2);
    }
}

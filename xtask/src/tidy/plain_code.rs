//! Rust source with blanks in place of comments, texts and characters, so that a search finds code only.

/// The source with the same lines and the same places in bytes. The quotes of texts stay.
pub(super) fn without_texts(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'/' | b'"' | b'\'')) {
        let (before, found) = rest.split_at(at);
        code.push_str(before);
        let length = match found.as_bytes().first() {
            Some(b'/') => comment_length(found),
            Some(b'"') => text_length(&code, found),
            _ => character_length(found),
        };
        let (hidden, after) = match length {
            // A division, or the quote of a lifetime.
            None => {
                code.push_str(found.get(..1).unwrap_or_default());
                rest = found.get(1..).unwrap_or_default();
                continue;
            }
            Some(length) => found.split_at(length),
        };
        if hidden.starts_with('/') {
            push_blanks(&mut code, hidden);
        } else {
            let (quote, inside) = hidden.split_at(1);
            let closed = inside.strip_suffix(quote);
            code.push_str(quote);
            push_blanks(&mut code, closed.unwrap_or(inside));
            code.push_str(closed.map_or("", |_| quote));
        }
        rest = after;
    }
    code.push_str(rest);
    code
}

/// Spaces for every byte but the ends of lines.
fn push_blanks(code: &mut String, hidden: &str) {
    for (number, line) in hidden.split('\n').enumerate() {
        if number > 0 {
            code.push('\n');
        }
        code.push_str(&" ".repeat(line.len()));
    }
}

/// The length of the comment that begins here. Block comments nest.
fn comment_length(found: &str) -> Option<usize> {
    if found.starts_with("//") {
        return Some(found.find('\n').unwrap_or(found.len()));
    }
    let mut rest = found.strip_prefix("/*")?;
    let mut depth = 1;
    while depth > 0 {
        let Some(closes) = rest.find("*/") else {
            return Some(found.len());
        };
        let opens = rest.find("/*").filter(|opens| *opens < closes);
        depth = if opens.is_some() { depth + 1 } else { depth - 1 };
        rest = rest.get(opens.unwrap_or(closes) + 2..).unwrap_or_default();
    }
    Some(found.len() - rest.len())
}

/// The length of the text that begins here, up to its closing quote; the code before it shows whether it is a raw one.
fn text_length(code: &str, found: &str) -> Option<usize> {
    let inside = found.get(1..)?;
    let opening = code.trim_end_matches('#');
    let hashes = code.len() - opening.len();
    let letters = opening.bytes().rev().take_while(|byte| is_of_word(*byte)).count();
    let prefix = opening.get(opening.len() - letters..).unwrap_or_default();
    if matches!(prefix, "r" | "br" | "cr") {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(inside.find(&end).map_or(found.len(), |at| at + 2));
    }
    let mut escaped = false;
    let end = inside.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    Some(end.map_or(found.len(), |at| at + 2))
}

/// The length of the character that begins here; none for the quote of a lifetime.
fn character_length(found: &str) -> Option<usize> {
    let mut letters = found.char_indices().skip(1);
    let (_, first) = letters.next()?;
    if first == '\\' {
        // The escaped character itself may be a quote.
        letters.next()?;
        return letters.find(|(_, letter)| *letter == '\'').map(|(at, _)| at + 1);
    }
    let (at, second) = letters.next()?;
    (second == '\'' && first != '\'').then_some(at + 1)
}

/// Whether a byte belongs to a name; bytes of letters beyond ASCII do.
pub(super) fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The words of code with their places in bytes: names, keywords and numbers.
pub(super) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = code.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        at += bytes.get(at..)?.iter().position(|byte| is_of_word(*byte))?;
        let begin = at;
        let rest = bytes.get(at..)?;
        at += rest
            .iter()
            .position(|byte| !is_of_word(*byte))
            .unwrap_or(rest.len());
        code.get(begin..at).map(|word| (begin, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn leaves(source: &str, expected: &[&str]) {
        let code = without_texts(source);
        assert_eq!(code.len(), source.len(), "{code:?}");
        assert_eq!(code.lines().count(), source.lines().count(), "{code:?}");
        let found: Vec<&str> = words(&code).map(|(_, word)| word).collect();
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn comments_texts_and_characters_become_blanks_of_the_same_length() {
        leaves("a // no\nb", &["a", "b"]);
        leaves("a /* no /* no\n */ no */ b", &["a", "b"]);
        leaves("a \"no \\\" no ü\" b", &["a", "b"]);
        leaves("a(\"\", \"\\\\\") b", &["a", "b"]);
        leaves("r#\"no \" no\n\"# b", &["r", "b"]);
        leaves("a 'n' '\\'' '\"' '\\u{6e}' '\\\\' 'ü' b", &["a", "b"]);
    }

    #[test]
    fn lifetimes_divisions_and_names_stay() {
        leaves("a<'b>(c: &'b d) / e", &["a", "b", "c", "b", "d", "e"]);
        leaves("macro_r!(\"no\")", &["macro_r"]);
        leaves("br\"no\" b'n'", &["br", "b"]);
    }

    #[test]
    fn source_that_ends_too_early_ends_in_blanks() {
        for source in ["/* /* */", "\"", "'", "'\\", "r#\"\"", "/", "\"ü"] {
            assert_eq!(without_texts(source).len(), source.len(), "{source}");
        }
    }

    #[test]
    fn the_quotes_of_a_text_stay() {
        assert_eq!(without_texts("f(\"a\", 1)"), "f(\" \", 1)");
    }
}

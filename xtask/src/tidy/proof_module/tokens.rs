//! Rust source as words and marks, without comments, literals and lifetimes.

/// A token of Rust source, as far as paths are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceToken<'a> {
    /// A name or a keyword.
    Word(&'a str),
    /// The mark `::` between two names.
    Joint,
    /// Any other character that is no space.
    Mark(char),
}

/// Cuts source into tokens.
pub(super) fn tokens_of(text: &str) -> Vec<SourceToken<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_first = rest.get(first.len_utf8()..).unwrap_or_default();
        rest = if rest.starts_with("//") {
            rest.find('\n')
                .and_then(|end| rest.get(end..))
                .unwrap_or_default()
        } else if let Some(comment) = rest.strip_prefix("/*") {
            after_comment(comment)
        } else if first == '"' {
            after_string(after_first)
        } else if first == '\'' {
            after_quote(after_first)
        } else if is_of_word(first) {
            let (word, after) = split_word(rest);
            if let Some(after) = after_prefixed_literal(word, after) {
                after
            } else {
                if !first.is_ascii_digit() {
                    found.push(SourceToken::Word(word));
                }
                after
            }
        } else if let Some(after) = rest.strip_prefix("::") {
            found.push(SourceToken::Joint);
            after
        } else {
            if !first.is_whitespace() {
                found.push(SourceToken::Mark(first));
            }
            after_first
        };
    }
    found
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|letter| !is_of_word(letter)).unwrap_or(text.len());
    text.split_at(end)
}

/// The text after a block comment, whose opening is left out already. Such comments nest.
fn after_comment(mut text: &str) -> &str {
    let mut depth = 1;
    while depth > 0 {
        let Some(at) = text.find("*/") else { return "" };
        match text.find("/*").filter(|open| *open < at) {
            Some(open) => {
                depth += 1;
                text = text.get(open + 2..).unwrap_or_default();
            }
            None => {
                depth -= 1;
                text = text.get(at + 2..).unwrap_or_default();
            }
        }
    }
    text
}

/// The text after a string, whose opening is left out already.
fn after_string(text: &str) -> &str {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' if !escaped => return text.get(at + 1..).unwrap_or_default(),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    ""
}

/// The text after a character or a lifetime, whose quote is left out already.
fn after_quote(text: &str) -> &str {
    let mut letters = text.chars();
    let (first, second) = (letters.next(), letters.next());
    if first == Some('\\') {
        let escaped = text.char_indices().nth(2).and_then(|(at, _)| text.get(at..));
        let escaped = escaped.unwrap_or_default();
        return escaped.split_once('\'').map_or("", |(_, after)| after);
    }
    if second == Some('\'') {
        return letters.as_str();
    }
    split_word(text).1
}

/// The text after a literal that begins with a word: a raw string, bytes, or the mark of a raw name.
fn after_prefixed_literal<'a>(word: &str, after: &'a str) -> Option<&'a str> {
    match word {
        "b" if after.starts_with('\'') => after.get(1..).map(after_quote),
        "b" | "c" if after.starts_with('"') => after.get(1..).map(after_string),
        "r" | "br" | "cr" => {
            let text = after.trim_start_matches('#');
            let hashes = after.len() - text.len();
            match text.strip_prefix('"') {
                Some(text) => {
                    let end = format!("\"{}", "#".repeat(hashes));
                    Some(text.split_once(end.as_str()).map_or("", |(_, after)| after))
                }
                None => (hashes == 1 && word == "r").then_some(text),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let words = tokens_of(text).into_iter().filter_map(|token| match token {
            SourceToken::Word(word) => Some(word),
            SourceToken::Joint | SourceToken::Mark(_) => None,
        });
        words.collect()
    }

    #[test]
    fn a_path_is_words_and_joints() {
        use SourceToken::{Joint, Mark, Word};
        assert_eq!(
            tokens_of("use a::b;"),
            [Word("use"), Word("a"), Joint, Word("b"), Mark(';')]
        );
    }

    #[test]
    fn comments_literals_and_lifetimes_are_no_words() {
        for text in [
            "// no\none",
            "/* no /* no */ no */ one",
            "\"no \\\" no\" one",
            "'n' '\\'' '\\u{6e}' '\\\\' one",
            "r\"no\" r#\"no \" no\"# br##\"no \"# no\"## one",
            "b\"no\" b'n' c\"no\" one",
            "0x1f 1_000u64 one",
            "one<'no>",
            "r#one",
        ] {
            assert_eq!(words(text), ["one"], "{text}");
        }
    }

    #[test]
    fn text_that_ends_too_early_ends_the_tokens() {
        for text in ["/* /* */", "\"", "'", "'\\", "r#\"\"", "b\""] {
            assert_eq!(words(text), [""; 0], "{text}");
        }
    }
}

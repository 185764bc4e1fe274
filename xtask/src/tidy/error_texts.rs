//! The texts of errors: a noun comes first, so that a person who reads the text alone knows the thing that it is about.

use super::prose::{capitalised, riddle, sentences};
use super::rust_source::{code_lines, is_code};
use super::{Finding, Tree};

/// The openings of calls and attributes whose first literal a person may come to read.
const OPENINGS: &[&str] = &[
    "#[error(",
    ".context(",
    ".with_context(||",
    "bail!(",
    "anyhow!(",
    "Failure::usage(",
];
/// Words between an opening and its literal.
const BETWEEN: &[&str] = &["format!(", "format_args!(", "anyhow::anyhow!(", "{"];
/// Words that stand for a noun which the reader of one line has not seen.
const PRONOUNS: &[&str] = &["it", "its", "they", "their", "them", "he", "she", "his", "her"];
/// Words that stand for a noun if a verb follows: `this is not a URL`.
const POINTERS: &[&str] = &["this", "that", "these", "those"];
const VERBS: &[&str] = &[
    "is", "are", "was", "were", "has", "have", "does", "do", "cannot", "must", "may",
];
/// Programs that measure talk to the people who wrote them.
const EXEMPT: &[&str] = &["bench/", "xtask/", "fuzz/"];

/// Texts without a noun, and sentences that hide their subject.
pub(super) fn nouns(tree: &Tree) -> Vec<Finding> {
    let files = tree
        .rust()
        .filter(|(path, _)| is_code(path) && !EXEMPT.iter().any(|folder| path.starts_with(folder)));
    files
        .flat_map(|(path, text)| {
            literals(text)
                .into_iter()
                .filter_map(move |(line, literal)| Some(Finding::fault(path, line, fault_of(&literal)?)))
        })
        .collect()
}

/// The fault of a text, if it has one.
fn fault_of(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let plain = |word: &str| word.trim_end_matches([',', ':', ';', '.']).to_lowercase();
    let first = words.first().map(|word| plain(word))?;
    let second = words.get(1).map(|word| plain(word)).unwrap_or_default();
    let hidden = PRONOUNS.contains(&first.as_str())
        || POINTERS.contains(&first.as_str()) && VERBS.contains(&second.as_str());
    if hidden {
        return Some(format!(
            "the error's text begins with «{first}»: name the thing that it is about: {text}"
        ));
    }
    let bare = words.len() == 1 && !text.contains('{') && text.chars().all(char::is_alphanumeric);
    if bare {
        return Some(format!(
            "the error's text is one word: say what failed, and the thing: {text}"
        ));
    }
    let whole = capitalised(text);
    let opener = sentences(&whole).find_map(riddle)?;
    Some(format!(
        "a sentence of the error's text begins with «{opener}»: name its subject first: {text}"
    ))
}

/// The literals after the openings, each with the number of its opening's line, joined over lines.
fn literals(text: &str) -> Vec<(usize, String)> {
    let end = code_lines(text).map(|(_, line)| line.len() + 1).sum::<usize>();
    let code = text.get(..end.min(text.len())).unwrap_or(text);
    let mut found = Vec::new();
    for opening in OPENINGS {
        for (at, _) in code.match_indices(opening) {
            let line_start = code
                .get(..at)
                .and_then(|before| before.rfind('\n'))
                .map_or(0, |end| end + 1);
            if code
                .get(line_start..at)
                .is_some_and(|before| before.trim_start().starts_with("//"))
            {
                continue;
            }
            let after = code.get(at + opening.len()..).unwrap_or_default();
            if let Some(literal) = literal_at(after) {
                let line = code.get(..at).unwrap_or_default().matches('\n').count() + 1;
                found.push((line, literal));
            }
        }
    }
    found
}

/// The literal that begins here, behind blanks and the words of a macro.
fn literal_at(after: &str) -> Option<String> {
    let mut rest = after.trim_start();
    while let Some(next) = BETWEEN.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = next.trim_start();
    }
    let inside = rest.strip_prefix('"')?;
    let mut literal = String::new();
    let mut letters = inside.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return Some(literal),
            // A line that goes on begins behind its blanks.
            '\\' => match letters.next()? {
                '\n' => {
                    let blanks = letters.as_str();
                    letters = blanks.trim_start().chars();
                }
                'n' => literal.push('\n'),
                escaped => literal.push(escaped),
            },
            letter => literal.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let tree = Tree::of(&[("a/src/b.rs", text)]);
        nouns(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_text_that_begins_with_a_pronoun_or_is_one_word_fails() {
        for text in [
            "#[error(\"it is not a URL\")]",
            "#[error(\n    \"its address is wrong\"\n)]",
            "read().context(\"they differ\")?;",
            "read().with_context(|| format!(\"it is {n} long\"))?;",
            "read().with_context(|| {\n    format!(\"This is no file\")\n})?;",
            "bail!(\"closed\");",
            "anyhow::bail!(\"it ended\");",
            "Failure::usage(format_args!(\"these are no options\"))",
            "bail!(\n    \"the file is \\\n     whole. What is read \\\n     differs\"\n);",
        ] {
            assert_eq!(found(text).len(), 1, "{text}: {:?}", found(text));
        }
    }

    #[test]
    fn a_text_with_a_noun_passes() {
        for text in [
            "#[error(\"the address is not a URL\")]",
            "#[error(\"{message}\")]",
            "#[error(\"this machine has no room\")]",
            "read().context(\"no file\")?;",
            "// bail!(\"it is a comment\");",
            "let it = \"it is no error\";",
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    bail!(\"it is a test\");\n}\n",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }
}

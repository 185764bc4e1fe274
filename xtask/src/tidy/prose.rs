//! Sentences that are read once: subject first, no filler, lines that fit a screen.

use super::{Finding, Tree};

/// A sentence that begins so hides its subject in a relative clause. Questions may.
const OPENERS: &[&str] = &[
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "What",
    "Whatever",
    "Of what",
    "Of whom",
    "By what",
    "By whom",
    "To what",
    "To whom",
    "For what",
    "For whom",
    "From what",
    "From whom",
    "In what",
    "In whom",
    "On what",
    "On whom",
    "With what",
    "With whom",
    "At what",
    "That which",
    "That of",
    "Those who",
];
/// Lines of prose are at most this long; tables, links and code are exempt.
const COLUMNS: usize = 120;
/// A public item's doc of so few words says nothing that its name does not say.
const FILLER_WORDS: usize = 2;
/// Headings of rustdoc, which stand alone.
const HEADINGS: &[&str] = &["Errors", "Panics", "Safety", "Examples", "Example", "Source"];

/// Headings of every error page. People look for these words.
const PAGE_HEADINGS: &[&str] = &["What happened", "Whose fault", "What to do"];

/// One paragraph or one cell of prose: joined lines, each with its number.
struct Passage {
    line: usize,
    text: String,
}

/// Sentences whose subject is a relative clause, in comments, texts, pages and the names of functions.
pub(super) fn riddles(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_prose(path)) {
        let passages = if path.ends_with(".md") {
            page_passages(text)
        } else {
            let mut found = comment_passages(text, comment_marks(path));
            if path.ends_with(".rs") {
                found.extend(string_passages(text));
                found.extend(title_passages(text));
            }
            found
        };
        for Passage { line, text } in passages {
            for sentence in sentences(&text) {
                if let Some(opener) = riddle(sentence) {
                    let says = format!(
                        "a sentence begins with «{opener}»: name its subject first: {}",
                        short(sentence)
                    );
                    findings.push(Finding::fault(path, line, says));
                }
            }
        }
    }
    findings
}

/// Docs of one or two words.
pub(super) fn fillers(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .flat_map(|(path, text)| {
            comment_passages(text, &["///", "//!"])
                .into_iter()
                .filter(|passage| !passage.text.contains('`') || passage.text.split_whitespace().count() == 1)
                .filter(|passage| passage.text.split_whitespace().count() <= FILLER_WORDS)
                .filter(|passage| !HEADINGS.contains(&passage.text.as_str()))
                .map(move |passage| {
                    let says = format!(
                        "«{}» is filler: give the unit, the range and the party that sets it, or leave it out",
                        passage.text
                    );
                    Finding::fault(path, passage.line, says)
                })
        })
        .collect()
}

/// Lines of pages and doc comments that are too long.
pub(super) fn columns(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        let page = path.ends_with(".md");
        if !page && !path.ends_with(".rs") {
            continue;
        }
        let mut code = false;
        for (number, line) in (1..).zip(text.lines()) {
            let start = line.trim_start();
            if page && start.starts_with("```") {
                code = !code;
            }
            let prose = if page { !code } else { start.starts_with("//") };
            if !prose || line.len() <= COLUMNS {
                continue; // a letter has at least one byte
            }
            let exempt =
                start.starts_with('|') || line.contains("://") || line.contains("](") || start.contains("| ");
            let width = line.chars().count();
            if !exempt && width > COLUMNS {
                findings.push(Finding::fault(
                    path,
                    number,
                    format!("{width} columns, at most {COLUMNS}"),
                ));
            }
        }
    }
    findings
}

/// Files with sentences for people. Stored text keeps every byte, and vectors are data.
fn is_prose(path: &str) -> bool {
    let kinds = [".rs", ".md", ".toml", ".py", ".sh"];
    let kept = path.contains("/migrations/") || path.contains("/schemas/") || path.contains("/vectors/");
    kinds.iter().any(|kind| path.ends_with(kind)) && !kept && !path.ends_with("tidy/prose.rs")
}

fn comment_marks(path: &str) -> &'static [&'static str] {
    if path.ends_with(".rs") {
        &["///", "//!", "//"]
    } else {
        &["#"]
    }
}

/// Comments that stand on lines of their own; neighbouring lines are one passage. Examples in code are left out.
fn comment_passages(text: &str, marks: &[&str]) -> Vec<Passage> {
    let mut code = false;
    let comment = |line: &str| {
        let start = line.trim_start();
        let Some(rest) = marks.iter().find_map(|mark| start.strip_prefix(mark)) else {
            code = false;
            return None;
        };
        if rest.trim_start().starts_with("```") {
            code = !code;
            return None;
        }
        (!code && (rest.is_empty() || rest.starts_with(' '))).then(|| rest.trim().to_owned())
    };
    passages(text.lines().map(comment))
}

/// Paragraphs, headings, list items and cells of a page; code is left out.
fn page_passages(text: &str) -> Vec<Passage> {
    let mut code = false;
    let mut cells = Vec::new();
    let lines: Vec<Option<String>> = (1..)
        .zip(text.lines())
        .map(|(number, line)| {
            let start = line.trim();
            if start.starts_with("```") {
                code = !code;
                return None;
            }
            if code || start.is_empty() {
                return None;
            }
            if start.starts_with('|') {
                let row = start.split('|').map(str::trim).filter(|cell| !cell.is_empty());
                cells.extend(row.map(|cell| Passage {
                    line: number,
                    text: cell.to_owned(),
                }));
                return None;
            }
            Some(start.to_owned())
        })
        .collect();
    let mut found = passages(lines.into_iter());
    found.extend(cells);
    found
}

/// Joins neighbouring lines; a heading and a list item begin a passage of their own.
fn passages(lines: impl Iterator<Item = Option<String>>) -> Vec<Passage> {
    let mut found: Vec<Passage> = Vec::new();
    let mut open = false;
    for (number, line) in (1..).zip(lines) {
        let Some(line) = line.filter(|line| !line.is_empty()) else {
            open = false;
            continue;
        };
        let item = line.trim_start_matches(['#', '*', '-', '>', ' ']);
        let begins = item.len() != line.len() && !line.starts_with("**");
        match found.last_mut() {
            Some(last) if open && !begins => {
                last.text.push(' ');
                last.text.push_str(&line);
            }
            Some(_) | None => found.push(Passage {
                line: number,
                text: if begins { item.to_owned() } else { line.clone() },
            }),
        }
        open = !line.starts_with('#');
    }
    found
}

/// String literals of at least three words: what a person may come to read.
fn string_passages(text: &str) -> Vec<Passage> {
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .flat_map(|(number, line)| {
            line.split('"')
                .skip(1)
                .step_by(2)
                .filter(|literal| literal.split_whitespace().count() > 2)
                .map(move |literal| Passage {
                    line: number,
                    text: capitalised(literal),
                })
        })
        .collect()
}

/// Names of functions of at least three words, most of them titles of tests.
fn title_passages(text: &str) -> Vec<Passage> {
    (1..)
        .zip(text.lines())
        .filter_map(|(number, line)| {
            let line = line.trim_start();
            let (before, after) = line.split_once("fn ")?;
            let is_definition = before.split_whitespace().all(|word| {
                matches!(word, "async" | "const" | "extern" | "unsafe") || word.starts_with("pub")
            });
            let name = after.split(['(', '<']).next()?;
            (is_definition && name.matches('_').count() > 1).then(|| Passage {
                line: number,
                text: capitalised(&name.replace('_', " ")),
            })
        })
        .collect()
}

/// Error texts begin in lower case; their first word is judged as the first of a sentence.
pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

/// A passage's sentences, without the marks that may stand before the first word.
pub(super) fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let now = rest?;
        let end = [". ", "! ", "? ", ": "]
            .iter()
            .filter_map(|mark| now.find(mark))
            .min();
        let (sentence, after) = match end {
            Some(end) => (now.get(..=end)?, now.get(end + 2..)),
            None => (now, None),
        };
        rest = after;
        Some(sentence.trim_start_matches(['*', '_', '(', '«', ' ']))
    })
}

/// The opener with which a sentence hides its subject.
pub(super) fn riddle(sentence: &str) -> Option<&'static str> {
    let question = sentence.trim_end_matches(['*', '_', ')', '»']).ends_with('?');
    if question || PAGE_HEADINGS.contains(&sentence) {
        return None;
    }
    OPENERS.iter().copied().find(|opener| {
        sentence
            .strip_prefix(opener)
            .is_some_and(|rest| rest.starts_with([' ', ',', '\'', '’']))
    })
}

fn short(sentence: &str) -> String {
    sentence.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[(path, text)]);
        riddles(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_sentence_whose_subject_is_a_relative_clause_fails() {
        let text = "/// Reads. Whoever\n/// listens waits.\nfn a() {}\n// By what it is.\n";
        let findings = found("a.rs", text);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("a.rs:1: a sentence begins with «Whoever»"),
            "{findings:?}"
        );
        assert!(
            findings[1].starts_with("a.rs:4: a sentence begins with «By what»"),
            "{findings:?}"
        );
        assert_eq!(
            found(
                "a.md",
                "## What is true\n\n| role | Who runs it |\n\n* Of whom it is\n"
            )
            .len(),
            3
        );
        assert_eq!(found("a.toml", "# Whoever asks.\n").len(), 1);
        assert_eq!(found("a.rs", "let a = \"what is signed differs\";\n").len(), 1);
    }

    #[test]
    fn a_title_whose_subject_is_a_relative_clause_fails() {
        let count = |text: &str| found("a.rs", text).len();
        assert_eq!(count("    pub(crate) async fn what_was_sent_is_read() {}\n"), 1);
        assert_eq!(count("fn those_who_left_are_forgotten<T>() {}\n"), 1);
        assert_eq!(
            count("fn whole_files_are_read() {}\nfn who_is() {}\n// fn what_is_here_goes\n"),
            0
        );
    }

    #[test]
    fn a_question_a_word_in_midsentence_and_code_are_no_riddles() {
        for (path, text) in [
            ("a.rs", "// Who runs it? An operator.\n"),
            ("a.rs", "// The miner\n// Who is a band.\n"),
            ("a.rs", "/// Whole files.\n"),
            ("a.md", "## Whose fault\n\nThe user's.\n"),
            ("a.rs", "let who = \"Who\";\n"),
            ("a.md", "```\nWhat is this\n```\n"),
            ("a/migrations/1.md", "What is stored.\n"),
        ] {
            assert!(found(path, text).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_doc_of_two_words_fails() {
        let judge = |text: &str| fillers(&Tree::of(&[("a.rs", text)])).len();
        assert_eq!(
            judge("/// Why.\n/// The reason of the end.\n"),
            0,
            "two lines, one passage"
        );
        assert_eq!(
            judge("/// Why.\npub a: u8,\n/// The database's.\npub b: u8,\n"),
            2
        );
        assert_eq!(judge("/// See [`A`].\n"), 0, "a link leads on");
        assert_eq!(judge("// Done here.\n"), 0, "a comment is no doc");
        assert_eq!(judge("/// ```\n/// # Ok(())\n/// ```\n"), 0, "an example is code");
    }

    #[test]
    fn a_line_of_prose_of_more_than_120_columns_fails() {
        let long = "x ".repeat(61);
        let judge = |path: &str, text: &str| columns(&Tree::of(&[(path, text)])).len();
        assert_eq!(judge("a.md", &long), 1);
        assert_eq!(judge("a.rs", &format!("// {long}")), 1);
        assert_eq!(
            judge("a.rs", &format!("let a = \"{long}\";")),
            0,
            "rustfmt's business"
        );
        assert_eq!(judge("a.md", &format!("```\n{long}\n```")), 0);
        assert_eq!(judge("a.md", &format!("| {long} |")), 0);
        assert_eq!(judge("a.md", &format!("[a](b) {long}")), 0);
    }
}

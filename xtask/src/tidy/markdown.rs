//! Links and headings of Markdown, in pages and in doc comments.

use std::collections::{BTreeMap, BTreeSet};

/// A link as it is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MarkdownLink<'a> {
    /// Counted from 1 for the first line of the text.
    pub(super) line: usize,
    /// The words between the brackets.
    pub(super) label: &'a str,
    /// The part between the parentheses, without a title; absent for `[label]` alone.
    pub(super) target: Option<&'a str>,
}

/// The links of a text, but those in code. `[label]: target` on a line of its own is a link too, and `[label]` alone is
/// one where no such line names it.
pub(super) fn links(text: &str) -> Vec<MarkdownLink<'_>> {
    let mut found = Vec::new();
    let mut defined = BTreeSet::new();
    for (line, paragraph) in paragraphs(text) {
        let line_at = |at: usize| {
            line + paragraph
                .get(..at)
                .map_or(0, |before| before.matches('\n').count())
        };
        if let Some((label, target)) = definition(paragraph) {
            defined.insert(label);
            found.push(MarkdownLink {
                line,
                label,
                target: Some(target),
            });
            continue;
        }
        let mut at = 0;
        while let Some((begin, next)) = next_bracket(paragraph, at) {
            at = next;
            let inside = paragraph.get(next..).unwrap_or_default();
            let Some(end) = closing(inside, '[', ']') else {
                continue;
            };
            let (label, after) = (
                inside.get(..end).unwrap_or_default(),
                inside.get(end + 1..).unwrap_or_default(),
            );
            let target = after
                .strip_prefix('(')
                .and_then(|rest| closing(rest, '(', ')').and_then(|end| rest.get(..end)))
                .map(|target| target.split_whitespace().next().unwrap_or_default());
            found.push(MarkdownLink {
                line: line_at(begin),
                label,
                target,
            });
        }
    }
    found.retain(|link| link.target.is_some() || !defined.contains(link.label));
    found
}

/// Blocks of lines between empty lines with the numbers of their first lines; fenced code is left out. A definition is
/// a block.
fn paragraphs(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    let mut fence: Option<&str> = None;
    let mut at = 0;
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let start = line.trim_start();
        let marks = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        let fenced = fence.is_some() || marks.is_some();
        match (fence, marks) {
            (None, Some(_)) => fence = marks,
            (Some(opened), Some(mark)) if opened == mark => fence = None,
            (None | Some(_), None | Some(_)) => {}
        }
        let alone = definition(line).is_some();
        if (fenced || alone || start.is_empty())
            && let Some((first, begin)) = open.take()
        {
            found.extend(text.get(begin..at).map(|paragraph| (first, paragraph)));
        }
        if alone && !fenced {
            found.push((number, line));
        } else if !fenced && !start.is_empty() && open.is_none() {
            open = Some((number, at));
        }
        at += line.len();
    }
    if let Some((first, begin)) = open {
        found.extend(text.get(begin..).map(|paragraph| (first, paragraph)));
    }
    found
}

/// Label and target of a line `[label]: target`.
fn definition(line: &str) -> Option<(&str, &str)> {
    let (label, rest) = line.trim().strip_prefix('[')?.split_once("]: ")?;
    let mut words = rest.split_whitespace();
    let target = words.next()?;
    let titled = words.next().is_none_or(|title| title.starts_with('"'));
    (titled && !label.contains([']', '['])).then_some((label, target))
}

/// The place of the next opening bracket that is neither escaped nor in code, and the place after it.
fn next_bracket(text: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let rest = text.get(at..)?;
        at += rest.find(['[', '`', '\\'])?;
        let rest = text.get(at..)?;
        if rest.starts_with('[') {
            return Some((at, at + 1));
        }
        at += skipped(rest);
    }
}

/// The place of the bracket that closes an open one.
fn closing(text: &str, opens: char, closes: char) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        at += rest.find([opens, closes, '`', '\\'])?;
        let rest = text.get(at..)?;
        if rest.starts_with(closes) && depth == 0 {
            return Some(at);
        }
        if rest.starts_with(closes) {
            depth -= 1;
            at += closes.len_utf8();
        } else if rest.starts_with(opens) {
            depth += 1;
            at += opens.len_utf8();
        } else {
            at += skipped(rest);
        }
    }
}

/// The length of the escaped character or of the code that begins here; of one backtick where its code has no end.
fn skipped(rest: &str) -> usize {
    if let Some(escaped) = rest.strip_prefix('\\') {
        return 1 + escaped.chars().next().map_or(0, char::len_utf8);
    }
    let inside = rest.trim_start_matches('`');
    let ticks = rest.len() - inside.len();
    let mut at = 0;
    while let Some(found) = inside.get(at..).and_then(|rest| rest.find('`')) {
        let run = inside.get(at + found..).unwrap_or_default();
        let length = run.len() - run.trim_start_matches('`').len();
        at += found + length;
        if length == ticks {
            return ticks + at;
        }
    }
    ticks
}

/// The anchors of a page as GitHub makes them of headings, and those that the page names itself.
pub(super) fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut code = false;
    for line in page.lines() {
        code ^= line.trim_start().starts_with("```");
        if code {
            continue;
        }
        let title = line.trim_start_matches('#');
        if title.len() < line.len() && title.starts_with(' ') {
            let anchor = anchor_of(title.trim());
            let count = counts.entry(anchor.clone()).or_default();
            found.insert(match *count {
                0 => anchor,
                again => format!("{anchor}-{again}"),
            });
            *count += 1;
        }
        for mark in ["id=\"", "name=\""] {
            found.extend(
                line.split(mark)
                    .skip(1)
                    .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
            );
        }
    }
    found
}

/// Small letters, digits and underscores; a hyphen for each space, and nothing for other marks.
fn anchor_of(title: &str) -> String {
    let mut words = String::new();
    let mut rest = title;
    // Of a link in a title only its label shows.
    while let Some((before, (label, after))) = rest.split_once('[').and_then(|(before, link)| {
        let (label, after) = link.split_once("](")?;
        Some((before, (label, after.split_once(')')?.1)))
    }) {
        words.push_str(before);
        words.push_str(label);
        rest = after;
    }
    words.push_str(rest);
    let kept = words.chars().filter_map(|letter| match letter {
        ' ' | '-' => Some('-'),
        letter if letter.is_alphanumeric() || letter == '_' => Some(letter),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, &str, &str)> {
        let links = links(text).into_iter();
        links
            .map(|link| (link.line, link.label, link.target.unwrap_or("-")))
            .collect()
    }

    #[test]
    fn links_are_found_with_their_lines() {
        assert_eq!(
            found("a [b](c.md)\n[`D`], [`E`](f::G \"title\"),\n\n![h](i.png) and [j\nk](l)"),
            [
                (1, "b", "c.md"),
                (2, "`D`", "-"),
                (2, "`E`", "f::G"),
                (4, "h", "i.png"),
                (4, "j\nk", "l")
            ]
        );
    }

    #[test]
    fn code_and_escaped_brackets_hold_no_links() {
        assert_eq!(
            found("`[a](b)` ``[`c`](d)`` \\[e] `[f\n```\n[g](h)\n```\n[i](j)"),
            [(5, "i", "j")]
        );
    }

    #[test]
    fn a_link_within_a_link_and_parentheses_in_a_target_are_found() {
        assert_eq!(
            found("[![a](b.svg)](c_(d).md)"),
            [(1, "![a](b.svg)", "c_(d).md"), (1, "a", "b.svg")]
        );
    }

    #[test]
    fn a_definition_is_a_link_and_names_its_label() {
        assert_eq!(
            found("See [a] and [b].\n[a]: c.md\n[b]: serves pages"),
            [(1, "b", "-"), (2, "a", "c.md"), (3, "b", "-")]
        );
    }

    #[test]
    fn anchors_are_made_as_github_makes_them() {
        let page = "# Of `a_b`: one & two\n## Same\n## Same\n```\n# no\n```\n<a id=\"own\"></a>\n### [A link](b.md)'s\n";
        let expected = ["a-links", "of-a_b-one--two", "own", "same", "same-1"];
        assert_eq!(anchors(page).into_iter().collect::<Vec<_>>(), expected);
    }
}

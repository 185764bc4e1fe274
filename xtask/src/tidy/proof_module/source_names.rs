//! The names that a source file imports, defines and mentions.

use std::collections::BTreeSet;

use super::tokens::{SourceToken, tokens_of};

/// A path as its words, such as `crate`, `keys`, `Hotkey`.
pub(super) type NamePath<'a> = Vec<&'a str>;

/// A name that a `use` declaration brings into a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImportedName<'a> {
    /// `None` for a declaration that ends in `*`.
    pub(super) name: Option<&'a str>,
    pub(super) path: NamePath<'a>,
    /// Whether other files may find the name here.
    pub(super) is_passed_on: bool,
}

/// The names that a file imports, defines and mentions, as far as they can be read without compiling it.
#[derive(Debug, Default)]
pub(super) struct SourceNames<'a> {
    pub(super) imports: Vec<ImportedName<'a>>,
    /// The items of the file, those of its inline modules too.
    pub(super) items: BTreeSet<&'a str>,
    /// Paths of at least two words outside `use` declarations.
    pub(super) paths: BTreeSet<NamePath<'a>>,
    /// Words outside `use` declarations.
    pub(super) words: BTreeSet<&'a str>,
    /// The paths between `impl` and its body, and those in each call of a macro that makes items: a file may implement
    /// something for a type of another file, which need not name it.
    pub(super) headers: Vec<BTreeSet<NamePath<'a>>>,
    /// Words that bring code or names into reach in ways that this reader does not follow.
    pub(super) unclear: BTreeSet<&'a str>,
}

/// Keywords in front of the name of an item.
const ITEMS: [&str; 8] = [
    "struct", "enum", "union", "trait", "type", "fn", "const", "static",
];
/// Macros and attributes that bring code or names into reach without a path.
const UNCLEAR: [&str; 5] = [
    "macro_use",
    "macro_export",
    "include",
    "include_str",
    "include_bytes",
];

impl<'a> SourceNames<'a> {
    /// Reads a file.
    pub(super) fn read(text: &'a str) -> Self {
        let tokens = tokens_of(text);
        let mut reader = NameReader {
            left: &tokens,
            names: Self::default(),
            blocks: Vec::new(),
        };
        reader.run();
        reader.names
    }
}

struct NameReader<'a, 't> {
    left: &'t [SourceToken<'a>],
    names: SourceNames<'a>,
    /// The open braces; true for an inline module's.
    blocks: Vec<bool>,
}

impl<'a> NameReader<'a, '_> {
    fn run(&mut self) {
        let (mut before, mut public, mut module) = (None, false, false);
        while let Some(token) = self.next() {
            let was_public = std::mem::take(&mut public);
            match token {
                SourceToken::Word("pub") => {
                    self.skip_parentheses();
                    public = true;
                }
                SourceToken::Word("use") if self.peek() != Some(SourceToken::Mark('<')) => {
                    self.read_declaration(was_public);
                }
                SourceToken::Word(word) => {
                    if word == "impl" && is_start_of_item(before) {
                        self.read_header();
                    }
                    module = word == "mod";
                    if self.is_among_items() {
                        self.read_item(word);
                    }
                    self.read_path(word);
                    // The name of the module stands between the keyword and the brace.
                    if module && let Some(SourceToken::Word(name)) = self.peek() {
                        self.names.items.insert(name);
                        self.next();
                    }
                }
                SourceToken::Mark('{') => self.blocks.push(std::mem::take(&mut module)),
                SourceToken::Mark('}') => {
                    self.blocks.pop();
                }
                SourceToken::Mark(_) | SourceToken::Joint => module = false,
            }
            before = Some(token);
        }
    }

    fn next(&mut self) -> Option<SourceToken<'a>> {
        let (first, rest) = self.left.split_first()?;
        self.left = rest;
        Some(*first)
    }

    fn peek(&self) -> Option<SourceToken<'a>> {
        self.left.first().copied()
    }

    /// Whether the reader stands outside functions, types and implementations.
    fn is_among_items(&self) -> bool {
        self.blocks.iter().all(|is_module| *is_module)
    }

    fn skip_parentheses(&mut self) {
        if self.peek() == Some(SourceToken::Mark('(')) {
            while self.next().is_some_and(|token| token != SourceToken::Mark(')')) {}
        }
    }

    /// Reads a `use` declaration. The names of an inline module are used with the file: a path into that module ends at
    /// the file.
    fn read_declaration(&mut self, is_public: bool) {
        let first = self.names.imports.len();
        let inline = self.inline_modules();
        self.read_import(&[], is_public && self.blocks.is_empty());
        for import in self.names.imports.iter_mut().skip(first) {
            leave_inline_modules(&mut import.path, inline);
        }
    }

    /// The number of inline modules around the reader.
    fn inline_modules(&self) -> usize {
        self.blocks.iter().filter(|is_module| **is_module).count()
    }

    /// Reads one branch of a `use` declaration.
    fn read_import(&mut self, before: &[&'a str], is_passed_on: bool) {
        let mut path = before.to_vec();
        let mut name = None;
        loop {
            match self.peek() {
                Some(SourceToken::Word("as")) => {
                    self.next();
                    name = self.next();
                }
                Some(SourceToken::Word(word)) => {
                    self.next();
                    path.push(word);
                }
                Some(SourceToken::Joint | SourceToken::Mark('$')) => {
                    self.next();
                }
                Some(SourceToken::Mark('*')) => {
                    self.next();
                    self.names.imports.push(ImportedName {
                        name: None,
                        path,
                        is_passed_on,
                    });
                    return;
                }
                Some(SourceToken::Mark('{')) => {
                    self.next();
                    while self.peek().is_some_and(|token| token != SourceToken::Mark('}')) {
                        self.read_import(&path, is_passed_on);
                        if self.peek() != Some(SourceToken::Mark('}')) {
                            self.next();
                        }
                    }
                    self.next();
                    return;
                }
                Some(SourceToken::Mark(_)) | None => break,
            }
        }
        if path.len() == before.len() {
            return;
        }
        if path.len() > 1 && path.last() == Some(&"self") {
            path.pop();
        }
        let name = match name {
            Some(SourceToken::Word(word)) => Some(word),
            Some(SourceToken::Joint | SourceToken::Mark(_)) | None => path.last().copied(),
        };
        self.names.imports.push(ImportedName {
            name,
            path,
            is_passed_on,
        });
    }

    /// Reads the name of an item, and the call of a macro that makes items.
    fn read_item(&mut self, word: &'a str) {
        if ITEMS.contains(&word)
            && let Some(SourceToken::Word(name)) = self.peek()
        {
            self.names.items.insert(name);
        }
        let [SourceToken::Mark('!'), rest @ ..] = self.left else {
            return;
        };
        if word == "macro_rules" {
            if let Some(SourceToken::Word(name)) = rest.first() {
                self.names.items.insert(name);
            }
        } else {
            let paths = paths_of(until_closed(rest));
            self.names.headers.push(paths);
        }
    }

    fn read_header(&mut self) {
        let end = self
            .left
            .iter()
            .position(|token| matches!(token, SourceToken::Mark('{' | ';') | SourceToken::Word("where")));
        let header = self.left.get(..end.unwrap_or(self.left.len()));
        self.names.headers.push(paths_of(header.unwrap_or_default()));
    }

    /// Reads the rest of a path that begins with this word.
    fn read_path(&mut self, word: &'a str) {
        if UNCLEAR.contains(&word) {
            self.names.unclear.insert(word);
        }
        let mut path = vec![word];
        while let [SourceToken::Joint, SourceToken::Word(word), ..] = self.left {
            path.push(word);
            self.left = self.left.get(2..).unwrap_or_default();
        }
        leave_inline_modules(&mut path, self.inline_modules());
        self.names.words.extend(&path);
        if path.len() > 1 {
            self.names.paths.insert(path);
        }
    }
}

/// Makes a path of an inline module one of its file: there `super` is the file itself.
fn leave_inline_modules(path: &mut NamePath<'_>, inline: usize) {
    let above = path.iter().take_while(|word| **word == "super").count();
    path.drain(..above.min(inline));
}

/// Whether an item may begin behind this token.
fn is_start_of_item(before: Option<SourceToken<'_>>) -> bool {
    match before {
        None | Some(SourceToken::Mark('{' | '}' | ';' | ']') | SourceToken::Word("unsafe")) => true,
        Some(SourceToken::Mark(_) | SourceToken::Word(_) | SourceToken::Joint) => false,
    }
}

/// Tokens up to the bracket that closes the first one.
fn until_closed<'a, 't>(tokens: &'t [SourceToken<'a>]) -> &'t [SourceToken<'a>] {
    let mut depth = 0_usize;
    let end = tokens.iter().position(|token| {
        match token {
            SourceToken::Mark('(' | '[' | '{') => depth += 1,
            SourceToken::Mark(')' | ']' | '}') => depth = depth.saturating_sub(1),
            SourceToken::Mark(_) | SourceToken::Joint | SourceToken::Word(_) => {}
        }
        depth == 0
    });
    tokens.get(..end.unwrap_or(tokens.len())).unwrap_or_default()
}

/// The paths among tokens.
fn paths_of<'a>(tokens: &[SourceToken<'a>]) -> BTreeSet<NamePath<'a>> {
    let mut found = BTreeSet::new();
    let mut path = Vec::new();
    let mut joined = false;
    for token in tokens {
        match token {
            SourceToken::Word(word) => {
                if !joined {
                    found.insert(std::mem::take(&mut path));
                }
                path.push(*word);
                joined = false;
            }
            SourceToken::Joint => joined = true,
            SourceToken::Mark(_) => {
                found.insert(std::mem::take(&mut path));
                joined = false;
            }
        }
    }
    found.insert(path);
    found.remove(&Vec::new());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(text: &str) -> Vec<(String, String, bool)> {
        let names = SourceNames::read(text);
        let imports = names.imports.iter();
        let shown = imports.map(|import| {
            let name = import.name.unwrap_or("*").to_owned();
            (name, import.path.join("::"), import.is_passed_on)
        });
        shown.collect()
    }

    #[test]
    fn every_branch_of_a_declaration_is_an_import() {
        let text =
            "pub use a::{self, b::{C, D as E}, f::*,};\nuse g as _;\npub(crate) use h;\nuse {i, j::k};";
        let expected = [
            ("a", "a", true),
            ("C", "a::b::C", true),
            ("E", "a::b::D", true),
            ("*", "a::f", true),
            ("_", "g", false),
            ("h", "h", true),
            ("i", "i", false),
            ("k", "j::k", false),
        ];
        let expected = expected.map(|(name, path, passed)| (name.to_owned(), path.to_owned(), passed));
        assert_eq!(imports(text), expected);
    }

    #[test]
    fn items_words_and_paths_are_read_outside_declarations() {
        let text = "use not::These;\npub struct A(B);\nimpl A { fn inner() { c::d::E::f(); } }\nmacro_rules! g { () => {} }\n\
                    pub mod h { pub fn i() { super::j(); super::super::k(); } }\nmod l;";
        let names = SourceNames::read(text);
        let items: Vec<_> = names.items.into_iter().collect();
        assert_eq!(items, ["A", "g", "h", "i", "l"]);
        let paths: Vec<_> = names.paths.iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["c::d::E::f", "super::k"]);
        assert!(names.words.contains("B") && names.words.contains("j"));
        assert!(!names.words.contains("These"));
    }

    #[test]
    fn headers_are_those_of_implementations_and_of_macros_that_make_items() {
        let text = "impl<T: A> b::B<T> for C where D: E { fn f() -> impl G { h!(I); } }\nmake!(J, k::K);\nfn l(m: impl N) {}";
        let names = SourceNames::read(text);
        let headers: Vec<Vec<String>> = names
            .headers
            .iter()
            .map(|header| header.iter().map(|path| path.join("::")).collect())
            .collect();
        assert_eq!(headers, [vec!["A", "C", "T", "b::B", "for"], vec!["J", "k::K"]]);
    }

    #[test]
    fn macros_that_bring_files_or_names_are_unclear() {
        assert!(
            SourceNames::read("const A: &str = \"include_str!\";")
                .unclear
                .is_empty()
        );
        let names = SourceNames::read(
            "const A: &str = include_str!(\"a\");\n#[macro_export]\nmacro_rules! b { () => {} }",
        );
        let unclear: Vec<_> = names.unclear.into_iter().collect();
        assert_eq!(unclear, ["include_str", "macro_export"]);
    }

    #[test]
    fn a_declaration_that_ends_too_early_ends_the_reading() {
        for text in [
            "use",
            "use a::",
            "use a::{b",
            "use ;",
            "use }",
            "pub(",
            "mod",
            "a!",
            "use a as",
        ] {
            SourceNames::read(text);
        }
    }
}

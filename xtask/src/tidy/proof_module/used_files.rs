//! The files that a crate's code reaches, by the paths that its sources name. Nothing is compiled: a file that a path
//! may lead to counts as used, so there may be more files than the compiler uses, and none is missing.

use std::collections::{BTreeMap, BTreeSet};

use super::source_names::SourceNames;

/// The files that are reached, and the names that led on through files which are not reached themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UsedFiles {
    /// Paths of files.
    pub(super) files: BTreeSet<String>,
    /// For each file that passes names on: the name, and the path that it stands for.
    pub(super) passed: BTreeMap<String, BTreeSet<String>>,
    /// Files with words that bring code into reach in a way that is not followed here, and such a word.
    pub(super) unclear: BTreeMap<String, String>,
}

/// A file of a crate: its path in the checkout, and its names.
struct CrateFile<'a> {
    path: &'a str,
    names: SourceNames<'a>,
}

/// The files of crates by module, such as `muster_protocol::keys`.
pub(super) struct CrateFiles<'a>(BTreeMap<String, CrateFile<'a>>);

impl<'a> CrateFiles<'a> {
    /// Reads files. Each has the name of its crate as code writes it, the path below the crate's `src/`, the path in
    /// the checkout, and its text without tests.
    pub(super) fn read(files: impl Iterator<Item = (String, &'a str, &'a str, &'a str)>) -> Self {
        let files = files.map(|(package, below, path, text)| {
            let names = SourceNames::read(text);
            (module_of(&package, below), CrateFile { path, names })
        });
        Self(files.collect())
    }

    /// The files that the crate of this name reaches.
    pub(super) fn used_by(&self, package: &str) -> UsedFiles {
        let mut search = UseSearch {
            all: &self.0,
            used: BTreeSet::new(),
            open: vec![package.to_owned()],
            passed: BTreeMap::new(),
        };
        loop {
            search.run();
            // A file may implement a trait for a used type without being named itself.
            let implementing: Vec<String> = search.implementing().collect();
            if implementing.is_empty() {
                break;
            }
            search.open = implementing;
        }
        let file = |module: &String| self.0.get(module);
        let used = || search.used.iter().filter_map(file);
        UsedFiles {
            files: used().map(|file| file.path.to_owned()).collect(),
            passed: search
                .passed
                .iter()
                .filter(|(module, _)| !search.used.contains(*module))
                .filter_map(|(module, names)| Some((file(module)?.path.to_owned(), names.clone())))
                .collect(),
            // A macro that a crate exports is found under the crate's own name, so even an unused file may hold it.
            unclear: self
                .0
                .iter()
                .filter_map(|(module, file)| {
                    let is_used = search.used.contains(module);
                    let mut words = file.names.unclear.iter();
                    let word = words.find(|word| is_used || **word == "macro_export")?;
                    Some((file.path.to_owned(), (*word).to_owned()))
                })
                .collect(),
        }
    }
}

/// The module of a file: `muster_protocol::wire` for `wire/mod.rs` and for `wire.rs`.
fn module_of(package: &str, below: &str) -> String {
    let path = below.strip_suffix(".rs").unwrap_or(below);
    let words = path.split('/').filter(|word| !["lib", "mod"].contains(word));
    [package].into_iter().chain(words).collect::<Vec<_>>().join("::")
}

struct UseSearch<'s, 'a> {
    all: &'s BTreeMap<String, CrateFile<'a>>,
    used: BTreeSet<String>,
    /// Modules that are used, and not looked at yet.
    open: Vec<String>,
    passed: BTreeMap<String, BTreeSet<String>>,
}

impl UseSearch<'_, '_> {
    fn run(&mut self) {
        let all = self.all;
        while let Some(module) = self.open.pop() {
            let Some(CrateFile { names, .. }) = all.get(&module) else {
                continue;
            };
            if !self.used.insert(module.clone()) {
                continue;
            }
            for import in &names.imports {
                match import.name {
                    None => self.use_all(&module, &import.path),
                    // A name that is only passed on is used once somebody asks for it.
                    Some(name) if import.is_passed_on && !names.words.contains(name) => {}
                    Some(_) => self.use_path(&module, &import.path),
                }
            }
            for path in &names.paths {
                self.use_path(&module, path);
            }
        }
    }

    /// Adds the files that a path within this module leads to.
    fn use_path(&mut self, module: &str, path: &[&str]) {
        let mut followed = FollowedPath::default();
        self.follow(module, path, &mut followed);
        self.open.extend(followed.ends);
        for (module, name) in followed.passed {
            self.passed.entry(module).or_default().insert(name);
        }
    }

    /// Adds every file that a declaration with `*` brings within reach.
    fn use_all(&mut self, module: &str, path: &[&str]) {
        let mut followed = FollowedPath::default();
        self.follow(module, path, &mut followed);
        let mut open = followed.modules;
        self.open.extend(followed.ends);
        let mut seen = BTreeSet::new();
        while let Some(module) = open.pop() {
            if !seen.insert(module.clone()) {
                continue;
            }
            self.open.push(module.clone());
            let Some(CrateFile { names, .. }) = self.all.get(&module) else {
                continue;
            };
            for import in &names.imports {
                let mut followed = FollowedPath::default();
                self.follow(&module, &import.path, &mut followed);
                self.open.extend(followed.ends);
                open.extend(followed.modules);
            }
        }
    }

    /// Follows a path from the scope of a module.
    fn follow(&self, module: &str, path: &[&str], found: &mut FollowedPath) {
        let Some((first, rest)) = path.split_first() else {
            found.modules.push(module.to_owned());
            return;
        };
        let root = module.split("::").next().unwrap_or(module);
        match *first {
            "crate" => self.follow_within(root, rest, found),
            "self" => self.follow_within(module, rest, found),
            "super" => {
                let above = module.rsplit_once("::").map_or(module, |(above, _)| above);
                if rest.first() == Some(&"super") {
                    self.follow(above, rest, found);
                } else {
                    self.follow_within(above, rest, found);
                }
            }
            package if self.all.contains_key(package) => self.follow_within(package, rest, found),
            name if self.knows(module, name) => self.follow_within(module, path, found),
            // The name may be one of a declaration with `*`; else it is a third party's, or of this very file.
            name => {
                if found.seen.insert((module.to_owned(), format!("*{name}"))) {
                    self.follow_stars(module, path, found);
                }
            }
        }
    }

    /// Whether a name is a module below this one, or imported there.
    fn knows(&self, module: &str, name: &str) -> bool {
        let names = self.all.get(module).map(|file| &file.names);
        let is_imported =
            names.is_some_and(|names| names.imports.iter().any(|import| import.name == Some(name)));
        is_imported || self.all.contains_key(&format!("{module}::{name}"))
    }

    /// Follows a path whose first word is a name of this module.
    fn follow_within(&self, module: &str, path: &[&str], found: &mut FollowedPath) {
        let Some((name, rest)) = path.split_first() else {
            found.modules.push(module.to_owned());
            return;
        };
        if !found.seen.insert((module.to_owned(), (*name).to_owned())) {
            return;
        }
        let Some(CrateFile { names, .. }) = self.all.get(module) else {
            return;
        };
        let below = format!("{module}::{name}");
        let is_module = self.all.contains_key(&below);
        if is_module {
            self.follow_within(&below, rest, found);
        }
        let mut is_imported = false;
        for import in names.imports.iter().filter(|import| import.name == Some(name)) {
            is_imported = true;
            let passed = format!("{name} = {}", import.path.join("::"));
            found.passed.insert((module.to_owned(), passed));
            self.follow(module, &[&import.path, rest].concat(), found);
        }
        if names.items.contains(name) && !is_module {
            found.ends.insert(module.to_owned());
        } else if !is_module && !is_imported {
            // A macro may have made it here, or it is among the names of a declaration with `*`.
            found.ends.insert(module.to_owned());
            self.follow_stars(module, path, found);
        }
    }

    /// Follows a path through every declaration with `*` of a module.
    fn follow_stars(&self, module: &str, path: &[&str], found: &mut FollowedPath) {
        let imports = self
            .all
            .get(module)
            .into_iter()
            .flat_map(|file| &file.names.imports);
        for import in imports.filter(|import| import.name.is_none()) {
            self.follow(module, &[&import.path, path].concat(), found);
        }
    }

    /// Files that nobody has named so far, and that implement something for a used type, with names of used files
    /// only.
    fn implementing(&self) -> impl Iterator<Item = String> {
        let files = self.all.iter().filter(|(module, _)| !self.used.contains(*module));
        let implementing = files.filter(|(module, file)| {
            file.names.headers.iter().any(|header| {
                let mut ends = BTreeSet::new();
                for path in header {
                    match path.as_slice() {
                        [name] if file.names.items.contains(name) => {
                            ends.insert((*module).clone());
                        }
                        path => {
                            let mut followed = FollowedPath::default();
                            self.follow(module, path, &mut followed);
                            ends.append(&mut followed.ends);
                        }
                    }
                }
                !ends.is_empty() && ends.is_subset(&self.used)
            })
        });
        implementing.map(|(module, _)| module.clone())
    }
}

/// The ends of a path.
#[derive(Default)]
struct FollowedPath {
    /// The modules whose files define the thing that the path names.
    ends: BTreeSet<String>,
    /// The modules that the path itself names.
    modules: Vec<String>,
    /// The names by which the path went on, each with the module that passes it on.
    passed: BTreeSet<(String, String)>,
    seen: BTreeSet<(String, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files that the crate `top` reaches; files are given as `crate/path below src`.
    fn used(files: &[(&str, &str)]) -> UsedFiles {
        let files = files.iter().map(|(path, text)| {
            let (package, below) = path.split_once('/').unwrap();
            (package.to_owned(), below, *path, *text)
        });
        CrateFiles::read(files).used_by("top")
    }

    fn names(files: &[(&str, &str)]) -> Vec<String> {
        used(files).files.into_iter().collect()
    }

    #[test]
    fn a_file_is_used_that_a_path_leads_to_and_no_other() {
        let low = [
            (
                "low/lib.rs",
                "pub mod a;\npub mod b;\nmod c;\npub use c::C;\npub use b::B;",
            ),
            ("low/a.rs", "use crate::c::made;\npub struct A;"),
            ("low/b.rs", "pub struct B;"),
            ("low/c.rs", "pub struct C;\npub fn made() {}"),
        ];
        for (text, expected) in [
            ("use low::C;", vec!["low/c.rs"]),
            ("fn f() { low::b::B; }", vec!["low/b.rs"]),
            ("use low::a::A;", vec!["low/a.rs", "low/c.rs"]),
            ("use low::a;\nfn f() { a::A; }", vec!["low/a.rs", "low/c.rs"]),
            ("use low::{self as l};\nfn f() { l::B; }", vec!["low/b.rs"]),
            ("use low::made_by_a_macro;", vec!["low/lib.rs"]),
            ("use other::C;", vec![]),
            ("use low::*;", vec!["low/b.rs", "low/c.rs", "low/lib.rs"]),
        ] {
            let files = [&[("top/lib.rs", text)][..], &low].concat();
            let expected: Vec<&str> = expected.into_iter().chain(["top/lib.rs"]).collect();
            assert_eq!(names(&files), expected, "{text}");
        }
    }

    #[test]
    fn modules_reach_one_another_by_relative_paths() {
        let files = [
            ("top/lib.rs", "mod a;\npub use a::b::B;\nmod unused;"),
            ("top/a/mod.rs", "pub mod b;\npub mod c;\npub mod d;\nmod unused;"),
            ("top/a/b.rs", "use super::c::C;\npub struct B;"),
            ("top/a/c.rs", "mod inner { use super::super::d::D; }"),
            ("top/a/d.rs", "fn d() { super::super::e::e() }"),
            ("top/e.rs", ""),
            ("top/a/unused.rs", ""),
            ("top/unused.rs", ""),
        ];
        assert_eq!(names(&files), ["top/lib.rs"], "nobody asks for B");
        let mut files = files;
        files[0].1 = "mod a;\npub use a::b::B;\nmod unused;\nfn f(b: B) {}";
        assert_eq!(
            names(&files),
            ["top/a/b.rs", "top/a/c.rs", "top/a/d.rs", "top/e.rs", "top/lib.rs"]
        );
    }

    #[test]
    fn a_name_that_is_passed_on_keeps_the_way_that_it_took() {
        let of = |lib: &str| {
            used(&[
                ("top/lib.rs", "use low::A;"),
                ("low/lib.rs", lib),
                ("low/a.rs", "pub struct A;"),
                ("low/b.rs", "pub struct B;\nuse crate::a::A;"),
            ])
        };
        let found = of("mod a;\nmod b;\npub use a::A;\npub use b::B;");
        assert_eq!(found.passed.len(), 1);
        let names: Vec<_> = found.passed["low/lib.rs"].iter().collect();
        assert_eq!(names, ["A = a::A"]);
        let other = of("mod a;\nmod b;\npub use b::B as A;");
        assert_ne!(found, other);
        assert_eq!(
            of("mod a;\nmod b;\npub use a::A;\npub use b::C;"),
            found,
            "another name"
        );
    }

    #[test]
    fn a_file_that_implements_something_for_used_types_is_used() {
        let of = |text: &str| {
            let files = [
                ("top/lib.rs", "use low::{A, Trait};"),
                (
                    "low/lib.rs",
                    "mod a;\nmod b;\nmod c;\nmod d;\npub use a::{A, Trait};",
                ),
                (
                    "low/a.rs",
                    "pub struct A;\npub trait Trait {}\nmacro_rules! make { () => {} }\npub(crate) use make;",
                ),
                ("low/b.rs", text),
                ("low/c.rs", "pub struct C;"),
            ];
            names(&files).contains(&"low/b.rs".to_owned())
        };
        assert!(of("use crate::a::A;\nimpl A { fn b() {} }"));
        assert!(of("impl<T> crate::Trait for Vec<T> {}"));
        assert!(of("use crate::A;\nimpl From<A> for String {}"));
        assert!(of("use crate::a::{A, make};\nmake!(A);"));
        assert!(
            !of("use crate::{A, c::C};\nimpl From<A> for C {}"),
            "nobody can have a C"
        );
        assert!(
            !of("use crate::A;\npub struct B;\nimpl From<A> for B {}"),
            "nobody can have a B"
        );
        assert!(!of("use crate::A;\npub fn b(a: A) {}"), "nobody calls it");
    }

    #[test]
    fn words_that_cannot_be_followed_are_told() {
        let found = used(&[
            ("top/lib.rs", "use low::A;"),
            ("low/lib.rs", "mod a;\nmod b;\npub use a::A;"),
            ("low/a.rs", "pub const A: &str = include_str!(\"a.txt\");"),
            ("low/b.rs", "pub const B: &str = include_str!(\"b.txt\");"),
        ]);
        let unclear: Vec<_> = found.unclear.into_iter().collect();
        assert_eq!(unclear, [("low/a.rs".to_owned(), "include_str".to_owned())]);
        let found = used(&[
            ("top/lib.rs", ""),
            ("low/lib.rs", "mod a;"),
            ("low/a.rs", "#[macro_export]\nmacro_rules! a { () => {} }"),
        ]);
        assert_eq!(found.unclear.len(), 1, "any file may export a macro");
    }
}

//! A page as a browser reads it: its elements with their attributes and texts.

use std::collections::BTreeMap;

use html5gum::{Token, Tokenizer};

/// Elements that have no end.
const VOID: [&str; 5] = ["input", "link", "meta", "br", "hr"];

/// One element with the text inside it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) text: String,
}

/// A page as its elements, in the order in which they begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Html {
    pub(crate) elements: Vec<Element>,
}

impl Element {
    pub(crate) fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map(String::as_str).unwrap_or_default()
    }
}

impl Html {
    /// Reads a page, and checks that every element ends in its turn and that nothing in it needs a wider policy.
    pub(crate) fn read(text: &str) -> Self {
        let words = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (mut elements, mut open): (Vec<Element>, Vec<usize>) = (Vec::new(), Vec::new());
        for Ok(token) in Tokenizer::new(text) {
            match token {
                Token::StartTag(tag) => {
                    let name = words(&tag.name);
                    let attributes = tag.attributes.iter();
                    let attributes = attributes.map(|(name, value)| (words(name), words(value)));
                    if !VOID.contains(&name.as_str()) && !tag.self_closing {
                        open.push(elements.len());
                    }
                    elements.push(Element {
                        name,
                        attributes: attributes.collect(),
                        text: String::new(),
                    });
                }
                Token::String(said) => {
                    for at in &open {
                        elements[*at].text.push_str(&words(&said));
                    }
                }
                Token::EndTag(tag) => {
                    let at = open.pop().expect("an element ends that never began");
                    assert_eq!(elements[at].name, words(&tag.name), "elements end in their turn");
                }
                Token::Comment(_) | Token::Doctype(_) => {}
                Token::Error(error) => panic!("{error:?} in {text}"),
            }
        }
        assert!(open.is_empty(), "every element ends");
        let page = Self { elements };
        page.check_policy();
        page
    }

    /// Nothing inline, nothing foreign.
    fn check_policy(&self) {
        for element in &self.elements {
            if element.name == "script" {
                assert!(
                    element.text.is_empty() && element.get("src").starts_with("/assets/"),
                    "{element:?}"
                );
            }
            assert!(!["style", "iframe", "object", "embed", "base"].contains(&element.name.as_str()));
            for (name, value) in &element.attributes {
                assert!(name != "style" && !name.starts_with("on"), "{element:?}");
                let leads = ["href", "src", "action"].contains(&name.as_str());
                assert!(!leads || value.starts_with(['/', '#']), "{name}={value}");
            }
        }
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.elements.iter().filter(move |element| element.name == name)
    }

    pub(crate) fn one<'a>(&'a self, name: &'a str) -> &'a Element {
        let found: Vec<_> = self.all(name).collect();
        assert_eq!(found.len(), 1, "one <{name}>: {found:?}");
        found[0]
    }

    pub(crate) fn by_id(&self, id: &str) -> &Element {
        self.elements
            .iter()
            .find(|element| element.get("id") == id)
            .unwrap_or_else(|| panic!("no element #{id}"))
    }

    /// The whole text of the page.
    pub(crate) fn text(&self) -> &str {
        &self.one("body").text
    }

    /// The value of a hidden field; all forms of a page have the same token.
    pub(crate) fn field(&self, name: &str) -> &str {
        let found = self.all("input").find(|input| input.get("name") == name);
        found.unwrap_or_else(|| panic!("no field {name}")).get("value")
    }
}

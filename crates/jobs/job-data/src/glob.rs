//! Matches patterns as Python's `fnmatch` does, which the hub's own client uses: `*` crosses folders. Pure.

/// Whether the whole of `name` matches. `*`, `?`, `[a-z]` and `[!a-z]` are special; all other characters stand for
/// themselves.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut in_name) = (0, 0);
    // The position of the last star and of the end of its match. Going back to the last star is enough, so the time is
    // bounded by the product of both lengths.
    let mut star: Option<(usize, usize)> = None;
    while let Some(&letter) = name.get(in_name) {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, in_name));
                at += 1;
                continue;
            }
            Some(_) => {
                if let Some(next) = one(&pattern, at, letter) {
                    (at, in_name) = (next, in_name + 1);
                    continue;
                }
            }
            None => {}
        }
        let Some((stood, swallowed)) = star else {
            return false;
        };
        star = Some((stood, swallowed + 1));
        (at, in_name) = (stood + 1, swallowed + 1);
    }
    pattern.iter().skip(at).all(|left| *left == '*')
}

/// Whether the single-character pattern at `at` matches `letter`; returns the position after the pattern.
fn one(pattern: &[char], at: usize, letter: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => match set(pattern, at + 1) {
            Some((members, negated, next)) => (holds(members, letter) != negated).then_some(next),
            // A bracket without an end is an ordinary character.
            None => (letter == '[').then_some(at + 1),
        },
        exact => (*exact == letter).then_some(at + 1),
    }
}

/// The members of a set, whether it is a `[!…]`, and the position after it.
fn set(pattern: &[char], start: usize) -> Option<(&[char], bool, usize)> {
    let negated = pattern.get(start) == Some(&'!');
    let first = start + usize::from(negated);
    // A bracket in the first place is a member.
    let close = (first + 1..pattern.len()).find(|at| pattern.get(*at) == Some(&']'))?;
    Some((pattern.get(first..close)?, negated, close + 1))
}

fn holds(members: &[char], letter: char) -> bool {
    let mut rest = members;
    while let Some((first, after)) = rest.split_first() {
        rest = match after {
            ['-', last, further @ ..] => {
                if (*first..=*last).contains(&letter) {
                    return true;
                }
                further
            }
            _ => {
                if *first == letter {
                    return true;
                }
                after
            }
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutator;

    #[test]
    fn as_fnmatch_does() {
        for (pattern, name, expected) in [
            ("*", "a/b/c", true),
            ("*.json", "data/sub/file.json", true),
            ("*.json", "file.jsonl", false),
            ("data/*.json", "data/a/b.json", true),
            ("config.json", "config.json", true),
            ("config.json", "Config.json", false),
            ("model-0000?-of-*", "model-00001-of-00002.safetensors", true),
            ("[ab]x", "bx", true),
            ("[!ab]x", "bx", false),
            ("[!ab]x", "cx", true),
            ("[a-c]", "b", true),
            ("[a-c]", "-", false),
            ("[]a]", "]", true),
            ("[!]a]", "]", false),
            ("[", "[", true),
            ("[a", "[a", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**", "", true),
            ("ä?", "äö", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_nasty_pattern_takes_no_exponential_time() {
        assert!(!matches(&("a*".repeat(200) + "b"), &"a".repeat(2_000)));
        assert!(!matches(&("*a".repeat(100) + "b"), &"a".repeat(2_000)));
    }

    #[test]
    fn damaged_patterns_match_or_not() {
        let samples = ["*.json", "[a-z]*", "[!]]?", "a[b-", "data/**/x"].map(|text| text.as_bytes().to_vec());
        let mut mutator = Mutator::seeded(14);
        for _ in 0..20_000 {
            let (pattern, name) = (mutator.next_from(&samples), mutator.next_from(&samples));
            let (pattern, name) = (String::from_utf8_lossy(&pattern), String::from_utf8_lossy(&name));
            let found = matches(&pattern, &name);
            if !pattern.contains(['*', '?', '[']) {
                assert_eq!(found, pattern == name);
            }
        }
    }
}

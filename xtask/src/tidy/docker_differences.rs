//! docs/differences-from-docker.md, which is made of the table that the differential test against docker reads.

use serde::Deserialize;

use super::{Finding, Tree};

const TABLE: &str = "executor/tests/differential/differences.toml";
const COMMANDS: &str = "executor/tests/differential/commands.toml";
const PAGE: &str = "docs/differences-from-docker.md";

/// The exceptions that are rows of no table, because the images of the test have no such folders.
const OTHER_EXCEPTIONS: &str = "\
No command of the test shows these exceptions, which [jobs.md](jobs.md#the-container-of-a-job) explains:

* A home folder of more than 1 GiB can be read and not written.
* Device nodes in the folders that are copied to the job's disk are left out.
* Volumes of the image at `/etc`, `/usr` and other folders of the system can be read and not written.
";

#[derive(Deserialize)]
struct DifferenceTable {
    difference: Vec<Difference>,
}

/// A difference between a job and `docker run --network none`.
#[derive(Deserialize)]
struct Difference {
    key: String,
    title: String,
    docker: String,
    muster: String,
    reason: String,
    remedy: String,
}

#[derive(Deserialize)]
struct CommandTable {
    command: Vec<Command>,
}

#[derive(Deserialize)]
struct Command {
    name: String,
    differs: Option<String>,
}

/// The page is the one that its table gives.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    if tree.get(TABLE).is_none() && tree.get(PAGE).is_none() {
        return Vec::new();
    }
    match page(tree) {
        Err(fault) => vec![fault],
        Ok(right) if tree.get(PAGE) == Some(&right) => Vec::new(),
        Ok(_) => {
            let says = format!("it differs from {TABLE}: run `cargo xtask tidy --fix`");
            vec![Finding::fault(PAGE, None, says)]
        }
    }
}

/// The right page, if there is a wrong one.
pub(super) fn fix(tree: &Tree) -> Option<(&'static str, String)> {
    let right = page(tree).ok()?;
    (tree.get(PAGE) != Some(&right)).then_some((PAGE, right))
}

fn page(tree: &Tree) -> Result<String, Finding> {
    let text = |path: &str| {
        let missing = || Finding::fault(path, None, format!("{PAGE} is made of it, and it is missing"));
        tree.get(path).ok_or_else(missing)
    };
    let unreadable =
        |path: &'static str| move |error: toml::de::Error| Finding::fault(path, None, error.to_string());
    let table: DifferenceTable = toml::from_str(text(TABLE)?).map_err(unreadable(TABLE))?;
    let commands: CommandTable = toml::from_str(text(COMMANDS)?).map_err(unreadable(COMMANDS))?;
    let mut page = format!(
        "# Differences from docker\n\n\
         A job does what `docker run --network none IMAGE COMMAND` does: the same exit code, the same bytes on each stream,\n\
         the same files. This page has the exceptions. It is made of `{TABLE}`\n\
         by `cargo xtask tidy --fix`; a test runs {} commands by docker and by an executor, and fails for a difference that\n\
         is not here. There is no network in either of them but the job's own loopback.\n\n{OTHER_EXCEPTIONS}",
        commands.command.len()
    );
    for one in &table.difference {
        let shown = commands
            .command
            .iter()
            .filter(|command| command.differs.as_ref() == Some(&one.key));
        let shown: Vec<_> = shown.map(|command| format!("\"{}\"", command.name)).collect();
        page.push_str(&format!("\n## {}\n\n", one.title));
        for (name, words) in [
            ("docker", &one.docker),
            ("a job", &one.muster),
            ("the reason", &one.reason),
            ("what to do", &one.remedy),
        ] {
            page.push_str(&wrap(&format!("* **{name}**: {words}")));
        }
        page.push_str(&wrap(&format!("* **shown by** {}", shown.join(", "))));
    }
    Ok(page)
}

/// An item of a list in lines of at most 120 columns.
fn wrap(item: &str) -> String {
    let mut lines = vec![String::new()];
    for word in item.split_whitespace() {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > 120 {
            lines.push("  ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            if !line.trim().is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFFERENCE: &str = "[[difference]]\nkey = \"root\"\ntitle = \"The root\"\ndocker = \"a\"\nmuster = \"b\"\n\
                              reason = \"c\"\nremedy = \"d\"\n";
    const COMMAND: &str = "[[command]]\nname = \"write\"\ndiffers = \"root\"\n";

    #[test]
    fn the_page_follows_from_its_tables() {
        let tree = |page: &str| Tree::of(&[(TABLE, DIFFERENCE), (COMMANDS, COMMAND), (PAGE, page)]);
        assert_eq!(check(&tree("old")).len(), 1);
        let (path, page) = fix(&tree("old")).unwrap();
        assert!(
            page.contains("## The root\n\n* **docker**: a\n* **a job**: b\n"),
            "{page}"
        );
        assert!(page.contains("* **shown by** \"write\"\n"), "{page}");
        assert!(page.contains("\n\nNo command of the test shows these"), "{page}");
        assert_eq!(
            (path, check(&tree(&page)), fix(&tree(&page))),
            (PAGE, vec![], None)
        );
        assert_eq!(check(&Tree::default()), vec![]);
        assert_eq!(check(&Tree::of(&[(PAGE, "alone")])).len(), 1);
        assert_eq!(
            check(&Tree::of(&[(TABLE, "no table"), (COMMANDS, COMMAND)])).len(),
            1
        );
    }

    #[test]
    fn long_items_are_broken_between_words() {
        let item = format!("* {}", "word ".repeat(60));
        let wrapped = wrap(&item);
        assert!(wrapped.lines().all(|line| line.len() <= 120), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().count(), 61);
        assert!(wrapped.lines().nth(1).unwrap().starts_with("  word"), "{wrapped}");
    }
}

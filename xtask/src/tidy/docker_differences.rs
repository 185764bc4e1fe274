//! docs/differences-from-docker.md, which is made of the table that the differential test against docker reads.

use serde::Deserialize;

use super::{Finding, Tree};

const TABLE: &str = "executor/tests/differential/differences.toml";
/// The commands of every run of the tests, and those of a soak.
const COMMANDS: [&str; 2] = [
    "executor/tests/differential/commands.toml",
    "executor/tests/differential/soak.toml",
];
const PAGE: &str = "docs/differences-from-docker.md";

/// The result of the last run of all commands.
const MEASURED: &str = "\
On 29 November 2026, with docker 20.10.24 on two cores, all 154 commands did in docker with the bounds of a job what
they did in a job; 136 of them did so in docker as it is, and 18 show what stands here. The command is
`cargo nextest run --profile soak --run-ignored all -E 'test(/differential::/)'`, and three run in the test of the
subnets. Commands that were changed after the first run ran once more by themselves. Eight commands about the start of
a program came on 30 November, and did the same in all three.
";

/// The exceptions that are rows of no table, because no command of the corpus can show them.
const OTHER_EXCEPTIONS: &str = "\
No command shows these exceptions. [jobs.md](jobs.md#the-container-of-a-job) explains those of the container, and
`tests/tests/subnets` shows those of `muster job run`:

* A home folder of more than 1 GiB can be read and not written.
* Device nodes in the folders that are copied to the job's disk are left out.
* Volumes of the image at `/etc`, `/usr` and other folders of the system can be read and not written.
* Homes and volumes that the image does not have are made in memory, and every user may write to them.
* `localhost` leads to `::1` before `127.0.0.1` where the machine's kernel has IPv6, as docker does since version 26.
  Older ones have no `::1` in a container without a network.
* `/etc/resolv.conf` is the image's own, if it has one: docker writes the machine's name server into it, which a
  container without a network cannot reach.
* A folder of outputs belongs to the user who fetches it and who may write to all folders in it, with the permissions
  that the umask leaves. Links to paths below `/output` become relative. Links that lead out of the folder, pipes,
  sockets and device nodes are left out and named.
* Standard input (`-i -`) is read to its end before the job begins, and lies at `/volume/stdin` as well. docker hands
  on what comes, as it comes, and a terminal (`-it`), which a job cannot have.
* Ctrl-C cancels the job; docker hands the signal to the program. A client that is killed leaves the program running,
  as docker's does: `muster job logs ID --follow` goes on with it.
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

#[derive(Clone, Deserialize)]
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
    let read = |path| {
        let table: CommandTable = toml::from_str(text(path)?).map_err(unreadable(path))?;
        Ok(table.command)
    };
    let [suite, soak] = COMMANDS.map(read);
    let (suite, soak) = (suite?, soak?);
    let mut page = format!(
        "# Differences from docker\n\n\
         A job does what `docker run --network none IMAGE COMMAND` does: the same exit code, the same bytes on each stream,\n\
         the same files. This page has the exceptions. It is made of `{TABLE}`\n\
         by `cargo xtask tidy --fix`. A test runs {} commands by docker and by an executor, and fails for a difference that\n\
         is not here; `cargo xtask soak` runs {} more, of larger images. There is no network in either of them but the job's\n\
         own loopback.\n\n{MEASURED}\n{OTHER_EXCEPTIONS}",
        suite.len(),
        soak.len()
    );
    let commands = [suite, soak].concat();
    for one in &table.difference {
        let shown = commands
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
        let tree = |page: &str| {
            Tree::of(&[
                (TABLE, DIFFERENCE),
                (COMMANDS[0], COMMAND),
                (COMMANDS[1], "command = []"),
                (PAGE, page),
            ])
        };
        assert_eq!(check(&tree("old")).len(), 1);
        let (path, page) = fix(&tree("old")).unwrap();
        assert!(
            page.contains("## The root\n\n* **docker**: a\n* **a job**: b\n"),
            "{page}"
        );
        assert!(page.contains("* **shown by** \"write\"\n"), "{page}");
        assert!(page.contains("\n\nNo command shows these"), "{page}");
        assert_eq!(
            (path, check(&tree(&page)), fix(&tree(&page))),
            (PAGE, vec![], None)
        );
        assert_eq!(check(&Tree::default()), vec![]);
        assert_eq!(check(&Tree::of(&[(PAGE, "alone")])).len(), 1);
        assert_eq!(
            check(&Tree::of(&[
                (TABLE, "no table"),
                (COMMANDS[0], COMMAND),
                (COMMANDS[1], "command = []")
            ]))
            .len(),
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

//! Values of the command line in place of a file's: `--set KEY=VALUE`.

use toml::{Table, Value};

use crate::checker::Checker;
use crate::sections::CHECKPOINT_KEYS;
use crate::{KEYS, SECTIONS};

/// The section whose names need no section before them.
const PARAMETERS: &str = "parameters";

/// The section whose names are not the user's own.
const CHECKPOINT: &str = "checkpoint";

/// The keys whose values are texts, also where they look like numbers.
const TEXTS: [&str; 13] = [
    "image",
    "class",
    "device",
    "memory",
    "workdir",
    "entrypoint",
    "artifacts",
    "save",
    "webhook",
    "checkpoint.folder",
    "checkpoint.best",
    "checkpoint.signal",
    "checkpoint.resume_from",
];

/// Sets each `KEY=VALUE` in the table as if it stood in the file.
pub(crate) fn set_all(spec: &mut Checker, table: &mut Table, sets: &[String]) {
    for text in sets {
        if let Err(reason) = set(table, text) {
            spec.fault("--set", reason);
        }
    }
}

fn set(table: &mut Table, text: &str) -> Result<(), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("write KEY=VALUE, such as epochs=20, instead of {text:?}"))?;
    let Some((section, name)) = find(table, key) else {
        return Err(format!(
            "{key:?} is no value of the file; known are {}",
            known(table)
        ));
    };
    let value = read_value(section, name, value);
    let Some(section) = section else {
        table.insert(name.to_owned(), value);
        return Ok(());
    };
    let found = table
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()))
        .as_table_mut();
    // The checker names a section that is no table.
    if let Some(found) = found {
        found.insert(name.to_owned(), value);
    }
    Ok(())
}

/// The section, if any, and the name that a key means: a key of the file's head, a key behind its section and a dot, or
/// the name of a parameter.
fn find<'a>(table: &Table, key: &'a str) -> Option<(Option<&'static str>, &'a str)> {
    if KEYS.contains(&key) && !SECTIONS.contains(&key) {
        return Some((None, key));
    }
    let has = |section: &str, name: &str| {
        let found = table.get(section).and_then(Value::as_table);
        found.is_some_and(|found| found.contains_key(name))
    };
    if let Some((section, name)) = key.split_once('.')
        && let Some(section) = SECTIONS.iter().copied().find(|known| *known == section)
    {
        let is_known = match section {
            CHECKPOINT => CHECKPOINT_KEYS.contains(&name),
            named => has(named, name),
        };
        return is_known.then_some((Some(section), name));
    }
    has(PARAMETERS, key).then_some((Some(PARAMETERS), key))
}

/// The value as it would stand in the file. Variables, parameters, inputs and rules are texts.
fn read_value(section: Option<&str>, name: &str, text: &str) -> Value {
    let is_text = match section {
        None => TEXTS.contains(&name),
        Some(CHECKPOINT) => TEXTS.contains(&format!("{CHECKPOINT}.{name}").as_str()),
        Some("outputs") => false,
        Some(_) => true,
    };
    let literal = (!is_text)
        .then(|| format!("value = {text}").parse::<Table>().ok())
        .flatten()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"));
    literal.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// The keys that can be set, for an error.
fn known(table: &Table) -> String {
    let head = KEYS.iter().filter(|key| !SECTIONS.contains(key));
    let mut known: Vec<String> = head.map(|key| (*key).to_owned()).collect();
    for section in SECTIONS {
        let names: Vec<&str> = match section {
            CHECKPOINT => CHECKPOINT_KEYS.to_vec(),
            named => {
                let found = table.get(named).and_then(Value::as_table);
                found
                    .into_iter()
                    .flat_map(Table::keys)
                    .map(String::as_str)
                    .collect()
            }
        };
        known.extend(names.iter().map(|name| match section {
            PARAMETERS => (*name).to_owned(),
            section => format!("{section}.{name}"),
        }));
    }
    known.join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::read;

    const FILE: &str = r#"
image = "a"
timeout = "1h"
[inputs]
"train.py" = "train.py"
[outputs]
"model.bin" = true
[env]
MODE = "fast"
[parameters]
epochs = 10
timeout = 3
"#;

    fn set(sets: &[&str]) -> Result<String, String> {
        let sets: Vec<_> = sets.iter().map(|&text| text.to_owned()).collect();
        let words = read(FILE, &sets, Path::new(""));
        words.map(|words| words.join(" ")).map_err(|faults| {
            let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })
    }

    #[test]
    fn a_value_of_the_command_line_stands_in_the_files_place() {
        for (text, words) in [
            ("epochs=20", "--env EPOCHS=20"),
            ("parameters.epochs=1e-4", "--env EPOCHS=1e-4"),
            ("timeout=2h", "--timeout 2h"),
            ("timeout=90", "--timeout 90"),
            ("parameters.timeout=4", "--env TIMEOUT=4"),
            ("env.MODE=true", "--env MODE=true"),
            ("inputs.train.py=other.py", "--input train.py=other.py"),
            ("outputs.model.bin=https://b/x", "--output model.bin=https://b/x"),
            ("image=b:3", "b:3"),
            ("priority=7", "--priority 7"),
            (r#"command=["x", "--y=z"]"#, "a -- x --y=z"),
            ("checkpoint.every=3", "--every 3"),
            ("workdir=/7", "--workdir=/7"),
            ("entrypoint=", "--entrypoint= "),
        ] {
            let all = set(&[text]).unwrap();
            assert!(all.contains(words), "{text}: {all}");
        }
        assert!(!set(&["outputs.model.bin=false"]).unwrap().contains("--output"));
        let both = set(&["epochs=1", "epochs=2"]).unwrap();
        assert!(both.contains("EPOCHS=2") && !both.contains("EPOCHS=1"), "{both}");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones_and_a_bad_value_is_a_fault_of_its_key() {
        for text in [
            "epoch=20",
            "parameters.epoch=20",
            "EPOCHS=20",
            "inputs=x",
            "checkpoint.x=1",
            "=3",
        ] {
            let told = set(&[text]).unwrap_err();
            for known in [
                "timeout",
                "epochs",
                "env.MODE",
                "inputs.train.py",
                "checkpoint.every",
            ] {
                assert!(told.contains(known), "{text}: {told}");
            }
            assert!(told.contains("is no value of the file"), "{text}: {told}");
        }
        assert!(set(&["epochs"]).unwrap_err().contains("KEY=VALUE"));
        assert!(set(&["timeout=soon"]).unwrap_err().contains("timeout: "));
        assert!(set(&["command=train"]).unwrap_err().contains("command: "));
        assert!(set(&["priority=11", "epoch=1"]).unwrap_err().lines().count() == 2);
    }
}

//! The list of commands in `muster --help`, in groups: a newcomer looks for one command among thirty.

use clap::builder::StyledStr;
use clap::{Command as ClapCommand, Subcommand as _};

use super::Command;

/// The groups with their commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Begin", &["up", "doctor", "login", "explain"]),
    ("Jobs", &["job", "subnet", "files", "top", "webhook"]),
    ("Models", &["chat", "forward", "proof"]),
    ("Account", &["account", "keys", "wallet", "completions"]),
    (
        "Roles",
        &[
            "facilitator",
            "validator",
            "miner",
            "executor",
            "backup",
            "restore",
        ],
    ),
    (
        "Operators",
        &["route", "session", "grade", "score", "audit", "simulate"],
    ),
];

/// Columns of a command's name.
const NAME_WIDTH: usize = 11;

/// The template of the help of `muster`, with the commands in their groups.
pub(super) fn help_template() -> StyledStr {
    let commands = Command::augment_subcommands(ClapCommand::new("muster"));
    let mut listed = String::new();
    for (group, names) in GROUPS {
        listed += &format!("{group}:\n");
        for name in names {
            let about = commands.find_subcommand(name).and_then(ClapCommand::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            listed += &format!("  {name:NAME_WIDTH$}  {about}\n");
        }
        listed.push('\n');
    }
    StyledStr::from(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}Options:\n{{options}}\n\n`muster help COMMAND` \
         has the options of a command. docs/users has one page a task.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let commands = Command::augment_subcommands(ClapCommand::new("muster"));
        let shown = commands
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let mut shown: Vec<&str> = shown.map(ClapCommand::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }
}

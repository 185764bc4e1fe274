//! `muster miner enroll`, `muster miner executors` and `muster miner revoke`: the registry of a miner's persistent
//! executors. The flags `--enroll`, `--executors` and `--revoke` of `muster miner` do the same.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use muster_enrollment::{ExecutorRegistry, InvitationTerms};
use muster_process::SharedClock;
use muster_protocol::ExecutorClass;
use muster_terminal::print;

use crate::cli::{Miner, MinerCommand};
use crate::failure::{Failure, Result};
use crate::role_config::{ensure_store, read_config};

/// One order about the registry, and the miner's configuration.
pub(crate) struct RegistryOrder<'a> {
    config: Option<&'a Path>,
    action: RegistryAction<'a>,
}

enum RegistryAction<'a> {
    /// Print a token that admits executors.
    Enroll(TokenTerms),
    /// List the executors.
    List,
    /// Remove the executor whose certificate's fingerprint begins like this.
    Revoke(&'a str),
}

/// The terms of a token, as they stand on the command line.
struct TokenTerms {
    /// The configured class if there is none.
    class: Option<ExecutorClass>,
    capacity: u32,
    uses: u32,
    /// The seconds until it expires.
    lives: u64,
}

impl<'a> RegistryOrder<'a> {
    /// The order that the arguments of `muster miner` give, if they give one.
    pub(crate) fn of(args: &'a Miner) -> Option<Self> {
        let config = args.role.file.config.as_deref();
        let (config, action) = match &args.command {
            Some(MinerCommand::Enroll(asked)) => {
                let terms = TokenTerms {
                    class: asked.class,
                    capacity: asked.capacity,
                    uses: asked.uses,
                    lives: asked.lives,
                };
                (asked.file.config.as_deref(), RegistryAction::Enroll(terms))
            }
            Some(MinerCommand::Executors(file)) => (file.config.as_deref(), RegistryAction::List),
            Some(MinerCommand::Revoke(asked)) => (
                asked.file.config.as_deref(),
                RegistryAction::Revoke(&asked.fingerprint),
            ),
            Some(
                MinerCommand::Drain(_)
                | MinerCommand::Manifests(_)
                | MinerCommand::RotateCertificate(_)
                | MinerCommand::Show(_)
                | MinerCommand::Evidence(_),
            ) => return None,
            None if args.enroll => {
                let terms = TokenTerms {
                    class: args.class,
                    capacity: args.capacity,
                    uses: args.uses,
                    lives: args.lives,
                };
                (config, RegistryAction::Enroll(terms))
            }
            None if args.executors => (config, RegistryAction::List),
            None => (config, RegistryAction::Revoke(args.revoke.as_deref()?)),
        };
        Some(Self { config, action })
    }

    /// Carries it out; a running miner reads the registry again.
    pub(crate) fn carry_out(self, clock: &SharedClock) -> Result<ExitCode> {
        let config: muster_miner::Config = read_config(self.config)?;
        ensure_store(&config.store)?;
        let registry = ExecutorRegistry::new(&config.persistent.roll);
        match self.action {
            RegistryAction::Enroll(terms) => invite(&terms, &config, &registry, clock)?,
            RegistryAction::List => list(&registry)?,
            RegistryAction::Revoke(prefix) => {
                let (certificate, member) = registry.revoke(prefix).map_err(unusable)?;
                print::raw(&format!("removed: {} {}\n", certificate.hex(), member.name));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list(registry: &ExecutorRegistry) -> Result {
    for (certificate, member) in registry.executors().map_err(unusable)? {
        let (name, class, capacity) = (member.name, member.class, member.capacity);
        let since = member.enrolled;
        print::raw(&format!(
            "{}  {name}  {class}  {capacity} at once  enrolled {since}\n",
            certificate.hex()
        ));
    }
    Ok(())
}

/// Prints a token for persistent executors.
fn invite(
    terms: &TokenTerms,
    config: &muster_miner::Config,
    registry: &ExecutorRegistry,
    clock: &SharedClock,
) -> Result {
    let Some(address) = config.persistent.address() else {
        return Err(Failure::usage(
            "this miner takes no persistent executors: set standing.bind in its configuration",
        ));
    };
    let terms = InvitationTerms {
        class: terms.class.unwrap_or(config.executor.class),
        capacity: terms.capacity,
        lives: Duration::from_secs(terms.lives),
        uses: terms.uses,
    };
    let invitation = registry.invite(address, terms, clock.now()).map_err(unusable)?;
    print::raw(&format!("{invitation}\n"));
    Ok(())
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::coded(None, error)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// The order of a command line: its configuration, and the action as text.
    fn order(line: &str) -> Option<(String, String)> {
        let Command::Miner(args) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("{line} is no command of a miner")
        };
        let order = RegistryOrder::of(&args)?;
        let action = match order.action {
            RegistryAction::Enroll(terms) => {
                let class = terms
                    .class
                    .map_or_else(|| "configured".to_owned(), |class| class.to_string());
                format!("{class} {} {} {}", terms.capacity, terms.uses, terms.lives)
            }
            RegistryAction::List => "list".to_owned(),
            RegistryAction::Revoke(prefix) => format!("revoke {prefix}"),
        };
        let config = order.config.map(|path| path.display().to_string());
        Some((config.unwrap_or_default(), action))
    }

    #[test]
    fn commands_and_flags_give_the_same_orders() {
        for (command, flag) in [
            ("enroll --config m.toml", "--config m.toml --enroll"),
            (
                "enroll --class always_on.test --capacity 2 --uses 3 --lives 60 --config m.toml",
                "--config m.toml --enroll --class always_on.test --capacity 2 --uses 3 --lives 60",
            ),
            ("executors --config m.toml", "--config m.toml --executors"),
            ("revoke 3f --config m.toml", "--config m.toml --revoke 3f"),
        ] {
            let (command, flag) = (format!("muster miner {command}"), format!("muster miner {flag}"));
            let given = order(&command);
            assert_eq!(
                given.as_ref().map(|(config, _)| config.as_str()),
                Some("m.toml"),
                "{command}"
            );
            assert_eq!(given, order(&flag), "{command}");
        }
        assert_eq!(order("muster miner --config m.toml"), None);
        assert_eq!(order("muster miner drain --config m.toml"), None);
    }
}

//! A differential test against docker: what `docker run --network none` does with a command, a job does too.
//!
//! Each command of `tests/differential/commands.toml` runs three times: by docker as it is, by docker with the bounds
//! of a job, and by an executor. The last two must print the same to each stream and end with the same code. Where
//! plain docker differs, `tests/differential/differences.toml` has the reason; docs/differences-from-docker.md is made
//! of that table.

mod corpus;
mod images;
mod sides;

use muster_testbed::within;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::corpus::{Command, Through, commands, differences};
use self::images::{ImageVariant, TestImages};
use self::sides::{Ended, run_by_bounded_docker, run_by_executor, run_by_plain_docker};

/// The faults of one command, as text.
async fn compare(command: &Command, image: &str) -> Vec<String> {
    let (plain, bounded, ours) = tokio::join!(
        run_by_plain_docker(image, command),
        run_by_bounded_docker(image, command),
        run_by_executor(image, command),
    );
    let mut faults = Vec::new();
    if let Some(fault) = ours.difference_from(&bounded) {
        faults.push(format!("docker with a job's bounds does something else: {fault}"));
    }
    match (bounded.difference_from(&plain), &command.differs) {
        (None, None) | (Some(_), Some(_)) => {}
        (Some(fault), None) => faults.push(format!(
            "plain docker does something else, without a reason: {fault}"
        )),
        (None, Some(key)) => faults.push(format!(
            "plain docker does the same, although it differs by {key:?}"
        )),
    }
    faults
}

/// Runs every fourth command, from this one on.
async fn compare_quarter(first: usize) {
    let images = TestImages::load().await;
    let mut faults = Vec::new();
    let commands = commands();
    let through_executor = commands
        .iter()
        .filter(|command| command.through == Through::Executor);
    for command in through_executor.skip(first).step_by(4) {
        let image = images.name_of(&command.image);
        let found = within("a command of the corpus", compare(command, image)).await;
        faults.extend(
            found
                .into_iter()
                .map(|fault| format!("{}: {fault}", command.name)),
        );
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[tokio::test]
async fn the_first_quarter_of_the_corpus_does_what_docker_does() {
    compare_quarter(0).await;
}

#[tokio::test]
async fn the_second_quarter_of_the_corpus_does_what_docker_does() {
    compare_quarter(1).await;
}

#[tokio::test]
async fn the_third_quarter_of_the_corpus_does_what_docker_does() {
    compare_quarter(2).await;
}

#[tokio::test]
async fn the_fourth_quarter_of_the_corpus_does_what_docker_does() {
    compare_quarter(3).await;
}

#[test]
fn every_difference_has_a_command_that_shows_it_and_every_command_an_image() {
    let (commands, differences) = (commands(), differences());
    assert!(commands.len() >= 40, "{} commands", commands.len());
    for difference in &differences {
        let shows = |command: &&Command| command.differs.as_ref() == Some(&difference.key);
        assert!(
            commands.iter().any(|command| shows(&command)),
            "{}",
            difference.key
        );
    }
    for command in &commands {
        let is_known = |key: &String| differences.iter().any(|difference| difference.key == *key);
        assert!(command.differs.as_ref().is_none_or(is_known), "{}", command.name);
        assert!(
            TestImages::NAMES.contains(&command.image.as_str()),
            "{}",
            command.name
        );
        let same = commands.iter().filter(|other| other.name == command.name);
        assert_eq!(same.count(), 1, "{}", command.name);
    }
}

/// A command that shows what an image's settings do.
const SHOW_SETTINGS: &str = "id -u; id -g; id -G; pwd; echo \"$HOME\"; echo \"$A\"; echo \"$0 $#\"; \
    for d in . ~ /data /srv/v /output /tmp; do (echo x > $d/new) 2>/dev/null && stat -c '%n %u %g %a' $d/new || echo no; \
    ls -A $d 2>/dev/null | sort | head -5; stat -c '%u %g %a' $d 2>/dev/null; done";

#[test]
#[ignore = "soak: five hundred variants of an image's settings take a quarter of an hour"]
fn an_images_user_folders_volumes_and_variables_do_what_they_do_in_docker() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let images = runtime.block_on(TestImages::load());
    let mut runner = TestRunner::new(Config {
        cases: 500,
        failure_persistence: None,
        ..Config::default()
    });
    let variants = ImageVariant::any();
    let tried = runner.run(&variants, |variant| {
        let found = runtime.block_on(async {
            let image = images.vary(&variant).await;
            let command = Command::shell(SHOW_SETTINGS, variant.has_entrypoint());
            let (bounded, ours) = tokio::join!(
                run_by_bounded_docker(image.name(), &command),
                run_by_executor(image.name(), &command),
            );
            ours.difference_from(&bounded)
        });
        prop_assert_eq!(found, None);
        Ok(())
    });
    tried.unwrap();
}

#[test]
fn streams_are_compared_line_by_line_and_the_first_difference_is_shown() {
    let ended = |code: i64, stdout: &str| Ended {
        code,
        stdout: stdout.to_owned(),
        stderr: String::new(),
    };
    assert_eq!(ended(0, "a\nb\n").difference_from(&ended(0, "a\nb\n")), None);
    for (other, words) in [
        (ended(1, "a\nb\n"), "code"),
        (ended(0, "b\na\n"), "line 1"),
        (ended(0, "a\nb"), "line 2"),
        (ended(0, "a\n"), "line 2"),
    ] {
        let found = ended(0, "a\nb\n").difference_from(&other).unwrap();
        assert!(found.contains(words), "{words}: {found}");
    }
}

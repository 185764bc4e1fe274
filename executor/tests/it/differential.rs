//! A differential test against docker: what `docker run --network none` does with a command, a job does too.
//!
//! Each command of `tests/differential/commands.toml` runs three times: by docker as it is, by docker with the bounds
//! of a job, and by an executor. The last two must print the same to each stream and end with the same code. Where
//! plain docker differs, `tests/differential/differences.toml` has the reason; docs/differences-from-docker.md is made
//! of that table.

mod corpus;
mod images;
mod sides;

use futures_util::{StreamExt as _, stream};
use muster_testbed::within;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;

use self::corpus::{Command, Through, commands, differences, soak_commands};
use self::images::{ImageVariant, TestImages};
use self::sides::{Ended, run_by_bounded_docker, run_by_executor, run_by_plain_docker};

/// The faults of one command, as text.
async fn compare(command: &Command, image: &str) -> Vec<String> {
    let (plain, bounded, ours) = tokio::join!(
        run_by_plain_docker(image, command),
        run_by_bounded_docker(image, command, &[]),
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

/// Runs commands, and fails with the faults of all of them.
async fn compare_all(images: &TestImages, commands: impl IntoIterator<Item = Command>) {
    let mut faults = Vec::new();
    let all = commands.into_iter();
    for command in all.filter(|command| command.through == Through::Executor) {
        let image = images.name_of(&command.image);
        let found = within(&command.name, compare(&command, image)).await;
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

/// Runs every fourth command, from this one on.
async fn compare_quarter(first: usize) {
    let images = TestImages::load().await;
    compare_all(&images, commands().into_iter().skip(first).step_by(4)).await;
}

/// Runs every second command of the soak, from this one on.
async fn compare_half(first: usize) {
    let images = TestImages::load_soak().await;
    compare_all(&images, soak_commands().into_iter().skip(first).step_by(2)).await;
}

#[tokio::test]
#[ignore = "soak: fifty commands of images that take minutes to be made"]
async fn the_first_half_of_the_wide_corpus_does_what_docker_does() {
    compare_half(0).await;
}

#[tokio::test]
#[ignore = "soak: fifty commands of images that take minutes to be made"]
async fn the_second_half_of_the_wide_corpus_does_what_docker_does() {
    compare_half(1).await;
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
    let (suite, soak, differences) = (commands(), soak_commands(), differences());
    assert!(suite.len() >= 40, "{} commands", suite.len());
    assert!(suite.len() + soak.len() >= 150, "{} more", soak.len());
    let suite = suite.iter().map(|command| (command, &TestImages::SUITE[..]));
    let all = [TestImages::SUITE.as_slice(), &TestImages::SOAK].concat();
    let commands: Vec<_> = suite
        .chain(soak.iter().map(|command| (command, all.as_slice())))
        .collect();
    for difference in &differences {
        let shows = |(command, _): &&(&Command, _)| command.differs.as_ref() == Some(&difference.key);
        assert!(
            commands.iter().any(|command| shows(&command)),
            "{}",
            difference.key
        );
    }
    for (command, images) in &commands {
        let is_known = |key: &String| differences.iter().any(|difference| difference.key == *key);
        assert!(command.differs.as_ref().is_none_or(is_known), "{}", command.name);
        assert!(images.contains(&command.image.as_str()), "{}", command.name);
        let same = commands.iter().filter(|(other, _)| other.name == command.name);
        assert_eq!(same.count(), 1, "{}", command.name);
    }
}

/// A command that shows what an image's settings do. The folder `/output` is not the image's, so its owner is not
/// shown.
const SHOW_SETTINGS: &str = "id -u; id -g; id -G; pwd; echo \"$HOME\"; echo \"$A\"; echo \"$0 $#\"; \
    (echo x > /output/new) && stat -c '%u %g %a' /output/new; \
    for d in . ~ /data /data/below /srv/v /tmp /tmp/v /var/lib/v; do \
    (echo x > $d/new) 2>/dev/null && stat -c '%n %u %g %a' $d/new || echo no; \
    ls -A $d 2>/dev/null | sort | head -5; stat -c '%u %g %a' $d 2>/dev/null; done";

#[tokio::test]
#[ignore = "soak: five hundred variants of an image's settings take half an hour"]
async fn an_images_user_folders_volumes_and_variables_do_what_they_do_in_docker() {
    let images = TestImages::load().await;
    let mut runner = TestRunner::default();
    let mut draw = || ImageVariant::any().new_tree(&mut runner).unwrap().current();
    let variants: Vec<_> = (0..500).map(|_| draw()).collect();
    let compared = stream::iter(&variants).map(async |variant| {
        let image = images.vary(variant).await;
        let command = Command::shell(SHOW_SETTINGS, variant.has_entrypoint());
        let new_volumes = variant.new_volumes();
        let (bounded, ours) = tokio::join!(
            run_by_bounded_docker(image.name(), &command, &new_volumes),
            run_by_executor(image.name(), &command),
        );
        let fault = ours.difference_from(&bounded)?;
        Some(format!("{variant:?}: {fault}"))
    });
    // All of them are told, since one kind of fault hides no other.
    let faults: Vec<_> = compared
        .buffered(3)
        .filter_map(async |fault| fault)
        .collect()
        .await;
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
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

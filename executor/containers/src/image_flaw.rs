//! Finds what keeps an image from being started, as far as its configuration shows it, before a container is made.

use crate::docker_engine::LocalImage;
use crate::engine_answer::{AnswerFault, EngineAnswer};
use crate::sandbox::RunAs;

/// The highest number of a user or a group that runtimes take.
const MAX_ID: i64 = i32::MAX as i64;

/// The flaw for which no engine could start a container of this image with this command; `None` if its configuration
/// shows none. `command` is the job's own, if it has one.
pub fn find_flaw(image: &LocalImage, command: Option<&[String]>, run_as: RunAs) -> Option<EngineAnswer> {
    let flawed = |message: &str| EngineAnswer {
        fault: AnswerFault::Image,
        message: message.to_owned(),
        exit_code: None,
    };
    // An entry point of one empty text resets that of the image's base.
    let entrypoint = image.entrypoint.first().filter(|first| !first.is_empty());
    let command = command.unwrap_or(&image.command);
    if entrypoint.is_none() && command.is_empty() {
        return Some(flawed(
            "neither the job nor its image names a program (CMD or ENTRYPOINT)",
        ));
    }
    let takes_user = match run_as {
        RunAs::Image => true,
        RunAs::Nobody => false,
    };
    let is_out_of_range = |part: &str| {
        let digits = part.strip_prefix('-').unwrap_or(part);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number && !part.parse::<i64>().is_ok_and(|id| (0..=MAX_ID).contains(&id))
    };
    if takes_user && image.user.split(':').any(is_out_of_range) {
        return Some(flawed(&format!(
            "the image's USER is no number of a user: it must lie between 0 and {MAX_ID}"
        )));
    }
    None
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Digest, ImageId};

    use super::*;

    fn image(entrypoint: &[&str], command: &[&str], user: &str) -> LocalImage {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        LocalImage {
            entrypoint: owned(entrypoint),
            command: owned(command),
            user: user.to_owned(),
            ..LocalImage::default_for(ImageId(Digest::of(b"x")))
        }
    }

    #[test]
    fn an_image_without_a_program_is_flawed_unless_the_job_names_one() {
        let own = ["true".to_owned()];
        for (entrypoint, command) in [(&[][..], &[][..]), (&[""][..], &[][..])] {
            let bare = image(entrypoint, command, "");
            assert!(find_flaw(&bare, None, RunAs::Image).is_some());
            assert!(find_flaw(&bare, Some(&[]), RunAs::Image).is_some());
            assert_eq!(find_flaw(&bare, Some(&own), RunAs::Image), None);
        }
        assert_eq!(find_flaw(&image(&["sh"], &[], ""), None, RunAs::Image), None);
        assert_eq!(find_flaw(&image(&[], &["sh"], ""), None, RunAs::Image), None);
        assert!(find_flaw(&image(&[], &["sh"], ""), Some(&[]), RunAs::Image).is_some());
    }

    #[test]
    fn a_users_number_out_of_range_is_a_flaw_where_the_image_chooses_the_user() {
        for bad in [
            "99999999999",
            "-1",
            "4294967295",
            "2147483648",
            "0:99999999999",
            "app:-5",
            "99999999999999999999",
        ] {
            let image = image(&[], &["sh"], bad);
            let found = find_flaw(&image, None, RunAs::Image);
            assert_eq!(found.map(|flaw| flaw.fault), Some(AnswerFault::Image), "{bad}");
            assert_eq!(find_flaw(&image, None, RunAs::Nobody), None, "{bad}");
        }
        for good in ["", "0", "1000:1000", "2147483647", "app", "app:staff", "www-data"] {
            assert_eq!(
                find_flaw(&image(&[], &["sh"], good), None, RunAs::Image),
                None,
                "{good}"
            );
        }
    }
}

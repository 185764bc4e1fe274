//! The ways in which a person refers to a job: by its id, the beginning of its id, its name, or as the newest one.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::ids::JobId;

/// The most characters of a job's name.
pub const MAX_JOB_NAME: usize = 64;

/// The reference to the newest job.
const LAST: &str = "@last";

/// The form of an id, in which `x` is a hexadecimal digit.
const ID_FORM: &str = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

/// The reason why a text refers to no job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobReferenceError {
    /// The text is not the beginning of an id.
    #[error(
        "an id begins with hexadecimal digits, and has hyphens where 11111111-2222-4333-8444-555555555555 has them"
    )]
    Prefix,
    /// The text is no name of a job.
    #[error(
        "the name of a job has 1 to {MAX_JOB_NAME} letters, digits, hyphens, dots and underscores, begins with a letter or \
         a digit, and is no id"
    )]
    Name,
    /// The text is neither.
    #[error(
        "a job is referred to by its id, the beginning of its id, its name, or {LAST} for the newest one"
    )]
    Reference,
}

/// The beginning of an id: the ids that begin like it lie between two ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobIdPrefix {
    text: String,
    first: JobId,
    last: JobId,
}

impl JobIdPrefix {
    /// The smallest id that begins like this.
    pub const fn first(&self) -> JobId {
        self.first
    }

    /// The largest id that begins like this.
    pub const fn last(&self) -> JobId {
        self.last
    }

    /// Whether an id begins like this.
    pub fn matches(&self, id: JobId) -> bool {
        (self.first..=self.last).contains(&id)
    }
}

impl fmt::Display for JobIdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for JobIdPrefix {
    type Err = JobReferenceError;

    fn from_str(text: &str) -> Result<Self, JobReferenceError> {
        let text = text.to_ascii_lowercase();
        let fits = text.bytes().zip(ID_FORM.bytes()).all(|(byte, form)| match form {
            b'-' => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
        let rest = ID_FORM.get(text.len()..).filter(|_| fits && !text.is_empty());
        let rest = rest.ok_or(JobReferenceError::Prefix)?;
        let filled = |digit: &str| {
            let id = Uuid::parse_str(&format!("{text}{}", rest.replace('x', digit)));
            id.map(JobId::from_uuid).map_err(|_| JobReferenceError::Prefix)
        };
        Ok(Self {
            first: filled("0")?,
            last: filled("f")?,
            text,
        })
    }
}

/// The name that a user gives a job. Several jobs may have the same one; it means the newest of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobName(String);

impl JobName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobName {
    type Err = JobReferenceError;

    fn from_str(text: &str) -> Result<Self, JobReferenceError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let begins = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        let fits = begins && text.len() <= MAX_JOB_NAME && text.bytes().all(plain);
        if fits && Uuid::parse_str(text).is_err() {
            Ok(Self(text.to_owned()))
        } else {
            Err(JobReferenceError::Name)
        }
    }
}

/// A job as a person refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReference {
    /// Its whole id.
    Id(JobId),
    /// The newest job of the account.
    Last,
    /// Its name, or the beginning of its id where no job has the name.
    Text(JobName),
}

impl fmt::Display for JobReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Last => f.write_str(LAST),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl FromStr for JobReference {
    type Err = JobReferenceError;

    fn from_str(text: &str) -> Result<Self, JobReferenceError> {
        if text == LAST {
            return Ok(Self::Last);
        }
        if let Ok(id) = text.to_ascii_lowercase().parse() {
            return Ok(Self::Id(id));
        }
        // The beginning of an id has the form of a name, too.
        let name = text.parse().map_err(|_| JobReferenceError::Reference)?;
        Ok(Self::Text(name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "11111111-2222-4333-8444-555555555555";

    #[test]
    fn prefix_spans_the_ids_that_begin_like_it() {
        let prefix: JobIdPrefix = "3F0c1234-a".parse().unwrap();
        assert_eq!(prefix.to_string(), "3f0c1234-a");
        assert_eq!(prefix.first().to_string(), "3f0c1234-a000-0000-0000-000000000000");
        assert_eq!(prefix.last().to_string(), "3f0c1234-afff-ffff-ffff-ffffffffffff");
        let whole: JobIdPrefix = ID.parse().unwrap();
        assert_eq!(
            (whole.first(), whole.last()),
            (ID.parse().unwrap(), ID.parse().unwrap())
        );
        for wrong in [
            "",
            "g",
            "3f0c1234a",
            "3f0c-",
            "-",
            "11111111-2222-4333-8444-5555555555556",
            "ü",
        ] {
            assert_eq!(
                wrong.parse::<JobIdPrefix>(),
                Err(JobReferenceError::Prefix),
                "{wrong}"
            );
        }
    }

    #[test]
    fn reference_is_an_id_the_newest_job_or_a_name() {
        let read = |text: &str| text.parse::<JobReference>();
        assert_eq!(read(ID), Ok(JobReference::Id(ID.parse().unwrap())));
        assert_eq!(read(&ID.to_ascii_uppercase()), read(ID));
        assert_eq!(read("@last"), Ok(JobReference::Last));
        for name in ["3f0c", "11111111-2222", "train", "Train_3.b", "7"] {
            assert_eq!(read(name), Ok(JobReference::Text(JobName(name.to_owned()))));
        }
        let long = "x".repeat(MAX_JOB_NAME + 1);
        for wrong in ["", "@first", "-x", "a b", "a/b", "ä", long.as_str()] {
            assert_eq!(read(wrong), Err(JobReferenceError::Reference), "{wrong}");
        }
        assert_eq!(ID.parse::<JobName>(), Err(JobReferenceError::Name));
    }

    proptest! {
        #[test]
        fn every_beginning_of_an_id_matches_it_and_no_text_does_harm(
            id in any::<u128>(), length in 1_usize..=36, text in ".{0,40}",
        ) {
            let id = JobId::from_uuid(Uuid::from_u128(id));
            let prefix: JobIdPrefix = id.to_string()[..length].parse().unwrap();
            prop_assert!(prefix.matches(id));
            let _ = text.parse::<JobIdPrefix>();
            let _ = text.parse::<JobReference>();
        }
    }
}

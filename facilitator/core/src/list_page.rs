//! Pages of a list: parsing the query, and the links to the next and the previous page. Pure.

use std::collections::BTreeSet;

use muster_protocol::ids::IdError;
use muster_protocol::job_reference::JobReferenceError;
use muster_protocol::{JobId, JobIdPrefix, JobName, JobStatus};

/// The results on a page if the query has no `page_size`.
const DEFAULT_SIZE: u32 = 10;

/// The most results on a page.
const MAX_SIZE: u32 = 256;

/// The requested page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageQuery {
    number: u64,
    size: u32,
}

// === impl PageQuery ===

impl PageQuery {
    /// Parses `page` and `page_size`. A wrong size is ignored. A wrong page number is no page: `None`.
    pub fn parse(query: &[(String, String)]) -> Option<Self> {
        let value = |name: &str| {
            query
                .iter()
                .rev()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_str())
        };
        let size = value("page_size")
            .and_then(|text| text.parse::<u64>().ok())
            .filter(|size| *size > 0)
            .map_or(DEFAULT_SIZE, |size| {
                u32::try_from(size).unwrap_or(MAX_SIZE).min(MAX_SIZE)
            });
        let number = match value("page") {
            None => 1,
            Some(text) => text.parse::<u64>().ok().filter(|number| *number > 0)?,
        };
        Some(Self { number, size })
    }

    /// The most results on this page.
    pub fn limit(self) -> u32 {
        self.size
    }

    /// The number of results before this page.
    pub fn offset(self) -> u64 {
        (self.number - 1).saturating_mul(u64::from(self.size))
    }

    /// Whether a list of `count` results has this page. The first page always exists.
    pub fn exists(self, count: u64) -> bool {
        self.number == 1 || self.offset() < count
    }

    /// Links to the next and the previous page under `base`. `filter` is the rest of the query.
    pub fn links(self, base: &str, filter: &str, count: u64) -> (Option<String>, Option<String>) {
        let link = |number: u64| format!("{base}?page={number}&page_size={}{filter}", self.size);
        let next =
            (self.offset().saturating_add(u64::from(self.size)) < count).then(|| link(self.number + 1));
        let previous = (self.number > 1).then(|| link(self.number - 1));
        (next, previous)
    }
}

/// The filter of a list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only these jobs; every job if empty.
    pub uuids: Vec<JobId>,
    /// Only jobs whose ids begin like this.
    pub prefix: Option<JobIdPrefix>,
    /// Only jobs with this label.
    pub tag: Option<JobName>,
    /// Only jobs with one of these statuses, or that wait if `queued` is set; jobs of every status if both are empty.
    pub statuses: BTreeSet<StatusWord>,
    /// As well the jobs that wait for an executor.
    pub queued: bool,
}

/// The word of a status, as the wire has it.
pub type StatusWord = &'static str;

/// The word that asks for jobs that wait for an executor.
pub const QUEUED: &str = "queued";

/// The reason why a filter is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterRejection {
    /// A value of `uuid` is no uuid.
    #[error("{0}")]
    NotUuid(IdError),
    /// The value of `id_prefix` is not the beginning of an id.
    #[error("{0}")]
    NotPrefix(JobReferenceError),
    /// The value of `tag` is no label that a job can have.
    #[error("{0}")]
    NotTag(JobReferenceError),
    /// The filter names more jobs than a page can hold.
    #[error("Ask for at most {MAX_SIZE} jobs at once.")]
    TooMany,
    /// A value of `status` is no status.
    #[error("There is no such status; known are {QUEUED}, {known}.", known = status_words().collect::<Vec<_>>().join(", "))]
    NotStatus,
}

/// The words of all statuses that a job can have.
fn status_words() -> impl Iterator<Item = StatusWord> {
    let known = JobStatus::ALL
        .iter()
        .filter(|status| **status != JobStatus::Unknown);
    known.map(|status| status.as_str())
}

impl FilterRejection {
    /// The name of the parameter with the wrong value.
    pub fn field(&self) -> &'static str {
        match self {
            Self::NotUuid(_) | Self::TooMany => "uuid",
            Self::NotPrefix(_) => "id_prefix",
            Self::NotTag(_) => "tag",
            Self::NotStatus => "status",
        }
    }
}

// === impl JobFilter ===

impl JobFilter {
    /// Parses every `uuid` and `status`, `id_prefix` and `tag`.
    ///
    /// # Errors
    /// See [`FilterRejection`].
    pub fn parse(query: &[(String, String)]) -> Result<Self, FilterRejection> {
        let values = |name: &'static str| {
            let named = query.iter().filter(move |(key, _)| key == name);
            named
                .map(|(_, value)| value.as_str())
                .filter(|value| !value.is_empty())
        };
        let mut uuids = Vec::new();
        for text in values("uuid") {
            uuids.push(text.parse().map_err(FilterRejection::NotUuid)?);
        }
        uuids.sort_unstable();
        uuids.dedup();
        if uuids.len() > MAX_SIZE as usize {
            return Err(FilterRejection::TooMany);
        }
        let prefix = values("id_prefix").next_back().map(str::parse).transpose();
        let prefix = prefix.map_err(FilterRejection::NotPrefix)?;
        let tag = values("tag").next_back().map(str::parse).transpose();
        let tag = tag.map_err(FilterRejection::NotTag)?;
        let (mut statuses, mut queued) = (BTreeSet::new(), false);
        for text in values("status") {
            if text == QUEUED {
                queued = true;
            } else {
                let word = status_words().find(|word| *word == text);
                statuses.insert(word.ok_or(FilterRejection::NotStatus)?);
            }
        }
        Ok(Self {
            uuids,
            prefix,
            tag,
            statuses,
            queued,
        })
    }

    /// The filter as part of a query. It begins with `&` unless it is empty.
    pub fn query(&self) -> String {
        let uuids = self.uuids.iter().map(|uuid| format!("&uuid={uuid}"));
        let queued = self.queued.then_some(QUEUED);
        let statuses = self.statuses.iter().copied().chain(queued);
        let statuses = statuses.map(|word| format!("&status={word}"));
        let prefix = self.prefix.iter().map(|prefix| format!("&id_prefix={prefix}"));
        let tag = self.tag.iter().map(|tag| format!("&tag={tag}"));
        uuids.chain(prefix).chain(tag).chain(statuses).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(query: &[(&str, &str)]) -> Option<PageQuery> {
        let owned: Vec<_> = query
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        PageQuery::parse(&owned)
    }

    #[test]
    fn defaults_bounds_and_nonsense() {
        assert_eq!(read(&[]), Some(PageQuery { number: 1, size: 10 }));
        assert_eq!(
            read(&[("page", "3"), ("page_size", "999")]),
            Some(PageQuery { number: 3, size: 256 })
        );
        assert_eq!(
            read(&[("page_size", "x"), ("other", "1")]),
            Some(PageQuery { number: 1, size: 10 })
        );
        for bad in ["0", "-1", "x", "", "1.5", "99999999999999999999"] {
            assert_eq!(read(&[("page", bad)]), None, "{bad}");
        }
    }

    #[test]
    fn links_lead_to_the_neighbours_and_no_further() {
        let page = |number| PageQuery { number, size: 10 };
        assert_eq!(page(1).links("/j/", "", 10), (None, None));
        assert_eq!(
            page(1).links("/j/", "", 11).0.as_deref(),
            Some("/j/?page=2&page_size=10")
        );
        assert_eq!(
            page(2).links("/j/", "", 11),
            (None, Some("/j/?page=1&page_size=10".to_owned()))
        );
        assert!(page(1).exists(0) && page(2).exists(11));
        assert!(!page(2).exists(10));
    }

    #[test]
    fn a_filter_names_jobs_and_travels_in_the_links() {
        let query = |pairs: &[(&str, &str)]| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            JobFilter::parse(&pairs.iter().map(owned).collect::<Vec<_>>())
        };
        let uuid = "11111111-2222-4333-8444-555555555555";
        let filter = query(&[("uuid", uuid), ("page", "2"), ("uuid", uuid), ("uuid", "")]).unwrap();
        assert_eq!(filter.query(), format!("&uuid={uuid}"));
        let named = query(&[("tag", "train"), ("id_prefix", "3F0")]).unwrap();
        assert_eq!(named.query(), "&id_prefix=3f0&tag=train");
        for (bad, field) in [(("tag", "a b"), "tag"), (("id_prefix", "g"), "id_prefix")] {
            assert_eq!(query(&[bad]).unwrap_err().field(), field);
        }
        assert_eq!(query(&[("tag", "")]), Ok(JobFilter::default()));
        assert!(matches!(
            query(&[("uuid", "x")]),
            Err(FilterRejection::NotUuid(_))
        ));
        let open = query(&[
            ("status", "queued"),
            ("status", "accepted"),
            ("status", "accepted"),
        ])
        .unwrap();
        assert!(open.queued && open.statuses.iter().eq(["accepted"].iter()));
        assert_eq!(open.query(), "&status=accepted&status=queued");
        for bad in ["Queued", "unknown", "running"] {
            let rejection = query(&[("status", bad)]).unwrap_err();
            assert_eq!(
                (rejection.field(), &rejection),
                ("status", &FilterRejection::NotStatus)
            );
            assert!(rejection.to_string().contains("horde_failed"), "{rejection}");
        }
        let page = PageQuery { number: 1, size: 1 };
        let next = page.links("/j/", &filter.query(), 2).0.unwrap();
        assert_eq!(next, format!("/j/?page=2&page_size=1&uuid={uuid}"));
    }

    proptest! {
        /// Following `next` from the first page visits every job once.
        #[test]
        fn pages_cover_the_list(count in 0_u64..2000, size in 1_u32..300) {
            let mut page = PageQuery { number: 1, size };
            let mut seen = 0;
            loop {
                prop_assert_eq!(page.offset(), seen);
                seen = count.min(seen + u64::from(page.limit()));
                if page.links("", "", count).0.is_none() {
                    break;
                }
                page.number += 1;
                prop_assert!(page.exists(count));
            }
            prop_assert_eq!(seen, count);
            page.number += 1;
            prop_assert!(!page.exists(count));
        }
    }
}

//! Pages of jobs.

use super::*;

#[tokio::test]
async fn lists_are_the_users_own_newest_first() {
    for (_test, store) in engines().await {
        let mut made = Vec::new();
        for n in 0..7 {
            let job = job("User", n);
            create(&store, validator_key("Validator"), &job, at(n)).await;
            made.push(job.uuid);
        }
        create(&store, validator_key("Validator"), &job("Other", 1), at(1)).await;
        made.reverse();
        let user = account("User");
        let page = listed(store.list_jobs(&user, &JobFilter::default(), 3, 3).await.unwrap());
        let uuids: Vec<_> = page.jobs.iter().map(|job| job.request.uuid).collect();
        assert_eq!((page.count, uuids.as_slice()), (7, &made[3..6]));
        assert!(page.jobs.iter().all(|job| job.history.len() == 1));
        assert!(
            listed(
                store
                    .list_jobs(&user, &JobFilter::default(), 3, u64::MAX)
                    .await
                    .unwrap()
            )
            .jobs
            .is_empty()
        );
    }
}

#[tokio::test]
async fn a_page_leaves_inline_inputs_out_and_has_a_length() {
    for (_test, store) in engines().await {
        let validator = validator_key("Validator");
        let user = account("User");
        for (n, bytes) in [(0, 10), (1, 200_000)] {
            let job = job_with(n, bytes);
            create(&store, validator, &job, at(n)).await;
            let stored = store.job(job.uuid).await.unwrap().unwrap();
            assert_eq!(stored.request, *job, "the job's own page is whole");
        }
        let page = listed(
            store
                .list_jobs(&user, &JobFilter::default(), 10, 0)
                .await
                .unwrap(),
        );
        assert_eq!(page.jobs.len(), 2);
        for job in &page.jobs {
            let Some(Volume::MultiVolume(volume)) = &job.request.volume else {
                panic!("another volume: {:?}", job.request.volume)
            };
            let expected = InlineVolume {
                contents: String::new(),
                relative_path: Some("x".to_owned()),
            };
            assert_eq!(volume.volumes, [VolumePart::Inline(expected)]);
        }

        // Results count too: five of them are more than a page may hold.
        let result: StatusMetadata =
            muster_protocol::wire::decode(&format!("{{\"n\":\"{}\"}}", "x".repeat(13 << 20))).unwrap();
        for n in 2..7 {
            let job = job_with(n, 1);
            create(&store, validator, &job, at(n)).await;
            let mut done = update(job.uuid, JobStatus::Completed);
            done.metadata = Some(result.clone());
            assert_eq!(
                store.record(validator, &done, at(n)).await.unwrap(),
                UpdateOutcome::Recorded
            );
        }
        assert_eq!(
            store
                .list_jobs(&user, &JobFilter::default(), 10, 0)
                .await
                .unwrap(),
            JobListing::TooLong
        );
        assert_eq!(
            listed(store.list_jobs(&user, &JobFilter::default(), 4, 0).await.unwrap())
                .jobs
                .len(),
            4
        );
    }
}

#[tokio::test]
async fn a_filter_finds_the_accounts_own_jobs_only() {
    for (_test, store) in engines().await {
        let (mine, other) = (job("User", 1), job("Other", 1));
        for job in [&mine, &other, &job("User", 2)] {
            create(&store, validator_key("Validator"), job, at(1)).await;
        }
        let filter = JobFilter {
            uuids: vec![mine.uuid, other.uuid],
            ..JobFilter::default()
        };
        let page = listed(store.list_jobs(&account("User"), &filter, 10, 0).await.unwrap());
        assert_eq!((page.count, page.jobs[0].request.uuid), (1, mine.uuid));
    }
}

#[tokio::test]
async fn prefix_and_label_find_the_accounts_own_jobs_newest_first() {
    for (_test, store) in engines().await {
        let mut named = Vec::new();
        for (user, n, tag) in [
            ("User", 1, "train"),
            ("User", 2, "train"),
            ("User", 3, ""),
            ("Other", 1, "train"),
        ] {
            let request = job(user, n);
            let submission = JobSubmission {
                actor: &actor(&request),
                validator: validator_key("Validator"),
                request: &request,
                idempotency: None,
                quota: JobQuota::NONE,
                webhook: None,
                tag,
            };
            assert_eq!(store.create(submission, at(n)).await.unwrap(), JobCreation::New);
            named.push(request.uuid);
        }
        let user = account("User");
        let find = async |filter: &JobFilter| {
            let page = listed(store.list_jobs(&user, filter, 10, 0).await.unwrap());
            let found: Vec<_> = page.jobs.iter().map(|job| job.request.uuid).collect();
            assert_eq!(page.count, found.len() as u64);
            found
        };
        let labelled = JobFilter {
            tag: Some("train".parse().unwrap()),
            ..JobFilter::default()
        };
        assert_eq!(find(&labelled).await, [named[1], named[0]]);
        assert_eq!(store.job(named[0]).await.unwrap().unwrap().view().tag, "train");
        for uuid in &named[..3] {
            let text = uuid.to_string();
            for length in [1, 8, 9, 14, 36] {
                let beginning = &text[..length];
                let mut expected: Vec<_> = named[..3].to_vec();
                expected.retain(|other| other.to_string().starts_with(beginning));
                expected.reverse();
                let filter = JobFilter {
                    prefix: Some(beginning.parse().unwrap()),
                    ..JobFilter::default()
                };
                assert_eq!(find(&filter).await, expected, "{beginning}");
            }
        }
        let others = JobFilter {
            prefix: Some(named[3].to_string().parse().unwrap()),
            ..JobFilter::default()
        };
        assert!(find(&others).await.is_empty());
    }
}

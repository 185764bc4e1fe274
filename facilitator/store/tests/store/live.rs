//! Storing live output: only messages of the job's validator, within bounds.

use super::retention::sweep_at;
use super::*;
use muster_protocol::job::NonFiniteValue;
use muster_protocol::wire::muster::LiveQueuePlace;

#[tokio::test]
async fn a_reason_with_u0000_takes_no_other_message_with_it() {
    for (test, store) in engines().await {
        let (validator, hostile) = (validator_key("Validator"), validator_key("Hostile"));
        let (job, own) = (job("User", 1), job("User", 2));
        create(&store, validator, &job, at(0)).await;
        create(&store, hostile, &own, at(0)).await;
        let place = |job: JobId, why: &str| {
            let place = LiveQueuePlace {
                uuid: job,
                class: "spin_up-4min.gpu-24gb".parse().unwrap(),
                ahead: 1,
                waiting: 2,
                estimate_s: None,
                why: why.to_owned(),
            };
            LiveMessage::Queued(Box::new(place), at(1))
        };
        let messages = [
            (hostile, place(own.uuid, "a\0b")),
            (validator, place(job.uuid, "full")),
        ];
        store
            .store_live(&messages, &LiveConfig::default(), at(1))
            .await
            .unwrap();
        let ids = [own.uuid.to_string(), job.uuid.to_string()];
        let places = store.queue_places(&ids).await.unwrap();
        let why = |id: &String| places.get(id).unwrap().to_view().why;
        assert_eq!(ids.each_ref().map(why), ["a\u{fffd}b", "full"], "{}", test.engine);
    }
}

#[tokio::test]
async fn live_output_is_taken_from_the_jobs_validator_alone_and_bounded() {
    for (test, store) in engines().await {
        let (validator, bounds) = (
            validator_key("Validator"),
            LiveConfig {
                log_kib: 1,
                log_pieces: 5,
            },
        );
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        let log = |offset: u64, bytes: usize| {
            let data = muster_protocol::wire::decode(&format!("{:?}", "AAAA".repeat(bytes / 3))).unwrap();
            LiveMessage::Log(Box::new(LiveLog {
                uuid: job.uuid,
                stream: LogStream::Stdout,
                offset,
                data,
            }))
        };
        let foreign = [(validator_key("Other"), log(0, 3))];
        store.store_live(&foreign, &bounds, at(1)).await.unwrap();
        assert!(store.log_pieces(job.uuid, 0).await.unwrap().is_empty());

        let messages: Vec<_> = (0..9).map(|n| (validator, log(n * 3, 3))).collect();
        store.store_live(&messages, &bounds, at(1)).await.unwrap();
        let pieces = store.log_pieces(job.uuid, 0).await.unwrap();
        let offsets: Vec<_> = pieces.iter().map(|piece| piece.offset).collect();
        assert_eq!(offsets, [12, 15, 18, 21, 24], "{}", test.engine);
        assert_eq!(
            (pieces[0].data.as_slice(), pieces[0].at),
            ([0; 3].as_slice(), at(1))
        );
        let later = store.log_pieces(job.uuid, pieces[3].seq).await.unwrap();
        assert_eq!(later, pieces[4..]);
        store
            .store_live(
                &[(validator, log(27, 600)), (validator, log(627, 600))],
                &bounds,
                at(2),
            )
            .await
            .unwrap();
        assert_eq!(
            store.log_pieces(job.uuid, 0).await.unwrap().len(),
            1,
            "1 KiB holds one of them"
        );

        store
            .record(validator, &update(job.uuid, JobStatus::Completed), at(3))
            .await
            .unwrap();
        sweep_at(&store, 3000).await;
        assert_eq!(store.log_pieces(job.uuid, 0).await.unwrap().len(), 1);
        sweep_at(&store, 3604).await;
        assert!(store.log_pieces(job.uuid, 0).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn the_live_output_of_a_lost_job_is_kept() {
    for (test, store) in engines().await {
        let validator = validator_key("Validator");
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        let piece = LiveMessage::Log(Box::new(LiveLog {
            uuid: job.uuid,
            stream: LogStream::Stdout,
            offset: 0,
            data: muster_protocol::wire::decode("\"aGk=\"").unwrap(),
        }));
        let bounds = LiveConfig::default();
        store
            .store_live(&[(validator, piece)], &bounds, at(1))
            .await
            .unwrap();
        store
            .record(validator, &update(job.uuid, JobStatus::HordeFailed), at(3))
            .await
            .unwrap();
        sweep_at(&store, 4_000).await;
        let kept = store.all_log_pieces(job.uuid).await.unwrap();
        assert_eq!(kept.len(), 1, "{}", test.engine);
        assert!(store.job(job.uuid).await.unwrap().unwrap().keeps_output);
    }
}

#[tokio::test]
async fn metrics_are_series_within_a_bound_and_stay_as_long_as_their_job() {
    for (test, store) in engines().await {
        let (validator, bounds) = (validator_key("Validator"), LiveConfig::default());
        let job = job("User", 1);
        create(&store, validator, &job, at(0)).await;
        let message = |step: u64, metrics: &[(&str, f64)]| {
            let metric = |(name, value): &(&str, f64)| (name.parse().unwrap(), (*value).try_into().unwrap());
            let report = ProgramReport {
                step: Some(step),
                metrics: metrics.iter().map(metric).collect(),
                elapsed_s: step,
                ..ProgramReport::default()
            };
            LiveMessage::Metrics(Box::new(LiveMetrics {
                uuid: job.uuid,
                at: at(1),
                report,
            }))
        };
        let foreign = [(validator_key("Other"), message(9, &[("loss", 9.0)]))];
        store.store_live(&foreign, &bounds, at(1)).await.unwrap();
        assert_eq!(store.program_report(job.uuid).await.unwrap(), None);
        // Of the reports that come at once, the newest counts.
        let both = [
            (validator, message(1, &[("loss", 3.0)])),
            (validator, message(2, &[("loss", 2.5)])),
        ];
        store.store_live(&both, &bounds, at(2)).await.unwrap();
        let newest = store.program_report(job.uuid).await.unwrap().unwrap();
        assert_eq!(
            (newest.report.step, newest.at),
            (Some(2), at(2)),
            "{}",
            test.engine
        );
        let [series] = &store.metric_series(job.uuid).await.unwrap()[..] else {
            panic!("one series")
        };
        let point = &series.points[0];
        assert_eq!((point.step, point.value.get(), point.at), (Some(2), 2.5, at(2)));

        let diverged = ProgramReport {
            step: Some(3),
            non_finite: [("loss".parse().unwrap(), NonFiniteValue::NegativeInfinity)].into(),
            ..ProgramReport::default()
        };
        let sent = LiveMessage::Metrics(Box::new(LiveMetrics {
            uuid: job.uuid,
            at: at(1),
            report: diverged.clone(),
        }));
        store
            .store_live(&[(validator, sent)], &bounds, at(3))
            .await
            .unwrap();
        assert_eq!(
            store.program_report(job.uuid).await.unwrap().unwrap().report,
            diverged
        );
        let [series] = &store.metric_series(job.uuid).await.unwrap()[..] else {
            panic!("one series, whatever its values")
        };
        assert_eq!(series.points.len(), 1, "{}", test.engine);
        let [gap] = &series.non_finite[..] else {
            panic!("one gap")
        };
        assert_eq!((gap.step, gap.value), (Some(3), NonFiniteValue::NegativeInfinity));
        assert_eq!(series.newest(), Some(Err(NonFiniteValue::NegativeInfinity)));

        // A name of its own in each report makes no more series than a report may hold.
        for number in 0..80_u32 {
            let name = format!("m{number}");
            let sent = [(validator, message(3, &[(name.as_str(), 1.0)]))];
            store
                .store_live(&sent, &bounds, at(3 + i64::from(number)))
                .await
                .unwrap();
        }
        assert_eq!(store.metric_series(job.uuid).await.unwrap().len(), 64);

        for step in 0..2_001_u32 {
            let sent = [(validator, message(step.into(), &[("loss", f64::from(step))]))];
            store
                .store_live(&sent, &bounds, at(100 + i64::from(step)))
                .await
                .unwrap();
        }
        let all = store.metric_series(job.uuid).await.unwrap();
        let loss = all.iter().find(|series| series.name.as_str() == "loss").unwrap();
        assert_eq!(loss.points.len(), 1_003, "every second one of 2,001, and two");
        assert_eq!(loss.points.last().unwrap().step, Some(2_000));
        assert!(loss.points.is_sorted_by_key(|point| point.at));

        store
            .record(validator, &update(job.uuid, JobStatus::Completed), at(3_000))
            .await
            .unwrap();
        sweep_at(&store, 10_000).await;
        assert_eq!(
            store.metric_series(job.uuid).await.unwrap().len(),
            64,
            "longer than its output"
        );
        sweep_at(&store, 400 * 86_400).await;
        assert_eq!(store.metric_series(job.uuid).await.unwrap(), []);
        assert_eq!(store.program_report(job.uuid).await.unwrap(), None);
    }
}

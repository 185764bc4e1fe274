//! The use of a machine by the program of an attempt: its time, samples of processor, memory and GPUs, and its last
//! metrics. The completion report is made of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_containers::docker_engine::{ContainerEngine, ContainerUsage};
use muster_job_data::output_listing::OutputListing;
use muster_process::SharedClock;
use muster_protocol::Timestamp;
use muster_protocol::job::{CompletionReport, MAX_METRICS, MetricName, MetricValue, ProgramReport};
use muster_protocol::wire::executor::GpuMetrics;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::machine::gpu::GpuLibrary;

/// The pause between two samples. The engine answers each within milliseconds.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The time after which a program that reports nothing has its use of the machine reported again.
const REPEAT_AFTER: Duration = Duration::from_secs(10);
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// The use of one program. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsageRecord(Arc<Mutex<Usage>>);

#[derive(Debug, Default)]
struct Usage {
    began: Option<Timestamp>,
    ended: Option<Timestamp>,
    gpus: u64,
    /// The newest sample of the processor time.
    cpu: Option<Duration>,
    memory_peak: Option<u64>,
    /// The sum and the number of samples of a GPU's utilisation, in percent.
    gpu_percents: (u64, u64),
    /// The newest report of the program, and when it or its repetition was made.
    report: Option<(Timestamp, ProgramReport)>,
    /// The newest samples, as metrics beside the program's own.
    machine: BTreeMap<&'static str, f64>,
}

impl Usage {
    /// Adds the newest samples to a report, as far as there is room. A metric of the program's own of the same name
    /// stays.
    fn add_machine(&self, report: &mut ProgramReport) {
        for (name, value) in &self.machine {
            if let (Ok(name), Ok(value)) = (name.parse::<MetricName>(), MetricValue::try_from(*value))
                && report.metrics.len().saturating_add(report.non_finite.len()) < MAX_METRICS
                && !report.non_finite.contains_key(&name)
            {
                report.metrics.entry(name).or_insert(value);
            }
        }
    }
}

impl UsageRecord {
    /// The program began at `began` and has `gpus` GPUs.
    pub(crate) fn begin(&self, began: Timestamp, gpus: usize) {
        let mut usage = self.0.lock();
        usage.began = Some(began);
        usage.gpus = gpus as u64;
    }

    /// The program has ended. The first call counts.
    pub(crate) fn end(&self, at: Timestamp) {
        self.0.lock().ended.get_or_insert(at);
    }

    /// Notes a report that the program has made, and returns it with its use of the machine: `machine/memory_mib`,
    /// `machine/cpu_percent` of one core, and with GPUs the mean `machine/gpu_percent` and `machine/gpu_memory_mib` of
    /// all of them together.
    pub(crate) fn note_report(&self, at: Timestamp, report: ProgramReport) -> ProgramReport {
        let mut usage = self.0.lock();
        let mut full = report.clone();
        usage.add_machine(&mut full);
        usage.report = Some((at, report));
        full
    }

    /// The last report once more, with the newest use of the machine, if nothing was reported for ten seconds while
    /// the program runs; `None` otherwise, and before the first sample. A program that reports nothing has such reports
    /// alone.
    pub(crate) fn repeat_report(&self, now: Timestamp) -> Option<ProgramReport> {
        let mut usage = self.0.lock();
        let began = usage.began?;
        let (told_at, last) = usage.report.clone().unwrap_or((began, ProgramReport::default()));
        let silence = now.since(told_at);
        if usage.ended.is_some() || usage.machine.is_empty() || silence < REPEAT_AFTER {
            return None;
        }
        let mut report = ProgramReport {
            elapsed_s: now.since(began).as_secs(),
            eta_s: last.eta_s.map(|left| left.saturating_sub(silence.as_secs())),
            ..last
        };
        usage.report = Some((now, report.clone()));
        usage.add_machine(&mut report);
        Some(report)
    }

    /// Notes a sample of the container, `since_last` after the one before it.
    fn note_sample(&self, sample: ContainerUsage, since_last: Duration) {
        let mut usage = self.0.lock();
        if let Some(before) = usage.cpu
            && !since_last.is_zero()
        {
            let busy = sample.cpu.saturating_sub(before).as_secs_f64() / since_last.as_secs_f64();
            usage
                .machine
                .insert("machine/cpu_percent", (busy * 100.0).round());
        }
        usage.cpu = usage.cpu.max(Some(sample.cpu));
        usage.memory_peak = usage.memory_peak.max(Some(sample.memory));
        usage.machine.insert("machine/memory_mib", mib(sample.memory));
    }

    /// Notes a sample of the GPUs of the job.
    fn note_gpus(&self, gpus: &[&GpuMetrics]) {
        let mut usage = self.0.lock();
        let percent = |gpu: &&GpuMetrics| u64::from(gpu.utilisation_percent.min(100));
        let sum: u64 = gpus.iter().map(percent).sum();
        let count = gpus.len() as u64;
        usage.gpu_percents.0 += sum;
        usage.gpu_percents.1 += count;
        if let Some(mean) = sum.checked_div(count) {
            let memory = gpus.iter().map(|gpu| gpu.memory_used).sum();
            usage.machine.insert("machine/gpu_percent", rounded(mean));
            usage.machine.insert("machine/gpu_memory_mib", mib(memory));
        }
    }

    /// The completion report of the attempt; `None` for one whose program never began.
    pub(crate) fn report(&self, outputs: OutputListing) -> Option<CompletionReport> {
        let usage = self.0.lock();
        let compute = usage.ended?.since(usage.began?);
        let (sum, samples) = usage.gpu_percents;
        let gpu_permille = (sum * 10).checked_div(samples);
        Some(CompletionReport {
            outputs: outputs.files,
            unlisted: outputs.unlisted,
            compute_ms: millis(compute),
            cpu_ms: usage.cpu.map(millis),
            memory_peak: usage.memory_peak,
            gpu_ms: (usage.gpus > 0).then(|| millis(compute).saturating_mul(usage.gpus)),
            gpu_permille: gpu_permille.and_then(|mean| u16::try_from(mean).ok()),
            metrics: usage
                .report
                .as_ref()
                .map_or_else(BTreeMap::new, |(_, report)| report.metrics.clone()),
            printed: None,
        })
    }

    /// Samples the container and these GPUs until it is dropped, and passes on the reports of [`Self::repeat_report`]
    /// if somebody wants them. Blocks no other work of the attempt.
    pub(crate) async fn watch(
        self,
        engine: ContainerEngine,
        container: String,
        gpus: Vec<String>,
        clock: SharedClock,
        report_to: Option<impl Fn(Timestamp, ProgramReport)>,
    ) {
        let (usage, seconds) = (self.clone(), Arc::clone(&clock));
        let telling = async move {
            let Some(report_to) = report_to else { return };
            loop {
                seconds.sleep(REPEAT_AFTER).await;
                let now = seconds.now();
                if let Some(report) = usage.repeat_report(now) {
                    report_to(now, report);
                }
            }
        };
        tokio::join!(self.sample(engine, container, gpus, clock), telling);
    }

    async fn sample(self, engine: ContainerEngine, container: String, gpus: Vec<String>, clock: SharedClock) {
        let library = match gpus.is_empty() {
            true => None,
            false => spawn_blocking(GpuLibrary::open).await.ok().map(Arc::new),
        };
        let mut sampled_at = None;
        loop {
            // The container may not be there yet, or no more.
            if let Ok(Some(sample)) = engine.usage(&container).await {
                let now = clock.now();
                let before = sampled_at.replace(now);
                self.note_sample(sample, before.map_or(Duration::ZERO, |before| now.since(before)));
                if let Some(library) = library.clone() {
                    let measured = spawn_blocking(move || library.metrics())
                        .await
                        .unwrap_or_default();
                    let of_job = measured.iter().filter(|gpu| gpus.contains(&gpu.uuid));
                    self.note_gpus(&of_job.collect::<Vec<_>>());
                }
            }
            clock.sleep(SAMPLE_EVERY).await;
        }
    }
}

fn rounded(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

/// The MiB of `bytes`, to a tenth.
fn mib(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "memory is below 2^53 bytes")]
    let bytes = bytes as f64;
    (bytes / MIB * 10.0).round() / 10.0
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn sample(cpu: u64, memory: u64) -> ContainerUsage {
        ContainerUsage {
            cpu: Duration::from_millis(cpu),
            memory,
        }
    }

    #[test]
    fn the_report_has_the_time_the_peak_and_the_mean() {
        let usage = UsageRecord::default();
        assert_eq!(usage.report(OutputListing::default()), None, "no program began");
        usage.begin(at(10), 2);
        assert_eq!(usage.report(OutputListing::default()), None, "it has not ended");
        for (cpu, memory, percents) in [(900, 5, [50, 100]), (1_800, 9, [0, 101]), (2_700, 7, [100, 100])] {
            usage.note_sample(sample(cpu, memory), Duration::from_secs(1));
            let gpus = percents.map(|percent| gpu(percent, 1 << 30));
            usage.note_gpus(&gpus.iter().collect::<Vec<_>>());
        }
        usage.end(at(13));
        usage.end(at(20));
        let report = usage.report(OutputListing::default()).unwrap();
        assert_eq!((report.compute_ms, report.gpu_ms), (3_000, Some(6_000)));
        assert_eq!((report.cpu_ms, report.memory_peak), (Some(2_700), Some(9)));
        assert_eq!(report.gpu_permille, Some(750));
    }

    fn gpu(percent: u32, memory: u64) -> GpuMetrics {
        GpuMetrics {
            uuid: "GPU-1".to_owned(),
            name: "card".to_owned(),
            utilisation_percent: percent,
            memory_total: 1 << 34,
            memory_used: memory,
            temperature_c: 40,
            power_mw: 1,
        }
    }

    fn metrics_of(report: &ProgramReport) -> Vec<(String, f64)> {
        let metrics = report.metrics.iter();
        metrics
            .map(|(name, value)| (name.as_str().to_owned(), value.get()))
            .collect()
    }

    #[test]
    fn a_report_has_the_use_of_the_machine_beside_the_programs_metrics() {
        let usage = UsageRecord::default();
        usage.begin(at(10), 1);
        usage.note_sample(sample(500, 3 << 20), Duration::ZERO);
        usage.note_sample(sample(2_000, 5 << 20), Duration::from_secs(1));
        usage.note_gpus(&[&gpu(87, 3 << 30), &gpu(90, 1 << 30)]);
        let loss: MetricName = "loss".parse().unwrap();
        let of_program = ProgramReport {
            metrics: [(loss, MetricValue::try_from(0.5).unwrap())].into(),
            ..ProgramReport::default()
        };
        let sent = usage.note_report(at(11), of_program.clone());
        let expected = [
            ("loss", 0.5),
            ("machine/cpu_percent", 150.0),
            ("machine/gpu_memory_mib", 4_096.0),
            ("machine/gpu_percent", 88.0),
            ("machine/memory_mib", 5.0),
        ];
        assert_eq!(
            metrics_of(&sent),
            expected.map(|(name, value)| (name.to_owned(), value))
        );
        usage.end(at(12));
        let completion = usage.report(OutputListing::default()).unwrap();
        assert_eq!(
            completion.metrics, of_program.metrics,
            "the completion has the program's own"
        );
    }

    #[test]
    fn use_of_a_silent_program_is_reported_every_ten_seconds() {
        let usage = UsageRecord::default();
        assert_eq!(usage.repeat_report(at(100)), None, "it has not begun");
        usage.begin(at(10), 0);
        assert_eq!(usage.repeat_report(at(30)), None, "nothing was sampled");
        usage.note_sample(sample(1, 1 << 20), Duration::ZERO);
        assert_eq!(usage.repeat_report(at(19)), None);
        let sent = usage.repeat_report(at(20)).unwrap();
        assert_eq!((sent.elapsed_s, sent.step), (10, None));
        assert_eq!(metrics_of(&sent), [("machine/memory_mib".to_owned(), 1.0)]);
        assert_eq!(usage.repeat_report(at(21)), None, "it was reported a second ago");
        let of_program = ProgramReport {
            step: Some(7),
            eta_s: Some(60),
            ..ProgramReport::default()
        };
        usage.note_report(at(22), of_program);
        let again = usage.repeat_report(at(37)).unwrap();
        assert_eq!(
            (again.step, again.eta_s, again.elapsed_s),
            (Some(7), Some(45), 27)
        );
        usage.end(at(38));
        assert_eq!(usage.repeat_report(at(99)), None, "it is over");
    }

    #[test]
    fn report_lacks_use_that_was_not_sampled() {
        let usage = UsageRecord::default();
        usage.begin(at(10), 0);
        usage.end(at(11));
        let report = usage.report(OutputListing::default()).unwrap();
        assert_eq!((report.cpu_ms, report.memory_peak), (None, None));
        assert_eq!((report.gpu_ms, report.gpu_permille), (None, None));
    }
}

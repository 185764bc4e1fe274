//! Users' reports of cheating: each leads to one run of the job, or to one audit, within a bound for each account.

use std::time::Duration;

use muster_identity::verify_cheat_report;
use muster_protocol::JobId;
use muster_protocol::wire::checks::CheckOrigin;
use muster_protocol::wire::facilitator::CheatReport;
use muster_response_proof::ReportedAnswer;
use muster_store::StoreError;

use crate::check_tasks::{CheckerState, CrossChecks, may_be_reported};
use crate::store::NewCheck;

const DAY: Duration = Duration::from_secs(86_400);
/// The time between two audits of one miner's answers that reports without an answer order. Its signer shows no key of
/// the session, and a new key costs nothing.
const BETWEEN_AUDITS: Duration = Duration::from_secs(3_600);

impl CrossChecks {
    /// Keeps a user's report, and takes it up. It leads to one run of the job on the validator's own miner, or, if the
    /// job is a session of the gateway, to an audit of the model's answers. A repeated report changes nothing.
    ///
    /// # Errors
    /// The database fails.
    pub async fn take_report(&self, report: &CheatReport) -> Result<(), StoreError> {
        let state = &*self.state;
        let user = report.signature.signatory;
        tracing::info!(job = report.job_uuid, %user, "a user reports cheating");
        let Ok(job) = report.job_uuid.parse::<JobId>() else {
            tracing::warn!(job = report.job_uuid, %user, "a report of cheating names no job and is not kept");
            return Ok(());
        };
        state.deps.store.keep_cheat_report(report, state.now()).await?;
        if verify_cheat_report(report).is_err() {
            tracing::warn!(%job, "a report of cheating has a false signature and is only kept");
            return Ok(());
        }
        let check = match find_subject(state, job, report).await? {
            Subject::Checkable(check) => *check,
            Subject::Foreign => {
                tracing::warn!(%job, "a report of cheating is signed by another key than the job and is only kept");
                return Ok(());
            }
            Subject::Nothing(reason) => return refuse(state, job, reason).await,
        };
        let now = state.now();
        let most = state.settings.reports_per_day;
        if state.store.count_reports(&check.account, now.minus(DAY)).await? >= u64::from(most) {
            let reason =
                format!("the account has reported {most} jobs within a day, and no more are run again");
            return refuse(state, job, &reason).await;
        }
        if state.store.insert(&check, now).await? {
            state.due.notify_one();
        }
        Ok(())
    }
}

/// Reports to the user why a report leads to nothing. Nothing else is stored, so that a later report may be taken, and
/// a job that waits for its draw still does.
async fn refuse(state: &CheckerState, job: JobId, reason: &str) -> Result<(), StoreError> {
    tracing::info!(%job, reason, "a reported job is not run again");
    state.store.put_refusal(job, reason, state.now()).await
}

/// The subject of a report.
enum Subject {
    /// A job that may run again, or a session of the gateway, whose model is audited.
    Checkable(Box<NewCheck>),
    /// Another key signed the job than the report.
    Foreign,
    /// Nothing that can be checked, for this reason.
    Nothing(&'static str),
}

async fn find_subject(state: &CheckerState, job: JobId, report: &CheatReport) -> Result<Subject, StoreError> {
    let check = |account: String| NewCheck {
        job,
        origin: CheckOrigin::Reported,
        account,
        ended: None,
        coldkey: None,
        model: None,
        answer: None,
        draw_block: None,
    };
    if let Some((miner, model)) = state.store.session_of(job).await? {
        let answer = ReportedAnswer::from_details(report.details.as_ref());
        if let Some(answer) = &answer
            && !state.store.has_answer(job, &answer.proof).await?
        {
            return Ok(Subject::Nothing(
                "the validator knows no proven answer of this session with this proof",
            ));
        }
        let coldkey = state.owner_of(miner);
        let since = state.now().minus(BETWEEN_AUDITS);
        if answer.is_none()
            && let Some(owner) = &coldkey
            && state.store.has_session_report(owner, &model, since).await?
        {
            return Ok(Subject::Nothing(
                "another report has ordered an audit of this miner's answers within the hour; a report that shows an \
                 answer is judged by itself",
            ));
        }
        return Ok(Subject::Checkable(Box::new(NewCheck {
            coldkey,
            model: Some(model),
            answer,
            ..check(report.signature.signatory.to_string())
        })));
    }
    let Some(ended) = state.store.ended_job(job).await? else {
        return Ok(Subject::Nothing(
            "the validator knows no completed job with this id",
        ));
    };
    // The one key that signed the job, the user's or the facilitator's, must have signed the report.
    if ended.request.signature.signatory != report.signature.signatory {
        return Ok(Subject::Foreign);
    }
    if let Err(reason) = may_be_reported(&ended) {
        return Ok(Subject::Nothing(reason));
    }
    Ok(Subject::Checkable(Box::new(NewCheck {
        coldkey: state.owner_of(ended.miner),
        ended: Some(ended.clone()),
        ..check(ended.request.account())
    })))
}

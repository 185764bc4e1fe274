//! `muster audit`: spot checks of a running validator, and its sums done again from files.

use std::process::ExitCode;

use muster_operator::score::{audit, read, replay_bundle, run_curve, write};
use muster_operator::{
    ExplainAuditArguments, OperatorToolError, fetch_bundle, list_audits, list_cross_checks, run_audits,
    self_test, show_audit,
};
use muster_terminal::print;

use crate::cli::{Audit, ValidatorQuestion};
use crate::failure::Result;
use crate::validator::{address, failed, operator_of};

/// Runs the command. An audit without a verdict ends it with 1.
pub(crate) async fn run(command: Audit) -> Result<ExitCode> {
    let answer = match command {
        Audit::Run(args) => {
            let (at, token) = operator_of(&args.token_file, &args.of)?;
            let ended = run_audits(at, &token, args.order, args.of.json).await;
            let all_judged = ended.map_err(failed)?;
            return Ok(if all_judged {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        Audit::Ls(args) => {
            let at = address(args.of.state, &args.of.dir)?;
            return told(list_audits(at, args.limit, args.of.json).await);
        }
        Audit::Checks(args) => {
            let at = address(args.of.state, &args.of.dir)?;
            return told(list_cross_checks(at, args.limit, args.of.json).await);
        }
        Audit::Show(args) => {
            let at = address(args.of.state, &args.of.dir)?;
            return told(show_audit(at, args.question, args.of.json).await);
        }
        Audit::SelfTest(args) if args.order.is_order() => {
            let (at, token) = operator_of(&args.token_file, &args.of)?;
            return told(self_test(at, Some(&token), args.order, args.of.json).await);
        }
        Audit::SelfTest(args) => {
            let at = address(args.of.state, &args.of.dir)?;
            return told(self_test(at, None, args.order, args.of.json).await);
        }
        Audit::Explain(args) => explain(args).await?,
        Audit::Score(args) => audit(&read(&args.file)?, args.digest.as_deref(), args.json)?,
        Audit::Replay(args) => replay_bundle(&read(&args.file)?, args.digest.as_deref(), args.json)?,
        Audit::Curve(args) => run_curve(&args)?,
    };
    print::raw(&answer);
    Ok(ExitCode::SUCCESS)
}

async fn explain(args: ValidatorQuestion<ExplainAuditArguments>) -> Result<String> {
    let at = address(args.of.state, &args.of.dir)?;
    let text = fetch_bundle(at, &args.question.bundle).await.map_err(failed)?;
    if let Some(file) = &args.question.save {
        write(file, &text)?;
    }
    Ok(replay_bundle(
        &text,
        Some(&args.question.bundle.to_string()),
        args.of.json,
    )?)
}

fn told(answer: std::result::Result<(), OperatorToolError>) -> Result<ExitCode> {
    answer.map(|()| ExitCode::SUCCESS).map_err(failed)
}

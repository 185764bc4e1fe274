//! Statements are signed, bound to their subnet and cycle, and follow from their evidence.

use muster_identity::Keypair;
use muster_protocol::{ExecutorClass, Hotkey, MinerKey, Timestamp, ValidatorKey};
use muster_scoring::capacity_statements::{
    CapacityEvidence, MAX_STATEMENT_BYTES, MinerObservations, ObservedMiner, SignedStatement,
    StatementContext, StatementError, check_statement, evidence_digest, sign_statement,
};
use muster_scoring::{Observation, ObservationKind};
use proptest::prelude::*;

fn keypair() -> Keypair {
    Keypair::from_seed([7; 32])
}

fn context() -> StatementContext {
    StatementContext {
        genesis: "0xab".to_owned(),
        netuid: 12,
        validator: ValidatorKey(keypair().hotkey()),
        cycle: 361,
    }
}

fn observed(kind: ObservationKind, hour: i64, shown: u32) -> Observation {
    Observation {
        kind,
        at: Timestamp::from_secs(1_769_000_000 + hour * 3_600),
        announced: 4,
        shown,
        credit: u64::from(shown) * 1_000,
        excuses: vec![],
    }
}

fn evidence() -> CapacityEvidence {
    let seen = ObservedMiner {
        observations: vec![
            observed(ObservationKind::Announced, 0, 3),
            observed(ObservationKind::Announced, 1, 2),
            observed(ObservationKind::Unannounced, 1, 4),
        ],
        offers: 30,
        refused: 1,
    };
    let miner = MinerKey(Hotkey::from_bytes([9; 32]));
    CapacityEvidence::of(&MinerObservations::from([(
        (miner, ExecutorClass::AlwaysOnTest),
        seen,
    )]))
}

fn statement() -> SignedStatement {
    sign_statement(&keypair(), context(), &evidence())
}

/// The statement with one field of its JSON replaced.
fn forged(field: &str, value: serde_json::Value) -> String {
    let mut json: serde_json::Value = serde_json::from_str(&statement().to_text()).unwrap();
    json[field] = value;
    json.to_string()
}

#[test]
fn the_text_is_as_documented() {
    let text = statement().to_text();
    let (before, signature) = text.split_once(r#""signature":""#).unwrap();
    let miner = "5CGYyLcrWUfBDKExbvRjDQinEoCZWQmD6SjaXBLhny6A2wjE";
    let row = |kind, executors| {
        format!(
            r#"{{"class":"always_on.test","credit":{executors}000,"executors":{executors},"kind":"{kind}","#
        ) + &format!(r#""miner":"{miner}","offers":30,"refused":1}}"#)
    };
    let digest = "52f3705ddf4066a810c48030cd870a11310d3b3e5c07edd3161105803977df45";
    let rows = format!("{},{}", row("announced", 2), row("unannounced", 4));
    assert_eq!(
        before,
        format!(
            r#"{{"cycle":361,"evidence":"sha256:{digest}","format":"muster/capacity/1","genesis":"0xab","#
        ) + &format!(r#""netuid":12,"rows":[{rows}],"#)
    );
    let validator = context().validator;
    assert!(
        signature.ends_with(&format!(r#","validator":"{validator}"}}"#)),
        "{signature}"
    );
    assert_eq!(
        evidence_digest(&evidence().to_text()).to_string(),
        format!("sha256:{digest}")
    );
    let seen = |at, kind, shown| {
        format!(
            r#"{{"announced":4,"at":"{at}","credit":{shown}000,"excuses":[],"kind":"{kind}","shown":{shown}}}"#
        )
    };
    let [zero, one] = ["2026-01-21T12:53:20Z", "2026-01-21T13:53:20Z"];
    let all = [
        seen(zero, "announced", 3),
        seen(one, "announced", 2),
        seen(one, "unannounced", 4),
    ]
    .join(",");
    assert_eq!(
        evidence().to_text(),
        format!(r#"{{"miners":[{{"class":"always_on.test","miner":"{miner}","observations":[{all}],"#)
            + r#""offers":30,"refused":1}]}"#
    );
}

#[test]
fn a_statement_is_read_back_and_states_what_the_probes_proved() {
    let read = check_statement(&statement().to_text(), &context()).unwrap();
    assert_eq!(read, statement_with_signature_of(&read));
    let stated = read.stated();
    assert_eq!((stated.cycle, stated.validator), (361, context().validator));
    let rows: Vec<_> = stated
        .rows
        .iter()
        .map(|row| (row.kind, row.executors, row.offers))
        .collect();
    assert_eq!(
        rows,
        [
            (ObservationKind::Announced, 2, 30),
            (ObservationKind::Unannounced, 4, 30)
        ]
    );
    read.check_evidence(&evidence().to_text()).unwrap();
}

/// Signatures are drawn anew each time; all else is the same.
fn statement_with_signature_of(read: &SignedStatement) -> SignedStatement {
    let mut json = serde_json::to_value(statement()).unwrap();
    json["signature"] = serde_json::to_value(read).unwrap()["signature"].clone();
    serde_json::from_value(json).unwrap()
}

#[test]
fn every_lie_has_its_reason() {
    let check = |text: &str| check_statement(text, &context());
    assert!(matches!(check("{}"), Err(StatementError::Text(_))));
    assert!(matches!(
        check(&" ".repeat(MAX_STATEMENT_BYTES + 1)),
        Err(StatementError::Format)
    ));
    assert!(matches!(
        check(&forged("format", "muster/capacity/2".into())),
        Err(StatementError::Format)
    ));
    assert!(matches!(
        check(&forged("rows", serde_json::json!([]))),
        Err(StatementError::Signature)
    ));
    assert!(matches!(
        check(&forged("cycle", 362.into())),
        Err(StatementError::Context)
    ));
    let other = StatementContext {
        netuid: 13,
        ..context()
    };
    assert!(matches!(
        check_statement(&statement().to_text(), &other),
        Err(StatementError::Context)
    ));
    let other = StatementContext {
        validator: ValidatorKey(Hotkey::from_bytes([1; 32])),
        ..context()
    };
    let claimed = forged("validator", serde_json::to_value(other.validator).unwrap());
    assert!(matches!(
        check_statement(&claimed, &other),
        Err(StatementError::Signature)
    ));
}

#[test]
fn rows_without_their_evidence_do_not_count() {
    let mut better = evidence();
    better.miners[0].observations[1].shown = 3;
    let lying = sign_statement(&keypair(), context(), &better);
    assert!(matches!(
        lying.check_evidence(&evidence().to_text()),
        Err(StatementError::OtherEvidence)
    ));
    // A validator that signs other rows than its evidence proves.
    let mut json = serde_json::to_value(statement()).unwrap();
    json["rows"][0]["executors"] = 4.into();
    let lying: SignedStatement = serde_json::from_value(json).unwrap();
    assert!(matches!(
        lying.check_evidence(&evidence().to_text()),
        Err(StatementError::Rows)
    ));
}

proptest! {
    #[test]
    fn no_bytes_make_a_statement_panic(text in ".{0,400}") {
        prop_assert!(check_statement(&text, &context()).is_err());
        prop_assert!(statement().check_evidence(&text).is_err());
    }
}

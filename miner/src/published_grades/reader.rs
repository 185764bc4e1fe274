//! Reads the statements that validators serve, and checks them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future;
use futures_util::stream::{self, StreamExt as _};
use muster_chain::{ChainClient, Metagraph, Netuid, Window};
use muster_http::addresses::AddressRules;
use muster_process::SharedClock;
use muster_process::error::Causes;
use muster_protocol::{MinerKey, ValidatorKey};
use muster_receipts::Fetcher;
use muster_scoring::capacity_statements::{
    CapacityEvidence, MAX_EVIDENCE_BYTES, MAX_STATEMENT_BYTES, StatementContext, check_statement,
};
use muster_scoring::{CapacityRow, Observation, ObservationKind};
use muster_status_views::miner::{MAX_PROBES, PublishedGrade, PublishedProbe};

use crate::published_grades::board::{GradeBoard, NoGrades};

/// Validators whose statements are read, those with the largest stakes.
const MOST_VALIDATORS: usize = 64;
/// Validators that are asked at a time.
const READ_AT_ONCE: usize = 8;
/// Reads the statements of the validators that a miner serves.
#[derive(Debug)]
pub(crate) struct GradeReader {
    /// The miner whose grades are read.
    pub me: MinerKey,
    /// The number of the subnet.
    pub netuid: Netuid,
    /// A validator must not make this miner connect to its own network.
    pub rules: AddressRules,
    /// Fetches from validators' pages.
    pub fetcher: Fetcher,
    /// The time between two rounds.
    pub pause: Duration,
    /// The source of time.
    pub clock: SharedClock,
}

/// The addresses of validators' pages as the chain stated them in a cycle; `None` of one that serves none.
#[derive(Debug, Default)]
struct KnownAddresses {
    cycle: Option<u64>,
    /// The cycle before, whose statements may have been made after the last look at it.
    previous: Option<u64>,
    addresses: BTreeMap<ValidatorKey, Option<SocketAddr>>,
}

impl GradeReader {
    /// Reads statements for ever, a round after each pause. `served` are the validators that the miner serves then.
    pub(crate) async fn follow(
        &self,
        client: &ChainClient,
        board: &GradeBoard,
        served: impl Fn() -> BTreeSet<ValidatorKey> + Sync,
    ) {
        let mut known = KnownAddresses::default();
        loop {
            match client.metagraph_shared(self.netuid).await {
                Ok(metagraph) => {
                    self.read_round(client, &metagraph, &served(), &mut known, board)
                        .await
                }
                Err(error) => {
                    tracing::debug!(error = %Causes(&error), "no grades are read: the chain is away")
                }
            }
            self.clock.sleep(self.pause).await;
        }
    }

    /// Reads the statements for the present cycle that are not there yet. An address is asked of the chain once in a
    /// cycle.
    async fn read_round(
        &self,
        client: &ChainClient,
        metagraph: &Metagraph,
        served: &BTreeSet<ValidatorKey>,
        known: &mut KnownAddresses,
        board: &GradeBoard,
    ) {
        let cycle = Window::at(metagraph.tempo, metagraph.last_epoch, metagraph.block)
            .cycle
            .0;
        let validators = self.stating(metagraph, served);
        board.retain(&validators);
        if known.cycle != Some(cycle) {
            *known = KnownAddresses {
                cycle: Some(cycle),
                previous: known.cycle,
                addresses: BTreeMap::new(),
            };
        }
        let (addresses, previous) = (&known.addresses, known.previous);
        let missing = validators
            .into_iter()
            .filter(|validator| !board.has(*validator, cycle));
        let readings: Vec<_> = missing
            .map(|validator| {
                let told = addresses.get(&validator).copied();
                async move {
                    let context = StatementContext {
                        genesis: client.genesis(),
                        netuid: self.netuid.0,
                        validator,
                        cycle,
                    };
                    let address = match told {
                        Some(address) => Ok(address),
                        None => client.pages_of(self.netuid, &validator.0).await,
                    };
                    let (cycle, found) = match &address {
                        Ok(address) => self.read_newest(*address, context, previous, board).await,
                        Err(_) => (cycle, Err(NoGrades::Chain)),
                    };
                    board.note(validator, cycle, found, self.clock.now());
                    Some((validator, address.ok()?))
                }
                .boxed()
            })
            .collect();
        let read = stream::iter(readings).buffer_unordered(READ_AT_ONCE);
        let told: Vec<_> = read.filter_map(future::ready).collect().await;
        known.addresses.extend(told);
    }

    /// The served validators with a permit but this miner itself, those with the largest stakes.
    fn stating(&self, metagraph: &Metagraph, served: &BTreeSet<ValidatorKey>) -> Vec<ValidatorKey> {
        let permitted = metagraph.neurons.iter().filter(|neuron| neuron.permit);
        let mut stating: Vec<_> = permitted
            .map(|neuron| (neuron.stake, ValidatorKey(neuron.hotkey)))
            .filter(|(_, validator)| served.contains(validator) && validator.0 != self.me.0)
            .collect();
        stating.sort_by(|one, other| other.cmp(one));
        stating
            .into_iter()
            .take(MOST_VALIDATORS)
            .map(|(_, validator)| validator)
            .collect()
    }

    /// The grades in the statement for this cycle, or in that for the cycle before if it was not read.
    async fn read_newest(
        &self,
        address: Option<SocketAddr>,
        context: StatementContext,
        previous: Option<u64>,
        board: &GradeBoard,
    ) -> (u64, Result<Vec<PublishedGrade>, NoGrades>) {
        let found = self.read_at(address, &context).await;
        match (found, previous) {
            (Err(NoGrades::Nothing), Some(cycle)) if !board.has(context.validator, cycle) => {
                let before = StatementContext { cycle, ..context };
                (cycle, self.read_at(address, &before).await)
            }
            (found, _) => (context.cycle, found),
        }
    }

    /// The grades in the statement that is served at an address.
    async fn read_at(
        &self,
        address: Option<SocketAddr>,
        context: &StatementContext,
    ) -> Result<Vec<PublishedGrade>, NoGrades> {
        let address = address.ok_or(NoGrades::NoPages)?;
        if !self.rules.permit("", address.ip(), address.port()) {
            return Err(NoGrades::Address(address));
        }
        let path = format!("/capacity/{}", context.cycle);
        let text = self
            .fetcher
            .fetch_text(address, &path, MAX_STATEMENT_BYTES)
            .await?;
        let statement = check_statement(&text.ok_or(NoGrades::Nothing)?, context)?;
        let stated = statement.stated();
        let own: Vec<&CapacityRow> = stated.rows.iter().filter(|row| row.miner == self.me).collect();
        if own.is_empty() {
            return Err(NoGrades::NotNamed);
        }
        let path = format!("/capacity-evidence/{}", statement.evidence());
        let text = self
            .fetcher
            .fetch_text(address, &path, MAX_EVIDENCE_BYTES)
            .await?;
        let evidence = statement.check_evidence(&text.ok_or(NoGrades::NoEvidence)?)?;
        Ok(own.into_iter().map(|row| grade(row, &evidence)).collect())
    }
}

/// A row of a statement with the probes behind it.
fn grade(row: &CapacityRow, evidence: &CapacityEvidence) -> PublishedGrade {
    let seen = evidence
        .miners
        .iter()
        .filter(|seen| seen.miner == row.miner && seen.class == row.class);
    let mut probes: Vec<PublishedProbe> = seen
        .flat_map(|seen| &seen.observations)
        .filter(|observed| observed.kind == row.kind)
        .map(probe)
        .collect();
    probes.sort_by_key(|probe| std::cmp::Reverse(probe.at));
    probes.truncate(MAX_PROBES);
    PublishedGrade {
        class: row.class.to_string(),
        kind: match row.kind {
            ObservationKind::Announced => "announced",
            ObservationKind::Unannounced => "unannounced",
        }
        .to_owned(),
        executors: row.executors,
        credit: row.credit,
        offers: row.offers,
        refused: row.refused,
        probes,
    }
}

fn probe(observed: &Observation) -> PublishedProbe {
    PublishedProbe {
        at: observed.at,
        announced: observed.announced,
        shown: observed.shown,
        excused: u32::try_from(observed.excuses.len()).unwrap_or(u32::MAX),
        credit: observed.credit,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::extract::State;
    use axum::http::Uri;
    use muster_identity::Keypair;
    use muster_process::SystemClock;
    use muster_protocol::{ExecutorClass, Timestamp};
    use muster_scoring::capacity_statements::{
        MinerObservations, ObservedMiner, StatementError, sign_statement,
    };

    use super::*;

    fn keypair(uri: &str) -> Keypair {
        Keypair::from_uri(uri).unwrap()
    }

    fn reader(miner: &str, allow: &[&str]) -> GradeReader {
        let allow: Vec<_> = allow.iter().map(|entry| (*entry).to_owned()).collect();
        GradeReader {
            me: MinerKey(keypair(miner).hotkey()),
            netuid: Netuid(1),
            rules: AddressRules::parse(&allow).unwrap(),
            fetcher: Fetcher::new().unwrap(),
            pause: Duration::from_secs(60),
            clock: Arc::new(SystemClock::new()),
        }
    }

    fn context(cycle: u64) -> StatementContext {
        StatementContext {
            genesis: "0xab".to_owned(),
            netuid: 1,
            validator: ValidatorKey(keypair("//Validator").hotkey()),
            cycle,
        }
    }

    fn observation(at: i64, shown: u32) -> Observation {
        Observation {
            kind: ObservationKind::Announced,
            at: Timestamp::from_secs(at),
            announced: 2,
            shown,
            credit: u64::from(shown) * 1_000,
            excuses: vec![],
        }
    }

    fn evidence() -> CapacityEvidence {
        let seen = ObservedMiner {
            observations: vec![observation(100, 1), observation(200, 2)],
            offers: 5,
            refused: 1,
        };
        let key = (MinerKey(keypair("//Miner").hotkey()), ExecutorClass::AlwaysOnTest);
        CapacityEvidence::of(&MinerObservations::from([(key, seen)]))
    }

    /// A validator's pages: a statement signed by `signer` for cycle 7, and its evidence.
    async fn serve(signer: &str) -> SocketAddr {
        let evidence = evidence();
        let statement = sign_statement(&keypair(signer), context(7), &evidence);
        let pages = BTreeMap::from([
            ("/capacity/7".to_owned(), statement.to_text()),
            (
                format!("/capacity-evidence/{}", statement.evidence()),
                evidence.to_text(),
            ),
        ]);
        let show = |State(pages): State<Arc<BTreeMap<String, String>>>, uri: Uri| async move {
            pages
                .get(uri.path())
                .cloned()
                .ok_or(axum::http::StatusCode::NOT_FOUND)
        };
        let router = Router::new().fallback(show).with_state(Arc::new(pages));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = muster_process::Tasks::new();
        tasks.spawn("pages", async move {
            // It ends with the test.
            let _ = axum::serve(listener, router).await;
        });
        address
    }

    #[tokio::test]
    async fn a_miner_reads_its_grade_and_the_probes_behind_it_from_the_validators_statement() {
        let address = serve("//Validator").await;
        let board = GradeBoard::default();
        let validator = context(7).validator;
        let read = async |reader: GradeReader, cycle| reader.read_at(Some(address), &context(cycle)).await;
        let found = read(reader("//Miner", &["127.0.0.1"]), 7).await;
        board.note(validator, 7, found, Timestamp::from_secs(300));
        let grades = board.list();
        let [grade] = grades[0].grades.as_slice() else {
            panic!("{grades:?}")
        };
        assert_eq!(grades[0].cycle, Some(7));
        assert_eq!(
            (grade.kind.as_str(), grade.offers, grade.refused),
            ("announced", 5, 1)
        );
        let shown: Vec<_> = grade
            .probes
            .iter()
            .map(|probe| (probe.at.secs(), probe.shown))
            .collect();
        assert_eq!(shown, [(200, 2), (100, 1)], "the newest first");
        assert!(board.has(validator, 7) && !board.has(validator, 8));
        // A validator that has not stated anything yet takes nothing away.
        let next = read(reader("//Miner", &["127.0.0.1"]), 8).await;
        assert!(matches!(next, Err(NoGrades::Nothing)), "{next:?}");
        board.note(validator, 8, next, Timestamp::from_secs(400));
        assert_eq!(board.list(), grades);
        // Of a statement that was made late the next round reads the cycle before.
        let late = reader("//Miner", &["127.0.0.1"]);
        let (cycle, found) = late
            .read_newest(Some(address), context(8), Some(7), &GradeBoard::default())
            .await;
        assert!(cycle == 7 && found.is_ok(), "{found:?}");
        let (cycle, found) = late.read_newest(Some(address), context(8), Some(7), &board).await;
        assert!(cycle == 8 && found.is_err(), "it was read already: {found:?}");
        let other = read(reader("//Other", &["127.0.0.1"]), 7).await;
        assert!(matches!(other, Err(NoGrades::NotNamed)), "{other:?}");
        board.retain(&[]);
        assert_eq!(board.list(), []);
    }

    #[tokio::test]
    async fn a_statement_of_another_key_and_an_address_inside_are_refused() {
        let address = serve("//Miner").await;
        let forged = reader("//Miner", &["127.0.0.1"])
            .read_at(Some(address), &context(7))
            .await;
        assert!(
            matches!(forged, Err(NoGrades::Statement(StatementError::Signature))),
            "{forged:?}"
        );
        let inside = reader("//Miner", &[]).read_at(Some(address), &context(7)).await;
        assert!(
            matches!(inside, Err(NoGrades::Address(at)) if at == address),
            "{inside:?}"
        );
        let none = reader("//Miner", &[]).read_at(None, &context(7)).await;
        let board = GradeBoard::default();
        board.note(context(7).validator, 7, none, Timestamp::from_secs(1));
        assert!(
            board.list()[0].reason.contains("serves no pages"),
            "{:?}",
            board.list()
        );
    }
}

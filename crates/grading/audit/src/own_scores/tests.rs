//! Authors that lie, authors that choose, and truthful ones, by the measured answers of images/llm's engines.

use super::*;
use crate::margin_cells::{ENTROPY_BINS, ENTROPY_EDGES, MARGIN_BINS, MARGIN_EDGES, Margin, TokenScore};
use crate::seeded_numbers::SeededNumbers;
use crate::verdict::{ScoredAnswer, TestOutcome};

/// The shares of the bins of entropy in prompts that an author chooses to please itself.
const HIGH_ENTROPY: [usize; ENTROPY_BINS] = [0, 0, 1, 9];

fn calibration() -> Calibration {
    Calibration::parse(include_str!(
        "../../../../../tests/vectors/audit-calibration.json"
    ))
    .unwrap()
}

fn numbers(of: &str, seed: u64) -> SeededNumbers {
    SeededNumbers::new("muster/test-own-scores/1", format!("{of} {seed}").as_bytes())
}

/// Tokens that are counted in these cells.
fn tokens(cells: &CellCounts) -> AnswerFinding {
    let entropies = [0].into_iter().chain(ENTROPY_EDGES);
    let margins: Vec<Margin> = MARGIN_EDGES
        .into_iter()
        .chain([u32::MAX])
        .map(Margin::Micronats)
        .chain([Margin::Impossible])
        .collect();
    let mut found = Vec::new();
    for (entropy, row) in entropies.zip(&cells.0) {
        for (margin, count) in margins.iter().zip(row) {
            let token = TokenScore {
                margin: *margin,
                entropy,
            };
            found.extend(std::iter::repeat_n(token, usize::try_from(*count).unwrap()));
        }
    }
    assert_eq!(CellCounts::of(&found), *cells);
    AnswerFinding::Tokens(found)
}

/// One of these places, with a probability in proportion to its weight.
fn draw<T: Copy + TryInto<usize>>(weights: &[T], numbers: &mut SeededNumbers) -> usize {
    let whole = |weight: &T| (*weight).try_into().unwrap_or_default();
    let mut left = numbers.below(weights.iter().map(whole).sum());
    let passes = |weight: &T| match left.checked_sub(whole(weight)) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    };
    weights.iter().position(passes).unwrap()
}

/// An answer of a machine with these rates, at entropies by these weights.
fn short_answer<T: Copy + TryInto<usize>>(
    rates: &CellCounts,
    entropies: &[T],
    length: usize,
    numbers: &mut SeededNumbers,
) -> CellCounts {
    let mut cells = CellCounts::default();
    for _ in 0..length {
        let entropy = draw(entropies, numbers);
        cells.0[entropy][draw(&rates.0[entropy], numbers)] += 1;
    }
    cells
}

/// The answer with some tokens of the reference's own choice stated as ones that are off by up to 0.5 nats.
fn forged(cells: &CellCounts, forged: usize) -> CellCounts {
    let mut cells = *cells;
    for _ in 0..forged {
        let highest = (0..ENTROPY_BINS).rev().find(|entropy| cells.0[*entropy][0] > 0);
        let row = &mut cells.0[highest.unwrap()];
        row[0] -= 1;
        row[4] += 1;
    }
    cells
}

fn name(at: usize) -> Digest {
    Digest::of(&at.to_be_bytes())
}

/// The test of answers of which the author states these cells; `None` for one without words.
fn test_of(tables: &[LikelihoodTable], stated: &[Option<CellCounts>]) -> OwnTest {
    let stated: Vec<Option<AnswerFinding>> = stated.iter().map(|cells| cells.as_ref().map(tokens)).collect();
    run_of(tables, &stated)
}

/// The test of one run of positions with these findings of the author, `None` for one that cannot be scored again.
fn run_of(tables: &[LikelihoodTable], stated: &[Option<AnswerFinding>]) -> OwnTest {
    let position = |(at, finding): (usize, &Option<AnswerFinding>)| TestedPosition {
        starts_anew: at == 0,
        is_answered: true,
        scorable: finding.is_some().then(|| (name(at), at as u64)),
        stated: likelihoods(finding.as_ref(), tables),
    };
    OwnTest {
        positions: stated.iter().enumerate().map(position).collect(),
        tables: tables.to_vec(),
    }
}

/// The judgement of an adopter whose reference finds these cells.
fn judge(test: &OwnTest, own: &[CellCounts]) -> OwnJudgement {
    let chosen = test.choose();
    assert!(chosen.len() <= MOST_OWN_SCORES);
    let found = own
        .iter()
        .enumerate()
        .map(|(at, cells)| (name(at), tokens(cells)));
    test.judge(&found.filter(|(digest, _)| chosen.contains(digest)).collect())
}

/// The fewest own scores that convict, of the answers with the largest statements among the chosen ones.
fn needed_scores(test: &OwnTest, own: &[CellCounts]) -> usize {
    let mut chosen: Vec<usize> = test
        .choose()
        .iter()
        .map(|digest| {
            own.iter()
                .enumerate()
                .position(|(at, _)| name(at) == *digest)
                .unwrap()
        })
        .collect();
    chosen.sort_by_key(|at| Reverse(test.positions[*at].stated.iter().max().copied()));
    let convicts = |scored: usize| {
        let found = chosen
            .iter()
            .take(scored)
            .map(|at| (name(*at), tokens(&own[*at])));
        test.judge(&found.collect()).convicts
    };
    (1..=chosen.len())
        .find(|scored| convicts(*scored))
        .unwrap_or(usize::MAX)
}

/// The tables of the author's own rule.
fn author_tables() -> Vec<LikelihoodTable> {
    let own = calibration();
    own.tables(&own.bound(), own.tested_alternatives())
}

/// Whether the author's own rule convicts, with these scores by both references.
fn convicts_by_statements(tables: &[LikelihoodTable], stated: &[CellCounts]) -> bool {
    let answers: Vec<ScoredAnswer> = stated
        .iter()
        .map(|cells| {
            let likelihoods: Vec<u128> = tables.iter().map(|table| table.of_answer(cells)).collect();
            ScoredAnswer {
                first: Some(likelihoods.clone()),
                second: Some(likelihoods),
            }
        })
        .collect();
    let answers: Vec<&ScoredAnswer> = answers.iter().collect();
    TestOutcome::of(&answers, tables.len()).is_confirmed()
}

/// The fewest answers, from the first one on, that convict by the author's own rule.
fn author_needs(tables: &[LikelihoodTable], stated: &[CellCounts]) -> usize {
    let (mut low, mut high) = (1, stated.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        if convicts_by_statements(tables, &stated[..middle]) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[test]
fn closed_answers_convict_nobody_whatever_their_author_states() {
    let own = calibration();
    let rates = CellCounts::sum(&own.machines[4].answers);
    let mix = std::array::from_fn::<u32, ENTROPY_BINS, _>(|entropy| rates.tokens(entropy));
    let mut numbers = numbers("closed", 1);
    let honest: Vec<CellCounts> = (0..20)
        .map(|_| short_answer(&rates, &mix, 128, &mut numbers))
        .collect();
    let stated: Vec<CellCounts> = honest.iter().map(|cells| forged(cells, 12)).collect();
    let tables = widened_tables(&own);
    assert!(
        convicts_by_statements(&author_tables(), &stated),
        "the author's own rule follows its statements"
    );
    let closed = test_of(&tables, &vec![None; 20]);
    assert_eq!(closed.choose(), [], "no reference is started");
    assert!(!judge(&closed, &honest).convicts);
    // Five opened ones, with a forged token or two each, do not help.
    let opened = stated
        .iter()
        .enumerate()
        .map(|(at, cells)| (at < 5).then_some(*cells));
    assert!(!judge(&test_of(&tables, &opened.collect::<Vec<_>>()), &honest).convicts);
}

#[test]
fn a_forged_token_an_answer_convicts_nobody_by_own_scores() {
    let own = calibration();
    let (tables, by_author) = (widened_tables(&own), author_tables());
    let mut convicted_by_statements = 0;
    for (machine, run) in own.machines.iter().enumerate() {
        let rates = CellCounts::sum(&run.answers);
        for (length, off) in [(20, 1), (32, 1), (64, 2), (128, 3)] {
            let mut numbers = numbers("tokens", (machine * 1_000 + length) as u64);
            for _ in 0..10 {
                let honest: Vec<CellCounts> = (0..60)
                    .map(|_| short_answer(&rates, &HIGH_ENTROPY, length, &mut numbers))
                    .collect();
                let stated: Vec<CellCounts> = honest.iter().map(|cells| forged(cells, off)).collect();
                convicted_by_statements += usize::from(convicts_by_statements(&by_author, &stated));
                let stated: Vec<Option<CellCounts>> = stated.into_iter().map(Some).collect();
                let judged = judge(&test_of(&tables, &stated), &honest);
                assert!(!judged.convicts, "{} at {length}: {judged}", run.machine);
            }
        }
    }
    assert!(convicted_by_statements >= 200, "{convicted_by_statements} of 240");
}

#[test]
fn a_cheat_is_convicted_by_few_own_scores_soon_after_its_author_convicts_it() {
    let own = calibration();
    let (tables, author) = (widened_tables(&own), author_tables());
    let honest: Vec<&CellCounts> = own.machines.iter().flat_map(|run| &run.answers).collect();
    for alternative in own.tested_alternatives() {
        for (share, answers) in [(100, 40), (50, 60), (30, 100), (10, 300), (5, 700), (3, 1_200)] {
            let mut numbers = numbers(&alternative.name, share);
            let (mut by_author, mut by_own, mut needed, mut missed) = (Vec::new(), Vec::new(), Vec::new(), 0);
            for _ in 0..20 {
                let given: Vec<CellCounts> = (0..answers)
                    .map(|_| match numbers.below(100) < usize::try_from(share).unwrap() {
                        true => alternative.answers[numbers.below(alternative.answers.len())],
                        false => *honest[numbers.below(honest.len())],
                    })
                    .collect();
                let stated: Vec<Option<CellCounts>> = given.iter().copied().map(Some).collect();
                let test = test_of(&tables, &stated);
                missed += usize::from(!judge(&test, &given).convicts);
                needed.push(needed_scores(&test, &given));
                by_author.push(author_needs(&author, &given));
                by_own.push(test.stated_run(OWN_EVIDENCE).map_or(answers, |run| run.end));
            }
            by_author.sort_unstable();
            by_own.sort_unstable();
            needed.sort_unstable();
            let what = format!("{} at {share} %", alternative.name);
            assert!(missed <= 1, "{what}: {missed} of 20");
            assert!(needed[18] <= 12, "{what}: {needed:?} own scores are needed");
            assert!(
                10 * by_own[10] <= 13 * by_author[10] + 10,
                "{what}: {by_own:?} by own scores, {by_author:?} by the author's rule"
            );
        }
    }
}

#[test]
fn false_ids_count_by_the_own_reference_alone() {
    let own = calibration();
    let stated = vec![Some(AnswerFinding::FalseIds); 6];
    let test = run_of(&widened_tables(&own), &stated);
    assert_eq!(test.choose().len(), 4, "four suffice");
    assert!(!test.judge(&BTreeMap::new()).convicts);
    let found = |finding: &AnswerFinding| (0..6).map(|at| (name(at), finding.clone())).collect();
    let judged = test.judge(&found(&AnswerFinding::FalseIds));
    assert!(judged.convicts, "{judged:?}");
    assert_eq!(judged.newest_answer, Some(3), "it rests on four of them");
    let honest = tokens(&own.machines[0].answers[0]);
    let judged = test.judge(&found(&honest));
    assert!(!judged.convicts && judged.newest_answer.is_none(), "{judged:?}");
    let none = AnswerFinding::Tokens(Vec::new());
    assert!(!test.judge(&found(&none)).convicts);
    let mut one_machine = own.clone();
    one_machine.machines.truncate(1);
    let blind = run_of(&widened_tables(&one_machine), &stated);
    assert_eq!(blind.choose(), [], "a calibration of one machine follows nobody");
    assert!(!blind.judge(&found(&AnswerFinding::FalseIds)).convicts);
}

/// The likelihoods of an answer under the adopter's alternatives, as floating point.
fn as_floats(tables: &[LikelihoodTable], cells: &CellCounts) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a bound on probabilities")]
    let float = |likelihood: u128| likelihood as f64 / ONE as f64;
    tables.iter().map(|table| float(table.of_answer(cells))).collect()
}

/// Lundberg's exponent: the largest t for which the mean of e to the power t is at most 1, for the e-value e =
/// 1 − x + x·L. Then evidence without restarts ever reaches A with a probability of at most A to the power −t.
fn exponent(values: &[f64], share: f64) -> f64 {
    let logs: Vec<f64> = values
        .iter()
        .map(|value| (1.0 - share + share * value).max(1e-300).ln())
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let mean = |t: f64| logs.iter().map(|log| (t * log).min(700.0).exp()).sum::<f64>() / logs.len() as f64;
    if logs.iter().all(|log| *log <= 0.0) {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while mean(high) <= 1.0 && high < 64.0 {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..16 {
        let middle = f64::midpoint(low, high);
        if mean(middle) <= 1.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The decimal logarithm of the bound on a false adoption within 10,000 answers: a restarted test reaches the threshold
/// only if the evidence from one of the starts does for one alternative and share.
fn false_adoption(answers: &[Vec<f64>]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a bound on probabilities")]
    let threshold = OWN_EVIDENCE as f64;
    let alternatives = answers.first().map_or(0, Vec::len);
    let mut sum = 0.0_f64;
    for alternative in 0..alternatives {
        let values: Vec<f64> = answers.iter().map(|answer| answer[alternative]).collect();
        for share in [1.0, 0.3, 0.1, 0.03] {
            sum += 10_000.0 * threshold.powf(-exponent(&values, share));
        }
    }
    sum.max(1e-300).log10()
}

#[test]
fn no_calibrated_machine_is_convicted_by_own_scores_at_any_length_of_answers() {
    let own = calibration();
    let tables = widened_tables(&own);
    assert_eq!(
        tables.len(),
        2,
        "int4 and block skipped; the premise fails for int8"
    );
    for (machine, run) in own.machines.iter().enumerate() {
        // The machine as measured, and with redrawn answers.
        for redrawn in 0..3 {
            let mut numbers = numbers("lundberg", (machine * 10 + redrawn) as u64);
            let answers: Vec<CellCounts> = match redrawn {
                0 => run.answers.clone(),
                _ => (0..run.answers.len())
                    .map(|_| run.answers[numbers.below(run.answers.len())])
                    .collect(),
            };
            let whole: Vec<Vec<f64>> = answers.iter().map(|cells| as_floats(&tables, cells)).collect();
            let bound = false_adoption(&whole);
            assert!(bound <= -6.0, "{}: 10^{bound}", run.machine);
            let rates = CellCounts::sum(&answers);
            for length in [1, 4, 20, 64] {
                let short: Vec<Vec<f64>> = (0..2_000)
                    .map(|_| {
                        as_floats(
                            &tables,
                            &short_answer(&rates, &HIGH_ENTROPY, length, &mut numbers),
                        )
                    })
                    .collect();
                let bound = false_adoption(&short);
                assert!(bound <= -6.0, "{} at {length} tokens: 10^{bound}", run.machine);
            }
        }
    }
}

#[test]
fn the_premise_by_token_holds_for_the_shipped_calibration_and_not_for_one_with_a_worse_machine() {
    let own = calibration();
    assert!(
        own.tested_alternatives()
            .into_iter()
            .all(|alternative| own.holds_by_token(alternative))
    );
    // A machine that errs ten times as often at one entropy is no honest one.
    let mut worse = own.clone();
    for cells in &mut worse.machines[0].answers {
        cells.0[3][5] += cells.0[3][0] / 5;
        cells.0[3][0] -= cells.0[3][0] / 5;
    }
    let int4 = worse.alternatives.iter().find(|one| one.name == "int4").unwrap();
    assert!(!worse.holds_by_token(int4));
    assert_eq!(MARGIN_BINS, 9);
}

/// Everything is true, and the author shows what pleases it: the attack that own scores alone do not rule out. It fails
/// once every committed position counts, with a likelihood of 0 where the author shows nothing.
#[test]
fn the_worst_of_a_thousand_true_answers_convict_where_they_may_be_chosen_and_not_where_positions_are_fixed() {
    let own = calibration();
    let (tables, rates) = (widened_tables(&own), CellCounts::sum(&own.machines[4].answers));
    let worst = |cells: &CellCounts| tables.iter().map(|table| table.of_answer(cells)).max();
    let answers_of = |count: usize, seed: u64| -> Vec<CellCounts> {
        let mut numbers = numbers("chosen", seed);
        (0..count)
            .map(|_| short_answer(&rates, &HIGH_ENTROPY, 20, &mut numbers))
            .collect()
    };
    let chosen = |answers: &[CellCounts]| {
        let mut answers = answers.to_vec();
        answers.sort_by_key(|cells| Reverse(worst(cells)));
        answers.truncate(MOST_OWN_SCORES);
        let shown: Vec<Option<CellCounts>> = answers.iter().copied().map(Some).collect();
        judge(&test_of(&tables, &shown), &answers).convicts
    };
    for seed in 0..3 {
        assert!(!chosen(&answers_of(1_600, seed)), "a hundred for each");
        let answers = answers_of(16_000, seed);
        assert!(chosen(&answers), "a thousand for each");
        // The author closes, or never asks, whatever has less than this likelihood.
        for least in [0, ONE / 2, ONE, 2 * ONE, 4 * ONE] {
            let shown = answers
                .iter()
                .map(|cells| (worst(cells) > Some(least)).then_some(*cells));
            let shown: Vec<Option<CellCounts>> = shown.collect();
            assert!(!judge(&test_of(&tables, &shown), &answers).convicts, "{least}");
            // It names any start that it likes, too.
            for start in (0..16_000).step_by(1_000) {
                assert!(!judge(&test_of(&tables, &shown[start..]), &answers[start..]).convicts);
            }
        }
    }
}

/// The attack that one seed for each position rules out: every position is shown, with the best of a thousand seeds.
#[test]
fn the_best_of_a_thousand_seeds_for_each_position_convicts_an_honest_machine_and_one_seed_does_not() {
    let own = calibration();
    let tables = widened_tables(&own);
    let worst = |cells: &CellCounts| tables.iter().map(|table| table.of_answer(cells)).max();
    let convicts = |machine: usize, length: usize, seeds: usize| {
        let rates = CellCounts::sum(&own.machines[machine].answers);
        let mut numbers = numbers("seeds", (machine * 100 + length) as u64);
        let mut best = |_| {
            let drawn = (0..seeds).map(|_| short_answer(&rates, &HIGH_ENTROPY, length, &mut numbers));
            drawn.max_by_key(|cells| worst(cells)).unwrap()
        };
        let answers: Vec<CellCounts> = (0..48).map(&mut best).collect();
        let shown: Vec<Option<CellCounts>> = answers.iter().copied().map(Some).collect();
        judge(&test_of(&tables, &shown), &answers).convicts
    };
    assert!(
        convicts(4, 20, 1_000),
        "the machine that errs most, short answers"
    );
    for machine in 0..own.machines.len() {
        for length in [1, 4, 20, 64, 128] {
            assert!(
                !convicts(machine, length, 1),
                "machine {machine}, {length} tokens"
            );
        }
    }
}

#[test]
fn evidence_never_grows_by_a_place_where_it_begins_anew() {
    let own = calibration();
    let tables = widened_tables(&own);
    let int4 = own.alternatives.iter().find(|one| one.name == "int4").unwrap();
    let cells: Vec<CellCounts> = int4.answers.iter().take(12).copied().collect();
    let stated: Vec<Option<CellCounts>> = cells.iter().copied().map(Some).collect();
    let whole = test_of(&tables, &stated);
    let judged = judge(&whole, &cells);
    assert!(judged.convicts);
    for apart in 1..12 {
        let mut split = whole.clone();
        split.positions[apart].starts_anew = true;
        let found: BTreeMap<Digest, AnswerFinding> = cells
            .iter()
            .enumerate()
            .map(|(at, cells)| (name(at), tokens(cells)))
            .collect();
        assert!(split.judge(&found).log2 <= whole.judge(&found).log2);
        assert!(
            split.choose().is_empty()
                || split
                    .stated_run(OWN_EVIDENCE)
                    .is_some_and(|run| { run.end <= apart || run.start >= apart })
        );
    }
    let mut each = whole;
    each.positions
        .iter_mut()
        .for_each(|position| position.starts_anew = true);
    assert_eq!(each.choose(), [], "one answer convicts nobody");
}

#[test]
fn statements_suffice_before_they_suffice_amply() {
    let own = calibration();
    let tables: Vec<LikelihoodTable> = widened_tables(&own).into_iter().take(1).collect();
    // Every answer doubles the evidence.
    let stated = |answers: usize| OwnTest {
        tables: tables.clone(),
        positions: (0..answers)
            .map(|at| TestedPosition {
                starts_anew: at == 0,
                is_answered: true,
                scorable: Some((name(at), at as u64)),
                stated: vec![2 * ONE],
            })
            .collect(),
    };
    let first = |is: fn(&OwnTest) -> bool| (0..99).find(|answers| is(&stated(*answers)));
    let suffices = first(|test| !test.choose().is_empty()).unwrap();
    let amply = first(OwnTest::states_amply).unwrap();
    assert!(suffices >= 38, "alarm and confirmation need 2^37.4: {suffices}");
    assert_eq!(amply, suffices + 6, "64 times as much are six doublings more");
}

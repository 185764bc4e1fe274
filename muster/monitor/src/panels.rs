//! The status as tables: what each panel lists, and what the head of the screen shows.

mod miner;
mod panel;
mod user;
mod validator;

use muster_protocol::Timestamp;

pub(crate) use self::panel::{Fact, Mark, Panel, PanelRow};
use crate::board::Board;

/// The tables of a status at `now`.
pub(crate) fn panels(board: &Board, now: Timestamp) -> Vec<Panel> {
    match board {
        Board::User(status) => user::panels(status, now),
        Board::Validator(board) => validator::panels(board, now),
        Board::Miner(status) => miner::panels(status, now),
    }
}

/// The head's second line.
pub(crate) fn headline(board: &Board, now: Timestamp) -> Vec<Fact> {
    match board {
        Board::User(status) => user::headline(status),
        Board::Validator(board) => validator::headline(board, now),
        Board::Miner(status) => miner::headline(status),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use crate::screen::draw;
    use crate::view::{AfterKey, MonitorKey, MonitorView};
    use crate::{ClassOffer, UserJob, UserStatus, ValidatorBoard};

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_secs(10_000)
    }

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp::from_secs(seconds))
    }

    fn job(id: &str, state: &str, ended: bool, note: &str) -> UserJob {
        UserJob {
            id: id.to_owned(),
            image: "muster/hello:latest".to_owned(),
            state: state.to_owned(),
            ended,
            completed: state == "done",
            created_at: at(9_000),
            changed_at: at(9_958),
            note: note.to_owned(),
        }
    }

    fn user() -> Board {
        Board::User(UserStatus {
            account: "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY".to_owned(),
            facilitator: "http://127.0.0.1:8090".to_owned(),
            jobs: vec![
                job("11111111-2222-4333-8444-555555555555", "preparing", false, "runs"),
                job(
                    "22222222-2222-4333-8444-555555555555",
                    "failed",
                    true,
                    "exit code 3 (\u{1b}[31mred\u{1b}[0m)",
                ),
                job("33333333-2222-4333-8444-555555555555", "done", true, ""),
            ],
            offers: vec![ClassOffer {
                class: "always_on.test".to_owned(),
                executors: 2,
                free: 1,
                waiting: 0,
                wait: "starts now".to_owned(),
            }],
        })
    }

    fn validator() -> Board {
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let status = json(
            r#"{"validator":"5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty","block":1234,
            "chain":{"state":"connected"},"facilitator":{"state":"lost","reason":"refused"},"updates_waiting":3,
            "jobs":[{"job":"11111111-2222-4333-8444-555555555555","status":"accepted","created_at":"1970-01-01T02:30:00Z",
            "attempts":[{"attempt":"a","miner":"5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy","uid":7,"state":"running"}]}],
            "cycles":[{"number":1200,"state":"set","weights":[[7,65535]],"scores":[{"uid":7,"points":9000000}],"at_block":1210},
            {"number":1100,"state":"pending","error":"the chain says \u001b[2J no"}]}"#,
        );
        let queue = json(
            r#"{"lines":[{"class":"always_on.test","waiting":2,"miners":1,"executors":2,"at_work":2,"why":"all at work"}],
            "jobs":[{"job":"44444444-2222-4333-8444-555555555555","account":"x","class":"always_on.test","ahead":0}]}"#,
        );
        let batches = json(
            r#"{"batches":[{"batch":"ab","block":1190,"state":"done","grades":{"proven":2,"zero":1}}]}"#,
        );
        let audits = json(
            r#"{"audits":[{"digest":"sha256:0123456789abcdef","verdict":"convicted","model":"tiny\u001b[2J",
            "coldkey":"5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy","quality_per_mille":0}]}"#,
        );
        Board::Validator(Box::new(ValidatorBoard {
            status: serde_json::from_value(status).unwrap(),
            queue: serde_json::from_value(queue).unwrap(),
            batches: serde_json::from_value(batches).unwrap(),
            audits: serde_json::from_value(audits).unwrap(),
            ..ValidatorBoard::default()
        }))
    }

    fn miner() -> Board {
        let text = r#"{"miner":"5DAAnrj7VHTznn2AWBemMuyBwZWs6FNFjdyVXUeYum3PTXFy","time":"1970-01-01T02:46:40Z","version":"0.1.0",
            "draining":true,"validators":[{"validator":"5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty","sessions":1,"served":true}],
            "started":{"all":2,"busy":1},"persistent":{"all":4,"busy":0},
            "machines":[{"load":{"name":"box-1","class":"always_on.test","at":"1970-01-01T02:46:30Z","cpu_permille":350,
            "memory_total":100,"memory_used":50,"disk_total":100,"disk_used":95,"gpus":1,"gpu_percent":80,
            "gpu_memory_total":10,"gpu_memory_used":5},
            "gpus":[{"name":"A6000","percent":80,"celsius":71,"milliwatts":250000,"memory_total":10,"memory_used":5}],
            "history":[{"at":"1970-01-01T02:46:00Z","cpu_permille":100,"gpu_percent":10,"gpu_celsius":40}]}],
            "leases":[{"attempt":"11111111-2222-4333-8444-555555555555","validator":"5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty",
            "class":"always_on.test","state":"working","deadline":"1970-01-01T02:50:00Z"}],"more_leases":0,
            "ended":[],"declines":[{"at":"1970-01-01T02:40:00Z","attempt":"22222222-2222-4333-8444-555555555555","reason":"busy",
            "message":"all 2 executors of class always_on.test are at work"}],
            "earnings":[{"validator":"5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty","receipts":3,"micros":90000000,"newest":"1970-01-01T02:46:00Z"}],
            "grades":[{"validator":"5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty","cycle":1200,"read_at":"1970-01-01T02:46:00Z",
            "reason":"","grades":[{"class":"always_on.test","kind":"announced","executors":2,"credit":1750,"offers":9,"refused":1,"probes":[]}]}]}"#;
        Board::Miner(Box::new(serde_json::from_str(text).unwrap()))
    }

    /// The screen as text, one line for each row.
    fn painted(view: &MonitorView, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, now())).unwrap();
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for row in buffer.content.chunks(usize::from(width)) {
            let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        text
    }

    fn view(board: Board) -> MonitorView {
        let mut view = MonitorView::new("muster top");
        view.note_board(board, now());
        view
    }

    #[test]
    fn a_users_jobs_fit_a_terminal_of_80_by_24() {
        let shown = painted(&view(user()), 80, 24);
        for part in [
            "muster top",
            "5Grwva…utQY",
            "11111111",
            "preparing",
            "failed",
            "exit code 3",
            "1 Jobs 3",
            "q quit",
        ] {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn a_validators_panels_are_reached_by_keys() {
        let mut view = view(validator());
        let shown = painted(&view, 80, 24);
        for part in [
            "block 1234",
            "facilitator lost: refused",
            "accepted",
            "5DAAnr…TXFy",
        ] {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
        let mut seen = String::new();
        for number in 0..7 {
            assert_eq!(view.press(MonitorKey::Panel(number), now()), AfterKey::Paint);
            seen += &painted(&view, 80, 24);
        }
        for part in [
            "all at work",
            "44444444",
            "pending",
            "the chain says ·[2J no",
            "2 proven",
            "always_on.test",
            "7 Audits 1",
            "tiny·[2J",
        ] {
            assert!(seen.contains(part), "{part} is missing:\n{seen}");
        }
        assert_eq!(view.press(MonitorKey::Quit, now()), AfterKey::Quit);
    }

    #[test]
    fn a_miners_machines_leases_and_declines_are_shown() {
        let mut view = view(miner());
        let mut seen = String::new();
        for _ in 0..6 {
            seen += &painted(&view, 120, 30);
            view.press(MonitorKey::NextPanel, now());
        }
        for part in [
            "draining",
            "box-1",
            "71°",
            "working",
            "busy",
            "are at work",
            "90s",
            "1/2",
            "0/4",
            "cycle 1200",
            "2 proven, credit 1.750",
        ] {
            assert!(seen.contains(part), "{part} is missing:\n{seen}");
        }
    }

    #[test]
    fn rows_stay_in_bounds_when_the_list_becomes_shorter() {
        let mut view = view(user());
        view.press(MonitorKey::Last, now());
        assert_eq!(view.chosen(), (0, 2));
        view.press(MonitorKey::Down, now());
        assert_eq!(view.chosen(), (0, 2));
        view.note_board(Board::User(UserStatus::default()), now());
        assert_eq!(view.chosen(), (0, 0));
        assert!(painted(&view, 80, 24).contains("nothing"));
        view.note_problem("the facilitator does not answer\u{7}");
        assert!(painted(&view, 80, 24).contains("does not answer·"));
    }

    #[test]
    fn every_size_is_painted_and_a_tiny_one_says_so() {
        for board in [user(), validator(), miner()] {
            let mut view = view(board);
            view.press(MonitorKey::Help, now());
            for width in [1, 2, 10, 23, 24, 40, 80, 300] {
                for height in [1, 2, 5, 6, 15, 16, 24, 100] {
                    painted(&view, width, height);
                }
            }
        }
        assert!(painted(&view(user()), 23, 10).starts_with("muster: too small"));
        let empty = MonitorView::new("muster top");
        assert!(painted(&empty, 80, 24).contains("reading"));
    }

    proptest! {
        #[test]
        fn hostile_texts_and_keys_break_nothing(
            text in "[\\x00-\\u{10ffff}]{0,80}", width in 1_u16..200, height in 1_u16..60, keys in prop::collection::vec(0_usize..10, 0..20),
        ) {
            let mut hostile = job(&text, &text, false, &text);
            hostile.image.clone_from(&text);
            let mut view = view(Board::User(UserStatus {
                account: text.clone(),
                facilitator: text.clone(),
                jobs: vec![hostile; 3],
                offers: vec![],
            }));
            view.note_problem(text);
            for key in keys {
                let keys = [MonitorKey::NextPanel, MonitorKey::PreviousPanel, MonitorKey::Panel(key), MonitorKey::Up, MonitorKey::Down,
                    MonitorKey::PageUp, MonitorKey::PageDown, MonitorKey::First, MonitorKey::Last, MonitorKey::Help];
                view.press(keys[key % keys.len()], now());
            }
            let shown = painted(&view, width, height);
            prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        }
    }
}

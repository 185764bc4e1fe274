//! The engine's thread: takes requests in, makes rounds, gives tokens out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::fold::{Row, score};
use super::slots::{Place, Slots};
use super::{Command, Event, Finish, Generate, Limits, Open, Score, Scores, Token};
use crate::backend::{Backend, Job, Want};

/// How long the thread rests when every reader is slow.
const REST: Duration = Duration::from_millis(2);

pub(super) struct Run {
    backend: Box<dyn Backend>,
    limits: Limits,
    inbox: Receiver<Command>,
    open: Arc<AtomicUsize>,
    waiting: VecDeque<(Command, Open)>,
    active: Vec<Text>,
    slots: Slots,
    uses: u64,
    closed: bool,
}

/// A text that has a slot.
struct Text {
    slot: usize,
    /// The tokens that the backend has yet to take in.
    ahead: VecDeque<u32>,
    /// How often each token stands in the answer.
    counts: BTreeMap<u32, u32>,
    /// How long the answer is.
    length: usize,
    /// How long the whole text is, as far as the backend has taken it in.
    taken: usize,
    task: Task,
    done: bool,
    _open: Open,
}

enum Task {
    Generate(Generate, mpsc::Sender<Event>, VecDeque<Event>),
    Score(Score, Option<oneshot::Sender<Scores>>, Scores),
}

impl Run {
    pub(super) fn new(
        backend: Box<dyn Backend>,
        limits: Limits,
        inbox: Receiver<Command>,
        open: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            slots: Slots::new(backend.slots()),
            backend,
            limits,
            inbox,
            open,
            waiting: VecDeque::new(),
            active: Vec::new(),
            uses: 0,
            closed: false,
        }
    }

    pub(super) fn run(mut self) {
        while self.take_in() {
            self.begin();
            let worked = self.round();
            self.finish();
            if !worked && !self.active.is_empty() {
                self.rest();
            }
        }
    }

    /// Takes what has come; waits where there is nothing else to do. False when nothing can come any more.
    fn take_in(&mut self) -> bool {
        if self.active.is_empty() && self.waiting.is_empty() {
            match self.inbox.recv() {
                Ok(command) => self.enqueue(command),
                Err(_) => return false,
            }
        }
        while let Ok(command) = self.inbox.try_recv() {
            self.enqueue(command);
        }
        true
    }

    fn rest(&mut self) {
        if self.closed {
            // Nothing can come: only the readers' channels matter.
            std::thread::park_timeout(REST);
            return;
        }
        match self.inbox.recv_timeout(REST) {
            Ok(command) => self.enqueue(command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.closed = true,
        }
    }

    fn enqueue(&mut self, command: Command) {
        let open = Open(Arc::clone(&self.open));
        self.waiting.push_back((command, open));
    }

    /// Gives slots to those who wait, in order.
    fn begin(&mut self) {
        self.waiting.retain(|(command, _)| !command.gone());
        while self.active.len() < self.limits.streams {
            let Some((command, open)) = self.waiting.pop_front() else {
                return;
            };
            self.uses += 1;
            let (tokens, most) = command.text();
            let Some(mut place) = self.slots.place(tokens, most, self.uses) else {
                self.waiting.push_front((command, open));
                return;
            };
            match place.copy {
                Some(from) => {
                    if let Err(error) = self.backend.copy(from, place.slot, place.known) {
                        tracing::warn!(%error, "a prefix could not be copied; it is computed again");
                        self.slots.forget(place.slot);
                        self.backend.truncate(place.slot, 0);
                        place.known = 0;
                    }
                }
                None => self.backend.truncate(place.slot, place.known),
            }
            self.active.push(Text::new(command, &place, open));
        }
    }

    /// Every text goes on a little. False where none could.
    fn round(&mut self) -> bool {
        let mut budget = self.limits.prefill.max(1);
        let mut chunks: Vec<(usize, Vec<u32>, Want)> = Vec::new();
        for (index, text) in self.active.iter_mut().enumerate() {
            if text.flush() && !text.done && !text.ahead.is_empty() {
                let count = if text.ahead.len() == 1 {
                    1
                } else {
                    text.ahead.len().min(budget)
                };
                if count == 0 {
                    continue;
                }
                budget -= if count == 1 { 0 } else { count };
                let chunk: Vec<u32> = text.ahead.iter().take(count).copied().collect();
                chunks.push((index, chunk, text.want(count)));
            }
        }
        if chunks.is_empty() {
            return false;
        }
        let slot = |index: &usize| self.active.get(*index).map_or(usize::MAX, |text| text.slot);
        let jobs: Vec<Job<'_>> = chunks
            .iter()
            .map(|(index, tokens, want)| Job {
                slot: slot(index),
                tokens,
                want: *want,
            })
            .collect();
        match self.backend.forward(&jobs) {
            Ok(logits) => {
                let context = self.backend.shape().context;
                let ends = self.backend.shape().ends.clone();
                let width = self.backend.shape().vocabulary;
                for ((index, tokens, _), rows) in chunks.iter().zip(logits) {
                    let Some(text) = self.active.get_mut(*index) else {
                        continue;
                    };
                    self.slots.extend(text.slot, tokens);
                    text.advance(tokens, &rows, width, &ends, context);
                }
            }
            Err(error) => {
                tracing::error!(%error, cause = ?std::error::Error::source(&error), "a round failed; its texts are given up");
                for (index, _, _) in &chunks {
                    let Some(text) = self.active.get_mut(*index) else {
                        continue;
                    };
                    self.slots.forget(text.slot);
                    self.backend.truncate(text.slot, 0);
                    text.end(Finish::Failed);
                }
            }
        }
        true
    }

    /// Lets go of texts that are over.
    fn finish(&mut self) {
        let slots = &mut self.slots;
        self.active.retain_mut(|text| {
            let over = text.over();
            if over {
                slots.free(text.slot);
            }
            !over
        });
    }
}

impl Command {
    /// Whether nobody waits for it any more.
    fn gone(&self) -> bool {
        match self {
            Self::Generate(_, events) => events.is_closed(),
            Self::Score(_, scores) => scores.is_closed(),
        }
    }

    /// Its text, and how much of it may come from elsewhere: the logits of the rest are needed.
    fn text(&self) -> (&[u32], usize) {
        match self {
            Self::Generate(request, _) => (&request.prompt, request.prompt.len().saturating_sub(1)),
            Self::Score(request, _) => (&request.tokens, request.prompt.saturating_sub(1)),
        }
    }
}

impl Text {
    fn new(command: Command, place: &Place, open: Open) -> Self {
        let ahead = command.text().0.iter().skip(place.known).copied().collect();
        let task = match command {
            Command::Generate(request, events) => {
                Task::Generate(request, events, VecDeque::from([Event::Began(place.known)]))
            }
            Command::Score(request, sender) => {
                let scores = Scores {
                    tokens: vec![],
                    ends: vec![],
                    cached: place.known,
                };
                Task::Score(request, Some(sender), scores)
            }
        };
        Self {
            slot: place.slot,
            ahead,
            counts: BTreeMap::new(),
            length: 0,
            taken: place.known,
            task,
            done: false,
            _open: open,
        }
    }

    /// Gives out what waits for its reader. False where the reader is slow or gone.
    fn flush(&mut self) -> bool {
        let Task::Generate(_, events, pending) = &mut self.task else {
            return true;
        };
        while let Some(event) = pending.pop_front() {
            match events.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    pending.push_front(event);
                    return false;
                }
                Err(TrySendError::Closed(_)) => {
                    pending.clear();
                    self.done = true;
                    return false;
                }
            }
        }
        true
    }

    fn want(&self, count: usize) -> Want {
        match &self.task {
            Task::Generate(..) if count == self.ahead.len() => Want::Last,
            Task::Generate(..) => Want::Nothing,
            // The token before the answer's first has its logits.
            Task::Score(request, ..) if self.taken + count >= request.prompt => Want::All,
            Task::Score(..) => Want::Nothing,
        }
    }

    /// The backend has taken `tokens` in and given these rows of logits.
    fn advance(&mut self, tokens: &[u32], rows: &[f32], width: usize, ends: &[u32], context: usize) {
        self.ahead.drain(..tokens.len());
        let before = self.taken;
        self.taken += tokens.len();
        match &self.task {
            Task::Generate(..) if rows.is_empty() => {}
            Task::Generate(..) => self.choose(rows, ends, context),
            Task::Score(..) => {
                for (i, row) in rows.chunks_exact(width).enumerate() {
                    self.judge(before + i + 1, row, ends, context);
                }
            }
        }
    }

    fn choose(&mut self, logits: &[f32], ends: &[u32], context: usize) {
        let Task::Generate(request, _, pending) = &mut self.task else {
            return;
        };
        let position = u32::try_from(self.length).unwrap_or(u32::MAX);
        let (chooser, parameters) = (&request.chooser, &request.parameters);
        let replay = chooser.at(logits, &self.counts, parameters, request.prompt.len(), position);
        let chosen = replay.choose();
        let Some(id) = chosen else {
            tracing::error!("the model gave no number for any token");
            return self.end(Finish::Failed);
        };
        let row = request.likely.map(|count| (Row::new(logits), count));
        pending.push_back(Event::Token(Token {
            id,
            logprob: row.as_ref().map(|(row, _)| row.logprob(id)),
            likely: row.map(|(row, count)| row.likely(count)).unwrap_or_default(),
        }));
        self.length += 1;
        *self.counts.entry(id).or_default() += 1;
        if ends.contains(&id) {
            self.end(Finish::End);
        } else if self.length >= request.max_tokens || self.taken + 1 > context {
            self.end(Finish::Length);
        } else {
            self.ahead.push_back(id);
        }
    }

    /// `taken` tokens were taken in when these logits came; they judge the next one.
    fn judge(&mut self, taken: usize, logits: &[f32], ends: &[u32], context: usize) {
        let Task::Score(request, sender, scores) = &mut self.task else {
            return;
        };
        let Some(position) = taken.checked_sub(request.prompt) else {
            return;
        };
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        if let Some(id) = request.tokens.get(taken) {
            scores
                .tokens
                .extend(score(logits, &[*id], request, &self.counts, position));
            *self.counts.entry(*id).or_default() += 1;
            return;
        }
        if taken < context {
            scores.ends = score(logits, ends, request, &self.counts, position);
        }
        if let Some(sender) = sender.take() {
            // Nobody waits any more: nothing is lost.
            let _ = sender.send(scores.clone());
        }
        self.done = true;
    }

    fn end(&mut self, finish: Finish) {
        self.ahead.clear();
        match &mut self.task {
            Task::Generate(_, _, pending) => pending.push_back(Event::Finished(finish)),
            // Its reader sees the sender dropped.
            Task::Score(_, sender, _) => {
                sender.take();
                self.done = true;
            }
        }
    }

    /// Whether its slot can go to another.
    fn over(&mut self) -> bool {
        self.flush();
        match &self.task {
            Task::Generate(_, events, pending) => {
                self.done || events.is_closed() || (pending.is_empty() && self.ahead.is_empty())
            }
            Task::Score(_, sender, _) => self.done || sender.as_ref().is_none_or(oneshot::Sender::is_closed),
        }
    }
}

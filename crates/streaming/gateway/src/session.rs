//! A session from its job to its end: what is handed to the subnet, what comes of it, and whether it is well meanwhile.

use std::sync::Arc;
use std::time::Duration;

use muster_session_pool::{Event, Service, SessionNo};
use tokio::sync::{mpsc, oneshot};

use muster_process::certificate;
use muster_protocol::JobId;

use crate::desk::Word;
use crate::gateway::Core;
use crate::host::{News, Order};
use crate::line::{Line, Opening};

/// News of one job that wait.
const WAITING: usize = 8;

/// A session that was asked for.
pub(crate) struct Started {
    pub(crate) core: Arc<Core>,
    pub(crate) service: Service,
    pub(crate) pool: usize,
    pub(crate) session: SessionNo,
    pub(crate) job: JobId,
}

impl Started {
    /// Brings it up and watches over it until it is gone, or nobody wants it any longer.
    pub(crate) async fn watch(self, unwatched: oneshot::Receiver<()>) {
        tokio::select! {
            _ = unwatched => {}
            () = self.live() => {}
        }
    }

    async fn live(&self) {
        let (news, mut heard) = mpsc::channel(WAITING);
        let limit = Duration::from_secs(self.core.settings.start_s);
        let up = tokio::select! {
            up = self.bring_up(news, &mut heard) => up,
            () = self.core.clock.sleep(limit) => Err(format!("it did not come up within {} s", limit.as_secs())),
        };
        let line = match up {
            Ok(line) => Arc::new(line),
            Err(why) => return self.happened(Event::Unusable(self.session, why)),
        };
        if let Err(error) = self.core.opened(&line).await {
            return self.happened(Event::Unusable(
                self.session,
                format!("the store does not take it: {error}"),
            ));
        }
        tracing::info!(session = %line.session, model = self.service.model, miner = %line.miner, job = %self.job,
            attempt = %line.attempt(), address = line.address(), "a session serves");
        self.core
            .desk
            .say(Word::Up(self.pool, self.session, Arc::clone(&line)));
        let between = Duration::from_secs(self.core.settings.health_s);
        loop {
            tokio::select! {
                news = heard.recv() => match news {
                    // Nobody has asked it to: its time is over, or its program ended. Its job's end follows.
                    Some(News::Closed(said)) => line.heard(said),
                    // It has moved: the session that was attested is no longer where it was.
                    None | Some(News::Ended(_) | News::Ready { .. }) => {
                        return self.happened(Event::Died(self.session));
                    }
                },
                () = self.core.clock.sleep(between) => {
                    let health = line.health().await;
                    if let Err(why) = &health {
                        tracing::warn!(session = %line.session, why, "a session is not well");
                    }
                    self.happened(Event::Health(self.session, health.is_ok()));
                }
            }
        }
    }

    async fn bring_up(
        &self,
        news: mpsc::Sender<News>,
        heard: &mut mpsc::Receiver<News>,
    ) -> Result<Line, String> {
        let names = ["muster-gateway".to_owned()];
        let made = certificate::make_self_signed(&names).map_err(|error| error.to_string())?;
        let settings = &self.core.settings;
        self.core
            .host
            .begin(Order {
                job: self.job,
                service: self.service.clone(),
                certificate: made.pem,
                lives: Duration::from_secs(settings.session_s),
                starts_within: Duration::from_secs(settings.start_s),
                on: None,
                news,
            })
            .await?;
        match heard.recv().await {
            None => Err("its job was forgotten".to_owned()),
            Some(News::Ended(why)) => Err(why),
            Some(News::Closed(_)) => Err("its session was closed before it served".to_owned()),
            Some(News::Ready { miner, ready }) => {
                let opening = Opening {
                    me: self.core.host.me(),
                    job: self.job,
                    service: &self.service,
                    identity: &made.identity,
                    until: self
                        .core
                        .clock
                        .now()
                        .plus(Duration::from_secs(settings.session_s)),
                    skew: settings.skew(),
                    clock: &self.core.clock,
                    tasks: &self.core.tasks,
                };
                Line::open(&opening, miner, *ready).await
            }
        }
    }

    fn happened(&self, event: Event) {
        self.core.desk.happened(self.pool, event);
    }
}

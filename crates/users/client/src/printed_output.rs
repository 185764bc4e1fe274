//! The streams that a job's program printed, read byte for byte from a facilitator that keeps them.

use muster_protocol::JobId;
use muster_protocol::wire::executor::LogStream;
use reqwest::Method;

use crate::client::Client;
use crate::error::ClientError;
use crate::files::{BREAKS, FIRST_PAUSE};

/// The name of a stream in a path.
const fn name_of(stream: LogStream) -> &'static str {
    match stream {
        LogStream::Stdout | LogStream::Unknown => "stdout",
        LogStream::Stderr => "stderr",
    }
}

impl Client {
    /// Reads the bytes of a stream from `from` up to `until`, and passes them to `take` in order, each once. A
    /// connection that breaks is opened again where it broke.
    ///
    /// # Errors
    /// The facilitator does not keep the stream, or the connection breaks again and again.
    pub async fn read_output(
        &self,
        job: JobId,
        stream: LogStream,
        from: u64,
        until: u64,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), ClientError> {
        let (mut at, mut breaks, mut pause) = (from, 0, FIRST_PAUSE);
        while at < until {
            let before = at;
            match self.read_piece(job, stream, &mut at, until, &mut take).await {
                Ok(()) => {}
                Err(failed) if !failed.is_passing() => return Err(failed),
                Err(_) => {}
            }
            if at > before {
                (breaks, pause) = (0, FIRST_PAUSE);
                continue;
            }
            breaks += 1;
            if breaks >= BREAKS {
                let what = format!("the download of the output of job {job}");
                return Err(ClientError::BrokeOff { what, offset: at });
            }
            self.clock.sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    }

    /// Reads what one connection brings.
    async fn read_piece(
        &self,
        job: JobId,
        stream: LogStream,
        at: &mut u64,
        until: u64,
        take: &mut impl FnMut(&[u8]),
    ) -> Result<(), ClientError> {
        let path = format!("/api/v1/jobs/{job}/output/{}/?offset={at}", name_of(stream));
        let answer = match self.once(self.open(Method::GET, &path)).await {
            Err(ClientError::Unauthorised { .. }) => {
                self.renew().await?;
                self.once(self.open(Method::GET, &path)).await
            }
            answer => answer,
        };
        let mut answer = answer?;
        // An answer may go on for ever behind what is wanted.
        while *at < until {
            let Some(piece) = self.next_chunk(&mut answer).await? else {
                return Ok(());
            };
            let left = usize::try_from(until.saturating_sub(*at)).unwrap_or(usize::MAX);
            let wanted = piece.get(..left).unwrap_or(&piece);
            take(wanted);
            *at = at.saturating_add(wanted.len() as u64);
        }
        Ok(())
    }
}

//! What a session key signs about one response.

use muster_protocol::{AttemptId, Digest, Hotkey, JobId, Timestamp, ValidatorKey};
use uuid::Uuid;

use crate::attestation::SessionId;
use crate::envelope::Sealable;
use crate::layout::{LayoutError, Nonce, Reader, Text, Writer};
use crate::scheme::{HashScheme, StreamEnd};

/// Tokens, where the engine tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenFacts {
    /// SHA-256 over the prompt's token ids, each as four bytes, big-endian.
    pub prompt: Digest,
    /// How many.
    pub prompt_count: u32,
    /// SHA-256 over the output's token ids, likewise.
    pub output: Digest,
    /// How many.
    pub output_count: u32,
}

/// What the engine says it is and did, where it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// Digest of weights, dtype, tokenizer and template.
    pub model: Digest,
    /// Digest of the engine's build description.
    pub build: Digest,
    /// Digest of the sampling parameters that were in effect.
    pub sampling: Digest,
}

/// One response, from its first request byte to how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseProof {
    /// The session.
    pub session: SessionId,
    /// Its number in the session, from 0, in the order of signing, without gaps.
    pub sequence: u64,
    /// Digest of the signed bytes of the proof before it; of the attestation for the first.
    pub previous: Digest,
    /// The job as its user knows it.
    pub job: JobId,
    /// The attempt that runs it.
    pub attempt: AttemptId,
    /// For which validator.
    pub audience: ValidatorKey,
    /// For whom the validator asked, under a name that only it can resolve.
    pub client: Option<Digest>,
    /// Digest of the attestation's signed bytes.
    pub attestation: Digest,
    /// Drawn by the client.
    pub client_nonce: Option<Nonce>,
    /// Drawn by the gateway once it had the request.
    pub gateway_nonce: Option<Nonce>,
    /// `POST`.
    pub method: Text,
    /// Path and query.
    pub path: Text,
    /// The status that was sent; 0 if none was.
    pub status: u16,
    /// The response's type, as sent.
    pub content_type: Option<Text>,
    /// What the two digests are over.
    pub scheme: HashScheme,
    /// Of what went in.
    pub input: Digest,
    /// Of what came out.
    pub output: Digest,
    /// Bytes of the body that were sent, our own comment line not counted: where the digest ends.
    pub output_bytes: u64,
    /// Merkle root over those bytes in chunks of [`crate::CHUNK`]: the holder of a beginning can check it.
    pub chunks: Digest,
    /// When the request's head was read.
    pub from: Timestamp,
    /// When the first byte of the body left.
    pub first_byte: Option<Timestamp>,
    /// When the end was known.
    pub to: Timestamp,
    /// See [`TokenFacts`].
    pub tokens: Option<TokenFacts>,
    /// See [`EngineFacts`].
    pub engine: Option<EngineFacts>,
    /// How it ended.
    pub end: StreamEnd,
}

impl Sealable for ResponseProof {
    const TAG: &'static str = "muster/response-proof/1";

    fn signed_bytes(&self) -> Vec<u8> {
        Writer::new(Self::TAG)
            .raw(self.session.0.as_bytes())
            .u64(self.sequence)
            .digest(&self.previous)
            .raw(self.job.as_uuid().as_bytes())
            .raw(self.attempt.as_uuid().as_bytes())
            .raw(self.audience.0.as_bytes())
            .maybe(self.client.as_ref(), Writer::digest)
            .digest(&self.attestation)
            .maybe(self.client_nonce.as_ref(), |w, nonce| w.raw(nonce.as_bytes()))
            .maybe(self.gateway_nonce.as_ref(), |w, nonce| w.raw(nonce.as_bytes()))
            .text(&self.method)
            .text(&self.path)
            .u16(self.status)
            .maybe(self.content_type.as_ref(), Writer::text)
            .byte(self.scheme.code())
            .digest(&self.input)
            .digest(&self.output)
            .u64(self.output_bytes)
            .digest(&self.chunks)
            .time(self.from)
            .maybe(self.first_byte.as_ref(), |w, time| w.time(*time))
            .time(self.to)
            .maybe(self.tokens.as_ref(), |w, tokens| {
                w.digest(&tokens.prompt)
                    .u32(tokens.prompt_count)
                    .digest(&tokens.output)
                    .u32(tokens.output_count)
            })
            .maybe(self.engine.as_ref(), |w, engine| {
                w.digest(&engine.model)
                    .digest(&engine.build)
                    .digest(&engine.sampling)
            })
            .byte(self.end.code())
            .done()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut reader = Reader::new(Self::TAG, bytes)?;
        let read = Self {
            session: SessionId(Uuid::from_bytes(reader.array("the session")?)),
            sequence: reader.u64("the sequence number")?,
            previous: reader.digest("the proof before")?,
            job: JobId::from_uuid(Uuid::from_bytes(reader.array("the job")?)),
            attempt: AttemptId::from_uuid(Uuid::from_bytes(reader.array("the attempt")?)),
            audience: ValidatorKey(Hotkey::from_bytes(reader.array("the audience")?)),
            client: reader.maybe("the client", |reader| reader.digest("the client"))?,
            attestation: reader.digest("the attestation")?,
            client_nonce: reader.maybe("the client's nonce", nonce)?,
            gateway_nonce: reader.maybe("the gateway's nonce", nonce)?,
            method: reader.text("the method")?,
            path: reader.text("the path")?,
            status: reader.u16("the status")?,
            content_type: reader.maybe("the content type", |reader| reader.text("the content type"))?,
            scheme: HashScheme::from_code(reader.byte("the hash scheme")?)?,
            input: reader.digest("the input's digest")?,
            output: reader.digest("the output's digest")?,
            output_bytes: reader.u64("the output's length")?,
            chunks: reader.digest("the root over chunks")?,
            from: reader.time("the beginning")?,
            first_byte: reader.maybe("the first byte", |reader| reader.time("the first byte"))?,
            to: reader.time("the end")?,
            tokens: reader.maybe("the tokens", tokens)?,
            engine: reader.maybe("the engine", engine)?,
            end: StreamEnd::from_code(reader.byte("the stream's end")?)?,
        };
        reader.done()?;
        Ok(read)
    }
}

fn nonce(reader: &mut Reader<'_>) -> Result<Nonce, LayoutError> {
    reader.array("a nonce").map(Nonce::from_bytes)
}

fn tokens(reader: &mut Reader<'_>) -> Result<TokenFacts, LayoutError> {
    Ok(TokenFacts {
        prompt: reader.digest("the prompt's tokens")?,
        prompt_count: reader.u32("the prompt's tokens")?,
        output: reader.digest("the output's tokens")?,
        output_count: reader.u32("the output's tokens")?,
    })
}

fn engine(reader: &mut Reader<'_>) -> Result<EngineFacts, LayoutError> {
    Ok(EngineFacts {
        model: reader.digest("the engine's model")?,
        build: reader.digest("the engine's build")?,
        sampling: reader.digest("the engine's sampling parameters")?,
    })
}

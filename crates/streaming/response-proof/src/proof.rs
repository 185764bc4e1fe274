//! The proof of one response, signed by the session key.

use muster_protocol::{AttemptId, Digest, Hotkey, JobId, Timestamp, ValidatorKey};
use uuid::Uuid;

use crate::attestation::SessionId;
use crate::codec::{LayoutError, Reader, Text, Writer};
use crate::envelope::Sealable;
use crate::hash_scheme::HashScheme;
use crate::nonce::RequestNonce;
use crate::stream_end::StreamEnd;

/// Digests and numbers of tokens, if the engine reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenFacts {
    /// SHA-256 over the prompt's token ids, each as four bytes, big-endian.
    pub prompt: Digest,
    /// The number of the prompt's tokens.
    pub prompt_count: u32,
    /// SHA-256 over the output's token ids, each as four bytes, big-endian.
    pub output: Digest,
    /// The number of the output's tokens.
    pub output_count: u32,
}

/// The engine's description of itself and of its parameters, if it reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// Digest of weights, dtype, tokenizer and template.
    pub model: Digest,
    /// Digest of the engine's build description.
    pub build: Digest,
    /// Digest of the sampling parameters that were in effect.
    pub sampling: Digest,
}

/// The proof of one response, from the first byte of its request to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseProof {
    /// The session's id.
    pub session: SessionId,
    /// The response's number in the session: from 0, in the order of signing, without gaps.
    pub sequence: u64,
    /// Digest of the signed bytes of the proof before it; of the attestation's for the first proof.
    pub previous: Digest,
    /// The id under which its user knows the job.
    pub job: JobId,
    /// The attempt that runs the job.
    pub attempt: AttemptId,
    /// The validator that the session serves.
    pub audience: ValidatorKey,
    /// The pseudonym of the validator's client, which only the validator can resolve; from the request's header.
    pub client: Option<Digest>,
    /// Digest of the attestation's signed bytes.
    pub attestation: Digest,
    /// The nonce that the client drew; from the request's header.
    pub client_nonce: Option<RequestNonce>,
    /// The nonce that the gateway drew once it had the request; from the request's header.
    pub gateway_nonce: Option<RequestNonce>,
    /// The request's method, such as `POST`.
    pub method: Text,
    /// The request's path and query.
    pub path: Text,
    /// The status that was sent; 0 if none was sent.
    pub status: u16,
    /// The response's `Content-Type`, as sent.
    pub content_type: Option<Text>,
    /// The scheme of the two digests.
    pub scheme: HashScheme,
    /// Digest of the request.
    pub input: Digest,
    /// Digest of the response.
    pub output: Digest,
    /// Bytes of the body that were sent, without the comment line that carries the proof.
    pub output_bytes: u64,
    /// Merkle root over those bytes in chunks of [`crate::CHUNK`], by which the holder of a beginning can check it.
    pub chunks: Digest,
    /// The time at which the request's head was read, by the executor's clock.
    pub from: Timestamp,
    /// The time at which the first byte of the body was sent; `None` if the body is empty.
    pub first_byte: Option<Timestamp>,
    /// The time at which the end was known.
    pub to: Timestamp,
    /// See [`TokenFacts`].
    pub tokens: Option<TokenFacts>,
    /// See [`EngineFacts`].
    pub engine: Option<EngineFacts>,
    /// How the response ended.
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

fn nonce(reader: &mut Reader<'_>) -> Result<RequestNonce, LayoutError> {
    reader.array("a nonce").map(RequestNonce::from_bytes)
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

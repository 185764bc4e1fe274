//! Pure readers of OpenAI's HTTP interface, for every program that passes its requests and responses on.
//!
//! [`stream`] cuts a response body into JSON documents, whether it is an event stream or one document. Three readers
//! use it: [`text`] hashes the text of requests and responses, [`token_ids`] the ids of tokens, and [`token_meter`]
//! counts tokens. [`read_fields`] takes out the fields of a response that audits read. [`request_body`] looks at
//! the bytes of a request before they are read, [`request_text`] takes out its model's input, and [`usage_report`] has
//! engines report the tokens of every stream. [`error`] has the errors in the shape that OpenAI's clients read.

pub mod error;
pub mod read_fields;
pub mod request_body;
pub mod request_text;
pub mod stream;
pub mod text;
pub mod token_ids;
pub mod token_meter;
pub mod usage_report;

pub use error::{OpenAiError, error_body};
pub use read_fields::{FieldBounds, FieldReader, ReadFields};
pub use request_body::{check_media, without_mark};
pub use request_text::RequestText;
pub use stream::{BodyKind, JsonReader};
pub use text::TextDigest;
pub use token_ids::{StatedTokenIds, TokenIdReader, asks_for_token_ids};
pub use token_meter::{TokenBounds, TokenMeter, TokenUsage};

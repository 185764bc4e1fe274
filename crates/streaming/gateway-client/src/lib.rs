//! A facilitator's way to a validator's gateway, without the gateway itself.
//!
//! [`forward`] passes a client's request on to a gateway, with a signed token that names the client, and its response
//! back. The other modules answer clients as a gateway does: [`bearer`] reads the API key, [`body`] the request's body,
//! and [`error_response()`] turns an [`OpenAiError`](muster_openai::OpenAiError) into a response.

pub mod bearer;
pub mod body;
pub mod error_response;
pub mod forward;

pub use bearer::bearer_token;
pub use body::collect_body;
pub use error_response::error_response;
pub use forward::{ForwardError, ForwardLimits, ForwardReport, ForwardRequest, GatewayClient, GatewayTarget};

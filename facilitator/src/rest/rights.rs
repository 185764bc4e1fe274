//! The right that each call needs, as a type: a handler names it with its [`super::authentication::Caller`].

use muster_protocol::account_api::KeyRight;

/// The right that a call needs; `None` if every valid credential may make it.
pub(crate) trait NeededRight: Send + 'static {
    /// The right that the caller's credential must have.
    const RIGHT: Option<KeyRight>;
}

/// Every valid credential may make the call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyRight {}
/// See [`KeyRight::Jobs`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobsRight {}
/// See [`KeyRight::Chat`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChatRight {}
/// See [`KeyRight::Files`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum FilesRight {}
/// See [`KeyRight::Read`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadRight {}
/// See [`KeyRight::Keys`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeysRight {}

impl NeededRight for AnyRight {
    const RIGHT: Option<KeyRight> = None;
}

impl NeededRight for JobsRight {
    const RIGHT: Option<KeyRight> = Some(KeyRight::Jobs);
}

impl NeededRight for ChatRight {
    const RIGHT: Option<KeyRight> = Some(KeyRight::Chat);
}

impl NeededRight for FilesRight {
    const RIGHT: Option<KeyRight> = Some(KeyRight::Files);
}

impl NeededRight for ReadRight {
    const RIGHT: Option<KeyRight> = Some(KeyRight::Read);
}

impl NeededRight for KeysRight {
    const RIGHT: Option<KeyRight> = Some(KeyRight::Keys);
}

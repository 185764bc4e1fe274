//! Asks a registry about an image before the engine pulls it: whether the engine may go there, what the name means, and
//! how large the image is.

use bollard::auth::DockerCredentials;
use muster_job_data::HttpError;
use muster_job_data::manifest_request::{RegistryAuth, RegistryClient, RegistryError, RegistryImage};
use muster_process::SharedClock;
use muster_process::backoff::Backoff;
use muster_process::error::Causes;

use crate::image_settings::{ImageSettings, PullBounds};
use crate::pull_error::{PullError, make_safe};
use muster_protocol::image_reference::ImageReference;

/// Checks that the engine may reach the registry of an image.
///
/// # Errors
/// [`PullError::NotPublic`], or the registry's name does not resolve.
pub(crate) async fn check_address(
    settings: &ImageSettings,
    reference: &ImageReference,
) -> Result<(), PullError> {
    let checked = client(settings, reference)?.check_address().await;
    checked.map_err(|error| pull_error(reference, error.into()))
}

/// The manifest of an image, with retries after failures that may be temporary. `None` where a registry that the
/// operator allows does not answer us: the engine may know its certificate, or a proxy on the way.
///
/// # Errors
/// The engine must not pull the image, or would not get it.
pub(crate) async fn resolve(
    settings: &ImageSettings,
    reference: &ImageReference,
    credentials: Option<&DockerCredentials>,
    bounds: PullBounds,
    clock: &SharedClock,
) -> Result<Option<RegistryImage>, PullError> {
    let client = client(settings, reference)?;
    let auth = credentials.map(auth_of).unwrap_or_default();
    let pin = reference.pin.to_string();
    let attempt = || async {
        match client.resolve(&reference.repository, &pin, &auth).await {
            Ok(image) => Ok(Some(image)),
            Err(RegistryError::Http(HttpError::Unreachable { .. })) if client.is_exception() => Ok(None),
            Err(error) => Err(pull_error(reference, error)),
        }
    };
    let asking = Backoff::OUTAGE.retry(clock, "ask a registry about an image", attempt);
    let resolved = tokio::select! {
        biased;
        resolved = asking => resolved?,
        () = clock.sleep(bounds.stall) => {
            let (image, stall) = (reference.to_string(), bounds.stall);
            return Err(PullError::Stalled { image, stall });
        }
    };
    match resolved {
        Some(image) if image.bytes > bounds.max_bytes => Err(PullError::TooLarge {
            image: reference.to_string(),
            max_bytes: bounds.max_bytes,
        }),
        resolved => Ok(resolved),
    }
}

fn client(settings: &ImageSettings, reference: &ImageReference) -> Result<RegistryClient, PullError> {
    let rules = settings.address_rules().map_err(|error| PullError::NotPublic {
        image: reference.to_string(),
        words: error.to_string(),
    })?;
    Ok(RegistryClient::new(&reference.registry, rules))
}

fn auth_of(credentials: &DockerCredentials) -> RegistryAuth {
    match (
        &credentials.identitytoken,
        &credentials.username,
        &credentials.password,
    ) {
        (Some(token), _, _) => RegistryAuth::Identity(token.clone()),
        (None, Some(username), Some(password)) => RegistryAuth::Password {
            username: username.clone(),
            password: password.clone(),
        },
        (None, _, _) => RegistryAuth::Anonymous,
    }
}

fn pull_error(reference: &ImageReference, error: RegistryError) -> PullError {
    let image = reference.to_string();
    let words = make_safe(&Causes(&error).to_string());
    match error {
        RegistryError::Http(HttpError::Refused(_) | HttpError::NotPublic { .. }) => {
            PullError::NotPublic { image, words }
        }
        RegistryError::Unauthorised(_) => PullError::Unauthorised { image, words },
        RegistryError::NotFound(_) | RegistryError::NoImage => PullError::NotFound { image, words },
        RegistryError::WrongPlatform => PullError::WrongPlatform { image, words },
        RegistryError::BadDigest => PullError::BadDigest { image, words },
        RegistryError::Malformed(_) | RegistryError::Http(_) => PullError::Interrupted { image, words },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use muster_process::clock::TokioClock;
    use muster_protocol::Timestamp;

    use super::*;

    #[tokio::test]
    async fn registries_inside_are_refused_unless_they_are_listed() {
        let check = async |allow: &[&str], name: &str| {
            let settings = ImageSettings {
                allow: allow.iter().map(|&entry| entry.to_owned()).collect(),
                ..ImageSettings::default()
            };
            check_address(&settings, &name.parse().unwrap()).await
        };
        for inside in [
            "10.0.0.5:5000/x/y:1",
            "127.0.0.1:5000/x",
            "localhost:5000/x",
            "169.254.169.254/latest/meta-data",
            "192.168.1.1:8443/x",
            "0.0.0.0:5000/x",
        ] {
            let error = check(&[], inside).await.unwrap_err();
            assert!(matches!(error, PullError::NotPublic { .. }), "{inside}: {error}");
            assert!(!error.is_recoverable());
        }
        check(&[], "1.1.1.1/x").await.unwrap();
        check(&["10.0.0.0/8"], "10.0.0.5:5000/x/y:1").await.unwrap();
        check(&["localhost"], "localhost:5000/x").await.unwrap();
        check(&["127.0.0.1:5000"], "127.0.0.1:5000/x").await.unwrap();
        check(&["127.0.0.1:5000"], "127.0.0.1:5001/x").await.unwrap_err();
    }

    /// A registry that takes the connection and never sends anything.
    #[tokio::test(start_paused = true)]
    async fn a_registry_that_never_answers_ends_as_a_pull_that_stands_still() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("{}/x:1", listener.local_addr().unwrap());
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::from_secs(0)));
        let settings = ImageSettings {
            allow: vec!["127.0.0.1".to_owned()],
            ..ImageSettings::default()
        };
        let bounds = PullBounds {
            stall: Duration::from_secs(120),
            max_bytes: 1,
            max_unpacked: 1,
            reserve: 0,
        };
        let error = resolve(&settings, &name.parse().unwrap(), None, bounds, &clock)
            .await
            .unwrap_err();
        assert!(matches!(error, PullError::Stalled { .. }), "{error}");
    }
}

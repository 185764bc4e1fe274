//! The models that validators serve now, and the one that a command names.

use muster_client::Client;

use crate::facilitator_access::client_failure;
use crate::failure::{Failure, Result};

/// The ids of the models that are served, as `/v1/models` lists them.
pub(crate) async fn served_models(client: &Client) -> Result<Vec<String>> {
    let models = client.models().await.map_err(client_failure)?;
    let ids = models.iter().filter_map(|model| model.get("id")?.as_str());
    Ok(ids.map(str::to_owned).collect())
}

/// The named model, or the first one.
///
/// # Errors
/// It is not served, and the error lists those that are.
pub(crate) async fn choose_model(client: &Client, named: Option<&str>) -> Result<String> {
    let served = served_models(client).await?;
    choose(&served, named).map(str::to_owned).map_err(Failure::usage)
}

fn choose<'a>(served: &'a [String], named: Option<&str>) -> std::result::Result<&'a str, String> {
    let found = match named {
        Some(named) => served.iter().find(|model| *model == named),
        None => served.first(),
    };
    let listed = served.join(", ");
    found
        .map(String::as_str)
        .ok_or_else(|| match (named, listed.as_str()) {
            (Some(named), "") => format!("no validator serves a model now, also none called {named:?}"),
            (None, _) => {
                "no validator serves a model now; `muster subnet` lists those that are served".to_owned()
            }
            (Some(named), listed) => {
                format!("no validator serves a model {named:?} now; served are: {listed}")
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_nobody_serves_is_answered_with_those_that_are() {
        let served = ["tiny".to_owned(), "parrot".to_owned()];
        assert_eq!(choose(&served, None), Ok("tiny"));
        assert_eq!(choose(&served, Some("parrot")), Ok("parrot"));
        let told = choose(&served, Some("gpt")).unwrap_err();
        assert!(told.ends_with("served are: tiny, parrot"), "{told}");
        assert!(
            choose(&[], Some("gpt"))
                .unwrap_err()
                .contains("no validator serves a model")
        );
        assert!(
            choose(&[], None)
                .unwrap_err()
                .contains("no validator serves a model")
        );
    }
}

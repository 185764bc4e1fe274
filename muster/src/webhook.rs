//! `muster webhook`: the URL that is notified of the ends of an account's jobs, and the secret that signs the messages.

use std::process::ExitCode;

use muster_client::{Client, ClientError};
use muster_process::SharedClock;
use muster_protocol::rest::{AccountWebhookView, SetWebhook};
use muster_terminal::print;

use crate::cli::Webhook;
use crate::facilitator_access::{self, client_failure};
use crate::failure::Result;

/// Runs a subcommand of `muster webhook`.
pub(crate) async fn run(command: Webhook, clock: SharedClock) -> Result<ExitCode> {
    match command {
        Webhook::Set(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            let wanted = SetWebhook {
                url: args.url,
                new_secret: args.new_secret,
            };
            let set = client.set_webhook(&wanted).await.map_err(client_failure)?;
            if args.json {
                print::line(format_args!("{}", serde_json::to_string_pretty(&set)?));
            } else {
                show(&set);
                match &set.secret {
                    Some(secret) => {
                        print::line(format_args!("secret   {secret}"));
                        print_secret();
                    }
                    None => print::problem(format_args!(
                        "the secret is the one that was shown before; --new-secret draws another"
                    )),
                }
            }
        }
        Webhook::Show(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            let webhook = find(&client).await?;
            if args.json {
                print::line(format_args!("{}", serde_json::to_string_pretty(&webhook)?));
            } else if let Some(webhook) = &webhook {
                show(webhook);
            } else {
                print::problem(format_args!(
                    "the account has no webhook; `muster webhook set URL` makes one"
                ));
            }
        }
        Webhook::Rm(args) => {
            let client = facilitator_access::resolve(&args.access)?.connect(clock).await?;
            client.remove_webhook().await.map_err(client_failure)?;
            print::problem(format_args!(
                "removed; messages that were not delivered yet are given up"
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws the account's secret if it has none, and shows it.
pub(crate) async fn ensure_secret(client: &Client) -> Result<()> {
    if find(client).await?.is_some() {
        return Ok(());
    }
    let drawn = client.set_webhook(&SetWebhook::default()).await;
    if let Some(secret) = drawn.map_err(client_failure)?.secret {
        print::problem(format_args!("webhooks of this account are signed with {secret}"));
        print_secret();
    }
    Ok(())
}

async fn find(client: &Client) -> Result<Option<AccountWebhookView>> {
    match client.webhook().await {
        Ok(webhook) => Ok(Some(webhook)),
        Err(ClientError::Refused { status, .. }) if status.as_u16() == 404 => Ok(None),
        Err(error) => Err(client_failure(error)),
    }
}

fn print_secret() {
    print::problem(format_args!(
        "  the secret is shown this once, keep it like a password; receivers check with it that a message is genuine"
    ));
}

fn show(webhook: &AccountWebhookView) {
    let url = webhook
        .url
        .as_deref()
        .unwrap_or("none; only jobs with --webhook tell their end");
    print::line(format_args!("url      {url}"));
    print::line(format_args!("changed  {}", webhook.changed_at));
}

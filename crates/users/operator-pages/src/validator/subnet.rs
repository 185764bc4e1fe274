//! The first page: the links, and every miner of the subnet.

use maud::{Markup, html};
use muster_page_layout::text::{number, plain};
use muster_protocol::Manifest;
use muster_protocol::wire::machines::MinerNotice;
use muster_status_views::validator::{LinkStatus, MinersStatus, NeuronRow, SubnetStatus, ValidatorStatus};

use super::{ValidatorVisit, validator_page, weight};
use crate::CallAnswer;
use crate::frame::{Column, figures, key, part, section, table, verdict, words};

/// `/`: the links, and every miner of the subnet.
pub fn subnet(
    visit: &ValidatorVisit<'_>,
    status: &CallAnswer<ValidatorStatus>,
    subnet: &CallAnswer<SubnetStatus>,
    miners: &CallAnswer<MinersStatus>,
) -> String {
    let body = html! {
        h1 { "Subnet" }
        (part(status, head))
        (section("miners", "Miners", &part(subnet, |subnet| {
            let empty = MinersStatus::default();
            neurons(subnet, miners.as_ref().unwrap_or(&empty))
        })))
        @if let Err(reason) = miners { p.problem { (plain(reason)) } }
    };
    validator_page("Subnet", "/", visit, &body)
}

fn head(status: &ValidatorStatus) -> Markup {
    let block = status.block.map_or_else(|| "none yet".to_owned(), number);
    let open = status.jobs.iter().filter(|job| job.outcome.is_none()).count();
    html! {
        (figures(&[
            ("Block", block, status.block.is_none()),
            ("Chain", link(&status.chain), status.chain.state != "connected"),
            ("Facilitator", link(&status.facilitator), status.facilitator.state != "connected"),
            ("Open jobs of the newest", open.to_string(), false),
            ("Updates not acknowledged", number(status.updates_waiting), status.updates_waiting > 100),
            ("Receipts gathered", number(status.gathered), false),
        ]))
    }
}

fn link(link: &LinkStatus) -> String {
    if link.reason.is_empty() {
        plain(&link.state)
    } else {
        format!("{}: {}", plain(&link.state), plain(&link.reason))
    }
}

fn neurons(subnet: &SubnetStatus, miners: &MinersStatus) -> Markup {
    let rows: Vec<_> = subnet
        .neurons
        .iter()
        .map(|neuron| {
            let known = miners
                .miners
                .iter()
                .find(|miner| miner.miner.to_string() == neuron.hotkey);
            [
                html! { (neuron.uid) },
                html! { a href=(format!("/miners/{}", plain(&neuron.hotkey))) { (key(&neuron.hotkey)) } },
                words(
                    neuron
                        .axon
                        .as_deref()
                        .unwrap_or(if neuron.permit { "validator" } else { "none" }),
                ),
                offers(known, neuron.stated.as_ref()),
                known.map_or_else(|| html! { "—" }, proven),
                reliability(neuron),
                weight(neuron.weight),
                chain_weight(neuron),
            ]
        })
        .collect();
    let columns = [
        Column::Number("uid"),
        Column::Text("Hotkey"),
        Column::Wide("Address"),
        Column::Text("Offers"),
        Column::Text("Proven"),
        Column::Number("Reliability"),
        Column::Number("Weight"),
        Column::Number("On the chain"),
    ];
    table(
        "Miners of the subnet",
        columns,
        &rows,
        "The chain has not answered yet.",
    )
}

/// The executors that a miner reports to this validator, and those that it states on the chain where these are others.
fn offers(miner: Option<&MinerNotice>, stated: Option<&Manifest>) -> Markup {
    let told = miner.map(|miner| miner.claims.offers.as_slice());
    let told = Manifest::new(
        told.unwrap_or_default()
            .iter()
            .map(|offer| (offer.class, offer.executors)),
    );
    // The chain keeps no classes without executors.
    let other = stated.filter(|stated| stated.to_commitment() != told.to_commitment());
    html! {
        (words(&listed(&told)))
        @if let Some(other) = other { ", on the chain " (verdict(&listed(other), false)) }
    }
}

fn listed(manifest: &Manifest) -> String {
    let classes = manifest.iter();
    let classes: Vec<_> = classes
        .map(|(class, count)| format!("{count} × {class}"))
        .collect();
    if classes.is_empty() {
        "—".to_owned()
    } else {
        classes.join(", ")
    }
}

fn proven(miner: &MinerNotice) -> Markup {
    if miner.proven.is_empty() {
        return html! { "—" };
    }
    html! {
        @for (place, class) in miner.proven.iter().enumerate() {
            @if place > 0 { ", " }
            (verdict(&format!("{} of {}", class.proven, class.challenged), class.proven >= class.challenged))
        }
    }
}

fn reliability(neuron: &NeuronRow) -> Markup {
    match neuron.reliability_permille {
        Some(share) => verdict(&format!("{}.{} %", share / 10, share % 10), share >= 900),
        None => html! { "—" },
    }
}

/// The weight on the chain, marked where it differs from what was decided.
fn chain_weight(neuron: &NeuronRow) -> Markup {
    match neuron.chain_weight {
        Some(shown) => verdict(
            &number(u64::from(shown)),
            neuron.weight.is_none_or(|decided| decided == shown),
        ),
        None => html! { "—" },
    }
}

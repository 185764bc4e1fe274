//! One metric of the catalogue: its name, type, roles, labels and meaning.

use metrics::Label;

/// A role's name in the catalogue, as `muster ROLE` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricRole {
    /// `muster facilitator`.
    Facilitator,
    /// `muster validator`.
    Validator,
    /// `muster miner`.
    Miner,
    /// `muster executor`.
    Executor,
}

/// The type of a metric, as Prometheus knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows while the process lives.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A distribution in buckets.
    Histogram,
}

/// The values that a label can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelValues {
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Texts within the bound that this text describes: "one of the configured models".
    BoundedBy(&'static str),
}

/// A label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricLabel {
    /// The label's name.
    pub name: &'static str,
    /// The texts that it can hold.
    pub values: LabelValues,
}

/// One metric of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricEntry {
    /// The metric's name.
    pub name: &'static str,
    /// Its type, as the TYPE line has it.
    pub kind: MetricKind,
    /// The roles that export it.
    pub roles: &'static [MetricRole],
    /// Its labels, in the order of the table.
    pub labels: &'static [MetricLabel],
    /// The event or the part without which the metric is absent; empty for a metric that is always there.
    pub needs: &'static str,
    /// Its meaning: the HELP line.
    pub help: &'static str,
}

impl MetricRole {
    /// All roles, in the order of a job's way.
    pub const ALL: [Self; 4] = [Self::Facilitator, Self::Validator, Self::Miner, Self::Executor];

    /// The role's name, as `muster ROLE` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Facilitator => "facilitator",
            Self::Validator => "validator",
            Self::Miner => "miner",
            Self::Executor => "executor",
        }
    }
}

impl MetricKind {
    /// The type's name in the text format of Prometheus.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl MetricEntry {
    /// Whether a role exports it.
    pub fn is_of(&self, role: MetricRole) -> bool {
        self.roles.contains(&role)
    }

    /// Every combination of the labels' values; `None` if the values of a label are not listed.
    pub(super) fn label_sets(&self) -> Option<Vec<Vec<Label>>> {
        let mut sets = vec![Vec::new()];
        for label in self.labels {
            let LabelValues::OneOf(values) = label.values else {
                return None;
            };
            let extend = |set: Vec<Label>| {
                values.iter().map(move |value| {
                    let mut longer = set.clone();
                    longer.push(Label::from_static_parts(label.name, value));
                    longer
                })
            };
            sets = sets.into_iter().flat_map(extend).collect();
        }
        Some(sets)
    }

    /// Gives the metric its HELP line.
    pub(super) fn describe(&self) {
        match self.kind {
            MetricKind::Counter => metrics::describe_counter!(self.name, self.help),
            MetricKind::Gauge => metrics::describe_gauge!(self.name, self.help),
            MetricKind::Histogram => metrics::describe_histogram!(self.name, self.help),
        }
    }
}

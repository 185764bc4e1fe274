//! Validators that contradict themselves: two signed statements for one cycle that differ. They have no vote in it.

use std::collections::BTreeMap;

use muster_protocol::ValidatorKey;
use muster_scoring::capacity_statements::{StatementContext, check_statement};
use muster_scoring::{CapacityInputs, CapacityStatement, silence_contradictions};
use muster_store::StoreError;

use super::WeightSetter;
use muster_subnet_view::cycle_duties::BlockSpan;

impl WeightSetter {
    /// The capacity that counts in the cycle of a span, without the votes of validators that contradict themselves.
    pub(super) async fn capacity_votes(
        &self,
        span: BlockSpan,
        netuid: u16,
    ) -> Result<Option<CapacityInputs>, StoreError> {
        let Some(inputs) = self.capacity_inputs(span, netuid).await? else {
            return Ok(None);
        };
        let mut seen = BTreeMap::<ValidatorKey, Vec<CapacityStatement>>::new();
        for sighting in self.state.store.sightings_in(span.cycle).await? {
            let context = StatementContext {
                genesis: self.state.store.genesis(),
                netuid,
                validator: sighting.validator,
                cycle: span.cycle.0,
            };
            // Statements were checked when they were read.
            if let Ok(statement) = check_statement(&sighting.body, &context) {
                seen.entry(sighting.validator)
                    .or_default()
                    .push(statement.stated());
            }
        }
        Ok(Some(silence_contradictions(inputs, seen)))
    }
}

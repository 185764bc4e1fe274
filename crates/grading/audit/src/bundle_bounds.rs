//! Bounds of a bundle. A bundle is a stranger's: its replay must end in seconds, and its names must not fill a store.

use crate::bundle::AuditBundle;
use crate::calibration::{Calibration, KnownAnswer};
use crate::margin_cells::MAX_TOKENS;

/// The most alternatives and machines of a calibration.
const MAX_ALTERNATIVES: usize = 16;
const MAX_MACHINES: usize = 64;
/// The most measured answers of all machines, and of all alternatives. The premise resamples those of each machine for
/// each alternative.
const MAX_MEASURED: usize = 16_384;
/// The longest name of a model, a machine, a GPU, an alternative or a version of a sampler, in bytes.
const MAX_NAME: usize = 256;
/// The longest request of a known answer, in bytes. Its prompt and output together have at most [`MAX_TOKENS`] ids.
const MAX_KNOWN_REQUEST: usize = 64 * 1024;
/// The most hotkeys of a coldkey.
const MAX_MINERS: usize = 256;

/// The bound that a bundle exceeds, as text; `None` if it exceeds none.
pub(crate) fn exceeded_bound(bundle: &AuditBundle) -> Option<&'static str> {
    if bundle.miners.len() > MAX_MINERS {
        return Some("it has more miners than 256");
    }
    let references = bundle.references.iter();
    let mut names = references.flat_map(|one| [one.machine.as_str(), one.gpu.as_str()]);
    if bundle.model.len() > MAX_NAME || names.any(|name| name.len() > MAX_NAME) {
        return Some("a name in it is longer than 256 bytes");
    }
    std::iter::once(&bundle.calibration)
        .chain(&bundle.unseeded)
        .find_map(exceeded_by)
}

fn exceeded_by(calibration: &Calibration) -> Option<&'static str> {
    let (machines, alternatives) = (&calibration.machines, &calibration.alternatives);
    if machines.len() > MAX_MACHINES || alternatives.len() > MAX_ALTERNATIVES {
        return Some("its calibration has more machines than 64, or more alternatives than 16");
    }
    let of_machines: usize = machines.iter().map(|run| run.answers.len()).sum();
    let of_alternatives: usize = alternatives.iter().map(|one| one.answers.len()).sum();
    if of_machines > MAX_MEASURED || of_alternatives > MAX_MEASURED {
        return Some("its calibration has more measured answers than 16,384");
    }
    if calibration.known_answers.iter().any(is_too_long) {
        return Some("a known answer has a request of more than 64 KiB, or more than 131,072 ids of tokens");
    }
    let named = machines
        .iter()
        .flat_map(|run| [&run.machine, &run.gpu].into_iter().chain(&run.class));
    let versions = calibration.sampler.iter().map(|sampler| &sampler.version);
    let mut names = named
        .chain(alternatives.iter().map(|one| &one.name))
        .chain(versions);
    names
        .any(|name| name.len() > MAX_NAME)
        .then_some("a name in its calibration is longer than 256 bytes")
}

fn is_too_long(known: &KnownAnswer) -> bool {
    known.request.len() > MAX_KNOWN_REQUEST
        || known.prompt.len().saturating_add(known.output.len()) > MAX_TOKENS
}

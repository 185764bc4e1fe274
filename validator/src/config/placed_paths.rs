//! The paths of a validator's configuration, which count from the folder of its file.

use muster_process::config::ConfigFolder;

use super::Config;

/// Lets each relative path count from `folder`.
pub(super) fn place(config: &mut Config, folder: &mut ConfigFolder) {
    folder.place_state("operator_token", &mut config.operator_token);
    folder.place_state_url("store", "sqlite", &mut config.store);
    folder.place(&mut config.wallet.root);
    if let Some(wallet) = &mut config.collateral.ledger.wallet {
        folder.place(&mut wallet.root);
    }
    let audit = &mut config.audit;
    let tokenizers = config.gateway.services.iter_mut();
    let read = (config.ready_file.iter_mut())
        .chain(&mut config.collateral.key_file)
        .chain(&mut config.grading.floors)
        .chain(&mut audit.prompts)
        .chain(audit.calibrations.values_mut())
        .chain(audit.unseeded_calibrations.values_mut())
        .chain(tokenizers.filter_map(|service| Some(&mut service.tokenizer.as_mut()?.path)));
    read.for_each(|path| folder.place(path));
}

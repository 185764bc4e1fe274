//! Other settings for a role, which several hostile cases need.

use anyhow::Result;
use muster_tests::{Parts, Role};

/// Changes the settings of a role and starts it again.
pub(crate) fn reconfigure(
    parts: &mut Parts,
    role: Role,
    change: impl FnOnce(&mut toml::Table),
) -> Result<()> {
    let file = parts.config_file(role);
    let mut settings: toml::Table = toml::from_str(&std::fs::read_to_string(&file)?)?;
    change(&mut settings);
    std::fs::write(&file, toml::to_string(&settings)?)?;
    parts.kill(role)?;
    parts.begin(role)
}

/// Sets a key of a table of settings, which is made if it is missing.
pub(crate) fn set(settings: &mut toml::Table, table: &str, key: &str, value: impl Into<toml::Value>) {
    let table = settings.entry(table).or_insert_with(|| toml::Table::new().into());
    if let Some(table) = table.as_table_mut() {
        table.insert(key.to_owned(), value.into());
    }
}

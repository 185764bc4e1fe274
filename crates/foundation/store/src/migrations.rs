//! Migrations and rows without sqlx's macros, whose crate would compile every driver a second time, for the compiler.

use std::borrow::Cow;

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Every version of a role's schema: the number, the description and the SQL of each migration file.
///
/// The file `0002_accounts_and_live.sql` is `(2, "accounts and live", include_str!(…))`. Each role tests its list
/// against its folder ([`crate::testing::migrations_in`]).
pub fn migrator(files: &[(i64, &'static str, &'static str)]) -> Migrator {
    let migration = |&(version, description, sql)| new_migration(version, Cow::Borrowed(description), sql);
    Migrator::with_migrations(files.iter().map(migration).collect())
}

/// A migration that runs in a transaction and is never reverted. Its checksum is that of its bytes.
pub(crate) fn new_migration(version: i64, description: Cow<'static, str>, sql: impl SqlSafeStr) -> Migration {
    Migration::new(
        version,
        description,
        MigrationType::Simple,
        sql.into_sql_str(),
        false,
    )
}

/// Defines a private struct whose fields are read from the columns of the same names (`sqlx::FromRow`).
#[macro_export]
macro_rules! row {
    ($(#[$meta:meta])* struct $name:ident { $($field:ident: $kind:ty),+ $(,)? }) => {
        $(#[$meta])*
        struct $name { $($field: $kind),+ }

        impl<'r> ::sqlx::FromRow<'r, ::sqlx::any::AnyRow> for $name {
            fn from_row(row: &'r ::sqlx::any::AnyRow) -> ::std::result::Result<Self, ::sqlx::Error> {
                Ok(Self { $($field: ::sqlx::Row::try_get(row, stringify!($field))?),+ })
            }
        }
    };
}

-- Of several processes of one validator on one store, one leads. `holder` names it, and until `until` (microseconds, by the database's own clock) no other process begins to lead. Both are NULL where no process holds a lease: on SQLite, and after a release without leases.
ALTER TABLE owner ADD COLUMN holder TEXT;
ALTER TABLE owner ADD COLUMN until BIGINT;

-- The last block that may hold a call about the cycle's weights whose end is not known: its submission was begun, by this process or by one before it.
ALTER TABLE cycles ADD COLUMN on_its_way BIGINT;

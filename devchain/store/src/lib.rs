//! The chain on disk: its finalised blocks, the state after the last of them, and the changes that take that state back
//! block by block. Blocks and values are bytes here; the node knows their meaning.
//!
//! One commit is all or nothing, whenever the process or the machine stops: pages are written beside the old ones,
//! carry checksums, and become the store's content by the write of one header.

mod backend;
mod error;

pub use backend::Unsynced;
pub use error::Error;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::ops::Range;
use std::path::Path;

/// A block's hash.
pub type Hash = [u8; 32];
/// A key and its value; none where there is none.
pub type Change = (Vec<u8>, Option<Vec<u8>>);
/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// The file in the folder.
const FILE: &str = "chain.redb";
/// The layout of the tables. Raised with every change of it.
const LAYOUT: u32 = 1;
/// Pages that are kept in memory. The working set is the upper levels of a few trees.
const CACHE: usize = 8 * 1024 * 1024;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// By number: hash, then the encoded block.
const BLOCKS: TableDefinition<'_, u32, (&Hash, &[u8])> = TableDefinition::new("blocks");
const NUMBERS: TableDefinition<'_, &Hash, u32> = TableDefinition::new("numbers");
/// The state after the last block.
const STATE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("state");
/// By number and key: the value before that block.
const UNDO: TableDefinition<'_, (u32, &[u8]), Option<&[u8]>> = TableDefinition::new("undo");

/// Finalised blocks and the state after the last of them.
#[derive(Debug)]
pub struct Store {
    database: Database,
}

/// A block to be kept.
#[derive(Debug, Clone)]
pub struct Sealed {
    /// Its number: one more than the last one's.
    pub number: u32,
    /// The hash of the block.
    pub hash: Hash,
    /// The encoded block.
    pub block: Vec<u8>,
    /// Its changes of the state.
    pub changes: Vec<Change>,
}

impl Store {
    /// Opens the store in a folder, which is made if it is not there. Nobody else can open it until this is dropped.
    ///
    /// # Errors
    /// When another process has it, the file is not a store or is damaged, or the disk refuses.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(|source| Error::Folder {
            folder: folder.to_owned(),
            source,
        })?;
        // A failed assertion of the library means a damaged file, too.
        let opened = std::panic::catch_unwind(|| builder().create(folder.join(FILE)));
        Self::prepare(opened.map_err(|_| Error::Damaged("opening it failed an assertion".into()))??)
    }

    /// A store in a file without a name, which is gone with the process. It keeps memory free, not data.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn temporary() -> Result<Self, Error> {
        Self::on(Unsynced::new(tempfile::tempfile()?)?)
    }

    /// A store on a backend of the caller's.
    ///
    /// # Errors
    /// When what is there is not a store or is damaged, or the backend refuses.
    pub fn on(backend: impl StorageBackend) -> Result<Self, Error> {
        Self::prepare(builder().create_with_backend(backend)?)
    }

    /// The tables, so that reading needs no case for their absence.
    fn prepare(database: Database) -> Result<Self, Error> {
        let transaction = database.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            let layout = meta.get("layout")?.map(|found| found.value().to_vec());
            match layout {
                None => drop(meta.insert("layout", LAYOUT.to_le_bytes().as_slice())?),
                Some(found) if found == LAYOUT.to_le_bytes() => {}
                Some(_) => return Err(Error::Layout),
            }
            transaction.open_table(BLOCKS)?;
            transaction.open_table(NUMBERS)?;
            transaction.open_table(STATE)?;
            transaction.open_table(UNDO)?;
        }
        transaction.commit()?;
        Ok(Self { database })
    }

    /// A note that was left.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn note(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let meta = self.database.begin_read()?.open_table(META)?;
        Ok(meta.get(name)?.map(|found| found.value().to_vec()))
    }

    /// Leaves a note.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn leave_note(&self, name: &str, value: &[u8]) -> Result<(), Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(META)?.insert(name, value)?;
        Ok(transaction.commit()?)
    }

    /// The number and hash of the last block.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn last(&self) -> Result<Option<(u32, Hash)>, Error> {
        let blocks = self.database.begin_read()?.open_table(BLOCKS)?;
        Ok(blocks
            .last()?
            .map(|(number, block)| (number.value(), *block.value().0)))
    }

    /// The hash and encoding of a block.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn block(&self, number: u32) -> Result<Option<(Hash, Vec<u8>)>, Error> {
        let blocks = self.database.begin_read()?.open_table(BLOCKS)?;
        Ok(blocks.get(number)?.map(|found| {
            let (hash, block) = found.value();
            (*hash, block.to_vec())
        }))
    }

    /// The number of the block with a hash.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn number(&self, hash: &Hash) -> Result<Option<u32>, Error> {
        let numbers = self.database.begin_read()?.open_table(NUMBERS)?;
        Ok(numbers.get(hash)?.map(|found| found.value()))
    }

    /// The state after the last block.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn state(&self) -> Result<Vec<Entry>, Error> {
        let state = self.database.begin_read()?.open_table(STATE)?;
        state
            .iter()?
            .map(|entry| {
                let (key, value) = entry?;
                Ok((key.value().to_vec(), value.value().to_vec()))
            })
            .collect()
    }

    /// The changes that take the state after a block back to the one before it; none where they are forgotten.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn undo(&self, number: u32) -> Result<Option<Vec<Change>>, Error> {
        let undo = self.database.begin_read()?.open_table(UNDO)?;
        let mut changes = Vec::new();
        for entry in undo.range(of(number..number.saturating_add(1)))? {
            let (key, value) = entry?;
            changes.push((key.value().1.to_vec(), value.value().map(<[u8]>::to_vec)));
        }
        // Every block changes something: at least its own number in the state.
        Ok((!changes.is_empty()).then_some(changes))
    }

    /// Keeps blocks for good, all of them or none, and forgets what takes the state back beyond the last `states`
    /// blocks.
    ///
    /// # Errors
    /// When they do not follow the last block, or the disk refuses. Nothing is kept then.
    pub fn commit(&self, sealed: &[Sealed], states: u32) -> Result<(), Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut blocks = transaction.open_table(BLOCKS)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            let mut state = transaction.open_table(STATE)?;
            let mut undo = transaction.open_table(UNDO)?;
            let last = blocks.last()?.map(|(number, _)| number.value());
            let mut next = last.map_or(0, |last| last.saturating_add(1));
            for block in sealed {
                if block.number != next {
                    return Err(Error::Order {
                        expected: next,
                        found: block.number,
                    });
                }
                next = next.saturating_add(1);
                blocks.insert(block.number, (&block.hash, block.block.as_slice()))?;
                numbers.insert(&block.hash, block.number)?;
                for (key, value) in &block.changes {
                    let old = match value {
                        Some(value) => state.insert(key.as_slice(), value.as_slice())?,
                        None => state.remove(key.as_slice())?,
                    };
                    // Nobody goes back beyond the first block.
                    if block.number > 0 {
                        let old = old.as_ref().map(redb::AccessGuard::value);
                        undo.insert((block.number, key.as_slice()), old)?;
                    }
                }
            }
            let forgotten = next.saturating_sub(states);
            undo.retain_in(of(0..forgotten), |_, _| false)?;
        }
        Ok(transaction.commit()?)
    }
}

/// All keys of blocks with these numbers.
fn of(numbers: Range<u32>) -> Range<(u32, &'static [u8])> {
    (numbers.start, &[][..])..(numbers.end, &[][..])
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    // Every page against its checksum: an old block that rotted must not be found out years later by a client.
    builder.set_check_integrity_on_open(true);
    builder
}

//! Named roots: the maps that a pool holds.

use crate::error::{Damage, Error, Result};
use crate::index::{Config, Record, RecordForm, Schemas, Scheme};
use crate::pmem::Seam;
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::{
    EXPIRES, FixedWords, ROOT_FIXED, ROOT_SLOTS, ROOT_TEXT, ROOT_TEXT_BYTES, TIME_BYTES,
};
use crate::pool::roots;

/// A map's description in its root. Fixed when the map is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapInfo {
    /// The map's name.
    pub name: String,
    /// The map's record form.
    pub form: RecordForm,
    /// Schema of the keys.
    pub key_schema: String,
    /// Schema of the values.
    pub value_schema: String,
    /// The map's scheme and its settings.
    pub config: Config,
    /// Whether its records can expire; see [`MapOptions::expiry`](crate::MapOptions::expiry).
    pub expires: bool,
}

/// Packs word 8 of a slot: the kinds and the lengths.
fn pack_kinds(info: &MapInfo) -> u64 {
    u64::from(info.scheme() as u8)
        | (u64::from(info.form as u8) | if info.expires { EXPIRES } else { 0 }) << 8
        | (info.name.len() as u64) << 16
        | (info.key_schema.len() as u64) << 32
        | (info.value_schema.len() as u64) << 48
}

impl MapInfo {
    /// The map's scheme.
    pub fn scheme(&self) -> Scheme {
        self.config.scheme()
    }

    /// Returns which keys and values the schemas allow, in a map of the record form `R`.
    pub(crate) fn schemas<R: Record>(&self) -> Schemas<R> {
        Schemas::new(&self.key_schema, &self.value_schema)
    }

    /// Like [`schemas`](Self::schemas), of the values as they are stored.
    pub(crate) fn stored_schemas<R: Record>(&self) -> Schemas<R> {
        self.schemas().after(if self.expires { TIME_BYTES } else { 0 })
    }

    /// Checks that the name and the schemas fit into a root.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        let invalid = |why| Err(Error::Invalid { what: "map name", why });
        if self.name.is_empty() {
            return invalid("it is empty".into());
        }
        let total = self.name.len() + self.key_schema.len() + self.value_schema.len();
        if total > ROOT_TEXT_BYTES {
            return invalid(format!(
                "with the schemas it takes {total} bytes, {ROOT_TEXT_BYTES} are allowed"
            ));
        }
        Ok(())
    }

    /// Encodes the fixed words of the root.
    #[doc(hidden)]
    pub fn to_words(&self) -> FixedWords {
        let mut words = [0; _];
        words[0] = pack_kinds(self);
        words[1..4].copy_from_slice(&self.config.to_words());
        let text = [&*self.name, &self.key_schema, &self.value_schema].concat();
        for (word, chunk) in
            words[ROOT_TEXT - ROOT_FIXED..].iter_mut().zip(text.as_bytes().chunks(8))
        {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(bytes);
        }
        words
    }

    fn from_words(words: &FixedWords) -> Option<MapInfo> {
        let kinds = words[0];
        let lengths = [kinds >> 16 & 0xffff, kinds >> 32 & 0xffff, kinds >> 48];
        let [name, key, value] = lengths.map(|l| l as usize);
        if name == 0 || name + key + value > ROOT_TEXT_BYTES {
            return None;
        }
        let text: Vec<u8> =
            words[ROOT_TEXT - ROOT_FIXED..].iter().flat_map(|w| w.to_le_bytes()).collect();
        let take = |from: usize, len: usize| String::from_utf8(text[from..from + len].into()).ok();
        let config = words[1..4].try_into().expect("three words");
        let (form, expires) = (kinds >> 8 & 0xff & !EXPIRES, kinds >> 8 & EXPIRES != 0);
        let form = RecordForm::from_media(form as u8)?;
        if expires && form != RecordForm::Bytes {
            return None;
        }
        Some(MapInfo {
            name: take(0, name)?,
            form,
            key_schema: take(name, key)?,
            value_schema: take(name + key, value)?,
            config: Config::from_words(Scheme::from_media(kinds as u8)?, config)?,
            expires,
        })
    }
}

/// Reads the root in `slot`. Returns `None` if the slot is free.
///
/// # Errors
/// [`Error::DamagedRoot`].
pub fn read<S: Seam>(core: &Core<S>, slot: usize) -> Result<Option<MapInfo>> {
    let words = roots::read(core, slot)?;
    words.map(|words| decode(slot, &words)).transpose()
}

/// Decodes the fixed words of the root in `slot`.
///
/// # Errors
/// [`Error::DamagedRoot`].
pub fn decode(slot: usize, words: &FixedWords) -> Result<MapInfo> {
    MapInfo::from_words(words).ok_or_else(|| {
        let found = format!("kinds {:#x}, configuration {:x?}", words[0], &words[1..4]);
        let place = root_offset(slot).raw();
        Error::DamagedRoot { slot, damage: Damage::new(place, "a map of a known scheme", found) }
    })
}

/// Reads every root. Returns each slot in use with its map, or with the error in reading it.
pub fn read_all<S: Seam>(core: &Core<S>) -> Vec<(usize, Result<MapInfo>)> {
    (0..ROOT_SLOTS).filter_map(|slot| Some((slot, read(core, slot).transpose()?))).collect()
}

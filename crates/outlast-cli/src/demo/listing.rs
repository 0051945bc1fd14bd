//! A directory listing by a prefix scan of an ordered map, which returns the files in order.

use super::facts::FileFacts;
use super::items::Item;
use super::plan::survives;
use super::workspace;
use crate::failure::Failure;
use outlast::{MapInfo, OrderedMap, Pool};
use serde::Serialize;
use std::collections::BTreeMap;

/// The greatest number of names printed.
const NAMES: usize = 6;

/// The directory with the most files, as a prefix scan of the map lists it.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    event: &'static str,
    directory: String,
    files: u64,
    /// Number of positions at which the scan differs from the sorted list of the files. After a
    /// missing or superfluous file, all positions count.
    wrong: u64,
    #[serde(skip)]
    names: Vec<String>,
}

impl Listing {
    /// Lists the directory. Returns `None` if the map keeps no key order, or if there are no files.
    pub(super) fn make(
        pool: &Pool,
        info: &MapInfo,
        items: &[Item],
    ) -> Result<Option<Listing>, Failure> {
        if !info.scheme().is_ordered() {
            return Ok(None);
        }
        let map: OrderedMap<[u8], FileFacts> = workspace::ordered_map(pool)?;
        let mut directories: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        for (number, item) in items.iter().enumerate() {
            let key = item.key();
            if let (Item::File(_), true) = (item, survives(number as u32))
                && let Some(end) = key.iter().rposition(|&byte| byte == b'/')
            {
                directories.entry(key[..=end].to_vec()).or_default().push(key);
            }
        }
        let most = |(_, files): &(&Vec<u8>, &Vec<Vec<u8>>)| files.len();
        let Some((directory, _)) = directories.iter().max_by_key(most) else { return Ok(None) };
        // Files in subdirectories have the same prefix.
        let mut expected: Vec<&Vec<u8>> = directories
            .range(directory.clone()..)
            .take_while(|(other, _)| other.starts_with(directory))
            .flat_map(|(_, files)| files)
            .collect();
        expected.sort_unstable();
        let mut listing = Listing {
            event: "listing",
            directory: String::from_utf8_lossy(directory).into_owned(),
            files: 0,
            wrong: 0,
            names: Vec::new(),
        };
        let mut expected = expected.into_iter();
        for record in map.prefix(directory) {
            let (key, _) = record?;
            listing.wrong += u64::from(expected.next() != Some(&key));
            listing.files += 1;
            if listing.names.len() < NAMES {
                listing.names.push(String::from_utf8_lossy(&key[directory.len()..]).into_owned());
            }
        }
        listing.wrong += expected.count() as u64;
        Ok(Some(listing))
    }

    /// Returns the listing as text.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines =
            vec![format!("  in order {} files of {}, by one scan:", self.files, self.directory)];
        lines.extend(self.names.iter().map(|name| format!("           {name}")));
        if self.files > self.names.len() as u64 {
            lines.push("           ...".into());
        }
        lines
    }

    /// Returns whether the listing is what it should be.
    pub(super) fn is_right(&self) -> bool {
        self.wrong == 0
    }
}

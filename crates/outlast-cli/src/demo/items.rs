//! The content of records: files, and generated content if there are too few files. The list is
//! made once and passed to every worker in a file.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The source of a record's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// A file, by its path's bytes.
    File(Vec<u8>),
    /// Content generated from a number.
    Generated(u64),
}

impl Item {
    pub(super) fn file(path: &Path) -> Self {
        Item::File(path.as_os_str().as_bytes().to_vec())
    }

    /// The key of the item's record.
    pub(super) fn key(&self) -> Vec<u8> {
        match self {
            Item::File(path) => path.clone(),
            // File paths in the list are absolute, so none of them begins like this.
            Item::Generated(number) => format!("generated/{number:08}").into_bytes(),
        }
    }

    /// The path of the item's file.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.key()))
    }
}

/// Writes the list.
pub(super) fn write(path: &Path, items: &[Item]) -> io::Result<()> {
    let mut file = io::BufWriter::new(std::fs::File::create_new(path)?);
    for item in items {
        let (tag, bytes) = match item {
            Item::File(path) => (0, path.clone()),
            Item::Generated(number) => (1, number.to_le_bytes().to_vec()),
        };
        file.write_all(&[tag])?;
        file.write_all(&(bytes.len() as u32).to_le_bytes())?;
        file.write_all(&bytes)?;
    }
    file.flush()
}

/// Reads the list.
pub(super) fn read(path: &Path) -> io::Result<Vec<Item>> {
    let bytes = std::fs::read(path)?;
    let mut rest = &bytes[..];
    let mut items = Vec::new();
    while !rest.is_empty() {
        let item = take(&mut rest).ok_or(io::ErrorKind::InvalidData)?;
        items.push(item);
    }
    Ok(items)
}

fn take(rest: &mut &[u8]) -> Option<Item> {
    let ([tag], after) = rest.split_first_chunk::<1>()?;
    let (len, after) = after.split_first_chunk::<4>()?;
    let (bytes, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *rest = after;
    Some(match tag {
        0 => Item::File(bytes.to_vec()),
        _ => Item::Generated(u64::from_le_bytes(bytes.try_into().ok()?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_from_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("items");
        let items =
            [Item::File(b"/a/\xff\n\0x".to_vec()), Item::Generated(u64::MAX), Item::File(vec![])];
        write(&path, &items).unwrap();
        assert_eq!(read(&path).unwrap(), items);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert!(read(&path).is_err());
    }
}

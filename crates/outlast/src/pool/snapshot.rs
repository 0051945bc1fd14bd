//! Copying a pool while it stands still.

use super::options::sync_parent;
use super::store::Store;
use crate::error::{Error, Result};
use crate::pmem::{Real, Seam};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// See [`Pool::snapshot`](crate::Pool::snapshot).
pub(super) fn snapshot(store: &Store<Real>, path: &Path) -> Result<()> {
    let action = || format!("writing the snapshot {}", path.display());
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let temporary = parent.join(format!(".outlast-{:016x}.snapshot", super::core::random()));
    let result = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&temporary)
        .map_err(|e| Error::io(action(), e))
        .and_then(|file| {
            store.sync_and(|core| copy(core, &file).map_err(|e| Error::io(action(), e)))?;
            file.sync_all().map_err(|e| Error::io(action(), e))
        })
        .and_then(|()| std::fs::rename(&temporary, path).map_err(|e| Error::io(action(), e)));
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result?;
    sync_parent(path)
}

/// Shares the blocks where the file system can, else copies the bytes.
fn copy<S: Seam>(core: &super::core::Core<S>, mut target: &File) -> std::io::Result<()> {
    let len = core.memory.len();
    if let Some(source) = core.backing().mapping().and_then(|m| m.as_file())
        && rustix::fs::ioctl_ficlone(target, source).is_ok()
    {
        return target.set_len(len);
    }
    // Through the mapping: a medium of which no file is (or is not yet) the truth.
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let n = (len - at).min(buffer.len() as u64);
        let words = core.memory.words(at, n).map_err(std::io::Error::other)?;
        core.memory.read_bytes(words, 0, &mut buffer[..n as usize]);
        target.write_all(&buffer[..n as usize])?;
        at += n;
    }
    Ok(())
}

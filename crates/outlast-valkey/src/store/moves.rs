//! Keys that become what other keys are.

use super::{Content, HashInfo, Store};
use crate::place::place_of;
use crate::reply::Result;
use outlast::{Batch, Expiry};
use std::sync::atomic::Ordering;

impl Store {
    /// Gives what a key stands for, and its time, to another key, whatever that was. Returns whether the key existed.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<bool> {
        let Some((content, expiry)) = self.timed(from)? else { return Ok(false) };
        let mut batch = self.pool.batch();
        batch.remove(&self.keys, &place_of(from)[..])?;
        self.replace(batch, to, content, expiry)?;
        Ok(true)
    }

    /// Gives a copy of what a key stands for, and its time, to another key, whatever that was. Returns whether the key
    /// existed.
    pub fn copy(&self, from: &[u8], to: &[u8]) -> Result<bool> {
        let Some((mut content, expiry)) = self.timed(from)? else { return Ok(false) };
        let mut batch = self.pool.batch();
        if let Content::Hash(hash) = &mut content {
            *hash = self.copy_fields(*hash)?;
            batch.remove(&self.garbage, &hash.number)?;
        }
        self.replace(batch, to, content, expiry)?;
        Ok(true)
    }

    /// Makes a hash with the fields of another one. It is garbage until a key stands for it, so that nothing of it is
    /// left if that fails, or after a crash.
    fn copy_fields(&self, hash: HashInfo) -> Result<HashInfo> {
        let number = self.next.load(Ordering::Relaxed);
        self.reserve()?;
        self.garbage.put(&number, &())?;
        for record in
            self.fields.range((hash.number, 0, Vec::new())..(hash.number + 1, 0, Vec::new()))
        {
            let ((_, position, field), value) = record?;
            self.fields.put(&(number, position, field), &value[..])?;
        }
        Ok(HashInfo { number, ..hash })
    }

    /// Returns what a key stands for, and when it expires.
    fn timed(&self, key: &[u8]) -> Result<Option<(Content, Expiry)>> {
        let (content, expiry) = (self.get(key)?, self.expiry(key)?);
        Ok(content.zip(expiry))
    }

    /// Lets a key stand for something, whatever it was, together with the changes of a batch.
    pub(super) fn replace(
        &self,
        mut batch: Batch,
        key: &[u8],
        content: Content,
        expiry: Expiry,
    ) -> Result<()> {
        let place = place_of(key);
        self.note_use(&place);
        let replaced = self.hash_at(&place)?;
        match (content, expiry) {
            (Content::Hash(hash), _) => self.put_hash(&mut batch, key, hash, expiry)?,
            (Content::Text(text), Expiry::At(time)) => {
                let stored = Content::encode_text(&text);
                batch.put_until(&self.keys, &place[..], &stored[..], time)?;
            }
            (Content::Text(text), Expiry::Never) => {
                batch.put(&self.keys, &place[..], &Content::encode_text(&text)[..])?;
            }
        }
        if let Some(hash) = replaced {
            batch.put(&self.garbage, &hash.number, &())?;
        }
        batch.commit()?;
        replaced.map_or(Ok(()), |hash| self.forget(hash))
    }
}

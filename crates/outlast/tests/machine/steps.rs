//! What the steps of a life do.

use crate::Life;
use outlast::{OldPool, Pool, Result};
use std::sync::atomic::Ordering::SeqCst;

pub(crate) fn create(life: &Life, _: Option<&Pool>) -> Result<Option<Pool>> {
    life.create().map(Some)
}

pub(crate) fn open(life: &Life, _: Option<&Pool>) -> Result<Option<Pool>> {
    life.open().map(Some)
}

pub(crate) fn give_journal(life: &Life, _: Option<&Pool>) -> Result<Option<Pool>> {
    life.journaled.store(true, SeqCst);
    let opened = life.open();
    life.journaled.store(opened.is_ok(), SeqCst);
    opened.map(Some)
}

pub(crate) fn read(life: &Life, _: Option<&Pool>) -> Result<Option<Pool>> {
    // SAFETY: the file belongs to this test.
    let pool = unsafe { life.options().open_read_only(life.path())? };
    pool.map::<u64, [u8]>("m")?.get(&0)?.expect("the first record");
    Ok(None)
}

/// Fills the pool until it has grown. Goes on after errors: later changes may succeed.
pub(crate) fn grow(life: &Life, pool: Option<&Pool>) -> Result<Option<Pool>> {
    let pool = pool.unwrap();
    let (size, map) = (pool.stats().size, pool.map("m")?);
    let mut done = Ok(None);
    for _ in 0..480 {
        if let Err(error) = life.put_into(&map) {
            done = Err(error);
        }
    }
    // The records take more than the pool had.
    assert!(done.is_err() || pool.stats().size > size);
    done
}

pub(crate) fn wait(life: &Life, pool: Option<&Pool>) -> Result<Option<Pool>> {
    life.put(pool.unwrap())?;
    pool.unwrap().wait_durable().map(|()| None)
}

pub(crate) fn sync(life: &Life, pool: Option<&Pool>) -> Result<Option<Pool>> {
    life.put(pool.unwrap())?;
    pool.unwrap().sync().map(|()| None)
}

pub(crate) fn snapshot(life: &Life, pool: Option<&Pool>) -> Result<Option<Pool>> {
    pool.unwrap().snapshot(life.copy()).map(|()| None)
}

pub(crate) fn verify(_: &Life, pool: Option<&Pool>) -> Result<Option<Pool>> {
    pool.unwrap().verify().map(|found| {
        assert!(found.is_sound());
        None
    })
}

pub(crate) fn close(life: &Life, _: Option<&Pool>) -> Result<Option<Pool>> {
    let pool = life.open.lock().unwrap().take().unwrap();
    pool.close().map(|()| None)
}

pub(crate) fn backup(life: &Life, _: Option<&Pool>) -> Result<Option<Pool>> {
    // SAFETY: the file belongs to this test.
    unsafe { life.options().backup(life.path(), life.copy()) }.map(|_| None)
}

pub(crate) fn restore(life: &Life, _: Option<&Pool>) -> Result<Option<Pool>> {
    // SAFETY: the files belong to this test.
    unsafe { life.options().restore(life.copy(), life.path(), OldPool::Kept) }.map(|_| None)
}

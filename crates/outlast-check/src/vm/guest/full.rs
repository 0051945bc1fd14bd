//! A pool that grows until its file system is full.

use super::place::Place;
use super::port::Port;
use crate::state::{Checked, Fault, ensure};
use crate::vm::wire::Said;
use outlast::{Error, Map, MapOptions, Pool, PoolOptions, Scheme};
use std::fs;
use std::path::Path;

/// Size of the file system in blocks of 4 KiB: 48 MiB.
const BLOCKS: u64 = 12 << 10;
/// Size of the file beside the pool that makes room when it is removed, in bytes.
const FILLER_BYTES: usize = 8 << 20;
/// Length of a value in bytes.
const VALUE_BYTES: usize = 700;
/// How many records are inserted between two reports of their number.
pub(super) const BATCH: u64 = 64;

fn map(pool: &Pool, scheme: Scheme) -> Checked<Map<u64, [u8]>> {
    Ok(pool.map_with("records", &MapOptions::new().scheme(scheme))?)
}

fn value(key: u64) -> Vec<u8> {
    let mut value = vec![key as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value
}

/// Inserts until the disk is full. Returns the number of the refused key.
fn insert_all(map: &Map<u64, [u8]>, mut key: u64, port: &Port) -> Checked<u64> {
    loop {
        match map.insert(&key, &value(key)) {
            Ok(true) => key += 1,
            Ok(false) => return Err(Fault(format!("key {key} is there already"))),
            Err(Error::DiskFull { needed, .. }) => {
                port.note(format!("disk full at {key} records: {needed} bytes more refused"))?;
                return Ok(key);
            }
            Err(error) => return Err(error.into()),
        }
        if key.is_multiple_of(BATCH) {
            port.say(&Said::Done { thread: 0, operations: key })?;
        }
    }
}

/// Checks that the keys below `end` are present. Returns how many keys in a row from 0 on are
/// present, including any above.
fn records(map: &Map<u64, [u8]>, end: u64) -> Checked<u64> {
    let mut key = 0;
    loop {
        match map.get(&key)? {
            Some(found) => ensure(found == value(key), || format!("torn: key {key}"))?,
            None if key >= end => break,
            None => return Err(Fault(format!("lost: key {key} of {end}"))),
        }
        key += 1;
    }
    Ok(key)
}

fn verify(pool: &Pool, records: u64) -> Checked {
    crate::session::check_verification(&pool.verify()?, records)
}

pub(super) fn fill(scheme: Scheme, port: &Port) -> Checked {
    Place::Nvdimm.format(Some(BLOCKS))?;
    let dir = Place::Nvdimm.mount(false)?;
    let filler = dir.join("filler");
    let io = |e: std::io::Error| Fault(format!("the filler: {e}"));
    fs::write(&filler, vec![1; FILLER_BYTES]).map_err(io)?;
    let path = dir.join("full.pool");
    // SAFETY: only this process uses the file systems of the guest.
    let pool = unsafe { PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path)? };
    let full_map = map(&pool, scheme)?;
    let first = insert_all(&full_map, 0, port)?;
    port.say(&Said::Done { thread: 0, operations: first })?;
    ensure(records(&full_map, first)? == first, || "a refused record is there".into())?;
    verify(&pool, first)?;
    // Removing records makes room for as many new ones, without growth.
    for key in 0..first / 2 {
        let removed = full_map.remove(&key)?;
        ensure(removed == Some(value(key)), || format!("key {key} was not there"))?;
    }
    for key in 0..first / 2 {
        ensure(full_map.insert(&key, &value(key))?, || format!("key {key} is there"))?;
    }
    verify(&pool, first)?;
    drop(full_map);
    pool.close()?;
    let pool = open(&path)?;
    port.note(format!("full, closed and opened: {} bytes", pool.stats().size))?;
    verify(&pool, first)?;
    fs::remove_file(&filler).map_err(io)?;
    let full_map = map(&pool, scheme)?;
    let second = insert_all(&full_map, first, port)?;
    port.say(&Said::Done { thread: 0, operations: second })?;
    ensure(second > first, || "room was made, and nothing could be inserted".into())?;
    let grown = pool.stats().size;
    port.note(format!("full again: {second} records, {grown} bytes; updating until the end"))?;
    port.say(&Said::Cleaning)?;
    loop {
        // The pool is full and modified when the power is cut.
        for key in 0..second {
            match full_map.put(&key, &value(key)) {
                Ok(_) | Err(Error::DiskFull { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn open(path: &Path) -> Checked<Pool> {
    // SAFETY: as in `fill`.
    Ok(unsafe { PoolOptions::new().open(path)? })
}

pub(super) fn check(scheme: Scheme, acknowledged: u64, port: &Port) -> Checked {
    let dir = Place::Nvdimm.mount(false)?;
    let pool = open(&dir.join("full.pool"))?;
    let map = map(&pool, scheme)?;
    let found = records(&map, acknowledged)?;
    ensure(found <= acknowledged + BATCH, || {
        format!("{found} records, {acknowledged} were acknowledged")
    })?;
    verify(&pool, found)?;
    port.note(format!("{found} records are there, {acknowledged} were acknowledged"))?;
    drop(map);
    Ok(pool.close()?)
}

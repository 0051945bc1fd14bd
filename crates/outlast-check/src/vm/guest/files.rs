//! The media that pools are on, and copies of pools.

use super::place::Place;
use super::port::Port;
use super::work::concurrent;
use crate::state::{Checked, Fault, ensure};
use crate::torture::life::Subject;
use crate::vm::wire::Said;
use outlast::{Error, Map, MapOptions, Pool, PoolOptions, Scheme, TornReason};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The pool of [`detect`] and [`unarmed`].
const DETECTED: &str = "detect.pool";
/// The pool that is copied while threads work on it, and its copies.
const LIVE: &str = "live.pool";
const COPY: &str = "copy.pool";
/// Records of a pool that is copied from one medium to another.
const RECORDS: u64 = 2_000;

fn io(what: &str, path: &Path) -> impl Fn(std::io::Error) -> Fault {
    let text = format!("{what} {}", path.display());
    move |e| Fault(format!("{text}: {e}"))
}

fn create(path: &Path) -> Checked<Pool> {
    // SAFETY: here and below, only this process uses the file systems of the guest.
    Ok(unsafe { PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(path)? })
}

fn open(path: &Path) -> outlast::Result<Pool> {
    // SAFETY: as in `create`.
    unsafe { PoolOptions::new().open(path) }
}

/// Reports the medium of a pool.
fn say_medium(place: &str, pool: &Pool, port: &Port) -> Checked {
    let durability = pool.durability();
    port.say(&Said::Medium {
        place: place.into(),
        medium: durability.medium.to_string(),
        flush: durability.flush.to_string(),
        survives_power_loss: durability.survives_power_loss,
    })
}

pub(super) fn detect(places: &[Place], format: bool, port: &Port) -> Checked {
    for &place in places {
        let path = place.mount(format)?.join(DETECTED);
        let pool = create(&path)?;
        let map: Map<u64, u64> = pool.map("numbers")?;
        map.insert(&1, &2)?;
        say_medium(place.name(), &pool, port)?;
        drop(map);
        pool.close()?;
    }
    Ok(())
}

pub(super) fn unarmed(port: &Port) -> Checked {
    // The kernel opens such a device read-only, and mount falls back to that.
    let dir = Place::Nvdimm.mount_with("dax=always")?;
    let path = dir.join(DETECTED);
    let read_only = |result: outlast::Result<Pool>, what: &str| match result {
        Err(Error::Io { source, .. })
            if source.kind() == std::io::ErrorKind::ReadOnlyFilesystem =>
        {
            port.note(format!("{what}: {source}"))
        }
        Err(error) => Err(Fault(format!("{what}, unexpected error: {error}"))),
        Ok(_) => Err(Fault(format!("{what}: it was"))),
    };
    read_only(open(&path), "a pool is opened for writing on an unarmed device")?;
    // SAFETY: as in `create`.
    let created = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(dir.join("new.pool"))
    };
    read_only(created, "a pool is created on an unarmed device")?;
    // SAFETY: as in `create`.
    let pool = unsafe { PoolOptions::new().open_read_only(&path)? };
    let map: Map<u64, u64> = pool.map("numbers")?;
    ensure(map.get(&1)? == Some(2), || "the record is not there".into())?;
    let refused = matches!(map.insert(&3, &4), Err(Error::ReadOnly { .. }));
    ensure(refused, || "a pool that is open read-only was changed".into())?;
    say_medium("unarmed-read-only", &pool, port)
}

pub(super) fn demo(scheme: Scheme, seed: u64, port: &Port) -> Checked<u8> {
    let dir = Place::Nvdimm.mount(true)?;
    let mut child = Command::new("outlast")
        .args(["--json", "--pool"])
        .arg(dir.join("demo.pool"))
        .args(["demo", "/bin", "--kills", "5", "--records", "4000", "--threads", "4"])
        .args(["--scheme", scheme.name(), "--seed", &seed.to_string()])
        .env("TMPDIR", "/tmp")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Fault(format!("outlast: {e}")))?;
    for line in
        BufReader::new(child.stdout.take().ok_or_else(|| Fault("no output".into()))?).lines()
    {
        port.say(&Said::Json(line.map_err(|e| Fault(format!("outlast's output: {e}")))?))?;
    }
    let output = child.wait_with_output().map_err(|e| Fault(format!("outlast: {e}")))?;
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        port.note(line)?;
    }
    output
        .status
        .code()
        .and_then(|code| code.try_into().ok())
        .ok_or_else(|| Fault(format!("outlast ended otherwise than by itself: {}", output.status)))
}

// ---- Copies of a live pool ------------------------------------------------------------

fn subject(scheme: Scheme) -> Subject {
    Subject { scheme, record: None, keys: 300, threads: 3 }
}

/// Copies a file as `cp` does, block by block.
fn copy(source: &Path, target: &Path) -> Checked {
    let act = || -> std::io::Result<()> {
        let mut from = fs::File::open(source)?;
        let mut to = fs::File::create(target)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match from.read(&mut buffer)? {
                0 => return to.sync_all(),
                n => to.write_all(&buffer[..n])?,
            }
        }
    };
    act().map_err(io("copying to", target))
}

fn inode(path: &Path) -> Checked<u64> {
    Ok(fs::metadata(path).map_err(io("reading", path))?.ino())
}

/// Creates files in a directory until one has this inode number. Keeps only that one, under this
/// name. Returns whether there is one.
fn take_inode(dir: &Path, number: u64, name: &str) -> Checked<bool> {
    let target = dir.join(name);
    let mut others: Vec<PathBuf> = Vec::new();
    let mut found = false;
    for n in 0..64 {
        let path = dir.join(format!("inode-{n}"));
        fs::File::create(&path).map_err(io("making", &path))?;
        if inode(&path)? == number {
            fs::rename(&path, &target).map_err(io("naming", &target))?;
            found = true;
            break;
        }
        others.push(path);
    }
    others.iter().try_for_each(|path| fs::remove_file(path).map_err(io("removing", path)))?;
    Ok(found)
}

/// Checks that a copy of a live pool is refused as a copy.
fn must_be_refused(path: &Path, what: &str, port: &Port) -> Checked {
    match open(path) {
        Err(Error::PossiblyTorn { reason: TornReason::Copy, .. }) => {
            let reason = format!("{:?}", TornReason::Copy);
            port.say(&Said::Refused { place: what.into(), reason })
        }
        Err(error) => Err(Fault(format!("{what}, unexpected error: {error}"))),
        Ok(_) => Err(Fault(format!("{what}: opened"))),
    }
}

/// Verifies a pool, which must be sound. Returns the number of its records.
fn verify(pool: &Pool) -> Checked<u64> {
    let found = pool.verify()?;
    crate::session::check_verification(&found, found.records())?;
    Ok(found.records())
}

pub(super) fn copy_live(scheme: Scheme, port: &Port) -> Checked {
    let subject = subject(scheme);
    let dax = Place::Nvdimm.mount(true)?;
    let disk = Place::Disk.mount(true)?;
    for (home, away, name) in [(&dax, &disk, "dax"), (&disk, &dax, "disk")] {
        let live = home.join(LIVE);
        // SAFETY: as in `create`.
        let pool = unsafe { Subject::options().create(&live)? };
        subject.open_maps(&pool)?;
        let number = inode(&live)?;
        let twin = away.join(format!("{name}-twin.pool"));
        if take_inode(away, number, &format!("{name}-twin.pool"))? {
            port.note(format!("{}: has the inode number of the original", twin.display()))?;
        }
        let beside_it = home.join(COPY);
        let snapshot = away.join(format!("{name}-snapshot.pool"));
        concurrent(&subject, &pool, || {
            std::thread::sleep(Duration::from_millis(300));
            copy(&live, &beside_it)?;
            copy(&live, &twin)?;
            Ok(pool.snapshot(&snapshot)?)
        })?;
        must_be_refused(&beside_it, &format!("copy-of-live-on-{name}"), port)?;
        must_be_refused(&twin, &format!("copy-from-{name}-to-the-other"), port)?;
        let restored = open(&snapshot)?;
        port.note(format!("the snapshot of {name} is whole, {} records", verify(&restored)?))?;
        restored.close()?;
        // Put the copy where the original was, after the original is gone, as if a backup were
        // restored.
        pool.close()?;
        fs::remove_file(&live).map_err(io("removing", &live))?;
        let same = take_inode(home, number, LIVE)?;
        copy(&beside_it, &live)?;
        let way = if same { "with" } else { "without" };
        port.note(format!("the copy takes the original's place, {way} its inode number"))?;
        must_be_refused(&live, &format!("copy-in-place-on-{name}"), port)?;
    }
    Ok(())
}

pub(super) fn open_live_copies(scheme: Scheme, port: &Port) -> Checked {
    let dax = Place::Nvdimm.mount(false)?;
    let disk = Place::Disk.mount(false)?;
    // On DAX, another boot is no reason to refuse a pool. So these must be refused as copies.
    must_be_refused(&dax.join(COPY), "copy-of-live-on-dax", port)?;
    must_be_refused(&disk.join("dax-twin.pool"), "copy-from-dax-to-the-other", port)?;
    must_be_refused(&dax.join(LIVE), "copy-in-place-on-dax", port)?;
    for path in [disk.join(COPY), dax.join("disk-twin.pool"), disk.join(LIVE)] {
        match open(&path) {
            Err(Error::PossiblyTorn { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(Fault(format!("{} was opened", path.display()))),
        }
    }
    for path in [disk.join("dax-snapshot.pool"), dax.join("disk-snapshot.pool")] {
        let pool = open(&path)?;
        subject(scheme).open_maps(&pool)?;
        port.note(format!("{} is whole, {} records", path.display(), verify(&pool)?))?;
        pool.close()?;
    }
    Ok(())
}

// ---- Closed pools from one medium to the other ------------------------------------------

fn map(pool: &Pool, scheme: Scheme) -> Checked<Map<u64, [u8]>> {
    Ok(pool.map_with("records", &MapOptions::new().scheme(scheme))?)
}

fn value(key: u64) -> Vec<u8> {
    key.to_le_bytes().repeat(1 + (key % 9) as usize)
}

/// Opens or creates a pool, inserts records, checks all records from key 0 on, and closes the pool.
fn add(
    place: &str,
    path: &Path,
    keys: std::ops::Range<u64>,
    scheme: Scheme,
    port: &Port,
) -> Checked {
    let pool = if path.exists() { open(path)? } else { create(path)? };
    say_medium(place, &pool, port)?;
    let map = map(&pool, scheme)?;
    for key in keys.clone() {
        ensure(map.insert(&key, &value(key))?, || format!("key {key} is there already"))?;
    }
    for key in 0..keys.end {
        let found = map.get(&key)?;
        ensure(found.as_deref() == Some(&value(key)), || format!("key {key} is wrong"))?;
    }
    let records = verify(&pool)?;
    ensure(records == keys.end, || format!("{records} records, {} expected", keys.end))?;
    drop(map);
    Ok(pool.close()?)
}

pub(super) fn copy_closed(scheme: Scheme, port: &Port) -> Checked {
    let dax = Place::Nvdimm.mount(true)?;
    let disk = Place::Disk.mount(true)?;
    let (first, second, third) =
        (dax.join("first.pool"), disk.join("second.pool"), dax.join("third.pool"));
    add("dax", &first, 0..RECORDS, scheme, port)?;
    copy(&first, &second)?;
    add("disk", &second, RECORDS..2 * RECORDS, scheme, port)?;
    copy(&second, &third)?;
    add("dax-again", &third, 2 * RECORDS..3 * RECORDS, scheme, port)?;
    // Use the same file on the same device through the page cache, and then directly again.
    super::place::unmount_all();
    let cached = Place::NvdimmNoDax.mount(false)?.join("third.pool");
    add("nvdimm-no-dax", &cached, 3 * RECORDS..4 * RECORDS, scheme, port)?;
    super::place::unmount_all();
    let direct = Place::Nvdimm.mount(false)?.join("third.pool");
    add("dax-at-last", &direct, 4 * RECORDS..5 * RECORDS, scheme, port)
}

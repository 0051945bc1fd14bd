//! Transactions: what they read and change is as of one moment, also alongside other threads.

use crate::batch::{everything, pool};
use outlast::{Error, MapOptions, PoolOptions, Scheme};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_transaction_reads_what_it_has_changed() {
    for options in everything() {
        let pool = pool();
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        map.put(&1, &10).unwrap();
        let done = pool.transaction(|t| {
            assert!(!t.insert(&map, &1, &11)?);
            assert!(!t.update(&map, &2, &20)?);
            t.remove(&map, &1)?;
            assert_eq!(t.get(&map, &1)?, None);
            assert!(t.insert(&map, &1, &12)?);
            assert_eq!(t.add(&map, &1, 3)?, 15);
            assert_eq!(t.alter(&map, &2, |before| before.map_or(Some(21), |_| None))?, Some(21));
            assert_eq!((map.get(&1)?, map.get(&2)?), (Some(10), None), "nothing is made yet");
            Ok::<_, Error>((t.get(&map, &1)?, t.get(&map, &2)?))
        });
        assert_eq!(done.unwrap(), (Some(15), Some(21)), "{options:?}");
        assert_eq!((map.get(&1).unwrap(), map.get(&2).unwrap()), (Some(15), Some(21)));
    }
}

/// Each transaction reads both records and changes one. If what it has only read were not checked,
/// both could find that the other record is still there.
#[test]
fn a_record_that_was_only_read_has_to_stay() {
    let pool = pool();
    let (on_call, log) =
        (pool.map::<str, bool>("on call").unwrap(), pool.map::<u64, str>("log").unwrap());
    on_call.put("ada", &true).unwrap();
    on_call.put("bob", &true).unwrap();
    let mut runs = 0;
    let left = pool.transaction(|t| {
        runs += 1;
        let other = t.get(&on_call, "bob")?;
        if runs == 1 {
            // Another thread would do this.
            on_call.put("bob", &false)?;
        }
        if other != Some(true) {
            return Ok::<_, Error>(false);
        }
        t.put(&on_call, "ada", &false)?;
        t.put(&log, &1, "ada has left")?;
        Ok(true)
    });
    assert_eq!((left.unwrap(), runs), (false, 2));
    assert_eq!((on_call.get("ada").unwrap(), log.len().unwrap()), (Some(true), 0));
}

/// What makes `run` fail may come from records as of different moments. Then it runs again.
#[test]
fn an_error_counts_only_if_what_was_read_was_true() {
    let pool = pool();
    let map = pool.map::<str, u64>("m").unwrap();
    map.put("a", &1).unwrap();
    map.put("b", &1).unwrap();
    let mut runs = 0;
    let same = pool.transaction(|t| {
        runs += 1;
        let a = t.get(&map, "a")?;
        if runs == 1 {
            map.put("a", &2)?;
            map.put("b", &2)?;
        }
        t.put(&map, "c", &7)?;
        if a == t.get(&map, "b")? { Ok(()) } else { Err(Error::MapDropped) }
    });
    assert!(same.is_ok() && runs == 2, "{same:?}, {runs} runs");
    let refused = pool.transaction(|t| {
        t.put(&map, "c", &8)?;
        Err::<(), _>(Error::MapDropped)
    });
    assert!(matches!(refused, Err(Error::MapDropped)));
    assert_eq!(map.get("c").unwrap(), Some(7), "a transaction that fails changes nothing");
}

#[test]
fn maps_of_other_pools_are_refused() {
    let (one, other) = (pool(), pool());
    let map = other.map::<u64, u64>("m").unwrap();
    let read = one.transaction(|t| t.get(&map, &1));
    assert!(matches!(read, Err(Error::Invalid { .. })), "{read:?}");
}

#[test]
fn a_pool_that_is_open_read_only_has_reading_transactions() {
    let (_dir, path) = crate::files::dir();
    let pool = crate::files::create(&path);
    let map = pool.map::<str, u64>("m").unwrap();
    map.put("a", &1).unwrap();
    map.put("b", &2).unwrap();
    pool.close().unwrap();
    // SAFETY: nobody else uses the file.
    let pool = unsafe { PoolOptions::new().open_read_only(&path) }.unwrap();
    let map = pool.map::<str, u64>("m").unwrap();
    let both = pool.transaction(|t| Ok::<_, Error>((t.get(&map, "a")?, t.get(&map, "b")?)));
    assert_eq!(both.unwrap(), (Some(1), Some(2)));
    let refused = pool.transaction(|t| t.put(&map, "a", &3));
    assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
}

/// Threads move amounts between accounts in two maps. The sum that a transaction reads never changes.
#[test]
fn a_reading_transaction_sees_one_moment() {
    const ACCOUNTS: u64 = 6;
    for scheme in [Scheme::DashEh, Scheme::Clevel, Scheme::Phast] {
        let pool = pool();
        let options = MapOptions::new().scheme(scheme);
        let banks = ["one", "two"].map(|name| pool.map_with::<u64, u64>(name, &options).unwrap());
        for account in 0..ACCOUNTS {
            banks.iter().for_each(|bank| assert!(bank.insert(&account, &100).unwrap()));
        }
        let (done, sums) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|threads| {
            let writers = [1, 2].map(|seed: u64| {
                let (pool, banks) = (&pool, &banks);
                threads.spawn(move || {
                    for n in 0..2_000_u64 {
                        let from = n.wrapping_mul(seed * 7 + 3) % ACCOUNTS;
                        let to = n.wrapping_mul(seed * 5 + 1) % ACCOUNTS;
                        let moved = pool.transaction(|t| {
                            let has = t.get(&banks[0], &from)?.unwrap_or(0);
                            let amount = has.min(n % 9);
                            t.put(&banks[0], &from, &(has - amount))?;
                            t.add(&banks[1], &to, amount)?;
                            // And back, so that neither bank runs dry.
                            let has = t.get(&banks[1], &from)?.unwrap_or(0);
                            let amount = has.min(n % 7);
                            t.put(&banks[1], &from, &(has - amount))?;
                            t.add(&banks[0], &to, amount)
                        });
                        moved.unwrap();
                    }
                })
            });
            let reader = threads.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let sum = pool.transaction(|t| {
                        let mut sum = 0;
                        for bank in &banks {
                            for account in 0..ACCOUNTS {
                                sum += t.get(bank, &account)?.unwrap_or(0);
                            }
                        }
                        Ok::<_, Error>(sum)
                    });
                    assert_eq!(sum.unwrap(), 2 * ACCOUNTS * 100, "{scheme}");
                    sums.fetch_add(1, Ordering::Relaxed);
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        let all = banks.iter().flat_map(|bank| bank.values()).map(Result::unwrap);
        assert_eq!(all.sum::<u64>(), 2 * ACCOUNTS * 100, "{scheme}");
        assert!(sums.into_inner() > 0, "{scheme}");
    }
}

/// Threads move amounts between accounts in two maps until SIGKILL ends them, whatever they are doing.
/// What is left is as of one moment.
#[test]
fn a_kill_leaves_whole_transactions() {
    const ACCOUNTS: u64 = 6;
    let test = "transactions::a_kill_leaves_whole_transactions";
    if let Some(path) = crate::files::child_path() {
        let pool = crate::files::open(&path).unwrap();
        let banks = ["one", "two"].map(|name| pool.map::<u64, [u8; 12]>(name).unwrap());
        println!("ready");
        std::thread::scope(|threads| {
            for seed in [1, 2] {
                let (pool, banks) = (&pool, &banks);
                threads.spawn(move || {
                    for n in seed.. {
                        let moved = pool.transaction(|t| {
                            let (from, to) = (n * 7 % ACCOUNTS, n * 5 % ACCOUNTS);
                            let has = amount(t.get(&banks[0], &from)?);
                            t.put(&banks[0], &from, &value(has - 1))?;
                            let has = amount(t.get(&banks[1], &to)?);
                            t.put(&banks[1], &to, &value(has + 1))
                        });
                        moved.unwrap();
                    }
                });
            }
        });
    }
    /// Values in blocks of their own.
    fn value(amount: i64) -> [u8; 12] {
        let mut value = [7; 12];
        value[..8].copy_from_slice(&amount.to_le_bytes());
        value
    }
    fn amount(value: Option<[u8; 12]>) -> i64 {
        value.map_or(0, |value| i64::from_le_bytes(value[..8].try_into().unwrap()))
    }
    let (_dir, path) = crate::files::dir();
    crate::files::create(&path).close().unwrap();
    let mut moved = 0;
    for kill in 0..20 {
        let mut child = crate::files::in_child(test, &path);
        let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.map(Result::unwrap).any(|line| line.contains("ready")));
        std::thread::sleep(std::time::Duration::from_micros(997 * kill));
        child.kill().unwrap();
        child.wait().unwrap();
        let pool = crate::files::open(&path).unwrap();
        let banks = ["one", "two"].map(|name| pool.map::<u64, [u8; 12]>(name).unwrap());
        let sums = banks.each_ref().map(|bank| {
            (0..ACCOUNTS).map(|account| amount(bank.get(&account).unwrap())).sum::<i64>()
        });
        assert_eq!(sums[0] + sums[1], 0, "kill {kill}: {sums:?}");
        assert!(sums[1] >= moved, "kill {kill}: {sums:?}, and {moved} were moved before");
        moved = sums[1];
        pool.verify().unwrap().ensure_sound().unwrap();
        pool.close().unwrap();
    }
    assert!(moved > 0);
}

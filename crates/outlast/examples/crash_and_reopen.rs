//! Starts itself as a child process that moves money between accounts, kills the child with
//! SIGKILL, opens the pool again, and shows that nothing is missing.
//!
//! ```text
//! cargo run --release --example crash_and_reopen              # in a temporary directory
//! cargo run --release --example crash_and_reopen bank.pool    # keeps the pool; run it again
//! ```

use outlast::{Map, OrderedMap, Pool, PoolOptions};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const ACCOUNTS: u64 = 100;
const KILLS: usize = 3;
/// The child is killed once it has reported this many transfers.
const REPORTED: usize = 2_000;

struct Bank {
    pool: Pool,
    balances: Map<u64, i64>,
    /// Each transfer: from where, to where, how much.
    transfers: OrderedMap<u64, (u64, u64, i64)>,
}

impl Bank {
    fn open(path: &Path) -> outlast::Result<Bank> {
        // SAFETY: no other program writes this file while the pool is open.
        let pool = unsafe {
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).open_or_create(path)?
        };
        let (balances, transfers) = (pool.map("balances")?, pool.ordered_map("transfers")?);
        Ok(Bank { pool, balances, transfers })
    }

    /// Moves money. A crash leaves all three changes or none. Any number of threads may call this:
    /// if a balance has changed since it was read, `commit` changes nothing, and the transfer is
    /// retried.
    fn transfer(&self, number: u64, from: u64, to: u64, amount: i64) -> outlast::Result<()> {
        loop {
            let mut batch = self.pool.batch();
            for (account, by) in [(from, -amount), (to, amount)] {
                let balance = self.balances.get(&account)?;
                batch.require(&self.balances, &account, balance.as_ref())?;
                batch.put(&self.balances, &account, &(balance.unwrap_or(0) + by))?;
            }
            batch.put(&self.transfers, &number, &(from, to, amount))?;
            if batch.commit()? {
                return Ok(());
            }
        }
    }

    /// Checks that the balances follow from the transfers. Returns the number of the last transfer.
    fn check(&self) -> outlast::Result<u64> {
        let (mut last, mut balances) = (0, [0; ACCOUNTS as usize]);
        for transfer in self.transfers.range(..) {
            let (number, (from, to, amount)) = transfer?;
            assert_eq!(number, last + 1, "no transfer is missing");
            last = number;
            balances[from as usize] -= amount;
            balances[to as usize] += amount;
        }
        for (account, balance) in (0..).zip(balances) {
            assert_eq!(self.balances.get(&account)?.unwrap_or(0), balance, "account {account}");
        }
        Ok(last)
    }
}

/// The child's work until it is killed: makes transfers, and reports each one when it is complete.
fn transfer_for_ever(path: &Path) -> Result<(), Box<dyn Error>> {
    let bank = Bank::open(path)?;
    let begin = bank.transfers.last()?.map_or(1, |(number, _)| number + 1);
    for number in begin.. {
        let from = number % ACCOUNTS;
        bank.transfer(number, from, (from + 1 + number % 7) % ACCOUNTS, (number % 50) as i64)?;
        // If a power loss must not undo what was reported either, this would need a call of
        // `Pool::wait_durable` before the report.
        writeln!(std::io::stdout(), "{number}")?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let [child, path] = &arguments[..]
        && child.as_os_str() == "--child"
    {
        return transfer_for_ever(path);
    }
    let temporary = tempfile::tempdir()?;
    let path = arguments.first().cloned().unwrap_or_else(|| temporary.path().join("bank.pool"));

    for kill in 1..=KILLS {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        let mut child = command.arg("--child").arg(&path).stdout(Stdio::piped()).spawn()?;
        let reports = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let (mut count, mut reported) = (0, 0);
        // After the kill, there are still reports in the pipe, each of a complete transfer.
        for line in reports.lines() {
            reported = line?.parse()?;
            count += 1;
            if count == REPORTED {
                child.kill()?; // SIGKILL: the child cannot do anything about it.
            }
        }
        println!("kill {kill}: {}, transfer {reported} was the last one reported", child.wait()?);

        let start = Instant::now();
        let bank = Bank::open(&path)?;
        println!("  opened in {:.1?}", start.elapsed());
        let last = bank.check()?;
        // The last transfer may be complete, but not reported.
        assert!(count >= REPORTED && (reported..=reported + 1).contains(&last), "{last}");
        bank.pool.verify()?.ensure_sound()?;
        println!("  {last} transfers, all accounts are right, the pool is sound");
        bank.pool.close()?;
    }
    println!("nothing was lost in {KILLS} kills");
    Ok(())
}

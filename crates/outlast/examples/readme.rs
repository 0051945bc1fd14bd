//! The program in the README, word for word. It leaves a pool in the current directory.

use outlast::PoolOptions;

fn main() -> outlast::Result<()> {
    // SAFETY: nobody else writes this file while the pool is open.
    let pool = unsafe { PoolOptions::new().open_or_create("ages.pool")? };
    let ages = pool.map::<str, u64>("ages")?;
    ages.insert("Ada", &36)?;
    // kill -9 here, and the next process finds it.
    assert_eq!(ages.get("Ada")?, Some(36));
    pool.close()
}

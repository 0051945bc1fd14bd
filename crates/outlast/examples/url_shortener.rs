//! A URL shortener with short codes, the links of each user, and counters of visits. Several
//! threads use it at the same time.
//!
//! ```text
//! cargo run --release --example url_shortener               # in a temporary directory
//! cargo run --release --example url_shortener links.pool    # keeps the pool; run it again
//! ```

use outlast::{Map, OrderedMap, Pool, PoolOptions};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const THREADS: u32 = 4;
const LINKS_EACH: usize = 500;
const VISITS_EACH: usize = 5_000;

/// An open pool and its maps. All of these are handles: threads share them by reference.
struct Shortener {
    pool: Pool,
    /// The number that was assigned last. A map with a single record serves as a variable in the
    /// file.
    last_number: Map<str, u64>,
    /// The URL of each number.
    urls: Map<u64, str>,
    /// When each link was made, by user and number. A tuple is ordered by its parts, so the links
    /// of one user are next to each other.
    links_of: OrderedMap<(u32, u64), u64>,
    /// How often each link was visited.
    visits: Map<u64, u64>,
}

impl Shortener {
    fn open(path: &Path) -> outlast::Result<Shortener> {
        // SAFETY: no other program writes this file while the pool is open.
        let pool = unsafe { PoolOptions::new().open_or_create(path)? };
        Ok(Shortener {
            last_number: pool.map("last number")?,
            urls: pool.map("urls")?,
            links_of: pool.ordered_map("links of")?,
            visits: pool.map("visits")?,
            pool,
        })
    }

    /// Makes a link, and returns its code.
    fn shorten(&self, user: u32, url: &str) -> outlast::Result<String> {
        // `add` is atomic: no two threads get the same number. A crash right after it wastes a
        // number, which does no harm.
        let number = self.last_number.add("", 1)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // The next two records belong together. A crash leaves both or neither, so nobody's list
        // ever has a link that leads nowhere.
        let mut batch = self.pool.batch();
        batch.put(&self.urls, &number, url)?;
        batch.put(&self.links_of, &(user, number), &now)?;
        batch.commit()?;
        Ok(format!("{number:x}"))
    }

    /// Returns the URL to redirect to, and counts the visit.
    fn visit(&self, code: &str) -> outlast::Result<Option<String>> {
        let Ok(number) = u64::from_str_radix(code, 16) else { return Ok(None) };
        let Some(url) = self.urls.get(&number)? else { return Ok(None) };
        // This needs neither a lock nor a transaction: `add` is atomic, so every visit counts once,
        // however many threads count.
        self.visits.add(&number, 1)?;
        Ok(Some(url))
    }

    /// Returns the numbers of a user's links, oldest first.
    fn links_of(&self, user: u32) -> outlast::Result<Vec<u64>> {
        let records = self.links_of.range((user, 0)..=(user, u64::MAX));
        records.map(|record| record.map(|((_, number), _made)| number)).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| temporary.path().join("links.pool"));
    let shortener = Shortener::open(&path)?;
    let (links_before, visits_before) = (shortener.urls.len()?, total(&shortener)?);

    let start = Instant::now();
    let shared = &shortener;
    thread::scope(|scope| {
        let users: Vec<_> =
            (0..THREADS).map(|user| scope.spawn(move || work(shared, user))).collect();
        users.into_iter().try_for_each(|user| user.join().expect("no thread panics"))
    })?;
    println!("{THREADS} threads were done after {:.0?}", start.elapsed());

    // Nothing was lost or counted twice.
    let links = shortener.urls.len()?;
    assert_eq!(links, links_before + u64::from(THREADS) * LINKS_EACH as u64);
    let visits = total(&shortener)?;
    assert_eq!(visits, visits_before + u64::from(THREADS) * VISITS_EACH as u64);
    let of_users = (0..THREADS).map(|user| Ok(shortener.links_of(user)?.len() as u64));
    assert_eq!(of_users.sum::<outlast::Result<u64>>()?, links);
    println!("the pool has {links} links with {visits} visits");
    Ok(shortener.pool.close()?)
}

/// One user's requests: makes links, then visits them.
fn work(shortener: &Shortener, user: u32) -> outlast::Result<()> {
    let url = |n: usize| format!("https://example.com/users/{user}/pages/{n}");
    let codes = (0..LINKS_EACH).map(|n| shortener.shorten(user, &url(n)));
    let codes = codes.collect::<outlast::Result<Vec<_>>>()?;
    for n in 0..VISITS_EACH {
        let n = n % codes.len();
        assert_eq!(shortener.visit(&codes[n])?, Some(url(n)));
    }
    assert_eq!(shortener.visit("ffffffffffff")?, None);
    Ok(())
}

fn total(shortener: &Shortener) -> outlast::Result<u64> {
    shortener.visits.values().sum()
}

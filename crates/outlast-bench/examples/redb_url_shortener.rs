//! The program `url_shortener` of the library's examples, on redb.
//!
//! ```text
//! cargo run --release -p outlast-bench --features stores --example redb_url_shortener [links.redb]
//! ```

use redb::TableDefinition;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const THREADS: u32 = 4;
const LINKS_EACH: usize = 500;
const VISITS_EACH: usize = 5_000;

/// The URL of each number.
const URLS: TableDefinition<'_, u64, &str> = TableDefinition::new("urls");
/// When each link was made, by user and number.
const LINKS_OF: TableDefinition<'_, (u32, u64), u64> = TableDefinition::new("links of");
/// How often each link was visited.
const VISITS: TableDefinition<'_, u64, u64> = TableDefinition::new("visits");
/// The durability of a visit. A durable commit for each visit would sync the disk each time. A
/// visit becomes durable with the next link that is made.
const OF_VISITS: Durability = Durability::None;

type Fallible<T> = Result<T, redb::Error>;

struct Shortener {
    database: Database,
}

impl Shortener {
    fn open(path: &Path) -> Fallible<Shortener> {
        let database = Database::create(path)?;
        // A reader fails on a table that does not exist yet.
        let transaction = database.begin_write()?;
        transaction.open_table(URLS)?;
        transaction.open_table(LINKS_OF)?;
        transaction.open_table(VISITS)?;
        transaction.commit()?;
        Ok(Shortener { database })
    }

    /// Makes a link, and returns its code.
    fn shorten(&self, user: u32, url: &str) -> Fallible<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // There is one write transaction at a time, so no two threads get the same number.
        let transaction = self.database.begin_write()?;
        let number;
        {
            let mut urls = transaction.open_table(URLS)?;
            number = urls.last()?.map_or(1, |(number, _)| number.value() + 1);
            urls.insert(number, url)?;
            transaction.open_table(LINKS_OF)?.insert((user, number), now)?;
        }
        transaction.commit()?;
        Ok(format!("{number:x}"))
    }

    /// Returns the URL to redirect to, and counts the visit.
    fn visit(&self, code: &str) -> Fallible<Option<String>> {
        let Ok(number) = u64::from_str_radix(code, 16) else { return Ok(None) };
        let urls = self.database.begin_read()?.open_table(URLS)?;
        let Some(url) = urls.get(number)?.map(|url| url.value().to_owned()) else {
            return Ok(None);
        };
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(OF_VISITS)?;
        {
            let mut visits = transaction.open_table(VISITS)?;
            let before = visits.get(number)?.map_or(0, |count| count.value());
            visits.insert(number, before + 1)?;
        }
        transaction.commit()?;
        Ok(Some(url))
    }

    /// Returns the numbers of a user's links, oldest first.
    fn links_of(&self, user: u32) -> Fallible<Vec<u64>> {
        let links = self.database.begin_read()?.open_table(LINKS_OF)?;
        let records = links.range((user, 0)..=(user, u64::MAX))?;
        records.map(|record| Ok(record?.0.value().1)).collect()
    }

    fn total(&self) -> Fallible<u64> {
        let visits = self.database.begin_read()?.open_table(VISITS)?;
        visits.iter()?.map(|record| Ok(record?.1.value())).sum()
    }

    fn links(&self) -> Fallible<u64> {
        Ok(self.database.begin_read()?.open_table(URLS)?.len()?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| temporary.path().join("links.redb"));
    let shortener = Shortener::open(&path)?;
    let (links_before, visits_before) = (shortener.links()?, shortener.total()?);

    let start = Instant::now();
    let shared = &shortener;
    thread::scope(|scope| {
        let users: Vec<_> =
            (0..THREADS).map(|user| scope.spawn(move || work(shared, user))).collect();
        users.into_iter().try_for_each(|user| user.join().expect("no thread panics"))
    })?;
    // An empty durable commit makes the last visits durable.
    shortener.database.begin_write()?.commit()?;
    println!("{THREADS} threads were done after {:.0?}", start.elapsed());

    let links = shortener.links()?;
    assert_eq!(links, links_before + u64::from(THREADS) * LINKS_EACH as u64);
    let visits = shortener.total()?;
    assert_eq!(visits, visits_before + u64::from(THREADS) * VISITS_EACH as u64);
    let of_users = (0..THREADS).map(|user| Ok(shortener.links_of(user)?.len() as u64));
    assert_eq!(of_users.sum::<Fallible<u64>>()?, links);
    println!("the database has {links} links with {visits} visits");
    Ok(())
}

/// One user's requests: makes links, then visits them.
fn work(shortener: &Shortener, user: u32) -> Fallible<()> {
    let url = |n: usize| format!("https://example.com/users/{user}/pages/{n}");
    let codes = (0..LINKS_EACH).map(|n| shortener.shorten(user, &url(n)));
    let codes = codes.collect::<Fallible<Vec<_>>>()?;
    for n in 0..VISITS_EACH {
        let n = n % codes.len();
        assert_eq!(shortener.visit(&codes[n])?, Some(url(n)));
    }
    assert_eq!(shortener.visit("ffffffffffff")?, None);
    Ok(())
}

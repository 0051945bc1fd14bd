//! The program `time_series` of the library's examples, on redb.
//!
//! ```text
//! cargo run --release -p outlast-bench --features stores --example redb_time_series [readings.redb]
//! ```

use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

const SENSORS: u32 = 50;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A sensor, and a time in seconds. Tuples are ordered part by part, so the readings of one sensor
/// are next to each other, in the order of time.
type Place = (u32, u64);

const READINGS: TableDefinition<'_, Place, f64> = TableDefinition::new("readings");
/// The mean of each hour's readings, and their number.
const HOURS: TableDefinition<'_, Place, (f64, u32)> = TableDefinition::new("hours");

type Fallible<T> = Result<T, redb::Error>;

struct Series {
    database: Database,
}

impl Series {
    fn open(path: &Path) -> Fallible<Series> {
        let database = Database::create(path)?;
        // A reader fails on a table that does not exist yet.
        let transaction = database.begin_write()?;
        transaction.open_table(READINGS)?;
        transaction.open_table(HOURS)?;
        transaction.commit()?;
        Ok(Series { database })
    }

    /// Stores what all sensors measured at a moment.
    fn record(&self, time: u64, values: &[f64]) -> Fallible<()> {
        let transaction = self.database.begin_write()?;
        {
            let mut readings = transaction.open_table(READINGS)?;
            for (sensor, value) in (0..).zip(values) {
                readings.insert((sensor, time), value)?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Returns the mean of a sensor's readings within a time, and their number.
    fn mean(&self, sensor: u32, from: u64, to: u64) -> Fallible<(f64, u32)> {
        let readings = self.database.begin_read()?.open_table(READINGS)?;
        mean(&readings, sensor, from, to)
    }

    /// Returns a sensor's last reading.
    fn last(&self, sensor: u32) -> Fallible<Option<(u64, f64)>> {
        let readings = self.database.begin_read()?.open_table(READINGS)?;
        let last = readings.range((sensor, 0)..=(sensor, u64::MAX))?.next_back().transpose()?;
        Ok(last.map(|(place, value)| (place.value().1, value.value())))
    }

    /// Replaces a sensor's readings of an hour by their mean.
    fn condense(&self, sensor: u32, hour: u64) -> Fallible<()> {
        let transaction = self.database.begin_write()?;
        {
            let mut readings = transaction.open_table(READINGS)?;
            let mean = mean(&readings, sensor, hour, hour + HOUR)?;
            if mean.1 == 0 {
                return Ok(());
            }
            readings.retain_in((sensor, hour)..(sensor, hour + HOUR), |_, _| false)?;
            transaction.open_table(HOURS)?.insert((sensor, hour), mean)?;
        }
        Ok(transaction.commit()?)
    }
}

fn mean(
    readings: &impl ReadableTable<Place, f64>,
    sensor: u32,
    from: u64,
    to: u64,
) -> Fallible<(f64, u32)> {
    let (mut sum, mut count) = (0.0, 0);
    for reading in readings.range((sensor, from)..(sensor, to))? {
        sum += reading?.1.value();
        count += 1;
    }
    Ok((sum / f64::from(count.max(1)), count))
}

/// Returns what a sensor measures. The values are computed, so that the program can check what it
/// reads.
fn measure(sensor: u32, time: u64) -> f64 {
    f64::from(sensor) + (time % 1000) as f64 / 1000.0
}

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| temporary.path().join("readings.redb"));
    let series = Series::open(&path)?;
    // If the database has readings from an earlier run, continue with the next day.
    let begin = series.last(0)?.map_or(0, |(time, _)| (time / DAY + 1) * DAY);
    let end = begin + DAY;

    let start = Instant::now();
    // Each sensor measures once a minute, for a day.
    for time in (begin..end).step_by(MINUTE as usize) {
        let values: Vec<f64> = (0..SENSORS).map(|sensor| measure(sensor, time)).collect();
        series.record(time, &values)?;
    }
    println!("stored {} readings in {:.0?}", u64::from(SENSORS) * DAY / MINUTE, start.elapsed());

    let start = Instant::now();
    let (mean, count) = series.mean(7, begin + HOUR, begin + 2 * HOUR)?;
    println!("sensor 7: mean {mean:.3} of {count} readings, last {:?}", series.last(7)?);
    assert_eq!(series.last(7)?, Some((end - MINUTE, measure(7, end - MINUTE))));

    // Keep the last six hours in full.
    for sensor in 0..SENSORS {
        for hour in (begin..end - 6 * HOUR).step_by(HOUR as usize) {
            series.condense(sensor, hour)?;
        }
    }
    let transaction = series.database.begin_read()?;
    let (readings, hours) = (transaction.open_table(READINGS)?, transaction.open_table(HOURS)?);
    assert_eq!(hours.range((7, begin)..(7, end))?.count(), 18);
    let found = hours.get((7, begin + HOUR))?.map(|mean| mean.value());
    assert_eq!(found, Some((mean, count)));
    assert_eq!(series.mean(7, begin, end)?.1, 6 * 60, "the rest is as it was");
    println!("condensed 18 hours of each sensor in {:.0?}", start.elapsed());
    println!("{} readings and {} hours are left", readings.len()?, hours.len()?);
    Ok(())
}

//! A time series: readings of many sensors, ordered by sensor and then by time. Old readings are
//! replaced by their hourly means.
//!
//! ```text
//! cargo run --release --example time_series                  # in a temporary directory
//! cargo run --release --example time_series readings.pool    # keeps the pool; run it again
//! ```

use outlast::{OrderedMap, Pool, PoolOptions};
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

struct Series {
    pool: Pool,
    readings: OrderedMap<Place, f64>,
    /// The mean of each hour's readings, and their number.
    hours: OrderedMap<Place, (f64, u32)>,
}

impl Series {
    fn open(path: &Path) -> outlast::Result<Series> {
        // SAFETY: no other program writes this file while the pool is open.
        let pool = unsafe { PoolOptions::new().open_or_create(path)? };
        let (readings, hours) = (pool.ordered_map("readings")?, pool.ordered_map("hours")?);
        Ok(Series { pool, readings, hours })
    }

    /// Stores what all sensors measured at a moment. The readings are independent, so no batch is
    /// needed, and `put_many` is faster.
    fn record(&self, time: u64, values: &[f64]) -> outlast::Result<()> {
        let keys: Vec<Place> = (0..).map(|sensor| (sensor, time)).take(values.len()).collect();
        let records: Vec<_> = keys.iter().zip(values).collect();
        self.readings.put_many(&records).map(drop)
    }

    /// Returns the mean of a sensor's readings from `from` until just before `to`, and their
    /// number.
    fn mean(&self, sensor: u32, from: u64, to: u64) -> outlast::Result<(f64, u32)> {
        let (mut sum, mut count) = (0.0, 0);
        for reading in self.readings.range((sensor, from)..(sensor, to)) {
            let (_, value) = reading?;
            sum += value;
            count += 1;
        }
        Ok((sum / f64::from(count.max(1)), count))
    }

    /// Returns a sensor's last reading. To find it, looks for the greatest key up to the last
    /// possible key of that sensor. If the sensor has no readings, that key belongs to another
    /// sensor.
    fn last(&self, sensor: u32) -> outlast::Result<Option<(u64, f64)>> {
        let found = self.readings.floor(&(sensor, u64::MAX))?;
        Ok(found.filter(|((of, _), _)| *of == sensor).map(|((_, time), value)| (time, value)))
    }

    /// Replaces a sensor's readings of an hour by their mean.
    fn condense(&self, sensor: u32, hour: u64) -> outlast::Result<()> {
        let mean = self.mean(sensor, hour, hour + HOUR)?;
        if mean.1 == 0 {
            return Ok(());
        }
        // All or nothing: a crash must neither lose the hour nor leave it in both maps, where it
        // would count twice.
        let mut batch = self.pool.batch();
        batch.put(&self.hours, &(sensor, hour), &mean)?;
        for reading in self.readings.range((sensor, hour)..(sensor, hour + HOUR)) {
            batch.remove(&self.readings, &reading?.0)?;
        }
        batch.commit().map(drop)
    }
}

/// Returns what a sensor measures. The values are computed, so that the program can check what it
/// reads.
fn measure(sensor: u32, time: u64) -> f64 {
    f64::from(sensor) + (time % 1000) as f64 / 1000.0
}

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| temporary.path().join("readings.pool"));
    let series = Series::open(&path)?;
    // If the pool has readings from an earlier run, continue with the next day.
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
    let hours = series.hours.range((7, begin)..(7, end)).collect::<outlast::Result<Vec<_>>>()?;
    assert_eq!(hours.len(), 18);
    assert_eq!(hours[1], ((7, begin + HOUR), (mean, count)));
    assert_eq!(series.mean(7, begin, end)?.1, 6 * 60, "the rest is as it was");
    println!("condensed 18 hours of each sensor in {:.0?}", start.elapsed());
    println!("{} readings and {} hours are left", series.readings.len()?, series.hours.len()?);
    Ok(series.pool.close()?)
}

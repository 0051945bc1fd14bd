//! Operations that are repeated if they are refused space, and changes of all kinds.

use super::{Do, Session};
use crate::random::Random;
use crate::state::{Checked, Fault, ensure};

impl Session {
    /// Runs an operation. One that the recorder has refused space may fail as in a full pool. It has
    /// changed nothing then, and must succeed when it is repeated.
    pub(super) fn attempt<T>(&mut self, run: impl Fn(&mut Self) -> Checked<T>) -> Checked<T> {
        let result = run(self);
        match result {
            Err(fault) if self.seam.relent() => {
                let is_full =
                    ["pool full: ", "disk full: "].iter().any(|text| fault.0.contains(text));
                ensure(is_full, || {
                    format!("refused space, and failed with another error: {fault}")
                })?;
                run(self).map_err(|again| {
                    Fault(format!("repeated after it was refused space ({fault}): {again}"))
                })
            }
            result => {
                self.seam.relent();
                result
            }
        }
    }

    /// Makes all kinds of changes and lookups in a map, between steps of background work: updates,
    /// swaps, removals with and without a condition, and inserts until the map has grown.
    pub fn work(&mut self, name: &str, fresh: u64, random: &mut Random) -> Checked {
        let present: Vec<u64> = self.state.maps[name].records.keys().copied().collect();
        for &key in &present {
            let value = fresh + 1_000 + random.below(1 << 16);
            match random.below(6) {
                0 => self.change(name, key, Do::Update(value))?,
                1 => {
                    let now = self.value_of(name, key).unwrap_or_default();
                    self.change(name, key, Do::CompareRemove(now + 1))?;
                    self.change(name, key, Do::CompareRemove(now))?;
                }
                2 => self.change(name, key, Do::Insert(value))?,
                3 => {
                    let now = self.value_of(name, key).unwrap_or_default();
                    self.change(name, key, Do::Swap(now, value))?;
                    self.change(name, key, Do::Swap(now, value + 1))?;
                }
                _ => {}
            }
            if random.below(4) == 0 && self.has_work() {
                self.background()?;
            }
        }
        let before = self.grown(name)?;
        for i in 0..400 {
            let key = fresh + i;
            self.change(
                name,
                key,
                if i % 2 == 0 { Do::Insert(key * 3) } else { Do::Put(key * 5) },
            )?;
            if i % 8 == 7 {
                self.get(name, key - 3)?;
                self.change(name, key - 2, Do::Remove)?;
                if self.grown(name)? > before {
                    break;
                }
            }
        }
        Ok(())
    }
}

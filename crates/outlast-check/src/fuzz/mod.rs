//! The fuzzer: damages the structure of pools, and checks how the library handles them.
//!
//! For each mutant of a pool ([`mutate`]), with one mutation or a few:
//!
//! 1. No call panics, ends by a signal, or takes longer than a limit ([`watch`]).
//! 2. Verification of the pool opened for writing, verification of the pool opened read-only, and
//!    the offline walk agree whether it is sound.
//! 3. A mutant that they call sound holds the records of the pool, except those that the damage may
//!    change unnoticed ([`damage`]). It can be scanned, changed, grown tenfold, closed and
//!    reopened, and is sound after that, with everything that was put into it ([`trial`]).
//! 4. One in three of the mutants that they call damaged is used nevertheless ([`operate`]), by one
//!    thread or by two together.
//!
//! A seed and a number determine a mutant.

pub mod damage;
pub mod images;
pub mod journal;
pub mod mutate;
pub mod operate;
pub mod pool;
pub mod repair;
pub mod trial;
pub mod watch;

use crate::random::Random;
use images::Image;
use mutate::{Mutant, Mutator};
use outlast::Scheme;
use outlast::internals::pmem::Alive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The result of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of mutants.
    pub mutants: u64,
    /// Mutants that all verifications call sound.
    pub sound: u64,
    /// What went wrong.
    pub failures: Vec<String>,
}

/// The pools of a scheme, and mutants of them.
pub struct Fuzzer {
    scheme: Scheme,
    images: Vec<Image>,
    alive: Arc<Alive>,
    seed: u64,
}

impl Fuzzer {
    /// Makes a fuzzer for a scheme. `seed` determines the mutants.
    pub fn new(scheme: Scheme, seed: u64) -> Fuzzer {
        let alive = Arc::new(Alive::new().expect("a page of memory"));
        Fuzzer { scheme, images: images::images(scheme), alive, seed }
    }

    /// Makes the mutant with this number. Returns its image, the mutant, and a generator for the
    /// choices that follow.
    fn mutant(&self, number: u64) -> (&Image, Mutant, Random) {
        let mut random = Random::new(self.seed ^ number.wrapping_mul(0xd605_1b9d_4f3b_2c01));
        let image = &self.images[random.below(self.images.len() as u64) as usize];
        let other = &self.images[random.below(self.images.len() as u64) as usize];
        let mutant = Mutator::new(image, other, random.clone()).mutant();
        (image, mutant, Random::new(random.next()))
    }

    /// Tries one mutant. Returns whether it was called sound.
    ///
    /// # Errors
    /// What the library did wrong, and how to try it again.
    pub fn try_one(&self, number: u64) -> Result<bool, String> {
        let Fuzzer { scheme, seed, .. } = self;
        let case = format!("fuzz --scheme {scheme} --seed {seed} --mutant {number}");
        let (image, mutant, mut random) = self.mutant(number);
        let told = |what: String| {
            let done = mutant.done.join("; ");
            format!("outlast-check {case}\n  {}: {done}\n  {what}", image.name)
        };
        let tried =
            watch::watched(&case, || trial::trial(image, &mutant, &self.alive, &mut random));
        let sound = tried.and_then(|tried| tried).map_err(told)?;
        let used = match random.below(24) {
            _ if sound => Ok(()),
            0 => watch::watched(&case, || {
                operate::use_pool_together(&mutant.bytes, &image.maps, &self.alive, &random);
            }),
            1..8 => watch::watched(&case, || {
                operate::use_pool(&mutant.bytes, &image.maps, &self.alive, false, &mut random);
            }),
            _ => Ok(()),
        };
        used.map_err(told)?;
        Ok(sound)
    }

    /// Describes the mutations of the mutant with this number.
    pub fn describe(&self, number: u64) -> String {
        let (image, mutant, _) = self.mutant(number);
        format!("{}: {}", image.name, mutant.done.join("; "))
    }

    /// Tries mutants from number 0 on, on `threads` threads. Calls `tell` after each.
    pub fn run(&self, mutants: u64, threads: usize, tell: impl Fn(u64, u64) + Sync) -> Summary {
        let (done, sound, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let failures = watch::in_parallel(mutants, threads, |number| {
            if failed.load(Ordering::Relaxed) >= 50 {
                return Ok(());
            }
            let tried = self.try_one(number);
            match &tried {
                Ok(is_sound) => _ = sound.fetch_add(u64::from(*is_sound), Ordering::Relaxed),
                Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
            }
            let so_far = done.fetch_add(1, Ordering::Relaxed) + 1;
            tell(so_far, failed.load(Ordering::Relaxed));
            tried.map(|_| ())
        });
        Summary { mutants: done.into_inner(), sound: sound.into_inner(), failures }
    }
}

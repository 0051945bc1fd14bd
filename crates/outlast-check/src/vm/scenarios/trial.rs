//! The cuts of one machine's power, and the account of its pool.

use super::{Stage, words};
use crate::random::Random;
use crate::state::{Checked, Fault, ensure};
use crate::torture::life::Subject;
use crate::vm::ledger::{Keeps, Ledger, Totals};
use crate::vm::machine::{Guest, Hardware, Next};
use crate::vm::nbd::Server;
use crate::vm::wire::Said;
use crate::vm::{Cuts, Ended};
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One cut in this many comes while the pool is being opened and read.
const CUTS_WHILE_OPENING: u64 = 4;
/// Such a cut comes within this time, in milliseconds, or within the longest opening so far if that
/// took longer.
const OPENING_MS: u64 = 400;
/// If the machine's disk has a server, half of the cuts come at one of the next writes to the disk:
/// at most the first number of writes later while the pool is being opened, and at most the second
/// while threads work. At a random time, few writes would be on their way to the disk.
const WRITES: [u64; 2] = [40, 120];
/// How long to wait for that write.
const WRITES_WITHIN: Duration = Duration::from_secs(10);
/// The interval at which to look whether the disk is off.
const LOOK: Duration = Duration::from_millis(5);
/// The most cuts of a trial in which something must get lost.
const MUTANT_CUTS: u64 = 12;

/// A pool whose power is cut.
pub(super) struct Pool {
    /// Its place in the guest.
    pub(super) place: &'static str,
    pub(super) medium: &'static str,
    pub(super) keeps: Keeps,
    pub(super) hardware: Hardware,
    /// The server of the machine's disk, if it has one.
    pub(super) server: Option<Server>,
    /// Additional words for the step of each guest.
    pub(super) also: &'static str,
}

/// The cuts of one machine's power, and the account of its pool.
pub(super) struct Trial<'t> {
    stage: &'t Stage<'t>,
    cuts: Cuts,
    pub(super) pool: Pool,
    pub(super) ledger: Ledger,
    pub(super) random: Random,
    pub(super) opened_micros_max: u64,
}

/// The thread that serves a machine's disk.
type Serving = Option<JoinHandle<io::Result<()>>>;

impl<'t> Trial<'t> {
    pub(super) fn new(stage: &'t Stage<'t>, cuts: Cuts, pool: Pool) -> Trial<'t> {
        let Cuts { record, keys, threads, .. } = cuts;
        let subject = Subject { scheme: stage.args.scheme, record, keys, threads };
        let ledger = Ledger::new(subject, stage.args.seed, pool.keeps);
        let random = Random::new(stage.args.seed);
        Trial { stage, cuts, pool, ledger, random, opened_micros_max: 0 }
    }

    /// Returns the words that tell a guest what to work on, in its n-th boot.
    pub(super) fn work(&self, life: u64) -> String {
        let Cuts { keys, threads, record, .. } = self.cuts;
        let (scheme, seed) = (self.stage.args.scheme, self.stage.args.seed);
        let Pool { place, also, .. } = self.pool;
        let mut text = format!(
            "--place {place} --seed {seed} --life {life} --scheme {scheme} --keys {keys} \
             --threads {threads}{also}"
        );
        if let Some(record) = record {
            text.push_str(&format!(" --record {record}"));
        }
        if life == 1 {
            text.push_str(" --format");
        }
        text
    }

    fn hear(&mut self, said: &Said) -> Checked {
        match said {
            Said::Medium { medium, .. } => {
                let expected = self.pool.medium;
                ensure(medium == expected, || format!("the pool is on {medium}, not {expected}"))?;
            }
            Said::Opened { micros } => {
                self.opened_micros_max = self.opened_micros_max.max(*micros);
            }
            Said::Note(text) => self.stage.tell(&format!("  {text}")),
            _ => {}
        }
        self.ledger.hear(said)
    }

    /// Starts to serve the machine's disk, if it has a server.
    fn serve(&self) -> Checked<Serving> {
        self.pool.server.as_ref().map(Server::serve).transpose()
    }

    /// Waits for the server's thread once the machine is off, and cuts the disk's power: it may
    /// lose every write that was not flushed.
    fn end(&self, serving: Serving, life: u64) -> Checked {
        let (Some(server), Some(serving)) = (&self.pool.server, serving) else { return Ok(()) };
        let served = serving.join().map_err(|_| Fault("the disk's server panicked".into()))?;
        served.map_err(|e| Fault(format!("the disk's server: {e}")))?;
        server.volume().cut(&mut Random::new(self.stage.args.seed ^ life << 32));
        Ok(())
    }

    fn is_off(&self) -> bool {
        self.pool.server.as_ref().is_some_and(|server| server.volume().is_off())
    }

    /// Boots, and cuts the power at a random moment.
    fn cut(&mut self, life: u64) -> Checked {
        let mut step = format!("work {}", self.work(life));
        if self.random.below(3) == 0 {
            step.push_str(" --verify");
        }
        let while_opening = self.random.below(CUTS_WHILE_OPENING) == 0;
        let patience = Duration::from_millis(if while_opening {
            self.random.below(OPENING_MS.max(self.opened_micros_max / 1000))
        } else {
            self.random.below(3_000)
        });
        let with_server = self.pool.server.is_some();
        let at_write = (with_server && self.random.below(2) == 0)
            .then(|| 1 + self.random.below(WRITES[usize::from(!while_opening)]));
        let patience = if at_write.is_some() { WRITES_WITHIN } else { patience };
        let serving = self.serve()?;
        let mut guest = self.stage.factory.boot(&self.pool.hardware, &words(&step))?;
        let mut at: Option<Instant> = None;
        loop {
            let said = match at {
                None => guest.hear()?.map_or(Next::Off, Next::Said),
                Some(deadline) => guest.next_until(deadline.min(Instant::now() + LOOK))?,
            };
            let said = match said {
                Next::Said(said) => said,
                Next::Late if self.is_off() => break,
                Next::Late if at.is_some_and(|deadline| Instant::now() < deadline) => continue,
                Next::Late => break,
                Next::Off => return Err(guest.fault("the guest has ended by itself")),
            };
            self.hear(&said)?;
            if self.is_off() {
                break;
            }
            let begins = match said {
                Said::Life(_) => while_opening,
                Said::Held { .. } => true,
                _ => false,
            };
            if begins && at.is_none() {
                at = Some(Instant::now() + patience);
                if let (Some(server), Some(writes)) = (&self.pool.server, at_write) {
                    server.volume().off_after(writes);
                }
            }
        }
        self.off(guest)?;
        self.end(serving, life)
    }

    fn off(&mut self, guest: Guest) -> Checked {
        for said in guest.cut()? {
            self.hear(&said)?;
        }
        self.ledger.cut();
        Ok(())
    }

    /// Cuts the power as often as was asked for, or until something is wrong. Then checks what the
    /// last cut has left. Returns the number of cuts.
    pub(super) fn cut_all(&mut self) -> Result<u64, Ended> {
        let cuts = self.cuts.cuts;
        for life in 1..=cuts {
            self.cut(life)?;
            let totals = self.ledger.totals();
            self.stage.tell(&format!(
                "cut {life} of {cuts}: {} operations acknowledged so far, {} lost, {} torn",
                totals.acknowledged, totals.lost, totals.torn
            ));
            if totals.lost + totals.torn > 0 {
                return Ok(life);
            }
        }
        let step = format!("work --rest {}", self.work(cuts + 1));
        self.run(&step)?;
        Ok(cuts)
    }

    /// Cuts the power until something is found, which must take no more than [`MUTANT_CUTS`] cuts.
    /// A finding counts only once `may` accepts the totals.
    pub(super) fn notices(
        mut self,
        name: &str,
        may: impl Fn(&Totals) -> bool,
    ) -> Result<(), Ended> {
        for life in 1..=MUTANT_CUTS {
            // A torn pool can also make the guest find damage.
            let fault = self.cut(life).err();
            let totals = self.ledger.totals();
            if may(&totals) && (totals.lost + totals.torn > 0 || fault.is_some()) {
                let first = fault.map_or_else(|| self.ledger.findings()[0].clone(), |f| f.0);
                self.stage.result(
                    &format!("{name}: noticed after {life} cuts: {first}"),
                    &format!("{{\"scenario\":\"{name}\",\"cuts\":{life},\"noticed\":true}}"),
                );
                return Ok(());
            }
            fault.map_or(Ok(()), Err)?;
        }
        Err(Fault(format!("{name}: power cuts made losses, and nothing was noticed")).into())
    }

    /// Boots and runs a step to its end.
    pub(super) fn run(&mut self, step: &str) -> Result<(), Ended> {
        let (factory, hardware) = (self.stage.factory, self.pool.hardware.clone());
        let serving = self.serve()?;
        let code = factory.run(&hardware, &words(step), |said| self.hear(said))?;
        self.end(serving, 0)?;
        if code == 0 { Ok(()) } else { Err(Ended::Exit(code)) }
    }

    /// Fails if anything was lost or torn.
    pub(super) fn verdict(&self) -> Checked {
        let totals = self.ledger.totals();
        ensure(totals.lost + totals.torn == 0, || {
            let seed = self.stage.args.seed;
            format!(
                "{} lost, {} torn, with seed {seed}:\n{}",
                totals.lost,
                totals.torn,
                self.ledger.findings().join("\n")
            )
        })
    }
}

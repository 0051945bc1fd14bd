//! Power cuts, and an orderly shutdown after a process was killed.

use super::{Stage, words};
use crate::random::Random;
use crate::state::{Checked, Fault, ensure};
use crate::torture::life::Subject;
use crate::vm::ledger::Ledger;
use crate::vm::machine::{Guest, Hardware, Next};
use crate::vm::wire::Said;
use crate::vm::{Ended, On, PowerCut};
use std::time::{Duration, Instant};

/// One in this many cuts comes while the pool is being opened and read.
const CUTS_WHILE_OPENING: u64 = 4;

impl On {
    fn place(self) -> &'static str {
        match self {
            On::Dax => "nvdimm",
            On::Ext4 => "disk",
        }
    }

    fn medium(self) -> &'static str {
        match self {
            On::Dax => "dax",
            On::Ext4 => "page-cache",
        }
    }
}

/// The cuts of one machine's power, and the account of its pool.
struct Trial<'t> {
    stage: &'t Stage<'t>,
    cuts: &'t PowerCut,
    hardware: Hardware,
    ledger: Ledger,
    random: Random,
    /// Additional words for each guest.
    also: &'static str,
    opened_micros_max: u64,
}

impl<'t> Trial<'t> {
    fn new(stage: &'t Stage<'t>, cuts: &'t PowerCut) -> Result<Trial<'t>, Ended> {
        let image = stage.image(cuts.on.place())?;
        let hardware = match cuts.on {
            On::Dax => Hardware::nvdimm(&image),
            On::Ext4 => Hardware { disk: Some(image), ..Hardware::default() },
        };
        let PowerCut { record, keys, threads, .. } = *cuts;
        let subject = Subject { scheme: stage.args.scheme, record, keys, threads };
        let ledger = Ledger::new(subject, stage.args.seed, cuts.on == On::Dax);
        let random = Random::new(stage.args.seed);
        Ok(Trial { stage, cuts, hardware, ledger, random, also: "", opened_micros_max: 0 })
    }

    /// Returns the words that tell a guest what to work on, in its n-th boot.
    fn work(&self, life: u64) -> String {
        let PowerCut { on, keys, threads, record, .. } = self.cuts;
        let (scheme, seed) = (self.stage.args.scheme, self.stage.args.seed);
        let mut text = format!(
            "--place {} --seed {seed} --life {life} --scheme {scheme} --keys {keys} --threads \
             {threads}{}",
            on.place(),
            self.also
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
                let expected = self.cuts.on.medium();
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

    /// Boots, and cuts the power at a random moment.
    fn cut(&mut self, life: u64) -> Checked {
        let mut step = format!("work {}", self.work(life));
        if self.random.below(3) == 0 {
            step.push_str(" --verify");
        }
        let while_opening = self.random.below(CUTS_WHILE_OPENING) == 0;
        let patience = Duration::from_millis(if while_opening {
            self.random.below(400)
        } else {
            self.random.below(3_000)
        });
        let mut guest = self.stage.factory.boot(&self.hardware, &words(&step))?;
        let mut at = None;
        loop {
            let said = match at {
                None => guest.hear()?.map_or(Next::Off, Next::Said),
                Some(deadline) => guest.next_until(deadline)?,
            };
            let said = match said {
                Next::Said(said) => said,
                Next::Late => break,
                Next::Off => return Err(guest.fault("the guest has ended by itself")),
            };
            self.hear(&said)?;
            let begins = match said {
                Said::Life(_) => while_opening,
                Said::Held { .. } => true,
                _ => false,
            };
            if begins && at.is_none() {
                at = Some(Instant::now() + patience);
            }
        }
        self.off(guest)
    }

    fn off(&mut self, guest: Guest) -> Checked {
        for said in guest.cut()? {
            self.hear(&said)?;
        }
        self.ledger.cut();
        Ok(())
    }

    /// Boots and runs a step to its end.
    fn run(&mut self, step: &str) -> Result<(), Ended> {
        let (factory, hardware) = (self.stage.factory, self.hardware.clone());
        let code = factory.run(&hardware, &words(step), |said| self.hear(said))?;
        if code == 0 { Ok(()) } else { Err(Ended::Exit(code)) }
    }

    /// Fails if anything was lost or torn.
    fn verdict(&self) -> Checked {
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

pub(super) fn power_cut(stage: &Stage<'_>, cuts: &PowerCut) -> Result<(), Ended> {
    let start = Instant::now();
    let mut trial = Trial::new(stage, cuts)?;
    let mut done = 0;
    for life in 1..=cuts.cuts {
        trial.cut(life)?;
        done += 1;
        let totals = trial.ledger.totals();
        stage.tell(&format!(
            "cut {life} of {}: {} operations acknowledged so far, {} lost, {} torn",
            cuts.cuts, totals.acknowledged, totals.lost, totals.torn
        ));
        if totals.lost + totals.torn > 0 {
            break;
        }
    }
    if done == cuts.cuts {
        // Check what the last cut has left.
        let step = format!("work --rest {}", trial.work(cuts.cuts + 1));
        trial.run(&step)?;
    }
    let totals = trial.ledger.totals();
    let medium = cuts.on.medium();
    stage.tell(&format!(
        "{} checks of all keys, {} cuts while opening, {} opens refused as possibly torn, {} \
         operations in flight found done, longest open {:.1} ms, {} s",
        totals.checks,
        totals.cut_while_opening,
        totals.refused,
        totals.in_flight,
        trial.opened_micros_max as f64 / 1e3,
        start.elapsed().as_secs()
    ));
    stage.result(
        &format!(
            "{done} power cuts on {medium}: {} operations acknowledged, {} lost, {} torn",
            totals.acknowledged, totals.lost, totals.torn
        ),
        &format!(
            "{{\"cuts\":{done},\"acknowledged\":{},\"lost\":{},\"torn\":{},\"medium\":\
             \"{medium}\"}}",
            totals.acknowledged, totals.lost, totals.torn
        ),
    );
    trial.verdict()?;
    // A guest that gets nothing done shows nothing.
    ensure(cuts.cuts == 0 || totals.acknowledged > 0, || "nothing was acknowledged".into())?;
    Ok(())
}

/// The most cuts to try. A few are enough to lose something for certain.
const CANARY_CUTS: u64 = 12;

pub(super) fn canary(stage: &Stage<'_>) -> Result<(), Ended> {
    let cuts = PowerCut { on: On::Ext4, ..PowerCut::default() };
    let mut trial = Trial::new(stage, &cuts)?;
    trial.also = " --accept";
    for life in 1..=CANARY_CUTS {
        // A torn pool can also make the guest find damage.
        let fault = trial.cut(life).err();
        let totals = trial.ledger.totals();
        if totals.refused > 0 && (totals.lost + totals.torn > 0 || fault.is_some()) {
            let first = fault.map_or_else(|| trial.ledger.findings()[0].clone(), |f| f.0);
            stage.result(
                &format!("canary: noticed after {life} cuts: {first}"),
                &format!("{{\"scenario\":\"canary\",\"cuts\":{life},\"noticed\":true}}"),
            );
            return Ok(());
        }
        fault.map_or(Ok(()), Err)?;
    }
    let what = "pools were torn by power cuts and taken for whole, and nothing was noticed";
    Err(Fault(what.into()).into())
}

pub(super) fn reboot(stage: &Stage<'_>) -> Result<(), Ended> {
    for on in [On::Dax, On::Ext4] {
        let cuts = PowerCut { on, ..PowerCut::default() };
        let mut trial = Trial::new(stage, &cuts)?;
        let after = 2_000 + trial.random.below(2_000);
        // This is the first boot, so it also makes the file system.
        let step = format!("kill-then-shut-down {} --after-ms {after}", trial.work(1));
        trial.run(&step)?;
        trial.ledger.cut();
        let acknowledged = trial.ledger.totals().acknowledged;
        ensure(acknowledged > 0, || "the process was killed before it had done anything".into())?;
        // The kernel has written everything back. On a page-cache medium, the pool cannot know
        // that, and says so. It must be whole all the same.
        let accept = if on == On::Ext4 { " --accept" } else { "" };
        let step = format!("work --rest{accept} {}", trial.work(2));
        trial.run(&step)?;
        let totals = trial.ledger.totals();
        let refused = totals.refused;
        ensure(refused == u64::from(on == On::Ext4), || format!("refused {refused} times"))?;
        trial.verdict()?;
        let medium = on.medium();
        stage.result(
            &format!(
                "SIGKILL and an orderly shutdown on {medium}: {acknowledged} operations \
                 acknowledged, pool refused {refused} times, nothing lost"
            ),
            &format!(
                "{{\"scenario\":\"reboot\",\"acknowledged\":{acknowledged},\"lost\":{},\
                 \"torn\":{},\"refused\":{refused},\"medium\":\"{medium}\"}}",
                totals.lost, totals.torn
            ),
        );
    }
    Ok(())
}

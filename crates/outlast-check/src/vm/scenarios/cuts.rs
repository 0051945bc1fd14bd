//! Power cuts of pools without a journal, and an orderly shutdown after a process was killed.

use super::Stage;
use super::trial::{Pool, Trial};
use crate::state::ensure;
use crate::vm::ledger::{Keeps, Totals};
use crate::vm::machine::Hardware;
use crate::vm::{Cuts, Ended, On, PowerCut};
use std::time::Instant;

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

    /// Begins a trial on this device.
    fn trial<'t>(
        self,
        stage: &'t Stage<'t>,
        cuts: Cuts,
        also: &'static str,
    ) -> Result<Trial<'t>, Ended> {
        let image = stage.image(self.place())?;
        let (hardware, keeps) = match self {
            On::Dax => (Hardware::nvdimm(&image), Keeps::Returned),
            On::Ext4 => (Hardware { disk: Some(image), ..Hardware::default() }, Keeps::Closed),
        };
        let (place, medium) = (self.place(), self.medium());
        Ok(Trial::new(stage, cuts, Pool { place, medium, keeps, hardware, server: None, also }))
    }
}

pub(super) fn power_cut(stage: &Stage<'_>, cuts: &PowerCut) -> Result<(), Ended> {
    let start = Instant::now();
    let mut trial = cuts.on.trial(stage, cuts.cuts, "")?;
    let done = trial.cut_all()?;
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
    // A guest that gets no work done proves nothing.
    ensure(done == 0 || totals.acknowledged > 0, || "nothing was acknowledged".into())?;
    Ok(())
}

pub(super) fn mutant(stage: &Stage<'_>) -> Result<(), Ended> {
    let trial = On::Ext4.trial(stage, Cuts::default(), " --accept")?;
    trial.notices("mutant", |totals: &Totals| totals.refused > 0)
}

pub(super) fn reboot(stage: &Stage<'_>) -> Result<(), Ended> {
    for on in [On::Dax, On::Ext4] {
        let mut trial = on.trial(stage, Cuts::default(), "")?;
        let after = 2_000 + trial.random.below(2_000);
        // This is the first boot, so it also makes the file system.
        let step = format!("kill-then-shut-down {} --after-ms {after}", trial.work(1));
        trial.run(&step)?;
        trial.ledger.cut();
        let acknowledged = trial.ledger.totals().acknowledged;
        ensure(acknowledged > 0, || "the process was killed before it had done anything".into())?;
        // The kernel has written everything back. On a page-cache medium the library cannot know
        // that, so it refuses the pool. The pool must be intact nevertheless.
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

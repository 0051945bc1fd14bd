//! Detection, copies, full disks, and the demonstration.

use super::{Stage, words};
use crate::state::{Checked, Fault, ensure};
use crate::vm::Ended;
use crate::vm::guest::FILL_BATCH;
use crate::vm::machine::{Hardware, Nvdimm};
use crate::vm::wire::Said;

/// What must be detected in a place.
struct Expected {
    place: &'static str,
    medium: &'static str,
    flush: &'static str,
}

const NVDIMM: Expected = Expected { place: "nvdimm", medium: "dax", flush: "clwb" };

/// Expects a place where MAP_SYNC is refused.
const fn cached(place: &'static str) -> Expected {
    Expected { place, medium: "page-cache", flush: "no flush" }
}

impl Stage<'_> {
    /// Runs a step to its end, and prints what the guest reports.
    fn step(
        &self,
        hardware: &Hardware,
        step: &str,
        mut hear: impl FnMut(&Said) -> Checked,
    ) -> Result<(), Ended> {
        let code = self.factory.run(hardware, &words(step), |said| {
            match said {
                Said::Note(text) => self.tell(&format!("  {text}")),
                Said::Refused { place, reason } => {
                    self.tell(&format!("  {place}: refused as possibly torn, {reason}"));
                }
                Said::Fault(text) => return Err(Fault(format!("in the guest: {text}"))),
                _ => {}
            }
            hear(said)
        })?;
        if code == 0 { Ok(()) } else { Err(Ended::Exit(code)) }
    }

    /// Runs a step that must detect exactly this.
    fn detects(
        &self,
        machine: &str,
        hardware: &Hardware,
        step: &str,
        expected: &[Expected],
    ) -> Result<(), Ended> {
        let mut rest = expected.iter();
        self.step(hardware, step, |said| {
            let Said::Medium { place, medium, flush, survives_power_loss } = said else {
                return Ok(());
            };
            let flush = flush.replace('_', " ");
            let survives = *survives_power_loss;
            self.result(
                &format!(
                    "{machine}, {place}: {medium}, {flush}; power loss is {}",
                    if survives { "survived" } else { "not survived" }
                ),
                &format!(
                    "{{\"machine\":\"{machine}\",\"place\":\"{place}\",\"medium\":\"{medium}\",\
                     \"flush\":\"{flush}\",\"survives_power_loss\":{survives}}}"
                ),
            );
            let wanted = rest.next().ok_or_else(|| Fault(format!("{place} was not asked for")))?;
            let right = *place == wanted.place
                && *medium == wanted.medium
                && flush == wanted.flush
                && survives == wanted.medium.starts_with("dax");
            ensure(right, || {
                let Expected { place, medium, flush } = wanted;
                format!("{machine}: expected {place}: {medium}, {flush}")
            })
        })?;
        ensure(rest.next().is_none(), || format!("{machine}: not everything was detected"))?;
        Ok(())
    }
}

pub(super) fn detect(stage: &Stage<'_>) -> Result<(), Ended> {
    let image = stage.image("nvdimm")?;
    let all = Hardware {
        virtio_pmem: Some(stage.image("virtio-pmem")?),
        disk: Some(stage.image("disk")?),
        ..Hardware::nvdimm(&image)
    };
    let everywhere = [NVDIMM, cached("virtio-pmem"), cached("disk"), cached("tmpfs")];
    let step = "detect --format --places nvdimm,virtio-pmem,disk,tmpfs";
    stage.detects("caches are lost", &all, step, &everywhere)?;
    // Use the pool of that boot, on the same device, which now refuses writes.
    let nvdimm = |persistence, unarmed| Some(Nvdimm { image: image.clone(), persistence, unarmed });
    let unarmed = Hardware { nvdimm: nvdimm("mem-ctrl", true), ..Hardware::default() };
    // A process that cannot write does not flush.
    let read_only = Expected { place: "unarmed-read-only", flush: "no flush", ..NVDIMM };
    stage.detects("unarmed", &unarmed, "unarmed", &[read_only])?;
    let step = "detect --format --places nvdimm";
    let persistent = Hardware { nvdimm: nvdimm("cpu", false), ..Hardware::default() };
    let fence = Expected { medium: "dax-eadr", flush: "fence only", ..NVDIMM };
    stage.detects("caches persist", &persistent, step, &[fence])?;
    let older = [(&["clwb"][..], "clflushopt"), (&["clwb", "clflushopt"], "clflush")];
    for (without, flush) in older {
        let hardware = Hardware { without, ..Hardware::nvdimm(&image) };
        let machine = format!("without {}", without.join(" and "));
        stage.detects(&machine, &hardware, step, &[Expected { flush, ..NVDIMM }])?;
    }
    Ok(())
}

pub(super) fn demo(stage: &Stage<'_>) -> Result<(), Ended> {
    let hardware = Hardware::nvdimm(&stage.image("nvdimm")?);
    let (scheme, seed) = (stage.args.scheme, stage.args.seed);
    let (mut first, mut last) = (String::new(), String::new());
    stage.step(&hardware, &format!("demo --scheme {scheme} --seed {seed}"), |said| {
        if let Said::Json(line) = said {
            println!("{line}");
            if first.is_empty() {
                first.clone_from(line);
            }
            last.clone_from(line);
        }
        Ok(())
    })?;
    // The exit code says whether anything was lost, and the last line must agree.
    for part in ["\"kills\":5", "\"lost\":0", "\"torn\":0"] {
        ensure(last.contains(part), || format!("the demonstration's summary lacks {part}"))?;
    }
    let on_dax = first.contains("\"medium\":\"dax\"");
    ensure(on_dax, || "the demonstration did not run on DAX".into())?;
    Ok(())
}

pub(super) fn live_copy(stage: &Stage<'_>) -> Result<(), Ended> {
    let hardware =
        Hardware { disk: Some(stage.image("disk")?), ..Hardware::nvdimm(&stage.image("nvdimm")?) };
    let scheme = stage.args.scheme;
    let mut refused = 0;
    for step in ["copy-live", "open-live-copies"] {
        stage.step(&hardware, &format!("{step} --scheme {scheme}"), |said| {
            refused += u64::from(matches!(said, Said::Refused { .. }));
            Ok(())
        })?;
    }
    stage.result(
        &format!("live copies: refused {refused} times, as they must be"),
        &format!("{{\"scenario\":\"live-copy\",\"refused\":{refused}}}"),
    );
    Ok(())
}

pub(super) fn copies(stage: &Stage<'_>) -> Result<(), Ended> {
    let hardware =
        Hardware { disk: Some(stage.image("disk")?), ..Hardware::nvdimm(&stage.image("nvdimm")?) };
    let dax = |place| Expected { place, ..NVDIMM };
    let expected =
        [dax("dax"), cached("disk"), dax("dax-again"), cached("nvdimm-no-dax"), dax("dax-at-last")];
    let step = format!("copy-closed --scheme {}", stage.args.scheme);
    stage.detects("a closed pool, copied", &hardware, &step, &expected)
}

pub(super) fn disk_full(stage: &Stage<'_>) -> Result<(), Ended> {
    let hardware = Hardware::nvdimm(&stage.image("nvdimm")?);
    let scheme = stage.args.scheme;
    let mut guest = stage.factory.boot(&hardware, &words(&format!("fill --scheme {scheme}")))?;
    let mut acknowledged = 0;
    loop {
        match guest.hear()? {
            Some(Said::Note(text)) => stage.tell(&format!("  {text}")),
            Some(Said::Done { operations, .. }) => acknowledged = operations,
            Some(Said::Cleaning) => break,
            Some(Said::Fault(text)) => return Err(Fault(format!("in the guest: {text}")).into()),
            Some(_) => {}
            None => return Err(guest.fault("the guest has ended by itself").into()),
        }
    }
    // The guest continues on the full disk.
    std::thread::sleep(std::time::Duration::from_millis(300 + stage.args.seed % 700));
    for said in guest.cut()? {
        if let Said::Fault(text) = said {
            return Err(Fault(format!("in the guest: {text}")).into());
        }
    }
    let step = format!("check-filled --scheme {scheme} --acknowledged {acknowledged}");
    stage.step(&hardware, &step, |_| Ok(()))?;
    stage.result(
        &format!("full disk, and a power cut: {acknowledged} records, all there"),
        &format!(
            "{{\"scenario\":\"disk-full\",\"acknowledged\":{acknowledged},\"lost\":0,\"torn\":0,\
             \"batch\":{FILL_BATCH},\"medium\":\"dax\"}}"
        ),
    );
    Ok(())
}

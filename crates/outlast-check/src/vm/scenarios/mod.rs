//! The scenarios that run in virtual machines, one after the other.

mod cuts;
mod files;

use super::machine::Factory;
use super::{Args, Ended, PowerCut, Scenario};
use std::path::PathBuf;

/// Runs one or several scenarios, up to the first finding.
///
/// # Errors
/// The finding.
pub fn run(factory: &Factory, args: &Args) -> Result<(), Ended> {
    let stage = Stage { factory, args };
    match &args.scenario {
        Scenario::Detect => files::detect(&stage),
        Scenario::Demo => files::demo(&stage),
        Scenario::PowerCut(cuts) => cuts::power_cut(&stage, cuts),
        Scenario::Canary => cuts::canary(&stage),
        Scenario::Reboot => cuts::reboot(&stage),
        Scenario::LiveCopy => files::live_copy(&stage),
        Scenario::DiskFull => files::disk_full(&stage),
        Scenario::Copies => files::copies(&stage),
        Scenario::Short => {
            files::detect(&stage)?;
            cuts::power_cut(&stage, &PowerCut { cuts: 3, ..PowerCut::default() })
        }
        Scenario::All(cuts) => {
            files::detect(&stage)?;
            files::demo(&stage)?;
            files::copies(&stage)?;
            files::live_copy(&stage)?;
            files::disk_full(&stage)?;
            cuts::reboot(&stage)?;
            cuts::canary(&stage)?;
            cuts::power_cut(&stage, &PowerCut { on: super::On::Ext4, ..cuts.clone() })?;
            cuts::power_cut(&stage, &PowerCut { on: super::On::Dax, ..cuts.clone() })
        }
    }
}

/// What all scenarios use.
struct Stage<'s> {
    factory: &'s Factory,
    args: &'s Args,
}

impl Stage<'_> {
    /// Creates an empty file for a device of a machine.
    fn image(&self, name: &str) -> Result<PathBuf, Ended> {
        let path = self.factory.dir.join(name);
        super::machine::make_image(&path)?;
        Ok(path)
    }

    /// Prints text for people, unless JSON is wanted.
    fn tell(&self, text: &str) {
        if !self.args.json {
            println!("{text}");
        }
    }

    /// Prints a result, for people or as JSON.
    fn result(&self, text: &str, json: &str) {
        println!("{}", if self.args.json { json } else { text });
    }
}

/// Splits a step into its words.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

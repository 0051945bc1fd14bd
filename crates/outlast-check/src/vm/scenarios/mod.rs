//! What is done with virtual machines, one after the other.

mod cuts;
mod files;

use super::machine::Factory;
use super::{Args, Ended, PowerCut, Scenario};
use std::path::PathBuf;

/// Runs one or several scenarios; the first finding ends it.
///
/// # Errors
/// What was found.
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
    /// A file of a machine's, empty.
    fn image(&self, name: &str) -> Result<PathBuf, Ended> {
        let path = self.factory.dir.join(name);
        super::machine::make_image(&path)?;
        Ok(path)
    }

    /// Says something to a person, and nothing where JSON is wanted.
    fn tell(&self, text: &str) {
        if !self.args.json {
            println!("{text}");
        }
    }

    /// A result: for a person, or as JSON.
    fn result(&self, text: &str, json: &str) {
        println!("{}", if self.args.json { json } else { text });
    }
}

/// The words of a step.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

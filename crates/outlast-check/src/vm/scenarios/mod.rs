//! The scenarios that run in virtual machines, one after the other.

mod cuts;
mod files;
mod journal;
mod trial;

use super::machine::Factory;
use super::{Args, Cuts, Ended, FileSystem, JournalCut, On, PowerCut, Scenario};
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
        Scenario::JournalCut(cuts) => journal::cut(&stage, cuts),
        Scenario::Mutant => {
            cuts::mutant(&stage)?;
            journal::mutant(&stage)
        }
        Scenario::Reboot => cuts::reboot(&stage),
        Scenario::LiveCopy => files::live_copy(&stage),
        Scenario::DiskFull => files::disk_full(&stage),
        Scenario::Copies => files::copies(&stage),
        Scenario::Short => {
            files::detect(&stage)?;
            let cuts = Cuts { cuts: 3, ..Cuts::default() };
            cuts::power_cut(&stage, &PowerCut { cuts, on: On::Dax })
        }
        Scenario::All(cuts) => {
            files::detect(&stage)?;
            files::demo(&stage)?;
            files::copies(&stage)?;
            files::live_copy(&stage)?;
            files::disk_full(&stage)?;
            cuts::reboot(&stage)?;
            cuts::mutant(&stage)?;
            journal::mutant(&stage)?;
            for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
                let without_sync = false;
                journal::cut(&stage, &JournalCut { cuts: *cuts, file_system, without_sync })?;
            }
            for on in [On::Ext4, On::Dax] {
                cuts::power_cut(&stage, &PowerCut { cuts: *cuts, on })?;
            }
            Ok(())
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

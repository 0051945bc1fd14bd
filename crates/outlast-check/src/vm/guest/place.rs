//! File systems of the guest.

use crate::state::{Checked, Fault, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A place for pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// ext4 on an NVDIMM, mounted with DAX.
    Nvdimm,
    /// The same file system, mounted without DAX.
    NvdimmNoDax,
    /// ext4 on a virtio-pmem device, mounted with DAX.
    VirtioPmem,
    /// ext4 on an ordinary disk.
    Disk,
    /// xfs on an ordinary disk.
    DiskXfs,
    /// tmpfs.
    Tmpfs,
}

impl Place {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Place::Nvdimm => "nvdimm",
            Place::NvdimmNoDax => "nvdimm-no-dax",
            Place::VirtioPmem => "virtio-pmem",
            Place::Disk => "disk",
            Place::DiskXfs => "disk-xfs",
            Place::Tmpfs => "tmpfs",
        }
    }

    /// Returns whether a pool there survives a power loss.
    pub fn is_dax(self) -> bool {
        self == Place::Nvdimm
    }

    /// Returns its mount point.
    pub(super) fn dir(self) -> PathBuf {
        Path::new("/mnt").join(self.name())
    }

    fn file_system(self) -> &'static str {
        match self {
            Place::Tmpfs => "tmpfs",
            Place::DiskXfs => "xfs",
            Place::Nvdimm | Place::NvdimmNoDax | Place::VirtioPmem | Place::Disk => "ext4",
        }
    }

    fn device(self) -> Checked<String> {
        match self {
            Place::Nvdimm | Place::NvdimmNoDax => pmem(false),
            Place::VirtioPmem => pmem(true),
            Place::Disk | Place::DiskXfs => Ok("/dev/vda".into()),
            Place::Tmpfs => Ok("tmpfs".into()),
        }
    }

    /// Mounts the file system, and returns the mount point. With `format`, makes the file system
    /// first.
    pub(super) fn mount(self, format: bool) -> Checked<PathBuf> {
        if format {
            self.format(None)?;
        }
        self.mount_with(match self {
            Place::Nvdimm | Place::VirtioPmem => "dax=always",
            Place::NvdimmNoDax | Place::Disk | Place::DiskXfs | Place::Tmpfs => "rw",
        })
    }

    /// Makes the file system, of `blocks` blocks of 4 KiB or of the whole device.
    pub(super) fn format(self, blocks: Option<u64>) -> Checked {
        if matches!(self, Place::Nvdimm | Place::NvdimmNoDax) {
            // A raw namespace has no DAX.
            let create =
                ["create-namespace", "-f", "-e", "namespace0.0", "-m", "fsdax", "-M", "mem"];
            run(Command::new("ndctl").args(create))?;
        }
        match self.file_system() {
            "tmpfs" => Ok(()),
            "xfs" => run(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(self.device()?)),
            _ => {
                let mut make = Command::new("mkfs.ext4");
                make.args(["-q", "-F", "-b", "4096"]).arg(self.device()?);
                run(make.args(blocks.map(|blocks| blocks.to_string())))
            }
        }
    }

    /// Mounts the file system with these options.
    pub(super) fn mount_with(self, options: &str) -> Checked<PathBuf> {
        let dir = self.dir();
        fs::create_dir_all(&dir).map_err(|e| Fault(format!("{}: {e}", dir.display())))?;
        let kind = self.file_system();
        run(Command::new("mount").args(["-t", kind, "-o", options]).arg(self.device()?).arg(&dir))?;
        Ok(dir)
    }
}

/// Returns the block device of the first persistent memory that is, or is not, a virtio device.
fn pmem(virtio: bool) -> Checked<String> {
    let blocks = fs::read_dir("/sys/block").map_err(|e| Fault(format!("/sys/block: {e}")))?;
    let mut names: Vec<String> = blocks
        .filter_map(Result::ok)
        .filter(|entry| {
            let place = fs::read_link(entry.path()).unwrap_or_default();
            place.to_string_lossy().contains("/virtio") == virtio
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("pmem"))
        .collect();
    names.sort();
    names.first().map(|name| format!("/dev/{name}")).ok_or_else(|| {
        let kind = if virtio { "virtio" } else { "NVDIMM" };
        Fault(format!("the guest has no {kind} persistent memory"))
    })
}

/// Unmounts everything, as an orderly shutdown does.
pub(super) fn unmount_all() {
    for entry in fs::read_dir("/mnt").into_iter().flatten().filter_map(Result::ok) {
        let _ = Command::new("umount").arg(entry.path()).stderr(Stdio::null()).status();
    }
}

/// Runs a command. Its stderr becomes part of the fault.
fn run(command: &mut Command) -> Checked {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Fault(format!("{name} does not run: {e}")))?;
    ensure(output.status.success(), || {
        format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())
    })
}

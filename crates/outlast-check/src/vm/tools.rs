//! The parts of the virtual machine: Debian packages, fetched once and unpacked into a cache of the
//! user. Nothing is installed, and no privilege is needed.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The packages to fetch. Their dependencies come with them.
const PACKAGES: [&str; 6] =
    ["qemu-system-x86", "busybox-static", "ndctl", "e2fsprogs", "xfsprogs", "linux-image-amd64"];

/// The kernel's modules. A kernel with some of them built in has no files for those.
pub const MODULES: [&str; 20] = [
    "libnvdimm",
    "nfit",
    "nd_btt",
    "nd_pmem",
    "crc32c-intel",
    "crc32c_generic",
    "jbd2",
    "mbcache",
    "crc16",
    "ext4",
    "libcrc32c",
    "xfs",
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "nd_virtio",
    "virtio_pmem",
];

/// The name of the packages' part of the cache. The number changes with the content.
const UNPACKED: &str = "unpacked-2";

/// Why no virtual machine can run here.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The unpacked packages.
#[derive(Debug, Clone)]
pub struct Tools {
    root: PathBuf,
}

impl Tools {
    /// Finds the packages in the cache, or fetches them.
    ///
    /// # Errors
    /// What is missing.
    pub fn provide(cache: &Path, say: &dyn Fn(&str)) -> Result<Tools, Missing> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Missing("the virtual machine is an x86-64 one, as is its program".into()));
        }
        let root = cache.join(UNPACKED);
        if !root.is_dir() {
            fetch(cache, &root, say)?;
        }
        let tools = Tools { root };
        let answer = tools.qemu_command().arg("--version").output();
        match answer {
            Ok(output) if output.status.success() => Ok(tools),
            Ok(output) => Err(Missing(format!(
                "qemu does not run: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
            Err(e) => Err(Missing(format!("qemu does not run: {e}"))),
        }
    }

    /// Returns the emulator, with the libraries of the packages.
    pub fn qemu_command(&self) -> Command {
        let mut command = Command::new(self.root.join("usr/bin/qemu-system-x86_64"));
        command.env("LD_LIBRARY_PATH", self.library_path());
        for firmware in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.root.join(firmware));
        }
        command
    }

    fn library_path(&self) -> String {
        let dirs = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        dirs.map(|dir| self.root.join(dir).display().to_string()).join(":")
    }

    /// Returns the path of the kernel's image.
    pub fn kernel(&self) -> PathBuf {
        self.root.join("vmlinuz")
    }

    /// Returns the file of a module, or `None` if the kernel has none.
    pub fn module(&self, name: &str) -> Option<PathBuf> {
        Some(self.root.join("modules").join(format!("{name}.ko"))).filter(|path| path.is_file())
    }

    /// Returns the path of busybox, a shell and its commands in one static program.
    pub fn busybox(&self) -> PathBuf {
        self.root.join("bin/busybox")
    }

    /// Lists the programs that the guest runs, with the libraries and the loader that they need,
    /// each with its path in the guest.
    ///
    /// # Errors
    /// If a program or a library is missing.
    pub fn programs(&self) -> Result<Vec<(String, PathBuf)>, Missing> {
        let mut files = Vec::new();
        let mut libraries = BTreeSet::new();
        for program in ["usr/bin/ndctl", "sbin/mkfs.ext4", "sbin/mkfs.xfs"] {
            let path = self.root.join(program);
            let output = Command::new("ldd")
                .arg(&path)
                .env("LD_LIBRARY_PATH", self.library_path())
                .output()
                .map_err(|e| Missing(format!("ldd does not run: {e}")))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if !output.status.success() || text.contains("not found") {
                return Err(Missing(format!("{program} lacks a library: {}", text.trim())));
            }
            libraries.extend(text.split_whitespace().filter(|w| w.starts_with('/')).map(
                // A line without an arrow names the loader or, if it ends with a colon, the
                // program.
                |word| PathBuf::from(word.trim_end_matches(':')),
            ));
            libraries.remove(&path);
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((format!("bin/{name}"), path));
        }
        for library in libraries {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let folder = if name.starts_with("ld-") { "lib64" } else { "lib" };
            files.push((format!("{folder}/{name}"), library));
        }
        Ok(files)
    }
}

/// Returns the directory of the cache: `OUTLAST_DAX_VM_CACHE`, or a directory in the user's cache.
///
/// # Errors
/// If there is no directory for it.
pub fn cache() -> Result<PathBuf, Missing> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("OUTLAST_DAX_VM_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("outlast-dax-vm")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/outlast-dax-vm")))
        .ok_or_else(|| Missing("no directory for a cache: OUTLAST_DAX_VM_CACHE is not set".into()))
}

/// Fetches and unpacks the packages. An interrupted run leaves nothing that a later run would take
/// for the cache.
fn fetch(cache: &Path, root: &Path, say: &dyn Fn(&str)) -> Result<(), Missing> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb", "ldd"] {
        let found = Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok();
        if !found {
            return Err(Missing(format!("no {tool} here; packages come from Debian")));
        }
    }
    let io = |e: io::Error| Missing(format!("the cache in {}: {e}", cache.display()));
    fs::create_dir_all(cache).map_err(io)?;
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache).map_err(io)?;
    // Use lists and archives of our own: the system's may be old, absent, or not ours to change.
    let state = work.path().join("apt");
    fs::create_dir_all(state.join("lists/partial")).map_err(io)?;
    fs::create_dir_all(state.join("cache/archives/partial")).map_err(io)?;
    let apt = |program: &str| {
        let mut command = Command::new(program);
        command.arg("-q").arg("-o").arg(format!("Dir::State::Lists={}/lists", state.display()));
        command.arg("-o").arg(format!("Dir::Cache={}/cache", state.display()));
        command.args(["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]);
        command.args(["-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20"]);
        command
    };
    say("reading the lists of Debian packages");
    output(apt("apt-get").args(["-o", "APT::Update::Error-Mode=any", "update"]))?;
    let mut names: BTreeSet<String> = PACKAGES.map(String::from).into();
    // This package depends on that of the newest kernel.
    let depends = output(apt("apt-cache").args(["depends", "linux-image-amd64"]))?;
    names.extend(
        depends
            .split_whitespace()
            .filter(|word| word.starts_with("linux-image-"))
            .map(String::from),
    );
    // Also fetch the dependencies that the system lacks.
    let needed = output(
        apt("apt-get")
            .args(["install", "--print-uris", "-qq", "--no-install-recommends"])
            .args(&names),
    )?;
    for line in needed.lines() {
        // Format: 'uri' name_version_arch.deb size hash
        let package = line.split_whitespace().nth(1).and_then(|file| file.split('_').next());
        names.extend(package.map(String::from));
    }
    say(&format!("fetching {} packages, about 100 MB", names.len()));
    let debs = work.path().join("debs");
    fs::create_dir_all(&debs).map_err(io)?;
    output(apt("apt-get").arg("download").args(&names).current_dir(&debs))?;
    say("unpacking them");
    let unpacked = work.path().join("root");
    for entry in fs::read_dir(&debs).map_err(io)? {
        output(Command::new("dpkg-deb").arg("-x").arg(entry.map_err(io)?.path()).arg(&unpacked))?;
    }
    keep_of_kernel(&unpacked)?;
    for unused in ["usr/share/doc", "usr/share/locale", "usr/share/man", "boot"] {
        let _ = fs::remove_dir_all(unpacked.join(unused));
    }
    match fs::rename(&unpacked, root) {
        // Another run has put the packages there meanwhile.
        Err(_) if root.is_dir() => Ok(()),
        other => other.map_err(io),
    }
}

/// Puts the kernel at `vmlinuz` and the modules that are to be loaded, unpacked, into `modules`.
/// Removes the other modules.
fn keep_of_kernel(unpacked: &Path) -> Result<(), Missing> {
    let io = |e: io::Error| Missing(format!("the kernel's package: {e}"));
    let kernel = fs::read_dir(unpacked.join("boot"))
        .map_err(io)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz")))
        .ok_or_else(|| Missing("the kernel's package has no kernel".into()))?;
    fs::copy(kernel, unpacked.join("vmlinuz")).map_err(io)?;
    let kept = unpacked.join("modules");
    fs::create_dir_all(&kept).map_err(io)?;
    let trees = [unpacked.join("lib/modules"), unpacked.join("usr/lib/modules")];
    for tree in trees.iter().filter(|tree| tree.is_dir()) {
        let mut folders = vec![tree.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).map_err(io)? {
                let entry = entry.map_err(io)?;
                let path = entry.path();
                if entry.file_type().map_err(io)?.is_dir() {
                    folders.push(path);
                } else {
                    keep_module(&path, &kept)?;
                }
            }
        }
        fs::remove_dir_all(tree).map_err(io)?;
    }
    Ok(())
}

fn keep_module(path: &Path, kept: &Path) -> Result<(), Missing> {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((name, packed)) = file.split_once(".ko") else { return Ok(()) };
    if !MODULES.contains(&name) {
        return Ok(());
    }
    let io = |e: io::Error| Missing(format!("the module {name}: {e}"));
    let target = kept.join(format!("{name}.ko"));
    let unpack = match packed {
        "" => return fs::copy(path, target).map(drop).map_err(io),
        ".xz" => "xz",
        ".zst" => "zstd",
        _ => "gzip",
    };
    let output = Command::new(unpack).arg("-dc").arg(path).output().map_err(io)?;
    if !output.status.success() {
        return Err(Missing(format!("the module {name} cannot be unpacked with {unpack}")));
    }
    fs::write(target, output.stdout).map_err(io)
}

/// Runs a command to its end. Its stderr becomes part of the error.
fn output(command: &mut Command) -> Result<String, Missing> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Missing(format!("{name} does not run: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = said.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no reason given");
    Err(Missing(format!("{name} failed ({}): {line}", output.status)))
}
